"""The loss that every algorithm shares: flat per-token tensors in, one scalar out.

With `preferences` and `ranking`, losses over pairs, all of `headrace.algorithms` that knows
torch. Learners call `objective` once for each micro-batch and add up: weights already hold the
normaliser of the whole optimizer batch (`credit`, `recorded`), so there is nothing here to
divide by, and any split into micro-batches of whole sequences has the same loss and gradient.
Data-parallel learners whose ranks average their gradients multiply the loss by their number.

A weight of exactly zero switches a component off at that token: whatever else the slot holds,
NaN included, reaches neither the loss nor the gradient. A non-finite value in a slot that is
on makes the loss non-finite, for the learner to refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.protocols import LossSpec

__all__ = ["LossInputs", "LossTerms", "objective"]

LOG_RATIO_BOUND = 20.0
"""Log-ratios are clamped to +-20 before exp: e^20 is far outside any clip range and finite."""

LOG_SEQUENCE_RATIO_BOUND = 10.0
"""The upper clamp of a sequence-level log-ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """The trainable tokens of whole sequences, flattened: every tensor is [T].

    `logp` and `entropy` (nats, of the distribution tokens are drawn from) carry gradient; all
    others are constants, in the units of `headrace.types.Sample`. `sequence` (int64) numbers
    the sequence of each token from 0; every token of a sequence must be in the same call.
    `uniform` (nats, with gradient) is the mean log-probability over the vocabulary in each
    token's place; only label smoothing asks for it.

    With one token, advantage 1 and weight 1, the gradient of -ratio x advantage is -1:

    >>> one, zero = torch.ones(1), torch.zeros(1)
    >>> logp = torch.tensor([-0.5], requires_grad=True)
    >>> inputs = LossInputs(
    ...     logp=logp,
    ...     entropy=None,
    ...     behaviour=logp.detach(),
    ...     proximal=None,
    ...     reference=None,
    ...     advantage=one,
    ...     policy_weight=one,
    ...     cross_entropy_weight=zero,
    ...     kl_weight=zero,
    ...     entropy_weight=zero,
    ...     sequence=torch.zeros(1, dtype=torch.int64),
    ... )
    >>> terms = objective(inputs, LossSpec())
    >>> terms.loss.item(), torch.autograd.grad(terms.loss, logp)[0].tolist()
    (-1.0, [-1.0])
    """

    logp: Tensor
    entropy: Tensor | None
    behaviour: Tensor
    proximal: Tensor | None
    reference: Tensor | None
    advantage: Tensor
    policy_weight: Tensor
    cross_entropy_weight: Tensor
    kl_weight: Tensor
    entropy_weight: Tensor
    sequence: Tensor
    uniform: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerms:
    """A micro-batch's share of the loss, and detached sums that add up over micro-batches.

    `loss` is a graph-connected scalar, also where nothing is switched on (then 0). Everything
    else is a detached scalar tensor. `components` (policy, cross_entropy, kl, entropy) sum to
    the loss. `tokens` counts slots with any weight; `policy_tokens` those with a policy
    weight, over which `clipped` (the clip took the gradient away or, for cispo, cut the
    weight), `corrected` (the off-policy correction truncated or masked the token), `ratio_sum`,
    `ratio_max` (0 without tokens), `kl_behaviour_sum` (k3 estimates of
    KL(behaviour || current), nats) and the importance weights w = current / behaviour run:
    `weight_sum`, `weight_square_sum` (their effective sample size is
    weight_sum^2 / weight_square_sum: Kish 1965).
    """

    loss: Tensor
    components: Mapping[str, Tensor]
    tokens: Tensor
    policy_tokens: Tensor
    clipped: Tensor
    corrected: Tensor
    weight_sum: Tensor
    weight_square_sum: Tensor
    ratio_sum: Tensor
    ratio_max: Tensor
    kl_behaviour_sum: Tensor


