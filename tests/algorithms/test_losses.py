"""Values and gradients of the loss, token by token, against hand calculation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from algorithms_support import gradient, inputs, tensor
from headrace.algorithms.losses import LossInputs, objective
from headrace.protocols import LossSpec

DAPO = LossSpec(clip_low=0.2, clip_high=0.28)


def at_ratio(ratio: float, advantage: float) -> LossInputs:
    return inputs([-1.0], behaviour=[-1.0 - math.log(ratio)], advantage=[advantage])


# --- clipping ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "moves"),
    [
        (1.0, 1.0, -1.0, True),
        (1.25, 2.0, -2.5, True),  # inside 1.28
        (1.5, 2.0, -2.56, False),  # cut to 1.28
        (0.5, 2.0, -1.0, True),  # pessimistic: the lower ratio counts
        (0.9, -2.0, 1.8, True),
        (0.5, -2.0, 1.6, False),  # cut to 0.8
        (1.5, -2.0, 3.0, True),  # pessimistic: not cut
        (5.0, -2.0, 10.0, True),
    ],
)
def test_clip_higher_piece_by_piece(ratio: float, advantage: float, loss: float, moves: bool):
    given = at_ratio(ratio, advantage)
    terms = objective(given, DAPO)
    assert terms.loss.item() == pytest.approx(loss, abs=1e-12)
    assert terms.clipped.item() == (not moves)
    expected = -ratio * advantage if moves else 0.0
    assert gradient(given, DAPO) == pytest.approx([expected], abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "moves"),
    [(2.9, -1.0, 2.9, True), (5.0, -1.0, 3.0, False), (5.0, 1.0, -1.28, False)],
)
def test_dual_clip_bounds_the_loss_of_bad_tokens(
    ratio: float, advantage: float, loss: float, moves: bool
):
    spec = replace(DAPO, dual_clip=3.0)
    given = at_ratio(ratio, advantage)
    terms = objective(given, spec)
    assert terms.loss.item() == pytest.approx(loss, abs=1e-12)
    assert terms.clipped.item() == (not moves)
    assert bool(gradient(given, spec)[0]) is moves


def test_without_a_clip_the_ratio_is_the_weight():
    given = at_ratio(4.0, 0.5)
    spec = LossSpec(clip="none")
    terms = objective(given, spec)
    assert terms.loss.item() == pytest.approx(-2.0, abs=1e-12)
    assert terms.clipped.item() == 0
    assert gradient(given, spec) == pytest.approx([-2.0], abs=1e-12)


@pytest.mark.parametrize(("ratio", "cut"), [(0.05, 0.1), (1.5, 1.5), (7.0, 5.0)])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_cispo_cuts_the_weight_and_keeps_the_gradient(ratio: float, cut: float, advantage: float):
    spec = LossSpec(clip="cispo", clip_low=0.9, clip_high=4.0)
    given = at_ratio(ratio, advantage)
    terms = objective(given, spec)
    assert terms.loss.item() == pytest.approx(-cut * advantage * -1.0, abs=1e-12)
    assert terms.clipped.item() == (cut != ratio)
    assert gradient(given, spec) == pytest.approx([-cut * advantage], abs=1e-12)


def test_an_absurd_ratio_stays_finite():
    given = inputs([0.0, -1000.0], behaviour=[-1000.0, 0.0], advantage=[-1.0, 1.0])
    terms = objective(given, LossSpec(clip="none"))
    assert terms.ratio_max.item() == pytest.approx(math.exp(20))
    assert terms.loss.item() == pytest.approx(math.exp(20) - math.exp(-20))
    assert all(math.isfinite(g) for g in gradient(given, LossSpec(clip="none")))


# --- sequence ratio (GSPO) -----------------------------------------------------------------

GSPO = LossSpec(ratio="sequence", clip_low=0.1, clip_high=0.15)


def test_the_token_form_of_gspo_has_the_gradient_of_the_sequence_objective():
    logp = [-1.0, -0.5, -2.0, -0.7, -0.2, -1.1]
    behaviour = [-1.1, -0.6, -1.9, -0.6, -0.5, -0.9]
    sequence, lengths = [0, 0, 0, 1, 1, 2], [3, 3, 3, 2, 2, 1]
    advantages = [1.0, -0.5, 2.0]
    given = inputs(
        logp,
        behaviour=behaviour,
        advantage=[advantages[i] for i in sequence],
        policy=[1 / (3 * n) for n in lengths],
        sequence=sequence,
    )
    leaf = tensor(logp).requires_grad_()
    gap = leaf - tensor(behaviour)
    ratios = torch.stack([gap[:3].mean(), gap[3:5].mean(), gap[5:].mean()]).exp()
    values = tensor(advantages)
    clipped = ratios.clamp(0.9, 1.15)
    loss = -torch.minimum(ratios * values, clipped * values).mean()
    assert objective(given, GSPO).loss.item() == pytest.approx(loss.item(), abs=1e-12)
    assert gradient(given, GSPO) == pytest.approx(
        torch.autograd.grad(loss, leaf)[0].tolist(), abs=1e-12
    )


def test_a_sequence_is_clipped_as_a_whole():
    # log-ratios 0.6 and -0.2: mean 0.2 is above 1.15 although one token is below 1
    given = inputs([-1.0, -1.0], behaviour=[-1.6, -0.8])
    terms = objective(given, GSPO)
    assert terms.clipped.item() == 2
    assert terms.ratio_sum.item() == pytest.approx(2 * math.exp(0.2))
    assert gradient(given, GSPO) == [0.0, 0.0]


def test_a_sequence_ratio_is_cut_at_e_to_the_ten():
    given = inputs([0.0], behaviour=[-50.0])
    assert objective(given, GSPO).ratio_max.item() == pytest.approx(math.exp(10))


# --- anchors and corrections ---------------------------------------------------------------


def test_the_ratio_is_against_its_anchor():
    given = inputs([-1.0], behaviour=[-1.5], proximal=[-1.2])
    assert objective(given, LossSpec()).ratio_sum.item() == pytest.approx(math.exp(0.5))
    proximal = LossSpec(anchor="proximal")
    assert objective(given, proximal).ratio_sum.item() == pytest.approx(math.exp(0.2))


Correction = Literal["token_tis", "sequence_tis", "token_mask", "sequence_mask"]


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        # mismatch weights 2 and 1/4 in one sequence (product 1/2, geometric mean 0.71), 4 and
        # 4 in another (product 16, geometric mean 4); bounds 0.5 and 3
        ("token_tis", [2.0, 0.25, 3.0, 3.0]),
        ("sequence_tis", [0.5, 0.5, 3.0, 3.0]),
        ("token_mask", [2.0, 0.0, 0.0, 0.0]),
        ("sequence_mask", [2.0, 0.25, 0.0, 0.0]),
    ],
)
def test_corrections_weigh_by_the_mismatch(correction: Correction, expected: list[float]):
    mismatch = [2.0, 0.25, 4.0, 4.0]
    given = inputs(
        [-1.0] * 4,
        proximal=[-1.0] * 4,
        behaviour=[-1.0 - math.log(w) for w in mismatch],
        sequence=[0, 0, 1, 1],
    )
    spec = LossSpec(
        anchor="proximal", correction=correction, correction_low=0.5, correction_high=3.0
    )
    assert gradient(given, spec) == pytest.approx([-w for w in expected], abs=1e-12)
    assert objective(given, spec).loss.item() == pytest.approx(-sum(expected), abs=1e-12)


def test_missing_inputs_are_named():
    proximal = LossSpec(anchor="proximal")
    for given, spec, named in [
        (inputs([-1.0]), proximal, "proximal"),
        (inputs([-1.0]), LossSpec(correction="token_tis"), "proximal"),
        (inputs([-1.0], kl=[1.0]), LossSpec(kl="k2"), "reference"),
        (inputs([-1.0], kl=[1.0], reference=[-1.0]), LossSpec(), "estimator"),
        (inputs([-1.0], entropy_weight=[1.0]), LossSpec(), "entropy"),
    ]:
        with pytest.raises(ValueError, match=named):
            objective(given, spec)


# --- KL, entropy, cross-entropy ------------------------------------------------------------

P, Q = (0.5, 0.3, 0.2), (0.2, 0.5, 0.3)
REVERSE = [0.3462, -0.2204, -0.1259]


def expected_gradient(
    loss: Callable[[Tensor], Tensor], logits: tuple[float, ...] = P
) -> list[float]:
    """The gradient in the logits of a loss of the three log-probabilities."""
    theta = tensor(logits).log().requires_grad_()
    return torch.autograd.grad(loss(torch.log_softmax(theta, 0)), theta)[0].tolist()


def over_all_tokens(logp: Tensor, spec: LossSpec, **changes: Any) -> Tensor:
    """The objective's expectation: every token once, weighed by its probability under P."""
    one_each = inputs([0.0] * 3, sequence=[0, 1, 2], reference=[math.log(q) for q in Q])
    zero = torch.zeros(3, dtype=torch.float64)
    given = replace(
        one_each, **{"logp": logp, "behaviour": logp.detach(), "policy_weight": zero, **changes}
    )
    return objective(given, spec).loss


