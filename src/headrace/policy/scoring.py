"""Scoring samples under the current weights: token log-probabilities and entropies.

Only positions that predict a trainable token go through the output head, each distinct one
once; which samples share a pass is `headrace.policy.passes`'s business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headrace.policy.engine import TorchPolicy
from headrace.policy.logprobs import Targets, measure
from headrace.policy.noise import Noise
from headrace.policy.passes import Kept, Units, passes, predicting, refuse_unfit
from headrace.recipe import LearnerSpec
from headrace.types import Floats, Ids, Sample

__all__ = ["Scored", "refuse_unfit", "score", "token_logprobs"]


@dataclass(frozen=True, slots=True)
class Scored:
    """One micro-batch: T trainable tokens of the samples `members`, flattened in that order.

    `logps` and, where asked for, `entropy` and `uniform` (the mean log-probability of all that
    the token could have been) [T] carry gradients if autograd is on; `sequence` [T] is the
    index into `members` each token belongs to.
    """

    members: tuple[int, ...]
    logps: Tensor
    entropy: Tensor | None
    uniform: Tensor | None
    sequence: Tensor


def score(
    policy: TorchPolicy,
    samples: Sequence[Sample],
    spec: LearnerSpec,
    *,
    entropy: bool = False,
    uniform: bool = False,
    units: Units | None = None,
    noise: Noise | None = None,
) -> Iterator[Scored]:
    """Log-probabilities of every trainable token, a micro-batch at a time.

    The distribution is the one the token was drawn from: logits over the sample's temperature,
    within its recorded support. Samples of one of `units` (None: each by itself) come in the
    same micro-batch; without a trainable token a sample comes in none. Gradients flow if
    autograd is on where this is iterated. Raises what `refuse_unfit` does, StorageError where a
    scratch file cannot be written, ValueError for a unit of several temperatures.
    """
    refuse_unfit(policy, samples, spec)
    if units is None:
        units = [[index] for index in range(len(samples))]
    usable = [[i for i in unit if bool(samples[i].trainable.any())] for unit in units]
    for group in _by_temperature(samples, [unit for unit in usable if unit]):
        for kept in passes(policy, samples, spec, group, positions=predicting, noise=noise):
            yield _finish(policy, samples, kept, entropy, uniform)


def token_logprobs(
    policy: TorchPolicy, samples: Sequence[Sample], spec: LearnerSpec
) -> list[Floats]:
    """Per sample, log-probabilities [n] of its trainable tokens; 0 elsewhere. No gradients."""
    results = [np.zeros(len(sample.ids), dtype=np.float32) for sample in samples]
    with torch.inference_mode():
        for scored in score(policy, samples, spec):
            values = scored.logps.cpu().numpy()
            owners = scored.sequence.cpu().numpy()
            for place, member in enumerate(scored.members):
                results[member][samples[member].trainable] = values[owners == place]
    return results


def _by_temperature(samples: Sequence[Sample], units: Units) -> list[list[Sequence[int]]]:
    groups: dict[float, list[Sequence[int]]] = {}
    for unit in units:
        temperature = samples[unit[0]].temperature
        if any(samples[index].temperature != temperature for index in unit):
            raise ValueError(f"group {samples[unit[0]].group} was sampled at several temperatures")
        groups.setdefault(temperature, []).append(unit)
    return list(groups.values())


def _finish(
    policy: TorchPolicy, samples: Sequence[Sample], kept: Kept, entropy: bool, uniform: bool
) -> Scored:
    batch = [samples[member] for member in kept.members]
    ids = np.concatenate([s.ids[s.trainable] for s in batch])
    targets = Targets(
        rows=kept.flat_rows,
        ids=torch.from_numpy(ids).long().to(policy.device),
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
            uniform=uniform,
        )
    return Scored(
        members=kept.members,
        logps=measured.logps,
        entropy=measured.entropy,
        uniform=measured.uniform,
        sequence=kept.sequence,
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