def objective(inputs: LossInputs, spec: LossSpec) -> LossTerms:
    """The weighted sum of policy gradient, cross-entropy, KL to the reference and entropy.

    Raises ValueError where `spec` or a weight asks for an input that is missing.
    """
    _complete(inputs, spec)
    on = inputs.policy_weight != 0
    logp = _only(inputs.logp, on)
    behaviour = _only(inputs.behaviour, on)
    policy, ratio, clipped, corrected = _policy(inputs, spec, on, logp, behaviour)
    off_policy = torch.exp(_bounded(logp.detach() - behaviour))
    cross_entropy = _cross_entropy(inputs, spec.label_smoothing)
    kl = _kl(inputs, spec, off_policy.clamp(max=spec.correction_high))
    entropy = _entropy(inputs)
    components = {
        "policy": policy.sum(),
        "cross_entropy": cross_entropy.sum(),
        "kl": kl.sum(),
        "entropy": entropy.sum(),
    }
    loss = components["policy"] + components["cross_entropy"] + components["kl"]
    loss = loss + components["entropy"]
    counted = on | (inputs.cross_entropy_weight != 0) | (inputs.kl_weight != 0)
    counted = counted | (inputs.entropy_weight != 0)
    return LossTerms(
        loss=loss,
        components={name: value.detach() for name, value in components.items()},
        tokens=counted.sum(),
        policy_tokens=on.sum(),
        clipped=(clipped & on).sum(),
        corrected=(corrected & on).sum(),
        weight_sum=_only(off_policy, on).sum(),
        weight_square_sum=_only(off_policy.square(), on).sum(),
        ratio_sum=_only(ratio, on).sum(),
        ratio_max=torch.cat([_only(ratio, on), ratio.new_zeros(1)]).max(),
        kl_behaviour_sum=_k3(_bounded(behaviour - logp.detach())).sum(),
    )


def _complete(inputs: LossInputs, spec: LossSpec) -> None:
    if spec.anchor == "proximal" and inputs.proximal is None:
        raise ValueError("anchor = 'proximal' needs proximal log-probabilities")
    if spec.correction != "none" and inputs.proximal is None:
        raise ValueError("a correction needs proximal log-probabilities")
    if bool((inputs.kl_weight != 0).any()):
        if spec.kl == "none":
            raise ValueError("a KL weight needs an estimator: LossSpec.kl is 'none'")
        if inputs.reference is None:
            raise ValueError("a KL weight needs reference log-probabilities")
    if inputs.entropy is None and bool((inputs.entropy_weight != 0).any()):
        raise ValueError("an entropy weight needs the entropy")
    if not 0 <= spec.label_smoothing <= 1:
        raise ValueError(f"label smoothing is a share of 0..1, not {spec.label_smoothing}")
    smoothed = spec.label_smoothing > 0 and bool((inputs.cross_entropy_weight != 0).any())
    if smoothed and inputs.uniform is None:
        raise ValueError("label smoothing needs the mean log-probability of the vocabulary")


# --- policy gradient -----------------------------------------------------------------------


