"""Real runs of a tiny model from the command line: to the end, through bad input, and back."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli_support import Outcome, headrace
from headrace.errors import Exit
from headrace.observe.console import ConsoleListener
from headrace.observe.listener import StepLine
from headrace.store import RunDirectory

SMALL = (
    *("--set", 'tasks.domains=[{name="arithmetic"}]', "--set", "play.groups=2"),
    *("--set", "play.max_new_tokens=6", "--set", "evaluate.items=4", "--set", "steps=3"),
    *("--set", "checkpoint.every=1", "--set", "threads=1"),
)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path_factory.getbasetemp() / "headrace-cache"
    monkeypatch.setenv("HEADRACE_CACHE", str(shared))


def small_run(runs: Path, *more: str) -> Outcome:
    return headrace("run", "smoke", *SMALL, "--runs", str(runs), *more)


@contextmanager
def interrupted_after(step: int) -> Generator[None]:
    """Press Ctrl-C when the line of that step is shown."""
    with pytest.MonkeyPatch.context() as patch:
        show = ConsoleListener.step

        def press(self: ConsoleListener, line: StepLine) -> None:
            show(self, line)
            if line.step == step:
                signal.raise_signal(signal.SIGINT)

        patch.setattr(ConsoleListener, "step", press)
        yield


def test_a_run_prints_its_path_as_data_and_a_line_a_step_for_people(tmp_path: Path) -> None:
    done = small_run(tmp_path)
    assert done.code == 0, done.err
    path = Path(done.out.strip())
    assert path.parent == tmp_path
    steps = [line for line in done.err.splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in steps] == ["1/3", "2/3", "3/3"]
    assert f"report: {path / 'report.html'}" in done.err
    shown = headrace("show", "latest", "--runs", str(tmp_path), "--json").json
    assert (shown["status"], shown["steps"], len(shown["reward"])) == ("done", 3, 3)
    assert headrace("report", path.name, "--runs", str(tmp_path)).code == 0
    again = headrace("resume", path.name, "--runs", str(tmp_path), "--json")
    assert again.code == 0
    assert again.json["path"] == str(path)


def test_ctrl_c_stops_at_a_safe_point_and_resume_takes_nothing_but_the_run(tmp_path: Path) -> None:
    with interrupted_after(1):
        stopped = small_run(tmp_path)
    assert (stopped.code, stopped.out) == (Exit.INTERRUPTED, "")
    (row,) = headrace("ls", "--runs", str(tmp_path), "--json").json
    assert row["status"] == "interrupted"
    assert 1 <= row["steps"] < 3
    done = headrace("resume", "latest", "--runs", str(tmp_path))
    assert done.code == 0, done.err
    shown = headrace("show", "--runs", str(tmp_path), "--json").json
    assert (shown["status"], shown["steps"], shown["attempts"]) == ("done", 3, 2)


def test_a_directory_in_use_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    refused = small_run(tmp_path / "runs", "--dir", str(tmp_path / "mine"))
    assert (refused.code, refused.out) == (Exit.USAGE, "")
    assert str(tmp_path / "mine") in refused.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    assert not (tmp_path / "runs").exists()


def test_a_run_that_someone_else_is_working_on_is_refused(tmp_path: Path) -> None:
    with interrupted_after(1):
        small_run(tmp_path)
    (row,) = headrace("ls", "--runs", str(tmp_path), "--json").json
    with RunDirectory(Path(row["path"])).lock():
        refused = headrace("resume", "latest", "--runs", str(tmp_path))
    assert (refused.code, refused.out) == (Exit.USAGE, "")
    assert "the run is in use" in refused.err


def test_a_missing_model_is_refused_before_a_run_exists(tmp_path: Path) -> None:
    source = f"model.source={tmp_path / 'no-model'}"
    refused = small_run(tmp_path / "runs", "--set", source)
    assert (refused.code, refused.out) == (Exit.USAGE, "")
    assert "no such model directory" in refused.err
    assert not (tmp_path / "runs").exists()


def test_a_corrupted_checkpoint_is_passed_over_and_all_of_them_is_an_error(tmp_path: Path) -> None:
    with interrupted_after(2):
        small_run(tmp_path)
    (row,) = headrace("ls", "--runs", str(tmp_path), "--json").json
    checkpoints = sorted((Path(row["path"]) / "checkpoints").iterdir())
    assert len(checkpoints) == 2
    kept = {path: path.read_bytes() for path in checkpoints[0].rglob("*") if path.is_file()}
    for checkpoint in checkpoints:
        next(checkpoint.glob("*.safetensors")).write_bytes(b"torn")
    refused = headrace("resume", "latest", "--runs", str(tmp_path))
    assert refused.code == Exit.INFRASTRUCTURE
    assert "error: no checkpoint can be used" in refused.err
    assert "hint: " in refused.err
    for path, content in kept.items():
        path.write_bytes(content)
    done = headrace("resume", "latest", "--runs", str(tmp_path))
    assert done.code == 0, done.err
    assert "checkpoint passed over: step_000002" in done.err
    assert headrace("show", "--runs", str(tmp_path), "--json").json["steps"] == 3


def test_a_disk_that_fills_up_is_one_clear_error_and_loses_nothing(tmp_path: Path) -> None:
    assert small_run(tmp_path / "warm").code == 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, before[1]))
    try:
        full = small_run(tmp_path / "runs")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert full.code == Exit.INFRASTRUCTURE, full.err
    assert full.err.count("error: ") == 1
    assert "hint: " in full.err
    assert "Traceback" not in full.err
    (row,) = headrace("ls", "--runs", str(tmp_path / "runs"), "--json").json
    assert row["status"] == "failed"
    done = headrace("resume", "latest", "--runs", str(tmp_path / "runs"))
    assert done.code == 0, done.err
    assert headrace("show", "--runs", str(tmp_path / "runs"), "--json").json["steps"] == 3


def test_a_recipe_json_of_a_run_starts_the_same_run_again(tmp_path: Path) -> None:
    first = Path(small_run(tmp_path).out.strip())
    again = headrace("run", str(first / "recipe.json"), "--runs", str(tmp_path))
    second = Path(again.out.strip())
    diff = headrace("diff", first.name, second.name, "--runs", str(tmp_path), "--json").json
    assert diff["recipe"] == []
    results = {row["key"] for row in diff["results"]}
    assert {key for key in results if key.startswith(("reward", "heldout"))} == set()
    assert json.loads((second / "status.json").read_text())["state"] == "done"


def test_a_run_answers_sql_and_says_what_it_waits_for(tmp_path: Path) -> None:
    assert small_run(tmp_path).code == 0
    asked = "select group_id, count(*) n from trajectories join consumed using (group_id) "
    asked += "group by 1"
    rows = headrace("show", "--runs", str(tmp_path), "--sql", asked, "--json").json
    assert len(rows) == 6
    assert {row["n"] for row in rows} == {2}
    table = headrace("show", "--runs", str(tmp_path), "--sql", asked, "--limit", "2")
    assert table.out.splitlines()[0].split() == ["group_id", "n"]
    assert "only the first 2 rows" in table.err
    refused = headrace("show", "--runs", str(tmp_path), "--sql", "drop table trajectories")
    assert refused.code == Exit.USAGE
    waits = headrace("show", "--runs", str(tmp_path), "--waits")
    assert (waits.code, waits.out) == (0, "")
    assert "nothing is waited for" in waits.err


def test_stored_attempts_are_exported_judged_again_and_sealed(tmp_path: Path) -> None:
    assert small_run(tmp_path).code == 0
    out = tmp_path / "all.jsonl"
    at = ("--runs", str(tmp_path))
    done = headrace(
        "data", "export", "latest", *at, "--where", "true", "--out", str(out), "--json"
    ).json
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert done["rows"] == len(lines) > 0
    assert [m["role"] for m in lines[0]["messages"]] == ["user", "assistant"]
    again = headrace("data", "regrade", "latest", *at, "--json")
    assert again.json == {"judged": 0, "same": 0}  # the same version has judged them all
    sealed = headrace("data", "compact", "latest", *at, "--arrays-from", "3", "--json").json
    assert sealed["sealed"]["segments"] == 0  # the run has sealed them when it ended
    assert sealed["freed"]["arrays"] > 0
    counted = headrace("show", *at, "--sql", "select count(*) n from trajectories", "--json")
    assert counted.json == [{"n": len(lines)}]
