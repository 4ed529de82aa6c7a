"""The watch against forgetting in real runs of a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.observe.listener import QuietListener
from headrace.pipeline.session import resume, start
from headrace.recipe import Recipe
from headrace.store.events import Event, read_events
from headrace.store.models import Artifact, read_card
from headrace.store.runs import RunDirectory
from headrace.types import Json
from pipeline_support import PACKS, SMALL


def recipe(folder: Path, **guard: Json) -> Recipe:
    """Learns one word by heart, at a rate that ruins everything else."""
    rows = [{"prompt": f"say {n}", "completion": "aeiou " * 4} for n in range(24)]
    data = folder / "talks.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = {
        **SMALL,
        "method": "sft",
        "steps": 6,
        "data": {"sources": [{"path": str(data)}], "batch": 8, "validation": 0.0},
        "learner": {"learning_rate": 5e-2},
        "evaluate": {"items": 2, "every": 2},
        "checkpoint": {"every": 2, "keep": 1},
        "guard": guard,
    }
    return Recipe.model_validate(told)


def run(folder: Path, recipe: Recipe) -> RunDirectory:
    result = start(
        recipe,
        runs=folder,
        directory=folder / "run",
        listener=QuietListener(),
        packs=PACKS,
    )
    return RunDirectory.open(result.path)


def looks(directory: RunDirectory) -> list[Event]:
    return [e for e in read_events(directory.events_path) if e.kind == "regression"]


def test_a_capability_that_falls_beyond_its_margin_ends_the_run(tmp_path: Path) -> None:
    watched = [{"suite": "general", "margin": 0.01, "action": "stop"}]
    directory = run(tmp_path, recipe(tmp_path, suites=watched))
    seen = looks(directory)
    assert [finding["verdict"] for finding in seen[-1].payload["findings"]] == ["fell"]
    assert directory.status().reason == "stopped: general fell"
    assert seen[-1].step < 6
    scores = {score.suite: score for score in read_card(directory.path / "artifact").scores}
    assert scores["general"].verdict == "fell"
    assert scores["general"].margin == 0.01


def test_what_is_only_alerted_about_trains_on(tmp_path: Path) -> None:
    watched = [
        {"suite": "general", "margin": 0.01},
        {"suite": "vowels", "margin": 0.9, "items": 4},
    ]
    directory = run(tmp_path, recipe(tmp_path, suites=watched))
    assert [event.step for event in looks(directory)] == [2, 4, 6]
    alerts = [e for e in read_events(directory.events_path) if e.kind == "alert"]
    assert [e.payload["alert"] for e in alerts].count("forgetting") == 1
    found = {f["suite"]: f["verdict"] for f in looks(directory)[-1].payload["findings"]}
    assert found["general"] == "fell"
    assert found["vowels"] != "fell"


def test_a_rollback_goes_to_the_best_checkpoint_before_the_fall(tmp_path: Path) -> None:
    told = recipe(tmp_path, suites=[{"suite": "general", "margin": 1.0, "action": "rollback"}])
    slow = told.model_copy(
        update={"learner": told.learner.model_copy(update={"learning_rate": 4e-2})}
    )
    directory = run(tmp_path, slow)
    last = looks(directory)[-1]
    assert last.payload["action"] == "rollback"
    back = last.payload["back_to"]
    assert back is not None
    assert back < last.step
    assert directory.status().reason == f"rolled back to step {back}: general fell"
    kept = {p.name for p in directory.checkpoints_path.iterdir() if p.name.startswith("step_")}
    assert f"step_{back:06d}" in kept
    name = f"step_{back:06d}/model/model.safetensors"
    before = (directory.checkpoints_path / name).read_bytes()
    made = Artifact(directory.path / "artifact", read_card(directory.path / "artifact"))
    assert (made.weights / "model.safetensors").read_bytes() == before


class Pulled(QuietListener):
    def note(self, text: str) -> None:
        if text.startswith("general") and "pulled" not in self.__dict__:
            raise RuntimeError("pulled the plug")


def test_a_resumed_run_still_compares_with_its_beginning(tmp_path: Path) -> None:
    told = recipe(tmp_path, suites=[{"suite": "general", "margin": 9.0}])
    with pytest.raises(RuntimeError, match="pulled"):
        start(
            told,
            runs=tmp_path,
            directory=tmp_path / "run",
            listener=Pulled(),
            packs=PACKS,
        )
    whole = tmp_path / "whole"
    whole.mkdir()
    unbroken = looks(run(whole, told))
    resume(tmp_path / "run", listener=QuietListener(), packs=PACKS)
    resumed = looks(RunDirectory.open(tmp_path / "run"))
    assert [e.payload for e in resumed] == [e.payload for e in unbroken]
