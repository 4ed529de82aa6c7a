from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms_support import LAW
from headrace.algorithms.advantages import (
    Doubles,
    centre,
    dr_grpo,
    grpo,
    has_spread,
    returns,
    rloo,
    whiten,
)

Estimator = Callable[[Sequence[float | None]], Doubles]
ALL = pytest.mark.parametrize("estimator", [grpo, dr_grpo, rloo])

scores = st.floats(0, 1, allow_subnormal=False).map(lambda x: round(x, 4))
judged = st.lists(scores, min_size=1, max_size=8)
with_gaps = st.lists(st.none() | scores, min_size=1, max_size=8)


def test_grpo_divides_by_the_unbiased_deviation():
    # scores 1, 0, 0, 1: mean 1/2, unbiased variance 4 x 1/4 / 3 = 1/3
    expected = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert grpo([1.0, 0.0, 0.0, 1.0]).tolist() == pytest.approx(
        [expected, -expected, -expected, expected], abs=1e-12
    )


def test_dr_grpo_only_subtracts_the_mean():
    assert dr_grpo([1.0, 0.0, 0.5, 0.5]).tolist() == [0.5, -0.5, 0.0, 0.0]


def test_rloo_subtracts_the_mean_of_the_others():
    group = [0.9, 0.1, 0.4]
    by_hand = [0.9 - (0.1 + 0.4) / 2, 0.1 - (0.9 + 0.4) / 2, 0.4 - (0.9 + 0.1) / 2]
    assert rloo(group).tolist() == pytest.approx(by_hand, abs=1e-12)


@ALL
def test_a_lone_attempt_has_no_advantage_however_good(estimator: Estimator):
    assert estimator([1.0]).tolist() == [0.0]
    assert estimator([None, 1.0, None]).tolist() == [0.0, 0.0, 0.0]


@ALL
def test_a_uniform_group_is_exactly_zero_although_its_mean_rounds(estimator: Estimator):
    assert sum([0.1] * 3) / 3 != 0.1
    assert estimator([0.1] * 3).tolist() == [0.0] * 3
    assert estimator([0.7 + 0.2 + 0.1, 0.1 + 0.2 + 0.7]).tolist() == [0.0, 0.0]


@ALL
def test_nothing_judged_and_nothing_given_are_no_error(estimator: Estimator):
    assert estimator([None, None]).tolist() == [0.0, 0.0]
    assert estimator([]).tolist() == []


@ALL
@LAW
@given(group=judged)
def test_advantages_of_a_group_sum_to_zero(estimator: Estimator, group: list[float]):
    assert estimator(group).sum() == pytest.approx(0, abs=1e-9)


@ALL
@LAW
@given(group=judged, shift=st.floats(-2, 2))
def test_advantages_do_not_move_with_a_constant(
    estimator: Estimator, group: list[float], shift: float
):
    moved = estimator([score + shift for score in group])
    assert moved.tolist() == pytest.approx(estimator(group).tolist(), abs=1e-6)


@LAW
@given(group=judged, scale=st.floats(0.5, 100))
def test_grpo_does_not_move_with_a_positive_factor(group: list[float], scale: float):
    # the epsilon of 1e-6 against a deviation of at least 1e-4 / sqrt(8) moves it up to 3 %
    scaled = grpo([score * scale for score in group])
    assert scaled.tolist() == pytest.approx(grpo(group).tolist(), rel=0.06, abs=1e-9)


@ALL
@LAW
@given(group=with_gaps, seed=st.integers(0, 10))
def test_siblings_may_come_in_any_order_to_the_last_bit(
    estimator: Estimator, group: list[float | None], seed: int
):
    order = np.random.default_rng(seed).permutation(len(group))
    assert estimator([group[i] for i in order]).tolist() == estimator(group)[order].tolist()


@ALL
@LAW
@given(group=with_gaps)
def test_the_unjudged_are_as_good_as_absent(estimator: Estimator, group: list[float | None]):
    values = estimator(group)
    present = [i for i, score in enumerate(group) if score is not None]
    assert values[present].tolist() == estimator([group[i] for i in present]).tolist()
    assert all(values[i] == 0 for i, score in enumerate(group) if score is None)


def test_a_tiny_spread_on_a_large_offset_is_not_lost_to_cancellation():
    # one-pass variance E[x^2] - E[x]^2 returns 0 or negative here
    base = 1e8
    values = whiten([np.array([base, base + 1, base + 2])])[0]
    assert values.tolist() == pytest.approx([-1.0, 0.0, 1.0], abs=1e-5)


def test_spread_needs_two_judged_scores_that_differ():
    assert has_spread([0.0, None, 1e-3])
    assert not has_spread([])
    assert not has_spread([None])
    assert not has_spread([0.3, 0.3 + 1e-12])


def test_returns_discount_backwards_over_policy_tokens():
    assert returns(np.array([1.0, 2.0, 4.0]), 0.5).tolist() == [3.0, 4.0, 4.0]
    assert returns(np.array([0.0, 0.0, 1.0]), 1.0).tolist() == [1.0, 1.0, 1.0]
    assert returns(np.zeros(0), 0.9).tolist() == []


def test_whitening_is_over_tokens_not_over_rows():
    # tokens 1, 0, 0, 0: mean 1/4, unbiased variance (9/16 + 3/16) / 3 = 1/4
    long, short = whiten([np.zeros(3), np.ones(1)])
    assert long.tolist() == pytest.approx([-0.5] * 3, abs=1e-5)
    assert short.tolist() == pytest.approx([1.5], abs=1e-5)


def test_whitening_without_a_spread_is_exactly_zero():
    assert [row.tolist() for row in whiten([np.full(2, 0.1), np.full(1, 0.1)])] == [[0, 0], [0]]
    assert whiten([np.ones(1)])[0].tolist() == [0.0]
    assert whiten([]) == []


@LAW
@given(rows=st.lists(st.lists(scores, min_size=1, max_size=4), min_size=1, max_size=5))
def test_whitened_tokens_have_mean_zero_and_deviation_one(rows: list[list[float]]):
    flat = np.concatenate(whiten([np.array(row) for row in rows]))
    assert flat.mean() == pytest.approx(0, abs=1e-9)
    if flat.any():
        assert flat.std(ddof=1) == pytest.approx(1, rel=0.06)


def test_centring_takes_the_mean_over_all_tokens():
    assert [row.tolist() for row in centre([np.zeros(3), np.array([4.0])])] == [[-1.0] * 3, [3.0]]
    assert centre([]) == []
