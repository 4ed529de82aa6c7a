"""A circuit breaker for one boundary: a sandbox backend, a judge's endpoint, a domain.

While too many calls fail, further ones are refused at once instead of each waiting for its own
deadline; after a pause one call probes whether the boundary is back. Pure in `now` (Clock
seconds): the caller tells the time, asks before a call and reports after it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from headrace.errors import InfrastructureError, UsageError

__all__ = ["Breaker", "BreakerOpen", "BreakerPolicy", "BreakerState", "Permit"]

_BUCKETS = 10


class BreakerOpen(InfrastructureError):
    """The boundary has been failing and is left alone for a while; says until when and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """When to refuse and for how long.

    Opens when at least `minimum` calls ended within `window_s` seconds and a share of
    `failure_rate` (0..1) or more of them failed. Refuses for `pause_s`, and for twice as long
    after every probe that fails, at most `longest_pause_s`.
    """

    failure_rate: float = 0.5
    minimum: int = 10
    window_s: float = 60.0
    pause_s: float = 5.0
    longest_pause_s: float = 300.0

    def __post_init__(self) -> None:
        sound = 0 < self.failure_rate <= 1 and self.minimum >= 1 and self.window_s > 0
        if not (sound and 0 < self.pause_s <= self.longest_pause_s):
            raise UsageError(f"a breaker cannot work like this: {self}", where="breaker")


@dataclass(frozen=True, slots=True)
class Permit:
    """The right to make one call, to be reported on once; `era` tells old calls from new."""

    era: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerState:
    """A breaker for display.

    `ended` calls within the window, a share `failure_rate` of which failed; `since` the state
    has been what it is; `probe_at` a call is let through next (None while closed); `opened`
    how often it has opened so far; `reason` of the last failure.
    """

    boundary: str
    state: Literal["closed", "open", "half-open"]
    ended: int
    failure_rate: float
    since: float
    probe_at: float | None
    opened: int
    reason: str


@dataclass(slots=True)
class _Bucket:
    until: float
    ended: int = 0
    failed: int = 0


class Breaker:
    """Closed lets everything through, open nothing, half-open one probe at a time.

    >>> breaker = Breaker("judge", BreakerPolicy(minimum=1, pause_s=5.0), now=0.0)
    >>> breaker.failed(breaker.enter(1.0), 2.0, "connection refused")
    >>> breaker.enter(3.0)
    Traceback (most recent call last):
    headrace.pipeline.breaker.BreakerOpen: judge is left alone for 4 s more (connection refused)
    >>> breaker.succeeded(breaker.enter(7.0), 8.0)
    >>> breaker.state(8.0).state
    'closed'
    """

    def __init__(self, boundary: str, policy: BreakerPolicy, *, now: float) -> None:
        self.boundary = boundary
        self._policy = policy
        self._buckets: deque[_Bucket] = deque()
        self._era = 0
        self._since = now
        self._pause_s = policy.pause_s
        self._probe_at: float | None = None
        self._probing = False
        self._opened = 0
        self._reason = ""

    def enter(self, now: float) -> Permit:
        """The right to call the boundary, or BreakerOpen.

        A probe that is never reported on is taken for lost after another pause.
        """
        if self._probe_at is None:
            return Permit(self._era)
        if now < self._probe_at:
            raise BreakerOpen(
                f"{self.boundary} is left alone for {self._probe_at - now:.0f} s more",
                where=self._reason,
                hint="see to what fails there; work for it is kept and goes on by itself",
            )
        self._begin(now, probing=True)
        self._probe_at = now + self._pause_s
        return Permit(self._era)

    def succeeded(self, permit: Permit, now: float) -> None:
        """The call came back. That of an earlier era says nothing about now and is ignored."""
        if permit.era != self._era:
            return
        if self._probing:
            self._begin(now, probing=False)
            self._buckets.clear()
            self._probe_at, self._pause_s = None, self._policy.pause_s
        else:
            self._count(now, failed=False)

    def failed(self, permit: Permit, now: float, reason: str) -> None:
        """The boundary failed, as `reason` says; what the work itself did wrong is no failure."""
        if permit.era != self._era:
            return
        self._reason = reason
        if self._probing:
            self._pause_s = min(2 * self._pause_s, self._policy.longest_pause_s)
            self._open(now)
            return
        self._count(now, failed=True)
        ended, failed = self._sums(now)
        if ended >= self._policy.minimum and failed >= self._policy.failure_rate * ended:
            self._open(now)

    def state(self, now: float) -> BreakerState:
        ended, failed = self._sums(now)
        shut = "half-open" if self._probing else "open"
        return BreakerState(
            boundary=self.boundary,
            state="closed" if self._probe_at is None else shut,
            ended=ended,
            failure_rate=failed / ended if ended else 0.0,
            since=self._since,
            probe_at=self._probe_at,
            opened=self._opened,
            reason=self._reason,
        )

    def _open(self, now: float) -> None:
        self._begin(now, probing=False)
        self._probe_at = now + self._pause_s
        self._opened += 1

    def _begin(self, now: float, *, probing: bool) -> None:
        """Enter another state: permits of the one before are void."""
        self._era += 1
        self._since = now
        self._probing = probing

    def _count(self, now: float, *, failed: bool) -> None:
        if not self._buckets or now >= self._buckets[-1].until:
            self._buckets.append(_Bucket(now + self._policy.window_s / _BUCKETS))
        self._buckets[-1].ended += 1
        self._buckets[-1].failed += failed

    def _sums(self, now: float) -> tuple[int, int]:
        while self._buckets and self._buckets[0].until <= now - self._policy.window_s:
            self._buckets.popleft()
        return sum(b.ended for b in self._buckets), sum(b.failed for b in self._buckets)
