"""Examples: rows, reference answers and stored attempts, each with where it came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_support import (
    DEFAULT_SYSTEM,
    STRIPS_REASONING,
    json_lines,
    question,
    renderer_of,
    tokenizer_of,
)
from headrace.algorithms.credit import assemble
from headrace.data.examples import ExampleMaker, Unit, Want
from headrace.data.honeypots import honeypot
from headrace.data.rows import Row, read_rows
from headrace.environments.single_turn import Group, SingleTurn
from headrace.errors import UsageError
from headrace.protocols import Completion, SampleRequest, SamplingParams
from headrace.recipe import DataSource
from headrace.types import Ending, Json, Task, Trajectory, Verdict
from store_support import small_trajectory
from tasks_support import Numbers


def _maker(want: Want = "demonstration", **options: object) -> ExampleMaker:
    maker = ExampleMaker(renderer=renderer_of(DEFAULT_SYSTEM), want=want, max_refused=1.0)
    return replace(maker, **options)


def _text(unit: Unit, number: int = 0) -> str:
    example = unit[number]
    return str(tokenizer_of().decode(example.ids[example.trainable]))


# --- files ---------------------------------------------------------------------------------


def test_a_conversation_is_a_unit_that_knows_its_row(tmp_path: Path) -> None:
    path = json_lines(tmp_path / "a.jsonl.gz", [question(1, "2"), question(2)])
    found = _maker().from_file(DataSource(path=str(path), replay=True))
    assert [_text(unit) for unit in found.units] == ["2<|im_end|>", "4<|im_end|>"]
    (example,) = found.units[1]
    row = list(read_rows(path))[1]
    assert isinstance(row, Row)
    assert dict(example.lineage) == {
        "file": str(path),
        "row": 1,
        "offset": row.offset,
        "row_hash": row.digest,
        "shape": "messages",
    }
    assert (example.source, example.replay, example.label) == (str(path), True, 0.0)
    assert example.tokens == 2
    assert found.refusals.accepted == 2


def test_the_same_content_has_the_same_key_and_group_in_any_shape(tmp_path: Path) -> None:
    rows: list[Json] = [
        question(1, "2"),
        {"instruction": "What is 1 + 1?", "output": "2"},
        question(1, "3"),
    ]
    path = json_lines(tmp_path / "a.jsonl", rows)
    units = _maker().from_file(DataSource(path=str(path))).units
    names = [(unit[0].key, unit[0].group) for unit in units]
    assert names[0] == names[1]
    assert names[0][0] != names[2][0]
    assert names[0][1] != names[2][1]


def test_a_pair_is_two_examples_of_one_group_with_one_prompt(tmp_path: Path) -> None:
    row: Json = {"prompt": "2+2?", "chosen": "4", "rejected": "five", "margin": 2}
    path = json_lines(tmp_path / "a.jsonl", [row])
    (unit,) = _maker("pair").from_file(DataSource(path=str(path))).units
    assert [(e.label, e.margin) for e in unit] == [(1.0, 2.0), (-1.0, 2.0)]
    assert unit[0].group == unit[1].group
    assert unit[0].key != unit[1].key
    assert [_text(unit, number) for number in (0, 1)] == ["4<|im_end|>", "five<|im_end|>"]
    starts = [int(np.flatnonzero(example.trainable)[0]) for example in unit]
    assert starts[0] == starts[1]
    assert unit[0].ids[: starts[0]].tolist() == unit[1].ids[: starts[0]].tolist()


def test_only_what_follows_the_shared_prompt_of_a_pair_is_learned(tmp_path: Path) -> None:
    shared = [*question(1, "2")["messages"], {"role": "user", "content": "Sure?"}]
    sides = {
        side: [*shared, {"role": "assistant", "content": text}]
        for side, text in (("chosen", "Yes."), ("rejected", "No."))
    }
    path = json_lines(tmp_path / "a.jsonl", [sides])
    (unit,) = _maker("pair").from_file(DataSource(path=str(path))).units
    assert [_text(unit, number) for number in (0, 1)] == ["Yes.<|im_end|>", "No.<|im_end|>"]


def test_labelled_conversations_and_the_sides_of_pairs_are_units_of_their_own(
    tmp_path: Path,
) -> None:
    rows: list[Json] = [
        {"prompt": "2+2?", "completion": "4", "label": True},
        {"prompt": "2+2?", "completion": "5", "label": "false"},
        {"prompt": "3+3?", "chosen": "6", "rejected": "7", "margin": 3},
        {"prompt": "2+2?", "completion": "4"},
    ]
    path = json_lines(tmp_path / "a.jsonl", rows)
    found = _maker("label").from_file(DataSource(path=str(path)))
    assert [unit[0].label for unit in found.units] == [1.0, -1.0, 1.0, -1.0]
    assert all(len(unit) == 1 for unit in found.units)
    assert len({unit[0].group for unit in found.units}) == 4
    assert found.refusals.reasons == {"no label of good or bad": 1}
    imitated = _maker().from_file(DataSource(path=str(path)))
    assert [_text(unit) for unit in imitated.units] == ["4<|im_end|>", "4<|im_end|>"]
    assert imitated.refusals.skipped == {"labelled as bad": 1}


def test_rows_that_cannot_be_learned_from_are_counted_by_reason(tmp_path: Path) -> None:
    asked = question(1)["messages"]
    rows: list[Json] = [
        question(1, "2"),
        {"messages": asked[:1]},
        {"messages": [asked[0], {**asked[1], "train": False}]},
        question(2, "x" * 500),
        {"prompt": "2+2?", "chosen": "4", "rejected": "5"},
        {"messages": [{"role": "narrator", "content": "Once"}]},
        question(3, "a\ud800"),
    ]
    path = json_lines(tmp_path / "a.jsonl", rows)
    with path.open("a") as file:
        file.write('{"messages": [')
    maker = _maker(max_tokens=200)
    found = maker.from_file(DataSource(path=str(path)))
    assert [_text(unit) for unit in found.units] == ["2<|im_end|>"]
    assert found.refusals.reasons == {
        "the last turn is not the assistant's": 1,
        "nothing to learn from": 1,
        "longer than max_tokens": 1,
        "a preference, where a conversation is wanted": 1,
        "unknown role": 1,
        "not UTF-8": 1,
        "not JSON": 1,
    }
    with pytest.raises(UsageError, match=r"7 of 8 rows .*narrator.*row 7"):
        replace(maker, max_refused=0.8).from_file(DataSource(path=str(path)))


def test_a_conversation_is_refused_at_its_first_token_too_many_and_never_cut(
    tmp_path: Path,
) -> None:
    path = json_lines(tmp_path / "a.jsonl", [question(1, "2")])
    (unit,) = _maker().from_file(DataSource(path=str(path))).units
    length = len(unit[0].ids)
    for limit, units in ((length, 1), (length - 1, 0)):
        found = _maker(max_tokens=limit).from_file(DataSource(path=str(path)))
        assert len(found.units) == units


def test_a_pair_of_the_same_tokens_or_with_one_long_side_is_refused(tmp_path: Path) -> None:
    rows = [
        {"prompt": "2+2?", "chosen": "4", "rejected": "4" * 300},
        {"prompt": "2+2?", "chosen": "e\u0301", "rejected": "e\u0301", "x": 1},
    ]
    path = json_lines(tmp_path / "a.jsonl", rows)
    found = _maker("pair", max_tokens=200).from_file(DataSource(path=str(path)))
    assert found.units == ()
    assert found.refusals.reasons == {"longer than max_tokens": 1, "both sides say the same": 1}


def test_a_template_that_rewrites_turns_makes_one_unit_of_several_examples(tmp_path: Path) -> None:
    row = {
        "messages": [
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "content": "4", "reasoning_content": "two twice"},
            {"role": "user", "content": "3+3?"},
            {"role": "assistant", "content": "6"},
        ]
    }
    path = json_lines(tmp_path / "a.jsonl", [row])
    maker = replace(_maker(), renderer=renderer_of(STRIPS_REASONING))
    (unit,) = maker.from_file(DataSource(path=str(path))).units
    assert [example.lineage["turn"] for example in unit] == [1, 3]
    assert len({example.group for example in unit}) == 1
    assert len({example.key for example in unit}) == 2


def test_no_more_than_the_items_asked_for_are_read(tmp_path: Path) -> None:
    path = json_lines(tmp_path / "a.jsonl", [question(n) for n in range(9)] + ["no object"])
    found = _maker().from_file(DataSource(path=str(path), items=4))
    assert [unit[0].lineage["row"] for unit in found.units] == [0, 1, 2, 3]
    assert found.refusals.refused == 0


def test_a_whole_file_of_nothing_useful_says_so_with_examples(tmp_path: Path) -> None:
    path = json_lines(tmp_path / "a.jsonl", [{"text": f"story {n}"} for n in range(4)])
    with pytest.raises(UsageError) as raised:
        _maker(max_refused=0.5).from_file(DataSource(path=str(path)))
    assert "4 of 4 rows are refused" in str(raised.value)
    assert "4 x no known shape (row 0, byte 0: text: " in str(raised.value)
    assert "story 2" in str(raised.value)


# --- reference answers ---------------------------------------------------------------------


class _Says:
    """Writes the answer that a task wants, in the tokens that a policy would."""

    def sample(
        self, requests: Sequence[SampleRequest], *, on_progress: object = None
    ) -> list[list[Completion]]:
        raise NotImplementedError


PARAMS = SamplingParams(max_new_tokens=8)


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_a_reference_is_rendered_on_the_very_tokens_that_playing_begins_with(
    system: str | None,
) -> None:
    maker = _maker()
    domain = Numbers("n", tiers=3, size=30)
    found = maker.from_domain(DataSource(domain="n"), domain, seed=3, system_prompt=system)
    played = SingleTurn(_Says(), maker.renderer, PARAMS, seed=0, system_prompt=system)
    every = [domain.task(tier, index) for tier in range(3) for index in range(30)]
    tasks = {task.id: task for task in every}
    for unit in found.units:
        (example,) = unit
        task = tasks[str(example.lineage["task"])]
        assert task.split == "train"
        prompt = played.request(Group("g", task, 1)).ids.tolist()
        assert example.ids.tolist()[: len(prompt)] == prompt
        assert not example.trainable[: len(prompt)].any()
        assert example.trainable[len(prompt) :].all()
        assert _text(unit) == f"{task.answer}<|im_end|>"
        assert example.group == task.id
    train = {task.id for task in tasks.values() if task.split == "train"}
    assert {unit[0].group for unit in found.units} == train


def test_references_are_drawn_by_the_seed_from_every_tier() -> None:
    domain = Numbers("n", tiers=3)
    source = DataSource(domain="n", items=30)
    one, same, other = (
        [unit[0].key for unit in _maker().from_domain(source, domain, seed=seed).units]
        for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other
    assert len(set(one)) == 30
    tiers = [u[0].lineage["tier"] for u in _maker().from_domain(source, domain, seed=1).units]
    assert {tiers.count(tier) for tier in range(3)} <= set(range(6, 15))
    chosen = _maker().from_domain(source, domain, seed=1, tiers=(2,)).units
    assert {unit[0].lineage["tier"] for unit in chosen} == {2}


class _Wordless(Numbers):
    def task(self, tier: int, index: int) -> Task:
        return replace(super().task(tier, index), answer=None)


def test_tasks_without_a_reference_are_counted() -> None:
    found = _maker().from_domain(DataSource(domain="n"), _Wordless("n", tiers=1, size=10), seed=0)
    assert found.units == ()
    assert set(found.refusals.reasons) == {"no reference answer"}


# --- attempts ------------------------------------------------------------------------------


def _attempt(
    group: int, number: int, score: float | None, *, ending: Ending = "finished", seed: int = 0
) -> Trajectory:
    """An attempt of its own tokens at the task of its group."""
    task = small_trajectory(group).task
    made = small_trajectory(seed or 100 + 10 * group + number)
    prompt = small_trajectory(group).turns[0]
    verdict = Verdict(
        score=score, verifier=task.verifier, fault=None if score is not None else "infrastructure"
    )
    return replace(
        made,
        task=task,
        group=f"g{group}",
        attempt=number,
        turns=(prompt, made.turns[1]),
        ending=ending,
        verdict=verdict,
    )


RUN = DataSource(run="runs/x")


def test_attempts_are_learned_with_the_ids_that_were_sampled() -> None:
    attempt = _attempt(1, 0, 1.0)
    ((example,),) = _maker().from_trajectories(RUN, [attempt]).units
    sample = assemble(attempt)
    assert example.ids.tolist() == sample.ids.tolist()
    assert example.trainable.tolist() == sample.trainable.tolist()
    assert example.score == 1.0
    assert example.lineage["trajectory"] == "g1/0"
    assert example.lineage["task"] == attempt.task.id
    assert example.lineage["verifier"] == "final-integer@1"


def test_demonstrations_are_filtered_by_score_ending_split_and_honesty() -> None:
    good = _attempt(1, 0, 1.0)
    heldout = replace(_attempt(2, 0, 1.0), task=replace(good.task, split="heldout"))
    domain = Numbers("n")
    baited = honeypot(domain, replace(domain.task(0, 1), answer="7"))
    assert baited is not None
    attempts = [
        good,
        _attempt(1, 1, 0.9),
        _attempt(1, 2, None),
        _attempt(1, 3, 1.0, ending="truncated"),
        heldout,
        replace(_attempt(3, 0, 1.0), task=baited),
        replace(good, attempt=7),
    ]
    found = _maker().from_trajectories(RUN, reversed(attempts))
    assert [unit[0].lineage["trajectory"] for unit in found.units] == ["g1/0"]
    assert found.refusals.skipped == {
        "a score below min_score": 1,
        "not judged": 1,
        "did not end by itself": 1,
        "at a held-out task": 1,
        "at a honeypot": 1,
        "the same as another": 1,
    }
    lower = DataSource(run="runs/x", min_score=0.9)
    assert len(_maker().from_trajectories(lower, attempts).units) == 2


def test_of_each_group_the_best_is_paired_with_the_worst() -> None:
    attempts = [
        _attempt(1, 0, 0.2),
        _attempt(1, 1, 1.0, ending="truncated"),
        _attempt(1, 2, 0.7),
        _attempt(1, 3, 0.1),
        _attempt(2, 0, 0.5),
        _attempt(2, 1, 0.5),
        _attempt(3, 0, 1.0, ending="truncated"),
    ]
    found = _maker("pair").from_trajectories(RUN, attempts)
    (unit,) = found.units
    assert [example.lineage["trajectory"] for example in unit] == ["g1/2", "g1/3"]
    assert [example.label for example in unit] == [1.0, -1.0]
    assert [example.margin for example in unit] == [pytest.approx(0.6)] * 2
    assert found.refusals.skipped == {
        "a group in which all scored the same": 1,
        "a group of which none ended by itself": 1,
    }


def test_labels_of_attempts_follow_the_score() -> None:
    attempts = [_attempt(1, 0, 0.2), _attempt(1, 1, 1.0), _attempt(1, 2, 0.6)]
    source = DataSource(run="runs/x", min_score=0.6, items=2)
    units = _maker("label").from_trajectories(source, attempts).units
    assert [unit[0].label for unit in units] == [-1.0, 1.0]


def test_an_attempt_that_is_too_long_is_refused() -> None:
    found = _maker(max_tokens=7).from_trajectories(RUN, [_attempt(1, 0, 1.0)])
    assert found.units == ()
    assert found.refusals.reasons == {"longer than max_tokens": 1}
