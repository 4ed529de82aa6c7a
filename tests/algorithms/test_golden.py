"""Losses and gradients of a tiny model equal those that TRL computed on it, to 1e-5 in fp32.

`benchmarks/peers/golden_losses.py` recorded them. The value loss of a critic has no counterpart
there (that version has no PPO trainer): `test_critic.py` holds it to its formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from golden_support import CASES, DATA, RECORD, deviation, golden_model, measured, score
from headrace.algorithms.aggregation import token_weights
from headrace.algorithms.losses import LossInputs, objective
from headrace.algorithms.preferences import kto_baseline, preference
from headrace.algorithms.ranking import ranking
from headrace.algorithms.recorded import demonstrations, mismatched, preferences, rankings
from headrace.protocols import LossSpec, PreferenceLoss, RankingLoss
from headrace.recipe import Aggregation
from headrace.types import Sample
from recorded_support import (
    Unit,
    example,
    flat,
    numbered,
    preference_inputs,
    ranking_inputs,
)

CLOSE = 1e-5


def recorded_pairs() -> list[Unit]:
    return [
        (
            example(
                f"{number}+",
                row["chosen"],
                prompt=row["prompt"],
                group=str(number),
                label=1.0,
                margin=row["margin"],
            ),
            example(
                f"{number}-", row["rejected"], prompt=row["prompt"], group=str(number), label=-1.0
            ),
        )
        for number, row in enumerate(DATA["pairs"])
    ]


def supervised(samples: Sequence[Sample], model: Any, spec: LossSpec) -> Tensor:
    found = score(model, samples)
    zeros = torch.zeros(len(found.logp))
    sequence, _ = numbered(samples)
    inputs = LossInputs(
        logp=found.logp,
        entropy=None,
        behaviour=zeros,
        proximal=None,
        reference=None,
        advantage=zeros,
        policy_weight=zeros,
        cross_entropy_weight=flat(samples, "cross_entropy_weight").float(),
        kl_weight=zeros,
        entropy_weight=zeros,
        sequence=sequence,
        uniform=found.uniform,
    )
    return objective(inputs, spec).loss


def test_the_record_says_what_made_it():
    assert RECORD["versions"]["trl"].startswith("1.16")


# --- supervised ----------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["sft", "sft_smoothed", "sft_accumulated"])
def test_supervised_fine_tuning_equals_trl(case: str):
    model = golden_model("policy")
    chosen = [(unit[0],) for unit in recorded_pairs()]
    spec = LossSpec(label_smoothing=CASES[case]["settings"].get("label_smoothing", 0.0))
    loss = supervised(demonstrations(chosen), model, spec)
    assert deviation(case, loss, dict(model.named_parameters())) < CLOSE


# --- preferences ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "spec"),
    [
        ("dpo", PreferenceLoss(beta=0.4)),
        ("dpo_forward_kl", PreferenceLoss(beta=0.4, divergence="forward_kl")),
        ("dpo_length", PreferenceLoss(beta=0.4, length_normalised=True)),
        ("dpo_smoothed", PreferenceLoss(beta=0.4, label_smoothing=0.15)),
        ("dpo_sft", PreferenceLoss(beta=0.4, sft_weight=0.5)),
        ("ipo", PreferenceLoss(loss="ipo", beta=0.4)),
        ("simpo", PreferenceLoss(loss="simpo", beta=2.0, target_margin=0.6)),
        (
            "simpo_smoothed_sft",
            PreferenceLoss(
                loss="simpo", beta=2.0, target_margin=0.6, label_smoothing=0.15, sft_weight=0.5
            ),
        ),
    ],
)
def test_direct_preference_equals_trl(case: str, spec: PreferenceLoss):
    model, units = golden_model("policy"), recorded_pairs()
    reference = None
    if spec.needs_reference:
        reference = measured(golden_model("reference"), demonstrations(units))
    samples = preferences(units, spec, reference)
    loss = preference(preference_inputs(samples, score(model, samples).logp), spec).loss
    assert deviation(case, loss, dict(model.named_parameters())) < CLOSE


def test_orpo_with_imitation_of_prompt_and_answer_equals_trl():
    model, units = golden_model("policy"), recorded_pairs()
    spec = PreferenceLoss(loss="orpo", beta=CASES["orpo"]["settings"]["beta"])
    samples = preferences(units, spec)
    loss = preference(preference_inputs(samples, score(model, samples).logp), spec).loss
    whole = [(example("e", [*r["prompt"], *r["chosen"]], prompt=()),) for r in DATA["pairs"]]
    loss = loss + supervised(demonstrations(whole), model, LossSpec())
    assert deviation("orpo", loss, dict(model.named_parameters())) < CLOSE


@pytest.mark.parametrize(
    ("case", "names"),
    [("kto", ("policy", "reference")), ("kto_exchanged", ("reference", "policy"))],
)
def test_kto_with_its_baseline_equals_trl(case: str, names: tuple[str, str]):
    model, frozen = (golden_model(name) for name in names)
    units = [
        (
            example(
                str(number),
                row["completion"],
                prompt=row["prompt"],
                label=1.0 if row["label"] else -1.0,
            ),
        )
        for number, row in enumerate(DATA["alone"])
    ]
    crossed = mismatched(units)
    now, then = measured(model, crossed), measured(frozen, crossed)
    gaps = [now[s.trajectory] - then[s.trajectory] for s in crossed]
    baseline = kto_baseline(
        [float(g[s.trainable].sum()) for g, s in zip(gaps, crossed, strict=True)]
    )
    assert baseline == pytest.approx(CASES[case]["baseline"], abs=CLOSE)
    spec = PreferenceLoss(loss="kto", **CASES[case]["settings"])
    samples = preferences(units, spec, measured(frozen, demonstrations(units)))
    inputs = preference_inputs(samples, score(model, samples).logp)
    loss = preference(inputs, spec, kto_baseline=baseline).loss
    assert deviation(case, loss, dict(model.named_parameters())) < CLOSE


def test_one_of_the_kto_records_has_a_baseline_above_zero():
    assert sorted(CASES[case]["baseline"] > 0.01 for case in ("kto", "kto_exchanged")) == [
        False,
        True,
    ]


# --- reward --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["reward", "reward_margins_centred"])
def test_bradley_terry_equals_trl(case: str):
    model = golden_model("policy")
    settings = CASES[case]["settings"]
    spec = RankingLoss(margins=settings["margins"], centre=settings["centre"] or 0.0)
    samples = rankings(recorded_pairs(), spec)
    head = torch.tensor(DATA["score_weight"]).requires_grad_()
    scores: list[Tensor] = []
    for sample in samples:
        ids = torch.tensor(sample.ids, dtype=torch.int64)
        states = model.model(ids[None]).last_hidden_state[0]
        scores.append((states @ head)[torch.from_numpy(sample.trainable)])
    loss = ranking(ranking_inputs(samples, torch.cat(scores)), spec).loss
    body = {f"model.{name}": parameter for name, parameter in model.model.named_parameters()}
    assert deviation(case, loss, {**body, "score.weight": head}) < CLOSE


# --- policy gradient -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "aggregation", "spec"),
    [
        ("grpo", "sequence_mean_token_mean", LossSpec(clip_high=0.28)),
        ("grpo_kl", "sequence_mean_token_mean", LossSpec(clip_high=0.28, kl="k3")),
        ("dapo", "token_mean", LossSpec(clip_high=0.28)),
        ("dr_grpo", "constant", LossSpec(clip_high=0.28)),
        (
            "gspo",
            "sequence_mean_token_mean",
            LossSpec(ratio="sequence", clip_low=0.03, clip_high=0.04),
        ),
        ("cispo", "token_mean", LossSpec(clip="cispo", clip_low=1.0, clip_high=0.2)),
    ],
)
def test_policy_gradients_equal_trl(case: str, aggregation: Aggregation, spec: LossSpec):
    model, rows = golden_model("policy"), DATA["played"]
    units = [(example(str(n), r["completion"], prompt=r["prompt"]),) for n, r in enumerate(rows)]
    samples = demonstrations(units)
    lengths = [len(row["completion"]) for row in rows]
    weights = token_weights(
        lengths,
        [str(row["prompt"]) for row in rows],
        aggregation,
        max_new_tokens=DATA["max_new_tokens"],
    )

    def spread(values: Sequence[float]) -> Tensor:
        return torch.tensor(values).repeat_interleave(torch.tensor(lengths))

    def joined(name: str) -> Tensor:
        return torch.cat([torch.tensor(row) for row in DATA[name]])

    zeros = torch.zeros(sum(lengths))
    weight = spread(weights)
    inputs = LossInputs(
        logp=score(model, samples).logp,
        entropy=None,
        behaviour=joined("old_per_token_logps"),
        proximal=None,
        reference=joined("ref_per_token_logps"),
        advantage=spread([row["advantage"] for row in rows]),
        policy_weight=weight,
        cross_entropy_weight=zeros,
        kl_weight=CASES[case]["settings"]["beta"] * weight,
        entropy_weight=zeros,
        sequence=numbered(samples)[0],
    )
    loss = objective(inputs, spec).loss
    if case == "grpo_kl":
        # Here a sampled token's KL is weighed by its off-policy ratio, there it is not; without
        # a policy weight a token counts as not sampled.
        parts = replace(inputs, kl_weight=zeros), replace(inputs, policy_weight=zeros)
        loss = objective(parts[0], spec).loss + objective(parts[1], spec).loss
    assert deviation(case, loss, dict(model.named_parameters())) < CLOSE
