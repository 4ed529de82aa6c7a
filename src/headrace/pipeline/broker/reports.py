"""What the broker tells about itself: counts, groups, dead letters, and who waits for whom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from headrace.pipeline.broker.items import Dead, GroupState, KindStats, ShareStats, Stats, Wait
from headrace.pipeline.broker.moves import evidence_of
from headrace.pipeline.broker.schema import (
    CANCELLED,
    DEAD,
    DONE,
    LEASED,
    READY,
    WAITING,
    domains,
    is_leased,
    is_pending,
    items,
    shares,
)

__all__ = ["dead", "group_state", "stats", "waits"]

_SHOWN = 1000
"""Leases that are told one by one, oldest first."""
_COUNT = sa.func.count()


def group_state(connection: sa.Connection, group: str, kind: str | None) -> GroupState:
    counted = sa.select(items.c.state, _COUNT.label("number")).where(items.c.group_name == group)
    if kind is not None:
        counted = counted.where(items.c.kind == kind)
    rows = connection.execute(counted.group_by(items.c.state)).all()
    counts = {row.state: int(row.number) for row in rows}
    return GroupState(
        group=group,
        total=sum(counts.values()),
        done=counts.get(DONE, 0),
        dead=counts.get(DEAD, 0),
        cancelled=counts.get(CANCELLED, 0),
        open=sum(counts.get(state, 0) for state in (READY, WAITING, LEASED)),
    )


def dead(connection: sa.Connection) -> list[Dead]:
    found = sa.select(items).where(items.c.state == DEAD).order_by(items.c.since, items.c.id)
    return [
        Dead(
            kind=row.kind,
            key=row.key,
            attempts=row.attempts,
            evidence=evidence_of(row),
            domain=row.domain,
            group=row.group_name,
            batch=row.batch,
        )
        for row in connection.execute(found)
    ]


# --- counts --------------------------------------------------------------------------------


def stats(connection: sa.Connection) -> Stats:
    counted = sa.select(
        items.c.kind,
        items.c.state,
        _COUNT.label("number"),
        sa.func.sum(items.c.size).label("size"),
        sa.func.min(items.c.since).label("since"),
    ).group_by(items.c.kind, items.c.state)
    by_kind: dict[str, dict[int, Any]] = {}
    for row in connection.execute(counted):
        by_kind.setdefault(row.kind, {})[row.state] = row
    clocks = shares.c.domain == ""
    standing = (
        sa.select(shares)
        .where(sa.not_(clocks))
        .order_by(shares.c.kind, shares.c.priority, shares.c.domain)
    )
    return Stats(
        kinds=tuple(_kind(kind, rows) for kind, rows in sorted(by_kind.items())),
        shares=tuple(_share(row) for row in connection.execute(standing)),
    )


def _kind(kind: str, rows: dict[int, Any]) -> KindStats:
    def number(state: int) -> int:
        return int(rows[state].number) if state in rows else 0

    return KindStats(
        kind=kind,
        ready=number(READY),
        waiting=number(WAITING),
        leased=number(LEASED),
        done=number(DONE),
        dead=number(DEAD),
        cancelled=number(CANCELLED),
        size=sum(int(row.size) for state, row in rows.items() if state <= LEASED),
        oldest=rows[READY].since if READY in rows else None,
    )


def _share(row: sa.Row[Any]) -> ShareStats:
    return ShareStats(
        kind=row.kind,
        priority=row.priority,
        domain=row.domain,
        weight=row.weight,
        limit=row.most,
        virtual=row.virtual,
        ready=row.ready,
        running=row.running,
    )


# --- waits ---------------------------------------------------------------------------------


def waits(connection: sa.Connection) -> list[Wait]:
    """What waits, the longest first: leases one by one, the others by kind and domain."""
    told = [*_leased(connection), *_pending(connection)]
    return sorted(told, key=lambda wait: (wait.since, wait.what))


def _leased(connection: sa.Connection) -> Iterable[Wait]:
    found = (
        sa.select(items).where(is_leased(items)).order_by(items.c.since, items.c.id).limit(_SHOWN)
    )
    for row in connection.execute(found):
        yield Wait(
            what=f"{row.kind} {row.key}",
            on=f"worker {row.worker} (attempt {row.attempts})",
            since=row.since,
            until=row.due,
        )


def _pending(connection: sa.Connection) -> Iterable[Wait]:
    place = items.c.kind, items.c.domain
    counted = (
        sa.select(
            *place,
            items.c.state,
            _COUNT.label("number"),
            sa.func.min(items.c.since).label("since"),
            sa.func.min(items.c.due).label("due"),
        )
        .where(is_pending(items))
        .group_by(*place, items.c.state)
    )
    running = sa.select(*place, _COUNT).where(is_leased(items)).group_by(*place)
    leased = {(kind, domain): number for kind, domain, number in connection.execute(running)}
    limits = {row.domain: row.most for row in connection.execute(sa.select(domains))}
    for row in connection.execute(counted):
        busy, limit = leased.get((row.kind, row.domain), 0), limits.get(row.domain)
        yield Wait(
            what=f"{row.number} {row.kind} of {row.domain}",
            on=_whom(row, busy, limit),
            since=row.since,
            until=row.due if row.state == WAITING else None,
        )


def _whom(row: Any, busy: int, limit: int | None) -> str:
    if row.state == WAITING:
        return "the time they were put off to, or the pause after a failure"
    if limit is not None and busy >= limit:
        return f"the limit of {limit} at a time in {row.domain}"
    return f"a worker that claims {row.kind}"
