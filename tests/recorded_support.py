"""Recorded examples, and a bigram policy and scorer that score them as a learner would."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from algorithms_support import VOCABULARY, tensor
from headrace.algorithms.preferences import PreferenceInputs, PreferenceSums, preference
from headrace.algorithms.ranking import RankingInputs, RankingSums, ranking
from headrace.protocols import PreferenceLoss, RankingLoss
from headrace.types import Example, Floats, Sample

Unit = tuple[Example, ...]
Sums = TypeVar("Sums", PreferenceSums, RankingSums)


def example(
    key: str,
    completion: Sequence[int],
    *,
    prompt: Sequence[int] = (1, 2),
    group: str | None = None,
    label: float = 0.0,
    margin: float = 0.0,
    score: float | None = None,
) -> Example:
    """A prompt that is read and a completion that is learned."""
    return Example(
        key=key,
        group=key if group is None else group,
        source="test",
        ids=np.array([*prompt, *completion], np.int32),
        trainable=np.array([False] * len(prompt) + [True] * len(completion)),
        label=label,
        margin=margin,
        score=score,
    )


def pair(
    group: str, chosen: Sequence[int], rejected: Sequence[int], *, margin: float = 0.0
) -> Unit:
    return (
        example(f"{group}+", chosen, group=group, label=1.0, margin=margin),
        example(f"{group}-", rejected, group=group, label=-1.0),
    )


def tie(group: str, one: Sequence[int], other: Sequence[int]) -> Unit:
    return (example(f"{group}a", one, group=group), example(f"{group}b", other, group=group))


def random_pairs(seed: int, count: int = 5) -> list[Unit]:
    draw = np.random.default_rng(seed)

    def words() -> list[int]:
        return draw.integers(0, VOCABULARY, int(draw.integers(1, 6))).tolist()

    return [
        pair(f"g{number}", [3, *words()], [4, *words()], margin=float(draw.uniform(0, 2)))
        for number in range(count)
    ]


def references(units: Sequence[Unit], seed: int = 0) -> dict[str, Floats]:
    draw = np.random.default_rng(seed)
    return {
        e.key: draw.uniform(-3, -0.5, len(e.ids)).astype(np.float32) for unit in units for e in unit
    }


# --- what a learner does -------------------------------------------------------------------


def flat(samples: Sequence[Sample], name: str) -> Tensor:
    """A per-token array of the samples at their trainable tokens, [T]."""
    return tensor(
        value for sample in samples for value in getattr(sample, name)[sample.trainable].tolist()
    )


def numbered(samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
    """Whose token it is [T], and the number of each sample's group [S]."""
    counts = torch.tensor([int(sample.trainable.sum()) for sample in samples])
    names = sorted({sample.group for sample in samples})
    groups = torch.tensor([names.index(sample.group) for sample in samples])
    return torch.arange(len(samples)).repeat_interleave(counts), groups


def preference_inputs(samples: Sequence[Sample], logp: Tensor) -> PreferenceInputs:
    sequence, group = numbered(samples)
    referenced = all(sample.reference is not None for sample in samples)
    return PreferenceInputs(
        logp=logp,
        reference=flat(samples, "reference").to(logp.dtype) if referenced else None,
        cross_entropy_weight=flat(samples, "cross_entropy_weight").to(logp.dtype),
        sequence=sequence,
        label=tensor(sample.label for sample in samples),
        weight=tensor(sample.weight for sample in samples).to(logp.dtype),
        group=group,
    )


def ranking_inputs(samples: Sequence[Sample], score: Tensor) -> RankingInputs:
    sequence, group = numbered(samples)
    return RankingInputs(
        score=score,
        sequence=sequence,
        label=tensor(sample.label for sample in samples),
        weight=tensor(sample.weight for sample in samples).to(score.dtype),
        margin=tensor(sample.margin for sample in samples).to(score.dtype),
        group=group,
        target=flat(samples, "advantage").to(score.dtype),
        step_weight=flat(samples, "policy_weight").to(score.dtype),
    )


def bigram_logp(samples: Sequence[Sample], table: Tensor) -> Tensor:
    """Log-probabilities [T] of the trainable tokens under `table` [V, V] of logits."""
    rows: list[Tensor] = []
    for sample in samples:
        at = np.flatnonzero(sample.trainable)
        ids = torch.tensor(sample.ids, dtype=torch.int64)
        logits = torch.log_softmax(table[ids[at - 1]], dim=-1)
        rows.append(logits.gather(-1, ids[at][:, None])[:, 0])
    return torch.cat(rows)


def bigram_score(samples: Sequence[Sample], table: Tensor) -> Tensor:
    """A score [T] at each trainable token: one number for the token before it and itself."""
    rows: list[Tensor] = []
    for sample in samples:
        at = np.flatnonzero(sample.trainable)
        ids = torch.tensor(sample.ids, dtype=torch.int64)
        rows.append(table[ids[at - 1], ids[at]])
    return torch.cat(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass(Generic[Sums]):
    loss: float
    gradient: Tensor
    sums: Sums


def preference_pass(
    micro_batches: Sequence[Sequence[Sample]],
    table: Tensor,
    loss: PreferenceLoss,
    *,
    baseline: float = 0.0,
) -> Pass[PreferenceSums]:
    """Loss, gradient and sums of an optimizer batch split into micro-batches."""
    leaf = table.clone().requires_grad_()
    total, sums = 0.0, PreferenceSums()
    for samples in micro_batches:
        given = preference_inputs(samples, bigram_logp(samples, leaf))
        terms = preference(given, loss, kto_baseline=baseline)
        terms.loss.backward()
        total += terms.loss.item()
        sums = sums + terms.sums
    assert leaf.grad is not None
    return Pass(loss=total, gradient=leaf.grad, sums=sums)


def ranking_pass(
    micro_batches: Sequence[Sequence[Sample]], table: Tensor, loss: RankingLoss
) -> Pass[RankingSums]:
    leaf = table.clone().requires_grad_()
    total, sums = 0.0, RankingSums()
    for samples in micro_batches:
        terms = ranking(ranking_inputs(samples, bigram_score(samples, leaf)), loss)
        terms.loss.backward()
        total += terms.loss.item()
        sums = sums + terms.sums
    assert leaf.grad is not None
    return Pass(loss=total, gradient=leaf.grad, sums=sums)


def by_group(
    samples: Sequence[Sample], cuts: Sequence[int], order: Callable[[list[str]], list[str]]
) -> list[list[Sample]]:
    """The samples split between groups at `cuts`, groups in another order, sides exchanged."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).insert(0, sample)
    names = order(list(groups))
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(names)}), len(names)]
    return [
        [sample for name in names[low:high] for sample in groups[name]]
        for low, high in pairwise(bounds)
    ]


def one_pair(
    logp: Mapping[str, Sequence[float]], reference: Mapping[str, Sequence[float]] | None = None
) -> PreferenceInputs:
    """A pair of weight 1 from token log-probabilities of its sides "+" and "-"."""
    sides = ("+", "-")
    lengths = torch.tensor([len(logp[side]) for side in sides])
    return PreferenceInputs(
        logp=tensor(value for side in sides for value in logp[side]).requires_grad_(),
        reference=None
        if reference is None
        else tensor(value for side in sides for value in reference[side]),
        cross_entropy_weight=torch.zeros(int(lengths.sum()), dtype=torch.float64),
        sequence=torch.arange(2).repeat_interleave(lengths),
        label=tensor([1.0, -1.0]),
        weight=tensor([1.0, 1.0]),
        group=torch.tensor([0, 0]),
    )
