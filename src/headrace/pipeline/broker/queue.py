"""The broker: durable work items, leased to workers, each with exactly one effect."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Self, TypeVar

import sqlalchemy as sa

from headrace.pipeline.broker import moves, reports
from headrace.pipeline.broker.claiming import SET_SHARE, Claim, claim
from headrace.pipeline.broker.database import Database, insert_into
from headrace.pipeline.broker.items import (
    Dead,
    Done,
    GroupState,
    Lease,
    Limits,
    Retry,
    Stats,
    Trouble,
    Wait,
    Work,
)
from headrace.pipeline.broker.ledger import open_bytes
from headrace.pipeline.broker.schema import domains, items, ledger, shares
from headrace.pipeline.clock import Clock

__all__ = ["Broker", "open_broker"]

_T = TypeVar("_T")
_KEYS_AT_ONCE = 500
_LIMITS, _RETRY = Limits(), Retry()


def open_broker(
    url: str, *, clock: Clock, limits: Limits = _LIMITS, retry: Retry = _RETRY
) -> Broker:
    """Open the broker whose tables are at `url`, making them if there are none.

    "sqlite:///PATH" needs no server. It runs in WAL mode with synchronous = NORMAL: a killed
    process loses nothing; a machine that loses power may lose the last calls, but never half a
    call. That costs no more than work done twice: results are in the store before they are
    committed, ids make enqueueing again harmless, and whoever resumes compares the two.

    "postgresql+psycopg://USER@HOST/NAME" serves many machines. What was enqueued or committed is
    on its disk when the call returns; claims and heartbeats may be lost with the server, and then
    the items are ready again under tokens that were never used.

    Raises UsageError for another URL, StorageError where the database cannot be used.
    """
    return Broker(Database(url), clock, limits, retry)


class Broker:
    """Work items by (kind, key), from ready through leased to done; see `open_broker`.

    Every call is one transaction: it happens wholly, or raises StorageError and has not
    happened. Delivery is at least once, as leases run out; the effect of a commit is exactly
    once, as only the latest lease's token is accepted. For several threads and processes.
    """

    def __init__(self, database: Database, clock: Clock, limits: Limits, retry: Retry) -> None:
        self._database, self._clock = database, clock
        self._limits, self._retry = limits, retry

    # --- in ------------------------------------------------------------------------------

    def enqueue(self, works: Iterable[Work]) -> int:
        """Take in all of `works`; how many were new.

        Raises Backpressure, and takes none, where the new ones make the bytes of a kind exceed
        their bound; only a kind of which nothing waits takes more than that.
        """
        told = list(works)
        now = self._clock.now()
        return self._database.write(
            lambda connection: moves.enqueue(self._database, connection, told, now, self._limits)
        )

    def room(self, kind: str) -> int:
        """How many more bytes of `kind` may wait: what is not ended counts, leased or not."""
        waiting = self._database.read(lambda connection: open_bytes(connection, kind))
        return max(0, self._limits.bound(kind) - waiting)

    # --- leases --------------------------------------------------------------------------

    def claim(
        self,
        kinds: Iterable[str],
        *,
        worker: str,
        limit: int,
        lease_s: float,
        batch: str | None = None,
        all_of_batch: bool = False,
        exclude_domains: Iterable[str] = (),
    ) -> list[Lease]:
        """Lease up to `limit` ready items of `kinds` to `worker` for `lease_s` seconds.

        The most urgent class first, inside it fairly by cost (`headrace.pipeline.fair`), inside
        a domain the oldest first. With `batch` only items of it, by class and age; with
        `all_of_batch` those of it that have not ended, all of them or none (none while one is
        leased, put off, over its domain's limit, or they are more than `limit`).
        """
        if limit < 1 or lease_s <= 0:
            raise ValueError(f"cannot claim {limit} items for {lease_s} s")
        if all_of_batch and batch is None:
            raise ValueError("all of which batch?")
        asked = Claim(
            kinds=frozenset(kinds),
            worker=worker,
            limit=limit,
            lease_s=lease_s,
            batch=batch,
            all_of_batch=all_of_batch,
            exclude=frozenset(exclude_domains),
        )
        now, aging_s = self._clock.now(), self._limits.aging_s
        return self._database.write(
            lambda connection: claim(self._database, connection, asked, now=now, aging_s=aging_s)
        )

    def heartbeat(self, leases: Iterable[Lease], lease_s: float) -> list[Lease]:
        """Let valid leases last `lease_s` from now; the ones that are lost."""
        told, until = list(leases), self._clock.now() + lease_s

        def beat(connection: sa.Connection) -> list[Lease]:
            self._database.lightly(connection)
            return moves.heartbeat(connection, told, until)

        return self._database.write(beat) if told else []

    def commit(self, dones: Iterable[Done]) -> list[Done]:
        """End items whose results are in the store, and enqueue what follows from them.

        The domains are charged what the items really cost. Returned are those whose lease was
        not valid any more: nothing of them has happened, nor will it.
        """
        told, now = list(dones), self._clock.now()
        return self._database.write(
            lambda connection: moves.commit(self._database, connection, told, now, self._limits)
        )

    def fail(self, lease: Lease, *, kind_of_failure: Trouble, evidence: str) -> bool:
        """Say that an attempt came to nothing; whether the item will be tried again.

        It pauses as `Retry` says, or is dead with all its evidence. False also for a lease that
        was not valid any more, and then nothing has happened.
        """
        now, poison = self._clock.now(), kind_of_failure == "poison"
        return self._database.write(
            lambda connection: moves.fail(
                connection, lease, evidence, now, self._retry, poison=poison
            )
        )

    def release(self, lease: Lease) -> bool:
        """Give an item back unworked: no attempt is counted; whether the lease was valid."""
        now = self._clock.now()
        return self._database.write(
            lambda connection: moves.release(connection, lease, now, self._limits)
        )

    def expire(self) -> list[Lease]:
        """End the leases whose time is over, which are returned.

        Their items are ready again; an item that this happened to `Retry.deaths` times, or that
        has had all its attempts, is dead.
        """
        now = self._clock.now()
        return self._database.write(
            lambda connection: moves.expire(connection, now, self._retry, self._limits)
        )

    def reset(self, worker_prefix: str) -> int:
        """Void at once all leases of workers whose names begin so; how many there were.

        For when they are known to be dead, as after a crash of the whole. It is nobody's fault
        in particular, so no attempt is counted.
        """
        now = self._clock.now()
        return self._database.write(
            lambda connection: moves.reset(connection, worker_prefix, now, self._limits)
        )

    # --- out and back --------------------------------------------------------------------

    def cancel(
        self,
        *,
        keys: Collection[str] | None = None,
        group: str | None = None,
        batch: str | None = None,
    ) -> int:
        """Cancel the items so named, of all kinds; how many had not ended. Results are fenced."""
        now = self._clock.now()
        return self._each(
            lambda connection, chosen: moves.cancel(connection, chosen, now), keys, group, batch
        )

    def requeue_dead(self, keys: Collection[str]) -> int:
        """Give dead items all their attempts back; how many were dead. Their evidence stays."""
        now = self._clock.now()
        return self._each(
            lambda connection, chosen: moves.requeue_dead(connection, chosen, now, self._limits),
            keys,
        )

    def forget(
        self,
        *,
        keys: Collection[str] | None = None,
        group: str | None = None,
        batch: str | None = None,
    ) -> int:
        """Delete those of the items so named that have ended; how many.

        Enqueueing one of them again is then new work.
        """
        return self._each(moves.forget, keys, group, batch)

    def _each(
        self,
        move: Callable[[sa.Connection, Sequence[sa.ColumnElement[bool]]], int],
        keys: Collection[str] | None = None,
        group: str | None = None,
        batch: str | None = None,
    ) -> int:
        """The sum of what `move` returns for the items so named, in one transaction."""
        if keys is None and group is None and batch is None:
            raise ValueError("name keys, a group or a batch")
        chosen: list[sa.ColumnElement[bool]] = []
        if group is not None:
            chosen.append(items.c.group_name == group)
        if batch is not None:
            chosen.append(items.c.batch == batch)
        if keys is None:
            return self._database.write(lambda connection: move(connection, chosen))
        names = sorted(set(keys))
        chunks = [names[n : n + _KEYS_AT_ONCE] for n in range(0, len(names), _KEYS_AT_ONCE)]
        return self._database.write(
            lambda connection: sum(
                move(connection, [*chosen, items.c.key.in_(chunk)]) for chunk in chunks
            )
        )

    # --- shares --------------------------------------------------------------------------

    def set_share(self, domain: str, weight: float = 1.0, limit: int | None = None) -> None:
        """Give a domain `weight` (> 0) in every class, and at most `limit` leases of a kind.

        It starts at the clock where it was behind: what its old limit kept from it is gone.
        """
        if not (0 < weight < float("inf")) or (limit is not None and limit < 0) or not domain:
            raise ValueError(f"{domain!r} cannot have weight {weight} and limit {limit}")

        def store(connection: sa.Connection) -> None:
            known = sa.union(sa.select(shares.c.kind), sa.select(ledger.c.kind))
            self._database.lock(connection, list(connection.scalars(known)), durable=True)
            told = {"weight": weight, "most": limit}
            insert = insert_into(domains, is_sqlite=self._database.is_sqlite)
            statement = insert.values(domain=domain, **told)
            connection.execute(
                statement.on_conflict_do_update(index_elements=[domains.c.domain], set_=told)
            )
            connection.execute(SET_SHARE, {"of": domain, "to": weight, "limit": limit})

        self._database.write(store)

    # --- reports -------------------------------------------------------------------------

    def group(self, group: str, kind: str | None = None) -> GroupState:
        """How far a group is, over all kinds or one; all zero for one that is not known."""
        return self._read(lambda connection: reports.group_state(connection, group, kind))

    def dead(self) -> list[Dead]:
        """The dead letters, oldest first."""
        return self._read(reports.dead)

    def stats(self) -> Stats:
        return self._read(reports.stats)

    def waits(self) -> list[Wait]:
        """What waits, on whom, since when, the longest first; at most 1,000 leases."""
        return self._read(reports.waits)

    def _read(self, report: Callable[[sa.Connection], _T]) -> _T:
        return self._database.read(report)

    def close(self) -> None:
        """Close all connections; leases stay. Every call after this raises StorageError."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
