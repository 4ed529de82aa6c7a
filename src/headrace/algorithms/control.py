"""Controllers of the KL coefficient, the entropy coefficient and the reference's age.

Each observes one number for each optimizer window (a mean over all its trainable tokens, never
of a micro-batch or a rank) and holds a few plain values, saved and restored with checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from headrace.errors import NumericalError
from headrace.recipe import EntropySpec, KlSpec
from headrace.types import Json

__all__ = ["EntropyController", "KlController", "next_entropy_coefficient", "next_kl_coefficient"]

KL_ERROR_BOUND = 0.2
"""Ziegler et al. 2019 clip the relative error to +-0.2, so that one outlier moves little."""

KL_COEFFICIENT_RANGE = 100.0
"""The KL coefficient stays within this factor of where it started: unbounded, one that has
idled below its budget for long would need as long to come back."""


def next_kl_coefficient(coefficient: float, kl: float, spec: KlSpec) -> float:
    """One proportional step (Ziegler et al. 2019, section 2.2) towards `spec.budget` nats.

    beta (1 + clip(kl / budget - 1, +-0.2) x rate); unchanged without a budget.

    >>> round(next_kl_coefficient(0.1, 0.06, KlSpec(place="loss", budget=0.05, rate=0.5)), 6)
    0.11
    """
    if spec.budget is None:
        return coefficient
    error = min(max(kl / spec.budget - 1, -KL_ERROR_BOUND), KL_ERROR_BOUND)
    low, high = spec.coefficient / KL_COEFFICIENT_RANGE, spec.coefficient * KL_COEFFICIENT_RANGE
    return min(max(coefficient * (1 + error * spec.rate), low), high)


def next_entropy_coefficient(coefficient: float, entropy: float, spec: EntropySpec) -> float:
    """One step of `spec.delta` towards `spec.target` nats, within 0..max_coefficient.

    >>> next_entropy_coefficient(0.0, 0.1, EntropySpec(target=0.3, delta=0.001))
    0.001
    """
    if spec.target is None:
        return coefficient
    step = spec.delta if entropy < spec.target else -spec.delta
    return min(max(coefficient + step, 0.0), spec.max_coefficient)


class KlController:
    """How much distance to the reference costs, and when the reference is renewed.

    `coefficient` is 0 where the recipe places no KL.
    """

    def __init__(self, spec: KlSpec) -> None:
        self._spec = spec
        self._coefficient = 0.0 if spec.place == "none" else spec.coefficient
        self._steps = 0
        self._kl = 0.0

    @property
    def coefficient(self) -> float:
        return self._coefficient

    def observe(self, kl: float) -> None:
        """Record a step's mean KL to the reference (nats per token) and move the coefficient."""
        _finite("the KL to the reference", kl)
        if self._spec.place != "none":
            self._coefficient = next_kl_coefficient(self._coefficient, kl, self._spec)
        self._steps += 1
        self._kl = kl

    @property
    def reset_due(self) -> bool:
        """Should the current policy become the reference now?

        After `reset_every` steps, or where the last observed KL is `reset_at` or more.
        """
        spec = self._spec
        by_age = spec.reset_every is not None and self._steps >= spec.reset_every
        by_distance = spec.reset_at is not None and self._steps > 0 and self._kl >= spec.reset_at
        return by_age or by_distance

    def reference_was_reset(self) -> None:
        """Start counting anew; the coefficient stays."""
        self._steps = 0
        self._kl = 0.0

    def state(self) -> dict[str, Json]:
        return {"coefficient": self._coefficient, "steps": self._steps, "kl": self._kl}

    def restore(self, state: Mapping[str, Json]) -> None:
        self._coefficient = float(state["coefficient"])
        self._steps = int(state["steps"])
        self._kl = float(state["kl"])


class EntropyController:
    """The coefficient of the entropy bonus."""

    def __init__(self, spec: EntropySpec) -> None:
        self._spec = spec
        self._coefficient = spec.coefficient

    @property
    def coefficient(self) -> float:
        return self._coefficient

    def observe(self, entropy: float) -> None:
        """Record a step's mean entropy (nats per token) and move the coefficient."""
        _finite("the entropy", entropy)
        self._coefficient = next_entropy_coefficient(self._coefficient, entropy, self._spec)

    def state(self) -> dict[str, Json]:
        return {"coefficient": self._coefficient}

    def restore(self, state: Mapping[str, Json]) -> None:
        self._coefficient = float(state["coefficient"])


def _finite(what: str, value: float) -> None:
    if not math.isfinite(value):
        raise NumericalError(
            f"{what} is {value}",
            where="controller",
            hint="lower learner.learning_rate, or resume from an earlier checkpoint",
        )
