"""How many workers there should be: pure decisions in observed numbers and `now`.

A placement or supervisor carries the decision out. Growth is immediate, since a queue costs at
once; a worker goes only after fewer have been enough for a while, since starting it again costs
more than keeping it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

from headrace.errors import UsageError

__all__ = ["Bounds", "Observed", "Scaler", "decide", "wanted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Between `least` and `most` workers, so that work waits about `target_queue_s` seconds.

    Fewer are kept only after fewer have been enough for `quiet_s` seconds.
    """

    least: int
    most: int
    target_queue_s: float = 10.0
    quiet_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or self.target_queue_s <= 0 or self.quiet_s < 0:
            raise UsageError(
                f"elastic bounds need 0 <= least <= most and a target > 0 s, not {self}",
                where="scale",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a decision is made from.

    `arrival_rate` in items/s, `service_s` the mean seconds that one worker takes for one item,
    `backlog` the items that wait, `current` the workers there are. `surplus_since`: since when
    (Clock seconds) fewer than `current` have been enough, None if they are not.
    """

    arrival_rate: float
    service_s: float
    backlog: int
    current: int
    surplus_since: float | None = None


def wanted(observed: Observed, bounds: Bounds) -> int:
    """Workers that keep up with what arrives and clear the backlog within the target.

    Little's law: a rate of r items/s that take s seconds each keeps r s workers busy; b items
    that wait are served within t seconds by b s / t more of them.

    >>> bounds = Bounds(least=1, most=100, target_queue_s=10.0)
    >>> wanted(Observed(arrival_rate=2.0, service_s=5.0, backlog=6, current=4), bounds)
    13
    """
    busy = observed.arrival_rate * observed.service_s
    clearing = observed.backlog * observed.service_s / bounds.target_queue_s
    needed = math.ceil(round(busy + clearing, 9))
    if observed.backlog and not needed:
        needed = 1
    return min(max(needed, bounds.least), bounds.most)


def decide(observed: Observed, bounds: Bounds, now: float) -> int:
    """How many workers there should be from now on: never outside least..most."""
    want = wanted(observed, bounds)
    quiet = observed.surplus_since is not None and (now - observed.surplus_since >= bounds.quiet_s)
    if want >= observed.current or quiet:
        return want
    return min(max(observed.current, bounds.least), bounds.most)


class Scaler:
    """Measures arrivals and service times over the last `window_s` seconds, and decides.

    At the beginning, rates are over the target queue time at least: a first burst is no rate.
    Before anything was served, an item is taken to cost `expected_s` seconds.
    """

    def __init__(self, bounds: Bounds, *, expected_s: float, window_s: float = 60.0) -> None:
        self.bounds = bounds
        self._window_s = window_s
        self._service_s, self._busy_s = expected_s, 0.0
        self._arrivals: deque[tuple[float, int]] = deque()
        self._services: deque[tuple[float, float]] = deque()
        self._surplus_since: float | None = None
        self._began: float | None = None

    def arrived(self, now: float, count: int = 1) -> None:
        """`count` items came in."""
        self._arrivals.append((now, count))
        self._forget(now)

    def served(self, now: float, seconds: float) -> None:
        """A worker was busy with one item for `seconds`."""
        self._services.append((now, seconds))
        self._busy_s += seconds
        self._forget(now)
        self._service_s = self._busy_s / len(self._services)

    def observe(self, now: float, *, backlog: int, current: int) -> Observed:
        """What is known now; remembers since when `current` has been more than enough."""
        self._forget(now)
        known = now - (now if self._began is None else self._began)
        over = min(self._window_s, max(known, self.bounds.target_queue_s))
        arrived = sum(count for _, count in self._arrivals)
        seen = Observed(
            arrival_rate=arrived / over,
            service_s=self._service_s,
            backlog=backlog,
            current=current,
        )
        if wanted(seen, self.bounds) >= current:
            self._surplus_since = None
        elif self._surplus_since is None:
            self._surplus_since = now
        return replace(seen, surplus_since=self._surplus_since)

    def target(self, now: float, *, backlog: int, current: int) -> int:
        """How many workers there should be; asked for every now and then."""
        return decide(self.observe(now, backlog=backlog, current=current), self.bounds, now)

    def _forget(self, now: float) -> None:
        if self._began is None:
            self._began = now
        oldest = now - self._window_s
        while self._arrivals and self._arrivals[0][0] <= oldest:
            self._arrivals.popleft()
        while self._services and self._services[0][0] <= oldest:
            self._busy_s -= self._services.popleft()[1]
