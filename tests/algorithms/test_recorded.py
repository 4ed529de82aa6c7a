"""Recorded data as samples: denominators, identity, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from algorithms_support import bigram, inputs, step, tensor
from headrace.algorithms.losses import LossInputs, objective
from headrace.algorithms.recorded import demonstrations, mismatched, preferences, rankings
from headrace.errors import NoSignalError, NumericalError
from headrace.protocols import LossSpec, PreferenceLoss, RankingLoss
from headrace.types import Example, Sample
from recorded_support import Unit, example, pair, random_pairs, references, tie

DPO, KTO, SIMPO = (PreferenceLoss(loss=name) for name in ("dpo", "kto", "simpo"))


def mute(key: str) -> Example:
    """An example in which nothing is learned."""
    given = example(key, [3, 4])
    return replace(given, trainable=np.zeros(len(given.ids), np.bool_))


def total(samples: tuple[Sample, ...], name: str) -> float:
    return float(sum(getattr(sample, name).sum() for sample in samples))


# --- demonstrations ------------------------------------------------------------------------


def test_every_trainable_token_of_the_batch_weighs_the_same():
    samples = demonstrations([(example("a", [3, 4, 5]),), (example("b", [6]),)])
    assert samples[0].cross_entropy_weight.tolist() == [0, 0, 0.25, 0.25, 0.25]
    assert samples[1].cross_entropy_weight.tolist() == [0, 0, 0.25]
    assert [sample.trajectory for sample in samples] == ["a", "b"]
    assert not any(sample.policy_weight.any() or sample.weight for sample in samples)


def test_a_scale_is_the_sum_of_the_weights():
    samples = demonstrations([(example("a", [3, 4, 5]),), (example("b", [6]),)], scale=0.3)
    assert total(samples, "cross_entropy_weight") == pytest.approx(0.3)


def test_short_and_long_demonstrations_give_one_gradient_in_any_micro_batches():
    units = [(example(f"e{n}", [3 + n % 4] * n),) for n in (1, 6, 2, 5)]
    samples = demonstrations(units)
    whole = step([samples], LossSpec())
    for split in ([[s] for s in samples], [samples[2:], samples[:2]]):
        parts = step(split, LossSpec())
        assert parts.loss == pytest.approx(whole.loss, abs=1e-12)
        assert torch.allclose(parts.gradient, whole.gradient, atol=1e-12)
    logits = torch.log_softmax(bigram(), dim=-1)
    pairs = [
        (a, b)
        for (e,) in units
        for a, b, on in zip(e.ids, e.ids[1:], e.trainable[1:], strict=False)
        if on
    ]
    assert whole.loss == pytest.approx(
        -sum(logits[a, b].item() for a, b in pairs) / len(pairs), abs=1e-6
    )


def test_an_example_with_nothing_to_learn_is_left_out_and_counts_nothing():
    samples = demonstrations([(mute("a"),), (example("b", [6, 6]),)])
    assert [sample.trajectory for sample in samples] == ["b"]
    assert total(samples, "cross_entropy_weight") == pytest.approx(1.0)


def test_a_batch_with_nothing_to_learn_is_refused_with_names_and_exit_code():
    units: list[Unit] = [(mute(f"e{n}"),) for n in range(6)]
    with pytest.raises(NoSignalError, match="e0, e1, e2, e3 and 2 more") as caught:
        demonstrations(units)
    assert caught.value.exit_code == 4
    with pytest.raises(NoSignalError, match="empty batch"):
        demonstrations([])


def test_the_first_token_has_no_prediction_and_is_not_counted():
    whole = example("a", [3, 4, 5], prompt=())
    (sample,) = demonstrations([(whole,)])
    assert sample.trainable.tolist() == [False, True, True]
    assert sample.cross_entropy_weight.tolist() == [0, 0.5, 0.5]
    assert whole.trainable.tolist() == [True, True, True]
    with pytest.raises(NoSignalError):
        demonstrations([(example("b", [3], prompt=()),)])


# --- smoothed labels -----------------------------------------------------------------------


def smoothed(uniform: list[float] | None, cross_entropy: list[float]) -> LossInputs:
    given = inputs([-0.5, -2.0], policy=[0.0, 0.0], cross_entropy=cross_entropy)
    return replace(given, uniform=None if uniform is None else tensor(uniform).requires_grad_())


def test_smoothed_cross_entropy_gives_a_share_of_the_target_to_the_vocabulary():
    given = smoothed([-3.0, -4.0], [0.5, 0.25])
    terms = objective(given, LossSpec(label_smoothing=0.1))
    expected = 0.5 * (0.9 * 0.5 + 0.1 * 3.0) + 0.25 * (0.9 * 2.0 + 0.1 * 4.0)
    assert terms.loss.item() == pytest.approx(expected, abs=1e-12)
    assert given.uniform is not None
    found = torch.autograd.grad(terms.loss, [given.logp, given.uniform])
    assert found[0].tolist() == pytest.approx([-0.45, -0.225])
    assert found[1].tolist() == pytest.approx([-0.05, -0.025])


def test_the_vocabulary_is_not_read_where_nothing_is_imitated_or_smoothed():
    dirty = smoothed([math.nan, -4.0], [0.0, 0.25])
    clean = smoothed([-1.0, -4.0], [0.0, 0.25])
    spec = LossSpec(label_smoothing=0.1)
    assert objective(dirty, spec).loss.item() == objective(clean, spec).loss.item()
    plain = objective(smoothed([math.nan, math.nan], [0.5, 0.25]), LossSpec())
    assert plain.loss.item() == objective(smoothed(None, [0.5, 0.25]), LossSpec()).loss.item()


def test_smoothing_that_cannot_be_computed_is_refused():
    with pytest.raises(ValueError, match="vocabulary"):
        objective(smoothed(None, [0.5, 0.25]), LossSpec(label_smoothing=0.1))
    with pytest.raises(ValueError, match="share"):
        objective(smoothed([-3.0, -4.0], [0.5, 0.25]), LossSpec(label_smoothing=1.5))
    idle = objective(smoothed(None, [0.0, 0.0]), LossSpec(label_smoothing=0.1))
    assert idle.loss.item() == 0


# --- preferences ---------------------------------------------------------------------------


def test_a_pair_weighs_its_share_of_the_units_on_both_sides():
    units = [pair("g", [3, 4], [5], margin=0.5), pair("h", [6], [5, 4])]
    samples = preferences(units, DPO, references(units))
    assert [sample.weight for sample in samples] == [0.5] * 4
    assert [sample.label for sample in samples] == [1, -1, 1, -1]
    assert [sample.group for sample in samples] == ["g", "g", "h", "h"]
    assert [sample.trajectory for sample in samples] == ["g+", "g-", "h+", "h-"]
    assert samples[0].margin == 0.5
    assert not any(sample.cross_entropy_weight.any() for sample in samples)


def test_imitation_of_the_preferred_is_normalised_over_all_preferred_tokens():
    units = [pair("g", [3, 4, 5], [5]), pair("h", [6], [5, 4])]
    samples = preferences(units, replace(SIMPO, sft_weight=0.8))
    assert samples[0].cross_entropy_weight.tolist() == pytest.approx([0, 0, 0.2, 0.2, 0.2])
    assert samples[2].cross_entropy_weight.tolist() == pytest.approx([0, 0, 0.2])
    assert not samples[1].cross_entropy_weight.any()
    assert total(samples, "cross_entropy_weight") == pytest.approx(0.8)


def test_the_reference_goes_by_key_and_only_where_it_is_read():
    units = [pair("g", [3, 4], [5])]
    given = references(units)
    given["g+"][0] = math.nan
    chosen, rejected = preferences(units, DPO, given)
    assert chosen.reference is not None
    assert rejected.reference is not None
    assert chosen.reference[2:].tolist() == given["g+"][2:].tolist()
    assert chosen.reference[:2].tolist() == [0, 0]
    assert preferences(units, SIMPO, given)[0].reference is None


def test_kto_counts_examples_whether_alone_or_in_pairs():
    units = [(example("a", [3], label=1.0),), (example("b", [4], label=-1.0),)]
    alone = preferences(units, KTO, references(units))
    assert [sample.weight for sample in alone] == [0.5, 0.5]
    paired = [pair("g", [3], [4])]
    assert [s.weight for s in preferences(paired, KTO, references(paired))] == [0.5, 0.5]


def test_a_side_with_nothing_to_learn_is_refused_by_name():
    one, other = pair("g", [3, 4], [5])
    silent = replace(other, trainable=np.zeros(len(other.ids), np.bool_))
    with pytest.raises(NoSignalError, match="g-"):
        preferences([(one, silent)], SIMPO)
    with pytest.raises(NoSignalError, match="empty batch"):
        preferences([], SIMPO)


@pytest.mark.parametrize(
    ("unit", "named"),
    [
        ((pair("g", [3], [4])[0],), "group g is no pair"),
        ((*pair("g", [3], [4]), example("x", [5], group="g", label=-1)), "group g is no pair"),
        (tie("g", [3], [4]), "group g is no pair"),
        ((pair("g", [3], [4])[0], pair("h", [3], [4])[1]), "group g, h is no pair"),
        (pair("g", [3, 4], [3, 4]), "two sides of group g are equal"),
    ],
)
def test_a_unit_that_is_no_pair_is_refused_by_its_group(unit: Unit, named: str):
    with pytest.raises(ValueError, match=named):
        preferences([unit], SIMPO)


def test_kto_refuses_an_example_that_is_neither_good_nor_bad():
    with pytest.raises(ValueError, match="group a"):
        preferences([(example("a", [3]),)], KTO, {"a": np.zeros(3, np.float32)})


def test_a_reference_that_is_missing_short_or_not_finite_is_refused_by_key():
    units = [pair("g", [3, 4], [5])]
    with pytest.raises(ValueError, match=r"g\+"):
        preferences(units, DPO)
    with pytest.raises(ValueError, match="g-"):
        preferences(units, DPO, {"g+": np.zeros(4, np.float32)})
    with pytest.raises(ValueError, match="4 tokens"):
        preferences(units, DPO, {"g+": np.zeros(3, np.float32), "g-": np.zeros(3, np.float32)})
    bad = references(units)
    bad["g-"][-1] = math.inf
    with pytest.raises(NumericalError, match="g-"):
        preferences(units, DPO, bad)


# --- mismatched ----------------------------------------------------------------------------


def test_each_prompt_gets_the_completion_before_it_and_the_first_the_last():
    units = [
        (example("a", [3, 4], prompt=[1], label=1.0),),
        (example("b", [5], prompt=[2, 1], label=-1.0),),
        (example("c", [6, 6, 6], prompt=[2], label=1.0),),
    ]
    samples = mismatched(units)
    assert [s.ids.tolist() for s in samples] == [[1, 6, 6, 6], [2, 1, 3, 4], [2, 5]]
    assert [s.trainable.tolist() for s in samples][1] == [False, False, True, True]
    assert [s.trajectory for s in samples] == ["a+c", "b+a", "c+b"]
    assert not any(s.weight or s.cross_entropy_weight.any() for s in samples)


def test_the_two_of_a_pair_are_never_each_others_mismatch():
    units = [pair("g", [3], [4]), pair("h", [5], [6])]
    found = [sample.trajectory for sample in mismatched(units)]
    assert found == ["g++h+", "g-+h-", "h++g+", "h-+g-"]


def test_one_unit_has_no_mismatch():
    assert mismatched([(example("a", [3], label=1.0),)]) == ()
    assert mismatched([pair("g", [3], [4])]) == ()


# --- rankings ------------------------------------------------------------------------------


def test_pairs_and_ties_are_ranked_with_their_share_and_margin():
    units = [pair("g", [3], [4], margin=1.5), tie("t", [5], [6])]
    samples = rankings(units, RankingLoss(margins=True))
    assert [sample.weight for sample in samples] == [0.5] * 4
    assert [sample.label for sample in samples] == [1, -1, 0, 0]
    assert samples[0].margin == 1.5


def test_steps_get_their_targets_where_they_are_marked():
    nan = math.nan
    unit = (example("a", [3, 4, 5]), example("b", [6]))
    targets = {
        "a": np.array([nan, 0.0, nan, 1.0, 0.25], np.float32),  # the prompt ends no step
        "b": np.array([nan, nan, 0.0], np.float32),
    }
    samples = rankings([unit], RankingLoss(process=True), targets)
    assert samples[0].advantage.tolist() == [0, 0, 0, 1.0, 0.25]
    assert samples[0].policy_weight.tolist() == pytest.approx([0, 0, 0, 1 / 3, 1 / 3])
    assert samples[1].policy_weight.tolist() == pytest.approx([0, 0, 1 / 3])


def test_without_marked_steps_every_token_has_the_outcome_as_its_target():
    units = [(example("a", [3, 4], score=0.75),), pair("g", [5], [6])]
    samples = rankings(units, RankingLoss(process=True))
    assert [s.advantage[s.trainable].tolist() for s in samples] == [[0.75, 0.75], [1.0], [0.0]]
    assert total(samples, "policy_weight") == pytest.approx(1.0)


def test_steps_that_cannot_be_read_are_refused_by_key():
    process = RankingLoss(process=True)
    unit = (example("a", [3, 4]),)
    with pytest.raises(ValueError, match="steps of a"):
        rankings([unit], process, {})
    with pytest.raises(ValueError, match="4 tokens"):
        rankings([unit], process, {"a": np.zeros(3, np.float32)})
    with pytest.raises(ValueError, match="outside"):
        rankings([unit], process, {"a": np.full(4, 2.0, np.float32)})
    with pytest.raises(NoSignalError, match="a"):
        rankings([unit], process, {"a": np.full(4, math.nan, np.float32)})


def test_the_order_of_units_changes_no_sample():
    units = random_pairs(4)
    forward = preferences(units, SIMPO)
    backward = preferences(units[::-1], SIMPO)
    by_key = {sample.trajectory: sample for sample in backward}
    for sample in forward:
        other = by_key[sample.trajectory]
        assert sample.weight == other.weight
        assert sample.ids.tolist() == other.ids.tolist()
