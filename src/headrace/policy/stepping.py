"""Optimizer steps that prove themselves: AdamW, its schedule, and the refusals of an update.

Whatever is trained steps through here. A loss or gradient that is not finite, an adapter that
gets no gradient and weights that did not change are errors, never a quiet step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from headrace.errors import NoSignalError, NumericalError
from headrace.protocols import UpdateReport
from headrace.recipe import LearnerSpec
from headrace.types import Sample

__all__ = ["Stepper", "descend", "fingerprint", "refuse_silence", "schedule"]


class Stepper:
    """AdamW over `parameters` (by name); `total_steps` optimizer steps are planned.

    `steps` counts those taken.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], spec: LearnerSpec, *, total_steps: int
    ) -> None:
        self._parameters = dict(parameters)
        self._spec = spec
        self._total_steps = total_steps
        self.steps = 0
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(),
            lr=spec.learning_rate,
            betas=spec.betas,
            eps=spec.eps,
            weight_decay=spec.weight_decay,
            fused=True,
        )

    def step(self) -> UpdateReport:
        """Clip, step, and check that the weights changed; gradients are cleared.

        Raises NumericalError for a non-finite gradient, a dead adapter or unchanged weights.
        """
        self._check_adapter()
        limit = self._spec.gradient_clip
        norm = float(
            torch.nn.utils.clip_grad_norm_(
                self._parameters.values(), limit if limit is not None else math.inf
            )
        )
        if not math.isfinite(norm):
            raise NumericalError(
                f"the gradient norm is {norm}",
                where=f"optimizer step {self.steps + 1}",
                hint="the last checkpoint is good; lower learner.learning_rate and resume",
            )
        rate = self._spec.learning_rate * schedule(self._spec, self.steps, self._total_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        before = fingerprint(self._parameters.values())
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if rate > 0 and fingerprint(self._parameters.values()) == before:
            raise NumericalError(
                "the update changed no weight",
                where=f"optimizer step {self.steps + 1}, gradient norm {norm:.3g}",
                hint="raise learner.learning_rate; fp32 loses an update below 6e-8 of a weight",
            )
        self.steps += 1
        return UpdateReport(gradient_norm=norm, learning_rate=rate, optimizer_step=self.steps)

    def _check_adapter(self) -> None:
        ups = {name: p for name, p in self._parameters.items() if "lora_B" in name}
        dead = [n for n, p in ups.items() if p.grad is None or not bool(p.grad.any())]
        if dead:
            raise NumericalError(
                f"{len(dead)} of {len(ups)} adapter matrices get no gradient, first {dead[0]}",
                where="model.lora",
                hint="name only modules that the model uses in model.lora.targets",
            )

    def moments(self) -> dict[str, Tensor]:
        """The optimizer's state, one tensor for each MOMENT/PARAMETER."""
        return {
            f"{key}/{name}": value.detach().contiguous()
            for name, parameter in self._parameters.items()
            for key, value in self._optimizer.state.get(parameter, {}).items()
        }

    def restore(self, moments: Mapping[str, Tensor], *, steps: int) -> None:
        """Take over what `moments` gave after `steps` steps; of another model, ValueError."""
        kept: dict[str, dict[str, Tensor]] = {}
        for place, value in moments.items():
            key, _, name = place.partition("/")
            kept.setdefault(name, {})[key] = value
        if unknown := kept.keys() - self._parameters.keys():
            raise ValueError(f"an optimizer state of {min(unknown)}, which is not trained")
        self._optimizer.state.clear()
        for name, values in kept.items():
            parameter = self._parameters[name]
            self._optimizer.state[parameter] = {
                key: value if key == "step" else value.to(parameter.device)
                for key, value in values.items()
            }
        self.steps = steps


def fingerprint(parameters: Iterable[nn.Parameter]) -> int:
    """A number over all bits of fp32 `parameters`; any update changes it."""
    total = 0
    for parameter in parameters:
        bits = parameter.detach().view(torch.int32)
        total += int(bits.sum(dtype=torch.int64).item())
    return total


def descend(loss: Tensor, samples: Sequence[Sample]) -> None:
    """Add the gradient of `loss` over `samples`; NumericalError if it is not finite."""
    value = float(loss.detach())
    if not math.isfinite(value):
        names = ", ".join(sample.trajectory for sample in samples[:4])
        raise NumericalError(
            f"the loss is {value}",
            where=f"samples {names}",
            hint="lower learner.learning_rate, or set model.autocast = 'off'",
        )
    loss.backward()


def refuse_silence(samples: Sequence[Sample]) -> None:
    """NoSignalError for a batch in which no token is trainable."""
    if not any(bool(sample.trainable.any()) for sample in samples):
        raise NoSignalError(
            "the batch has no trainable token",
            where="learner",
            hint="look at the transcripts: headrace show RUN",
        )


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
