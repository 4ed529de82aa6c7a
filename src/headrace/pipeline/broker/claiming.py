"""Claims: take in what changed, pick fairly, lease; one transaction at a time for each kind."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from headrace.pipeline.broker.database import Database, Prepared, among, insert_into, told_rows
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
    still,
)
from headrace.pipeline.fair import Ask, Change, FairQueue, Lane, Pick, Place, Share, draw

__all__ = ["SET_SHARE", "Claim", "claim"]

_CLOCK = ""
"""The domain of the row that holds a class's clock."""
_PROMOTED_AT_ONCE = 256


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
        self._clocks = {row[1]: row[4] for row in rows if row[0] == _CLOCK}
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
        changed = [queue.shares[place] for place in queue.touched]
        for priority in {place.priority for place in queue.touched}:
            clock = queue.clocks.get(priority, 0.0)
            if self._clocks.get(priority) != clock:
                changed.append(Share(Place(priority, _CLOCK), Lane(), virtual=clock))
        rows = [[*s.place, s.virtual, s.ready, s.running, s.size] for s in changed]
        if rows:
            _WRITE.run(self._connection, of=self._kind, rows=json.dumps(rows))

    def _standing(
        self, postings: Postings, named: Iterable[str], wanted: int
    ) -> Sequence[tuple[Any, ...]]:
        names = {_CLOCK, *named, *(place.domain for place in postings.of(self._kind))}
        rows = json.dumps([[name] for name in names])
        return _STANDING.run(self._connection, of=self._kind, wanted=wanted, rows=rows)

    def _something_is_due(self, rows: Sequence[tuple[Any, ...]]) -> bool:
        """Without a clock nobody has looked yet."""
        dues = [due for domain, *_, due in rows if domain == _CLOCK]
        return not dues or (dues[0] is not None and dues[0] <= self._now)

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

    def _shares(
        self, rows: Sequence[tuple[Any, ...]], changes: Mapping[Place, Change]
    ) -> list[Share]:
        lanes: dict[str, Lane] = {}
        made: dict[Place, Share] = {}
        for domain, priority, weight, most, virtual, ready, running, size, busy, _ in rows:
            if domain != _CLOCK:
                lane = lanes.setdefault(domain, Lane(int(busy), most))
                place = Place(priority, domain)
                made[place] = Share(place, lane, weight, virtual, ready, running, size)
        clocks = {Place(place.priority, _CLOCK) for place in changes} - {
            Place(priority, _CLOCK) for priority in self._clocks
        }
        self._insert([Share(place, Lane()) for place in sorted(clocks)])
        new = [place for place in changes if place not in made]
        return [*made.values(), *self._new_shares(sorted(new), lanes)]

    def _new_shares(self, places: Sequence[Place], lanes: dict[str, Lane]) -> list[Share]:
        """Shares of domains that were never seen in their class, with the weights that were set."""
        if not places:
            return []
        asked = {"named": sorted({place.domain for place in places})}
        told = {row.domain: row for row in self._connection.execute(_SETTINGS, asked)}
        made: list[Share] = []
        for place in places:
            row = told.get(place.domain)
            lane = lanes.setdefault(place.domain, Lane(0, None if row is None else row.most))
            made.append(Share(place, lane, weight=1.0 if row is None else row.weight))
        self._insert(made)
        return made

    def _insert(self, new: Sequence[Share]) -> None:
        rows = [
            {
                "kind": self._kind,
                "domain": share.place.domain,
                "priority": share.place.priority,
                "weight": share.weight,
                "most": share.lane.limit,
            }
            for share in new
        ]
        if rows:
            self._connection.execute(_NEW, rows)

    def _fetch(self, asks: Sequence[Ask[_Item]]) -> list[list[_Item]]:
        by_place: dict[Place, list[_Item]] = {ask.place: [] for ask in asks}
        for row in self._heads(asks):
            item = _Item(*row)
            by_place[item.place].append(item)
        return [sorted(by_place[ask.place], key=_age) for ask in asks]

    def _heads(self, asks: Sequence[Ask[_Item]]) -> list[tuple[Any, ...]]:
        rows = [[*ask.place, 0 if ask.after is None else ask.after.id, ask.count] for ask in asks]
        if not self._database.is_sqlite:
            return _HEADS.run(self._connection, of=self._kind, rows=json.dumps(rows))
        found: list[tuple[Any, ...]] = []
        for priority, domain, after, count in rows:
            found += _HEADS.run(
                self._connection,
                of=self._kind,
                priority=priority,
                domain=domain,
                after=after,
                count=count,
            )
        return found


