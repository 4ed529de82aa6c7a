"""Preference losses against their formulas, and the laws that hold for any of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from algorithms_support import LAW, bigram, tensor
from headrace.algorithms.preferences import (
    PreferenceInputs,
    PreferenceSums,
    kto_baseline,
    preference,
)
from headrace.algorithms.recorded import preferences
from headrace.protocols import PreferenceLoss
from recorded_support import by_group, one_pair, preference_pass, random_pairs, references

CHOSEN, REJECTED = [-0.4, -1.1, -0.2], [-0.9, -1.6]
REF_CHOSEN, REF_REJECTED = [-0.7, -1.0, -0.9], [-0.5, -1.4]
FEW = settings(LAW, max_examples=8)
EVERY = [
    PreferenceLoss(loss="dpo", beta=0.3),
    PreferenceLoss(loss="dpo", beta=0.3, divergence="forward_kl"),
    PreferenceLoss(loss="dpo", beta=0.3, label_smoothing=0.2, length_normalised=True),
    PreferenceLoss(loss="dpo", beta=0.3, sft_weight=0.5),
    PreferenceLoss(loss="ipo", beta=0.3, label_smoothing=0.1),
    PreferenceLoss(loss="orpo", beta=0.3, sft_weight=1.0),
    PreferenceLoss(loss="simpo", beta=2.0, target_margin=0.5),
    PreferenceLoss(loss="kto", beta=0.3, desirable_weight=1.5),
]


def names(spec: PreferenceLoss) -> str:
    return f"{spec.loss}-{spec.divergence}-{spec.label_smoothing}-{spec.sft_weight}"


def logsigmoid(x: float) -> float:
    return -math.log(1 + math.exp(-x))


def example_pair() -> PreferenceInputs:
    return one_pair({"+": CHOSEN, "-": REJECTED}, {"+": REF_CHOSEN, "-": REF_REJECTED})


def loss_of(given: PreferenceInputs, spec: PreferenceLoss, baseline: float = 0.0) -> float:
    return preference(given, spec, kto_baseline=baseline).loss.item()


def gradient_of(
    given: PreferenceInputs, spec: PreferenceLoss, baseline: float = 0.0
) -> list[float]:
    terms = preference(given, spec, kto_baseline=baseline)
    return torch.autograd.grad(terms.loss, given.logp)[0].tolist()


def alone(
    log_ratios: Sequence[float], labels: Sequence[float], weights: Sequence[float]
) -> PreferenceInputs:
    count = len(labels)
    return PreferenceInputs(
        logp=tensor(log_ratios).requires_grad_(),
        reference=torch.zeros(count, dtype=torch.float64),
        cross_entropy_weight=torch.zeros(count),
        sequence=torch.arange(count),
        label=tensor(labels),
        weight=tensor(weights),
        group=torch.arange(count),
    )


# --- values and gradients ------------------------------------------------------------------

W = sum(CHOSEN) - sum(REF_CHOSEN)
L = sum(REJECTED) - sum(REF_REJECTED)
MEAN_W, MEAN_L = sum(CHOSEN) / 3, sum(REJECTED) / 2


def odds(mean: float) -> float:
    return math.exp(mean) / (1 - math.exp(mean))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (PreferenceLoss(beta=0.5), -logsigmoid(0.5 * (W - L))),
        (
            PreferenceLoss(beta=0.5, label_smoothing=0.2),
            -0.8 * logsigmoid(0.5 * (W - L)) - 0.2 * logsigmoid(-0.5 * (W - L)),
        ),
        (
            PreferenceLoss(beta=0.5, length_normalised=True),
            -logsigmoid(0.5 * (W / 3 - L / 2)),
        ),
        (
            PreferenceLoss(beta=0.5, divergence="forward_kl"),
            -logsigmoid(0.5 * (math.exp(-L) - math.exp(-W))),
        ),
        (PreferenceLoss(loss="ipo", beta=0.5), (W / 3 - L / 2 - 1.0) ** 2),
        (
            PreferenceLoss(loss="ipo", beta=0.5, label_smoothing=0.25),
            0.75 * (W / 3 - L / 2 - 1.0) ** 2 + 0.25 * (L / 2 - W / 3 - 1.0) ** 2,
        ),
        (
            PreferenceLoss(loss="orpo", beta=0.5),
            -0.5 * logsigmoid(math.log(odds(MEAN_W) / odds(MEAN_L))),
        ),
        (
            PreferenceLoss(loss="simpo", beta=2.0, target_margin=0.6),
            -logsigmoid(2.0 * (MEAN_W - MEAN_L) - 0.6),
        ),
    ],
)
def test_the_loss_of_a_pair_is_its_formula(spec: PreferenceLoss, expected: float):
    assert loss_of(example_pair(), spec) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("spec", EVERY, ids=names)
def test_the_gradient_is_that_of_the_value(spec: PreferenceLoss):
    first = example_pair()

    def value(logp: Tensor) -> Tensor:
        return preference(replace(first, logp=logp), spec, kto_baseline=0.1).loss

    assert torch.autograd.gradcheck(value, first.logp)


def test_every_token_of_a_dpo_pair_is_pulled_by_how_wrong_the_pair_is():
    pull = 0.5 / (1 + math.exp(0.5 * (W - L)))
    found = gradient_of(example_pair(), PreferenceLoss(beta=0.5))
    assert found == pytest.approx([-pull] * 3 + [pull] * 2, abs=1e-9)


def test_smoothed_labels_stop_pulling_where_the_pair_is_as_sure_as_the_labels():
    sure = math.log(0.8 / 0.2)
    given = one_pair({"+": [-1.0], "-": [-1.0 - sure]}, {"+": [-1.0], "-": [-1.0]})
    assert gradient_of(given, PreferenceLoss(beta=1.0, label_smoothing=0.2)) == pytest.approx(
        [0.0, 0.0], abs=1e-9
    )


def test_ipo_stops_pulling_at_its_target_gap():
    given = one_pair({"+": [-1.0] * 4, "-": [-3.5] * 2}, {"+": [-1.0] * 4, "-": [-1.0] * 2})
    assert loss_of(given, PreferenceLoss(loss="ipo", beta=0.2)) == pytest.approx(0.0, abs=1e-12)
    assert not any(gradient_of(given, PreferenceLoss(loss="ipo", beta=0.2)))


def test_kto_weighs_each_side_around_its_baseline():
    given = alone([0.9, -0.3], [1.0, -1.0], [0.5, 0.5])
    spec = PreferenceLoss(loss="kto", beta=0.5, desirable_weight=1.5, undesirable_weight=0.8)
    good = 1.5 * (1 - 1 / (1 + math.exp(-0.5 * (0.9 - 0.2))))
    bad = 0.8 * (1 - 1 / (1 + math.exp(-0.5 * (0.2 + 0.3))))
    assert loss_of(given, spec, 0.2) == pytest.approx(0.5 * good + 0.5 * bad, abs=1e-9)
    pull = gradient_of(given, spec, 0.2)
    assert pull[0] < 0 < pull[1]


def test_the_baseline_is_a_mean_and_never_negative():
    assert kto_baseline([0.2, 0.4, -0.3]) == pytest.approx(0.1)
    assert kto_baseline([-0.2, 0.1]) == 0.0


def test_a_forward_kl_ratio_far_from_the_reference_stays_finite_and_still_pulls():
    given = one_pair({"+": [-500.0], "-": [-1.0]}, {"+": [-1.0], "-": [-1.0]})
    spec = PreferenceLoss(beta=0.1, divergence="forward_kl")
    assert math.isfinite(loss_of(given, spec))
    found = gradient_of(given, spec)
    assert math.isfinite(found[0])
    assert found[0] < -1e6


def test_odds_of_a_certain_answer_are_finite_and_the_other_side_still_pulls():
    spec = PreferenceLoss(loss="orpo", beta=1.0)
    wrong = one_pair({"+": [-2.0], "-": [0.0]})
    assert math.isfinite(loss_of(wrong, spec))
    found = gradient_of(wrong, spec)
    assert all(math.isfinite(value) for value in found)
    assert found[0] < 0 < found[1]


def test_odds_keep_their_digits_at_both_ends():
    spec = PreferenceLoss(loss="orpo", beta=1.0)
    given = one_pair({"+": [-1e-4], "-": [-40.0]})
    single = replace(given, logp=given.logp.detach().float(), weight=given.weight.float())
    exact = math.log1p(math.exp(-math.log(1 / math.expm1(1e-4)) - 40.0))
    assert preference(single, spec).loss.item() == pytest.approx(exact, rel=1e-3, abs=1e-30)


def test_half_precision_log_probabilities_are_summed_in_single():
    count = 400
    logp = torch.full((2 * count,), -1.0, dtype=torch.bfloat16)
    given = PreferenceInputs(
        logp=logp,
        reference=torch.full((2 * count,), -1.0),
        cross_entropy_weight=torch.zeros(2 * count),
        sequence=torch.arange(2).repeat_interleave(count),
        label=torch.tensor([1.0, -1.0]),
        weight=torch.ones(2),
        group=torch.zeros(2, dtype=torch.int64),
    )
    terms = preference(given, PreferenceLoss())
    assert terms.loss.dtype == torch.float32
    assert terms.sums.report().chosen_logp == -count


# --- laws ----------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", EVERY, ids=names)
@FEW
@given(seed=st.integers(0, 999), cuts=st.lists(st.integers(1, 4)), order=st.permutations(range(5)))
def test_any_split_and_order_of_pairs_gives_one_loss_and_gradient(
    spec: PreferenceLoss, seed: int, cuts: list[int], order: list[int]
):
    units = random_pairs(seed)
    samples = preferences(units, spec, references(units))
    table = bigram(seed)
    whole = preference_pass([samples], table, spec, baseline=0.2)
    split = by_group(samples, cuts, lambda groups: [groups[place] for place in order])
    parts = preference_pass(split, table, spec, baseline=0.2)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-12, abs=1e-12)
    assert torch.allclose(parts.gradient, whole.gradient, rtol=1e-10, atol=1e-12)
    one, other = whole.sums.report(), parts.sums.report()
    assert other.units == one.units
    assert other.tokens == one.tokens
    assert other.accuracy == pytest.approx(one.accuracy, abs=1e-12)
    for name in ("loss", "margin", "chosen_reward", "rejected_reward", "chosen_logp"):
        assert getattr(other, name) == pytest.approx(getattr(one, name), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("spec", EVERY, ids=names)
def test_junk_in_a_sequence_that_takes_no_part_changes_nothing(spec: PreferenceLoss):
    clean = example_pair()
    nan = tensor([math.nan, math.inf])
    logp = torch.cat([clean.logp.detach(), nan]).requires_grad_()
    assert clean.reference is not None
    dirty = PreferenceInputs(
        logp=logp,
        reference=torch.cat([clean.reference, nan]),
        cross_entropy_weight=torch.cat([clean.cross_entropy_weight, torch.zeros(2)]),
        sequence=torch.cat([clean.sequence, torch.tensor([2, 2])]),
        label=torch.cat([clean.label, tensor([1.0])]),
        weight=torch.cat([clean.weight, tensor([0.0])]),
        group=torch.cat([clean.group, torch.tensor([0])]),
    )
    assert loss_of(dirty, spec) == loss_of(clean, spec)
    found = gradient_of(dirty, spec)
    assert found[:5] == gradient_of(clean, spec)
    assert found[5:] == [0.0, 0.0]
    assert preference(dirty, spec).sums == preference(clean, spec).sums


@pytest.mark.parametrize("spec", EVERY, ids=names)
def test_without_anything_to_compare_the_loss_is_zero_and_connected(spec: PreferenceLoss):
    given = example_pair()
    idle = replace(given, weight=torch.zeros(2, dtype=torch.float64))
    terms = preference(idle, spec)
    assert terms.loss.item() == 0
    assert torch.autograd.grad(terms.loss, given.logp)[0].tolist() == [0.0] * 5
    assert terms.sums.report().accuracy == 0


def test_cross_entropy_weights_add_to_the_comparison():
    given = replace(example_pair(), cross_entropy_weight=tensor([0.5, 0.25, 0.0, 0.0, 0.0]))
    plain = preference(example_pair(), PreferenceLoss())
    terms = preference(given, PreferenceLoss())
    assert terms.sums.components["cross_entropy"] == pytest.approx(0.5 * 0.4 + 0.25 * 1.1)
    assert terms.loss.item() == pytest.approx(plain.loss.item() + 0.475)
    assert terms.sums.report().loss == pytest.approx(terms.loss.item())


# --- reports -------------------------------------------------------------------------------


def test_the_report_of_a_pair_says_rewards_margin_and_log_probabilities():
    report = preference(example_pair(), PreferenceLoss(beta=0.5)).sums.report()
    assert report.units == 1
    assert report.tokens == 5
    assert report.chosen_logp == pytest.approx(sum(CHOSEN))
    assert report.rejected_logp == pytest.approx(sum(REJECTED))
    assert report.chosen_reward == pytest.approx(0.5 * W)
    assert report.rejected_reward == pytest.approx(0.5 * L)
    assert report.margin == pytest.approx(0.5 * (W - L))
    assert report.accuracy == 1.0


def test_equal_rewards_are_half_right():
    given = one_pair({"+": [-1.0], "-": [-2.0]}, {"+": [-1.0], "-": [-2.0]})
    assert preference(given, PreferenceLoss()).sums.report().accuracy == 0.5


def test_kto_is_right_where_a_sample_is_on_its_side_of_the_baseline():
    given = alone([0.9, 0.1, -0.3, 0.2], [1.0, 1.0, -1.0, -1.0], [0.25] * 4)
    report = preference(given, PreferenceLoss(loss="kto"), kto_baseline=0.2).sums.report()
    assert report.accuracy == pytest.approx((1 + 0 + 1 + 0.5) / 4)
    assert report.margin == pytest.approx(0.1 * (0.5 + 0.05))
    assert report.units == 4


def test_sums_of_nothing_are_neutral():
    sums = preference(example_pair(), PreferenceLoss()).sums
    assert (PreferenceSums() + sums).report() == sums.report()


# --- refusals ------------------------------------------------------------------------------


def two(labels: Sequence[float], groups: Sequence[int], weights: Sequence[float]):
    base = one_pair({"+": [-1.0], "-": [-2.0]}, {"+": [-1.0], "-": [-1.0]})
    return replace(base, label=tensor(labels), group=torch.tensor(groups), weight=tensor(weights))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (two([1, 1], [7, 7], [1, 1]), "group 7 is no pair"),
        (two([1, -1], [7, 8], [1, 1]), "group 7 is no pair"),
        (two([1, 0], [7, 7], [1, 1]), "group 7 has a sequence of label 0"),
        (two([1, -1], [7, 7], [1, 0.5]), "group 7 differ in weight"),
        (two([1, -1], [7, 7], [1, 0]), "group 7 is no pair"),
        (replace(two([1, -1], [7, 7], [1, 1]), sequence=torch.tensor([0, 0])), "without tokens"),
        (replace(two([1, -1], [7, 7], [1, 1]), reference=None), "dpo needs reference"),
    ],
)
def test_what_is_no_pair_is_refused_by_name(given: PreferenceInputs, named: str):
    with pytest.raises(ValueError, match=named):
        preference(given, PreferenceLoss())


@pytest.mark.parametrize(
    "spec",
    [
        PreferenceLoss(loss="simpo", divergence="forward_kl"),
        PreferenceLoss(loss="kto", label_smoothing=0.1),
        PreferenceLoss(loss="kto", length_normalised=True),
        PreferenceLoss(loss="dpo", target_margin=0.5),
    ],
)
def test_settings_that_mean_nothing_together_are_refused(spec: PreferenceLoss):
    with pytest.raises(ValueError):
        preference(example_pair(), spec)


@pytest.mark.parametrize("baseline", [-0.1, math.nan, math.inf])
def test_a_baseline_that_is_no_divergence_is_refused(baseline: float):
    with pytest.raises(ValueError, match="baseline"):
        preference(example_pair(), PreferenceLoss(loss="kto"), kto_baseline=baseline)


def test_a_non_finite_log_probability_that_takes_part_is_seen():
    given = one_pair({"+": [math.nan], "-": [-2.0]}, {"+": [-1.0], "-": [-1.0]})
    assert np.isnan(loss_of(given, PreferenceLoss()))
