"""Who judges a run's attempts: threads of this process, or supervised processes of their own.

Processes cost their start and memory, and keep a verifier's crash, leak or lock to themselves;
one that dies is replaced, and what it had in hand counts as prevented by the infrastructure.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Protocol

import numpy as np

from headrace.data.packs import Catalogue
from headrace.errors import InfrastructureError
from headrace.pipeline.clock import Clock
from headrace.pipeline.needs import Needs, Pool
from headrace.pipeline.placement.base import WorkerSpec
from headrace.pipeline.placement.processes import LocalProcesses
from headrace.pipeline.resources import Resources
from headrace.pipeline.supervise import Supervisor
from headrace.protocols import Verifier
from headrace.recipe import VerifySpec
from headrace.store.codec import task_from_json, task_to_json, verdict_from_json, verdict_to_json
from headrace.types import Json, Task, Trajectory, Turn, Verdict
from headrace.verify.pool import VerificationPool

__all__ = ["Judges", "ProcessJudges", "ThreadJudges", "load", "processes"]

_WAIT_S = 86_400.0
_GRACE_S = 30.0


class Judges(Protocol):
    async def judge(self, attempt: Trajectory) -> Trajectory:
        """The attempt with its verdict, which may be that of the infrastructure."""
        ...


@dataclass(frozen=True, slots=True)
class ThreadJudges:
    """Verdicts by the threads of a pool in this process."""

    pool: VerificationPool
    threads: ThreadPoolExecutor

    async def judge(self, attempt: Trajectory) -> Trajectory:
        loop = asyncio.get_running_loop()
        (judged,) = await loop.run_in_executor(self.threads, self.pool.judge, [attempt])
        return judged


@dataclass(frozen=True, slots=True)
class ProcessJudges:
    """Verdicts by supervised processes; see `processes`."""

    supervisor: Supervisor
    deadline_s: float

    async def judge(self, attempt: Trajectory) -> Trajectory:
        request = {"task": task_to_json(attempt.task), "text": attempt.completion}
        try:
            told = await self.supervisor.call(
                request,
                deadline_s=self.deadline_s + _GRACE_S,
                wait_s=_WAIT_S,
                lease=attempt.id,
            )
        except InfrastructureError as error:
            self.supervisor.check()
            return attempt.judged(
                Verdict(
                    score=None,
                    verifier=attempt.task.verifier,
                    evidence=str(error),
                    fault="infrastructure",
                )
            )
        return attempt.judged(verdict_from_json(told))


@contextlib.asynccontextmanager
async def processes(
    spec: VerifySpec, *, packs: Iterable[EntryPoint] | None, clock: Clock, logs: Path
) -> AsyncGenerator[ProcessJudges]:
    """`spec.workers` processes that judge, kept alive inside; `packs` as for `Catalogue`.

    Each writes what it says to a file of its own in `logs`.
    """
    told: Json = None
    if packs is not None:
        told = [[point.name, point.value, point.group] for point in packs]
    resources = Resources([Pool(name="judges", capacity=spec.workers)], clock=clock)
    worker = WorkerSpec(
        name="judge",
        entry="headrace.pipeline.judging:load",
        arguments={"packs": told, "deadline_s": spec.deadline},
    )
    async with (
        LocalProcesses(logs=logs, resources=resources) as placement,
        Supervisor(
            placement, worker, Needs({"judges": 1}), size=spec.workers, clock=clock
        ) as supervisor,
    ):
        yield ProcessJudges(supervisor, spec.deadline)


class _Handler:
    """Judges one attempt after the other, in a worker; domains are opened when they come."""

    def __init__(self, packs: list[EntryPoint] | None, deadline_s: float) -> None:
        self._catalogue = Catalogue(packs)
        self._pools: dict[str, VerificationPool] = {}
        self._deadline_s = deadline_s

    def __call__(self, request: Json) -> Json:
        task = task_from_json(request["task"])
        pool = self._pools.get(task.domain)
        if pool is None:
            verifiers: dict[str, Verifier] = {
                task.domain: self._catalogue.open(task.domain).verifier
            }
            pool = VerificationPool(verifiers, workers=1, deadline_s=self._deadline_s)
            self._pools[task.domain] = pool
        (judged,) = pool.judge([attempt_of(task, request["text"])])
        assert judged.verdict is not None
        return verdict_to_json(judged.verdict)


def attempt_of(task: Task, text: str) -> Trajectory:
    """What a verifier sees of an attempt: its task and what was written."""
    nothing = np.zeros(0)
    wrote = Turn(
        role="assistant",
        text=text,
        ids=nothing.astype(np.int32),
        sampled=nothing.astype(np.bool_),
        logps=nothing.astype(np.float32),
    )
    return Trajectory(task=task, group="", attempt=0, seed=0, turns=(wrote,), ending="finished")


def load(arguments: Json) -> _Handler:
    """The entry point of a worker: its handler of requests."""
    told = arguments["packs"]
    packs = None if told is None else [EntryPoint(*point) for point in told]
    return _Handler(packs, float(arguments["deadline_s"]))
