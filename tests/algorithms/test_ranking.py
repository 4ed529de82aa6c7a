"""Reward models: the loss against its formula, and what says whether scores can be trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from algorithms_support import LAW, bigram, tensor
from headrace.algorithms.ranking import (
    RankingInputs,
    RankingSums,
    calibration,
    length_bias,
    ranking,
)
from headrace.algorithms.recorded import rankings
from headrace.protocols import RankingLoss
from recorded_support import by_group, random_pairs, ranking_pass, tie

FEW = settings(LAW, max_examples=8)
EVERY = [
    RankingLoss(),
    RankingLoss(margins=True, centre=0.05),
    RankingLoss(process=True),
]


def scores(
    values: Sequence[float],
    labels: Sequence[float],
    *,
    margin: Sequence[float] | None = None,
    groups: Sequence[int] | None = None,
    weights: Sequence[float] | None = None,
) -> RankingInputs:
    """Sequences of one position each; neighbours are pairs of equal weight."""
    count = len(values)
    return RankingInputs(
        score=tensor(values).requires_grad_(),
        sequence=torch.arange(count),
        label=tensor(labels),
        weight=tensor([2 / count] * count if weights is None else weights),
        margin=tensor([0.0] * count if margin is None else margin),
        group=torch.arange(count) // 2 if groups is None else torch.tensor(groups),
    )


def gradient_of(given: RankingInputs, spec: RankingLoss) -> list[float]:
    return torch.autograd.grad(ranking(given, spec).loss, given.score)[0].tolist()


def logsigmoid(x: float) -> float:
    return -math.log(1 + math.exp(-x))


# --- pairs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (RankingLoss(), -logsigmoid(1.3)),
        (RankingLoss(margins=True), -logsigmoid(0.8)),
        (RankingLoss(centre=0.1), -logsigmoid(1.3) + 0.1 * 0.49),
    ],
)
def test_the_loss_of_a_pair_is_its_formula(spec: RankingLoss, expected: float):
    given = scores([1.0, -0.3], [1, -1], margin=[0.5, 0.0])
    assert ranking(given, spec).loss.item() == pytest.approx(expected, abs=1e-9)
    exchanged = scores([-0.3, 1.0], [-1, 1], margin=[0.0, 0.5])
    assert ranking(exchanged, spec).loss.item() == pytest.approx(expected, abs=1e-9)


def test_a_tie_pulls_its_scores_together_and_rests_where_they_are_equal():
    given = scores([1.0, -0.3], [0, 0])
    expected = -0.5 * (logsigmoid(1.3) + logsigmoid(-1.3))
    assert ranking(given, RankingLoss()).loss.item() == pytest.approx(expected, abs=1e-9)
    down, up = gradient_of(given, RankingLoss())
    assert down > 0 > up
    assert gradient_of(scores([0.7, 0.7], [0, 0]), RankingLoss()) == pytest.approx([0.0, 0.0])


def test_the_margin_of_a_tie_is_not_read():
    spec = RankingLoss(margins=True)
    plain = ranking(scores([1.0, -0.3], [0, 0]), spec).loss.item()
    assert ranking(scores([1.0, -0.3], [0, 0], margin=[3.0, 3.0]), spec).loss.item() == plain


def test_centring_pulls_scores_that_are_all_high_down():
    given = scores([5.0, 4.0], [1, -1])
    assert sum(gradient_of(given, RankingLoss())) == pytest.approx(0.0, abs=1e-9)
    assert sum(gradient_of(given, RankingLoss(centre=0.01))) == pytest.approx(2 * 2 * 0.01 * 9.0)


def test_a_sequence_scores_what_its_last_position_scores():
    given = RankingInputs(
        score=tensor([9.0, -9.0, 1.0, 9.0, -0.3]).requires_grad_(),
        sequence=torch.tensor([0, 0, 0, 1, 1]),
        label=tensor([1.0, -1.0]),
        weight=tensor([1.0, 1.0]),
        margin=tensor([0.0, 0.0]),
        group=torch.tensor([3, 3]),
    )
    assert ranking(given, RankingLoss()).loss.item() == pytest.approx(-logsigmoid(1.3))
    found = gradient_of(given, RankingLoss())
    assert [bool(value) for value in found] == [False, False, True, False, True]


# --- steps ---------------------------------------------------------------------------------


def steps(values: Sequence[float], targets: Sequence[float], weights: Sequence[float]):
    count = len(values)
    return RankingInputs(
        score=tensor(values).requires_grad_(),
        sequence=torch.zeros(count, dtype=torch.int64),
        label=tensor([0.0]),
        weight=tensor([0.0]),
        margin=tensor([0.0]),
        group=torch.tensor([0]),
        target=tensor(targets),
        step_weight=tensor(weights),
    )


def test_a_step_is_judged_by_binary_cross_entropy_with_soft_targets():
    given = steps([0.8, -0.5, 2.0], [1.0, 0.0, 0.3], [1 / 3] * 3)
    expected = -logsigmoid(0.8) - logsigmoid(0.5) - 0.3 * logsigmoid(2.0) - 0.7 * logsigmoid(-2.0)
    terms = ranking(given, RankingLoss(process=True))
    assert terms.loss.item() == pytest.approx(expected / 3, abs=1e-9)
    pull = gradient_of(given, RankingLoss(process=True))
    assert pull[2] == pytest.approx((1 / (1 + math.exp(-2.0)) - 0.3) / 3)


def test_the_report_of_steps_counts_those_with_a_side():
    given = steps([0.8, 0.5, 0.0, 1.0], [1.0, 0.0, 0.9, 0.5], [0.25] * 4)
    report = ranking(given, RankingLoss(process=True)).sums.report()
    assert report.units == 4
    assert report.accuracy == pytest.approx(1.5 / 3)
    assert report.chosen_score == pytest.approx(0.4)
    assert report.rejected_score == pytest.approx(0.5)


# --- laws ----------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", EVERY, ids=str)
@FEW
@given(seed=st.integers(0, 999), cuts=st.lists(st.integers(1, 5)), order=st.permutations(range(6)))
def test_any_split_and_order_of_comparisons_gives_one_loss_and_gradient(
    spec: RankingLoss, seed: int, cuts: list[int], order: list[int]
):
    units = [*random_pairs(seed), tie("t", [3, 5], [4])]
    samples = rankings(units, spec)
    table = bigram(seed)
    whole = ranking_pass([samples], table, spec)
    split = by_group(samples, cuts, lambda groups: [groups[place] for place in order])
    parts = ranking_pass(split, table, spec)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-12, abs=1e-12)
    assert torch.allclose(parts.gradient, whole.gradient, rtol=1e-10, atol=1e-12)
    one, other = whole.sums.report(), parts.sums.report()
    assert other.units == one.units
    assert other.accuracy == pytest.approx(one.accuracy)
    assert other.margin == pytest.approx(one.margin)


@pytest.mark.parametrize("spec", EVERY, ids=str)
def test_junk_where_nothing_is_compared_changes_nothing(spec: RankingLoss):
    clean = scores([1.0, -0.3], [1, -1])
    clean = replace(clean, target=tensor([1.0, 0.0]), step_weight=tensor([0.5, 0.5]))
    nan = tensor([math.nan])

    def more(values: Tensor | None, value: float) -> Tensor:
        assert values is not None
        return torch.cat([values.detach(), tensor([value])])

    dirty = RankingInputs(
        score=torch.cat([clean.score.detach(), nan]).requires_grad_(),
        sequence=torch.tensor([0, 1, 2]),
        label=more(clean.label, 1.0),
        weight=more(clean.weight, 0.0),
        margin=more(clean.margin, math.nan),
        group=torch.tensor([0, 0, 0]),
        target=more(clean.target, math.nan),
        step_weight=more(clean.step_weight, 0.0),
    )
    assert ranking(dirty, spec).loss.item() == ranking(clean, spec).loss.item()
    assert gradient_of(dirty, spec) == [*gradient_of(clean, spec), 0.0]
    assert ranking(dirty, spec).sums == ranking(clean, spec).sums


@pytest.mark.parametrize("spec", EVERY, ids=str)
def test_without_anything_to_compare_the_loss_is_zero_and_connected(spec: RankingLoss):
    given = scores([1.0, -0.3], [1, -1], weights=[0.0, 0.0])
    given = replace(given, target=tensor([1.0, 0.0]), step_weight=tensor([0.0, 0.0]))
    assert gradient_of(given, spec) == [0.0, 0.0]
    assert ranking(given, spec).sums.report().loss == 0


def test_the_report_leaves_ties_out_of_accuracy_and_margin():
    given = scores([1.0, -0.3, 0.2, 0.2, -1.0, 0.5, 9.0, 1.0], [1, -1, 1, -1, 1, -1, 0, 0])
    report = ranking(given, RankingLoss()).sums.report()
    assert report.units == 4
    assert report.accuracy == pytest.approx(1.5 / 3)
    assert report.margin == pytest.approx((1.3 + 0.0 - 1.5) / 3)
    assert (RankingSums() + ranking(given, RankingLoss()).sums).report() == report


# --- refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (scores([1, 2], [1, 1], groups=[7, 7]), "group 7 is neither a pair nor a tie"),
        (scores([1, 2], [1, -1], groups=[7, 8]), "group 7 is neither"),
        (scores([1, 2], [1, 0], groups=[7, 7]), "group 7 is neither"),
        (scores([1, 2], [1, -1], groups=[7, 7], weights=[1, 0.5]), "group 7 differ in weight"),
        (
            replace(scores([1, 2], [1, -1], groups=[7, 7]), sequence=torch.tensor([0, 0])),
            "group 7 has a sequence without a score",
        ),
    ],
)
def test_what_is_neither_pair_nor_tie_is_refused_by_name(given: RankingInputs, named: str):
    with pytest.raises(ValueError, match=named):
        ranking(given, RankingLoss())


def test_steps_without_targets_or_out_of_range_are_refused():
    with pytest.raises(ValueError, match="target"):
        ranking(scores([1, 2], [1, -1]), RankingLoss(process=True))
    with pytest.raises(ValueError, match="outside"):
        ranking(steps([1.0], [1.5], [1.0]), RankingLoss(process=True))


# --- calibration ---------------------------------------------------------------------------


def test_calibration_of_four_pairs_by_hand():
    some, much = math.log(3), math.log(19)  # confidences 0.75 and 0.95
    found = calibration([some, -some, much, much], [1.0, 1.0, 1.0, 0.0], bins=5)
    counts = [b.count for b in found.bins]
    assert counts == [0, 0, 2, 0, 2]
    assert found.bins[2].confidence == pytest.approx(0.75)
    assert found.bins[2].accuracy == pytest.approx(0.5)
    assert found.error == pytest.approx((2 * 0.25 + 2 * 0.45) / 4)
    assert found.brier == pytest.approx((0.0625 + 0.5625 + 0.0025 + 0.9025) / 4)


@LAW
@given(
    pairs=st.lists(
        st.tuples(st.floats(-5, 5), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=20
    )
)
def test_calibration_does_not_ask_which_side_is_called_first(pairs: list[tuple[float, float]]):
    margins, outcomes = np.array(pairs).T
    one, other = calibration(margins, outcomes), calibration(-margins, 1 - outcomes)
    assert one.error == pytest.approx(other.error)
    assert one.brier == pytest.approx(other.brier)
    assert sum(b.count for b in one.bins) == len(pairs)


def test_calibration_sees_scores_that_are_too_sure():
    draw = np.random.default_rng(3)
    margins = draw.normal(0, 2, 20_000)
    outcomes = (draw.random(20_000) < 1 / (1 + np.exp(-margins))).astype(float)
    honest = calibration(margins, outcomes)
    assert honest.error < 0.01
    assert calibration(3 * margins, outcomes).error > 0.1
    assert calibration(3 * margins, outcomes).brier > honest.brier


@pytest.mark.parametrize(
    ("margins", "outcomes"), [([], []), ([1.0], [1.0, 0.0]), ([math.nan], [1.0]), ([1.0], [1.5])]
)
def test_calibration_refuses_what_it_cannot_read(margins: list[float], outcomes: list[float]):
    with pytest.raises(ValueError):
        calibration(margins, outcomes)


# --- length --------------------------------------------------------------------------------


def test_length_bias_agrees_with_scipy_also_on_ties():
    draw = np.random.default_rng(5)
    lengths = draw.integers(1, 9, 60).astype(float)
    scores_ = np.round(0.2 * lengths + draw.normal(0, 1, 60), 1)
    found = length_bias(scores_, lengths)
    assert found.pearson == pytest.approx(stats.pearsonr(scores_, lengths).statistic)
    assert found.spearman == pytest.approx(stats.spearmanr(scores_, lengths).statistic)
    assert found.slope == pytest.approx(stats.linregress(lengths, scores_).slope)
    assert found.partial is None


def test_length_that_only_goes_with_quality_is_no_bias_once_quality_is_known():
    draw = np.random.default_rng(6)
    quality = draw.random(4000)
    lengths = 100 * quality + draw.normal(0, 20, 4000)
    noise = draw.normal(0, 0.1, 4000)
    fair = length_bias(quality + noise, lengths, quality=quality)
    paid = length_bias(quality + noise + 0.01 * lengths, lengths, quality=quality)
    assert fair.pearson > 0.6
    assert fair.partial is not None
    assert paid.partial is not None
    assert abs(fair.partial) < 0.05
    assert paid.partial > 0.7


def test_what_does_not_vary_has_no_length_bias():
    found = length_bias([1.0, 1.0, 1.0], [5, 6, 7], quality=[0.0, 0.5, 1.0])
    assert (found.pearson, found.spearman, found.slope, found.partial) == (0.0, 0.0, 0.0, 0.0)
    flat = length_bias([1.0, 2.0], [5, 5])
    assert (flat.pearson, flat.spearman, flat.slope) == (0.0, 0.0, 0.0)
    copied = length_bias([0.1, 0.7, 0.4], [3, 9, 5], quality=[0.1, 0.7, 0.4])
    assert copied.partial == 0.0


def test_length_bias_refuses_fewer_than_two_answers_and_unequal_lengths():
    with pytest.raises(ValueError):
        length_bias([1.0], [5])
    with pytest.raises(ValueError):
        length_bias([1.0, 2.0], [5, 6, 7])
    with pytest.raises(ValueError):
        length_bias([1.0, 2.0], [5, 6], quality=[1.0])
