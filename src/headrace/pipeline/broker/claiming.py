"""Claims: take in what changed, pick fairly, lease; one transaction at a time for each kind."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from headrace.pipeline.broker.database import Database, Insert
from headrace.pipeline.broker.items import Lease
from headrace.pipeline.broker.ledger import Postings, drain
from headrace.pipeline.broker.schema import (
    LEASED,
    READY,
    domains,
    is_pending,
    is_ready,
    items,
    shares,
)
from headrace.pipeline.fair import Ask, Change, FairQueue, Lane, Pick, Place, Share, draw

__all__ = ["SET_SHARE", "Claim", "claim"]

_CLOCK = ""
"""The domain of the row that holds a class's clock."""
_PROMOTED_AT_ONCE = 256
_ASKED_AT_ONCE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a worker asks for; see `Broker.claim`."""

    kinds: frozenset[str]
    worker: str
    limit: int
    lease_s: float
    batch: str | None
    all_of_batch: bool
    exclude: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Item:
    id: int
    kind: str
    key: str
    domain: str
    priority: int
    payload: str
    group: str | None
    batch: str | None
    cost: float
    attempts: int

    @property
    def place(self) -> Place:
        return Place(self.priority, self.domain)


def claim(
    database: Database, connection: sa.Connection, asked: Claim, *, now: float, aging_s: float
) -> list[Lease]:
    """Lease up to `asked.limit` items, in the order in which they are to be worked on."""
    kinds = sorted(asked.kinds)
    database.lock(connection, kinds, durable=False)
    desks = {kind: _Desk(database, connection, kind, now, aging_s) for kind in kinds}
    if asked.batch is None:
        queues = [desk.queue(asked.limit, asked.exclude) for desk in desks.values()]
        picks = draw(queues, asked.limit)
    else:
        picks = _of_batch(connection, asked, desks)
    leases = _take(connection, picks, asked, now)
    for desk in desks.values():
        desk.save()
    return leases


class _Desk:
    """One kind's shares for the length of a claim."""

    def __init__(
        self, database: Database, connection: sa.Connection, kind: str, now: float, aging_s: float
    ) -> None:
        self._database, self._connection = database, connection
        self._kind, self._now, self._aging_s = kind, now, aging_s
        self._queue: FairQueue[_Item] | None = None
        self._clocks: dict[int, float] = {}

    def queue(
        self, wanted: int, exclude: Iterable[str], also: Iterable[str] = ()
    ) -> FairQueue[_Item]:
        """The shares as they are now; those of the domains `also` are among them."""
        postings = Postings()
        drain(self._connection, self._kind, postings)
        named = {*exclude, *also}
        rows = self._standing(postings, named, wanted)
        if self._something_is_due(rows):
            self._promote(postings)
            rows = self._standing(postings, named, wanted)
        changes = postings.of(self._kind)
        self._clocks = {row.priority: row.virtual for row in rows if row.domain == _CLOCK}
        queue = FairQueue(self._shares(rows, changes), self._clocks, self._fetch, wanted=wanted)
        queue.exclude(exclude)
        queue.post(changes)
        self._queue = queue
        return queue

    def save(self) -> None:
        """Write back what changed."""
        queue = self._queue
        if queue is None:
            return
        queue.settle()
        rows = [_row(self._kind, queue.shares[place]) for place in queue.touched]
        classes = {place.priority for place in queue.touched}
        for priority in sorted(classes):
            clock = queue.clocks.get(priority, 0.0)
            if self._clocks.get(priority) != clock:
                share = Share(Place(priority, _CLOCK), Lane(), virtual=clock)
                rows.append(_row(self._kind, share))
        if rows:
            self._connection.execute(_upsert(self._database.insert), rows)

    def _standing(
        self, postings: Postings, named: Iterable[str], wanted: int
    ) -> Sequence[sa.Row[Any]]:
        changed = {place.domain for place in postings.of(self._kind)}
        asked = {"of": self._kind, "named": sorted({_CLOCK, *named, *changed}), "wanted": wanted}
        return self._connection.execute(_STANDING, asked).all()

    def _something_is_due(self, rows: Sequence[sa.Row[Any]]) -> bool:
        """Without a clock nobody has looked yet."""
        clocks = [row for row in rows if row.domain == _CLOCK]
        return not clocks or (clocks[0].due is not None and clocks[0].due <= self._now)

    def _promote(self, postings: Postings) -> None:
        """Make ready what waited for its time; move what waited long into the next class."""
        told = {"of": self._kind, "now": self._now, "aging": self._aging_s}
        for row in self._connection.execute(_WAKE, told):
            postings.add(self._kind, Place(row.priority, row.domain), Change(ready=1))
        for row in self._connection.execute(_AGE, told):
            change = Change(ready=1, size=row.size)
            postings.add(self._kind, Place(row.priority, row.domain), change)
            change = Change(ready=-1, size=-row.size)
            postings.add(self._kind, Place(row.priority + 1, row.domain), change)

    def _shares(self, rows: Sequence[sa.Row[Any]], changes: Mapping[Place, Change]) -> list[Share]:
        lanes = {row.domain: Lane(int(row.lane or 0), row.most) for row in rows}
        made = [
            Share(
                Place(row.priority, row.domain),
                lanes[row.domain],
                weight=row.weight,
                virtual=row.virtual,
                ready=row.ready,
                running=row.running,
                size=row.size,
            )
            for row in rows
            if row.domain != _CLOCK
        ]
        new = sorted(changes.keys() - {share.place for share in made}, key=_in_order)
        return made + self._new_shares(new, lanes)

    def _new_shares(self, places: Sequence[Place], lanes: dict[str, Lane]) -> list[Share]:
        if not places:
            return []
        asked = {"named": sorted({place.domain for place in places})}
        told = {row.domain: row for row in self._connection.execute(_SETTINGS, asked)}
        made: list[Share] = []
        for place in places:
            row = told.get(place.domain)
            lane = lanes.setdefault(place.domain, Lane(0, None if row is None else row.most))
            made.append(Share(place, lane, weight=1.0 if row is None else row.weight))
        return made

    def _fetch(self, asks: Sequence[Ask[_Item]]) -> list[list[_Item]]:
        found: list[list[_Item]] = []
        for start in range(0, len(asks), _ASKED_AT_ONCE):
            found += self._fetch_some(asks[start : start + _ASKED_AT_ONCE])
        return found

    def _fetch_some(self, asks: Sequence[Ask[_Item]]) -> list[list[_Item]]:
        told: dict[str, object] = {"of": self._kind}
        for n, ask in enumerate(asks):
            told |= {
                f"priority_{n}": ask.place.priority,
                f"domain_{n}": ask.place.domain,
                f"after_{n}": 0 if ask.after is None else ask.after.id,
                f"count_{n}": ask.count,
            }
        by_place: dict[Place, list[_Item]] = {ask.place: [] for ask in asks}
        for row in self._connection.execute(_heads(len(asks)), told):
            item = _Item(*row)
            by_place[item.place].append(item)
        return [sorted(by_place[ask.place], key=lambda item: item.id) for ask in asks]


