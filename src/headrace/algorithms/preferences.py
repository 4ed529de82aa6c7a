"""Direct preference losses: DPO, IPO, KTO, ORPO and SimPO as points on shared axes.

Like `headrace.algorithms.losses` this is torch and a plain sum: weights already hold the
denominator of the whole optimizer batch (`headrace.algorithms.recorded`), so a learner calls
`preference` once for each micro-batch and adds up. The two sequences of a pair must be in the
same call; beyond that no split changes loss or gradient.

A sequence of weight 0 takes no part in the comparison and a token of cross-entropy weight 0
none in the cross-entropy: whatever is there, NaN included, reaches neither loss nor gradient.
A non-finite value that does take part makes the loss non-finite, for the learner to refuse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from headrace.protocols import PreferenceLoss, PreferenceReport

__all__ = [
    "PreferenceInputs",
    "PreferenceSums",
    "PreferenceTerms",
    "kto_baseline",
    "preference",
]

LOG_INVERSE_RATIO_BOUND = 20.0
"""The forward KL's exp(-u) goes on as a straight line beyond e^20: finite, and still a slope."""

CERTAIN = -1e-6
"""Mean log-probabilities above this count as certain where odds p / (1 - p) are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceInputs:
    """The trainable tokens of whole sequences, flattened to [T], and what is said of each of S.

    `logp` (nats) carries gradient; `reference` [T] is None for losses without one. `sequence`
    [T] (int64, 0..S - 1) says whose token it is. Of each sequence: `label` [S] (1 preferred or
    desirable, -1 not), `weight` [S] (its pair's share of the batch, the same on both sides; 0
    takes no part) and `group` [S] (int64), equal for the two of a pair.

    One pair that the model and its reference see alike loses log 2, and each token of it pulls
    with beta / 2:

    >>> logp = torch.tensor([-1.0, -2.0], requires_grad=True)
    >>> inputs = PreferenceInputs(
    ...     logp=logp,
    ...     reference=logp.detach(),
    ...     cross_entropy_weight=torch.zeros(2),
    ...     sequence=torch.tensor([0, 1]),
    ...     label=torch.tensor([1.0, -1.0]),
    ...     weight=torch.ones(2),
    ...     group=torch.tensor([0, 0]),
    ... )
    >>> terms = preference(inputs, PreferenceLoss(beta=0.5))
    >>> round(terms.loss.item(), 4), torch.autograd.grad(terms.loss, logp)[0].tolist()
    (0.6931, [-0.25, 0.25])
    """

    logp: Tensor
    reference: Tensor | None
    cross_entropy_weight: Tensor
    sequence: Tensor
    label: Tensor
    weight: Tensor
    group: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceSums:
    """What was seen, as sums that add up over micro-batches.

    `components` (preference, cross_entropy) sum to the loss. `units` are pairs, or for KTO
    samples; `tokens` those with any weight. `correct` counts comparisons won (a tie is a half):
    the preferred implicit reward against the other's, for KTO a sample's against the baseline.
    The other sums are over the `chosen` (label 1) and `rejected` (-1) sequences.

    >>> PreferenceSums().report().accuracy
    0.0
    """

    components: Mapping[str, float] = field(default_factory=dict[str, float])
    units: int = 0
    tokens: int = 0
    correct: float = 0.0
    chosen: int = 0
    rejected: int = 0
    chosen_reward: float = 0.0
    rejected_reward: float = 0.0
    chosen_logp: float = 0.0
    rejected_logp: float = 0.0

    def __add__(self, other: PreferenceSums) -> PreferenceSums:
        names = [*self.components, *(n for n in other.components if n not in self.components)]
        return PreferenceSums(
            components={
                name: self.components.get(name, 0.0) + other.components.get(name, 0.0)
                for name in names
            },
            units=self.units + other.units,
            tokens=self.tokens + other.tokens,
            correct=self.correct + other.correct,
            chosen=self.chosen + other.chosen,
            rejected=self.rejected + other.rejected,
            chosen_reward=self.chosen_reward + other.chosen_reward,
            rejected_reward=self.rejected_reward + other.rejected_reward,
            chosen_logp=self.chosen_logp + other.chosen_logp,
            rejected_logp=self.rejected_logp + other.rejected_logp,
        )

    def report(self) -> PreferenceReport:
        """Means over what was counted, 0 where nothing was."""
        chosen_reward = self.chosen_reward / max(self.chosen, 1)
        rejected_reward = self.rejected_reward / max(self.rejected, 1)
        return PreferenceReport(
            loss=math.fsum(self.components.values()),
            units=self.units,
            tokens=self.tokens,
            accuracy=self.correct / max(self.units, 1),
            margin=chosen_reward - rejected_reward,
            chosen_reward=chosen_reward,
            rejected_reward=rejected_reward,
            chosen_logp=self.chosen_logp / max(self.chosen, 1),
            rejected_logp=self.rejected_logp / max(self.rejected, 1),
            components=dict(self.components),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceTerms:
    """A micro-batch's share of the loss (a graph-connected scalar, also where nothing is on) and
    of the report."""

    loss: Tensor
    sums: PreferenceSums


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sequences:
    """Per sequence [S]: sum of log-probabilities, length, and log-ratio to the reference."""

    logp: Tensor
    length: Tensor
    log_ratio: Tensor


def kto_baseline(log_ratios: Sequence[float]) -> float:
    """KTO's reference point z (Ethayarajh et al. 2024): KL(policy || reference), at least 0, nats.

    `log_ratios`: for each mismatched (prompt, another's completion) of the whole optimizer
    batch (`headrace.algorithms.recorded.mismatched`) the sum over the completion of
    log policy - log reference. It takes no gradient, and is one number for the whole batch.

    >>> kto_baseline([0.5, 1.0]), kto_baseline([-3.0]), kto_baseline([])
    (0.75, 0.0, 0.0)
    """
    return max(0.0, math.fsum(log_ratios) / len(log_ratios)) if log_ratios else 0.0


def preference(
    inputs: PreferenceInputs, spec: PreferenceLoss, *, kto_baseline: float = 0.0
) -> PreferenceTerms:
    """The weighted comparison loss plus cross-entropy; formulas in `docs/algorithms.md`.

    `kto_baseline` (nats, 0 or more) is read by "kto" only. Raises ValueError, naming the group,
    for a pair that is not one preferred and one other sequence of the same weight, and for a
    sequence without tokens; also for a missing reference and for settings that mean nothing
    together.
    """
    _check(inputs, spec, kto_baseline)
    used = inputs.weight != 0
    sequences = _sequences(inputs, used)
    if spec.loss == "kto":
        loss, sums = _kto(inputs, sequences, spec, kto_baseline)
    else:
        loss, sums = _paired(inputs, sequences, spec)
    taught = inputs.cross_entropy_weight != 0
    cross_entropy = -(inputs.cross_entropy_weight * _only(_wide(inputs.logp), taught)).sum()
    seen = PreferenceSums(
        components={
            "preference": float(loss.detach()),
            "cross_entropy": float(cross_entropy.detach()),
        },
        tokens=int((taught | used[inputs.sequence]).sum()),
    )
    return PreferenceTerms(loss=loss + cross_entropy, sums=seen + sums)


# --- pairs ---------------------------------------------------------------------------------


def _paired(
    inputs: PreferenceInputs, sequences: _Sequences, spec: PreferenceLoss
) -> tuple[Tensor, PreferenceSums]:
    chosen, rejected = _pairs(inputs)
    value = _value(sequences, spec)
    preferred, other = value[chosen], value[rejected]
    each = _pair_loss(preferred, other, spec)
    rewards = spec.beta * torch.stack([preferred, other]).detach()
    logps = torch.stack([sequences.logp[chosen], sequences.logp[rejected]]).detach()
    won = (rewards[0] > rewards[1]).float() + (rewards[0] == rewards[1]).float() / 2
    reward_sums, logp_sums = rewards.sum(dim=1).tolist(), logps.sum(dim=1).tolist()
    return (inputs.weight[chosen] * each).sum(), PreferenceSums(
        units=len(chosen),
        correct=float(won.sum()),
        chosen=len(chosen),
        rejected=len(chosen),
        chosen_reward=reward_sums[0],
        rejected_reward=reward_sums[1],
        chosen_logp=logp_sums[0],
        rejected_logp=logp_sums[1],
    )


def _value(sequences: _Sequences, spec: PreferenceLoss) -> Tensor:
    """What a pair is compared by [S]; times beta it is the implicit reward."""
    if spec.loss in ("orpo", "simpo"):
        return sequences.logp / sequences.length
    value = sequences.log_ratio
    if spec.divergence == "forward_kl":
        value = 1 - _exp_then_straight(-value)
    if spec.loss == "ipo" or spec.length_normalised:
        value = value / sequences.length
    return value


def _pair_loss(preferred: Tensor, other: Tensor, spec: PreferenceLoss) -> Tensor:
    """Loss of each pair [P] from the values of its two sides [P]."""
    if spec.loss == "ipo":
        gap, target = preferred - other, 1 / (2 * spec.beta)
        flipped = (gap + target).square()
        return (1 - spec.label_smoothing) * (gap - target).square() + (
            spec.label_smoothing * flipped
        )
    if spec.loss == "orpo":
        return spec.beta * _logistic(_log_odds(preferred) - _log_odds(other), spec)
    if spec.loss == "simpo":
        return _logistic(spec.beta * (preferred - other) - spec.target_margin, spec)
    return _logistic(spec.beta * (preferred - other), spec)


def _logistic(logit: Tensor, spec: PreferenceLoss) -> Tensor:
    smoothing = spec.label_smoothing
    return -(1 - smoothing) * logsigmoid(logit) - smoothing * logsigmoid(-logit)


def _log_odds(mean_logp: Tensor) -> Tensor:
    """log p / (1 - p) of a mean log-probability [P].

    log(1 - p) keeps its digits at both ends: log1p(-p) where p is small, log(-expm1) near 1.
    """
    inside = mean_logp.clamp(max=CERTAIN)
    small = inside < -math.log(2)
    rest = torch.where(
        small,
        torch.log1p(-torch.exp(torch.where(small, inside, inside.new_tensor(-1.0)))),
        torch.log(-torch.expm1(torch.where(small, inside.new_tensor(-0.5), inside))),
    )
    return mean_logp - rest


def _exp_then_straight(power: Tensor) -> Tensor:
    bounded = power.clamp(max=LOG_INVERSE_RATIO_BOUND)
    return torch.exp(bounded) * (1 + power - bounded)


def _pairs(inputs: PreferenceInputs) -> tuple[Tensor, Tensor]:
    """Indices [P] of the preferred and of the other sequence of each pair, by group."""
    labels, weights = inputs.label.tolist(), inputs.weight.tolist()
    groups: dict[int, list[int]] = {}
    for place, group in enumerate(inputs.group.tolist()):
        if weights[place] != 0:
            groups.setdefault(group, []).append(place)
    chosen: list[int] = []
    rejected: list[int] = []
    for group, places in groups.items():
        if sorted(labels[place] for place in places) != [-1.0, 1.0]:
            found = ", ".join(f"{labels[place]:g}" for place in places)
            raise ValueError(f"group {group} is no pair of labels 1 and -1: it has {found}")
        first, second = places
        if weights[first] != weights[second]:
            raise ValueError(f"the two sides of group {group} differ in weight")
        better, worse = (first, second) if labels[first] == 1.0 else (second, first)
        chosen.append(better)
        rejected.append(worse)
    device = inputs.label.device
    return (
        torch.tensor(chosen, dtype=torch.int64, device=device),
        torch.tensor(rejected, dtype=torch.int64, device=device),
    )


# --- samples alone -------------------------------------------------------------------------


def _kto(
    inputs: PreferenceInputs, sequences: _Sequences, spec: PreferenceLoss, baseline: float
) -> tuple[Tensor, PreferenceSums]:
    on = inputs.weight != 0
    good, bad = on & (inputs.label > 0), on & (inputs.label < 0)
    gap = sequences.log_ratio - baseline
    surplus = torch.where(good, gap, -gap)
    side = torch.full_like(gap, spec.undesirable_weight).masked_fill(good, spec.desirable_weight)
    each = side * torch.sigmoid(-spec.beta * surplus)
    reward = spec.beta * sequences.log_ratio.detach()
    won = (surplus.detach() > 0).float() + (surplus.detach() == 0).float() / 2
    return (inputs.weight * _only(each, on)).sum(), PreferenceSums(
        units=int(on.sum()),
        correct=float(won[on].sum()),
        chosen=int(good.sum()),
        rejected=int(bad.sum()),
        chosen_reward=float(reward[good].sum()),
        rejected_reward=float(reward[bad].sum()),
        chosen_logp=float(sequences.logp.detach()[good].sum()),
        rejected_logp=float(sequences.logp.detach()[bad].sum()),
    )


# --- helpers -------------------------------------------------------------------------------


def _check(inputs: PreferenceInputs, spec: PreferenceLoss, baseline: float) -> None:
    if spec.needs_reference and inputs.reference is None:
        raise ValueError(f"{spec.loss} needs reference log-probabilities")
    if spec.divergence == "forward_kl" and spec.loss not in ("dpo", "ipo"):
        raise ValueError(f"a divergence is for dpo and ipo, not {spec.loss}")
    if spec.loss == "kto" and (spec.label_smoothing or spec.length_normalised):
        raise ValueError("kto has neither label smoothing nor length normalisation")
    if spec.target_margin and spec.loss != "simpo":
        raise ValueError(f"a target margin is for simpo, not {spec.loss}")
    if not (math.isfinite(baseline) and baseline >= 0):
        raise ValueError(f"the KTO baseline is {baseline}, not a divergence")
    labels, weights, groups = inputs.label.tolist(), inputs.weight.tolist(), inputs.group.tolist()
    for label, weight, group in zip(labels, weights, groups, strict=True):
        if weight != 0 and label not in (-1.0, 1.0):
            raise ValueError(f"group {group} has a sequence of label {label:g}, not 1 or -1")


def _sequences(inputs: PreferenceInputs, used: Tensor) -> _Sequences:
    """Sums over each sequence that takes part; zeros, of length 1, for the others."""
    on = used[inputs.sequence]
    logp = _only(_wide(inputs.logp), on)
    zeros = logp.new_zeros(len(used))
    length = zeros.index_add(0, inputs.sequence, torch.ones_like(logp.detach()))
    empty = (used & (length == 0)).nonzero()[:, 0].tolist()
    if empty:
        raise ValueError(f"group {int(inputs.group[empty[0]])} has a sequence without tokens")
    log_ratio = zeros
    if inputs.reference is not None:
        gap = logp - _only(_wide(inputs.reference), on)
        log_ratio = zeros.index_add(0, inputs.sequence, gap)
    return _Sequences(
        logp=zeros.index_add(0, inputs.sequence, logp),
        length=length.clamp(min=1),
        log_ratio=log_ratio,
    )


def _wide(values: Tensor) -> Tensor:
    """At least single precision."""
    return values if values.dtype == torch.float64 else values.float()


def _only(values: Tensor, on: Tensor) -> Tensor:
    """`values` where `on`, 0 elsewhere, in value and in gradient, whatever is there."""
    return torch.where(on, values, torch.zeros_like(values))
