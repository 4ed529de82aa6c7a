"""The stages of a run on this machine: the embedded sampler, the pool of verifiers, the store.

The simulator has stages of its own; what decides about them (`pipeline.flow`) is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

from headrace.environments.single_turn import Group, SingleTurn
from headrace.environments.streaming import Stream
from headrace.pipeline.flow import Purpose
from headrace.pipeline.judging import Judges
from headrace.pipeline.lengths import Lengths
from headrace.store.records import Judged
from headrace.store.trajectories import TrajectoryStore
from headrace.types import Trajectory

__all__ = ["LocalStages"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalStages:
    """Plays with `player` (held-out tasks with `examiner`) and judges in `judges`.

    Attempts and verdicts of training are in the store before anybody hears of them; those of
    an evaluation are written with it, as a whole.
    """

    stream: Stream
    player: SingleTurn
    examiner: SingleTurn
    judges: Judges
    store: TrajectoryStore
    lengths: Lengths
    threads: ThreadPoolExecutor

    def begin(
        self, groups: Sequence[Group], purpose: Purpose
    ) -> Sequence[Awaitable[list[Trajectory]]]:
        if purpose == "evaluate":
            return self.stream.begin(self.examiner, groups)
        tasks = self.stream.begin(self.player, groups)
        return [
            asyncio.ensure_future(self._kept(group, task))
            for group, task in zip(groups, tasks, strict=True)
        ]

    async def _kept(self, group: Group, task: asyncio.Task[list[Trajectory]]) -> list[Trajectory]:
        return await self._call(self._write, group, await task)

    def _write(self, group: Group, attempts: list[Trajectory]) -> list[Trajectory]:
        """The group's attempts as they are on disk: those of its first writer."""
        written = self.store.wave(group.id)
        if written is not None:
            return written
        self.store.append_wave(group.id, attempts)
        return attempts

    async def judge(self, attempt: Trajectory) -> Trajectory:
        return await self.judges.judge(attempt)

    async def keep(self, judged: Trajectory, purpose: Purpose) -> None:
        if purpose == "train" and judged.verdict is not None:
            await self._call(self.store.append, Judged(judged.id, judged.verdict))

    def cost(self, group: Group) -> float:
        return self.lengths.cost(group)

    async def _call(self, work: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
        """Work that waits, for a verifier or the disk, done in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads, partial(work, *arguments, **named))