def _in_order(place: Place) -> tuple[int, str]:
    return place.priority, place.domain


def _of_batch(
    connection: sa.Connection, asked: Claim, desks: Mapping[str, _Desk]
) -> list[Pick[_Item]]:
    """Ready items of one batch, whosever turn it is: charged for, but the clocks stay.

    All of the batch that has not ended, or nothing, if so asked.
    """
    told = {"batch": asked.batch, "of": sorted(asked.kinds)}
    members = {row.domain for row in connection.execute(_BATCH_DOMAINS, told)}
    queues = {kind: desk.queue(1, asked.exclude, members) for kind, desk in desks.items()}
    found = connection.execute(_BATCH, told).all()
    picks: list[Pick[_Item]] = []
    for row in found:
        item = _Item(*row[:-1])
        share = queues[item.kind].shares.get(item.place)
        free = row.state == READY and item.domain not in asked.exclude
        if free and share is not None and share.eligible and len(picks) < asked.limit:
            picks.append(queues[item.kind].charge(item.place, item))
    if asked.all_of_batch and len(picks) < len(found):
        for pick in picks:
            pick.undo()
        return []
    return picks


def _take(
    connection: sa.Connection, picks: Sequence[Pick[_Item]], asked: Claim, now: float
) -> list[Lease]:
    """Lease what was picked, less what was cancelled in this very moment."""
    if not picks:
        return []
    base = secrets.randbits(62)  # random, so that no crash can make a token come back
    told = {
        "ids": [pick.item.id for pick in picks],
        "base": base,
        "who": asked.worker,
        "now": now,
        "expires": now + asked.lease_s,
    }
    taken = set(connection.execute(_TAKE, told).scalars())
    leases: list[Lease] = []
    for pick in picks:
        item = pick.item
        if item.id not in taken:
            pick.undo()
            continue
        leases.append(
            Lease(
                id=item.id,
                kind=item.kind,
                key=item.key,
                domain=item.domain,
                payload=item.payload,
                group=item.group,
                batch=item.batch,
                cost=item.cost,
                token=base + item.id,
                attempt=item.attempts + 1,
                worker=asked.worker,
                expires=now + asked.lease_s,
            )
        )
    return leases


