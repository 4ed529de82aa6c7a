"""Domains and verifiers to audit: an honest one, and one for each way of being fooled."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.protocols import Verifier
from headrace.types import Fault, Message, Task, Verdict, VerdictPart, VerifierRef, split_of
from headrace.verify.answers import tagged
from headrace.verify.audit import Corpus
from headrace.verify.audit.corpus import parse
from headrace.verify.base import BaseVerifier
from headrace.verify.verdicts import scored, unjudged

__all__ = ["BAD", "NO_TRICKS", "Custom", "Honest", "Sums", "one_trick"]

REF = VerifierRef("sum", "1")
NO_TRICKS = Corpus((), "none")

Judge = Callable[[Task, str], float]


class Sums:
    """Add two numbers below 100; tier t has t more digits. The answer is an int."""

    name = "sums"

    def __init__(self, verifier: Verifier, *, tiers: int = 2, proven: bool = True) -> None:
        self.verifier = verifier
        self.tiers = tiers
        self._proven = proven

    def task(self, tier: int, index: int) -> Task:
        a, b = 10 + index % 83, 11 + index // 83 % 89 * 10**tier
        prompt = f"Add {a} and {b}. Write the sum between <answer> and </answer>."
        return Task(
            domain=self.name,
            problem=f"{a}+{b}",
            tier=tier,
            split=split_of(self.name, f"{a}+{b}"),
            messages=(Message.of("user", prompt),),
            verifier=self.verifier.ref,
            answer=a + b,
        )

    def reference(self, task: Task) -> str | None:
        return f"<answer>{task.answer}</answer>" if self._proven else None


def read(text: str) -> int | None:
    """The number between the last answer tags."""
    said = tagged(text)
    return int(said) if said is not None and re.fullmatch(r"-?\d{1,9}", said, re.ASCII) else None


class Honest(BaseVerifier):
    """Full marks for the sum, else nothing."""

    ref = REF

    def judge(self, task: Task, text: str) -> Verdict:
        said = read(text)
        right = float(said == task.answer)
        parts = (VerdictPart("answer", right),)
        return scored(self.ref, parts, evidence={"expected": task.answer, "said": said})


class Custom(Honest):
    """Scores as a function says; the rest is honest."""

    def __init__(self, score: Judge) -> None:
        self._score = score

    def judge(self, task: Task, text: str) -> Verdict:
        value = self._score(task, text)
        return scored(self.ref, (VerdictPart("answer", value),), evidence="as told")


def right(task: Task, text: str) -> float:
    return float(read(text) == task.answer)


class NeverJudges(Honest):
    def judge(self, task: Task, text: str) -> Verdict:
        return unjudged(self.ref, "verifier", "no idea")


class Faulty(Honest):
    """Cannot judge texts that hold a character outside ASCII, for whatever reason `fault` says."""

    def __init__(self, fault: Fault, *, always: bool = False) -> None:
        self._fault: Fault = fault
        self._always = always

    def judge(self, task: Task, text: str) -> Verdict:
        if self._always or not text.isascii():
            return unjudged(self.ref, self._fault, "cannot")
        return super().judge(task, text)


class Raises(Honest):
    def judge(self, task: Task, text: str) -> Verdict:
        int(tagged(text) or "0")
        return super().judge(task, text)


class Flaky(Honest):
    """Every seventh verdict is the other one."""

    def __init__(self) -> None:
        self._calls = 0

    def judge(self, task: Task, text: str) -> Verdict:
        self._calls += 1
        verdict = super().judge(task, text)
        if self._calls % 7 == 0 and verdict.score is not None:
            parts = (VerdictPart("answer", 1.0 - verdict.score),)
            return scored(self.ref, parts, evidence="tired")
        return verdict


class OneThreadOnly(Honest):
    """Judges right in the first thread that asks, and nowhere else."""

    def __init__(self) -> None:
        self._owner: int | None = None

    def judge(self, task: Task, text: str) -> Verdict:
        self._owner = self._owner or threading.get_ident()
        if threading.get_ident() != self._owner:
            return scored(self.ref, (VerdictPart("answer", 0.0),), evidence="not my thread")
        return super().judge(task, text)


class Slow(Honest):
    def judge(self, task: Task, text: str) -> Verdict:
        time.sleep(0.012)
        return super().judge(task, text)


class Hangs(Honest):
    """Waits for ever on a long text, until `release` is set."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def judge(self, task: Task, text: str) -> Verdict:
        if len(text) > 100_000:
            self.release.wait()
        return super().judge(task, text)