def _age(item: _Item) -> int:
    return item.id


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
    chosen = _TAKE.run(
        connection,
        base=base,
        who=asked.worker,
        now=now,
        expires=now + asked.lease_s,
        rows=json.dumps([[pick.item.id] for pick in picks]),
    )
    taken = {id_ for (id_,) in chosen}
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


def _standing(is_sqlite: bool) -> sa.ClauseElement:
    """The shares of the told domains, and of the others the `wanted` least served that may run.

    `lane` is what runs of a domain that has a limit. Only rows of clocks say when the next item
    of their kind is `due`.
    """
    told = told_rows(is_sqlite, name=sa.Text()).c.name
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
    unlimited, is_clock = shares.c.most.is_(None), shares.c.domain == sa.literal_column("''")
    columns = (
        shares.c.domain,
        shares.c.priority,
        shares.c.weight,
        shares.c.most,
        shares.c.virtual,
        shares.c.ready,
        shares.c.running,
        shares.c.size,
        sa.case((unlimited, sa.literal_column("0")), else_=running).label("lane"),
        sa.case((is_clock, due), else_=None).label("due"),
    )
    named = sa.select(*columns).where(shares.c.kind == _OF, among(is_sqlite, shares.c.domain, told))
    least = (
        sa.select(*columns)
        .where(
            shares.c.kind == _OF,
            shares.c.domain.not_in(sa.select(told)),
            shares.c.ready > sa.literal_column("0"),
            sa.or_(unlimited, running < shares.c.most),
        )
        .order_by(shares.c.priority, shares.c.virtual, shares.c.domain)
        .limit(sa.bindparam("wanted", type_=sa.Integer))
        .subquery()
    )
    return sa.union_all(named, sa.select(least))


_STANDING = Prepared(_standing)
_SETTINGS = sa.select(domains).where(domains.c.domain.in_(_NAMED))


def _heads(is_sqlite: bool) -> sa.ClauseElement:
    """The next ready items of the told places; in SQLite, which knows no LATERAL, of one place."""
    told = told_rows(
        is_sqlite,
        priority=sa.Integer(),
        domain=sa.Text(),
        after=sa.BigInteger(),
        count=sa.Integer(),
    )
    asked: Any = {name: sa.bindparam(name) for name in told.c.keys()} if is_sqlite else told.c  # noqa: SIM118
    found = (
        sa.select(*_FIELDS)
        .where(
            items.c.kind == _OF,
            items.c.priority == asked["priority"],
            items.c.domain == asked["domain"],
            is_ready(items),
            items.c.id > asked["after"],
        )
        .order_by(items.c.id)
        .limit(asked["count"])
    )
    if is_sqlite:
        return found
    heads = found.correlate(told).lateral("heads")
    return sa.select(*heads.c).select_from(told.join(heads, sa.true()))


_HEADS = Prepared(_heads)


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


def _take_told(is_sqlite: bool) -> sa.ClauseElement:
    told = told_rows(is_sqlite, id=sa.BigInteger())
    return (
        sa.update(items)
        .where(among(is_sqlite, items.c.id, told.c.id), still(READY))
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


_TAKE = Prepared(_take_told)
_NEW = sa.insert(shares).values(virtual=0.0, ready=0, running=0, size=0)


def _write(is_sqlite: bool) -> sa.ClauseElement:
    """New values for the told shares. They all exist, which an upsert looks up one by one."""
    count, changing = sa.BigInteger(), ("virtual", "ready", "running", "size")
    told = told_rows(
        is_sqlite,
        priority=sa.Integer(),
        domain=sa.Text(),
        virtual=sa.Double(),
        ready=count,
        running=count,
        size=count,
    )
    values = sa.select(_OF, sa.literal_column("1"), *told.c).where(sa.true())
    insert = insert_into(shares, is_sqlite=is_sqlite)
    return insert.from_select(["kind", "weight", *told.c.keys()], values).on_conflict_do_update(
        index_elements=[shares.c.kind, shares.c.domain, shares.c.priority],
        set_={name: insert.excluded[name] for name in changing},
    )


_WRITE = Prepared(_write, returns=False)
