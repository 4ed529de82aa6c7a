"""From hidden states to log-probabilities and entropies, never with all logits at once.

Where the logits of a micro-batch are small they are computed once and kept for the backward
pass; otherwise in chunks of positions, each computed again when its gradient is due, so that
memory does not grow with vocabulary times length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headrace.types import Ids

__all__ = ["Measured", "Targets", "measure"]

KEPT_LOGITS = 1 << 26
"""The most logits (256 MiB in fp32) that are kept for the backward pass."""

CHUNK_LOGITS = 1 << 24
"""Logits of one chunk where there are more."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What is asked of the head: the tokens `ids` [T] at `rows` [T] of the kept positions.

    `supports` are the T sets of tokens that each was drawn from, if they were filtered.
    """

    rows: Tensor
    ids: Tensor
    supports: tuple[Ids, ...] | None

    def within(self, first: int, last: int) -> tuple[Targets, Tensor]:
        """The targets at rows [first, last), counted from there, and their places here."""
        places = ((self.rows >= first) & (self.rows < last)).nonzero()[:, 0]
        supports = self.supports
        if supports is not None:
            supports = tuple(supports[place] for place in places.tolist())
        return Targets(self.rows[places] - first, self.ids[places], supports), places


@dataclass(frozen=True, slots=True)
class Measured:
    """Of T targets: log-probability [T] and, where asked for, entropy [T] in nats."""

    logps: Tensor
    entropy: Tensor | None


def measure(
    head: Callable[[Tensor], Tensor],
    hidden: Tensor,
    targets: Targets,
    *,
    vocabulary: int,
    temperature: float,
    entropy: bool,
) -> Measured:
    """Log-probabilities under `head(hidden)` [K, vocabulary] over `temperature`."""

    def part(states: Tensor, wanted: Targets) -> tuple[Tensor, Tensor | None]:
        logits = head(states)
        if wanted.supports is None:
            found: Any = _OverVocabulary.apply(
                logits, wanted.rows, wanted.ids, temperature, entropy
            )
            return found
        return _within_support(logits / temperature, wanted, entropy)

    positions = len(hidden)
    if positions * vocabulary <= KEPT_LOGITS:
        return Measured(*part(hidden, targets))
    step = max(1, CHUNK_LOGITS // vocabulary)
    logps: list[Tensor] = []
    spreads: list[Tensor] = []
    order: list[Tensor] = []
    for first in range(0, positions, step):
        wanted, places = targets.within(first, first + step)
        found = _recomputed(part, hidden[first : first + step], wanted)
        logps.append(found[0])
        order.append(places)
        if found[1] is not None:
            spreads.append(found[1])
    back = torch.argsort(torch.cat(order))
    return Measured(torch.cat(logps)[back], torch.cat(spreads)[back] if entropy else None)


def _recomputed(
    part: Callable[[Tensor, Targets], tuple[Tensor, Tensor | None]],
    states: Tensor,
    wanted: Targets,
) -> tuple[Tensor, Tensor | None]:
    if not torch.is_grad_enabled():
        return part(states, wanted)
    found: Any = checkpoint(part, states, wanted, use_reentrant=False, preserve_rng_state=False)
    return found


class _OverVocabulary(torch.autograd.Function):
    """Log-softmax at some places of `logits` [K, V]: one buffer of that size each way.

    Derivatives in the logits z: of log p_y it is 1[y] - p, of the entropy H it is
    -p (log p + H).
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, rows: Tensor, ids: Tensor, temperature: float, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        scores = logits.float()
        if temperature != 1.0:
            scores = scores / temperature
        normaliser = torch.logsumexp(scores, dim=-1)
        logps = scores[rows, ids] - normaliser[rows]
        spread = None
        if entropy:
            weights = torch.exp(scores - normaliser[:, None])
            spread = normaliser - weights.mul_(scores).sum(dim=-1)
        ctx.temperature, ctx.dtype = temperature, logits.dtype
        ctx.save_for_backward(scores, normaliser, rows, ids, spread)
        return logps, None if spread is None else spread[rows]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        d_logps, d_spread = grad_outputs
        scores, normaliser, rows, ids, spread = ctx.saved_tensors
        per_row = normaliser.new_zeros(len(scores)).index_add(0, rows, d_logps)
        gradient = torch.sub(scores, normaliser[:, None]).exp_()
        if spread is None or d_spread is None:
            gradient.mul_(-per_row[:, None])
        else:
            pull = normaliser.new_zeros(len(scores)).index_add(0, rows, d_spread)
            constant = per_row + pull * (spread - normaliser)
            gradient.mul_((scores * -pull[:, None]).sub_(constant[:, None]))
        gradient.index_put_((rows, ids), d_logps, accumulate=True)
        if ctx.temperature != 1.0:
            gradient.div_(ctx.temperature)
        return gradient.to(ctx.dtype), None, None, None, None


def _within_support(
    logits: Tensor, targets: Targets, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    assert targets.supports is not None
    width = max((len(row) for row in targets.supports), default=1)
    ids = torch.zeros(len(targets.supports), width, dtype=torch.int64)
    inside = torch.zeros_like(ids, dtype=torch.bool)
    for index, row in enumerate(targets.supports):
        ids[index, : len(row)] = torch.from_numpy(row)
        inside[index, : len(row)] = True
    ids, inside = ids.to(logits.device), inside.to(logits.device)
    kept = logits[targets.rows[:, None], ids].float()
    normaliser = torch.logsumexp(kept.masked_fill(~inside, -torch.inf), dim=-1)
    logps = logits[targets.rows, targets.ids].float() - normaliser
    if not entropy:
        return logps, None
    probs = torch.exp(kept - normaliser[:, None]) * inside
    return logps, normaliser - (probs * kept).sum(dim=-1)
