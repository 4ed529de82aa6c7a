"""Small simulated runs whose course can be worked out by hand."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from headrace.pipeline.simulation import (
    Distribution,
    DomainModel,
    EngineModel,
    Fixed,
    LearnerModel,
    Report,
    World,
    simulate,
)
from headrace.pipeline.simulation.record import Passage
from headrace.pipeline.simulation.stages import SimulatedDomain
from headrace.recipe import Recipe
from headrace.store.events import EventLog
from headrace.store.runs import RunDirectory
from headrace.store.trajectories import TrajectoryStore
from headrace.types import Json, Trajectory, Turn, Verdict, VerifierRef, VersionSpan

GROUPS, SIZE = 2, 2
TOKENS = 10
PASS_S = 0.1
PLAY_S = TOKENS * PASS_S


def recipe(*, steps: int = 13, schedule: str = "lockstep", lag: int = 0, **more: Json) -> Recipe:
    """2 groups of 2 attempts a step."""
    play = {"groups": GROUPS, "group_size": SIZE, "max_new_tokens": 512}
    return Recipe.model_validate(
        {
            "steps": steps,
            "play": {**play, "schedule": schedule, "max_lag": lag, **more.pop("play", {})},
            **more,
        }
    )


def domain(
    verdict: float | Distribution = 0.5,
    tokens: float | Distribution = TOKENS,
    name: str = "simulated",
    weight: float = 1.0,
    faults: float = 0.0,
    hangs: float = 0.0,
    down: tuple[float, float] | None = None,
) -> DomainModel:
    return DomainModel(
        name=name,
        weight=weight,
        verdict=Fixed(verdict) if isinstance(verdict, int | float) else verdict,
        tokens=Fixed(tokens) if isinstance(tokens, int | float) else tokens,
        faults=faults,
        hangs=hangs,
        down=down,
    )


def world(
    *domains: DomainModel,
    learn: float = 0.25,
    update: float = 0.0,
    engine: EngineModel | None = None,
    verifiers: int = 64,
    deadline: float = 600.0,
    shared: bool = True,
) -> World:
    """Sampling takes PLAY_S however many rows there are, unless `engine` says otherwise."""
    return World(
        domains=domains or (domain(),),
        engine=engine or EngineModel(slots=256, pass_s=PASS_S),
        learner=LearnerModel(step_s=learn, update_s=update),
        verifiers=verifiers,
        deadline_s=deadline,
        shared=shared,
    )


def run(
    made: World, *, steps: int = 13, schedule: str = "lockstep", lag: int = 0, **more: Json
) -> Report:
    return simulate(recipe(steps=steps, schedule=schedule, lag=lag, **more), made)


def recorded(root: Path, plan: Recipe, made: World, report: Report) -> RunDirectory:
    """The directory that a real run in lockstep would have left, had it gone like `report`."""
    directory = RunDirectory.create(
        root, plan.model_dump(mode="json"), plan.name, plan.digest, {"python": "3.11"}
    )
    steps: dict[int, list[Passage]] = defaultdict(list)
    for passage in report.passages:
        assert passage.trained_on is not None
        steps[passage.trained_on + 1].append(passage)
    with (
        directory.lock(),
        EventLog(directory.events_path) as events,
        TrajectoryStore(directory.trajectories_path) as store,
    ):
        began = 0.0
        for step, passages in sorted(steps.items()):
            tokens = sum(n for passage in passages for n in passage.lengths)
            ended = max(p.trained for p in passages if p.trained is not None)
            learn = made.learner.step_s + made.learner.token_s * tokens
            timing = {
                "play": ended - began - learn,
                "learn": learn,
                "seconds": ended - began,
                "since_ready": ended,
            }
            events.append("step", step, {"sampled_tokens": tokens}, timing)
            for passage in passages:
                for attempt in _attempts(passage):
                    store.append(attempt)
            began = ended + made.learner.books_s
    return directory


def _attempts(passage: Passage) -> list[Trajectory]:
    assert passage.begun is not None
    assert passage.played is not None
    return [
        Trajectory(
            task=SimulatedDomain(passage.domain).task(0, 0),
            group=passage.group,
            attempt=number,
            seed=0,
            turns=(
                Turn(
                    role="assistant",
                    text="",
                    ids=np.zeros(length, np.int32),
                    sampled=np.ones(length, np.bool_),
                    logps=np.zeros(length, np.float32),
                    versions=(VersionSpan(0, length),),
                ),
            ),
            ending="finished",
            verdict=Verdict(score=float(number % 2), verifier=VerifierRef("simulated", "1")),
            timings={"play": passage.played - passage.begun},
        )
        for number, length in enumerate(passage.lengths)
    ]
