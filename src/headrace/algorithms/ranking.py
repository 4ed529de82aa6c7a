"""The loss of reward models, and what shows whether their scores can be trusted.

The loss is torch and a plain sum over weights that hold the denominator of the whole optimizer
batch, as in `headrace.algorithms.preferences`: the two sequences of a pair are in one call, and
beyond that no split changes anything. `calibration` and `length_bias` are numpy, for held-out
scores. Where a score comes from is the learner's business.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from headrace.protocols import RankingLoss, RankingReport

__all__ = [
    "Calibration",
    "CalibrationBin",
    "LengthBias",
    "RankingInputs",
    "RankingSums",
    "RankingTerms",
    "calibration",
    "length_bias",
    "ranking",
]

Doubles = npt.NDArray[np.float64]


# --- the loss ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingInputs:
    """The scores of the trainable positions of whole sequences, flattened to [T].

    `score` carries gradient; that of a sequence is the score of its last position here.
    `sequence` [T] (int64, 0..S - 1) says whose it is. Of each sequence: `label` [S] (1 and -1
    in a pair, both 0 for a tie), `weight` [S] (its pair's share, equal on both sides; 0 takes
    no part), `margin` [S] (by how much the preferred is better) and `group` [S] (int64).

    The process form reads `target` [T], 0..1, and `step_weight` [T] (0 takes no part) instead
    of what is said of sequences.

    >>> score = torch.tensor([0.5, 0.5], requires_grad=True)
    >>> inputs = RankingInputs(
    ...     score=score,
    ...     sequence=torch.tensor([0, 1]),
    ...     label=torch.tensor([1.0, -1.0]),
    ...     weight=torch.ones(2),
    ...     margin=torch.zeros(2),
    ...     group=torch.tensor([0, 0]),
    ... )
    >>> terms = ranking(inputs, RankingLoss())
    >>> round(terms.loss.item(), 4), torch.autograd.grad(terms.loss, score)[0].tolist()
    (0.6931, [-0.5, 0.5])
    """

    score: Tensor
    sequence: Tensor
    label: Tensor
    weight: Tensor
    margin: Tensor
    group: Tensor
    target: Tensor | None = None
    step_weight: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingSums:
    """What was seen, as sums that add up over micro-batches.

    `components` (ranking and centre, or process) sum to the loss. `units` are pairs with ties,
    or steps. `compared` of those have a better side (or, a step, a target other than 1/2), of
    which `correct` are on it (a tie of the scores is a half). The score sums are over the
    `chosen` and `rejected` sequences of pairs without ties, or the steps above and below 1/2.
    """

    components: Mapping[str, float] = field(default_factory=dict[str, float])
    units: int = 0
    compared: int = 0
    correct: float = 0.0
    chosen: int = 0
    rejected: int = 0
    chosen_score: float = 0.0
    rejected_score: float = 0.0

    def __add__(self, other: RankingSums) -> RankingSums:
        names = [*self.components, *(n for n in other.components if n not in self.components)]
        return RankingSums(
            components={
                name: self.components.get(name, 0.0) + other.components.get(name, 0.0)
                for name in names
            },
            units=self.units + other.units,
            compared=self.compared + other.compared,
            correct=self.correct + other.correct,
            chosen=self.chosen + other.chosen,
            rejected=self.rejected + other.rejected,
            chosen_score=self.chosen_score + other.chosen_score,
            rejected_score=self.rejected_score + other.rejected_score,
        )

    def report(self) -> RankingReport:
        """Means over what was counted, 0 where nothing was."""
        chosen = self.chosen_score / max(self.chosen, 1)
        rejected = self.rejected_score / max(self.rejected, 1)
        return RankingReport(
            loss=math.fsum(self.components.values()),
            units=self.units,
            accuracy=self.correct / max(self.compared, 1),
            margin=chosen - rejected,
            chosen_score=chosen,
            rejected_score=rejected,
            components=dict(self.components),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingTerms:
    """A micro-batch's share of the loss (a graph-connected scalar, also where nothing is on) and
    of the report."""

    loss: Tensor
    sums: RankingSums


def ranking(inputs: RankingInputs, spec: RankingLoss) -> RankingTerms:
    """Bradley-Terry over pairs, or binary cross-entropy over steps (`spec.process`).

    With d the difference of a pair's scores (preferred less other) and m its margin (where
    `spec.margins`): -log sigmoid(d - m) (Touvron et al. 2023), for a tie the mean over both
    orders with m = 0, plus `spec.centre` times the squared sum of the two scores (Eisenstein et
    al. 2023). The process form needs no centring: its targets fix where 0 is.

    Raises ValueError, naming the group, for what is no pair or tie of two sequences of the same
    weight, and for a sequence without a score; also for a process form without targets.
    """
    if spec.process:
        return _process(inputs)
    pairs = _pairs(inputs)
    first, second = pairs.first, pairs.second
    score = _last(inputs)
    difference = score[first] - score[second]
    margin = inputs.margin[first] if spec.margins else torch.zeros_like(difference.detach())
    better = -logsigmoid(difference - margin)
    tied = -(logsigmoid(difference) + logsigmoid(-difference)) / 2
    weight = inputs.weight[first]
    compared = (weight * torch.where(pairs.tie, tied, better)).sum()
    centre = spec.centre * (weight * (score[first] + score[second]).square()).sum()
    decided = ~pairs.tie
    gaps = difference.detach()[decided]
    count = int(decided.sum())
    return RankingTerms(
        loss=compared + centre,
        sums=RankingSums(
            components={"ranking": float(compared.detach()), "centre": float(centre.detach())},
            units=len(first),
            compared=count,
            correct=float((gaps > 0).sum()) + float((gaps == 0).sum()) / 2,
            chosen=count,
            rejected=count,
            chosen_score=float(score.detach()[first][decided].sum()),
            rejected_score=float(score.detach()[second][decided].sum()),
        ),
    )


def _process(inputs: RankingInputs) -> RankingTerms:
    if inputs.target is None or inputs.step_weight is None:
        raise ValueError("the process form needs a target and a weight for each step")
    on = inputs.step_weight != 0
    score, target = _only(_wide(inputs.score), on), _only(inputs.target, on)
    if bool(((target < 0) | (target > 1)).any()):
        raise ValueError("a step's target is outside 0..1")
    each = binary_cross_entropy_with_logits(score, target.to(score.dtype), reduction="none")
    loss = (inputs.step_weight * each).sum()
    seen = score.detach()
    good, bad = on & (target > 0.5), on & (target < 0.5)
    right = (seen[good] > 0).sum() + (seen[bad] < 0).sum()
    even = (seen[good | bad] == 0).sum()
    return RankingTerms(
        loss=loss,
        sums=RankingSums(
            components={"process": float(loss.detach())},
            units=int(on.sum()),
            compared=int((good | bad).sum()),
            correct=float(right) + float(even) / 2,
            chosen=int(good.sum()),
            rejected=int(bad.sum()),
            chosen_score=float(seen[good].sum()),
            rejected_score=float(seen[bad].sum()),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """Indices [P] of both sides, the preferred first; `tie` [P] where neither is."""

    first: Tensor
    second: Tensor
    tie: Tensor


def _pairs(inputs: RankingInputs) -> _Pairs:
    labels, weights = inputs.label.tolist(), inputs.weight.tolist()
    groups: dict[int, list[int]] = {}
    for place, group in enumerate(inputs.group.tolist()):
        if weights[place] != 0:
            groups.setdefault(group, []).append(place)
    sides: list[tuple[int, int]] = []
    ties: list[bool] = []
    for group, places in groups.items():
        found = sorted(labels[place] for place in places)
        if found not in ([-1.0, 1.0], [0.0, 0.0]):
            told = ", ".join(f"{labels[place]:g}" for place in places)
            raise ValueError(f"group {group} is neither a pair nor a tie: its labels are {told}")
        one, other = places
        if weights[one] != weights[other]:
            raise ValueError(f"the two sides of group {group} differ in weight")
        sides.append((other, one) if labels[other] > labels[one] else (one, other))
        ties.append(found == [0.0, 0.0])
    indices = torch.tensor(sides, dtype=torch.int64, device=inputs.label.device).view(-1, 2)
    tie = torch.tensor(ties, dtype=torch.bool, device=inputs.label.device)
    return _Pairs(first=indices[:, 0], second=indices[:, 1], tie=tie)


def _last(inputs: RankingInputs) -> Tensor:
    """The score [S] of each sequence that takes part: that of its last position; 0 elsewhere."""
    used = inputs.weight != 0
    at = torch.full_like(inputs.group, -1)
    places = torch.arange(len(inputs.sequence), device=at.device)
    at = at.scatter_reduce(0, inputs.sequence, places, "amax")
    empty = (used & (at < 0)).nonzero()[:, 0].tolist()
    if empty:
        raise ValueError(f"group {int(inputs.group[empty[0]])} has a sequence without a score")
    on = used[inputs.sequence]
    score = _only(_wide(inputs.score), on)
    padded = torch.cat([score, score.new_zeros(1)])
    return padded[torch.where(at < 0, len(score), at)]


def _wide(values: Tensor) -> Tensor:
    """At least single precision."""
    return values if values.dtype == torch.float64 else values.float()


def _only(values: Tensor, on: Tensor) -> Tensor:
    """`values` where `on`, 0 elsewhere, in value and in gradient, whatever is there."""
    return torch.where(on, values, torch.zeros_like(values))


# --- can the scores be trusted -------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationBin:
    """Pairs whose confidence is in [low, high): their mean `confidence` and how often the
    better-scored side was the preferred one (`accuracy`); both 0 in an empty bin."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """`error` 0..1: the expected calibration error, the mean over pairs of their bin's
    |confidence - accuracy| (Naeini et al. 2015). `brier` 0..1: mean squared error of the
    probabilities (Brier 1950), in which being sure and being right both count."""

    bins: tuple[CalibrationBin, ...]
    error: float
    brier: float


def calibration(
    margins: Sequence[float] | Doubles, outcomes: Sequence[float] | Doubles, *, bins: int = 10
) -> Calibration:
    """Do pairs scored d apart come out as sigmoid(d) says?

    `margins` [n]: score of the first less that of the second; `outcomes` [n], 0..1: 1 where the
    first was preferred, 0.5 for a tie. Which side is called first changes nothing: a pair counts
    with the confidence sigmoid(|d|), 0.5..1, in the better-scored side, in `bins` of equal width.

    Raises ValueError for lengths that differ, no pair, or values that are out of range.

    >>> calibration([0.0, 0.0], [1.0, 0.0]).error
    0.0
    >>> round(calibration([20.0, 20.0], [1.0, 0.0]).error, 3)  # always sure, right half the time
    0.5
    """
    gap, outcome = np.asarray(margins, np.float64), np.asarray(outcomes, np.float64)
    if gap.shape != outcome.shape or gap.ndim != 1 or not len(gap) or bins < 1:
        raise ValueError("calibration needs as many outcomes as margins, and at least one")
    if not np.isfinite(gap).all() or not ((outcome >= 0) & (outcome <= 1)).all():
        raise ValueError("margins are finite and outcomes lie in 0..1")
    confidence = 1 / (1 + np.exp(-np.abs(gap)))
    right = np.where(gap > 0, outcome, np.where(gap < 0, 1 - outcome, 0.5))
    edges = np.linspace(0.5, 1.0, bins + 1)
    place = np.clip(np.searchsorted(edges, confidence, side="right") - 1, 0, bins - 1)
    found = tuple(_bin(edges, number, confidence, right, place) for number in range(bins))
    return Calibration(
        bins=found,
        error=math.fsum(b.count * abs(b.confidence - b.accuracy) for b in found) / len(gap),
        brier=math.fsum((confidence - right) ** 2) / len(gap),
    )


def _bin(
    edges: Doubles, number: int, confidence: Doubles, right: Doubles, place: npt.NDArray[np.intp]
) -> CalibrationBin:
    inside = place == number
    count = int(inside.sum())
    return CalibrationBin(
        low=float(edges[number]),
        high=float(edges[number + 1]),
        count=count,
        confidence=math.fsum(confidence[inside]) / max(count, 1),
        accuracy=math.fsum(right[inside]) / max(count, 1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBias:
    """How scores go with lengths, each -1..1, 0 where either does not vary.

    `pearson` is the straight-line part, `spearman` the monotone part (ranks, so that a few very
    long answers cannot carry it). `slope` is the straight line itself: by how much the expected
    score rises with each token, in units of the score.

    All of these say what one would read off length alone, and that is not yet a bias: good
    answers may be long for good reason. `partial` is the Pearson correlation of what is left of
    scores and lengths once a straight line in the quality is taken out of both (None where no
    quality was given): what the model pays for length among answers that are equally good.
    """

    pearson: float
    spearman: float
    slope: float
    partial: float | None


def length_bias(
    scores: Sequence[float] | Doubles,
    lengths: Sequence[float] | Doubles,
    *,
    quality: Sequence[float] | Doubles | None = None,
) -> LengthBias:
    """Association of `scores` [n] with `lengths` [n] (tokens), see `LengthBias`.

    `quality` [n]: what the answers are worth by another measure (verdicts, labels). Raises
    ValueError for lengths that differ and for fewer than two answers.

    >>> round(length_bias([0.1, 0.2, 0.9], [10, 20, 30]).spearman, 6)
    1.0
    """
    score, length = np.asarray(scores, np.float64), np.asarray(lengths, np.float64)
    if score.shape != length.shape or score.ndim != 1 or len(score) < 2:
        raise ValueError("length bias needs two answers or more, with a length for each")
    partial = None
    if quality is not None:
        worth = np.asarray(quality, np.float64)
        if worth.shape != score.shape:
            raise ValueError("length bias needs the quality of every answer or of none")
        partial = _correlation(_without(score, worth), _without(length, worth))
    spread = float(((length - length.mean()) ** 2).sum())
    joint = float(((length - length.mean()) * (score - score.mean())).sum())
    return LengthBias(
        pearson=_correlation(score, length),
        spearman=_correlation(_ranks(score), _ranks(length)),
        slope=joint / spread if spread else 0.0,
        partial=partial,
    )


def _correlation(a: Doubles, b: Doubles) -> float:
    a, b = a - a.mean(), b - b.mean()
    size = math.sqrt(float((a**2).sum())) * math.sqrt(float((b**2).sum()))
    return max(-1.0, min(1.0, float((a * b).sum()) / size)) if size else 0.0


def _ranks(values: Doubles) -> Doubles:
    """Ranks from 1, equal values sharing their mean rank (Kendall 1945)."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], np.float64)


def _without(values: Doubles, other: Doubles) -> Doubles:
    """What is left of `values` after the least-squares line in `other`; 0 where nothing is."""
    centred, base = values - values.mean(), other - other.mean()
    spread = float((base**2).sum())
    rest = centred - base * (float((centred * base).sum()) / spread) if spread else centred
    negligible = 1e-12 * float(np.abs(centred).max(initial=0.0))
    return np.where(np.abs(rest) > negligible, rest, 0.0)
