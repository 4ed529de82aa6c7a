"""The stages of a simulated run, where a real one has an engine, verifiers and a store.

Lengths, seconds and faults are drawn from the world; they depend on the seed, the task and the
attempt alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from headrace.environments.single_turn import Group
from headrace.pipeline.flow import Purpose
from headrace.pipeline.lengths import Lengths
from headrace.pipeline.simulation.engine import Engine, Written
from headrace.pipeline.simulation.record import Record
from headrace.pipeline.simulation.world import DomainModel, World
from headrace.store.trajectories import Appended
from headrace.store.trajectories import Record as StoredRecord
from headrace.types import (
    Fault,
    Message,
    Task,
    Trajectory,
    Turn,
    Verdict,
    VerifierRef,
)

__all__ = ["EmptyStore", "SimulatedDomain", "SimulatedStages", "lengths_of"]

_REF = VerifierRef("simulated", "1")


@dataclass(frozen=True, slots=True)
class SimulatedDomain:
    """Tasks without content: which one it is decides how long it takes."""

    name: str
    tiers: int = 1

    @property
    def verifier(self) -> SimulatedDomain:
        return self

    @property
    def ref(self) -> VerifierRef:
        return _REF

    def judge(self, task: Task, text: str) -> Verdict:
        raise NotImplementedError(f"{task.domain} is judged in virtual time, {text!r} is not")

    def task(self, tier: int, index: int) -> Task:
        return Task(
            domain=self.name,
            problem=str(index),
            tier=tier,
            split="train",
            messages=(Message.of("user", str(index)),),
            verifier=_REF,
            answer=None,
        )


class SimulatedStages:
    """Plays on a simulated engine and judges in simulated verifiers; `most` tokens an attempt."""

    def __init__(
        self,
        world: World,
        engine: Engine,
        record: Record,
        lengths: Lengths,
        *,
        seed: int,
        most: int,
    ) -> None:
        self._world, self._engine, self._record, self._lengths = world, engine, record, lengths
        self._seed, self._most = seed, most
        self._domains: Mapping[str, DomainModel] = {d.name: d for d in world.domains}
        self._tries: Counter[str] = Counter()
        self._ids = np.zeros(most, np.int32)
        self._mask = np.ones(most, np.bool_)
        self._logps = np.zeros(most, np.float32)

    def begin(
        self, groups: Sequence[Group], purpose: Purpose
    ) -> Sequence[Awaitable[list[Trajectory]]]:
        del purpose
        lengths = [self._lengths_of(group) for group in groups]
        for group in groups:
            self._record.begun(group.id, group.task.domain)
        futures = self._engine.begin(lengths, [group.size for group in groups])
        return [
            asyncio.ensure_future(self._played(group, future))
            for group, future in zip(groups, futures, strict=True)
        ]

    async def _played(
        self, group: Group, future: asyncio.Future[list[Written]]
    ) -> list[Trajectory]:
        began = self._record.clock.elapsed
        written = await future
        seconds = self._record.clock.elapsed - began
        attempts = [self._attempt(group, one, seconds) for one in written]
        lengths = tuple(attempt.sampled_tokens for attempt in attempts)
        self._record.played(group.id, lengths, min(one.versions[0].version for one in written))
        return attempts

    async def judge(self, attempt: Trajectory) -> Trajectory:
        domain = self._domains[attempt.task.domain]
        self._tries[attempt.id] += 1
        rng = self._rng(attempt.task, attempt.attempt, f"verdict {self._tries[attempt.id]}")
        seconds, fault = self._fate(domain, rng)
        levels = self._record.levels
        if self._tries[attempt.id] == 1:
            levels["to_judge"].add(-1)
        levels["judging"].add(1)
        await asyncio.sleep(seconds)
        levels["judging"].add(-1)
        self._record.judged_s += seconds
        self._record.faults += fault == "infrastructure"
        return attempt.judged(self._verdict(attempt, domain, fault))

    def _fate(self, domain: DomainModel, rng: Random) -> tuple[float, Fault | None]:
        """How long a verdict takes and whose fault it is if it is none."""
        deadline, fate = self._world.deadline_s, rng.random()
        if domain.down and domain.down[0] <= self._record.clock.elapsed < domain.down[1]:
            return 0.0, "infrastructure"
        seconds = domain.verdict.draw(rng)
        if fate < domain.faults:
            return min(seconds, deadline) * rng.random(), "infrastructure"
        if fate < domain.faults + domain.hangs or seconds > deadline:
            return deadline, "verifier"
        return seconds, None

    def _verdict(self, attempt: Trajectory, domain: DomainModel, fault: Fault | None) -> Verdict:
        if fault is not None:
            return Verdict(score=None, verifier=_REF, evidence="simulated", fault=fault)
        rng = self._rng(attempt.task, attempt.attempt, "score")
        return Verdict(score=float(rng.random() < domain.solved), verifier=_REF)

    async def keep(self, judged: Trajectory, purpose: Purpose) -> None:
        """There is no disk to put it on."""

    def cost(self, group: Group) -> float:
        return self._lengths.cost(group)

    def _lengths_of(self, group: Group) -> list[int]:
        domain = self._domains[group.task.domain]
        return lengths_of(
            domain, group.task, group.size + group.spare, seed=self._seed, most=self._most
        )

    def _attempt(self, group: Group, written: Written, seconds: float) -> Trajectory:
        length = sum(span.count for span in written.versions)
        wrote = Turn(
            role="assistant",
            text="",
            ids=self._ids[:length],
            sampled=self._mask[:length],
            logps=self._logps[:length],
            versions=written.versions,
        )
        return Trajectory(
            task=group.task,
            group=group.id,
            attempt=written.attempt,
            seed=0,
            turns=(wrote,),
            ending="finished" if length < self._most else "truncated",
            timings={"play": seconds},
        )

    def _rng(self, task: Task, attempt: int, what: str) -> Random:
        return _rng(self._seed, task, attempt, what)


def lengths_of(
    domain: DomainModel, task: Task, attempts: int, *, seed: int, most: int
) -> list[int]:
    """Tokens of each attempt at a task: 1..most."""
    drawn = [domain.tokens.draw(_rng(seed, task, n, "tokens")) for n in range(attempts)]
    return [min(max(1, round(length)), most) for length in drawn]


def _rng(seed: int, task: Task, attempt: int, what: str) -> Random:
    return Random(f"{what} {attempt} of {task.domain} {task.problem} with {seed}")


class EmptyStore:
    """The part of a trajectory store that a first life needs: nothing is in it, all is durable."""

    directory = Path("virtual time")

    def wave(self, key: str) -> None:
        """No group was played in an earlier life."""

    def append(self, record: StoredRecord) -> Appended:
        """A simulated run is not resumed, so nobody will ask for it."""
        del record
        return Appended(new=True)

    def append_nowait(self, record: StoredRecord) -> Future[Appended]:
        future: Future[Appended] = Future()
        future.set_result(self.append(record))
        return future