def _policy(
    inputs: LossInputs, spec: LossSpec, on: Tensor, logp: Tensor, behaviour: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weighted loss [T], detached ratio [T], where the clip and the correction acted [T] (bool)."""
    proximal = None if inputs.proximal is None else _only(inputs.proximal, on)
    anchor = behaviour
    if spec.anchor == "proximal" and proximal is not None:
        anchor = proximal
    if spec.ratio == "token":
        ratio = torch.exp(_bounded(logp - anchor))
    else:
        mean = _sequence_mean(logp.detach() - anchor, inputs.sequence, on)
        log_ratio = (mean + logp - logp.detach()).clamp(-LOG_RATIO_BOUND, LOG_SEQUENCE_RATIO_BOUND)
        ratio = torch.exp(log_ratio)
    advantage = _only(inputs.advantage, on)
    loss, clipped = _clip(ratio, advantage, logp, spec)
    weight, corrected = _only(inputs.policy_weight, on), torch.zeros_like(on)
    if spec.correction != "none" and proximal is not None:
        correction, corrected = _correction(proximal - behaviour, inputs.sequence, on, spec)
        weight = weight * correction
    return weight * loss, ratio.detach(), clipped, corrected


def _clip(ratio: Tensor, advantage: Tensor, logp: Tensor, spec: LossSpec) -> tuple[Tensor, Tensor]:
    """Loss per token before weighing, and where the clip acted."""
    low, high = 1 - spec.clip_low, 1 + spec.clip_high
    outside = (ratio < low) | (ratio > high)
    if spec.clip == "none":
        return -ratio * advantage, torch.zeros_like(outside)
    if spec.clip == "cispo":
        return -ratio.detach().clamp(low, high) * advantage * logp, outside
    loss = torch.maximum(-ratio * advantage, -ratio.clamp(low, high) * advantage)
    clipped = ((advantage > 0) & (ratio > high)) | ((advantage < 0) & (ratio < low))
    if spec.dual_clip is not None:
        bound = -spec.dual_clip * advantage
        cut = (advantage < 0) & (loss > bound)
        loss, clipped = torch.where(cut, bound, loss), clipped | cut
    return loss, clipped


def _correction(gap: Tensor, sequence: Tensor, on: Tensor, spec: LossSpec) -> tuple[Tensor, Tensor]:
    """Detached weight [T] for the mismatch `gap` = proximal - behaviour [T], and where it cut.

    Truncated importance sampling per token, or by the product over the sequence; IcePop
    (zero outside the band) per token; or the geometric mean over the sequence as a gate for
    untruncated token weights. Rejected tokens stay in the denominator.
    """
    low, high = spec.correction_low, spec.correction_high
    gap = gap.detach()
    token = torch.exp(_bounded(gap))
    if spec.correction == "token_tis":
        return token.clamp(max=high), token > high
    if spec.correction == "sequence_tis":
        whole = torch.exp(_bounded(_sequence_sum(gap, sequence)))[sequence]
        return whole.clamp(max=high), whole > high
    gate = token
    if spec.correction == "sequence_mask":
        gate = torch.exp(_bounded(_sequence_mean(gap, sequence, on)))
    inside = (gate >= low) & (gate <= high)
    return torch.where(inside, token, torch.zeros_like(token)), ~inside


# --- cross-entropy -------------------------------------------------------------------------


def _cross_entropy(inputs: LossInputs, smoothing: float) -> Tensor:
    """Weighted cross-entropy [T] against (1 - s) on the token and s evenly on the vocabulary
    (Szegedy et al. 2016)."""
    on = inputs.cross_entropy_weight != 0
    expected = _only(inputs.logp, on)
    if smoothing and inputs.uniform is not None:
        expected = (1 - smoothing) * expected + smoothing * _only(inputs.uniform, on)
    return -inputs.cross_entropy_weight * expected


# --- regularisers --------------------------------------------------------------------------


def _kl(inputs: LossInputs, spec: LossSpec, off_policy: Tensor) -> Tensor:
    """Weighted KL to the reference [T].

    k2's gradient is that of KL(current || reference), k3's that of KL(reference || current),
    both for tokens drawn from the current policy. Tokens drawn from an older one are weighed
    by the detached ratio `off_policy`, truncated, which keeps those gradients (it is 1 for
    tokens without a policy weight: those were not sampled).
    """
    if inputs.reference is None or spec.kl == "none":
        return torch.zeros_like(inputs.logp)
    on = inputs.kl_weight != 0
    gap = _bounded(_only(inputs.logp, on) - _only(inputs.reference, on))
    value = gap.square() / 2 if spec.kl == "k2" else _k3(gap)
    return inputs.kl_weight * off_policy * value


def _entropy(inputs: LossInputs) -> Tensor:
    if inputs.entropy is None:
        return torch.zeros_like(inputs.logp)
    return -inputs.entropy_weight * _only(inputs.entropy, inputs.entropy_weight != 0)


def _k3(gap: Tensor) -> Tensor:
    return torch.expm1(-gap) + gap


# --- helpers -------------------------------------------------------------------------------


def _only(values: Tensor, on: Tensor) -> Tensor:
    """`values` where `on`, 0 elsewhere, in value and in gradient, whatever is there."""
    return torch.where(on, values, torch.zeros_like(values))


def _bounded(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def _sequence_sum(values: Tensor, sequence: Tensor) -> Tensor:
    """Sum over each sequence: [T] -> [S]."""
    count = int(sequence.max()) + 1 if sequence.numel() else 0
    return values.new_zeros(count).index_add(0, sequence, values)


def _sequence_mean(values: Tensor, sequence: Tensor, on: Tensor) -> Tensor:
    """Each token's mean over the `on` tokens of its sequence: [T] -> [T]."""
    length = _sequence_sum(on.to(values.dtype), sequence).clamp(min=1)
    return (_sequence_sum(_only(values, on), sequence) / length)[sequence]
