"""The desk between a flow and its queue: what happened is told together, and asked for when due.

A queue answers in milliseconds, which is long for an event loop on which tokens are sampled and
hundreds of verdicts come in at once. So what is told is only noted here; it goes to the broker in
the order in which it was told, as much at once as has come together, in a thread of its own. And
work is claimed only where there may be some: whoever alone puts work in knows when there is none.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from headrace.pipeline.broker import Broker, Done, Lease, Work

__all__ = ["Aside", "Desk", "at_once", "in_thread"]

_T = TypeVar("_T")


class Aside(Protocol):
    """Does something that takes a while, and gives its result."""

    def __call__(self, work: Callable[[], _T], /) -> Awaitable[_T]: ...


async def at_once(work: Callable[[], _T]) -> _T:
    """Here and now: for virtual time, and for tests."""
    return work()


def in_thread(thread: ThreadPoolExecutor) -> Aside:
    """By `thread`; what was begun ends, even if nobody waits for it any more."""

    def aside(work: Callable[[], _T]) -> Awaitable[_T]:
        return asyncio.shield(asyncio.get_running_loop().run_in_executor(thread, work))

    return aside


@dataclass(frozen=True, slots=True)
class _Void:
    """Keys to cancel and forget."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Ended:
    """Keys to forget."""

    keys: tuple[str, ...]


_Note = Work | Done | Lease | _Void | _Ended
"""To enqueue, commit, release, void or forget."""


class Desk:
    """Notes for `broker`, which nobody else gives work, delivered by `aside` in their order."""

    def __init__(self, broker: Broker, worker: str, lease_s: float, aside: Aside) -> None:
        self._broker, self._worker, self._lease_s = broker, worker, lease_s
        self._aside = aside
        self._notes: list[_Note] = []
        self._turn = asyncio.Lock()
        self._waiting: Counter[str] = Counter()
        self._put_off: dict[str, str] = {}

    # --- noted, and delivered later --------------------------------------------------------

    def enqueue(self, works: Iterable[Work]) -> None:
        for work in works:
            self._notes.append(work)
            self._waiting[work.kind] += 1

    def commit(self, done: Done) -> None:
        """What follows from it is to be done even if its lease ran out meanwhile."""
        self._notes.append(done)
        for work in done.then:
            self._waiting[work.kind] += 1

    def release(self, lease: Lease) -> None:
        self._notes.append(lease)
        self._waiting[lease.kind] += 1

    def void(self, keys: Iterable[str]) -> None:
        """Cancel and forget whatever there is under these keys."""
        self._note_keys(_Void, keys)

    def forget(self, keys: Iterable[str]) -> None:
        """Forget what has ended of these keys."""
        self._note_keys(_Ended, keys)

    def _note_keys(self, sort: type[_Void] | type[_Ended], keys: Iterable[str]) -> None:
        if named := tuple(keys):
            self._notes.append(sort(named))

    async def deliver(self) -> None:
        """Until the broker knows of everything that was noted so far."""
        async with self._turn:
            while self._notes:
                notes, self._notes = self._notes, []
                await self._aside(lambda notes=notes: _tell(self._broker, notes))

    # --- asked -----------------------------------------------------------------------------

    async def open(self) -> bool:
        """Void the leases of an earlier life; whether it left anything."""

        def inherit() -> bool:
            self._broker.reset(self._worker)
            return bool(self._broker.stats().kinds)

        return await self._aside(inherit)

    def may_have(self, kinds: Iterable[str]) -> bool:
        """Whether there may be something to claim of these kinds."""
        put_off = set(self._put_off.values())
        return any(self._waiting[kind] or kind in put_off for kind in kinds)

    async def claim(
        self, kinds: Sequence[str], limit: int, exclude: Sequence[str] = ()
    ) -> list[Lease]:
        """Up to `limit` leases, after what was noted so far; see `Broker.claim`."""
        if not self.may_have(kinds):
            return []
        await self.deliver()
        before = {kind: self._waiting[kind] for kind in kinds}

        def ask() -> list[Lease]:
            return self._broker.claim(
                kinds,
                worker=self._worker,
                limit=limit,
                lease_s=self._lease_s,
                exclude_domains=exclude,
            )

        leases = await self._aside(ask)
        self._gone(leases)
        if len(leases) < limit and not exclude:  # nothing of these is left, but what came since
            for kind, waiting in before.items():
                claimed = sum(lease.kind == kind for lease in leases)
                self._waiting[kind] = max(0, self._waiting[kind] - (waiting - claimed))
        return leases

    async def claim_batch(self, kinds: Sequence[str], batch: str, size: int) -> list[Lease]:
        """All `size` items of a batch, or none."""
        await self.deliver()

        def ask() -> list[Lease]:
            return self._broker.claim(
                kinds,
                worker=self._worker,
                limit=size,
                lease_s=self._lease_s,
                batch=batch,
                all_of_batch=True,
            )

        leases = await self._aside(ask)
        self._gone(leases)
        return leases

    async def failed(self, lease: Lease, evidence: str) -> bool:
        """Say that the infrastructure prevented it; whether it will be tried again."""
        again = await self._aside(
            lambda: self._broker.fail(lease, kind_of_failure="infrastructure", evidence=evidence)
        )
        if again:
            self._put_off[lease.key] = lease.kind
        return again

    async def keep_alive(self, leases: Collection[Lease]) -> None:
        """Hold `leases` for longer; those that ran out are there to be claimed again."""

        def beat() -> list[Lease]:
            self._broker.heartbeat(leases, self._lease_s)
            return self._broker.expire()

        for lease in await self._aside(beat):
            self._waiting[lease.kind] += 1

    def _gone(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            self._put_off.pop(lease.key, None)
            self._waiting[lease.kind] = max(0, self._waiting[lease.kind] - 1)


def _tell(broker: Broker, notes: Sequence[_Note]) -> None:
    """Deliver `notes`: in their order, as many of one sort at once as stand together."""
    start = 0
    while start < len(notes):
        sort = type(notes[start])
        end = start + 1
        while end < len(notes) and type(notes[end]) is sort:
            end += 1
        _tell_alike(broker, notes[start:end])
        start = end


def _tell_alike(broker: Broker, notes: Sequence[_Note]) -> None:
    works = [note for note in notes if isinstance(note, Work)]
    if works:
        broker.enqueue(works)
    dones = [note for note in notes if isinstance(note, Done)]
    if dones and (lost := broker.commit(dones)):
        broker.enqueue(work for done in lost for work in done.then)
    for note in notes:
        if isinstance(note, Lease):
            broker.release(note)
    void = [key for note in notes if isinstance(note, _Void) for key in note.keys]
    if void:
        broker.cancel(keys=void)
    ended = [key for note in notes if isinstance(note, _Void | _Ended) for key in note.keys]
    if ended:
        broker.forget(keys=ended)
