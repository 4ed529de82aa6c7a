"""What attempts are rewarded for where a recipe names several objectives: their weighted mean.

The verifier's own verdict stays what it is: evaluation, curriculum and the watch over rewards go
by it. Beside it, and on disk before anything is trained on it, stands a second verdict by
"rewards", whose parts are the objectives. A reward model scores the attempts of a group together
and a resumed run reads what is on disk, so it is trained on the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from headrace.algorithms.credit import assemble
from headrace.errors import ModelError
from headrace.pipeline.study import CALIBRATION
from headrace.pipeline.supply import Wave
from headrace.policy.scalar import ScalarModel
from headrace.recipe import ObjectiveSpec
from headrace.store.records import Judged
from headrace.store.trajectories import TrajectoryStore
from headrace.types import (
    Fault,
    Json,
    Sample,
    Trajectory,
    Verdict,
    VerdictPart,
    VerifierRef,
    content_hash,
)
from headrace.verify.judge import Logistic
from headrace.verify.verdicts import scored, unjudged

__all__ = ["Rater", "Rewards", "Scorer", "as_rater", "objective_means"]

REWARDS = "rewards"
"""The id under which the verdicts that are trained on are stored."""

_VERSION = 1


class Scorer(Protocol):
    """A reward model as seen from here."""

    def scores(self, samples: Sequence[Sample]) -> list[float]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rater:
    """A reward model, what brings its scores into 0..1, and the digest of its files."""

    model: Scorer
    mapping: Logistic
    digest: str


def as_rater(objective: ObjectiveSpec, model: ScalarModel) -> Rater:
    """The model of an objective with its scale: the recipe's, or that of its validation scores.

    Raises ModelError where nobody has given any: a scale drawn from the attempts themselves
    would move with the policy.
    """
    middle, scale = objective.mean, objective.scale
    if middle is None or scale is None:
        told: Json = model.training.get(CALIBRATION)
        if told is None:
            raise ModelError(
                "the reward model does not say how its scores are spread: it was trained without "
                "validation data",
                where=objective.source or "",
                hint=f"set mean and scale of the objective {objective.name}",
            )
        middle, scale = float(told["mean"]), float(told["scale"])
    return Rater(model=model, mapping=Logistic(middle=middle, scale=scale), digest=model.digest)


class Rewards:
    """Judges attempts by `objectives`; `raters` are the reward models among them, by name."""

    def __init__(
        self,
        objectives: Sequence[ObjectiveSpec],
        raters: Mapping[str, Rater],
        store: TrajectoryStore,
    ) -> None:
        self._objectives, self._raters, self._store = tuple(objectives), raters, store
        told = [o.model_dump(mode="json", exclude={"source"}) for o in self._objectives]
        scales = {name: [r.digest, asdict(r.mapping)] for name, r in self._raters.items()}
        self.ref = VerifierRef(REWARDS, content_hash([_VERSION, told, scales]))

    def of(self, wave: Wave) -> Wave:
        """The wave with its groups as their verifiers judged them, and what is trained on as
        rewarded; StorageError where the rewards cannot be kept."""
        own = {group[0].group: [self._own(a) for a in group] for group in wave.groups}
        rewarded = {name: self._rewarded(attempts) for name, attempts in own.items()}
        self._keep([attempt for group in rewarded.values() for attempt in group])
        return replace(
            wave,
            groups=tuple(tuple(group) for group in own.values()),
            effective=tuple(tuple(rewarded[group[0].group]) for group in wave.effective),
        )

    def judge(self, attempts: Sequence[Trajectory]) -> list[Trajectory]:
        """The attempts with their rewards in place of their verifiers' verdicts."""
        said = self._said(attempts)
        return [a.judged(self._verdict(a, heard)) for a, heard in zip(attempts, said, strict=True)]

    # --- the disk --------------------------------------------------------------------------

    def _own(self, attempt: Trajectory) -> Trajectory:
        """With the verifier's verdict: one without a score gives way to the rewards in a store."""
        if attempt.verdict is None or attempt.verdict.verifier != self.ref:
            return attempt
        others = [v for v in self._store.verdicts(attempt.id) if v.verifier != self.ref]
        return replace(attempt, verdict=others[0] if others else None)

    def _rewarded(self, group: Sequence[Trajectory]) -> list[Trajectory]:
        """As on disk; of a group of which something is not there yet, all is scored together."""
        known = [self._known(attempt) for attempt in group]
        found = [a.judged(v) for a, v in zip(group, known, strict=True) if v is not None]
        if len(found) == len(group):
            return found
        fresh = self.judge(group)
        return [a if v is None else a.judged(v) for a, v in zip(fresh, known, strict=True)]

    def _known(self, attempt: Trajectory) -> Verdict | None:
        said = self._store.verdicts(attempt.id)
        return next((verdict for verdict in said if verdict.verifier == self.ref), None)

    def _keep(self, attempts: Sequence[Trajectory]) -> None:
        judged = [Judged(a.id, a.verdict) for a in attempts if a.verdict is not None]
        for landed in [self._store.append_nowait(record) for record in judged]:
            landed.result()

    # --- judging ---------------------------------------------------------------------------

    def _said(self, attempts: Sequence[Trajectory]) -> list[dict[str, float]]:
        """The score of each attempt by each reward model; none where nothing was written."""
        written = [n for n, attempt in enumerate(attempts) if attempt.sampled_tokens]
        samples = [assemble(attempts[n]) for n in written]
        said: list[dict[str, float]] = [{} for _ in attempts]
        for name, rater in self._raters.items():
            for n, score in zip(written, rater.model.scores(samples), strict=True):
                said[n][name] = score
        return said

    def _verdict(self, attempt: Trajectory, said: Mapping[str, float]) -> Verdict:
        """The weighted mean of the objectives; no score where one that counts has none."""
        parts: list[VerdictPart] = []
        faults: list[tuple[str, Fault]] = []
        for objective in self._objectives:
            value = self._value(objective, attempt, said)
            if not isinstance(value, str):
                parts.append(VerdictPart(objective.name, value, objective.weight))
            elif objective.weight:
                faults.append((objective.name, value))
        if not faults:
            return scored(self.ref, parts, evidence=said)
        name, fault = faults[0]
        why = {"why": f"{name} could not be judged", **said}
        return replace(unjudged(self.ref, fault, why), parts=tuple(parts))

    def _value(
        self, objective: ObjectiveSpec, attempt: Trajectory, said: Mapping[str, float]
    ) -> float | Fault:
        """What an attempt gets from one objective, 0..1, or whose fault it is that it cannot be
        said. What the policy did not write earns nothing from a model that reads."""
        if attempt.failure is not None and attempt.failure.fault != "policy":
            return attempt.failure.fault
        match objective.kind:
            case "verifier":
                verdict = attempt.verdict
                if verdict is None or verdict.score is None:
                    return "verifier" if verdict is None else verdict.fault or "verifier"
                return float(verdict.score)
            case "reward_model":
                score = said.get(objective.name)
                if score is None:
                    return 0.0
                rater = self._raters[objective.name]
                return rater.mapping(score) if math.isfinite(score) else "verifier"
            case "length":
                assert objective.target is not None
                assert objective.cost is not None
                over = max(0, attempt.sampled_tokens - objective.target)
                return max(0.0, 1.0 - objective.cost * over)


def objective_means(attempts: Sequence[Trajectory]) -> dict[str, Json]:
    """Of rewarded attempts, the mean of each objective over those that it could judge, how many
    these are, and its weight."""
    found: dict[str, list[VerdictPart]] = {}
    for attempt in attempts:
        for part in attempt.verdict.parts if attempt.verdict is not None else ():
            found.setdefault(part.name, []).append(part)
    return {
        name: {
            "mean": math.fsum(part.value for part in parts) / len(parts),
            "n": len(parts),
            "weight": parts[0].weight,
        }
        for name, parts in found.items()
    }
