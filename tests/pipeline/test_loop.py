"""The loop on a tiny random model: it learns, keeps its books, and refuses to pretend."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import NoSignalError
from headrace.observe.listener import QuietListener
from headrace.pipeline.session import resume, start
from headrace.policy.tiny import tiny_tokenizer
from headrace.store.codec import trajectory_to_json
from headrace.store.runs import RunDirectory
from headrace.store.summary import summarise
from headrace.store.trajectories import TrajectoryStore
from headrace.types import Json, Trajectory
from pipeline_support import PACKS, Recorder, events, recipe, run


def waves(folder: Path) -> dict[str, list[Trajectory]]:
    """What was played to be trained on; honeypots are in waves of their own."""
    with TrajectoryStore(folder / "run" / "trajectories", read_only=True) as store:
        played = {wave.key: wave.trajectories for wave in store.iterate()}
    return {key: waves for key, waves in played.items() if "honeypot" not in key}


def test_a_model_learns_what_is_rewarded(tmp_path: Path) -> None:
    result = run(tmp_path, steps=25, play={"groups": 8, "group_size": 8})
    assert (result.status, result.reason) == ("done", "all steps done")
    rewards = [event.payload["reward"]["mean"] for event in events(tmp_path, "step")]
    assert len(rewards) == 25
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.2
    (compared,) = events(tmp_path, "comparison")
    assert compared.payload["low"] > 0


def test_the_summary_has_what_is_promised(tmp_path: Path) -> None:
    run(tmp_path)
    shown = summarise(RunDirectory.open(tmp_path / "run")).to_json()
    assert shown["status"] == "done"
    assert shown["steps"] == 3
    assert len(shown["reward"]) == 3
    assert 0 < shown["seconds"]["first_reward"] <= shown["seconds"]["training"]
    for when in ("before", "after"):
        assert {"score", "stderr", "n"} <= shown["heldout"][when].keys()
        assert shown["heldout"][when]["n"] == 6
    difference = shown["heldout"]["difference"]
    assert difference["low"] <= difference["value"] <= difference["high"]
    assert shown["samples_per_second"] > 0
    assert shown["tokens_per_second"] > 0


def test_a_run_directory_explains_itself(tmp_path: Path) -> None:
    run(tmp_path)
    folder = tmp_path / "run"
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "recipe.json",
        "env.json",
        "status.json",
        "events.jsonl",
        "metrics.parquet",
        "trajectories",
        "checkpoints",
        "evals",
        "logs",
        "report.html",
    }
    assert json.loads((folder / "status.json").read_text())["state"] == "done"
    assert (folder / "logs" / "latest" / "run.log").read_text()
    assert "vowels" in (folder / "report.html").read_text()


def test_masks_decode_to_what_the_policy_wrote(tmp_path: Path) -> None:
    run(tmp_path)
    tokenizer = tiny_tokenizer()
    for attempts in waves(tmp_path).values():
        for attempt in attempts:
            ids = np.concatenate([turn.ids for turn in attempt.turns])
            mask = np.concatenate([turn.sampled for turn in attempt.turns])
            written = tokenizer.decode(ids[mask], skip_special_tokens=True)
            assert written == attempt.completion
            asked = str(tokenizer.decode(ids[~mask]))
            assert attempt.task.messages[0].text in asked
            assert asked.endswith("<|im_start|>assistant\n")


def test_identity_seed_and_version_are_carried_by_every_attempt(tmp_path: Path) -> None:
    run(tmp_path)
    seen = set[int]()
    for key, attempts in waves(tmp_path).items():
        step = int(key.partition(":")[0])
        sizes = Counter(attempt.group for attempt in attempts)
        assert set(sizes.values()) == {4}
        for attempt in attempts:
            assert attempt.group.startswith(key)
            assert {span.version for span in attempt.turns[-1].versions} == {step - 1}
            seen.add(attempt.seed)
    assert len(seen) == 3 * 4 * 4


def test_groups_that_teach_nothing_are_refilled_exactly(tmp_path: Path) -> None:
    changes = {
        "tasks": {"domains": [{"name": "vowels"}, {"name": "vowels/flat"}]},
        "algorithm": {"preset": "dapo", "refill_limit": 10},
        "steps": 4,
    }
    run(tmp_path, **changes)
    played = waves(tmp_path)
    rejected = 0
    for event in events(tmp_path, "step"):
        keys = [key for key in played if key.startswith(f"{event.step:06d}:")]
        groups = [{t.score for t in group} for key in keys for group in by_group(played[key])]
        with_spread = sum(len(scores) > 1 for scores in groups)
        assert with_spread == 4
        assert event.payload["credit"]["groups"] == 4
        rejected += len(groups) - with_spread
    ledger = events(tmp_path, "step")[-1].payload["slots"]
    assert rejected > 0
    assert ledger == {
        "admitted": 16 + rejected,
        "trained": 16,
        "rejected": {"no spread": rejected},
        "held": 0,
    }


def by_group(attempts: list[Trajectory]) -> list[list[Trajectory]]:
    groups: dict[str, list[Trajectory]] = {}
    for attempt in attempts:
        groups.setdefault(attempt.group, []).append(attempt)
    return list(groups.values())


def test_unjudged_attempts_are_counted_and_never_scored_zero(tmp_path: Path) -> None:
    run(tmp_path, tasks={"domains": [{"name": "vowels"}, {"name": "vowels/broken"}]}, steps=4)
    unjudged = 0
    for event in events(tmp_path, "step"):
        part = event.payload["domains"]["vowels/broken"]
        assert part["scored"] == 0
        assert part["pass_rate"] is None
        unjudged += part["attempts"]
        assert event.payload["credit"]["unscored"] == part["attempts"]
    assert unjudged > 0
    scores = [t.score for attempts in waves(tmp_path).values() for t in attempts]
    assert scores.count(None) == unjudged


@pytest.mark.parametrize(
    ("preset", "more"),
    [
        ("grpo", {}),
        ("dr_grpo", {}),
        ("rloo", {}),
        ("reinforce++", {"kl": {"place": "reward", "estimator": "k1"}}),
        ("reinforce++_baseline", {"kl": {"place": "loss", "estimator": "k2", "budget": 0.01}}),
        ("dapo", {"overlong": {"cache": 4}}),
        ("gspo", {"updates": 2, "kl": {"place": "loss", "estimator": "k3", "reset_every": 1}}),
        ("cispo", {"updates": 2, "entropy": {"coefficient": 0.001, "target": 2.0}}),
        ("grpo", {"anchor": "proximal", "correction": "token_tis", "dual_clip": 3.0}),
    ],
)
def test_every_algorithm_trains(tmp_path: Path, preset: str, more: dict[str, object]) -> None:
    run(tmp_path, algorithm={"preset": preset, **more}, steps=2)
    for event in events(tmp_path, "step"):
        payload = event.payload
        assert payload["signal"]
        assert payload["gradient_norm"] > 0
        if event.step == 1 and not more.get("updates"):
            assert payload["ratio_max"] == pytest.approx(1.0, abs=1e-3)


def test_the_first_distance_to_the_reference_is_zero_and_then_grows(tmp_path: Path) -> None:
    run(tmp_path)
    distances = [event.payload["kl_reference"] for event in events(tmp_path, "step")]
    assert distances[0] == pytest.approx(0.0, abs=1e-6)
    assert distances[-1] > 1e-5


def test_no_signal_ends_the_run_with_its_own_exit_code_and_a_hint(tmp_path: Path) -> None:
    with pytest.raises(NoSignalError, match="no learning signal in 2 steps"):
        run(tmp_path, tasks={"domains": [{"name": "vowels/flat"}]}, stop={"no_signal": 2})
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "failed"
    assert "no learning signal" in status["reason"]
    assert (tmp_path / "run" / "report.html").exists()


def test_a_penalty_for_length_is_no_learning_signal(tmp_path: Path) -> None:
    """Shaping gives advantages although every attempt scores 0: the run must not look alive."""
    changes = {"algorithm": {"preset": "grpo", "overlong": {"cache": 7}}, "stop": {"no_signal": 2}}
    with pytest.raises(NoSignalError, match="no learning signal in 2 steps"):
        run(tmp_path, tasks={"domains": [{"name": "vowels/flat"}]}, **changes)
    steps = events(tmp_path, "step")
    assert any(event.payload["credit"]["informative"] for event in steps)
    assert not any(event.payload["signal"] for event in steps)


def test_a_verifier_that_never_judges_ends_the_run(tmp_path: Path) -> None:
    changes = {"tasks": {"domains": [{"name": "vowels/broken"}]}, "evaluate": {"items": 0}}
    with pytest.raises(NoSignalError, match=r"could be judged.*out of order"):
        run(tmp_path, stop={"unjudged": 2}, **changes)


def test_a_console_line_tells_each_step(tmp_path: Path) -> None:
    listener = Recorder()
    start(recipe(), runs=tmp_path, directory=tmp_path / "run", listener=listener, packs=PACKS)
    assert [line.step for line in listener.steps] == [1, 2, 3]
    assert all(line.reward is not None and line.kl is not None for line in listener.steps)
    assert sum("held-out" in note for note in listener.notes) == 2


def test_resuming_a_finished_run_does_nothing(tmp_path: Path) -> None:
    run(tmp_path)
    before = (tmp_path / "run" / "events.jsonl").read_bytes()
    result = resume(tmp_path / "run", listener=QuietListener(), packs=PACKS)
    assert result.status == "done"
    assert (tmp_path / "run" / "events.jsonl").read_bytes() == before


def test_a_run_killed_after_its_last_checkpoint_only_says_that_it_is_done(tmp_path: Path) -> None:
    mastered = {"no_signal": 2, "mastered": 0.0}
    run(tmp_path, steps=9, tasks={"domains": [{"name": "vowels/flat"}]}, stop=mastered)
    folder = tmp_path / "run"
    before = (folder / "events.jsonl").read_bytes()
    assert len(events(tmp_path, "step")) == 2
    RunDirectory.open(folder).set_status("running")
    result = resume(folder, listener=QuietListener(), packs=PACKS)
    assert (result.status, result.reason) == ("done", "mastered")
    assert (folder / "events.jsonl").read_bytes() == before


def attempts_in(folder: Path) -> list[Json]:
    """Every attempt on disk, times and all: one that was played again has others."""
    with TrajectoryStore(folder / "trajectories", read_only=True) as store:
        return [trajectory_to_json(attempt) for attempt in store.trajectories()]


def test_a_run_without_its_checkpoints_replays_its_record_and_plays_nothing(tmp_path: Path) -> None:
    run(tmp_path, checkpoint={"every": 100})
    folder = tmp_path / "run"
    recorded = attempts_in(folder)
    log = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    for path in (folder / "checkpoints").iterdir():
        for file in sorted(path.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        path.rmdir()
    RunDirectory.open(folder).set_status("running")
    resume(folder, listener=QuietListener(), packs=PACKS)
    assert attempts_in(folder) == recorded
    assert (folder / "events.jsonl").read_text().splitlines(keepends=True)[: len(log)] == log