def _row(kind: str, share: Share) -> dict[str, object]:
    return {
        "kind": kind,
        "domain": share.place.domain,
        "priority": share.place.priority,
        "weight": share.weight,
        "most": share.lane.limit,
        "virtual": share.virtual,
        "ready": share.ready,
        "running": share.running,
        "size": share.size,
    }


# --- statements ----------------------------------------------------------------------------

_OF = sa.bindparam("of", type_=sa.Text)
_OF_ANY = sa.bindparam("of", type_=sa.Text, expanding=True)
_NAMED = sa.bindparam("named", type_=sa.Text, expanding=True)
_NOW = sa.bindparam("now", type_=sa.Double)
_FIELDS = (
    items.c.id,
    items.c.kind,
    items.c.key,
    items.c.domain,
    items.c.priority,
    items.c.payload,
    items.c.group_name,
    items.c.batch,
    items.c.cost,
    items.c.attempts,
)


def _standing() -> sa.CompoundSelect[Any]:
    """The named domains' shares, and of the others the `wanted` least served that may run.

    Only rows of clocks say when the next item of their kind is due.
    """
    siblings, pending = shares.alias(), items.alias()
    running = (
        sa.select(sa.func.sum(siblings.c.running))
        .where(siblings.c.kind == shares.c.kind, siblings.c.domain == shares.c.domain)
        .correlate(shares)
        .scalar_subquery()
    )
    due = (
        sa.select(sa.func.min(pending.c.due))
        .where(pending.c.kind == _OF, is_pending(pending), pending.c.due.is_not(None))
        .scalar_subquery()
    )
    limited = shares.c.most.is_not(None)
    lane = sa.case((sa.or_(limited, shares.c.domain.in_(_NAMED)), running), else_=0)
    columns = (
        *shares.c,
        lane.label("lane"),
        sa.case((shares.c.domain == _CLOCK, due), else_=None).label("due"),
    )
    named = sa.select(*columns).where(shares.c.kind == _OF, shares.c.domain.in_(_NAMED))
    least = (
        sa.select(*columns)
        .where(
            shares.c.kind == _OF,
            shares.c.domain.not_in(_NAMED),
            shares.c.ready > 0,
            sa.or_(sa.not_(limited), running < shares.c.most),
        )
        .order_by(shares.c.priority, shares.c.virtual, shares.c.domain)
        .limit(sa.bindparam("wanted", type_=sa.Integer))
        .subquery()
    )
    return sa.union_all(named, sa.select(least))


_STANDING = _standing()
_SETTINGS = sa.select(domains).where(domains.c.domain.in_(_NAMED))


