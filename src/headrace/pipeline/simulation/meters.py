"""Meters of the simulated world: what really went on, measured where it happens.

A `Level` is a number over virtual time, `States` says in which of several states a machine is;
both know how long, so that means and shares can be taken between any two instants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from headrace.pipeline.virtual import VirtualClock

__all__ = ["Level", "States"]


class Level:
    """How many there are: rows in flight, verdicts that wait."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._value = 0
        self._since = clock.elapsed
        self._integral = 0.0

    @property
    def value(self) -> int:
        return self._value

    @property
    def integral(self) -> float:
        """The sum over time so far, in things x seconds."""
        return self._integral + self._value * (self._clock.elapsed - self._since)

    def set(self, value: int) -> None:
        self._integral = self.integral
        self._since = self._clock.elapsed
        self._value = value

    def add(self, count: int) -> None:
        self.set(self._value + count)


class States:
    """What a machine is doing, and for how many seconds it has done what so far."""

    def __init__(self, clock: VirtualClock, state: str) -> None:
        self._clock = clock
        self._state = state
        self._since = clock.elapsed
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @property
    def state(self) -> str:
        return self._state

    def become(self, state: str) -> None:
        now = self._clock.elapsed
        self._seconds[self._state] += now - self._since
        self._state, self._since = state, now

    def seconds(self) -> Mapping[str, float]:
        self.become(self._state)
        return dict(self._seconds)
