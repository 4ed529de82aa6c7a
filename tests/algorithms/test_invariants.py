"""What must never change a loss or a gradient: splits, order, ranks, and what is masked."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorithms_support import (
    LAW,
    VOCABULARY,
    bigram,
    flatten,
    inputs,
    random_step,
    step,
    tensor,
    with_proximal,
)
from headrace.algorithms import assemble, credit
from headrace.algorithms.losses import LossInputs, LossTerms, objective
from headrace.recipe import PRESETS, AlgorithmSpec
from headrace.types import Sample

VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"preset": name} for name in PRESETS},
    "dual clip": {"preset": "dapo", "dual_clip": 3.0},
    "prompt mean": {"aggregation": "prompt_mean"},
    "kl and entropy": {"kl": {"place": "loss"}, "entropy": {"coefficient": 0.01}},
    "k3": {"kl": {"place": "loss", "estimator": "k3"}},
    "kl in the reward": {"preset": "rloo", "kl": {"place": "reward", "estimator": "k1"}},
    "token tis": {"anchor": "proximal", "correction": "token_tis"},
    "icepop": {"anchor": "proximal", "correction": "token_mask", "correction_low": 0.8},
    "sequence tis": {"preset": "gspo", "anchor": "proximal", "correction": "sequence_tis"},
    "sequence mask": {"anchor": "proximal", "correction": "sequence_mask", "correction_low": 0.9},
}


def batch_of(spec: AlgorithmSpec, seed: int) -> list[Sample]:
    rows, reference = random_step(seed)
    in_use = reference if spec.kl.place != "none" else None
    result = credit(
        rows,
        spec,
        max_new_tokens=8,
        reference=in_use,
        values=None if spec.critic is None else reference,  # any numbers of that shape
        kl_coefficient=spec.kl.coefficient if in_use else 0.0,
        entropy_coefficient=spec.entropy.coefficient,
    )
    (batch,) = result.batches
    return [with_proximal(sample, seed + i) for i, sample in enumerate(batch)]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", [0, 1])
def test_any_split_order_and_number_of_ranks_give_one_loss_and_gradient(variant: str, seed: int):
    spec = AlgorithmSpec.model_validate(VARIANTS[variant])
    batch = batch_of(spec, seed)
    whole = step([batch], spec.loss())
    assert whole.gradient.abs().max() > 1e-6
    draw = np.random.default_rng(seed)
    for micro, ranks in [(1, 1), (3, 1), (2, 2), (1, 3), (4, 4)]:
        shuffled = [batch[i] for i in draw.permutation(len(batch))]
        split = [shuffled[i : i + micro] for i in range(0, len(shuffled), micro)]
        parts = step(split, spec.loss(), ranks=ranks)
        assert parts.loss == pytest.approx(whole.loss, abs=1e-12)
        assert torch.allclose(parts.gradient, whole.gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
def test_samples_without_gradient_may_stay_or_go(variant: str):
    spec = AlgorithmSpec.model_validate(VARIANTS[variant])
    batch = batch_of(spec, 2)
    idle = [replace(s, advantage=np.zeros_like(s.advantage)) for s in batch]
    if spec.kl.place == "loss":
        idle = [replace(s, kl_weight=s.kl_weight * 0, entropy_weight=s.ids * 0.0) for s in idle]
    kept, gone = step([[*batch, *idle]], spec.loss()), step([batch], spec.loss())
    assert torch.allclose(kept.gradient, gone.gradient, rtol=1e-12, atol=1e-15)
    assert kept.loss == pytest.approx(gone.loss, abs=1e-12)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_ratio_is_exactly_one_before_the_first_update(preset: str):
    spec = AlgorithmSpec(preset=preset)
    table = bigram().requires_grad_()
    samples = batch_of(spec, 3)
    given = flatten(samples, table)
    now = given.logp.detach()
    terms = objective(replace(given, behaviour=now, proximal=now), spec.loss())
    assert terms.ratio_sum.item() == terms.policy_tokens.item() == len(given.logp)
    assert terms.ratio_max.item() == 1.0
    assert terms.clipped.item() == 0
    assert terms.kl_behaviour_sum.item() == 0
    assert terms.corrected.item() == 0
    assert terms.weight_sum.item() == terms.weight_square_sum.item() == len(given.logp)


@pytest.mark.parametrize("preset", PRESETS)
def test_on_policy_every_preset_is_the_plain_policy_gradient(preset: str):
    spec = AlgorithmSpec(preset=preset)
    table = bigram().requires_grad_()
    given = flatten(batch_of(spec, 4), table)
    now = given.logp.detach()
    loss = objective(replace(given, behaviour=now, proximal=now), spec.loss()).loss
    (found,) = torch.autograd.grad(loss, table, retain_graph=True)
    plain = -(given.policy_weight * given.advantage * given.logp).sum()
    (expected,) = torch.autograd.grad(plain, table)
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)


# --- what is masked ------------------------------------------------------------------------


def four_tokens() -> LossInputs:
    given = inputs(
        [-1.0, -0.5, -2.0, -0.3],
        behaviour=[-1.1, -0.7, -1.5, -0.3],
        proximal=[-1.05, -0.6, -1.8, -0.35],
        reference=[-1.2, -0.4, -2.2, -0.1],
        advantage=[1.0, 1.0, -1.0, -1.0],
        entropy=[0.5, 0.6, 0.7, 0.8],
        policy=[0.25, 0.25, 0.25, 0.25],
        cross_entropy=[0.3, 0.3, 0.3, 0.3],
        kl=[0.1, 0.1, 0.1, 0.1],
        entropy_weight=[0.01] * 4,
        sequence=[0, 0, 1, 1],
    )
    return replace(given, uniform=tensor([-3.0, -2.5, -4.0, -3.5]).requires_grad_())


def values(terms: LossTerms) -> dict[str, float]:
    scalars = {f.name: getattr(terms, f.name) for f in fields(terms) if f.name != "components"}
    return {name: value.item() for name, value in {**scalars, **terms.components}.items()}


GRADED = ("logp", "entropy", "uniform")
WEIGHTS = ("policy_weight", "cross_entropy_weight", "kl_weight", "entropy_weight")


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("variant", VARIANTS)
def test_junk_in_a_masked_slot_changes_nothing(variant: str, junk: float):
    spec = AlgorithmSpec.model_validate({"kl": {"place": "loss"}, **VARIANTS[variant]}).loss()
    if spec.kl == "none":
        spec = replace(spec, kl="k2")
    spec = replace(spec, label_smoothing=0.1)
    clean = four_tokens()
    dirty: dict[str, torch.Tensor] = {}
    for field in fields(LossInputs):
        value = getattr(clean, field.name)
        if field.name in WEIGHTS:
            added = torch.zeros(1, dtype=torch.float64)
        elif field.name == "sequence":
            added = torch.ones(1, dtype=torch.int64)
        else:
            added = torch.full((1,), junk, dtype=torch.float64)
        # the masked slot lies between the tokens of the sequence that it belongs to
        extended = torch.cat([value.detach()[:3], added, value.detach()[3:]])
        dirty[field.name] = extended.requires_grad_(field.name in GRADED)
    masked = LossInputs(**dirty)
    terms, expected = objective(masked, spec), objective(clean, spec)
    assert values(terms) == pytest.approx(values(expected), abs=1e-15)
    for name in GRADED:
        found = torch.autograd.grad(terms.loss, dirty[name], retain_graph=True)[0].tolist()
        plain = torch.autograd.grad(expected.loss, getattr(clean, name), retain_graph=True)[0]
        assert found.pop(3) == 0.0
        assert found == pytest.approx(plain.tolist(), abs=1e-15)


def test_junk_in_a_live_slot_is_not_hidden():
    given = inputs([-1.0, math.nan])
    assert math.isnan(objective(given, AlgorithmSpec().loss()).loss.item())


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_micro_batch_in_which_nothing_counts_is_zero_and_connected(variant: str):
    spec = AlgorithmSpec.model_validate(VARIANTS[variant]).loss()
    nothing = inputs([], proximal=[], reference=[], entropy=[])
    idle = inputs([-1.0], proximal=[-1.0], reference=[-1.0], entropy=[0.5], policy=[0.0])
    for tokens in (nothing, idle):
        terms = objective(tokens, spec)
        assert set(values(terms).values()) == {0.0}
        (found,) = torch.autograd.grad(terms.loss, tokens.logp)
        assert not found.any()


@LAW
@given(seed=st.integers(0, 500))
def test_only_what_the_policy_wrote_is_trained(seed: int):
    rows, _ = random_step(seed)
    for row in rows:
        sample = assemble(row)
        written = np.concatenate([turn.ids[turn.sampled] for turn in row.turns])
        assert sample.ids[sample.trainable].tolist() == written.tolist()
        assert (sample.ids < VOCABULARY).all()
