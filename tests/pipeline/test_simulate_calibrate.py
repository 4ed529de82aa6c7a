"""A world taken from a run is the world that the run went through."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

import pytest

from headrace.errors import RunError
from headrace.pipeline.simulation import (
    EngineModel,
    LearnerModel,
    LogNormal,
    Report,
    World,
    calibrate,
    scheduled,
    simulate,
)
from headrace.store.runs import RunDirectory
from simulate_support import domain, recipe, recorded, world

PLAN = recipe(steps=12, sampler={"max_rows": 64}, verify={"workers": 64})
MADE = World(
    domains=(domain(0.6, LogNormal(40.0, 1.5)),),
    engine=EngineModel(slots=64, pass_s=0.02, row_s=0.004, prefill_s=0.03),
    learner=LearnerModel(step_s=0.5, token_s=0.001, books_s=0.04),
    verifiers=64,
)


@cache
def synchronous() -> Report:
    return simulate(PLAN, MADE)


def test_seconds_and_lengths_come_back_from_a_synchronous_run(tmp_path: Path) -> None:
    report = synchronous()
    found = calibrate(recorded(tmp_path, PLAN, MADE, report))
    engine, learner, (only,) = found.world.engine, found.world.learner, found.world.domains
    assert (engine.slots, found.world.verifiers) == (64, 64)
    assert engine.pass_s == pytest.approx(0.02, rel=1e-3)
    assert engine.row_s == pytest.approx(0.004, rel=1e-3)
    assert engine.prefill_s == pytest.approx(0.03, rel=1e-3)
    assert learner.step_s == pytest.approx(0.5, rel=1e-3)
    assert learner.token_s == pytest.approx(0.001, rel=1e-3)
    assert learner.books_s == pytest.approx(0.04, rel=1e-3)
    assert only.verdict.median == pytest.approx(0.6, rel=1e-3)
    assert only.solved == 0.5
    assert only.tokens.draw(Random(0)) in {n for p in report.passages for n in p.lengths}
    assert any("12 steps, 48 attempts" in note for note in found.notes)


@pytest.mark.parametrize(
    ("schedule", "lag"),
    [
        pytest.param("lockstep", 0, marks=pytest.mark.slow),
        ("lockstep", 1),
        pytest.param("free", 2, marks=pytest.mark.slow),
    ],
)
def test_what_is_predicted_from_a_synchronous_run_is_what_the_other_schedule_does(
    tmp_path: Path, schedule: str, lag: int
) -> None:
    found = calibrate(recorded(tmp_path, PLAN, MADE, synchronous()))
    longer = PLAN.model_copy(update={"steps": 16})
    predicted = simulate(scheduled(longer, schedule, lag), found.world)
    happened = simulate(scheduled(longer, schedule, lag), MADE)
    assert predicted.samples_per_second == pytest.approx(happened.samples_per_second, rel=0.1)


def test_a_run_without_a_finished_step_says_so(tmp_path: Path) -> None:
    empty = RunDirectory.create(
        tmp_path, PLAN.model_dump(mode="json"), PLAN.name, PLAN.digest, {"python": "3.11"}
    )
    with pytest.raises(RunError, match="no finished step"):
        calibrate(empty)


def test_what_a_run_hid_behind_other_work_is_said_not_to_be_known(tmp_path: Path) -> None:
    ahead = scheduled(PLAN, "lockstep", 1)
    found = calibrate(recorded(tmp_path, ahead, MADE, simulate(ahead, MADE)))
    assert any("calibrate with max_lag=0" in note for note in found.notes)


def test_a_free_running_run_is_refused_with_a_hint(tmp_path: Path) -> None:
    free = scheduled(PLAN, "free", 1)
    directory = recorded(tmp_path, free, world(), simulate(free, world()))
    with pytest.raises(RunError, match="batch of its own") as caught:
        calibrate(directory)
    assert "lockstep" in caught.value.hint
