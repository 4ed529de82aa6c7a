from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms_support import LAW
from headrace.algorithms.control import (
    EntropyController,
    KlController,
    next_entropy_coefficient,
    next_kl_coefficient,
)
from headrace.errors import NumericalError
from headrace.recipe import EntropySpec, KlSpec

BUDGETED = KlSpec(place="loss", coefficient=0.1, budget=0.05, rate=0.5)


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (0.05, 0.1),  # on budget
        (0.055, 0.1 * 1.05),  # a tenth above, at half rate
        (5.0, 0.1 * 1.1),  # the error is clipped to 0.2
        (0.0, 0.1 * 0.9),
        (-1.0, 0.1 * 0.9),
    ],
)
def test_the_kl_coefficient_moves_in_proportion_and_is_clipped(kl: float, expected: float):
    assert next_kl_coefficient(0.1, kl, BUDGETED) == pytest.approx(expected, abs=1e-12)


def test_without_a_budget_the_kl_coefficient_stays():
    assert next_kl_coefficient(0.1, 9.0, KlSpec(place="loss", coefficient=0.1)) == 0.1


@LAW
@given(kls=st.lists(st.floats(0, 100), max_size=200))
def test_the_kl_coefficient_stays_within_reach(kls: list[float]):
    controller = KlController(BUDGETED)
    for kl in kls:
        controller.observe(kl)
    assert 0.1 / 100 <= controller.coefficient <= 0.1 * 100


def test_a_controller_that_idled_long_is_back_within_a_hundred_steps():
    controller = KlController(BUDGETED)
    for _ in range(10_000):
        controller.observe(0.0)
    for _ in range(100):
        controller.observe(1.0)
    assert controller.coefficient > 0.1


def test_no_place_no_coefficient():
    assert KlController(KlSpec(coefficient=0.5)).coefficient == 0.0
    assert KlController(KlSpec(place="reward", estimator="k1", coefficient=0.5)).coefficient == 0.5


def test_the_reference_is_renewed_by_age():
    controller = KlController(KlSpec(place="loss", reset_every=2))
    controller.observe(0.0)
    assert not controller.reset_due
    controller.observe(0.0)
    assert controller.reset_due
    controller.reference_was_reset()
    assert not controller.reset_due


def test_the_reference_is_renewed_by_distance():
    controller = KlController(KlSpec(place="loss", reset_at=0.2))
    assert not controller.reset_due
    controller.observe(0.1)
    assert not controller.reset_due
    controller.observe(0.2)
    assert controller.reset_due
    controller.reference_was_reset()
    assert not controller.reset_due


def test_controllers_resume_where_they_were():
    kl, entropy = KlController(BUDGETED), EntropyController(EntropySpec(target=1.0))
    for value in (0.07, 0.2, 0.01):
        kl.observe(value)
        entropy.observe(value)
    resumed_kl, resumed_entropy = KlController(BUDGETED), EntropyController(EntropySpec(target=1.0))
    resumed_kl.restore(json.loads(json.dumps(kl.state())))
    resumed_entropy.restore(json.loads(json.dumps(entropy.state())))
    assert resumed_kl.state() == kl.state()
    assert resumed_kl.coefficient == kl.coefficient != 0.1
    assert resumed_entropy.coefficient == entropy.coefficient != 0.0


def test_the_entropy_coefficient_steps_towards_its_target_within_bounds():
    spec = EntropySpec(coefficient=0.001, target=0.5, delta=0.001, max_coefficient=0.002)
    assert next_entropy_coefficient(0.001, 0.4, spec) == pytest.approx(0.002)
    assert next_entropy_coefficient(0.002, 0.4, spec) == 0.002
    assert next_entropy_coefficient(0.001, 0.6, spec) == 0.0
    assert next_entropy_coefficient(0.0, 0.6, spec) == 0.0


def test_without_a_target_the_entropy_coefficient_stays():
    controller = EntropyController(EntropySpec(coefficient=0.01))
    controller.observe(0.0)
    assert controller.coefficient == 0.01


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_measurement_that_is_not_finite_stops_the_run(value: float):
    with pytest.raises(NumericalError, match="KL"):
        KlController(BUDGETED).observe(value)
    with pytest.raises(NumericalError, match="entropy"):
        EntropyController(EntropySpec()).observe(value)
