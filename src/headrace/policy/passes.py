"""Passes of the body over samples: which of them share a pass, and the states that come out.

Two layouts give the same states: prefix trees (every distinct prefix computed once, nothing
padded), and right-padded rows for models whose attention cannot be redirected. What is asked
of the states (log-probabilities, scores, values) is the business of whoever iterates.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.errors import UsageError
from headrace.policy.attention import attending
from headrace.policy.checkpointing import Context, ScratchFile, recomputing
from headrace.policy.engine import TorchPolicy
from headrace.policy.memory import spare_memory
from headrace.policy.noise import Noise, noisy
from headrace.policy.packed import PackedAttention
from headrace.policy.tree import TokenTree, chunks
from headrace.recipe import LearnerSpec
from headrace.types import Ids, Sample

__all__ = ["Kept", "Rows", "Units", "last", "passes", "predicting", "refuse_unfit", "together"]

Rows = npt.NDArray[np.int64]

Units = Sequence[Sequence[int]]
"""Indices of samples, in lists of those that must share a pass."""

LONG = 2048
"""From this many tokens in one pass on, `checkpointing = "auto"` computes layers again."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One pass: of the samples `members`, the states [K, width] at the positions asked for.

    Each distinct position is there once; `rows` are, for each member, where its own are.
    """

    members: tuple[int, ...]
    states: Tensor
    rows: tuple[Rows, ...]

    @property
    def flat_rows(self) -> Tensor:
        """The rows of all members, one after another: [T] on the device of the states."""
        return torch.from_numpy(np.concatenate(self.rows)).to(self.states.device)

    @property
    def sequence(self) -> Tensor:
        """For each of those T rows the index into `members` it belongs to."""
        counts = torch.tensor([len(rows) for rows in self.rows], device=self.states.device)
        return torch.arange(len(self.rows), device=counts.device).repeat_interleave(counts)


def predicting(sample: Sample) -> Rows:
    """The positions from which the trainable tokens are predicted."""
    return np.flatnonzero(sample.trainable) - 1


def last(sample: Sample) -> Rows:
    """The position of the last token."""
    return np.array([len(sample.ids) - 1], dtype=np.int64)


def together(samples: Sequence[Sample]) -> list[list[int]]:
    """The indices of the samples of each group, groups in the order of their first sample."""
    units: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        units.setdefault(sample.group, []).append(index)
    return list(units.values())


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


def passes(
    policy: TorchPolicy,
    samples: Sequence[Sample],
    spec: LearnerSpec,
    units: Units,
    *,
    positions: Callable[[Sample], Rows],
    noise: Noise | None = None,
) -> Iterator[Kept]:
    """The states of the samples that `units` name, at their `positions`, a pass at a time.

    Samples of one unit come out of the same pass, together at most `spec.micro_tokens` distinct
    tokens where the unit itself is not larger. With `noise` no prefix is shared. Gradients flow
    if autograd is on where this is iterated. Raises StorageError where a scratch file cannot
    be written.
    """
    chosen = [index for unit in units for index in unit]
    place = {index: at for at, index in enumerate(chosen)}
    local = [[place[index] for index in unit] for unit in units]
    sequences = [samples[index].ids for index in chosen]
    layout = spec.layout
    if layout == "auto":
        layout = "tree" if policy.supports_packing else "padded"
    if layout == "tree":
        shared = noise is None
        for members, tree in chunks(sequences, spec.micro_tokens, local, shared=shared):
            batch = [samples[chosen[member]] for member in members]
            wanted = [positions(sample) for sample in batch]
            states, rows = _run_tree(policy, batch, tree, wanted, spec, noise)
            yield Kept(tuple(chosen[member] for member in members), states, rows)
    else:
        for members in _padded_chunks(sequences, spec.micro_tokens, local):
            batch = [samples[chosen[member]] for member in members]
            wanted = [positions(sample) for sample in batch]
            states, rows = _run_padded(policy, batch, wanted, spec, noise)
            yield Kept(tuple(chosen[member] for member in members), states, rows)


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
    policy: TorchPolicy,
    batch: Sequence[Sample],
    tree: TokenTree,
    wanted: Sequence[Rows],
    spec: LearnerSpec,
    noise: Noise | None,
) -> tuple[Tensor, tuple[Rows, ...]]:
    device = policy.device
    places = [path[rows] for path, rows in zip(tree.paths, wanted, strict=True)]
    kept, inverse = np.unique(np.concatenate(places), return_inverse=True)
    plan = PackedAttention(tree, device)
    added = None
    if noise is not None:
        values = [noise.of(sample, policy.parts.width) for sample in batch]
        added = torch.from_numpy(np.concatenate(values))[None]

    def during() -> contextlib.AbstractContextManager[None]:
        return attending(policy.config, plan)

    economy = _economy(policy, spec, len(tree), during)
    with during(), policy.precision(), economy, noisy(policy, added):
        states = policy.parts.hidden(
            input_ids=torch.from_numpy(tree.ids).long().to(device)[None],
            position_ids=torch.from_numpy(tree.depth).to(device)[None],
        )
    rows = np.split(inverse, np.cumsum([len(p) for p in places])[:-1])
    return states[0, torch.from_numpy(kept).to(device)], tuple(rows)


def _padded_chunks(sequences: Sequence[Ids], budget: int, units: Units) -> Iterator[list[int]]:
    """Rows of similar length, as many as fit `budget` tokens with their padding."""

    def width(unit: Sequence[int]) -> int:
        return max(len(sequences[index]) for index in unit)

    members = list[int]()
    for unit in sorted(units, key=width):
        if members and (len(members) + len(unit)) * width(unit) > budget:
            yield members
            members = []
        members += unit
    if members:
        yield members


def _run_padded(
    policy: TorchPolicy,
    batch: Sequence[Sample],
    wanted: Sequence[Rows],
    spec: LearnerSpec,
    noise: Noise | None,
) -> tuple[Tensor, tuple[Rows, ...]]:
    device = policy.device
    width = max(len(sample.ids) for sample in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    added = None if noise is None else torch.zeros(*ids.shape, policy.parts.width)
    for slot, sample in enumerate(batch):
        length = len(sample.ids)
        ids[slot, :length] = torch.from_numpy(sample.ids)
        mask[slot, :length] = 1
        if noise is not None and added is not None:
            added[slot, :length] = torch.from_numpy(noise.of(sample, policy.parts.width))
    positions = (mask.cumsum(dim=1) - 1).clamp_min(0)
    economy = _economy(policy, spec, ids.numel(), contextlib.nullcontext)
    with policy.precision(), economy, noisy(policy, added):
        states = policy.parts.hidden(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            position_ids=positions.to(device),
        )
    places = [slot * width + rows for slot, rows in enumerate(wanted)]
    kept = torch.from_numpy(np.concatenate(places)).to(device)
    rows = np.split(np.arange(len(kept)), np.cumsum([len(p) for p in places])[:-1])
    return states.flatten(0, 1)[kept], tuple(rows)
