"""Advantages: how much better than expected an attempt, or a token of it, was.

Pure functions over float64 numpy arrays. A score of None means "could not judge": the attempt
is absent from every mean and spread and its own advantage is 0. Sums are exactly rounded
(`math.fsum`), so the order of siblings changes nothing, not even the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Doubles", "centre", "dr_grpo", "grpo", "has_spread", "returns", "rloo", "whiten"]

Doubles = npt.NDArray[np.float64]

EPSILON = 1e-6
"""Added to standard deviations (as verl and SkyRL do)."""

NO_SPREAD = 1e-9
"""Scores closer than this are equal: what is left is rounding in a verifier's sums."""


def has_spread(scores: Sequence[float | None]) -> bool:
    """Do the judged scores differ? Without a spread a group teaches nothing.

    >>> has_spread([0.0, 1.0, None]), has_spread([1.0, 1.0]), has_spread([1.0, None])
    (True, False, False)
    """
    judged = [score for score in scores if score is not None]
    return bool(judged) and max(judged) - min(judged) > NO_SPREAD


def dr_grpo(scores: Sequence[float | None]) -> Doubles:
    """Score minus the mean of the group (Liu et al. 2025): [G] scores -> [G] advantages.

    >>> dr_grpo([1.0, 0.0, None, 0.5]).tolist()
    [0.5, -0.5, 0.0, 0.0]
    """
    out = np.zeros(len(scores))
    if has_spread(scores):
        judged = [(i, score) for i, score in enumerate(scores) if score is not None]
        mean = math.fsum(score for _, score in judged) / len(judged)
        for i, score in judged:
            out[i] = score - mean
    return out


def grpo(scores: Sequence[float | None]) -> Doubles:
    """(score - mean) / (std + 1e-6), unbiased std in two passes (Shao et al. 2024).

    A lone or uniform group gets exactly 0.

    >>> [round(a, 5) for a in grpo([1.0, 0.0]).tolist()]
    [0.70711, -0.70711]
    """
    centred = dr_grpo(scores)
    if not centred.any():
        return centred
    judged = sum(score is not None for score in scores)
    std = math.sqrt(math.fsum(centred**2) / (judged - 1))
    return centred / (std + EPSILON)


def rloo(scores: Sequence[float | None]) -> Doubles:
    """Score minus the mean of the others (Ahmadian et al. 2024) = G / (G - 1) (score - mean).

    >>> rloo([1.0, 0.0, 0.0]).tolist()
    [1.0, -0.5, -0.5]
    """
    centred = dr_grpo(scores)
    judged = sum(score is not None for score in scores)
    return centred * (judged / (judged - 1)) if judged > 1 else centred


def returns(rewards: Doubles, gamma: float) -> Doubles:
    """Discounted sum of the rewards from each token on: [k] -> [k].

    Only the policy's own tokens are steps: leave those of tools and users out of `rewards`,
    and the return is carried over them undiscounted.

    >>> returns(np.array([0.0, 0.0, 1.0]), 0.5).tolist()
    [0.25, 0.5, 1.0]
    """
    out = np.zeros(len(rewards))
    carried = 0.0
    for t in reversed(range(len(rewards))):
        carried = float(rewards[t]) + gamma * carried
        out[t] = carried
    return out


def centre(rows: Sequence[Doubles]) -> list[Doubles]:
    """Subtract the mean over all tokens of all rows: ragged [N][k_i] -> the same shape."""
    mean = _mean(rows)
    return [row - mean for row in rows]


def whiten(rows: Sequence[Doubles]) -> list[Doubles]:
    """(x - mean) / (std + 1e-6) over all tokens of all rows (REINFORCE++, Hu 2025).

    Unbiased std in two passes. Without a spread exactly 0.
    """
    values = np.concatenate(rows) if rows else np.zeros(0)
    if not has_spread(values.tolist()):
        return [np.zeros(len(row)) for row in rows]
    centred = centre(rows)
    std = math.sqrt(math.fsum(np.concatenate(centred) ** 2) / (len(values) - 1))
    return [row / (std + EPSILON) for row in centred]


def _mean(rows: Sequence[Doubles]) -> float:
    count = sum(len(row) for row in rows)
    return math.fsum(np.concatenate(rows)) / count if count else 0.0
