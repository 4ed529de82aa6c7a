"""A run that is killed again and again, in virtual time: nothing is lost, nothing counts twice.

Broker, store, flow and supply are the shipped ones, and durable; what dies is everything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.data.source import TaskSource
from headrace.environments.single_turn import Group
from headrace.pipeline import virtual
from headrace.pipeline.broker import Broker, Retry, open_broker
from headrace.pipeline.flow import Flow, FlowSpec, Purpose
from headrace.pipeline.lengths import Lengths
from headrace.pipeline.simulation import EngineModel, LogNormal, World
from headrace.pipeline.simulation.engine import Engine
from headrace.pipeline.simulation.record import Record
from headrace.pipeline.simulation.stages import SimulatedDomain, SimulatedStages
from headrace.pipeline.slots import Slots
from headrace.pipeline.supply import Supply
from headrace.pipeline.virtual import VirtualClock
from headrace.pipeline.waits import Waits
from headrace.recipe import Recipe
from headrace.store.records import Judged
from headrace.store.trajectories import TrajectoryStore
from headrace.types import Json, Trajectory
from simulate_support import domain, recipe, world

MADE = world(
    domain(LogNormal(0.8, 10.0), LogNormal(40.0, 8.0), faults=0.1),
    engine=EngineModel(slots=6, pass_s=0.02, row_s=0.001),
    verifiers=3,
)


class DurableStages(SimulatedStages):
    """Writes what was played and judged to a store before anybody hears of it."""

    def __init__(self, cluster: Cluster, engine: Engine, lengths: Lengths) -> None:
        super().__init__(
            MADE,
            engine,
            Record(cluster.clock),
            lengths,
            seed=cluster.plan.seed,
            most=cluster.plan.play.max_new_tokens,
        )
        self.store = cluster.store
        self._tries = cluster.tries

    def begin(
        self, groups: Sequence[Group], purpose: Purpose
    ) -> Sequence[asyncio.Future[list[Trajectory]]]:
        return [
            asyncio.ensure_future(self._written(group, played))
            for group, played in zip(groups, super().begin(groups, purpose), strict=True)
        ]

    async def _written(self, group: Group, played: Any) -> list[Trajectory]:
        attempts: list[Trajectory] = await played
        written = self.store.wave(group.id)
        if written is None:
            self.store.append_wave(group.id, attempts)
        return written or attempts

    async def keep(self, judged: Trajectory, purpose: Purpose) -> None:
        assert judged.verdict is not None
        self.store.append(Judged(judged.id, judged.verdict))


@dataclass(slots=True)
class Cluster:
    """What outlives a kill, and what was trained on by step: the last word on each."""

    plan: Recipe
    store: TrajectoryStore
    broker: Broker
    clock: VirtualClock
    saved: Json = None
    tries: Counter[str] = field(default_factory=Counter[str])
    trained: dict[int, list[Trajectory]] = field(default_factory=dict[int, list[Trajectory]])

    def run(self, kills: Sequence[float]) -> None:
        for kill in [*kills, float("inf")]:
            with contextlib.suppress(TimeoutError):
                virtual.run(self._live(kill), clock=self.clock)

    async def _live(self, until: float) -> None:
        async with asyncio.timeout_at(None if until == float("inf") else until):
            await Life(self, MADE).train()


class Life:
    """From the last checkpoint to the end, or to the next kill."""

    def __init__(self, cluster: Cluster, made: World) -> None:
        plan, clock = cluster.plan, cluster.clock
        self.cluster, self.step, self.version = cluster, 0, 0
        lengths = Lengths(plan.play.max_new_tokens)
        self.engine = Engine(made.engine, clock, lambda: None)
        stages = DurableStages(cluster, self.engine, lengths)
        spec = FlowSpec(inference=made.engine.slots, verdicts=made.verifiers)
        self.flow = Flow(spec, stages, cluster.broker, clock, Waits(clock), arrived=self._arrived)
        domains = {d.name: SimulatedDomain(d.name) for d in made.domains}
        tasks = plan.tasks.model_validate({"domains": [{"name": name} for name in domains]})
        self.source = TaskSource(tasks, domains, plan.seed)
        slots = Slots(groups_per_step=plan.play.groups, max_lag=plan.play.max_lag)
        self.supply = Supply(
            recipe=plan,
            source=self.source,
            slots=slots,
            flow=self.flow,
            store=cluster.store,
            lengths=lengths,
            version=lambda: self.version,
        )
        saved: Json = {"step": 0, "source": self.source.state(), "supply": self.supply.state()}
        if cluster.saved is not None:
            saved = json.loads(cluster.saved)
        self.step = self.version = saved["step"]
        self.source.restore(saved["source"])
        self.supply.restore(saved["supply"], self.step)

    def _arrived(self, group: Group, attempts: Sequence[Trajectory]) -> None:
        self.supply.arrived(group, attempts)

    async def train(self) -> None:
        play = self.cluster.plan.play
        async with self.flow:
            await self.supply.begin()
            while self.step < self.cluster.plan.steps:
                self.step += 1
                await self.supply.ahead(self.step)
                attempts: list[Trajectory] = []
                while missing := play.groups - len(attempts) // play.group_size:
                    attempts += (await self.supply.wave(self.step, missing)).trained
                await asyncio.sleep(0.3)
                self.version += 1
                self.engine.publish(self.version)
                self.cluster.trained[self.step] = attempts
                self.supply.release(attempts, self.version - 1)
                if self.step % 2 == 0:
                    state = {"source": self.source.state(), "supply": self.supply.state()}
                    self.cluster.saved = json.dumps({"step": self.step, **state})


def cluster(folder: Path, plan: Recipe, kills: Sequence[float]) -> Cluster:
    clock = VirtualClock()
    with (
        TrajectoryStore(folder / "trajectories") as store,
        contextlib.closing(open_broker("sqlite://", clock=clock, retry=Retry())) as broker,
    ):
        made = Cluster(plan, store, broker, clock)
        made.run(kills)
        consumed = [e.consumed for e in store.ledger() if not e.void and e.consumed.trained]
        counted = Counter(group for record in consumed for group in record.groups)
        assert counted == Counter({a.group: 1 for t in made.trained.values() for a in t})
        assert len(counted) == plan.steps * plan.play.groups
        return made


def told(made: Cluster) -> dict[int, list[tuple[str, str, int, float | None]]]:
    """What each step was trained on: groups, tasks, lengths, scores."""
    return {
        step: [(a.id, a.task.id, a.sampled_tokens, a.score) for a in attempts]
        for step, attempts in made.trained.items()
    }


@pytest.mark.parametrize(
    ("lag", "seed"),
    [
        pytest.param(0, 0, marks=pytest.mark.slow),
        (2, 0),
        pytest.param(2, 1, marks=pytest.mark.slow),
        pytest.param(2, 2, marks=pytest.mark.slow),
    ],
)
def test_in_lockstep_a_killed_run_is_trained_on_the_very_same(
    tmp_path: Path, lag: int, seed: int
) -> None:
    plan = recipe(steps=5, lag=lag, verify={"honeypot_every": None})
    quiet = cluster(tmp_path / "quiet", plan, [])
    rng = Random(seed)
    kills = sorted(rng.uniform(0.1, 0.9) * quiet.clock.elapsed for _ in range(4))
    assert told(cluster(tmp_path / "killed", plan, kills)) == told(quiet)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))]
)
def test_running_free_a_killed_run_trains_every_task_once_with_the_scores_it_would_have(
    tmp_path: Path, seed: int
) -> None:
    plan = recipe(steps=5, schedule="free", lag=2, verify={"honeypot_every": None})
    quiet = cluster(tmp_path / "quiet", plan, [])
    rng = Random(seed)
    kills = sorted(rng.uniform(0.1, 0.9) * quiet.clock.elapsed for _ in range(4))
    killed = cluster(tmp_path / "killed", plan, kills)

    def scores(made: Cluster) -> Counter[tuple[str, int, float | None]]:
        return Counter((a.task.id, a.attempt, a.score) for t in made.trained.values() for a in t)

    assert scores(killed) == scores(quiet)
