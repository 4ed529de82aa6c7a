"""Played attempts, loss inputs and a policy small enough to differentiate by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from hypothesis import settings
from torch import Tensor

from headrace.algorithms.losses import LossInputs, LossTerms, objective
from headrace.protocols import LossSpec
from headrace.types import (
    Floats,
    Message,
    Sample,
    Support,
    Task,
    Trajectory,
    Turn,
    Verdict,
    VerifierRef,
    VersionSpan,
)

torch.set_num_threads(1)

LAW = settings(derandomize=True, deadline=None, max_examples=30)
VERIFIER = VerifierRef("test", "1")
VOCABULARY = 7


def task() -> Task:
    return Task(
        domain="test",
        problem="p",
        tier=0,
        split="train",
        messages=(Message.of("user", "?"),),
        verifier=VERIFIER,
        answer=None,
    )


def prompt(ids: Sequence[int] = (1, 2)) -> Turn:
    return Turn(
        role="user",
        text="",
        ids=np.array(ids, np.int32),
        sampled=np.zeros(len(ids), np.bool_),
        logps=np.zeros(0, np.float32),
    )


def spoken(
    ids: Sequence[int],
    *,
    logps: Sequence[float] | None = None,
    versions: Sequence[int] | None = None,
    temperature: float = 1.0,
    support: Support | None = None,
) -> Turn:
    """A turn that the policy wrote in full; one version for each token, 0 by default."""
    values = [-1.0] * len(ids) if logps is None else logps
    wrote = [0] * len(ids) if versions is None else versions
    return Turn(
        role="assistant",
        text="",
        ids=np.array(ids, np.int32),
        sampled=np.ones(len(ids), np.bool_),
        logps=np.array(values, np.float32),
        versions=tuple(VersionSpan(version, 1) for version in wrote),
        temperature=temperature,
        support=support,
    )


def attempt(
    group: str,
    number: int,
    score: float | None,
    *,
    tokens: int = 2,
    turns: Sequence[Turn] | None = None,
) -> Trajectory:
    """An attempt of `tokens` sampled tokens, or of the given turns."""
    if turns is None:
        ids = [3 + (number + i) % (VOCABULARY - 3) for i in range(tokens)]
        turns = (prompt(), spoken(ids)) if tokens else (prompt(),)
    verdict = Verdict(
        score=score, verifier=VERIFIER, fault="infrastructure" if score is None else None
    )
    return Trajectory(
        task=task(),
        group=group,
        attempt=number,
        seed=number,
        turns=tuple(turns),
        ending="finished",
        verdict=verdict,
    )


def played(scores: Mapping[str, Sequence[float | None]], *, tokens: int = 2) -> list[Trajectory]:
    return [
        attempt(group, number, score, tokens=tokens)
        for group, row in scores.items()
        for number, score in enumerate(row)
    ]


def random_step(
    seed: int, *, groups: int = 4, size: int = 4
) -> tuple[list[Trajectory], dict[str, Floats]]:
    """Attempts of 1-5 tokens with scores of 0, 1/2, 1 or none, and reference log-probabilities."""
    draw = np.random.default_rng(seed)
    trajectories: list[Trajectory] = []
    for group in range(groups):
        for number in range(size):
            length = int(draw.integers(1, 6))
            ids = draw.integers(0, VOCABULARY, length).tolist()
            logps = draw.uniform(-3, -0.5, length).tolist()
            score = [0.0, 0.5, 1.0, None][int(draw.integers(0, 4))]
            turns = (prompt(), spoken(ids, logps=logps))
            trajectories.append(attempt(f"g{group}", number, score, turns=turns))
    reference = {
        t.id: draw.uniform(-3, -0.5, sum(len(turn.ids) for turn in t.turns)).astype(np.float32)
        for t in trajectories
    }
    return trajectories, reference


# --- loss inputs ---------------------------------------------------------------------------


def tensor(values: Iterable[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


def inputs(
    logp: Sequence[float],
    *,
    advantage: Sequence[float] | None = None,
    behaviour: Sequence[float] | None = None,
    proximal: Sequence[float] | None = None,
    reference: Sequence[float] | None = None,
    entropy: Sequence[float] | None = None,
    policy: Sequence[float] | None = None,
    cross_entropy: Sequence[float] | None = None,
    kl: Sequence[float] | None = None,
    entropy_weight: Sequence[float] | None = None,
    sequence: Sequence[int] | None = None,
) -> LossInputs:
    """One sequence, policy weight 1, advantage 1, on-policy and nothing else by default."""
    n = len(logp)

    def or_default(values: Sequence[float] | None, default: float) -> Tensor:
        return tensor([default] * n if values is None else values)

    def or_none(values: Sequence[float] | None) -> Tensor | None:
        return None if values is None else tensor(values)

    leaf = tensor(logp).requires_grad_()
    entropies = or_none(entropy)
    return LossInputs(
        logp=leaf,
        entropy=None if entropies is None else entropies.requires_grad_(),
        behaviour=tensor(logp if behaviour is None else behaviour),
        proximal=or_none(proximal),
        reference=or_none(reference),
        advantage=or_default(advantage, 1.0),
        policy_weight=or_default(policy, 1.0),
        cross_entropy_weight=or_default(cross_entropy, 0.0),
        kl_weight=or_default(kl, 0.0),
        entropy_weight=or_default(entropy_weight, 0.0),
        sequence=torch.tensor([0] * n if sequence is None else list(sequence), dtype=torch.int64),
    )


def gradient(given: LossInputs, spec: LossSpec) -> list[float]:
    """The gradient of the loss with respect to each log-probability."""
    return torch.autograd.grad(objective(given, spec).loss, given.logp)[0].tolist()


# --- a bigram policy -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    loss: float
    gradient: Tensor


def flatten(samples: Sequence[Sample], table: Tensor) -> LossInputs:
    """What a learner does: score the trainable tokens under `table` [V, V] of logits."""
    parts: list[dict[str, Tensor]] = []
    for number, sample in enumerate(samples):
        at = np.flatnonzero(sample.trainable)
        ids = torch.tensor(sample.ids, dtype=torch.int64)
        logits = torch.log_softmax(table[ids[at - 1]], dim=-1)
        logp = logits.gather(-1, ids[at].unsqueeze(-1)).squeeze(-1)
        part = {
            "logp": logp,
            "entropy": -(logits.exp() * logits).sum(-1),
            "sequence": torch.full((len(at),), number),
        }
        for name in ("behaviour", "proximal", "reference", "advantage", *WEIGHTS):
            values = getattr(sample, name)
            if values is not None:
                part[name] = torch.tensor(values[at], dtype=torch.float64)
        parts.append(part)
    names = parts[0].keys()
    flat = {name: torch.cat([part[name] for part in parts]) for name in names}
    return LossInputs(**{f.name: flat.get(f.name) for f in fields(LossInputs)})  # pyright: ignore[reportArgumentType]


WEIGHTS = ("policy_weight", "cross_entropy_weight", "kl_weight", "entropy_weight")


def bigram(seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(VOCABULARY, VOCABULARY, generator=generator, dtype=torch.float64)


def step(micro_batches: Sequence[Sequence[Sample]], spec: LossSpec, *, ranks: int = 1) -> Step:
    """Loss and gradient of a batch split into micro-batches, dealt to ranks that average.

    Each rank multiplies its loss by the number of ranks, as the module docstring asks.
    """
    total, sums = 0.0, torch.zeros(VOCABULARY, VOCABULARY, dtype=torch.float64)
    for rank in range(ranks):
        table = bigram().requires_grad_()
        for samples in micro_batches[rank::ranks]:
            terms: LossTerms = objective(flatten(samples, table), spec)
            (terms.loss * ranks).backward()
            total += terms.loss.item()
        if table.grad is not None:
            sums += table.grad
    return Step(loss=total, gradient=sums / ranks)


def with_proximal(sample: Sample, seed: int) -> Sample:
    draw = np.random.default_rng(seed)
    noise = draw.normal(0, 0.3, len(sample.ids)).astype(np.float32)
    return replace(sample, proximal=sample.behaviour + noise)
