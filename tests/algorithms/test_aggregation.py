from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms_support import LAW
from headrace.algorithms.aggregation import token_weights
from headrace.recipe import Aggregation

AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
LENGTHS = [2, 3, 5]
GROUPS = ["a", "a", "b"]


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_mean", [1 / 10, 1 / 10, 1 / 10]),
        ("sequence_mean_token_mean", [1 / 6, 1 / 9, 1 / 15]),
        ("sequence_mean_token_sum", [1 / 3, 1 / 3, 1 / 3]),
        ("constant", [1 / 60, 1 / 60, 1 / 60]),
        ("prompt_mean", [1 / 10, 1 / 10, 1 / 10]),
    ],
)
def test_weights_by_hand(aggregation: Aggregation, expected: list[float]):
    weights = token_weights(LENGTHS, GROUPS, aggregation, max_new_tokens=20)
    assert weights == pytest.approx(expected, abs=1e-15)


def test_prompt_mean_gives_every_prompt_the_same_say():
    weights = token_weights([1, 1, 8], ["a", "a", "b"], "prompt_mean", max_new_tokens=9)
    assert weights == pytest.approx([1 / 4, 1 / 4, 1 / 16], abs=1e-15)


def test_the_constant_is_the_limit_not_the_longest_of_the_batch():
    assert token_weights([3], ["a"], "constant", max_new_tokens=50) == [1 / 50]


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean_token_mean", "prompt_mean"])
@LAW
@given(rows=st.lists(st.tuples(st.integers(1, 50), st.sampled_from("abc")), min_size=1, max_size=9))
def test_means_weigh_one_in_all(aggregation: Aggregation, rows: list[tuple[int, str]]):
    lengths = [length for length, _ in rows]
    weights = token_weights(lengths, [g for _, g in rows], aggregation, max_new_tokens=50)
    assert np.dot(lengths, weights) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@LAW
@given(
    rows=st.lists(st.tuples(st.integers(1, 50), st.sampled_from("abc")), min_size=1, max_size=9),
    seed=st.integers(0, 5),
)
def test_weights_follow_their_rows_in_any_order(
    aggregation: Aggregation, rows: list[tuple[int, str]], seed: int
):
    def weigh(given: list[tuple[int, str]]) -> list[float]:
        lengths, groups = [length for length, _ in given], [group for _, group in given]
        return token_weights(lengths, groups, aggregation, max_new_tokens=50)

    order = np.random.default_rng(seed).permutation(len(rows))
    assert weigh([rows[i] for i in order]) == [weigh(rows)[i] for i in order]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_an_empty_sequence_is_refused_and_an_empty_batch_is_not(aggregation: Aggregation):
    with pytest.raises(ValueError, match="without trainable tokens"):
        token_weights([2, 0], ["a", "a"], aggregation, max_new_tokens=4)
    assert token_weights([], [], aggregation, max_new_tokens=4) == []
