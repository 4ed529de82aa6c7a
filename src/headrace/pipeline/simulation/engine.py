"""An inference engine in virtual time: rows advance together, one token a pass.

How fast depends on how many there are, and they start and end at different times; so the
engine keeps one clock that counts passes, and a row ends when that clock shows its start plus
its length. Between two events nothing is computed, whatever the number of tokens.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.pipeline.simulation.world import EngineModel
from headrace.pipeline.virtual import VirtualClock
from headrace.types import VersionSpan

__all__ = ["Engine", "Written"]


@dataclass(frozen=True, slots=True)
class Written:
    """An attempt by its number in its group, and its tokens by the version that wrote them."""

    attempt: int
    versions: tuple[VersionSpan, ...]


@dataclass(slots=True, eq=False)
class _Group:
    """A group in flight: how many rows must still end, and where what they wrote goes."""

    left: int
    done: asyncio.Future[list[Written]]
    written: list[Written] = field(default_factory=list[Written])
    begun: bool = False


@dataclass(slots=True, order=True)
class _Row:
    """One attempt; it ends when the engine has made `ends` passes."""

    ends: float
    number: int
    group: _Group = field(compare=False)
    place: int = field(compare=False)
    length: int = field(compare=False)


class Engine:
    """Takes groups of lengths and gives what was written once enough rows of each have ended.

    `rows` are in flight; `changed` is called whenever that or `running` may have.
    """

    def __init__(
        self, model: EngineModel, clock: VirtualClock, changed: Callable[[], None]
    ) -> None:
        self._model, self._clock, self._changed = model, clock, changed
        self._passes = 0.0
        self._stall = 0.0
        self._since = clock.elapsed
        self._count = 0
        self._flying: list[_Row] = []
        self._queue: deque[_Row] = deque()
        self._held = 0
        self._timer: asyncio.TimerHandle | None = None
        self._versions: list[tuple[float, int]] = [(0.0, 0)]

    @property
    def rows(self) -> int:
        return len(self._flying)

    @property
    def running(self) -> bool:
        return bool(self._flying) and not self._held

    def begin(
        self, groups: Sequence[Sequence[int]], enough: Sequence[int]
    ) -> list[asyncio.Future[list[Written]]]:
        """Start groups of attempts of the given lengths (tokens, each at least 1), in order.

        Of each group so many as are `enough` are waited for; the others are cancelled then.
        """
        self._advance()
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[list[Written]]] = []
        for lengths, wanted in zip(groups, enough, strict=True):
            group = _Group(wanted, loop.create_future())
            futures.append(group.done)
            for place, length in enumerate(lengths):
                self._count += 1
                self._queue.append(_Row(0.0, self._count, group, place, length))
        self._fill()
        self._plan()
        return futures

    def hold(self) -> None:
        """Stand still until `go_on`; may be nested."""
        self._advance()
        self._held += 1
        self._plan()

    def go_on(self) -> None:
        self._advance()
        self._held -= 1
        self._plan()

    def publish(self, version: int) -> None:
        """From now on every token is written by `version`."""
        self._advance()
        self._versions.append((self._passes, version))

    # --- passing time ----------------------------------------------------------------------

    def _advance(self) -> None:
        """Count the passes that were made since the last time."""
        now = self._clock.elapsed
        seconds, self._since = now - self._since, now
        if self._held or not self._flying:
            return
        stalled = min(self._stall, seconds)
        self._stall -= stalled
        self._passes += (seconds - stalled) / self._model.pass_seconds(len(self._flying))

    def _plan(self) -> None:
        """Set the timer for the next row that ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.running:
            passes = max(0.0, self._flying[0].ends - self._passes)
            seconds = self._stall + passes * self._model.pass_seconds(len(self._flying))
            self._timer = asyncio.get_running_loop().call_later(seconds, self._turn)
        self._changed()

    def _turn(self) -> None:
        """The first row has ended, with all others that end at the same pass."""
        self._advance()
        self._stall = 0.0
        self._passes = max(self._passes, self._flying[0].ends)
        while self._flying and self._flying[0].ends <= self._passes + 1e-9:
            self._end(heapq.heappop(self._flying))
        self._fill()
        self._plan()

    def _fill(self) -> None:
        while self._queue and len(self._flying) < self._model.slots:
            row = self._queue.popleft()
            if not row.group.begun:
                row.group.begun = True
                self._stall += self._model.prefill_s
            row.ends = self._passes + row.length
            heapq.heappush(self._flying, row)

    def _end(self, row: _Row) -> None:
        group = row.group
        group.written.append(Written(row.place, self._spans(row)))
        group.left -= 1
        if group.left:
            return
        if any(other.group is group for other in (*self._flying, *self._queue)):
            self._flying = [other for other in self._flying if other.group is not group]
            heapq.heapify(self._flying)
            self._queue = deque(other for other in self._queue if other.group is not group)
        if not group.done.cancelled():
            group.done.set_result(sorted(group.written, key=lambda written: written.attempt))

    def _spans(self, row: _Row) -> tuple[VersionSpan, ...]:
        """Which version wrote how many of the row's tokens."""
        began = row.ends - row.length
        spans: list[VersionSpan] = []
        end = row.length
        for at, version in reversed(self._versions):
            start = min(max(0, round(at - began)), end)
            if start < end:
                spans.append(VersionSpan(version, end - start))
                end = start
            if not end:
                break
        return tuple(reversed(spans))
