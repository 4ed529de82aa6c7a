"""Postings: what a call changed in the shares, written down for the next claim to take in."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping

import sqlalchemy as sa

from headrace.pipeline.broker.database import Prepared
from headrace.pipeline.broker.schema import LEASED, READY, WAITING, ledger, shares
from headrace.pipeline.fair import Change, Place

__all__ = ["Postings", "drain", "open_bytes"]

OPEN = (READY, WAITING, LEASED)


class Postings:
    """The changes of one call, by kind and place."""

    def __init__(self) -> None:
        self._changes: dict[str, defaultdict[Place, Change]] = {}

    def of(self, kind: str) -> Mapping[Place, Change]:
        return self._changes.get(kind, {})

    def add(self, kind: str, place: Place, change: Change) -> None:
        self._changes.setdefault(kind, defaultdict(Change))[place].add(change)

    def move(
        self,
        kind: str,
        place: Place,
        size: int,
        before: int | None,
        after: int | None,
        *,
        cost: float = 0.0,
    ) -> None:
        """An item of `size` bytes goes from one state to another; None is outside the broker."""
        change = Change(
            ready=(after == READY) - (before == READY),
            running=(after == LEASED) - (before == LEASED),
            size=size * ((after in OPEN) - (before in OPEN)),
            cost=cost,
        )
        self.add(kind, place, change)

    def write(self, connection: sa.Connection) -> None:
        for kind, changes in sorted(self._changes.items()):
            fields = [(*p, c.ready, c.running, c.size, c.cost) for p, c in sorted(changes.items())]
            size = sum(change.size for change in changes.values())
            _INSERT.run(connection, kind=kind, size=size, changes=json.dumps(fields))


def drain(connection: sa.Connection, kind: str, postings: Postings) -> None:
    """Take what the ledger holds of `kind` out of it and add it to `postings`."""
    for (text,) in _DRAIN.run(connection, of=kind):
        for place, change in _changes(text):
            postings.add(kind, place, change)


def _changes(text: str) -> Iterator[tuple[Place, Change]]:
    for priority, domain, ready, running, size, cost in json.loads(text):
        yield Place(priority, domain), Change(ready, running, size, cost)


def open_bytes(connection: sa.Connection, kind: str) -> int:
    """The bytes behind the items of `kind` that have not ended."""
    return sum(int(part or 0) for part in connection.execute(_OPEN, {"of": kind}).scalars())


_INSERT = Prepared(
    lambda _: (
        sa.insert(ledger)
        .values({name: sa.bindparam(name) for name in ("kind", "size", "changes")})
        .inline()
    ),
    returns=False,
)
_OF = sa.bindparam("of", type_=sa.Text)
_DRAIN = Prepared(
    lambda _: sa.delete(ledger).where(ledger.c.kind == _OF).returning(ledger.c.changes)
)
_OPEN = sa.union_all(
    sa.select(sa.func.sum(shares.c.size)).where(shares.c.kind == _OF),
    sa.select(sa.func.sum(ledger.c.size)).where(ledger.c.kind == _OF),
)