def test_the_exact_reverse_gradient_is_the_published_vector():
    reverse = expected_gradient(lambda logp: (logp.exp() * (logp - tensor(Q).log())).sum())
    assert reverse == pytest.approx(REVERSE, abs=5e-5)


def test_k2_in_the_loss_has_the_gradient_of_the_reverse_divergence():
    found = expected_gradient(
        lambda logp: over_all_tokens(logp, LossSpec(kl="k2"), kl_weight=tensor(P))
    )
    assert found == pytest.approx(REVERSE, abs=5e-5)


def test_k3_in_the_loss_has_the_gradient_of_the_forward_divergence():
    found = expected_gradient(
        lambda logp: over_all_tokens(logp, LossSpec(kl="k3"), kl_weight=tensor(P))
    )
    assert found == pytest.approx([p - q for p, q in zip(P, Q, strict=True)], abs=1e-12)


def test_k1_in_the_loss_would_have_no_gradient_and_in_the_reward_has_that_of_k2():
    in_loss = expected_gradient(
        lambda logp: (tensor(P) * (logp - tensor(Q).log())).sum()  # why recipes refuse it
    )
    assert in_loss == pytest.approx([0, 0, 0], abs=1e-12)
    in_reward = expected_gradient(
        lambda logp: over_all_tokens(
            logp,
            LossSpec(clip="none"),
            policy_weight=tensor(P),
            advantage=-(tensor(P).log() - tensor(Q).log()),
        )
    )
    assert in_reward == pytest.approx(REVERSE, abs=5e-5)


