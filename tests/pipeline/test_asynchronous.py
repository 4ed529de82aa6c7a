"""Runs with a lag: what they train on, what a kill leaves of them, and what they never lose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Sequence
from pathlib import Path

import pytest

from headrace.environments.single_turn import Group
from headrace.errors import InfrastructureError
from headrace.observe.listener import QuietListener
from headrace.pipeline.flow import Purpose
from headrace.pipeline.session import resume, start
from headrace.pipeline.stages import LocalStages
from headrace.store.trajectories import TrajectoryStore
from headrace.types import Json, Trajectory
from pipeline_support import GATE, PACKS, TRYING, events, recipe, run


def played(folder: Path) -> dict[str, list[Trajectory]]:
    """What was played, by group, and trained on or refused: no honeypots."""
    with TrajectoryStore(folder / "run" / "trajectories", read_only=True) as store:
        groups = {wave.key: wave.trajectories for wave in store.iterate()}
    return {key: attempts for key, attempts in groups.items() if "honeypot" not in key}


def consumed(folder: Path) -> dict[int, list[str]]:
    """The groups that each step was trained on."""
    steps: dict[int, list[str]] = {}
    with TrajectoryStore(folder / "run" / "trajectories", read_only=True) as store:
        for entry in store.ledger():
            if entry.consumed.trained and not entry.void:
                steps.setdefault(entry.consumed.step, []).extend(entry.consumed.groups)
    return steps


def versions(attempt: Trajectory) -> set[int]:
    return {span.version for turn in attempt.turns for span in turn.versions}


@pytest.mark.parametrize("lag", [1, 2])
def test_in_lockstep_each_batch_is_as_old_as_the_lag(tmp_path: Path, lag: int) -> None:
    run(tmp_path, steps=5, play={"max_lag": lag})
    for key, attempts in played(tmp_path).items():
        step = int(key.partition(":")[0])
        for attempt in attempts:
            assert versions(attempt) == {max(0, step - 1 - lag)}
    told = [event.payload for event in events(tmp_path, "step")]
    assert [payload["lag"]["max"] for payload in told] == [min(s, lag) for s in range(5)]
    assert told[-1]["slots"] == {"admitted": 20, "trained": 20, "rejected": {}, "held": 0}


def test_running_free_every_admitted_group_is_trained_on_once_and_in_time(tmp_path: Path) -> None:
    run(tmp_path, steps=6, play={"max_lag": 2, "schedule": "free"})
    taken = [name for names in consumed(tmp_path).values() for name in names]
    assert sorted(taken) == sorted(played(tmp_path))
    assert len(set(taken)) == 24
    for event in events(tmp_path, "step"):
        assert 0 <= event.payload["lag"]["mean"] <= event.payload["lag"]["max"] <= 2
    assert events(tmp_path, "step")[-1].payload["slots"]["held"] == 0


def test_weights_change_while_attempts_are_being_written(tmp_path: Path) -> None:
    """Long attempts among short ones: tokens of one attempt carry several versions."""
    run(
        tmp_path,
        steps=6,
        play={"max_lag": 4, "schedule": "free", "max_new_tokens": 48},
        verify={"honeypot_every": None},
    )
    mixed = [a for group in played(tmp_path).values() for a in group if len(versions(a)) > 1]
    assert mixed
    for attempt in mixed:
        spans = [span.version for turn in attempt.turns for span in turn.versions]
        assert spans == sorted(spans)


def test_refused_groups_give_their_slot_back_at_once(tmp_path: Path) -> None:
    run(
        tmp_path,
        steps=4,
        tasks={"domains": [{"name": "vowels"}, {"name": "vowels/flat"}]},
        algorithm={"preset": "dapo", "refill_limit": 10},
        play={"max_lag": 1, "schedule": "free"},
    )
    ledger = events(tmp_path, "step")[-1].payload["slots"]
    assert ledger["trained"] == 16
    assert ledger["rejected"]["no spread"] > 0
    assert ledger["admitted"] == 16 + ledger["rejected"]["no spread"] + ledger["held"]


def test_slow_verifiers_do_not_idle_the_sampler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch can be judged only once the second is being played."""
    GATE.clear()
    begun: list[int] = []
    begin = LocalStages.begin

    def counting(
        self: LocalStages, groups: Sequence[Group], purpose: Purpose
    ) -> Sequence[Awaitable[list[Trajectory]]]:
        begun.append(len(groups))
        if len(begun) == 2:
            GATE.set()
        return begin(self, groups, purpose)

    monkeypatch.setattr(LocalStages, "begin", counting)
    start(
        recipe(
            tasks={"domains": [{"name": "trying/gated"}]},
            play={"max_lag": 1},
            verify={"audit": "off", "workers": 2, "honeypot_every": None},
            evaluate={"items": 0},
        ),
        runs=tmp_path,
        directory=tmp_path / "run",
        listener=QuietListener(),
        packs=TRYING,
    )
    assert [event.payload["unscored"] for event in events(tmp_path, "wave")] == [0, 0, 0]


def test_an_interrupted_free_run_goes_on_and_loses_nothing(tmp_path: Path) -> None:
    changes: dict[str, Json] = {
        "steps": 8,
        "play": {"max_lag": 2, "schedule": "free"},
        "checkpoint": {"every": 3},
    }
    with pytest.raises(RuntimeError, match="pulled the plug"):
        start(
            recipe(**changes),
            runs=tmp_path,
            directory=tmp_path / "run",
            listener=Plug(after=5),
            packs=PACKS,
        )
    before = consumed(tmp_path)
    assert set(before) >= {1, 2, 3, 4, 5}
    result = resume(tmp_path / "run", listener=QuietListener(), packs=PACKS)
    assert result.status == "done"
    after = consumed(tmp_path)
    assert {step: after[step] for step in (4, 5)} == {step: before[step] for step in (4, 5)}
    taken = Counter(name for names in after.values() for name in names)
    assert sorted(taken) == sorted(played(tmp_path))
    assert set(taken.values()) == {1}
    assert sum(taken.values()) == 32


class Plug(QuietListener):
    """Ends the process's interest in the run in the middle of a step."""

    def __init__(self, after: int) -> None:
        self._after = after

    def step(self, line: object) -> None:
        self._after -= 1
        if self._after == 0:
            raise RuntimeError("pulled the plug")


def test_a_wait_that_nothing_ends_is_given_up_and_says_on_whom(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="verdicts missing"):
        start(
            recipe(
                tasks={"domains": [{"name": "trying/stuck"}]},
                play={"patience": 1.0},
                verify={"audit": "off", "workers": 1},
                evaluate={"items": 0},
            ),
            runs=tmp_path,
            directory=tmp_path / "run",
            listener=QuietListener(),
            packs=TRYING,
        )


def test_the_queue_of_a_run_may_be_on_postgres(tmp_path: Path, postgres_url: str) -> None:
    run(tmp_path, play={"max_lag": 1, "schedule": "free"}, queue={"url": postgres_url})
    assert not (tmp_path / "run" / "queue.sqlite").exists()
    assert events(tmp_path, "step")[-1].payload["slots"]["trained"] == 12
