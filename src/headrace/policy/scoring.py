"""Scoring samples under the current weights: token log-probabilities and entropies.

Two layouts give the same numbers: prefix trees (every distinct prefix computed once, nothing
padded), and right-padded rows for models whose attention cannot be redirected. Only positions
that predict a trainable token go through the output head, each distinct one once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.errors import UsageError
from headrace.policy.attention import attending
from headrace.policy.checkpointing import Context, ScratchFile, recomputing
from headrace.policy.engine import TorchPolicy
from headrace.policy.logprobs import Targets, measure
from headrace.policy.memory import spare_memory
from headrace.policy.packed import PackedAttention
from headrace.policy.tree import TokenTree, chunks
from headrace.recipe import LearnerSpec
from headrace.types import Ids, Sample

Rows = npt.NDArray[np.int64]

__all__ = ["Scored", "refuse_unfit", "score"]

LONG = 2048
"""From this many tokens in one pass on, `checkpointing = "auto"` computes layers again."""


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
class _Kept:
    """The states [K, width] that the head is asked about, and each sample's rows into them."""

    states: Tensor
    rows: tuple[Rows, ...]


def refuse_unfit(policy: TorchPolicy, samples: Sequence[Sample], spec: LearnerSpec) -> None:
    """UsageError for a sample that the model cannot compute as it is: nothing is ever cut."""
    vocabulary = int(policy.config.get_text_config().vocab_size)
    limit = policy.parts.learned_positions
    if limit is None and not spec.beyond_context:
        limit = policy.context_length
    for index, sample in enumerate(samples):
        where = f"sample {index}, {sample.trajectory}"
        if len(sample.ids) == 0:
            raise UsageError("a sample has no tokens", where=where)
        low, high = int(sample.ids.min()), int(sample.ids.max())
        if low < 0 or high >= vocabulary:
            raise UsageError(
                f"token id {low if low < 0 else high} is outside of the model's 0 to "
                f"{vocabulary - 1}",
                where=where,
                hint="the sample was made with another tokenizer",
            )
        if limit is not None and len(sample.ids) > limit:
            raise UsageError(
                f"a sample of {len(sample.ids)} tokens is longer than the model's {limit}",
                where=where,
                hint="play shorter; learner.beyond_context = true trains on positions which "
                "the model has never seen, where it computes positions",
            )


def score(
    policy: TorchPolicy, samples: Sequence[Sample], spec: LearnerSpec, *, entropy: bool = False
) -> Iterator[Scored]:
    """Log-probabilities of every trainable token, a micro-batch at a time.

    The distribution is the one the token was drawn from: logits over the sample's temperature,
    within its recorded support. Gradients flow if autograd is on where this is iterated.
    Raises what `refuse_unfit` does, and StorageError where a scratch file cannot be written.
    """
    refuse_unfit(policy, samples, spec)
    layout = spec.layout
    if layout == "auto":
        layout = "tree" if policy.supports_packing else "padded"
    usable = [index for index, sample in enumerate(samples) if bool(sample.trainable.any())]
    for group in _by_temperature(samples, usable):
        sequences = [samples[i].ids for i in group]
        if layout == "tree":
            for members, tree in chunks(sequences, spec.micro_tokens):
                chosen = tuple(group[m] for m in members)
                batch = [samples[i] for i in chosen]
                kept = _run_tree(policy, batch, tree, spec)
                yield _finish(policy, chosen, batch, kept, entropy)
        else:
            for members in _padded_chunks(sequences, spec.micro_tokens):
                chosen = tuple(group[m] for m in members)
                batch = [samples[i] for i in chosen]
                yield _finish(policy, chosen, batch, _run_padded(policy, batch, spec), entropy)


def _by_temperature(samples: Sequence[Sample], usable: list[int]) -> list[list[int]]:
    groups: dict[float, list[int]] = {}
    for index in usable:
        groups.setdefault(samples[index].temperature, []).append(index)
    return list(groups.values())


@contextlib.contextmanager
def _economy(
    policy: TorchPolicy, spec: LearnerSpec, tokens: int, during: Context
) -> Generator[None]:
    """Computing layers again instead of keeping their insides, where that is called for."""
    on = spec.checkpointing == "on" or (spec.checkpointing == "auto" and tokens >= LONG)
    spare_memory(on=tokens >= LONG)
    if not on or not torch.is_grad_enabled():
        yield
        return
    scratch = ScratchFile() if spec.offload else None
    with recomputing(policy.parts.layers, during=during, scratch=scratch):
        yield


def _run_tree(
    policy: TorchPolicy, batch: Sequence[Sample], tree: TokenTree, spec: LearnerSpec
) -> _Kept:
    device = policy.device
    predictors = [
        path[np.flatnonzero(sample.trainable) - 1]
        for sample, path in zip(batch, tree.paths, strict=True)
    ]
    kept, inverse = np.unique(np.concatenate(predictors), return_inverse=True)
    plan = PackedAttention(tree, device)

    def during() -> contextlib.AbstractContextManager[None]:
        return attending(policy.config, plan)

    with during(), policy.precision(), _economy(policy, spec, len(tree), during):
        states = policy.parts.hidden(
            input_ids=torch.from_numpy(tree.ids).long().to(device)[None],
            position_ids=torch.from_numpy(tree.depth).to(device)[None],
        )
    rows = np.split(inverse, np.cumsum([len(p) for p in predictors])[:-1])
    return _Kept(states[0, torch.from_numpy(kept).to(device)], tuple(rows))


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


def _run_padded(policy: TorchPolicy, batch: Sequence[Sample], spec: LearnerSpec) -> _Kept:
    device = policy.device
    width = max(len(sample.ids) for sample in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    predictors: list[Rows] = []
    for slot, sample in enumerate(batch):
        ids[slot, : len(sample.ids)] = torch.from_numpy(sample.ids)
        mask[slot, : len(sample.ids)] = 1
        predictors.append(slot * width + np.flatnonzero(sample.trainable) - 1)
    positions = (mask.cumsum(dim=1) - 1).clamp_min(0)
    with policy.precision(), _economy(policy, spec, ids.numel(), contextlib.nullcontext):
        states = policy.parts.hidden(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            position_ids=positions.to(device),
        )
    kept = torch.from_numpy(np.concatenate(predictors)).to(device)
    rows = np.split(np.arange(len(kept)), np.cumsum([len(p) for p in predictors])[:-1])
    return _Kept(states.flatten(0, 1)[kept], tuple(rows))


def _finish(
    policy: TorchPolicy,
    members: tuple[int, ...],
    batch: Sequence[Sample],
    kept: _Kept,
    entropy: bool,
) -> Scored:
    device = policy.device
    targets = Targets(
        rows=torch.from_numpy(np.concatenate(kept.rows)).to(device),
        ids=torch.from_numpy(np.concatenate([s.ids[s.trainable] for s in batch])).long().to(device),
        supports=_supports(batch),
    )

    with policy.precision():
        measured = measure(
            policy.parts.logits,
            kept.states,
            targets,
            vocabulary=int(policy.config.get_text_config().vocab_size),
            temperature=batch[0].temperature,
            entropy=entropy,
        )
    counts = torch.tensor([len(r) for r in kept.rows], device=device)
    return Scored(
        members=members,
        logps=measured.logps,
        entropy=measured.entropy,
        sequence=torch.arange(len(batch), device=device).repeat_interleave(counts),
    )


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