@pytest.mark.parametrize(
    ("kl", "expected"), [("k2", REVERSE), ("k3", [p - q for p, q in zip(P, Q, strict=True)])]
)
def test_tokens_of_an_older_policy_are_weighed_back(kl: Literal["k2", "k3"], expected: list[float]):
    older = tensor([0.4, 0.25, 0.35])
    found = expected_gradient(
        lambda logp: over_all_tokens(
            logp,
            LossSpec(kl=kl),
            behaviour=older.log(),
            kl_weight=older,
            policy_weight=older,
            advantage=torch.zeros(3, dtype=torch.float64),
        )
    )
    assert found == pytest.approx(expected, abs=5e-5)


def test_an_older_policys_weight_on_kl_is_truncated():
    given = inputs(
        [-1.0], behaviour=[-4.0], reference=[-2.0], advantage=[0.0], kl=[1.0]
    )  # ratio e^3, cut to 2; k2 = 1/2, gradient 1
    spec = LossSpec(kl="k2", correction_high=2.0)
    assert objective(given, spec).loss.item() == pytest.approx(1.0, abs=1e-12)
    assert gradient(given, spec) == pytest.approx([2.0], abs=1e-12)


def test_entropy_is_rewarded_and_cross_entropy_is_paid():
    given = inputs(
        [-1.0, -2.0],
        entropy=[0.5, 0.25],
        policy=[0.0, 0.0],
        cross_entropy=[0.5, 0.0],
        entropy_weight=[0.0, 4.0],
    )
    terms = objective(given, LossSpec())
    assert {name: value.item() for name, value in terms.components.items()} == pytest.approx(
        {"policy": 0.0, "cross_entropy": 0.5, "kl": 0.0, "entropy": -1.0}
    )
    assert terms.loss.item() == pytest.approx(-0.5)
    assert gradient(given, LossSpec()) == [-0.5, 0.0]
    assert given.entropy is not None
    on_entropy = torch.autograd.grad(objective(given, LossSpec()).loss, given.entropy)[0]
    assert on_entropy.tolist() == [0.0, -4.0]


# --- sums for the metrics ------------------------------------------------------------------


def test_metric_sums_by_hand():
    given = inputs(
        [-1.0, -1.0, -3.0],
        behaviour=[-1.0, -1.0 - math.log(1.5), -9.0],
        policy=[1.0, 1.0, 0.0],
        cross_entropy=[0.0, 1.0, 1.0],
    )
    terms = objective(given, LossSpec())
    assert (terms.tokens.item(), terms.policy_tokens.item(), terms.clipped.item()) == (3, 2, 1)
    assert terms.ratio_sum.item() == pytest.approx(2.5)
    assert terms.ratio_max.item() == pytest.approx(1.5)
    assert terms.kl_behaviour_sum.item() == pytest.approx(1.5 - 1 - math.log(1.5))


def test_metric_sums_carry_no_gradient():
    terms = objective(inputs([-1.0], entropy=[0.5], reference=[-2.0]), LossSpec())
    detached = [
        *terms.components.values(),
        terms.ratio_sum,
        terms.ratio_max,
        terms.kl_behaviour_sum,
    ]
    assert not any(value.requires_grad for value in detached)
    assert terms.loss.requires_grad


@pytest.mark.parametrize(
    ("correction", "cut"),
    [("none", 0), ("token_tis", 1), ("token_mask", 2), ("sequence_tis", 4)],
)
def test_what_a_correction_cuts_is_counted(correction: str, cut: int):
    """Ratios proximal / behaviour of 4, 1, 1 and 1/4 in one sequence: their product is 1."""
    spec = LossSpec(
        anchor="proximal",
        correction=correction,  # type: ignore[arg-type]
        correction_low=0.5,
        correction_high=2.0 if correction != "sequence_tis" else 0.9,
    )
    four = math.log(4)
    given = inputs([-2.0] * 4, behaviour=[-2 - four, -2.0, -2.0, -2 + four], proximal=[-2.0] * 4)
    terms = objective(given, spec)
    assert terms.corrected.item() == cut
    # weights current / behaviour are 4, 1, 1, 1/4: an effective sample size of 6.25^2 / 18.0625
    assert terms.weight_sum.item() == pytest.approx(6.25)
    assert terms.weight_square_sum.item() == pytest.approx(18.0625)
