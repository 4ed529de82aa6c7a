"""The held-out suite: the same tasks, greedily, before and after; every item is kept.

An evaluation is its items; scores and intervals are computed from them, so that a later
question (which items flipped?) needs no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from headrace.environments.single_turn import Group
from headrace.errors import StorageError
from headrace.evaluate.statistics import Difference, Estimate, mean_interval, paired_difference
from headrace.types import Json, Task, Trajectory

__all__ = ["Evaluation", "Item", "compare", "comparison_payload", "groups_of"]

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One task of the suite and what the policy made of it; `score` None: not judged."""

    task: str
    domain: str
    tier: int
    problem: str
    prompt: str
    answer: Json
    completion: str
    score: float | None
    tokens: int
    truncated: bool
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A suite played by one policy version at one step.

    `weights` is the fingerprint of the weights that played: other weights, another evaluation.
    """

    suite: str
    step: int
    version: int
    weights: int
    items: tuple[Item, ...]

    def estimate(self, confidence: float, domain: str | None = None) -> Estimate:
        """Mean score of all items, or of one domain's, with its interval."""
        chosen = [i.score for i in self.items if domain is None or i.domain == domain]
        return mean_interval(chosen, confidence)

    @classmethod
    def of(
        cls, played: Sequence[Trajectory], *, step: int, version: int, weights: int
    ) -> Evaluation:
        """What the judged attempts at the held-out suite, one for each task, amount to."""
        return cls(
            suite="heldout",
            step=step,
            version=version,
            weights=weights,
            items=tuple(_item(trajectory) for trajectory in played),
        )

    @property
    def domains(self) -> list[str]:
        return sorted({item.domain for item in self.items})

    def payload(self, confidence: float) -> dict[str, Json]:
        """The summary that goes into the event log."""
        whole = self.estimate(confidence)
        return {
            "suite": self.suite,
            "version": self.version,
            "score": whole.score,
            "stderr": whole.stderr,
            "low": whole.low,
            "high": whole.high,
            "n": whole.n,
            "unscored": whole.unscored,
            "truncated": sum(item.truncated for item in self.items) / len(self.items),
            "mean_tokens": sum(item.tokens for item in self.items) / len(self.items),
            "by_domain": {name: self._domain_payload(name, confidence) for name in self.domains},
        }

    def _domain_payload(self, name: str, confidence: float) -> Json:
        """A domain's part; a domain in which nothing could be judged has no score."""
        items = [item for item in self.items if item.domain == name]
        if all(item.score is None for item in items):
            return {"score": None, "stderr": None, "n": 0, "unscored": len(items)}
        found = self.estimate(confidence, name)
        return {
            "score": found.score,
            "stderr": found.stderr,
            "n": found.n,
            "unscored": found.unscored,
        }

    def to_json(self) -> dict[str, Json]:
        return {
            "format": FORMAT,
            "suite": self.suite,
            "step": self.step,
            "version": self.version,
            "weights": self.weights,
            "items": [asdict(item) for item in self.items],
        }

    @classmethod
    def from_json(cls, value: Json) -> Evaluation:
        """The inverse of `to_json`; StorageError if it is anything else."""
        try:
            if value["format"] != FORMAT:
                raise ValueError(f"format {value['format']} is not {FORMAT}")
            items = tuple(Item(**item) for item in value["items"])
            return cls(
                suite=value["suite"],
                step=value["step"],
                version=value["version"],
                weights=value["weights"],
                items=items,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(f"not an evaluation: {error}", where="evals") from error


def groups_of(tasks: Sequence[Task]) -> list[Group]:
    """Each task of a suite as one attempt at it."""
    return [Group(f"heldout.{task.id}", task, 1) for task in tasks]


def _item(trajectory: Trajectory) -> Item:
    task, verdict = trajectory.task, trajectory.verdict
    return Item(
        task=task.id,
        domain=task.domain,
        tier=task.tier,
        problem=task.problem,
        prompt=trajectory.turns[0].text,
        answer=task.answer,
        completion=trajectory.completion,
        score=trajectory.score,
        tokens=trajectory.sampled_tokens,
        truncated=trajectory.ending == "truncated",
        evidence="" if verdict is None else verdict.evidence,
    )


def compare(before: Evaluation, after: Evaluation, confidence: float) -> Difference:
    """After minus before on the same items, clustered by problem (one problem, many phrasings).

    ValueError if the two did not play the same tasks in the same order.
    """
    if [i.task for i in before.items] != [i.task for i in after.items]:
        raise ValueError("the two evaluations are of different tasks")
    return paired_difference(
        [item.score for item in before.items],
        [item.score for item in after.items],
        confidence,
        clusters=[f"{item.domain} {item.problem}" for item in before.items],
    )


def comparison_payload(before: Evaluation, after: Evaluation, confidence: float) -> dict[str, Json]:
    """`compare` as an event says it. Raises what it does."""
    result = compare(before, after, confidence)
    return {
        "suite": after.suite,
        "value": result.value,
        "stderr": result.stderr,
        "low": result.low,
        "high": result.high,
        "n": result.n,
        "gained": result.gained,
        "lost": result.lost,
        "confidence": confidence,
        "p_value": result.p_value,
    }
