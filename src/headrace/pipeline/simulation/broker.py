"""The shipped broker, not asked again and again whether there is still nothing.

In a simulation nearly all that takes real time is the database, and most questions find nothing
to do. Such an answer holds until work comes in or back, or a pause after a failure is over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from headrace.pipeline.broker import Broker, Done, Lease, Limits, Retry, Trouble, Work
from headrace.pipeline.broker.database import Database
from headrace.pipeline.virtual import VirtualClock

__all__ = ["PatientBroker"]

_Question = tuple[frozenset[str], frozenset[str]]


class PatientBroker(Broker):
    """A broker in memory whose answers are the shipped one's; for one process, without limits
    on domains (a limit that gives way would end a wait too)."""

    def __init__(self, clock: VirtualClock, retry: Retry) -> None:
        super().__init__(Database("sqlite://"), clock, Limits(), retry)
        self._now, self._pauses = clock.now, retry
        self._nothing_until: dict[_Question, float] = {}
        self._due: list[float] = []

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
        question = (frozenset(kinds), frozenset(exclude_domains))
        now = self._now()
        if batch is None and now < self._nothing_until.get(question, -math.inf):
            return []
        leases = super().claim(
            question[0],
            worker=worker,
            limit=limit,
            lease_s=lease_s,
            batch=batch,
            all_of_batch=all_of_batch,
            exclude_domains=question[1],
        )
        if batch is None and len(leases) < limit:
            self._due = [due for due in self._due if due > now]
            self._nothing_until[question] = min(self._due, default=math.inf)
        return leases

    def enqueue(self, works: Iterable[Work]) -> int:
        self._nothing_until.clear()
        return super().enqueue(works)

    def commit(self, dones: Iterable[Done]) -> list[Done]:
        told = list(dones)
        if any(done.then for done in told):
            self._nothing_until.clear()
        return super().commit(told)

    def fail(self, lease: Lease, *, kind_of_failure: Trouble, evidence: str) -> bool:
        due = self._now() + self._pauses.pause(f"{lease.kind} {lease.key}", lease.attempt)
        self._due.append(due)
        self._nothing_until = {
            question: min(until, due) for question, until in self._nothing_until.items()
        }
        return super().fail(lease, kind_of_failure=kind_of_failure, evidence=evidence)

    def release(self, lease: Lease) -> bool:
        self._nothing_until.clear()
        return super().release(lease)

    def expire(self) -> list[Lease]:
        self._nothing_until.clear()
        return super().expire()

    def reset(self, worker_prefix: str) -> int:
        self._nothing_until.clear()
        return super().reset(worker_prefix)
