"""Preference losses in the learner: pairs stay whole, prompts are shared, nothing is silent."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import logsigmoid

from headrace.errors import NoSignalError, NumericalError, UsageError
from headrace.policy.engine import TorchPolicy
from headrace.policy.learner import TorchLearner
from headrace.policy.packed import PackedAttention
from headrace.policy.tree import chunks, grow
from headrace.protocols import PreferenceLoss, PreferenceReport
from headrace.recipe import LearnerSpec, LoraSpec, ModelSpec
from headrace.types import Ids, Sample
from pairs_support import counted_tokens, gradients, same_gradient, some_pairs
from policy_support import tiny_policy

SPEC = LearnerSpec(learning_rate=1e-3)
DPO = PreferenceLoss(beta=0.2)
LOSSES = [
    PreferenceLoss(beta=0.2, sft_weight=0.5, label_smoothing=0.1),
    PreferenceLoss(loss="dpo", divergence="forward_kl"),
    PreferenceLoss(loss="ipo", beta=0.3),
    PreferenceLoss(loss="kto", desirable_weight=1.5),
    PreferenceLoss(loss="orpo", beta=0.5, sft_weight=1.0),
    PreferenceLoss(loss="simpo", beta=2.0, target_margin=0.5),
]


def learner(policy: TorchPolicy, spec: LearnerSpec = SPEC) -> TorchLearner:
    return TorchLearner(policy, spec, total_steps=10)


class Result:
    def __init__(self, report: PreferenceReport, grad: Tensor) -> None:
        self.report, self.grad = report, grad

    def same_as(self, other: Result) -> bool:
        numbers = ("loss", "accuracy", "margin", "chosen_reward", "rejected_logp", "tokens")
        close = all(
            getattr(self.report, name)
            == pytest.approx(getattr(other.report, name), rel=1e-4, abs=1e-4)
            for name in numbers
        )
        return close and same_gradient(self.grad, other.grad)


def result_of(samples: list[Sample], loss: PreferenceLoss, **changes: object) -> Result:
    policy = tiny_policy()
    report = learner(policy, SPEC.model_copy(update=changes)).prefer(samples, loss)
    return Result(report, gradients(policy.trainable()))


# --- one denominator -----------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["tree", "padded"])
@pytest.mark.parametrize("micro_tokens", [1, 45, 10_000])
def test_loss_and_gradient_do_not_depend_on_layout_or_micro_batches(
    layout: str, micro_tokens: int
) -> None:
    samples = some_pairs(cross_entropy=0.01)
    whole = result_of(samples, LOSSES[0], layout="padded", micro_tokens=10_000)
    assert result_of(samples, LOSSES[0], layout=layout, micro_tokens=micro_tokens).same_as(whole)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.loss}-{loss.divergence}")
def test_every_loss_is_the_same_pair_by_pair_and_in_any_order(loss: PreferenceLoss) -> None:
    samples = some_pairs(cross_entropy=0.01)
    whole = result_of(samples, loss)
    mixed = [samples[i] for i in (3, 0, 5, 2, 4, 1)]
    assert result_of(mixed, loss, micro_tokens=1).same_as(whole)


def test_accumulated_calls_are_one_call() -> None:
    samples = some_pairs()
    policy = tiny_policy()
    one = learner(policy)
    losses = [one.prefer(samples[i : i + 2], DPO).loss for i in (0, 2, 4)]
    whole = result_of(samples, DPO)
    assert sum(losses) == pytest.approx(whole.report.loss, abs=1e-5)
    assert same_gradient(gradients(policy.trainable()), whole.grad)


def test_what_stands_in_a_masked_slot_changes_nothing() -> None:
    clean = some_pairs()
    poisoned = [
        replace(s, reference=np.where(s.trainable, s.reference, np.nan).astype(np.float32))
        for s in clean
        if s.reference is not None
    ]
    assert result_of(poisoned, DPO).same_as(result_of(clean, DPO))


def test_dpo_is_what_plain_autograd_makes_of_its_formula() -> None:
    samples = some_pairs()
    policy = tiny_policy()
    gaps: dict[str, Tensor] = {}
    for sample in samples:
        ids = torch.from_numpy(sample.ids).long()
        logps = policy.model(input_ids=ids[None]).logits[0].log_softmax(dim=-1)
        places = np.flatnonzero(sample.trainable)
        reference = torch.from_numpy(sample.reference[places])  # pyright: ignore[reportOptionalSubscript]
        ratio = (logps[places - 1, ids[places]] - reference).sum()
        gaps[sample.group] = gaps.get(sample.group, torch.zeros(())) + sample.label * ratio
    expected = sum((-logsigmoid(0.2 * gap) / 3 for gap in gaps.values()), torch.zeros(()))
    expected.backward()
    found = result_of(samples, DPO)
    assert found.report.loss == pytest.approx(expected.item(), abs=1e-5)
    assert same_gradient(found.grad, gradients(policy.trainable()))


# --- pairs stay whole ----------------------------------------------------------------------


def test_the_prompt_of_a_pair_is_computed_once() -> None:
    samples = some_pairs(1)
    shared = int((~samples[0].trainable).sum())
    policy = tiny_policy()
    with counted_tokens(policy) as seen:
        learner(policy, SPEC.model_copy(update={"layout": "tree"})).prefer(samples, DPO)
    assert seen == [sum(len(s.ids) for s in samples) - shared]


def test_a_pair_larger_than_the_budget_is_one_pass_and_small_pairs_share_one() -> None:
    samples = some_pairs(4)
    policy = tiny_policy()
    spec = SPEC.model_copy(update={"layout": "tree"})
    with counted_tokens(policy) as seen:
        learner(policy, spec.model_copy(update={"micro_tokens": 1})).prefer(samples, DPO)
    assert len(seen) == 4
    with counted_tokens(policy) as seen:
        learner(policy, spec.model_copy(update={"micro_tokens": 60})).prefer(samples, DPO)
    assert len(seen) == 2
    assert max(seen) <= 60


sequences = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=5).map(lambda x: np.array(x, np.int32)),
    min_size=2,
    max_size=8,
)


@given(sequences, st.integers(1, 12), st.booleans())
def test_chunks_never_split_a_unit_and_keep_the_budget(
    rows: list[Ids], budget: int, shared: bool
) -> None:
    half = len(rows) // 2
    units = [[i, len(rows) - 1 - i] for i in range(half)]
    units += [[half]] if len(rows) % 2 else []
    held: list[int] = []
    for members, tree in chunks(rows, budget, units, shared=shared):
        inside = [unit for unit in units if unit[0] in members]
        assert sorted(members) == sorted(i for unit in inside for i in unit)
        assert len(tree) <= budget or len(inside) == 1
        PackedAttention(tree, torch.device("cpu"))  # refuses what is not in preorder
        for member, path in zip(members, tree.paths, strict=True):
            assert tree.ids[path].tolist() == rows[member].tolist()
        if not shared:
            assert len(tree) == sum(len(rows[member]) for member in members)
        held += members
    assert sorted(held) == list(range(len(rows)))


@given(sequences, st.integers(1, 12), st.booleans())
def test_a_chunk_ends_only_where_the_next_sequence_does_not_fit(
    rows: list[Ids], budget: int, shared: bool
) -> None:
    cut = [members for members, _ in chunks(rows, budget, shared=shared)]
    for one, following in pairwise(cut):
        more = [rows[member] for member in [*one, following[0]]]
        assert len(grow(more, shared=shared)) > budget


# --- the baseline of KTO -------------------------------------------------------------------


def test_kto_takes_its_baseline_from_mismatched_samples_without_a_gradient() -> None:
    samples = some_pairs()
    loss = PreferenceLoss(loss="kto", beta=0.2)
    policy = tiny_policy()
    one = learner(policy)
    logps = one.logprobs(samples, which="current")
    shifted = [
        replace(s, reference=(p - np.where(s.trainable, 0.25, 0)).astype(np.float32), weight=0.0)
        for s, p in zip(samples, logps, strict=True)
    ]
    baseline = 0.25 * np.mean([int(s.trainable.sum()) for s in samples])
    expected = 0.0
    for sample, logp in zip(samples, logps, strict=True):
        assert sample.reference is not None
        ratio = float((logp - sample.reference)[sample.trainable].sum())
        expected += sample.weight / (1 + np.exp(0.2 * sample.label * (ratio - baseline)))
    report = one.prefer(samples, loss, mismatched=shifted)
    assert report.loss == pytest.approx(expected, abs=1e-4)
    assert report.units == 6
    assert report.loss != pytest.approx(result_of(samples, loss).report.loss, abs=1e-4)


# --- learning ------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [None, LoraSpec(rank=4)])
def test_a_few_steps_make_the_policy_prefer_what_it_should(lora: LoraSpec | None) -> None:
    policy = tiny_policy(spec=ModelSpec(lora=lora))
    policy.freeze_reference()
    one = learner(policy, SPEC.model_copy(update={"learning_rate": 1e-2}))
    bare = some_pairs()
    reference = one.logprobs(bare, which="reference")
    samples = [replace(s, reference=r) for s, r in zip(bare, reference, strict=True)]
    first = one.prefer(samples, DPO)
    assert first.loss == pytest.approx(np.log(2), abs=1e-5)
    assert first.margin == pytest.approx(0.0, abs=1e-4)
    for _ in range(4):
        one.optim_step()
        one.prefer(samples, DPO)
    report = one.prefer(samples, DPO)
    assert report.accuracy == 1.0
    assert report.margin > 0.1
    assert report.loss < first.loss - 0.05


# --- refusals ------------------------------------------------------------------------------


def test_a_batch_without_a_trainable_token_is_refused() -> None:
    bare = [replace(s, trainable=np.zeros(len(s.ids), np.bool_)) for s in some_pairs()]
    with pytest.raises(NoSignalError, match="no trainable token"):
        learner(tiny_policy()).prefer(bare, DPO)


def test_a_pair_with_an_empty_side_is_refused_by_name() -> None:
    samples = some_pairs()
    samples[1] = replace(samples[1], trainable=np.zeros(len(samples[1].ids), np.bool_))
    with pytest.raises(UsageError, match="no trainable token") as raised:
        learner(tiny_policy()).prefer(samples, DPO)
    assert samples[1].trajectory in raised.value.where


def test_a_reference_that_is_not_finite_is_refused_by_name() -> None:
    samples = some_pairs()
    bad = replace(samples[0], reference=np.full(len(samples[0].ids), np.nan, np.float32))
    alone = SPEC.model_copy(update={"micro_tokens": 1})
    with pytest.raises(NumericalError, match="nan") as raised:
        learner(tiny_policy(), alone).prefer([bad, *samples[1:]], DPO)
    assert bad.trajectory in raised.value.where


def test_a_missing_reference_is_refused() -> None:
    samples = [replace(s, reference=None) for s in some_pairs()]
    with pytest.raises(ValueError, match="needs reference"):
        learner(tiny_policy()).prefer(samples, DPO)


def test_half_a_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="no pair"):
        learner(tiny_policy()).prefer(some_pairs()[1:], DPO)


def test_a_pair_of_two_temperatures_is_refused() -> None:
    samples = some_pairs(1)
    with pytest.raises(ValueError, match="several temperatures"):
        learner(tiny_policy()).prefer([samples[0], replace(samples[1], temperature=0.5)], DPO)
