"""Pairs of tiny samples, and what the tests of sequence-level losses ask of a policy."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace.policy.engine import TorchPolicy
from headrace.types import Sample
from policy_support import prompt, sample_of

__all__ = ["counted_tokens", "gradients", "same_gradient", "some_pairs", "states_of"]


def some_pairs(count: int = 3, *, cross_entropy: float = 0.0, margin: float = 0.0) -> list[Sample]:
    """Pairs that share a prompt, of several lengths, with references near chance; weight 1/count.

    Chosen and rejected alternate in order, so that no pair depends on where it stands.
    """
    samples: list[Sample] = []
    for number in range(count):
        shared = prompt(6 + number, seed=number)
        sides: list[Sample] = []
        for side, label in enumerate((1.0, -1.0)):
            answer = prompt(3 + 2 * side + number, seed=50 + 2 * number + side)
            ids = np.concatenate([shared, answer])
            trainable = np.arange(len(ids)) >= len(shared)
            draw = np.random.default_rng(100 + 2 * number + side)
            reference = np.where(trainable, draw.normal(-5.5, 0.5, len(ids)), 0.0)
            weight = np.where(trainable & (label > 0), cross_entropy, 0.0)
            plain = sample_of(ids, trainable, seed=2 * number + side, group=f"p{number}")
            sides.append(
                replace(
                    plain,
                    policy_weight=np.zeros(len(ids), np.float32),
                    cross_entropy_weight=weight.astype(np.float32),
                    reference=reference.astype(np.float32),
                    weight=1 / count,
                    label=label,
                    margin=margin * (number + 1),
                )
            )
        samples += sides if number % 2 == 0 else sides[::-1]
    return samples


def gradients(parameters: dict[str, nn.Parameter]) -> Tensor:
    """All gradients in one row, fp64; zeros where there is none."""
    rows = [
        (torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters.values()
    ]
    return torch.cat(rows).double()


def same_gradient(one: Tensor, other: Tensor, *, tolerance: float = 1e-4) -> bool:
    """Equal to `tolerance` of the largest entry."""
    return bool((one - other).abs().max() <= tolerance * other.abs().max())


def states_of(policy: TorchPolicy, sample: Sample) -> Tensor:
    """The states [n, width] of one sequence by itself, from the library's own forward."""
    ids = torch.from_numpy(sample.ids).long()[None]
    body: Any = policy.model.get_decoder()
    return body(input_ids=ids).last_hidden_state[0]


@contextlib.contextmanager
def counted_tokens(policy: TorchPolicy) -> Generator[list[int]]:
    """Inside, the list grows by how many tokens each pass of the body reads."""
    seen: list[int] = []

    def count(_module: nn.Module, inputs: Any, _output: Tensor) -> None:
        seen.append(inputs[0].numel())

    handle = policy.parts.embeddings.register_forward_hook(count)
    try:
        yield seen
    finally:
        handle.remove()
