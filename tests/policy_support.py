"""Tiny random models and samples for the tests of the engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from headrace.policy.engine import TorchPolicy
from headrace.policy.load import LoadedModel
from headrace.policy.tiny import tiny_model, tiny_tokenizer
from headrace.recipe import ModelSpec
from headrace.types import Floats, Ids, Sample, Support

torch.set_num_threads(1)


def tiny_policy(architecture: str = "llama", spec: ModelSpec | None = None) -> TorchPolicy:
    """A policy over a fresh random model: the same weights at every call."""
    loaded = LoadedModel(
        model=tiny_model(architecture),
        tokenizer=tiny_tokenizer(),
        source=f"tiny:{architecture}",
        directory=Path("/nonexistent"),
        digest="0" * 64,
        end_ids=(2,),
    )
    return TorchPolicy(loaded, spec or ModelSpec())


def prompt(length: int, seed: int = 0) -> Ids:
    """Random byte tokens, none of them special."""
    return np.random.default_rng(seed).integers(10, 250, length).astype(np.int32)


def sample_of(
    ids: Ids,
    trainable: np.ndarray,
    *,
    seed: int = 0,
    group: str = "g",
    weight: float = 1.0,
    temperature: float = 1.0,
    support: Support | None = None,
    kl_weight: float = 0.0,
    entropy_weight: float = 0.0,
) -> Sample:
    """A sample with random advantages and behaviour on its trainable tokens."""
    random = np.random.default_rng(seed)
    n = len(ids)

    def spread(value: float) -> Floats:
        return np.where(trainable, value, 0.0).astype(np.float32)

    noise = random.normal(size=n).astype(np.float32)
    return Sample(
        ids=ids,
        trainable=trainable,
        behaviour=np.where(trainable, -5.5 + 0.1 * noise, 0.0).astype(np.float32),
        advantage=np.where(trainable, noise, 0.0).astype(np.float32),
        policy_weight=spread(weight),
        cross_entropy_weight=spread(0.0),
        kl_weight=spread(kl_weight),
        entropy_weight=spread(entropy_weight),
        trajectory=f"{group}/{seed}",
        group=group,
        version=0,
        temperature=temperature,
        support=support,
        reference=np.where(trainable, -5.4, 0.0).astype(np.float32) if kl_weight else None,
    )


def some_samples(count: int = 6, *, entropy_weight: float = 0.0) -> list[Sample]:
    """Samples of several lengths, in pairs that share a prompt."""
    samples: list[Sample] = []
    for index in range(count):
        shared = prompt(5 + index // 2, seed=index // 2)
        answer = prompt(3 + index, seed=100 + index)
        ids = np.concatenate([shared, answer])
        trainable = np.arange(len(ids)) >= len(shared)
        samples.append(
            sample_of(
                ids,
                trainable,
                seed=index,
                group=f"g{index // 2}",
                weight=1 / 20,
                entropy_weight=entropy_weight,
            )
        )
    return samples
