"""The learner in this process: sums weighted losses, steps AdamW, proves that it learned.

It does not know which algorithm made a sample. Every refusal of law 9 that concerns an update
is here or in `headrace.policy.stepping`: nothing trainable, a non-finite loss or gradient, an
adapter that gets no gradient, weights that did not change.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from headrace.algorithms.losses import LossInputs, LossTerms, objective
from headrace.algorithms.preferences import (
    PreferenceInputs,
    PreferenceSums,
    kto_baseline,
    preference,
)
from headrace.errors import UsageError
from headrace.policy.engine import TorchPolicy
from headrace.policy.files import read_weights, reading, write_weights
from headrace.policy.noise import Noise
from headrace.policy.passes import together
from headrace.policy.scoring import Scored, score, token_logprobs
from headrace.policy.stepping import Stepper, descend, refuse_silence, schedule
from headrace.protocols import (
    LearnerReport,
    LossSpec,
    PreferenceLoss,
    PreferenceReport,
    UpdateReport,
)
from headrace.recipe import LearnerSpec
from headrace.types import Floats, Sample

__all__ = ["TorchLearner", "schedule"]


class TorchLearner:
    """The `Learner` over a policy in this process; `total_steps` optimizer steps are planned.

    Gradients accumulate over `forward_backward` and `prefer` calls until `optim_step`.
    """

    def __init__(self, policy: TorchPolicy, spec: LearnerSpec, *, total_steps: int) -> None:
        self._policy = policy
        self._spec = spec
        self._stepper = Stepper(policy.trainable(), spec, total_steps=total_steps)

    # --- scoring -------------------------------------------------------------------------

    def logprobs(
        self, samples: Sequence[Sample], *, which: Literal["current", "reference"]
    ) -> list[Floats]:
        """Per sample, log-probabilities [n] of its trainable tokens; 0 elsewhere.

        Raises UsageError for a sample that the model cannot compute whole.
        """
        if which == "current":
            return token_logprobs(self._policy, samples, self._spec)
        with self._policy.as_reference():
            return token_logprobs(self._policy, samples, self._spec)

    # --- gradients -----------------------------------------------------------------------

    def forward_backward(self, samples: Sequence[Sample], loss: LossSpec) -> LearnerReport:
        """Add the gradient of the summed loss of `samples`; see `Sample` for the weights.

        Raises NoSignalError if nothing is trainable, NumericalError if the loss is not finite,
        UsageError for a sample that the model cannot compute whole (empty, an id out of range,
        longer than the context), StorageError if `offload` finds no room.
        """
        refuse_silence(samples)
        tally = _Tally()
        wants_entropy = any(bool(np.any(s.entropy_weight != 0)) for s in samples)
        for scored in score(
            self._policy,
            samples,
            self._spec,
            entropy=wants_entropy,
            uniform=loss.label_smoothing > 0,
            noise=Noise(loss.neftune, self._stepper.steps) if loss.neftune > 0 else None,
        ):
            inputs = _loss_inputs(scored, samples, self._policy.device)
            terms = objective(inputs, loss)
            descend(terms.loss, [samples[member] for member in scored.members])
            tally.add(terms)
        return tally.report()

    def prefer(
        self,
        samples: Sequence[Sample],
        loss: PreferenceLoss,
        *,
        mismatched: Sequence[Sample] = (),
    ) -> PreferenceReport:
        """Add the gradient of a preference loss over `samples`; see `PreferenceInputs`.

        The samples of a group stay in one micro-batch. References arrive in the samples.
        `mismatched` are what KTO measures its baseline on: prompts with the completions of
        others, for the whole optimizer batch, scored without a gradient. Raises what
        `forward_backward` does, UsageError for a sequence with nothing to compare, and
        ValueError for groups that are no pairs or have no reference.
        """
        refuse_silence(samples)
        _refuse_empty(samples)
        baseline = self._baseline(mismatched) if loss.loss == "kto" else 0.0
        numbers = {group: at for at, group in enumerate(dict.fromkeys(s.group for s in samples))}
        sums = PreferenceSums()
        for scored in score(self._policy, samples, self._spec, units=together(samples)):
            batch = [samples[member] for member in scored.members]
            inputs = _preference_inputs(scored, batch, numbers, self._policy.device)
            terms = preference(inputs, loss, kto_baseline=baseline)
            descend(terms.loss, batch)
            sums += terms.sums
        return sums.report()

    def _baseline(self, mismatched: Sequence[Sample]) -> float:
        ratios: list[float] = []
        found = token_logprobs(self._policy, mismatched, self._spec)
        for sample, logps in zip(mismatched, found, strict=True):
            if sample.reference is None:
                raise ValueError(f"mismatched sample {sample.trajectory} has no reference")
            gap = logps.astype(np.float64) - sample.reference
            ratios.append(float(gap[sample.trainable].sum()))
        return kto_baseline(ratios)

    def optim_step(self) -> UpdateReport:
        """Clip, step, and check that the weights changed; gradients are cleared.

        Raises NumericalError for a non-finite gradient, a dead adapter or unchanged weights.
        """
        return self._stepper.step()

    def publish(self) -> int:
        """Make the weights the sampler's; they share one module, so only the version moves."""
        return self._policy.publish()

    # --- state ---------------------------------------------------------------------------

    def save(self, directory: Path) -> None:
        """Write weights (a loadable model or adapter directory) and optimizer state."""
        write_weights(self._policy, directory)
        save_file(self._stepper.moments(), directory / "optimizer.safetensors")
        state = {"optimizer_steps": self._stepper.steps, "version": self._policy.version}
        (directory / "learner.json").write_text(json.dumps(state))

    def save_reference(self, directory: Path) -> None:
        """Write the reference weights, for a reference that is no longer the first model."""
        reference = self._policy.reference
        assert reference is not None
        tensors = {name: tensor.contiguous() for name, tensor in reference.items()}
        save_file(tensors, directory / "reference.safetensors")

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote, bit for bit; CheckpointError if it does not fit."""
        with reading(directory):
            read_weights(self._policy, directory)
            state = json.loads((directory / "learner.json").read_text())
            self._stepper.restore(
                load_file(directory / "optimizer.safetensors"),
                steps=int(state["optimizer_steps"]),
            )
            self._policy.version = int(state["version"])
            reference = directory / "reference.safetensors"
            if reference.exists():
                self._policy.restore_reference(load_file(reference))


def _refuse_empty(samples: Sequence[Sample]) -> None:
    for sample in samples:
        if not bool(sample.trainable.any()):
            raise UsageError(
                "a sequence that is compared has no trainable token",
                where=f"group {sample.group}, {sample.trajectory}",
                hint="both sides of a pair need an answer of their own",
            )


# --- inputs of the losses ------------------------------------------------------------------


def _flat(batch: Sequence[Sample], arrays: Sequence[Floats], device: torch.device) -> Tensor:
    """What `arrays` hold at the trainable tokens of `batch`: [T]."""
    picked = [a[s.trainable] for a, s in zip(arrays, batch, strict=True)]
    return torch.from_numpy(np.concatenate(picked)).to(device)


def _optional(
    batch: Sequence[Sample], arrays: Sequence[Floats | None], device: torch.device
) -> Tensor | None:
    present = [array for array in arrays if array is not None]
    return _flat(batch, present, device) if len(present) == len(arrays) else None


def _loss_inputs(scored: Scored, samples: Sequence[Sample], device: torch.device) -> LossInputs:
    batch = [samples[member] for member in scored.members]
    return LossInputs(
        logp=scored.logps,
        entropy=scored.entropy,
        uniform=scored.uniform,
        behaviour=_flat(batch, [s.behaviour for s in batch], device),
        proximal=_optional(batch, [s.proximal for s in batch], device),
        reference=_optional(batch, [s.reference for s in batch], device),
        advantage=_flat(batch, [s.advantage for s in batch], device),
        policy_weight=_flat(batch, [s.policy_weight for s in batch], device),
        cross_entropy_weight=_flat(batch, [s.cross_entropy_weight for s in batch], device),
        kl_weight=_flat(batch, [s.kl_weight for s in batch], device),
        entropy_weight=_flat(batch, [s.entropy_weight for s in batch], device),
        sequence=scored.sequence,
    )


def _preference_inputs(
    scored: Scored, batch: Sequence[Sample], numbers: Mapping[str, int], device: torch.device
) -> PreferenceInputs:
    return PreferenceInputs(
        logp=scored.logps,
        reference=_optional(batch, [s.reference for s in batch], device),
        cross_entropy_weight=_flat(batch, [s.cross_entropy_weight for s in batch], device),
        sequence=scored.sequence,
        label=torch.tensor([s.label for s in batch], device=device),
        weight=torch.tensor([s.weight for s in batch], device=device),
        group=torch.tensor([numbers[s.group] for s in batch], device=device),
    )


# --- reports -------------------------------------------------------------------------------

_SUMMED = (
    "tokens",
    "policy_tokens",
    "clipped",
    "corrected",
    "weight_sum",
    "weight_square_sum",
    "ratio_sum",
    "kl_behaviour_sum",
)


def _effective(sums: Mapping[str, float], count: float) -> float:
    """Effective sample size of the importance weights as a share of the tokens (Kish 1965)."""
    squares = sums["weight_square_sum"]
    return sums["weight_sum"] ** 2 / (count * squares) if squares else 1.0


class _Tally:
    """Sums over micro-batches, turned into means over the tokens of the whole batch."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._components: dict[str, float] = defaultdict(float)
        self._ratio_max = 0.0

    def add(self, terms: LossTerms) -> None:
        for name in _SUMMED:
            self._sums[name] += float(getattr(terms, name))
        for name, value in terms.components.items():
            self._components[name] += float(value)
        self._ratio_max = max(self._ratio_max, float(terms.ratio_max))

    def report(self) -> LearnerReport:
        count = max(self._sums["policy_tokens"], 1.0)
        return LearnerReport(
            loss=sum(self._components.values()),
            tokens=int(self._sums["tokens"]),
            clipped_share=self._sums["clipped"] / count,
            corrected_share=self._sums["corrected"] / count,
            effective_share=_effective(self._sums, count),
            ratio_mean=self._sums["ratio_sum"] / count,
            ratio_max=self._ratio_max,
            kl_behaviour=self._sums["kl_behaviour_sum"] / count,
            components=dict(self._components),
        )
