from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from engine_workers import script
from engine_workload import Workload
from rows import Row
from stages_cases import Taken, stage_of, stage_rows
from stages_workload import StageData

from headrace.policy.pull import pull

PEER = "TRL DPOTrainer"


def taken(losses: list[float], *, seconds: float, tokens: int = 300) -> Taken:
    """Steps of the same length; the first took ten times as long, as a warm-up may."""
    return Taken(
        seconds=[10 * seconds, *(seconds for _ in losses[1:])],
        tokens=[tokens for _ in losses],
        losses=losses,
        peak=2**30,
        reference_seconds=seconds * len(losses),
    )


def dpo_rows(sides: Mapping[str, Taken], missing: str | None = None) -> dict[str, Row]:
    stage = stage_of("dpo", quick=True)
    found = stage_rows(stage, PEER, sides, missing)
    return {row.what.partition(": ")[2]: row for row in found}


def test_recorded_data_are_the_same_everywhere_and_of_the_promised_sizes(tmp_path: Path) -> None:
    directory = pull("tiny:llama").directory
    one, other = tmp_path / "one", tmp_path / "other"
    for path in (one, other):
        StageData(directory).write_preferences(path, 20)
    assert one.read_bytes() == other.read_bytes()
    rows = [json.loads(line) for line in one.read_text().splitlines()]
    length = {
        side: [len(Workload(directory).ids(row[side][0]["content"])) for row in rows]
        for side in ("prompt", "chosen", "rejected")
    }
    assert len({json.dumps(row) for row in rows}) == 20
    assert 60 < min(length["prompt"]) <= max(length["prompt"]) < 170
    assert min(length["chosen"] + length["rejected"]) > 20
    assert max(length["chosen"] + length["rejected"]) < 120

    StageData(directory).write_conversations(one, 60)
    exchanges = [len(json.loads(line)["messages"]) for line in one.read_text().splitlines()]
    assert set(exchanges) == {2, 4, 6}


def test_the_first_step_is_not_measured_and_a_reference_counts_where_it_is_meant_to() -> None:
    rows = dpo_rows(
        {
            "headrace": taken([0.7, 0.6, 0.5], seconds=1.0),
            PEER: taken([0.7, 0.6, 0.5], seconds=3.0),
        }
    )
    assert rows["steps"].ours == (300.0, 300.0)
    assert rows["steps"].ratio == pytest.approx(3.0)
    assert rows["steps and reference"].ours == pytest.approx((150.0, 150.0))
    assert rows["steps and reference"].ratio == pytest.approx(3.0)
    assert rows["peak memory"].ours == (1.0,)


@pytest.mark.parametrize(
    ("theirs", "first", "later"),
    [
        ([0.7, 0.6, 0.5], True, True),
        ([0.7009, 0.6, 0.4991], True, True),
        ([0.7011, 0.6, 0.5], False, True),
        ([0.7, 0.6, 0.4989], True, False),
        ([0.7, float("nan"), 0.5], True, False),
        ([0.7, 0.6, float("nan")], True, False),
        ([0.7], True, False),
        ([], False, False),
    ],
)
def test_a_comparison_of_two_different_computations_fails(
    theirs: list[float], first: bool, later: bool
) -> None:
    sides = {"headrace": taken([0.7, 0.6, 0.5], seconds=1.0), PEER: taken(theirs, seconds=1.0)}
    rows = dpo_rows(sides)
    assert rows["losses apart, the first step"].passed is first
    assert rows["losses apart, later steps"].passed is later


def test_sides_that_count_other_tokens_end_the_run() -> None:
    sides = {
        "headrace": taken([0.7, 0.6], seconds=1.0),
        PEER: taken([0.7, 0.6], seconds=1.0, tokens=301),
    }
    with pytest.raises(SystemExit, match="DPO: the two sides count other tokens"):
        dpo_rows(sides)


def test_a_peer_that_is_not_there_fails_every_row_with_its_reason() -> None:
    rows = dpo_rows({"headrace": taken([0.7, 0.6], seconds=1.0)}, "no wheel")
    assert {row.passed for row in rows.values()} == {False}
    assert {row.unavailable for row in rows.values()} == {"no wheel"}
    assert rows["steps"].value == 300.0


@pytest.mark.parametrize("task", ["sft", "dpo", "reward"])
def test_headraces_side_learns_from_the_recorded_data_and_tells_the_peer_of_them(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(script("x")).parent))
    worker: Any = importlib.import_module("stages_headrace")
    model, data = pull("tiny:llama").directory, tmp_path / "data.jsonl"
    made = StageData(model)
    write = made.write_conversations if task == "sft" else made.write_preferences
    write(data, 4)
    told = stage_of(task, quick=True).told() | {"model": str(model), "data": str(data)}
    with closing(worker.Stage(told | {"learning_rate": 1e-3}, tmp_path)) as stage:
        steps = [stage.step({"units": [0, 2]}) for _ in range(3)]
        given = stage.told()
    units = given["units"]
    assert [len(unit) for unit in units] == [1 if task == "sft" else 2] * 4
    assert steps[0]["tokens"] == sum(len(e["ids"]) for place in (0, 2) for e in units[place])
    assert steps[2]["loss"] < steps[0]["loss"]
    assert steps[0]["peak"] > 2**26
    assert len(given["head"]) == (64 if task == "reward" else 0)


def test_the_whole_benchmark_runs_alone_on_a_tiny_model(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    stages = Path(script("x")).parents[1] / "stages.py"
    options = "--model tiny:llama --quick --alone --only dpo --threads 1 --check --json"
    done = subprocess.run(
        [sys.executable, str(stages), *options.split(), str(output)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = {row["what"]: row for row in json.loads(output.read_text())["rows"]}
    assert len(rows["DPO: steps"]["ours"]) == 2
    assert 0 < rows["DPO: steps and reference"]["value"] < rows["DPO: steps"]["value"]
    assert 0.1 < rows["DPO: peak memory"]["value"] < 4
    first, *later = rows["DPO: loss by step"]["ours"]
    assert first == pytest.approx(0.693147, abs=1e-5)
    assert len(later) == 2
    assert first not in later
    assert not any("apart" in what for what in rows)
