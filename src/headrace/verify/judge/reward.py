"""Reward models: a number for an answer, brought into 0..1 by a map that never turns round."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from headrace.errors import UsageError
from headrace.types import Task, Verdict, VerdictPart, VerifierRef, content_hash
from headrace.verify.answers import without_thinking
from headrace.verify.base import BaseVerifier
from headrace.verify.judge.fencing import defused, shown
from headrace.verify.judge.rubric import prompt_of
from headrace.verify.judge.rules import non_answer, suspicions
from headrace.verify.judge.scribes import Declined, Scorer, Unreachable
from headrace.verify.verdicts import hack, scored, unjudged

__all__ = ["REWARD_VERSION", "Linear", "Logistic", "RewardModel"]

REWARD_VERSION = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """0 at `low` and below, 1 at `high` and above, straight between.

    >>> Linear(low=-5, high=5)(2.5)
    0.75
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise UsageError(f"a rising line needs low < high, got {self.low} and {self.high}")

    def __call__(self, reward: float) -> float:
        return min(1.0, max(0.0, (reward - self.low) / (self.high - self.low)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Logistic:
    """1 / (1 + exp(-(reward - middle) / scale)): a Bradley-Terry win rate against `middle`.

    >>> Logistic(middle=3.0)(3.0)
    0.5
    """

    middle: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.middle) and math.isfinite(self.scale) and self.scale > 0):
            raise UsageError(f"a rising curve needs a scale above 0, got {self.scale}")

    def __call__(self, reward: float) -> float:
        return 0.5 * (1.0 + math.tanh((reward - self.middle) / self.scale / 2.0))


class RewardModel(BaseVerifier):
    """A reward model's number for an answer, through a monotone map into 0..1.

    `task.answer` is not looked at. The model reads the prompt and the attempt without its
    thinking, at most `max_characters` of it (its beginning and its end). What is no attempt at
    all scores 0 and is shown to nobody; a number that is not finite is no score, and the
    verifier's fault.

    Parts: `reward`, mapped; of weight 0 `cut` and `hack` as of the rubric judge. The number
    itself is in the evidence.
    """

    surfaces = ("text", "judge")

    def __init__(
        self, scorer: Scorer, mapping: Linear | Logistic, *, max_characters: int = 20_000
    ) -> None:
        self._scorer = scorer
        self._mapping = mapping
        self._max_characters = max_characters
        kind = type(mapping).__name__
        told = [REWARD_VERSION, scorer.identity, kind, asdict(mapping), max_characters]
        self.ref = VerifierRef("reward-model", content_hash(told))

    def judge(self, task: Task, text: str) -> Verdict:
        answer, prompt = without_thinking(text), prompt_of(task)
        nothing = non_answer(answer, prompt)
        part = shown(answer, self._max_characters)
        signs = suspicions(part.head + part.tail)
        told = (VerdictPart("cut", float(part.cut > 0), 0.0), hack(bool(signs)))
        if nothing is not None:
            parts = (VerdictPart("reward", 0.0), *told)
            return scored(self.ref, parts, evidence={"not judged": nothing})
        seen = defused(part.head)
        if part.cut:
            seen += f"\n[{part.cut} characters are left out here]\n{defused(part.tail)}"
        evidence = {"model": self._scorer.identity, "signs": list(signs)}
        try:
            reward = self._scorer.score(defused(prompt), seen)
        except Unreachable as error:
            silent = unjudged(self.ref, "infrastructure", {"why": str(error), **evidence})
            return replace(silent, parts=told)
        except Declined as error:
            silent = unjudged(self.ref, "verifier", {"why": str(error), **evidence})
            return replace(silent, parts=told)
        if not math.isfinite(reward):
            why = {"why": f"the model said {reward}", **evidence}
            return replace(unjudged(self.ref, "verifier", why), parts=told)
        parts = (VerdictPart("reward", self._mapping(reward)), *told)
        return scored(self.ref, parts, evidence={"said": reward, **evidence})
