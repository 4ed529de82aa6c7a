"""How often judges of one thing disagree, counted over a run. Known by whoever compares."""

from __future__ import annotations

import threading
from dataclasses import dataclass

__all__ = ["DisagreementRate", "Disagreements"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreements:
    """`disagreed` of `compared` comparisons.

    >>> Disagreements(compared=4, disagreed=1).rate
    0.25
    """

    compared: int
    disagreed: int

    @property
    def rate(self) -> float | None:
        """The share that disagreed, None before the first comparison."""
        return self.disagreed / self.compared if self.compared else None


class DisagreementRate:
    """A running count for several threads; verifiers note, whoever shows it reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._compared = self._disagreed = 0

    def note(self, *, disagreed: bool) -> None:
        with self._lock:
            self._compared += 1
            self._disagreed += disagreed

    def so_far(self) -> Disagreements:
        with self._lock:
            return Disagreements(compared=self._compared, disagreed=self._disagreed)
