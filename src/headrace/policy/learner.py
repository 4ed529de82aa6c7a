"""The learner in this process: sums weighted losses, steps AdamW, proves that it learned.

It does not know which algorithm made a sample. Every refusal of law 9 that concerns an update
is here: nothing trainable, a non-finite loss or gradient, an adapter that gets no gradient,
weights that did not change.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from headrace.algorithms.losses import LossInputs, LossTerms, objective
from headrace.errors import CheckpointError, NoSignalError, NumericalError
from headrace.policy.engine import TorchPolicy
from headrace.policy.scoring import Scored, score
from headrace.protocols import LearnerReport, LossSpec, UpdateReport
from headrace.recipe import LearnerSpec
from headrace.types import Floats, Sample


class TorchLearner:
    """The `Learner` over a policy in this process; `total_steps` optimizer steps are planned.

    Gradients accumulate over `forward_backward` calls until `optim_step`.
    """

    def __init__(self, policy: TorchPolicy, spec: LearnerSpec, *, total_steps: int) -> None:
        self._policy = policy
        self._spec = spec
        self._total_steps = total_steps
        self._steps = 0
        self._optimizer = torch.optim.AdamW(
            policy.trainable().values(),
            lr=spec.learning_rate,
            betas=spec.betas,
            eps=spec.eps,
            weight_decay=spec.weight_decay,
            fused=True,
        )

    # --- scoring -------------------------------------------------------------------------

    def logprobs(
        self, samples: Sequence[Sample], *, which: Literal["current", "reference"]
    ) -> list[Floats]:
        """Per sample, log-probabilities [n] of its trainable tokens; 0 elsewhere.

        Raises UsageError for a sample that the model cannot compute whole.
        """
        results = [np.zeros(len(sample.ids), dtype=np.float32) for sample in samples]
        with torch.inference_mode():
            if which == "reference":
                with self._policy.as_reference():
                    self._fill(samples, results)
            else:
                self._fill(samples, results)
        return results

    def _fill(self, samples: Sequence[Sample], results: list[Floats]) -> None:
        for scored in score(self._policy, samples, self._spec):
            values = scored.logps.cpu().numpy()
            owners = scored.sequence.cpu().numpy()
            for place, member in enumerate(scored.members):
                results[member][samples[member].trainable] = values[owners == place]

    # --- gradients -----------------------------------------------------------------------

    def forward_backward(self, samples: Sequence[Sample], loss: LossSpec) -> LearnerReport:
        """Add the gradient of the summed loss of `samples`; see `Sample` for the weights.

        Raises NoSignalError if nothing is trainable, NumericalError if the loss is not finite,
        UsageError for a sample that the model cannot compute whole (empty, an id out of range,
        longer than the context), StorageError if `offload` finds no room.
        """
        tokens = sum(int(sample.trainable.sum()) for sample in samples)
        if tokens == 0:
            raise NoSignalError(
                "the batch has no trainable token",
                where="learner",
                hint="look at the transcripts: headrace show RUN",
            )
        tally = _Tally()
        wants_entropy = any(bool(np.any(s.entropy_weight != 0)) for s in samples)
        for scored in score(self._policy, samples, self._spec, entropy=wants_entropy):
            inputs = _loss_inputs(scored, samples, wants_entropy, self._policy.device)
            terms = objective(inputs, loss)
            if not math.isfinite(float(terms.loss.detach())):
                names = ", ".join(samples[m].trajectory for m in scored.members[:4])
                raise NumericalError(
                    f"the loss is {float(terms.loss.detach())}",
                    where=f"samples {names}",
                    hint="lower learner.learning_rate, or set model.autocast = 'off'",
                )
            terms.loss.backward()
            tally.add(terms)
        return tally.report()

    def optim_step(self) -> UpdateReport:
        """Clip, step, and check that the weights changed; gradients are cleared.

        Raises NumericalError for a non-finite gradient, a dead adapter or unchanged weights.
        """
        parameters = self._policy.trainable()
        self._check_adapter(parameters)
        limit = self._spec.gradient_clip
        norm = float(
            torch.nn.utils.clip_grad_norm_(
                parameters.values(), limit if limit is not None else math.inf
            )
        )
        if not math.isfinite(norm):
            raise NumericalError(
                f"the gradient norm is {norm}",
                where=f"optimizer step {self._steps + 1}",
                hint="the last checkpoint is good; lower learner.learning_rate and resume",
            )
        rate = self._spec.learning_rate * schedule(self._spec, self._steps, self._total_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        before = self._policy.fingerprint()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if rate > 0 and self._policy.fingerprint() == before:
            raise NumericalError(
                "the update changed no weight",
                where=f"optimizer step {self._steps + 1}, gradient norm {norm:.3g}",
                hint="raise learner.learning_rate; fp32 loses an update below 6e-8 of a weight",
            )
        self._steps += 1
        return UpdateReport(gradient_norm=norm, learning_rate=rate, optimizer_step=self._steps)

    def _check_adapter(self, parameters: dict[str, torch.nn.Parameter]) -> None:
        if self._policy.lora is None:
            return
        ups = {name: p for name, p in parameters.items() if "lora_B" in name}
        dead = [n for n, p in ups.items() if p.grad is None or not bool(p.grad.any())]
        if dead:
            raise NumericalError(
                f"{len(dead)} of {len(ups)} adapter matrices get no gradient, first {dead[0]}",
                where="model.lora",
                hint="name only modules that the model uses in model.lora.targets",
            )

    def publish(self) -> int:
        """Make the weights the sampler's; they share one module, so only the version moves."""
        return self._policy.publish()

    # --- state ---------------------------------------------------------------------------

    def save(self, directory: Path) -> None:
        """Write weights (a loadable model or adapter directory) and optimizer state."""
        weights = directory / ("adapter" if self._policy.lora else "model")
        weights.mkdir(parents=True)
        moments: dict[str, Tensor] = {}
        for name, parameter in self._policy.trainable().items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                moments[f"{key}/{name}"] = value.detach().contiguous()
        self._save_weights(weights)
        save_file(moments, directory / "optimizer.safetensors")
        state = {"optimizer_steps": self._steps, "version": self._policy.version}
        (directory / "learner.json").write_text(json.dumps(state))

    def save_reference(self, directory: Path) -> None:
        """Write the reference weights, for a reference that is no longer the first model."""
        reference = self._policy.reference
        assert reference is not None
        tensors = {name: tensor.contiguous() for name, tensor in reference.items()}
        save_file(tensors, directory / "reference.safetensors")

    def _save_weights(self, directory: Path) -> None:
        model = self._policy.model
        if self._policy.lora:
            model.save_pretrained(directory)
        else:
            tensors = {n: p.detach().contiguous() for n, p in model.named_parameters()}
            save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
            model.config.save_pretrained(directory)
            if model.generation_config is not None:
                model.generation_config.save_pretrained(directory)
        self._policy.tokenizer.save_pretrained(directory)

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote, bit for bit; CheckpointError if it does not fit."""
        try:
            self._load_weights(directory)
            moments = load_file(directory / "optimizer.safetensors")
            state = json.loads((directory / "learner.json").read_text())
            self._steps = int(state["optimizer_steps"])
            self._policy.version = int(state["version"])
            reference = directory / "reference.safetensors"
            if reference.exists():
                self._policy.restore_reference(load_file(reference))
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise CheckpointError(
                f"the learner's state cannot be read: {error}",
                where=str(directory),
                hint="an older checkpoint may be whole: move this one away and resume",
            ) from error
        self._optimizer.state.clear()
        for name, parameter in self._policy.trainable().items():
            kept = {k.split("/", 1)[0]: v for k, v in moments.items() if k.split("/", 1)[1] == name}
            if kept:
                self._optimizer.state[parameter] = {
                    key: value if key == "step" else value.to(parameter.device)
                    for key, value in kept.items()
                }

    def _load_weights(self, directory: Path) -> None:
        parameters = dict(self._policy.model.named_parameters())
        if self._policy.lora:
            from peft import set_peft_model_state_dict

            weights = load_file(directory / "adapter" / "adapter_model.safetensors")
            result = set_peft_model_state_dict(self._policy.model, weights)
            if result.unexpected_keys:
                raise ValueError(f"unexpected adapter weight {result.unexpected_keys[0]}")
            return
        weights = load_file(directory / "model" / "model.safetensors")
        if weights.keys() != parameters.keys():
            odd = min(weights.keys() ^ parameters.keys())
            raise ValueError(f"the checkpoint and the model disagree about {odd}")
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(weights[name])


def schedule(spec: LearnerSpec, step: int, total: int) -> float:
    """The learning-rate factor of optimizer step `step` (from 0) of `total`: 0..1.

    Linear warm-up from 1 / (warmup + 1), then constant, or linear or cosine decay to
    `final_share` at the last step.
    """
    if step < spec.warmup_steps:
        return (step + 1) / (spec.warmup_steps + 1)
    if spec.schedule == "constant":
        return 1.0
    span = max(1, total - spec.warmup_steps - 1)
    progress = min(1.0, (step - spec.warmup_steps) / span)
    if spec.schedule == "linear":
        decayed = 1.0 - progress
    else:
        decayed = 0.5 * (1.0 + math.cos(math.pi * progress))
    return spec.final_share + (1.0 - spec.final_share) * decayed


def _loss_inputs(
    scored: Scored, samples: Sequence[Sample], entropy: bool, device: torch.device
) -> LossInputs:
    batch = [samples[member] for member in scored.members]

    def flat(arrays: Sequence[Floats]) -> Tensor:
        picked = [a[s.trainable] for a, s in zip(arrays, batch, strict=True)]
        return torch.from_numpy(np.concatenate(picked)).to(device)

    def optional(arrays: Sequence[Floats | None]) -> Tensor | None:
        present = [array for array in arrays if array is not None]
        return flat(present) if len(present) == len(arrays) else None

    return LossInputs(
        logp=scored.logps,
        entropy=scored.entropy if entropy else None,
        behaviour=flat([s.behaviour for s in batch]),
        proximal=optional([s.proximal for s in batch]),
        reference=optional([s.reference for s in batch]),
        advantage=flat([s.advantage for s in batch]),
        policy_weight=flat([s.policy_weight for s in batch]),
        cross_entropy_weight=flat([s.cross_entropy_weight for s in batch]),
        kl_weight=flat([s.kl_weight for s in batch]),
        entropy_weight=flat([s.entropy_weight for s in batch]),
        sequence=scored.sequence,
    )


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


__all__ = ["TorchLearner", "schedule"]
