"""The critic of a run: what it expects of the attempts of a step, and what it learns from them.

A model of its own beside the policy. What its values are for is `headrace.algorithms.credit`'s
business; it takes one optimizer step for each of the policy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from headrace.algorithms.credit import Lesson, assemble
from headrace.algorithms.critic import ValueReport
from headrace.errors import ModelError
from headrace.policy.engine import TorchPolicy
from headrace.policy.load import LoadedModel, load
from headrace.policy.scalar import ScalarModel, ValueTarget, open_scalar
from headrace.policy.teacher import first_difference
from headrace.protocols import UpdateReport
from headrace.recipe import Recipe
from headrace.types import Floats, Json, Trajectory

__all__ = ["Critic", "Fitted", "open_critic", "open_reward_model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What the critic saw and did in a step: a report and an update for each optimizer batch."""

    reports: tuple[ValueReport, ...]
    updates: tuple[UpdateReport, ...]

    def payload(self) -> dict[str, Json]:
        """Means over the tokens; the last learning rate, the largest gradient."""
        tokens = sum(report.tokens for report in self.reports)
        told = [asdict(report) for report in self.reports]

        def mean(name: str) -> float:
            return sum(float(report[name]) * report["tokens"] for report in told) / max(tokens, 1)

        names = ("loss", "explained", "value_mean", "return_mean", "clipped_share")
        return {
            **{name: mean(name) for name in names},
            "tokens": tokens,
            "gradient_norm": max(update.gradient_norm for update in self.updates),
            "learning_rate": self.updates[-1].learning_rate,
        }


class Critic:
    """Wraps the `model`; values are clipped to `clip` around the old ones where it is given."""

    def __init__(self, model: ScalarModel, *, clip: float | None) -> None:
        self._model, self._clip = model, clip

    def values(self, attempts: Sequence[Trajectory]) -> dict[str, Floats]:
        """What it expects at every token of each attempt, by trajectory id, as `credit` wants it:
        [n], of attempts in which the policy wrote something."""
        samples = [assemble(attempt) for attempt in attempts if attempt.sampled_tokens]
        found = self._model.values(samples)
        return {s.trajectory: values for s, values in zip(samples, found, strict=True)}

    def fit(self, batches: Sequence[Sequence[Lesson]]) -> Fitted | None:
        """One update for each batch of lessons; None where there is nothing to learn."""
        reports: list[ValueReport] = []
        updates: list[UpdateReport] = []
        for lessons in batches:
            if lessons:
                targets = [_target(lesson) for lesson in lessons]
                reports.append(self._model.fit_values(targets, clip=self._clip))
                updates.append(self._model.optim_step())
        return Fitted(reports=tuple(reports), updates=tuple(updates)) if reports else None

    def save(self, directory: Path) -> None:
        """Write weights and optimizer into a new `directory`."""
        directory.mkdir()
        self._model.save(directory)

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote, bit for bit; CheckpointError if it does not fit."""
        self._model.load(directory)


def _target(lesson: Lesson) -> ValueTarget:
    return ValueTarget(
        sample=lesson.sample,
        returns=lesson.returns,
        old=lesson.values.astype(np.float32),
        weight=lesson.weight,
    )


# --- opening -------------------------------------------------------------------------------


def open_critic(recipe: Recipe, student: LoadedModel, start: Path | None) -> Critic:
    """The critic of `recipe`, before its first step.

    It begins as the scalar model in `start`, head and all, or as the body that the policy is
    loaded from, read once more, under a new head. Raises ModelError for a scalar model of steps
    or with another tokenizer, and what loading raises.
    """
    spec = recipe.critic
    assert spec is not None
    learner = recipe.learner.model_copy(update={"learning_rate": spec.learning_rate})
    steps = recipe.steps * recipe.algorithm.updates
    if start is None:
        body = TorchPolicy(load(student.source), recipe.model)
        told: dict[str, Json] = {"recipe": recipe.name, "digest": recipe.digest}
        model = ScalarModel(
            body, learner, kind="critic", total_steps=steps, seed=recipe.seed, training=told
        )
        return Critic(model, clip=spec.clip)
    model = open_scalar(start, model=recipe.model, learner=learner, total_steps=steps)
    _refuse_other(model, student, start)
    model.kind = "critic"
    return Critic(model, clip=spec.clip)


def open_reward_model(recipe: Recipe, student: LoadedModel, directory: Path) -> ScalarModel:
    """The reward model in `directory`, to be asked about what the `student` writes."""
    held = recipe.model.model_copy(update={"lora": None})
    model = open_scalar(directory, model=held, learner=recipe.learner)
    _refuse_other(model, student, directory)
    return model


def _refuse_other(model: ScalarModel, student: LoadedModel, directory: Path) -> None:
    if model.kind == "process":
        raise ModelError(
            "this is a model of steps, and one of whole attempts is wanted",
            where=str(directory),
            hint="train one with reward.process = false",
        )
    difference = first_difference(student.tokenizer, model.policy.tokenizer)
    if difference is not None:
        raise ModelError(
            f"it has another tokenizer than the policy: {difference}",
            where=str(directory),
            hint="train it on the policy's own model",
        )
