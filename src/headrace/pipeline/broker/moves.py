"""Everything that moves items from one state to another, but for claims.

Each function is the body of one transaction. Items that are looked at before they move are
locked in the order of their ids, so that no two calls wait for each other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from headrace.pipeline.broker.database import Database, Prepared, among, insert_into, told_rows
from headrace.pipeline.broker.items import Backpressure, Done, Lease, Limits, Retry, Work
from headrace.pipeline.broker.ledger import Postings, open_bytes
from headrace.pipeline.broker.schema import (
    CANCELLED,
    DEAD,
    DONE,
    LEASED,
    READY,
    WAITING,
    is_leased,
    items,
    still,
)
from headrace.pipeline.fair import Place

__all__ = [
    "cancel",
    "commit",
    "enqueue",
    "expire",
    "fail",
    "forget",
    "heartbeat",
    "release",
    "requeue_dead",
    "reset",
]

_EVIDENCE = 4000
"""Characters kept of what one failure leaves."""


@dataclass(frozen=True, slots=True)
class _Move:
    """Where a row goes, and what is counted on the way."""

    row: sa.Row[Any]
    state: int
    due: float | None
    attempts: int
    poisons: int
    deaths: int
    evidence: tuple[str, ...]


def _ready_due(priority: int, now: float, limits: Limits) -> float | None:
    return now + limits.aging_s if priority > 0 else None


# --- in ------------------------------------------------------------------------------------


def enqueue(
    database: Database, connection: sa.Connection, works: Sequence[Work], now: float, limits: Limits
) -> int:
    """Insert what is new; Backpressure if that is more than may wait."""
    postings = Postings()
    new = _insert(database, connection, works, now, limits, postings)
    for kind in sorted({work.kind for work in works}):
        size = sum(change.size for change in postings.of(kind).values())
        waiting, bound = open_bytes(connection, kind), limits.bound(kind)
        if size and waiting and waiting + size > bound:
            raise Backpressure(
                f"{waiting:,} bytes of {kind!r} wait, {size:,} more make it over {bound:,}",
                where=database.where,
                hint="enqueue again once the workers have caught up, see room()",
            )
    postings.write(connection)
    return new


def _insert(
    database: Database,
    connection: sa.Connection,
    works: Sequence[Work],
    now: float,
    limits: Limits,
    postings: Postings,
) -> int:
    if not works:
        return 0
    rows = [_row(work, now, limits) for work in works]
    new = connection.execute(_insert_new(is_sqlite=database.is_sqlite), rows).all()
    for row in new:
        place = Place(row.priority, row.domain)
        postings.move(row.kind, place, row.size, None, row.state)
    return len(new)


def _row(work: Work, now: float, limits: Limits) -> dict[str, object]:
    waits = work.not_before > now
    return {
        "kind": work.kind,
        "key": work.key,
        "domain": work.domain,
        "priority": work.priority,
        "state": WAITING if waits else READY,
        "since": now,
        "due": work.not_before if waits else _ready_due(work.priority, now, limits),
        "payload": work.payload,
        "cost": work.cost,
        "size": work.size,
        "group_name": work.group,
        "batch": work.batch,
        "attempts": 0,
        "poisons": 0,
        "deaths": 0,
    }


# --- leases --------------------------------------------------------------------------------


def heartbeat(connection: sa.Connection, leases: Sequence[Lease], until: float) -> list[Lease]:
    """Lengthen leases to `until`; those that are lost."""
    rows = json.dumps([[lease.id, lease.token] for lease in leases])
    kept = {token for (token,) in _BEAT.run(connection, until=until, rows=rows)}
    return [lease for lease in leases if lease.token not in kept]


def commit(
    database: Database, connection: sa.Connection, dones: Sequence[Done], now: float, limits: Limits
) -> list[Done]:
    """Take results in and enqueue what follows; those whose lease was not valid any more."""
    postings = Postings()
    accepted: dict[int, Done] = {}
    by_token = {done.lease.token: done for done in reversed(dones)}
    rows = [[done.lease.id, token] for token, done in by_token.items()]
    results = {str(token): done.result for token, done in by_token.items()}
    for token, kind, priority, domain, estimate, size in _FINISH.run(
        connection, now=now, rows=json.dumps(rows), results=json.dumps(results)
    ):
        done = accepted[token] = by_token[token]
        cost = done.cost - estimate
        postings.move(kind, Place(priority, domain), size, LEASED, DONE, cost=cost)
    works = [work for done in accepted.values() for work in done.then]
    _insert(database, connection, works, now, limits, postings)
    postings.write(connection)
    return [done for done in dones if accepted.get(done.lease.token) is not done]


def fail(
    connection: sa.Connection,
    lease: Lease,
    evidence: str,
    now: float,
    retry: Retry,
    *,
    poison: bool,
) -> bool:
    """Try again later, or never; whether it will be tried again."""
    rows = _row_of(connection, lease)
    moves = [_failed(row, evidence, now, retry, poison=poison) for row in rows]
    _apply(connection, moves, now)
    return any(move.state != DEAD for move in moves)


def _failed(row: sa.Row[Any], evidence: str, now: float, retry: Retry, *, poison: bool) -> _Move:
    poisons = row.poisons + poison
    dead = row.attempts >= retry.attempts or poisons >= retry.poison_attempts
    pause = retry.pause(f"{row.kind} {row.key}", row.attempts)
    return _Move(
        row,
        DEAD if dead else WAITING,
        None if dead else now + pause,
        row.attempts,
        poisons,
        row.deaths,
        _more_evidence(row, evidence),
    )


def release(connection: sa.Connection, lease: Lease, now: float, limits: Limits) -> bool:
    """Give a lease back as if it had never been; whether it was valid."""
    rows = _row_of(connection, lease)
    _give_back(connection, rows, now, limits)
    return bool(rows)


def reset(connection: sa.Connection, prefix: str, now: float, limits: Limits) -> int:
    """Void the leases of all workers whose names begin with `prefix`."""
    mine = sa.func.substr(items.c.worker, 1, len(prefix)) == prefix
    rows = _locked(connection, is_leased(items), mine)
    _give_back(connection, rows, now, limits)
    return len(rows)


def _give_back(
    connection: sa.Connection, rows: Sequence[sa.Row[Any]], now: float, limits: Limits
) -> None:
    moves = [
        _Move(
            row,
            READY,
            _ready_due(row.priority, now, limits),
            row.attempts - 1,
            row.poisons,
            row.deaths,
            evidence_of(row),
        )
        for row in rows
    ]
    _apply(connection, moves, now, refund=True)


def expire(connection: sa.Connection, now: float, retry: Retry, limits: Limits) -> list[Lease]:
    """End the leases whose time is over."""
    rows = _locked(connection, is_leased(items), items.c.due <= now)
    _apply(connection, [_died(row, now, retry, limits) for row in rows], now)
    return [_lease(row) for row in rows]


def _died(row: sa.Row[Any], now: float, retry: Retry, limits: Limits) -> _Move:
    deaths = row.deaths + 1
    dead = row.attempts >= retry.attempts or deaths >= retry.deaths
    evidence = (
        f"attempt {row.attempts}: the lease of worker {row.worker} ran out after "
        f"{now - row.since:.1f} s without a result"
    )
    return _Move(
        row,
        DEAD if dead else READY,
        None if dead else _ready_due(row.priority, now, limits),
        row.attempts,
        row.poisons,
        deaths,
        _more_evidence(row, evidence),
    )


def _lease(row: sa.Row[Any]) -> Lease:
    return Lease(
        id=row.id,
        kind=row.kind,
        key=row.key,
        domain=row.domain,
        payload=row.payload,
        group=row.group_name,
        batch=row.batch,
        cost=row.cost,
        token=row.token,
        attempt=row.attempts,
        worker=row.worker,
        expires=row.due,
    )


# --- out and back --------------------------------------------------------------------------


def cancel(connection: sa.Connection, chosen: Sequence[sa.ColumnElement[bool]], now: float) -> int:
    """Cancel what has not ended; results of leased items will be fenced."""
    rows = _locked(connection, *chosen, items.c.state <= LEASED)
    moves = [
        _Move(row, CANCELLED, None, row.attempts, row.poisons, row.deaths, evidence_of(row))
        for row in rows
    ]
    _apply(connection, moves, now)
    return len(moves)


def requeue_dead(
    connection: sa.Connection, chosen: Sequence[sa.ColumnElement[bool]], now: float, limits: Limits
) -> int:
    """Give dead items all their attempts back."""
    rows = _locked(connection, *chosen, items.c.state == DEAD)
    moves = [
        _Move(row, READY, _ready_due(row.priority, now, limits), 0, 0, 0, evidence_of(row))
        for row in rows
    ]
    _apply(connection, moves, now)
    return len(moves)


def forget(connection: sa.Connection, chosen: Sequence[sa.ColumnElement[bool]]) -> int:
    """Delete what has ended."""
    return connection.execute(sa.delete(items).where(*chosen, items.c.state > LEASED)).rowcount


# --- the mechanics -------------------------------------------------------------------------


def evidence_of(row: sa.Row[Any]) -> tuple[str, ...]:
    return () if row.evidence is None else tuple(json.loads(row.evidence))


def _more_evidence(row: sa.Row[Any], evidence: str) -> tuple[str, ...]:
    """JSON escapes whatever a database could not hold."""
    return (*evidence_of(row), evidence[:_EVIDENCE])


def _locked(
    connection: sa.Connection, *conditions: sa.ColumnElement[bool]
) -> Sequence[sa.Row[Any]]:
    found = sa.select(items).where(*conditions).order_by(items.c.id).with_for_update()
    return connection.execute(found).all()


def _row_of(connection: sa.Connection, lease: Lease) -> Sequence[sa.Row[Any]]:
    """The row that `lease` is on, if it is valid."""
    mine = items.c.id == lease.id, items.c.token == lease.token
    return _locked(connection, is_leased(items), *mine)


def _apply(
    connection: sa.Connection, moves: Sequence[_Move], now: float, *, refund: bool = False
) -> None:
    """Write moves and post them; with `refund` what was charged at the claim is given back."""
    if not moves:
        return
    postings = Postings()
    for move in moves:
        row = move.row
        place = Place(row.priority, row.domain)
        cost = -row.cost if refund else 0.0
        postings.move(row.kind, place, row.size, row.state, move.state, cost=cost)
    connection.execute(_MOVE, [_told(move, now) for move in moves])
    postings.write(connection)


def _told(move: _Move, now: float) -> dict[str, object]:
    return {
        "of": move.row.id,
        "to": move.state,
        "now": now,
        "then": move.due,
        "tried": move.attempts,
        "poisoned": move.poisons,
        "died": move.deaths,
        "shown": json.dumps(move.evidence) if move.evidence else None,
    }


_MOVE = (
    sa.update(items)
    .where(items.c.id == sa.bindparam("of", type_=sa.BigInteger))
    .values(
        state=sa.bindparam("to"),
        since=sa.bindparam("now"),
        due=sa.bindparam("then"),
        attempts=sa.bindparam("tried"),
        poisons=sa.bindparam("poisoned"),
        deaths=sa.bindparam("died"),
        evidence=sa.bindparam("shown"),
        token=None,
    )
)


def _beat(is_sqlite: bool) -> sa.ClauseElement:
    return (
        sa.update(items)
        .where(*_held(is_sqlite))
        .values(due=sa.bindparam("until"))
        .returning(items.c.token)
    )


_BEAT = Prepared(_beat)


@lru_cache(maxsize=2)
def _insert_new(*, is_sqlite: bool) -> sa.Executable:
    returned = (items.c.kind, items.c.priority, items.c.domain, items.c.size, items.c.state)
    return (
        insert_into(items, is_sqlite=is_sqlite)
        .on_conflict_do_nothing(index_elements=["key", "kind"])
        .returning(*returned)
    )


def _held(is_sqlite: bool) -> tuple[sa.ColumnElement[bool], ...]:
    """The leases that are told and valid. A token is never another item's."""
    told = told_rows(is_sqlite, id=sa.BigInteger(), token=sa.BigInteger())
    ids, tokens = (among(is_sqlite, items.c[name], told.c[name]) for name in ("id", "token"))
    return ids, tokens, still(LEASED)


def _finish(is_sqlite: bool) -> sa.ClauseElement:
    results = sa.bindparam("results", type_=sa.Text)
    by_token = results if is_sqlite else sa.cast(results, sa.JSON)
    result = by_token.op("->>")(sa.cast(items.c.token, sa.Text))
    return (
        sa.update(items)
        .where(*_held(is_sqlite))
        .values(state=DONE, due=None, since=sa.bindparam("now"), result=result)
        .returning(
            items.c.token,
            items.c.kind,
            items.c.priority,
            items.c.domain,
            items.c.cost,
            items.c.size,
        )
    )


_FINISH = Prepared(_finish)
