"""Critics: advantages from predicted values, and the loss that fits the predictions.

`gae` is numpy. `value_loss` speaks to tensors through their own methods only, so that credit can
read this module without loading torch. Whitening over the optimizer batch is
`headrace.algorithms.advantages.whiten`, after the returns are taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.algorithms.advantages import Doubles
from headrace.types import Floats, Mask

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Estimates",
    "ValueInputs",
    "ValueReport",
    "ValueSums",
    "ValueTerms",
    "gae",
    "value_loss",
]


# --- advantages ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Of one sequence: `advantages` [n], and the `returns` [n] that the critic is fitted to.

    Both are 0 at tokens that the policy did not write.
    """

    advantages: Doubles
    returns: Doubles


def gae(
    rewards: Floats | Doubles,
    values: Floats | Doubles,
    mask: Mask,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    bootstrap: float = 0.0,
) -> Estimates:
    """Generalised advantages of one sequence (Schulman et al. 2016): [n] rewards, values, mask.

    `values[t]` predicts what follows the state in which token t was chosen. Backwards over the
    tokens with `mask`: delta = r + gamma V' - V, A = delta + gamma lam A', where V' and A' are
    those of the next token that the policy wrote: over the others (tool output, users) they are
    carried unchanged, and whatever stands there, NaN included, is not read. `bootstrap` is V'
    after the last: the predicted value where an attempt was cut off, 0 where it ended.

    With lam 1 and gamma 1 the advantage is the sum of the rewards to come less the value:

    >>> wrote = np.array([True, False, True])
    >>> found = gae(np.array([0.0, 9.0, 1.0]), np.array([0.25, 9.0, 0.5]), wrote, lam=1.0)
    >>> found.advantages.tolist(), found.returns.tolist()
    ([0.75, 0.0, 0.5], [1.0, 0.0, 1.0])

    Raises ValueError for lengths that differ.
    """
    if not len(rewards) == len(values) == len(mask):
        raise ValueError(f"{len(rewards)} rewards, {len(values)} values, {len(mask)} mask entries")
    advantages, returns = np.zeros(len(mask)), np.zeros(len(mask))
    carried, following = 0.0, bootstrap
    for t in reversed(np.flatnonzero(mask).tolist()):
        value = float(values[t])
        carried = float(rewards[t]) + gamma * following - value + gamma * lam * carried
        following = value
        advantages[t] = carried
        returns[t] = carried + value
    return Estimates(advantages=advantages, returns=returns)


# --- the critic's loss ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueInputs:
    """Trainable tokens, flattened to [T]: `value` carries gradient; `old`, its value when the
    batch was scored, `target` (a return) and `weight` are constants. Weight 0 takes no part."""

    value: Tensor
    old: Tensor
    target: Tensor
    weight: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueReport:
    """What one pass of a critic saw: `clipped_share` 0..1 of the tokens; `explained`, at most 1:
    the share of the variance of the returns that the values explain (0 where there is none)."""

    loss: float
    tokens: int
    clipped_share: float
    value_mean: float
    return_mean: float
    explained: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSums:
    """Sums over the tokens that take part; they add up over micro-batches."""

    loss: float = 0.0
    tokens: int = 0
    clipped: int = 0
    value: float = 0.0
    target: float = 0.0
    target_square: float = 0.0
    error: float = 0.0
    error_square: float = 0.0

    def __add__(self, other: ValueSums) -> ValueSums:
        return ValueSums(
            loss=self.loss + other.loss,
            tokens=self.tokens + other.tokens,
            clipped=self.clipped + other.clipped,
            value=self.value + other.value,
            target=self.target + other.target,
            target_square=self.target_square + other.target_square,
            error=self.error + other.error,
            error_square=self.error_square + other.error_square,
        )

    def report(self) -> ValueReport:
        count = max(self.tokens, 1)
        spread = self.target_square / count - (self.target / count) ** 2
        missed = self.error_square / count - (self.error / count) ** 2
        return ValueReport(
            loss=self.loss,
            tokens=self.tokens,
            clipped_share=self.clipped / count,
            value_mean=self.value / count,
            return_mean=self.target / count,
            explained=1 - missed / spread if spread > 0 else 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTerms:
    """A micro-batch's share of the loss (a graph-connected scalar) and of the report."""

    loss: Tensor
    sums: ValueSums


def value_loss(inputs: ValueInputs, *, clip: float | None = 0.2) -> ValueTerms:
    """Half the squared error to the return, in PPO's pessimistic form (Schulman et al. 2017).

    Sum of weight x max((V - R)^2, (clip(V, old - clip, old + clip) - R)^2) / 2, `clip` in units
    of the value; None leaves the plain squared error. The weights hold the denominator.
    """
    on = inputs.weight != 0
    value, target = _only(inputs.value.float(), on), _only(inputs.target.float(), on)
    old = _only(inputs.old.float(), on)
    error = value - target
    plain = error.square()
    pessimistic = plain
    if clip is not None:
        pessimistic = (value.maximum(old - clip).minimum(old + clip) - target).square()
    loss = (inputs.weight * plain.maximum(pessimistic)).sum() / 2
    numbers = error.detach().double()
    targets = target.double()
    return ValueTerms(
        loss=loss,
        sums=ValueSums(
            loss=float(loss.detach()),
            tokens=int(on.sum()),
            clipped=int((pessimistic > plain).sum()),
            value=float(value.detach().double().sum()),
            target=float(targets.sum()),
            target_square=float(targets.square().sum()),
            error=float(numbers.sum()),
            error_square=float(numbers.square().sum()),
        ),
    )


def _only(values: Tensor, on: Tensor) -> Tensor:
    """`values` where `on`, 0 elsewhere, in value and in gradient, whatever is there."""
    return values.where(on, values.new_zeros(()))
