from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data.curriculum import Ladder, Move
from headrace.errors import CheckpointError
from headrace.recipe import CurriculumSpec
from headrace.types import Json

SPEC = CurriculumSpec(window=4, up=0.75, down=0.25)

Batch = tuple[int, list[bool]]
batches = st.lists(st.tuples(st.integers(0, 3), st.lists(st.booleans(), max_size=9)), max_size=30)


def ladder(spec: CurriculumSpec = SPEC, first: int = 0, last: int = 3) -> Ladder:
    return Ladder("sums", spec, first=first, last=last)


def test_a_full_window_at_the_upper_rate_opens_the_next_tier() -> None:
    steps = ladder()
    assert steps.record(0, [True, True, True]) is None
    assert steps.top == 0
    move = steps.record(0, [False])  # 3 of 4
    assert move == Move(domain="sums", before=0, after=1, pass_rate=0.75)
    assert steps.top == 1


def test_a_full_window_at_the_lower_rate_closes_the_top_tier() -> None:
    steps = ladder()
    steps.record(0, [True] * 4)
    move = steps.record(1, [False, True, False, False])
    assert move == Move(domain="sums", before=1, after=0, pass_rate=0.25)


def test_between_the_rates_the_window_slides() -> None:
    steps = ladder()
    assert steps.record(0, [False, False, True, True]) is None
    assert steps.record(0, [True]) is not None  # the last four: 0 1 1 1


def test_the_window_is_empty_after_a_move_and_the_rest_of_the_batch_is_dropped() -> None:
    steps = ladder()
    assert steps.record(0, [True] * 40) is not None
    assert steps.top == 1
    assert steps.record(1, [True] * 3) is None
    assert steps.record(1, [True]) is not None


def test_attempts_below_the_top_tier_move_nothing() -> None:
    steps = ladder()
    steps.record(0, [True] * 4)
    assert steps.record(0, [False] * 40) is None
    assert steps.record(2, [True] * 40) is None
    assert steps.top == 1


def test_the_ends_of_the_ladder_are_not_left() -> None:
    steps = ladder(first=1, last=2)
    assert steps.top == 1
    assert steps.record(1, [False] * 8) is None
    assert steps.record(1, [True] * 4) is not None
    assert steps.record(2, [True] * 8) is None
    assert steps.top == 2


def test_without_a_curriculum_every_tier_is_open_and_none_moves() -> None:
    steps = ladder(CurriculumSpec(enabled=False, window=1))
    assert steps.top == 3
    assert steps.record(3, [False] * 9) is None
    assert steps.top == 3


def model(spec: CurriculumSpec, fed: Sequence[Batch]) -> int:
    """The rule of the recipe's docstring, written once more over whole histories."""
    top, history = 0, ""
    for tier, passed in fed:
        for entry in passed:
            if tier != top:
                break
            history += "1" if entry else "0"
            window = history[-spec.window :]
            rate = window.count("1") / spec.window
            if len(window) == spec.window and rate >= spec.up and top < 3:
                top, history = top + 1, ""
            elif len(window) == spec.window and rate <= spec.down and top > 0:
                top, history = top - 1, ""
    return top


@given(batches)
def test_any_history_leads_where_the_rule_says(fed: list[Batch]) -> None:
    steps = ladder()
    for tier, passed in fed:
        steps.record(tier, passed)
    assert steps.top == model(SPEC, fed)


@given(batches, batches)
def test_a_restored_ladder_goes_on_like_the_one_that_never_stopped(
    before: list[Batch], after: list[Batch]
) -> None:
    original, copy = ladder(), ladder()
    for tier, passed in before:
        original.record(tier, passed)
    copy.restore(json.loads(json.dumps(original.state())))
    for tier, passed in after:
        assert copy.record(tier, passed) == original.record(tier, passed)
    assert copy.state() == original.state()


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"top": 0},
        {"top": 4, "window": []},
        {"top": -1, "window": []},
        {"top": True, "window": []},
        {"top": 0, "window": [1] * 5},
        {"top": 0, "window": [2]},
        {"top": 0, "window": "1"},
        {"top": 0, "window": [], "more": 1},
    ],
)
def test_a_state_that_does_not_fit_is_refused(state: Json) -> None:
    steps = ladder()
    with pytest.raises(CheckpointError, match="sums"):
        steps.restore(state)
    assert steps.state() == ladder().state()
