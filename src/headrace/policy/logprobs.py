"""From hidden states to log-probabilities and entropies, never with all logits at once.

Where the logits of a micro-batch are small they are computed once and kept for the backward
pass; otherwise in chunks of positions, each computed again when its gradient is due, so that
memory does not grow with vocabulary times length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """Of T targets, in nats: log-probability [T] and, where asked for, the entropy [T] of its
    distribution and `uniform` [T], the mean log-probability of everything it could have been."""

    logps: Tensor
    entropy: Tensor | None = None
    uniform: Tensor | None = None


_Found = tuple[Tensor, Tensor | None, Tensor | None]
"""What `Measured` holds, in the form that autograd functions give."""


def measure(
    head: Callable[[Tensor], Tensor],
    hidden: Tensor,
    targets: Targets,
    *,
    vocabulary: int,
    temperature: float,
    entropy: bool,
    uniform: bool = False,
) -> Measured:
    """Log-probabilities under `head(hidden)` [K, vocabulary] over `temperature`."""

    def part(states: Tensor, wanted: Targets) -> _Found:
        logits = head(states)
        if wanted.supports is None:
            found: Any = _OverVocabulary.apply(
                logits, wanted.rows, wanted.ids, temperature, entropy, uniform
            )
            return found
        return _within_support(logits / temperature, wanted, entropy, uniform)

    positions = len(hidden)
    if positions * vocabulary <= KEPT_LOGITS:
        return Measured(*part(hidden, targets))
    step = max(1, CHUNK_LOGITS // vocabulary)
    parts: list[_Found] = []
    order: list[Tensor] = []
    for first in range(0, positions, step):
        wanted, places = targets.within(first, first + step)
        parts.append(_recomputed(part, hidden[first : first + step], wanted))
        order.append(places)
    back = torch.argsort(torch.cat(order))

    def whole(pieces: Sequence[Tensor | None]) -> Tensor | None:
        present = [piece for piece in pieces if piece is not None]
        return torch.cat(present)[back] if present else None

    return Measured(
        logps=torch.cat([found[0] for found in parts])[back],
        entropy=whole([found[1] for found in parts]),
        uniform=whole([found[2] for found in parts]),
    )


def _recomputed(
    part: Callable[[Tensor, Targets], _Found], states: Tensor, wanted: Targets
) -> _Found:
    if not torch.is_grad_enabled():
        return part(states, wanted)
    found: Any = checkpoint(part, states, wanted, use_reentrant=False, preserve_rng_state=False)
    return found


class _OverVocabulary(torch.autograd.Function):
    """Log-softmax at some places of `logits` [K, V]: one buffer of that size each way.

    Derivatives in the logits z: of log p_y it is 1[y] - p, of the entropy H it is
    -p (log p + H), of the mean log-probability it is 1 / V - p.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        rows: Tensor,
        ids: Tensor,
        temperature: float,
        entropy: bool,
        uniform: bool,
    ) -> _Found:
        scores = logits.float()
        if temperature != 1.0:
            scores = scores / temperature
        normaliser = torch.logsumexp(scores, dim=-1)
        logps = scores[rows, ids] - normaliser[rows]
        spread = None
        if entropy:
            weights = torch.exp(scores - normaliser[:, None])
            spread = normaliser - weights.mul_(scores).sum(dim=-1)
        level = (scores.mean(dim=-1) - normaliser)[rows] if uniform else None
        ctx.temperature, ctx.dtype = temperature, logits.dtype
        ctx.save_for_backward(scores, normaliser, rows, ids, spread)
        return logps, None if spread is None else spread[rows], level

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        d_logps, d_spread, d_level = grad_outputs
        scores, normaliser, rows, ids, spread = ctx.saved_tensors

        def per_row(values: Tensor) -> Tensor:
            return normaliser.new_zeros(len(scores)).index_add(0, rows, values)

        constant = per_row(d_logps)
        level = None if d_level is None else per_row(d_level)
        if level is not None:
            constant = constant + level
        gradient = torch.sub(scores, normaliser[:, None]).exp_()
        if spread is None or d_spread is None:
            gradient.mul_(-constant[:, None])
        else:
            pull = per_row(d_spread)
            constant = constant + pull * (spread - normaliser)
            gradient.mul_((scores * -pull[:, None]).sub_(constant[:, None]))
        if level is not None:
            gradient.add_(level[:, None] / scores.shape[-1])
        gradient.index_put_((rows, ids), d_logps, accumulate=True)
        if ctx.temperature != 1.0:
            gradient.div_(ctx.temperature)
        return gradient.to(ctx.dtype), None, None, None, None, None


def _within_support(logits: Tensor, targets: Targets, entropy: bool, uniform: bool) -> _Found:
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
    spread = level = None
    if entropy:
        probs = torch.exp(kept - normaliser[:, None]) * inside
        spread = normaliser - (probs * kept).sum(dim=-1)
    if uniform:
        level = (kept * inside).sum(dim=-1) / inside.sum(dim=-1) - normaliser
    return logps, spread, level
