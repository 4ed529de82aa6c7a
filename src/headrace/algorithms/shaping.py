"""Reward shaping: what is taken off a score before it becomes an advantage."""

from __future__ import annotations

import numpy as np

from headrace.algorithms.advantages import Doubles
from headrace.recipe import OverlongSpec
from headrace.types import Floats

__all__ = ["k1", "k3_mean", "overlong_penalty"]


def overlong_penalty(length: int, limit: int, spec: OverlongSpec) -> float:
    """DAPO's soft overlong punishment (Yu et al. 2025, eq. 13), in 0..`spec.penalty`.

    0 up to `limit - cache` sampled tokens, then rising linearly, `penalty` from `limit` on.

    >>> [overlong_penalty(n, 100, OverlongSpec(cache=20)) for n in (80, 85, 100, 101)]
    [0.0, 0.25, 1.0, 1.0]
    """
    overshoot = (length - (limit - spec.cache)) / spec.cache
    return spec.penalty * min(max(overshoot, 0.0), 1.0)


def k1(logps: Floats, reference: Floats) -> Doubles:
    """log pi - log pi_ref per token (nats): [k], [k] -> [k]. Its sum is unbiased for the KL."""
    return logps.astype(np.float64) - reference.astype(np.float64)


def k3_mean(k1_rows: list[Doubles]) -> float:
    """Mean over all tokens of e^-d + d - 1, d = k1: KL(pi || pi_ref) in nats per token.

    Unbiased for tokens drawn from pi, and never negative (Schulman 2020). d is clamped to
    +-20. 0 without tokens.
    """
    if not sum(len(row) for row in k1_rows):
        return 0.0
    gap = np.clip(np.concatenate(k1_rows), -20.0, 20.0)
    return float(np.mean(np.expm1(-gap) + gap))
