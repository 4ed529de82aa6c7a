"""Statistics of held-out scores: intervals, paired differences, pass@k. Pure functions.

Scores are in [0, 1]; None means "could not judge" and is left out and counted, never 0.
Intervals are two-sided. Where the observed spread is zero a variance says nothing, and the
interval falls back on the exact bound for an event that n trials did not show once:
1 - (alpha / 2)^(1 / n), the "rule of three".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from headrace.errors import VerifierError

__all__ = [
    "Difference",
    "Estimate",
    "mean_interval",
    "paired_difference",
    "pass_at_k",
    "pass_every_k",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean score, its standard error, and its interval; `n` judged, `unscored` left out."""

    score: float
    stderr: float
    low: float
    high: float
    n: int
    unscored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Mean of after - before over the same items, in [-1, 1].

    `n` pairs in `clusters` independent clusters; `gained` and `lost` count items whose score
    rose and fell; `unscored` pairs had a side that could not be judged. `p_value` is two-sided
    for "no change".
    """

    value: float
    stderr: float
    low: float
    high: float
    n: int
    clusters: int
    gained: int
    lost: int
    unscored: int
    p_value: float


def mean_interval(scores: Sequence[float | None], confidence: float = 0.95) -> Estimate:
    """The mean of independent scores.

    stderr is the sample standard deviation (n - 1) over sqrt(n), as lm-eval's; for a single
    score it is 0.5, the most it can be. The interval is Wilson's where all scores are 0 or 1,
    else Student's t, cut to [0, 1]. Raises VerifierError where nothing could be judged.

    >>> e = mean_interval([1.0, 1.0, 0.0, None])
    >>> round(e.score, 4), round(e.stderr, 4), e.n, e.unscored
    (0.6667, 0.3333, 3, 1)
    """
    judged = [score for score in scores if score is not None]
    n = len(judged)
    if n == 0:
        raise _nothing_judged(len(scores))
    mean = math.fsum(judged) / n
    stderr = _stderr([score - mean for score in judged], unknown=0.5)
    if all(score in (0.0, 1.0) for score in judged):
        low, high = _wilson(mean, n, confidence)
    else:
        half = _half_width(stderr, n, confidence)
        low, high = max(mean - half, 0.0), min(mean + half, 1.0)
    return Estimate(score=mean, stderr=stderr, low=low, high=high, n=n, unscored=len(scores) - n)


def paired_difference(
    before: Sequence[float | None],
    after: Sequence[float | None],
    confidence: float = 0.95,
    clusters: Sequence[str] | None = None,
) -> Difference:
    """How much the same items, in the same order, score better after than before.

    `clusters` names what each item belongs to (phrasings of one problem share a name): the
    standard error then adds up whole clusters, with the C / (C - 1) correction (Miller 2024,
    arXiv 2411.00640); without, every item stands alone. The interval is Student's t with
    C - 1 degrees of freedom, cut to [-1, 1]. `p_value`: McNemar's exact test where all scores
    are 0 or 1 and no cluster holds two items, else the t-test of the same standard error.
    Raises VerifierError where no pair could be judged, ValueError where lengths differ.

    >>> d = paired_difference([0.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0])
    >>> d.value, d.gained, d.lost, d.p_value
    (0.5, 2, 0, 0.5)
    """
    names = [str(i) for i in range(len(before))] if clusters is None else clusters
    pairs = [
        (b, a, name)
        for b, a, name in zip(before, after, names, strict=True)
        if b is not None and a is not None
    ]
    n = len(pairs)
    if n == 0:
        raise _nothing_judged(len(before))
    changes = [a - b for b, a, _ in pairs]
    value = math.fsum(changes) / n
    residuals: dict[str, list[float]] = {}
    for change, (_, _, name) in zip(changes, pairs, strict=True):
        residuals.setdefault(name, []).append(change - value)
    count = len(residuals)
    sums = [math.fsum(members) * count / n for members in residuals.values()]
    stderr = _stderr(sums, unknown=1.0)
    half = _half_width(stderr, count, confidence)
    gained, lost = sum(c > 0 for c in changes), sum(c < 0 for c in changes)
    binary = all(score in (0.0, 1.0) for b, a, _ in pairs for score in (b, a))
    return Difference(
        value=value,
        stderr=stderr,
        low=max(value - half, -1.0),
        high=min(value + half, 1.0),
        n=n,
        clusters=count,
        gained=gained,
        lost=lost,
        unscored=len(before) - n,
        p_value=_mcnemar(gained, lost) if binary and count == n else _t_test(value, stderr, count),
    )


def pass_at_k(attempts: int, solved: int, k: int) -> float:
    """The chance that at least one of k attempts solves it (Chen et al. 2021), unbiased.

    1 - C(n - c, k) / C(n, k) from c solved of n attempts. ValueError where n < k.

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    _drawable(attempts, solved, k)
    return 1 - math.comb(attempts - solved, k) / math.comb(attempts, k)


def pass_every_k(attempts: int, solved: int, k: int) -> float:
    """The chance that all of k attempts solve it (pass^k): C(c, k) / C(n, k).

    >>> pass_every_k(4, 3, 2)
    0.5
    """
    _drawable(attempts, solved, k)
    return math.comb(solved, k) / math.comb(attempts, k)


def _drawable(attempts: int, solved: int, k: int) -> None:
    if not (1 <= k <= attempts and 0 <= solved <= attempts):
        raise ValueError(f"cannot draw {k} of {attempts} attempts, {solved} of them solved")


def _nothing_judged(items: int) -> Exception:
    if items == 0:
        return ValueError("no items: nothing was evaluated")
    return VerifierError(
        f"none of {items} held-out items could be judged",
        where="evaluation",
        hint="look at the verifier's evidence in the evaluation's records",
    )


def _stderr(residuals: Sequence[float], *, unknown: float) -> float:
    """Of the mean of independent values, given their distances from it."""
    n = len(residuals)
    if n == 1:
        return unknown
    return math.sqrt(math.fsum(r * r for r in residuals) / (n - 1) / n)


def _half_width(stderr: float, n: int, confidence: float) -> float:
    if n == 1:
        return math.inf
    alpha = 1 - confidence
    if stderr < 1e-12:
        return 1 - (alpha / 2) ** (1 / n)
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, 1 - alpha / 2)) * stderr


def _wilson(mean: float, n: int, confidence: float) -> tuple[float, float]:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
    return min(max(centre - half, 0.0), mean), max(min(centre + half, 1.0), mean)


def _mcnemar(gained: int, lost: int) -> float:
    """Exact two-sided: of the items that changed, each direction is a fair coin."""
    flips = gained + lost
    tail = sum(math.comb(flips, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**flips)


def _t_test(value: float, stderr: float, n: int) -> float:
    if n == 1 or abs(value) < 1e-12:
        return 1.0
    if stderr < 1e-12:
        return 2.0 ** (1 - n)
    from scipy.special import stdtr

    return 2 * float(stdtr(n - 1, -abs(value) / stderr))
