"""A world from a few numbers that a person can guess: the seconds of a step's parts, and tails."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, fields, replace

from headrace.errors import UsageError
from headrace.pipeline import virtual
from headrace.pipeline.simulation.engine import Engine
from headrace.pipeline.simulation.simulate import source_of
from headrace.pipeline.simulation.stages import lengths_of
from headrace.pipeline.simulation.world import (
    DomainModel,
    EngineModel,
    LearnerModel,
    World,
    spread,
)
from headrace.pipeline.virtual import VirtualClock
from headrace.recipe import Recipe

__all__ = ["Assumptions", "assume"]

_PROBED = 20
"""Steps from which the pace of sampling is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What somebody says about a world; None leaves it as it is (see `assume`).

    `play_s`, `learn_s`: of one step when nothing else goes on; `update_s` for the weights to
    reach the sampler; `verdict_s`: median of a verdict. Tails are 99th percentiles over medians;
    `tokens` is the median length. `batch_cost` (0..1) is the share of a pass that grows with
    the rows, at one step's rows. `faults`: share of verdicts that fail and are tried again.
    """

    play_s: float | None = None
    learn_s: float | None = None
    update_s: float | None = None
    verdict_s: float | None = None
    verdict_tail: float | None = None
    tokens: float | None = None
    length_tail: float | None = None
    batch_cost: float | None = None
    faults: float | None = None
    verifiers: int | None = None
    slots: int | None = None
    shared: bool = True


def assume(recipe: Recipe, said: Assumptions, *, world: World | None = None) -> World:
    """`world` (or one that fits the recipe) with what was `said` in the place of its own.

    Raises UsageError for numbers that no world has.
    """
    made = world
    if made is None:
        domains = tuple(DomainModel(name=d.name, weight=d.weight) for d in recipe.tasks.domains)
        made = World(domains=domains, deadline_s=recipe.verify.deadline)
        said = _usual(recipe, said)
    engine = made.engine if said.slots is None else replace(made.engine, slots=said.slots)
    made = replace(
        made,
        domains=tuple(_domain(domain, said, recipe) for domain in made.domains),
        engine=engine,
        learner=_learner(made.learner, said),
        verifiers=made.verifiers if said.verifiers is None else said.verifiers,
        shared=said.shared,
    )
    if said.play_s is None and said.batch_cost is None:
        return made
    return replace(made, engine=_paced(recipe, made, said))


def _usual(recipe: Recipe, said: Assumptions) -> Assumptions:
    """What was said, and of the rest: ten seconds of sampling and of judging, five of learning."""
    usual = Assumptions(
        play_s=10.0,
        learn_s=5.0,
        verdict_s=10.0,
        verdict_tail=3.0,
        tokens=max(1.0, recipe.play.max_new_tokens / 4),
        length_tail=5.0,
        batch_cost=0.5,
        slots=recipe.sampler.max_rows,
        verifiers=recipe.verify.workers,
    )
    told = {f.name: getattr(said, f.name) for f in fields(said)}
    return replace(usual, **{name: value for name, value in told.items() if value is not None})


def _domain(domain: DomainModel, said: Assumptions, recipe: Recipe) -> DomainModel:
    changed = domain
    if said.verdict_s is not None or said.verdict_tail is not None:
        median = domain.verdict.median if said.verdict_s is None else said.verdict_s
        tail = domain.verdict.tail if said.verdict_tail is None else said.verdict_tail
        changed = replace(changed, verdict=spread(median, tail))
    if said.tokens is not None or said.length_tail is not None:
        median = domain.tokens.median if said.tokens is None else said.tokens
        tail = domain.tokens.tail if said.length_tail is None else said.length_tail
        changed = replace(changed, tokens=spread(min(median, recipe.play.max_new_tokens), tail))
    return changed if said.faults is None else replace(changed, faults=said.faults)


def _learner(learner: LearnerModel, said: Assumptions) -> LearnerModel:
    if said.learn_s is not None:
        learner = replace(learner, step_s=said.learn_s, token_s=0.0)
    return learner if said.update_s is None else replace(learner, update_s=said.update_s)


def _paced(recipe: Recipe, world: World, said: Assumptions) -> EngineModel:
    """The engine whose synchronous step takes as long as was said, on average."""
    rows = min(world.engine.slots, recipe.play.groups * recipe.play.group_size)
    now = world.engine.pass_seconds(rows)
    share = world.engine.row_s * rows / now if said.batch_cost is None else said.batch_cost
    if not 0 <= share <= 1:
        raise UsageError(
            f"a share is in 0..1, not {share:g}", where="batch_cost", hint="--batch-cost 0.5"
        )
    shaped = replace(world.engine, pass_s=now * (1 - share), row_s=now * share / rows)
    if said.play_s is None:
        return shaped
    if said.play_s <= 0:
        raise UsageError(
            f"sampling takes time, not {said.play_s:g} s", where="play_s", hint="--play-seconds 10"
        )
    pace = said.play_s / _batch_seconds(recipe, replace(world, engine=shaped))
    return replace(
        shaped,
        pass_s=shaped.pass_s * pace,
        row_s=shaped.row_s * pace,
        prefill_s=shaped.prefill_s * pace,
    )


def _batch_seconds(recipe: Recipe, world: World) -> float:
    """Mean seconds that the engine alone takes for a batch of the run's first tasks."""
    clock, source, play = VirtualClock(), source_of(recipe, world), recipe.play

    async def batches() -> None:
        engine = Engine(world.engine, clock, lambda: None)
        for _ in range(_PROBED):
            tasks = [source.next() for _ in range(play.groups)]
            lengths = [
                lengths_of(
                    world.domain(task.domain),
                    task,
                    play.group_size + play.spare,
                    seed=recipe.seed,
                    most=play.max_new_tokens,
                )
                for task in tasks
            ]
            await asyncio.gather(*engine.begin(lengths, [play.group_size] * play.groups))

    virtual.run(batches(), clock=clock)
    return clock.elapsed / _PROBED