@lru_cache(maxsize=_ASKED_AT_ONCE)
def _heads(count: int) -> sa.CompoundSelect[Any]:
    """The next ready items of `count` places."""

    def branch(n: int) -> sa.Select[Any]:
        found = (
            sa.select(*_FIELDS)
            .where(
                items.c.kind == _OF,
                items.c.priority == sa.bindparam(f"priority_{n}", type_=sa.Integer),
                items.c.domain == sa.bindparam(f"domain_{n}", type_=sa.Text),
                is_ready(items),
                items.c.id > sa.bindparam(f"after_{n}", type_=sa.BigInteger),
            )
            .order_by(items.c.id)
            .limit(sa.bindparam(f"count_{n}", type_=sa.Integer))
        )
        return sa.select(found.subquery(f"head_{n}"))

    return sa.union_all(*(branch(n) for n in range(count)))


def _due(condition: sa.ColumnElement[bool], table: sa.FromClause) -> sa.ScalarSelect[int]:
    return (
        sa.select(table.c.id)
        .where(table.c.kind == _OF, is_pending(table), condition, table.c.due <= _NOW)
        .order_by(table.c.due)
        .limit(_PROMOTED_AT_ONCE)
        .scalar_subquery()
    )


def _promotion(*, aged: bool) -> sa.Executable:
    """Ready items go into the next class, or waiting items become ready."""
    inner = items.alias()
    ready = is_ready(items) if aged else is_pending(items) & sa.not_(is_ready(items))
    chosen = is_ready(inner) if aged else is_pending(inner) & sa.not_(is_ready(inner))
    aging = sa.bindparam("aging", type_=sa.Double)
    later = sa.case((items.c.priority > int(aged), items.c.due + aging), else_=None)
    change = {"priority": items.c.priority - 1} if aged else {"state": READY, "since": items.c.due}
    return (
        sa.update(items)
        .where(items.c.id.in_(_due(chosen, inner)), ready)
        .values(due=later, **change)
        .returning(items.c.priority, items.c.domain, items.c.size)
    )


_WAKE = _promotion(aged=False)
_AGE = _promotion(aged=True)
_BATCH_OPEN = (
    items.c.batch == sa.bindparam("batch", type_=sa.Text),
    items.c.kind.in_(_OF_ANY),
    items.c.state <= LEASED,
)
_BATCH_DOMAINS = sa.select(items.c.domain).where(*_BATCH_OPEN).distinct()
_BATCH = (
    sa.select(*_FIELDS, items.c.state).where(*_BATCH_OPEN).order_by(items.c.priority, items.c.id)
)
_TAKE = (
    sa.update(items)
    .where(
        items.c.id.in_(sa.bindparam("ids", type_=sa.BigInteger, expanding=True)), is_ready(items)
    )
    .values(
        state=LEASED,
        token=sa.bindparam("base", type_=sa.BigInteger) + items.c.id,
        worker=sa.bindparam("who", type_=sa.Text),
        since=_NOW,
        due=sa.bindparam("expires", type_=sa.Double),
        attempts=items.c.attempts + 1,
    )
    .returning(items.c.id)
)


_CLOCKS = shares.alias()
_NOW_OF_CLASS = (
    sa.select(_CLOCKS.c.virtual)
    .where(
        _CLOCKS.c.kind == shares.c.kind,
        _CLOCKS.c.domain == _CLOCK,
        _CLOCKS.c.priority == shares.c.priority,
    )
    .correlate(shares)
    .scalar_subquery()
)
SET_SHARE = (
    sa.update(shares)
    .where(shares.c.domain == _OF)
    .values(
        weight=sa.bindparam("to", type_=sa.Double),
        most=sa.bindparam("limit", type_=sa.Integer),
        virtual=sa.case((shares.c.virtual < _NOW_OF_CLASS, _NOW_OF_CLASS), else_=shares.c.virtual),
    )
)
"""A domain's weight and limit, from the clock on."""


@lru_cache(maxsize=2)
def _upsert(insert: Insert) -> sa.Executable:
    """Rows are returned, since only then does SQLAlchemy send many in one statement."""
    statement = insert(shares)
    changing = ("virtual", "ready", "running", "size")
    return statement.on_conflict_do_update(
        index_elements=[shares.c.kind, shares.c.domain, shares.c.priority],
        set_={name: statement.excluded[name] for name in changing},
    ).returning(shares.c.ready)
