"""Learning from recorded data: what a step reads, what it becomes, and what was seen of it.

The counterpart of playing: units (a conversation, or a pair) come from files, stored attempts and
reference answers, in an order that a resumed run repeats. Which loss they meet is the method's,
and so is what is trained: the policy, or a reward model over its body.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from headrace.algorithms.ranking import LengthBias, calibration, length_bias
from headrace.algorithms.recorded import demonstrations, mismatched, preferences, rankings
from headrace.data.recorded import RecordedSource
from headrace.pipeline.references import References
from headrace.policy.engine import TorchPolicy
from headrace.policy.files import write_model
from headrace.policy.learner import TorchLearner
from headrace.policy.scalar import ScalarModel
from headrace.protocols import LearnerReport, PreferenceReport, RankingReport, UpdateReport
from headrace.recipe import Recipe
from headrace.types import Example, Floats, Json, Sample

__all__ = [
    "CALIBRATION",
    "PolicyStudy",
    "RewardStudy",
    "Studied",
    "Study",
    "Trained",
    "Unit",
    "Validation",
]

CALIBRATION = "calibration"
"""Under which a reward model keeps how its validation scores are spread."""

Unit = tuple[Example, ...]
Report = LearnerReport | PreferenceReport | RankingReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Studied:
    """What a step learned from, what the learner saw of it, and the update."""

    units: tuple[Unit, ...]
    report: Report
    update: UpdateReport
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(example.tokens for unit in self.units for example in unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """What was measured on the units that are never trained on.

    `loss`: cross-entropy per token (nats) of what is to be written, or of a reward model the mean
    loss of a pair. `accuracy` (0..1): the share of pairs that come out the right way round, a tie
    a half. `calibration_error` (0..1) and `length_bias` of a reward model's scores.
    """

    units: int
    loss: float
    accuracy: float | None = None
    calibration_error: float | None = None
    length_bias: LengthBias | None = None

    def payload(self) -> dict[str, Json]:
        bias = self.length_bias
        return {
            "suite": "validation",
            "n": self.units,
            "loss": self.loss,
            "accuracy": self.accuracy,
            "calibration_error": self.calibration_error,
            "length_bias": None if bias is None else asdict(bias),
        }


class Trained(Protocol):
    """What is trained, as checkpoints see it."""

    def save(self, directory: Path) -> None: ...

    def load(self, directory: Path) -> None: ...


class Study(Protocol):
    """A method of learning from recorded data."""

    @property
    def source(self) -> RecordedSource:
        """What is read, and how far."""
        ...

    @property
    def trained(self) -> Trained: ...

    def step(self) -> Studied:
        """Read the next batch and learn from it."""
        ...

    def validate(self) -> Validation | None:
        """Measure on the validation units; None where there are none."""
        ...

    def export(self, directory: Path) -> None:
        """Write the model that came of it, whole."""
        ...


class PolicyStudy:
    """Trains the policy: by imitation, or by preferences against its frozen reference."""

    def __init__(
        self,
        recipe: Recipe,
        source: RecordedSource,
        policy: TorchPolicy,
        learner: TorchLearner,
        references: References,
    ) -> None:
        self._recipe, self.source = recipe, source
        self._policy, self._learner, self._references = policy, learner, references

    @property
    def trained(self) -> Trained:
        return self._learner

    def step(self) -> Studied:
        started = time.perf_counter()
        units = _next(self._recipe, self.source)
        report = (
            self._prefer(units) if self._recipe.method == "preference" else self._imitate(units)
        )
        update = self._learner.optim_step()
        self._learner.publish()
        seconds = time.perf_counter() - started
        return Studied(units=units, report=report, update=update, seconds=seconds)

    def _imitate(self, units: Sequence[Unit]) -> LearnerReport:
        return self._learner.forward_backward(demonstrations(units), self._recipe.loss())

    def _prefer(self, units: Sequence[Unit]) -> PreferenceReport:
        loss = self._recipe.preference.objective()
        known = self._references.of(units) if loss.needs_reference else None
        crossed = self._crossed(units) if loss.loss == "kto" else ()
        return self._learner.prefer(preferences(units, loss, known), loss, mismatched=crossed)

    def _crossed(self, units: Sequence[Unit]) -> list[Sample]:
        """Prompts with the completions of others and what the reference says of them: too many
        to keep, as they change with every batch."""
        samples = mismatched(units)
        logps = self._learner.logprobs(samples, which="reference")
        return [replace(s, reference=v) for s, v in zip(samples, logps, strict=True)]

    def validate(self) -> Validation | None:
        units = self.source.validation
        if not units:
            return None
        samples = demonstrations([(example,) for unit in units for example in unit])
        logps = self._learner.logprobs(samples, which="current")
        nats = {
            sample.trajectory: float(values.sum(dtype=np.float64))
            for sample, values in zip(samples, logps, strict=True)
        }
        wanted = [e for unit in units for e in unit if e.label >= 0 and e.key in nats]
        tokens = sum(example.tokens for example in wanted)
        return Validation(
            units=len(units),
            loss=-sum(nats[example.key] for example in wanted) / max(tokens, 1),
            accuracy=self._accuracy(units, nats),
        )

    def _accuracy(self, units: Sequence[Unit], nats: Mapping[str, float]) -> float | None:
        """In how many pairs the preferred one gained more on the reference; without a reference,
        is likelier per token."""
        pairs = [unit for unit in units if is_pair(unit)]
        if self._recipe.preference.objective().needs_reference:
            known = self._references.of(pairs) if self._recipe.method == "preference" else {}
            worth = {k: nats[k] - _total(logps) for k, logps in known.items()}
        else:
            examples = [example for pair in pairs for example in pair]
            worth = {e.key: nats[e.key] / max(e.tokens, 1) for e in examples}
        return _right_share(pairs, worth) if worth else None

    def export(self, directory: Path) -> None:
        write_model(self._policy, directory)


class RewardStudy:
    """Trains a reward model over the policy's body; the policy itself writes nothing.

    How its scores are spread over the validation units is kept with the model: whoever rewards
    with it needs a scale that does not move (`headrace.pipeline.rewarding`).
    """

    def __init__(self, recipe: Recipe, source: RecordedSource, model: ScalarModel) -> None:
        self._recipe, self.source, self._model = recipe, source, model

    @property
    def trained(self) -> Trained:
        return self._model

    def step(self) -> Studied:
        started = time.perf_counter()
        units = _next(self._recipe, self.source)
        loss = self._recipe.reward.objective()
        report = self._model.forward_backward(rankings(units, loss), loss)
        update = self._model.optim_step()
        seconds = time.perf_counter() - started
        return Studied(units=units, report=report, update=update, seconds=seconds)

    def validate(self) -> Validation | None:
        units = [unit for unit in self.source.validation if is_pair(unit)]
        if not units:
            return None
        examples = [example for unit in units for example in unit]
        samples = rankings(units, replace(self._recipe.reward.objective(), process=False))
        scores = dict(zip((e.key for e in examples), self._model.scores(samples), strict=True))
        self._model.training[CALIBRATION] = _spread(list(scores.values()))
        gaps = [scores[better.key] - scores[worse.key] for better, worse in map(_ordered, units)]
        return Validation(
            units=len(units),
            loss=float(np.mean(np.logaddexp(0.0, -np.asarray(gaps)))),
            accuracy=_right_share(units, scores),
            calibration_error=calibration(gaps, [1.0] * len(gaps)).error,
            length_bias=length_bias(
                [scores[example.key] for example in examples],
                [example.tokens for example in examples],
                quality=[example.label for example in examples],
            ),
        )

    def export(self, directory: Path) -> None:
        if CALIBRATION not in self._model.training:
            self.validate()
        self._model.export(directory)


def _spread(scores: Sequence[float]) -> Json:
    """Mean and standard deviation of scores; None where they are all alike."""
    mean, scale = float(np.mean(scores)), float(np.std(scores))
    return {"mean": mean, "scale": scale, "n": len(scores)} if scale > 0 else None


def _next(recipe: Recipe, source: RecordedSource) -> tuple[Unit, ...]:
    assert recipe.data is not None
    return source.next(recipe.data.batch)


def is_pair(unit: Unit) -> bool:
    """Whether one example is preferred to the other: a conversation in two parts is none."""
    return sorted(example.label for example in unit) == [-1.0, 1.0]


def _ordered(pair: Unit) -> tuple[Example, Example]:
    """The preferred one first."""
    better, worse = sorted(pair, key=lambda example: -example.label)
    return better, worse


def _right_share(pairs: Sequence[Unit], worth: Mapping[str, float]) -> float:
    """The share of pairs in which the preferred one is worth more; a tie is a half."""
    gaps = [worth[better.key] - worth[worse.key] for better, worse in map(_ordered, pairs)]
    return sum(0.5 if gap == 0 else float(gap > 0) for gap in gaps) / len(gaps)


def _total(logps: Floats) -> float:
    return float(logps.sum(dtype=np.float64))
