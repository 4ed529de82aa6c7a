"""A circuit breaker: where starting sandboxes keeps failing, it is tried seldom, by one at a time.

CLOSED lets everything through; OPEN nothing, for a cool-down; HALF_OPEN exactly one probe, which
closes it or opens it again for longer. Pure but for its clock; knows no sandbox.
"""

from __future__ import annotations

import enum
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import UsageError

__all__ = ["Attempt", "Breaker", "BreakerPolicy", "BreakerState"]


class BreakerState(enum.StrEnum):
    """What a breaker does with the next attempt."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """When it opens: after `failures` in a row, or where at least `share` (0..1] of the last
    `window` outcomes failed. The first cool-down is `cooldown_s`; each failed probe multiplies
    it by `growth`, up to `cooldown_most_s`.
    """

    failures: int = 5
    share: float = 0.5
    window: int = 20
    cooldown_s: float = 1.0
    cooldown_most_s: float = 60.0
    growth: float = 2.0

    def __post_init__(self) -> None:
        if self.failures < 1 or self.window < 1 or not 0.0 < self.share <= 1.0:
            raise UsageError("a breaker opens after at least one failure", where=str(self))
        if not 0.0 < self.cooldown_s <= self.cooldown_most_s or self.growth < 1.0:
            raise UsageError("a cool-down is positive and does not shrink", where=str(self))


class Breaker:
    """One breaker; `clock` is monotonic seconds.

    >>> breaker = Breaker(BreakerPolicy(failures=2))
    >>> for _ in range(2):
    ...     breaker.observe(ok=False)
    >>> breaker.state.value, breaker.admit()
    ('open', None)
    """

    def __init__(
        self, policy: BreakerPolicy | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.policy = policy or BreakerPolicy()
        self._clock = clock
        self._streak = 0
        self._outcomes: deque[bool] = deque(maxlen=self.policy.window)
        self._opened: float | None = None
        self._cooldown = self.policy.cooldown_s
        self._probe: Attempt | None = None
        self._openings = 0

    @property
    def state(self) -> BreakerState:
        """Now. It is half-open from the end of the cool-down until a probe has ended."""
        if self._opened is None:
            return BreakerState.CLOSED
        cooled = self._clock() >= self._opened + self._cooldown
        return BreakerState.HALF_OPEN if cooled else BreakerState.OPEN

    @property
    def retry_in(self) -> float:
        """Seconds until an attempt could be let through, 0 if one could be now.

        While a probe runs nobody knows; then it is the first cool-down.
        """
        if self._opened is None:
            return 0.0
        if self._probe is not None:
            return self.policy.cooldown_s
        return max(0.0, self._opened + self._cooldown - self._clock())

    def admit(self) -> Attempt | None:
        """Leave to try, whose end must be told to the `Attempt`; None if there is no leave."""
        state = self.state
        if state is BreakerState.CLOSED:
            return Attempt(self, self._openings)
        if state is BreakerState.OPEN or self._probe is not None:
            return None
        self._probe = Attempt(self, self._openings)
        return self._probe

    def observe(self, *, ok: bool) -> None:
        """What became of something that needed no leave. Only a closed breaker learns from it."""
        if self._opened is not None:
            return
        self._outcomes.append(ok)
        self._streak = 0 if ok else self._streak + 1
        full = len(self._outcomes) == self.policy.window
        failed = self._outcomes.count(False)
        if self._streak >= self.policy.failures or (
            full and failed >= self.policy.share * self.policy.window
        ):
            self._opened = self._clock()
            self._openings += 1

    def _ended(self, attempt: Attempt, ok: bool | None) -> None:
        if attempt is not self._probe:
            # What began before it opened proves nothing once it is closed again.
            if ok is not None and attempt.openings == self._openings:
                self.observe(ok=ok)
            return
        self._probe = None
        if ok:
            self._opened = None
            self._streak = 0
            self._outcomes.clear()
            self._cooldown = self.policy.cooldown_s
        elif ok is False:
            self._opened = self._clock()
            self._cooldown = min(self._cooldown * self.policy.growth, self.policy.cooldown_most_s)


class Attempt:
    """Leave for one attempt. The first of its three ends counts, later ones change nothing."""

    def __init__(self, breaker: Breaker, openings: int) -> None:
        self._breaker: Breaker | None = breaker
        self.openings = openings

    def succeeded(self) -> None:
        """It worked."""
        self._end(True)

    def failed(self) -> None:
        """The infrastructure failed."""
        self._end(False)

    def given_up(self) -> None:
        """It ended without proving anything: cancelled, or refused."""
        self._end(None)

    def _end(self, ok: bool | None) -> None:
        breaker, self._breaker = self._breaker, None
        if breaker is not None:
            breaker._ended(self, ok)  # pyright: ignore[reportPrivateUsage]
