"""What a pool did, in numbers, by backend. Pure bookkeeping."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

__all__ = ["BackendStats", "Event", "PoolStats", "Recorder"]

Event = Literal["started", "recycled", "failed", "retried", "crashed", "expired", "unclosed"]
_RING = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendStats:
    """One backend. Now: `in_use`, `warm`, `starting`, `closing` sandboxes.

    Since the pool was opened: `started` and `recycled` sandboxes; `failed` starts and those of
    them that were `retried`; `crashed` and `expired` sandboxes; closes that did not succeed
    (`unclosed`). Latencies of the last 512 starts in seconds, NaN before the first.
    """

    in_use: int
    warm: int
    starting: int
    closing: int
    started: int
    recycled: int
    failed: int
    retried: int
    crashed: int
    expired: int
    unclosed: int
    start_p50_s: float
    start_p95_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """A moment of a pool, and what happened since it was opened.

    `breakers` by "backend/image"; `waiting` requests in the queue; all sandboxes that are
    `starting`, their backend chosen or not; requests that failed through no fault of theirs
    (`infra_failed`); how often the leases could not be written (`lease_errors`), and why the
    last time (`lease_error`).
    """

    backends: Mapping[str, BackendStats]
    breakers: Mapping[str, str]
    waiting: int
    starting: int
    infra_failed: int
    lease_errors: int
    lease_error: str


@dataclass(slots=True)
class Recorder:
    """Counts events by backend."""

    _counts: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    _starts: dict[str, deque[float]] = field(default_factory=dict[str, deque[float]])

    def count(self, backend: str, event: Event) -> None:
        """One more."""
        self._counts[backend, event] += 1

    def started(self, backend: str, seconds: float) -> None:
        """A sandbox was started in that time."""
        self.count(backend, "started")
        self._starts.setdefault(backend, deque(maxlen=_RING)).append(seconds)

    def snapshot(self, backend: str, states: Iterable[str]) -> BackendStats:
        """The counts of a backend whose sandboxes are in these states now."""
        now = Counter(states)
        times = self._starts.get(backend, ())
        since = {event: self._counts[backend, event] for event in get_args(Event)}
        return BackendStats(
            in_use=now["leased"],
            warm=now["warm"],
            starting=now["starting"],
            closing=now["closing"],
            started=since["started"],
            recycled=since["recycled"],
            failed=since["failed"],
            retried=since["retried"],
            crashed=since["crashed"],
            expired=since["expired"],
            unclosed=since["unclosed"],
            start_p50_s=_quantile(times, 0.5),
            start_p95_s=_quantile(times, 0.95),
        )


def _quantile(values: Iterable[float], share: float) -> float:
    """The smallest of `values` that at least that share of them does not exceed; NaN of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)] if ordered else math.nan
