"""The curriculum of one domain: on which tier it stands, moved by its measured pass rate.

A pure state machine over passes and failures; knows no tasks. Used by `headrace.data.source`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import CheckpointError
from headrace.recipe import CurriculumSpec
from headrace.types import Json

__all__ = ["Ladder", "Move"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A domain went from tier `before` to tier `after` at `pass_rate` (0..1) over a window."""

    domain: str
    before: int
    after: int
    pass_rate: float


class Ladder:
    """Tiers `first`..`last` of a domain, of which those up to `top` are open.

    The last `spec.window` judged attempts at the top tier decide: at a pass rate of `spec.up`
    or more the next tier opens, at `spec.down` or less the top one closes. The window starts
    empty after each move, and nothing moves before it is full. With `spec.enabled` false all
    tiers are open and none ever moves.

    >>> ladder = Ladder("sums", CurriculumSpec(window=2), first=0, last=3)
    >>> ladder.record(0, [True, True])
    Move(domain='sums', before=0, after=1, pass_rate=1.0)
    """

    def __init__(self, domain: str, spec: CurriculumSpec, *, first: int, last: int) -> None:
        if not 0 <= first <= last:
            raise ValueError(f"tiers {first}..{last} are no ladder")
        self._domain = domain
        self._spec = spec
        self.first = first
        self.last = last
        self._top = first if spec.enabled else last
        self._window: deque[bool] = deque(maxlen=spec.window)

    @property
    def top(self) -> int:
        """The highest open tier."""
        return self._top

    def record(self, tier: int, passed: Sequence[bool]) -> Move | None:
        """Take judged attempts at `tier`, in order; the move that they caused, if any.

        Attempts at another tier than the top one, and those left after a move, say nothing
        about the top tier and are not counted.
        """
        if not self._spec.enabled or tier != self._top:
            return None
        for attempt in passed:
            self._window.append(attempt)
            move = self._decide()
            if move is not None:
                self._top = move.after
                self._window.clear()
                return move
        return None

    def _decide(self) -> Move | None:
        if len(self._window) < self._spec.window:
            return None
        rate = sum(self._window) / len(self._window)
        if rate >= self._spec.up:
            after = min(self._top + 1, self.last)
        elif rate <= self._spec.down:
            after = max(self._top - 1, self.first)
        else:
            after = self._top
        if after == self._top:
            return None
        return Move(domain=self._domain, before=self._top, after=after, pass_rate=rate)

    def state(self) -> Json:
        """JSON from which `restore` goes on exactly."""
        return {"top": self._top, "window": [int(passed) for passed in self._window]}

    def restore(self, state: Json) -> None:
        """Take over a `state()`; CheckpointError if it does not fit this ladder."""
        where = f"curriculum of {self._domain}"
        if not isinstance(state, dict) or set(state) != {"top", "window"}:
            raise CheckpointError("not the state of a curriculum", where=where)
        top, window = state["top"], state["window"]
        if type(top) is not int or not self.first <= top <= self.last:
            raise CheckpointError(f"no tier {top!r} in {self.first}..{self.last}", where=where)
        fits = isinstance(window, list) and len(window) <= self._spec.window
        if not fits or any(type(entry) is not int or entry not in (0, 1) for entry in window):
            raise CheckpointError("the window does not fit", where=where)
        self._top = top
        self._window = deque((bool(entry) for entry in window), maxlen=self._spec.window)
