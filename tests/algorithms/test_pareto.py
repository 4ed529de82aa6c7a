"""The Pareto front, on checkpoints that a person can compare by eye."""

from __future__ import annotations

import pytest

from headrace.algorithms.pareto import front


def test_the_front_is_what_nobody_would_trade():
    checkpoints: list[dict[str, float | None]] = [
        {"help": 0.2, "safe": 0.9, "short": 0.5},  # the safest
        {"help": 0.8, "safe": 0.4, "short": 0.5},
        {"help": 0.8, "safe": 0.4, "short": 0.4},  # as the one before, but longer
        {"help": 0.1, "safe": 0.1, "short": 0.6},  # the shortest, and nothing else
        {"help": 0.5, "safe": 0.4, "short": 0.5},  # helps less, better in nothing
    ]
    assert front(checkpoints) == [True, True, False, True, False]


def test_of_equals_all_are_on_the_front():
    assert front([{"help": 1.0}, {"help": 1.0}, {"help": 0.5}]) == [True, True, False]


def test_what_could_not_be_judged_is_not_on_the_front_and_keeps_nobody_off_it():
    assert front([{"help": 9.0, "safe": None}, {"help": 1.0, "safe": 0.0}]) == [False, True]


def test_there_is_a_front_of_nothing_and_none_of_different_things():
    assert front([]) == []
    with pytest.raises(ValueError, match="same objectives"):
        front([{"help": 1.0}, {"safe": 1.0}])
