"""Playing as a coroutine: passes of the sampler alternate with whatever else there is to do.

An engine in this process computes in the thread that asks it to, so that learning and sampling
never fight for cores and weights only ever change between two passes. `Stream` makes one pass
at a time for as long as anything is in flight, and lets the event loop run in between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.environments.single_turn import Group, SingleTurn
from headrace.protocols import Answer, Completion, SampleRequest
from headrace.types import Trajectory

__all__ = ["Stream", "StreamingSampler"]

OnProgress = Callable[[int, int], None]


class StreamingSampler(Protocol):
    """A sampler that takes requests while others are in flight."""

    def submit(
        self, requests: Sequence[SampleRequest], *, enough: Sequence[int] | None = None
    ) -> list[int]: ...

    def advance(self) -> dict[int, Answer]: ...

    def cancel(self, ticket: int) -> None: ...


@dataclass(slots=True)
class Stream:
    """Plays groups of attempts beside each other over one sampler.

    Awaiting what `begin` gives yields the group's attempts, unjudged. Cancelling it takes the
    request back from the sampler. `progress` (if given) hears how many attempts of those begun
    since nothing was in flight have ended, `surplus` the attempts of a group that were cancelled
    because enough others had ended.
    """

    sampler: StreamingSampler
    progress: Callable[[int, int], None] | None = None
    surplus: Callable[[Group, Sequence[Completion]], None] | None = None
    _open: dict[int, asyncio.Future[Answer]] = field(
        default_factory=dict[int, "asyncio.Future[Answer]"]
    )
    _sizes: dict[int, int] = field(default_factory=dict[int, int])
    _pump: asyncio.Task[None] | None = None
    _begun: int = 0
    _ended: int = 0

    def begin(
        self, player: SingleTurn, groups: Sequence[Group]
    ) -> list[asyncio.Task[list[Trajectory]]]:
        """Start all of `groups` now, in this order; one task for each."""
        requests = [player.request(group) for group in groups]
        tickets = self.sampler.submit(requests, enough=[group.size for group in groups])
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[list[Trajectory]]] = []
        for ticket, group, request in zip(tickets, groups, requests, strict=True):
            self._open[ticket] = loop.create_future()
            self._sizes[ticket] = group.size
            self._begun += group.size
            tasks.append(loop.create_task(self._finish(ticket, player, group, request)))
        if self._open and (self._pump is None or self._pump.done()):
            self._pump = loop.create_task(self._run())
            self._pump.add_done_callback(self._stopped)
        return tasks

    async def _finish(
        self, ticket: int, player: SingleTurn, group: Group, request: SampleRequest
    ) -> list[Trajectory]:
        started = time.perf_counter()
        try:
            answer = await self._open[ticket]
        except asyncio.CancelledError:
            if self._open.pop(ticket, None) is not None:
                self.sampler.cancel(ticket)
                self._ended += self._sizes.pop(ticket)
            raise
        if answer.surplus and self.surplus is not None:
            self.surplus(group, answer.surplus)
        seconds = time.perf_counter() - started
        return player.attempts(group, request, answer.completions, seconds)

    async def _run(self) -> None:
        """Pass after pass until nothing is in flight."""
        while self._open:
            for ticket, answer in self.sampler.advance().items():
                self._ended += self._sizes.pop(ticket)
                future = self._open.pop(ticket)
                if not future.cancelled():
                    future.set_result(answer)
                if self.progress is not None:
                    self.progress(self._ended, self._begun)
            await asyncio.sleep(0)
        self._begun = self._ended = 0

    def _stopped(self, pump: asyncio.Task[None]) -> None:
        """What a pass raised goes to all who wait for one; being cancelled cancels them."""
        error = None if pump.cancelled() else pump.exception()
        if error is None and not pump.cancelled():
            return
        waiting, self._open = self._open, {}
        self._sizes.clear()
        for future in waiting.values():
            if error is None:
                future.cancel()
            else:
                future.set_exception(error)
