"""Scoring samples under the current weights: token log-probabilities and entropies.

Two layouts give the same numbers: prefix trees (every distinct prefix computed once), and
right-padded rows for models whose attention takes no mask of ours. Only positions that
predict a trainable token go through the output head, each distinct one once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headrace.policy.engine import TorchPolicy, attention_mask
from headrace.policy.tree import TokenTree, chunks
from headrace.types import Ids, Sample


@dataclass(frozen=True, slots=True)
class Scored:
    """One micro-batch: T trainable tokens of the samples `members`, flattened in that order.

    `logps` and, where asked for, `entropy` [T] carry gradients if autograd is on; `sequence`
    [T] is the index into `members` each token belongs to.
    """

    members: tuple[int, ...]
    logps: Tensor
    entropy: Tensor | None
    sequence: Tensor


@dataclass(frozen=True, slots=True)
class _Targets:
    """What is asked of the head: token `ids` [T] at `rows` [T] of the kept positions."""

    rows: Tensor
    ids: Tensor
    supports: tuple[Ids, ...] | None


def score(
    policy: TorchPolicy,
    samples: Sequence[Sample],
    *,
    micro_tokens: int,
    layout: str,
    entropy: bool = False,
) -> Iterator[Scored]:
    """Log-probabilities of every trainable token, a micro-batch at a time.

    The distribution is the one the token was drawn from: logits over the sample's temperature,
    within its recorded support. Gradients flow if autograd is on where this is iterated.
    """
    usable = [index for index, sample in enumerate(samples) if bool(sample.trainable.any())]
    for group in _by_temperature(samples, usable):
        sequences = [samples[i].ids for i in group]
        if layout == "tree":
            for members, tree in chunks(sequences, micro_tokens):
                chosen = tuple(group[m] for m in members)
                batch = [samples[i] for i in chosen]
                logits, rows = _run_tree(policy, batch, tree)
                yield _finish(chosen, batch, logits, rows, entropy)
        else:
            for members in _padded_chunks(sequences, micro_tokens):
                chosen = tuple(group[m] for m in members)
                batch = [samples[i] for i in chosen]
                logits, rows = _run_padded(policy, batch)
                yield _finish(chosen, batch, logits, rows, entropy)


def _by_temperature(samples: Sequence[Sample], usable: list[int]) -> list[list[int]]:
    groups: dict[float, list[int]] = {}
    for index in usable:
        groups.setdefault(samples[index].temperature, []).append(index)
    return list(groups.values())


def _run_tree(
    policy: TorchPolicy, batch: Sequence[Sample], tree: TokenTree
) -> tuple[Tensor, list[np.ndarray]]:
    """Logits [K, V] of the distinct predicting nodes, and each sample's rows into them."""
    device = policy.device
    predictors = [
        path[np.flatnonzero(sample.trainable) - 1]
        for sample, path in zip(batch, tree.paths, strict=True)
    ]
    kept, inverse = np.unique(np.concatenate(predictors), return_inverse=True)
    mask = None
    if tree.branches:
        visible = torch.from_numpy(tree.visible()).to(device)
        mask = attention_mask(visible, policy.config._attn_implementation)
    out = policy.forward(
        input_ids=torch.from_numpy(tree.ids).long().to(device)[None],
        attention_mask=mask,
        position_ids=torch.from_numpy(tree.depth).to(device)[None],
        use_cache=False,
        logits_to_keep=torch.from_numpy(kept).to(device),
    )
    rows = np.split(inverse, np.cumsum([len(p) for p in predictors])[:-1])
    return out.logits[0].float(), rows


def _padded_chunks(sequences: Sequence[Ids], budget: int) -> Iterator[list[int]]:
    """Rows of similar length, as many as fit `budget` tokens with their padding."""
    members = list[int]()
    for index in sorted(range(len(sequences)), key=lambda i: len(sequences[i])):
        if members and (len(members) + 1) * len(sequences[index]) > budget:
            yield members
            members = []
        members.append(index)
    if members:
        yield members


def _run_padded(policy: TorchPolicy, batch: Sequence[Sample]) -> tuple[Tensor, list[np.ndarray]]:
    device = policy.device
    width = max(len(sample.ids) for sample in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    predictors: list[np.ndarray] = []
    for slot, sample in enumerate(batch):
        ids[slot, : len(sample.ids)] = torch.from_numpy(sample.ids)
        mask[slot, : len(sample.ids)] = 1
        predictors.append(slot * width + np.flatnonzero(sample.trainable) - 1)
    positions = (mask.cumsum(dim=1) - 1).clamp_min(0)
    out = policy.forward(
        input_ids=ids.to(device),
        attention_mask=mask.to(device),
        position_ids=positions.to(device),
        use_cache=False,
    )
    kept = torch.from_numpy(np.concatenate(predictors)).to(device)
    logits = out.logits.flatten(0, 1)[kept].float()
    rows = np.split(np.arange(len(kept)), np.cumsum([len(p) for p in predictors])[:-1])
    return logits, rows


def _finish(
    members: tuple[int, ...],
    batch: Sequence[Sample],
    logits: Tensor,
    rows: Sequence[np.ndarray],
    entropy: bool,
) -> Scored:
    device = logits.device
    targets = _Targets(
        rows=torch.from_numpy(np.concatenate(rows)).to(device),
        ids=torch.from_numpy(np.concatenate([s.ids[s.trainable] for s in batch])).long().to(device),
        supports=_supports(batch),
    )
    logits = logits / batch[0].temperature
    measure = _within_support if targets.supports is not None else _over_vocabulary
    logps, spread = measure(logits, targets, entropy)
    counts = torch.tensor([len(r) for r in rows], device=device)
    sequence = torch.arange(len(batch), device=device).repeat_interleave(counts)
    return Scored(members=members, logps=logps, entropy=spread, sequence=sequence)


def _supports(batch: Sequence[Sample]) -> tuple[Ids, ...] | None:
    """Support rows of all trainable tokens in order; None if nothing was filtered."""
    if all(sample.support is None for sample in batch):
        return None
    rows: list[Ids] = []
    for sample in batch:
        if sample.support is None:
            raise ValueError("samples with and without a support cannot share a temperature group")
        rows += [sample.support.row(t) for t in range(len(sample.support))]
    return tuple(rows)


def _over_vocabulary(
    logits: Tensor, targets: _Targets, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    normaliser = torch.logsumexp(logits, dim=-1)
    logps = logits[targets.rows, targets.ids] - normaliser[targets.rows]
    if not entropy:
        return logps, None
    probs = torch.exp(logits - normaliser[:, None])
    return logps, (normaliser - (probs * logits).sum(dim=-1))[targets.rows]


def _within_support(
    logits: Tensor, targets: _Targets, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    assert targets.supports is not None
    width = max(len(row) for row in targets.supports)
    ids = torch.zeros(len(targets.supports), width, dtype=torch.int64)
    inside = torch.zeros_like(ids, dtype=torch.bool)
    for index, row in enumerate(targets.supports):
        ids[index, : len(row)] = torch.from_numpy(row)
        inside[index, : len(row)] = True
    ids, inside = ids.to(logits.device), inside.to(logits.device)
    kept = logits[targets.rows[:, None], ids]
    normaliser = torch.logsumexp(kept.masked_fill(~inside, -torch.inf), dim=-1)
    logps = logits[targets.rows, targets.ids] - normaliser
    if not entropy:
        return logps, None
    probs = torch.exp(kept - normaliser[:, None]) * inside
    return logps, normaliser - (probs * kept).sum(dim=-1)
