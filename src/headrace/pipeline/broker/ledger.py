"""Postings: what a call changed in the shares, written down for the next claim to take in."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping

import sqlalchemy as sa

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
        rows = [
            {
                "kind": kind,
                "size": sum(change.size for change in changes.values()),
                "changes": json.dumps(
                    [_fields(p, c) for p, c in sorted(changes.items(), key=_order)]
                ),
            }
            for kind, changes in sorted(self._changes.items())
        ]
        if rows:
            connection.execute(_INSERT, rows)


def _order(item: tuple[Place, Change]) -> tuple[int, str]:
    return item[0].priority, item[0].domain


def _fields(place: Place, change: Change) -> list[object]:
    return [place.priority, place.domain, change.ready, change.running, change.size, change.cost]


def drain(connection: sa.Connection, kind: str, postings: Postings) -> None:
    """Take what the ledger holds of `kind` out of it and add it to `postings`."""
    for text in connection.execute(_DRAIN, {"of": kind}).scalars():
        for place, change in _changes(text):
            postings.add(kind, place, change)


def _changes(text: str) -> Iterator[tuple[Place, Change]]:
    for priority, domain, ready, running, size, cost in json.loads(text):
        yield Place(priority, domain), Change(ready, running, size, cost)


def open_bytes(connection: sa.Connection, kind: str) -> int:
    """The bytes behind the items of `kind` that have not ended."""
    return sum(int(part or 0) for part in connection.execute(_OPEN, {"of": kind}).scalars())


_INSERT = sa.insert(ledger)
_OF = sa.bindparam("of", type_=sa.Text)
_DRAIN = sa.delete(ledger).where(ledger.c.kind == _OF).returning(ledger.c.changes)
_OPEN = sa.union_all(
    sa.select(sa.func.sum(shares.c.size)).where(shares.c.kind == _OF),
    sa.select(sa.func.sum(ledger.c.size)).where(ledger.c.kind == _OF),
)