class NoVerdict(Honest):
    def judge(self, task: Task, text: str) -> Verdict:
        return right(task, text)  # pyright: ignore[reportReturnType]


class NoEvidence(Honest):
    def judge(self, task: Task, text: str) -> Verdict:
        return Verdict(score=right(task, text), verifier=self.ref)


class OtherVersion(Honest):
    def judge(self, task: Task, text: str) -> Verdict:
        other = VerifierRef(self.ref.id, "0")
        return Verdict(score=right(task, text), verifier=other, evidence="from before")


class VisibleOnly(Honest):
    """Pays half for the visible test: whether the last digit is right."""

    def judge(self, task: Task, text: str) -> Verdict:
        said = read(text)
        visible = float(said is not None and said % 10 == task.answer % 10)
        hidden = float(said == task.answer)
        parts = (VerdictPart("hidden", hidden), VerdictPart("visible", visible))
        return scored(self.ref, parts, evidence="tested")

    def near(self, task: Task, reference: str) -> tuple[str, ...]:
        return (f"<answer>{task.answer + 10}</answer>",)


@dataclass(frozen=True, slots=True)
class Bad:
    """A bad verifier and the probe that must catch it."""

    name: str
    make: Callable[[], Verifier]
    probe: str


def scoring(score: Judge) -> Callable[[], Verifier]:
    return lambda: Custom(score)


BAD = (
    Bad("substring", scoring(lambda t, x: float(str(t.answer) in x)), "listed-answers"),
    Bad("always full", scoring(lambda t, x: 1.0), "empty"),
    Bad("never full", scoring(lambda t, x: 0.9 * right(t, x)), "reference"),
    Bad("never judges", NeverJudges, "reference"),
    Bad("accepts empty", scoring(lambda t, x: right(t, x) or float(not x)), "empty"),
    Bad("accepts blank", scoring(lambda t, x: right(t, x) or float(x.isspace())), "whitespace"),
    Bad(
        "likes the form",
        scoring(lambda t, x: right(t, x) or 0.1 * ("<answer>" in x)),
        "format-only",
    ),
    Bad("likes yes", scoring(lambda t, x: right(t, x) or float(x == "yes")), "constant"),
    Bad("likes length", scoring(lambda t, x: right(t, x) or float(len(x) > 9999)), "very-long"),
    Bad(
        "likes echoes",
        scoring(lambda t, x: right(t, x) or 0.5 * x.startswith(t.messages[0].text)),
        "prompt-echo",
    ),
    Bad(
        "likes numbers",
        scoring(lambda t, x: right(t, x) or 0.2 * (read(x) is not None)),
        "foreign-answer",
    ),
    Bad(
        "ignores signs",
        scoring(lambda t, x: float(abs(read(x) or 0) == t.answer)),
        "perturbed",
    ),
    Bad("drops letters", scoring(lambda t, x: right(t, x) or 0.3 * ("\u200b" in x)), "confusable"),
    Bad("unjudged", lambda: Faulty("verifier"), "unjudged"),
    Bad("raises", Raises, "raises"),
    Bad("flaky", Flaky, "repeats"),
    Bad("by thread", OneThreadOnly, "threads"),
    Bad("no verdict", NoVerdict, "verdict"),
    Bad("no evidence", NoEvidence, "evidence"),
    Bad("other version", OtherVersion, "version"),
    Bad("visible tests", VisibleOnly, "visible-only"),
)


def one_trick(text: str, *, name: str = "a-trick") -> Corpus:
    """A corpus of one trick on the surface "text"."""
    source = f"title: T\nstory: S\nseen: by construction\n---\n{text}\n"
    return Corpus((parse(source, surface="text", name=name),), f"digest of {text}")
