"""A run in virtual time: the shipped broker, flow, supply and slots in a simulated world.

What is decided is decided by the code that real runs use; only what takes time, and what fails,
is simulated. The steps follow `pipeline.loop`, with a learner that takes time and learns
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import cast

from headrace.data.source import TaskSource
from headrace.environments.single_turn import Group
from headrace.pipeline import virtual
from headrace.pipeline.broker import Broker, open_broker
from headrace.pipeline.flow import Flow, FlowSpec
from headrace.pipeline.lengths import Lengths
from headrace.pipeline.simulation.engine import Engine
from headrace.pipeline.simulation.record import ObservedSlots, Record
from headrace.pipeline.simulation.report import Report, report
from headrace.pipeline.simulation.stages import EmptyStore, SimulatedDomain, SimulatedStages
from headrace.pipeline.simulation.world import World
from headrace.pipeline.supply import Supply, groups_missing
from headrace.pipeline.virtual import VirtualClock
from headrace.pipeline.waits import Waits
from headrace.recipe import DomainSpec, Recipe
from headrace.store.trajectories import TrajectoryStore
from headrace.types import Trajectory

__all__ = ["compare", "scheduled", "simulate", "source_of"]


def simulate(recipe: Recipe, world: World) -> Report:
    """Run `recipe` in `world`. Of the recipe count steps, seed, schedule, lag, groups and limits;
    the domains, their weights and everything that takes time are the world's.

    Raises what a real run would: InfrastructureError where nothing arrives for the recipe's
    patience. The same arguments give the same report.
    """
    clock = VirtualClock()
    with contextlib.closing(open_broker("sqlite://", clock=clock)) as broker:
        for domain in world.domains:
            broker.set_share(domain.name, domain.weight)
        life = _Life(recipe, world, clock, broker)
        virtual.run(life.train(), clock=clock)
    return report(life.record, world, recipe.play, life.slots.ledger())


def compare(
    recipe: Recipe,
    world: World,
    lags: Sequence[int],
    *,
    schedules: Sequence[str] = ("lockstep", "free"),
) -> list[Report]:
    """The same run synchronous first, then under each of the schedules with each lag above 0.

    All of them meet the same tasks, lengths, verdict times and faults.
    """
    plans = [("lockstep", 0)]
    plans += [(schedule, lag) for schedule in schedules for lag in lags if lag > 0]
    return [simulate(scheduled(recipe, schedule, lag), world) for schedule, lag in plans]


def scheduled(recipe: Recipe, schedule: str, max_lag: int) -> Recipe:
    """`recipe` under another schedule. RecipeError (pydantic's) for one that does not exist."""
    play = recipe.play.model_copy(update={"schedule": schedule, "max_lag": max_lag})
    return recipe.model_copy(update={"play": play})


class _Life:
    """A run from its first step to its last."""

    def __init__(self, recipe: Recipe, world: World, clock: VirtualClock, broker: Broker) -> None:
        self._recipe, self._world, self._clock = recipe, world, clock
        self._version = 0
        self._in_wave = False
        play = recipe.play
        self.record = Record(clock)
        self.slots = ObservedSlots(self.record, groups_per_step=play.groups, max_lag=play.max_lag)
        self._engine = Engine(world.engine, clock, self._see)
        lengths = Lengths(play.max_new_tokens)
        self._flow = Flow(
            FlowSpec(
                inference=world.engine.slots,
                verdicts=world.verifiers,
                verdicts_per_domain=_per_domain(recipe, world),
                patience_s=play.patience,
            ),
            SimulatedStages(
                world,
                self._engine,
                self.record,
                lengths,
                seed=recipe.seed,
                most=play.max_new_tokens,
            ),
            broker,
            clock,
            Waits(clock),
            arrived=self._arrived,
        )
        self._supply = Supply(
            recipe=recipe,
            source=source_of(recipe, world),
            slots=self.slots,
            flow=self._flow,
            store=cast("TrajectoryStore", EmptyStore()),
            lengths=lengths,
            version=lambda: self._version,
        )

    async def train(self) -> None:
        async with self._flow:
            await self._supply.begin()
            self.record.snapshot()
            for step in range(1, self._recipe.steps + 1):
                self._do("sampling")
                await self._supply.ahead(step)
                effective = await self._played(step)
                await self._supply.honeypots(step)
                trained_on = self._version
                if effective:
                    await self._learn(effective)
                self._supply.release(effective, trained_on)
                self.record.snapshot()
                self._pass(self._world.learner.books_s, "books")

    async def _played(self, step: int) -> list[Trajectory]:
        """The attempts that the step is trained on; refills where groups teach nothing."""
        everything, effective = list[Trajectory](), list[Trajectory]()
        self._in_wave = True
        self._see()
        while missing := groups_missing(self._recipe, everything, effective):
            wave = await self._supply.wave(step, missing)
            everything += wave.attempts
            effective += wave.trained
        self._in_wave = False
        return effective

    async def _learn(self, attempts: Sequence[Trajectory]) -> None:
        model = self._world.learner
        seconds = model.step_s + model.token_s * sum(t.sampled_tokens for t in attempts)
        if self._world.shared:
            self._pass(seconds, "learning")
            self._pass(model.update_s, "weights")
        else:
            self._do("learning")
            await asyncio.sleep(seconds)
            self._do("weights")
            self._engine.hold()
            await asyncio.sleep(model.update_s)
            self._engine.go_on()
        self._version += 1
        self._engine.publish(self._version)

    # --- time ------------------------------------------------------------------------------

    def _pass(self, seconds: float, state: str) -> None:
        """Do something in the thread that everything else runs in too."""
        self._engine.hold()
        self._do(state)
        self._clock.elapsed += seconds
        self._engine.go_on()

    def _do(self, state: str) -> None:
        self.record.learner.become(state)
        self._see()

    def _arrived(self, group: Group, attempts: Sequence[Trajectory]) -> None:
        self.record.ready(group.id)
        self._supply.arrived(group, attempts)
        self._see()

    def _see(self) -> None:
        """What sampler and learner are doing, or what they wait for."""
        record, learner = self.record, self.record.learner
        if self._in_wave:
            under_way = record.levels["queued"].value + record.levels["playing"].value
            enough = len(self.slots.held) - under_way >= self._recipe.play.groups
            learner.become("verdicts" if enough else "sampling")
        record.levels["rows"].set(self._engine.rows)
        if self._engine.running:
            record.sampler.become("sampling")
        else:
            busy = learner.state in ("learning", "weights", "books")
            record.sampler.become(learner.state if busy else "verdicts")


def _per_domain(recipe: Recipe, world: World) -> int:
    """How many verdicts of one domain are worked on at once: one is left to the others."""
    return recipe.verify.per_domain or max(1, world.verifiers - (len(world.domains) > 1))


def source_of(recipe: Recipe, world: World) -> TaskSource:
    """The shipped source of tasks over the world's domains."""
    specs = tuple(DomainSpec(name=d.name, weight=d.weight) for d in world.domains)
    spec = recipe.tasks.model_copy(update={"domains": specs})
    return TaskSource(spec, {d.name: SimulatedDomain(d.name) for d in world.domains}, recipe.seed)
