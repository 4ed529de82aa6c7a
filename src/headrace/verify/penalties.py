"""Verifiers that take something off another one's score: for length, form, or too many steps.

A penalty only ever takes a share of what the answer is worth, so being short, neat or quick pays
nothing by itself. May be known by task packs, the audit and the command line.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

from headrace.errors import UsageError
from headrace.protocols import Verifier
from headrace.types import Json, Task, Verdict, VerdictPart
from headrace.verify.answers import fences
from headrace.verify.compose import Composed, Heard, Member
from headrace.verify.verdicts import scored

__all__ = ["FormatPenalty", "LengthPenalty", "StepBudget"]

_NUMBERED = re.compile(r"^[ \t]*(?:step[ \t]+\d+\b|\d+[.)][ \t])", re.MULTILINE | re.IGNORECASE)


class _Penalised(Composed):
    """score = answer * (1 - weight * penalty), the penalty being in 0..1.

    Parts: `worth` (the answer's score, weight 1 - weight), the penalty's own name (what the
    penalty leaves of it, weight `weight`), and of weight 0 `<name>-penalty` and the members.
    """

    _part: str

    def __init__(
        self, id: str, inner: Member, others: Sequence[Member], weight: float, options: Json
    ) -> None:
        if not 0.0 < weight <= 1.0:
            raise UsageError(f"{id} takes a share in 0..1 of a score, not {weight}")
        self._inner, self._weight = inner, weight
        super().__init__(id, (inner, *others), [weight, options])

    @abstractmethod
    def _penalty(self, heard: Heard, text: str) -> float:
        """How much of the penalty is due, 0..1, once all members have a score."""

    def judge(self, task: Task, text: str) -> Verdict:
        heard = self.heard(task, text)
        if heard.fault is not None:
            return heard.unjudged(self.ref, heard.fault)
        worth = heard.score(self._inner.name)
        penalty = self._penalty(heard, text)
        own = [
            VerdictPart("worth", worth, 1.0 - self._weight),
            VerdictPart(self._part, worth * (1.0 - penalty), self._weight),
            VerdictPart(f"{self._part}-penalty", penalty, 0.0),
        ]
        evidence = heard.evidence(penalty=penalty)
        return scored(self.ref, [*own, *heard.parts(weighted=False)], evidence=evidence)

    def floor(self, task: Task) -> float:
        return self._inner.floor(task)


class _Budget(_Penalised):
    """Nothing is taken up to `free`, all from `most` on, and in proportion between."""

    def __init__(
        self, id: str, inner: Member, free: int, most: int, weight: float, unit: str
    ) -> None:
        if not 0 <= free < most:
            raise UsageError(f"{id} needs 0 <= free < most, got {free} and {most}")
        self._free, self._most = free, most
        super().__init__(id, inner, (), weight, [free, most, unit])

    @abstractmethod
    def _spent(self, text: str) -> int:
        """How much of the budget a text takes."""

    def _penalty(self, heard: Heard, text: str) -> float:
        del heard
        over = (self._spent(text) - self._free) / (self._most - self._free)
        return min(1.0, max(0.0, over))


class LengthPenalty(_Budget):
    """Up to `weight` of the score goes as a text grows from `free` to `most` words (characters).

    The whole text counts, its thinking too: it is what the policy spends.
    """

    _part = "length"

    def __init__(
        self,
        inner: Verifier,
        *,
        free: int,
        most: int,
        weight: float,
        unit: Literal["words", "characters"] = "words",
        key: str | None = None,
        id: str = "length-penalty",
    ) -> None:
        self._unit = unit
        member = Member(name="answer", verifier=inner, key=key)
        super().__init__(id, member, free, most, weight, unit)

    def _spent(self, text: str) -> int:
        return len(text) if self._unit == "characters" else len(text.split())


class StepBudget(_Budget):
    """Up to `weight` of the score goes as a text takes from `free` to `most` steps.

    A step is a line that is not empty, a line that begins as "Step 3" or "3." ("numbered"), or
    a fenced block ("fences").
    """

    _part = "steps"

    def __init__(
        self,
        inner: Verifier,
        *,
        free: int,
        most: int,
        weight: float,
        unit: Literal["lines", "numbered", "fences"] = "numbered",
        key: str | None = None,
        id: str = "step-budget",
    ) -> None:
        self._unit = unit
        member = Member(name="answer", verifier=inner, key=key)
        super().__init__(id, member, free, most, weight, unit)

    def _spent(self, text: str) -> int:
        if self._unit == "numbered":
            return len(_NUMBERED.findall(text))
        if self._unit == "fences":
            return len(fences(text))
        return sum(bool(line.strip()) for line in text.splitlines())


class FormatPenalty(_Penalised):
    """Up to `weight` of the score goes as `form`, a verifier of the form, gives less than 1."""

    _part = "format"

    def __init__(
        self,
        inner: Verifier,
        form: Verifier,
        *,
        weight: float,
        key: str | None = None,
        form_key: str | None = None,
        id: str = "format-penalty",
    ) -> None:
        member = Member(name="answer", verifier=inner, key=key)
        super().__init__(id, member, (Member(name="form", verifier=form, key=form_key),), weight, 0)

    def _penalty(self, heard: Heard, text: str) -> float:
        del text
        return 1.0 - heard.score("form")
