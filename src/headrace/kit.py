"""For authors of task packs: a domain from one function that asks and one that judges.

Whatever this hides can be done by hand (docs/domains.md); nothing in headrace depends on it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from headrace.protocols import Domain, Verifier
from headrace.types import (
    Json,
    Message,
    Task,
    Verdict,
    VerdictPart,
    VerifierRef,
    canonical_json,
    split_of,
)
from headrace.verify.base import BaseVerifier
from headrace.verify.verdicts import scored

__all__ = ["Ask", "Asked", "Domains", "Judge", "Question", "Rule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked and how it is answered.

    `answer` is hidden from the policy and is all that the judge gets to see of the question.
    `reference` is a whole attempt that deserves full marks, `wrong` are some that must not get
    them: near misses, and whatever you fear. `problem` says what is asked, however it is
    phrased (the prompt where it is empty): phrasings of one problem stay on one side of the
    split between training and held-out tasks.
    """

    prompt: str
    answer: Json
    reference: str
    wrong: tuple[str, ...] = ()
    problem: str = ""


Ask = Callable[[int, Random], Question]
"""From a tier (0 the easiest) and a source of randomness to a question, a function of both."""

Judge = Callable[[Json, str], bool | float]
"""From a question's answer and an attempt's text to whether it is right, or how right (0..1)."""


class Rule(BaseVerifier):
    """A verifier from a judging function. Raise `version` whenever a score could change.

    >>> rule = Rule("same", "1", lambda answer, text: text.strip() == answer)
    >>> question = Question(prompt="Say 4.", answer="4", reference="4")
    >>> domain = Asked("same", tiers=1, ask=lambda tier, rng: question, verifier=rule)
    >>> [rule.judge(domain.task(0, 0), text).score for text in (" 4 ", "5")]
    [1.0, 0.0]
    """

    def __init__(self, id: str, version: str, judge: Judge) -> None:
        self.ref = VerifierRef(id, version)
        self._judge = judge

    def judge(self, task: Task, text: str) -> Verdict:
        """ValueError if the function gives no number in 0..1."""
        value = float(self._judge(task.answer, text))
        if not (math.isfinite(value) and 0.0 <= value <= 1.0):
            raise ValueError(f"the judge of {self.ref.id} gave {value}, not a number in 0..1")
        evidence: dict[str, Json] = {"expected": task.answer, "said": text}
        return scored(self.ref, (VerdictPart("answer", value),), evidence=evidence)


class Asked:
    """The domain `name` of `tiers` tiers whose tasks `ask` makes and `verifier` judges."""

    def __init__(self, name: str, *, tiers: int, ask: Ask, verifier: Verifier) -> None:
        self.name = name
        self.tiers = tiers
        self.verifier = verifier
        self._ask = ask

    def task(self, tier: int, index: int) -> Task:
        """Candidate `index` (0..2**63 - 1) of tier `tier` (0..tiers - 1)."""
        question = self._question(tier, index)
        problem = question.problem or question.prompt
        return Task(
            domain=self.name,
            problem=problem,
            tier=tier,
            split=split_of(self.name, problem),
            messages=(Message.of("user", question.prompt),),
            verifier=self.verifier.ref,
            answer=question.answer,
            lineage={"index": index},
        )

    def reference(self, task: Task) -> str:
        """An attempt that deserves full marks."""
        return self._question(task.tier, task.lineage["index"]).reference

    def wrong(self, task: Task) -> tuple[str, ...]:
        """Attempts that must not get full marks."""
        return self._question(task.tier, task.lineage["index"]).wrong

    def _question(self, tier: int, index: int) -> Question:
        key = canonical_json([self.name, tier, index]).encode()
        return self._ask(tier, Random(hashlib.sha256(key).digest()))


class Domains:
    """The pack of these domains; holds no resources."""

    def __init__(self, *domains: Domain) -> None:
        self._domains = {domain.name: domain for domain in domains}

    def names(self) -> Sequence[str]:
        """What it offers."""
        return list(self._domains)

    def open(self, name: str) -> Domain:
        """The domain of that name; KeyError if there is none."""
        return self._domains[name]

    def close(self) -> None:
        """Nothing to end."""
