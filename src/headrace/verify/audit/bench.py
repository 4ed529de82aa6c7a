"""The bench: asks a verifier, holds each answer against what it must be, and keeps the books.

The only place that calls a verifier's `judge`. Knows attempts and findings; chooses none.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

from headrace.observe.report.markup import clip
from headrace.protocols import Verifier
from headrace.types import Task, Verdict
from headrace.verify.audit import texts
from headrace.verify.audit.findings import Attempt, Finding, ProbeCount
from headrace.verify.audit.probes import Subject

__all__ = ["Answer", "Asked", "Bench", "asked"]

T = TypeVar("T")

FULL_MARKS = 0.999
_ROUNDING = 1e-9
_SHOWN = 4000
_RAISED, _WRONG_PAID, _UNJUDGED, _REFUSED = 800.0, 950.0, 700.0, 900.0


@dataclass(frozen=True, slots=True)
class Asked(Generic[T]):
    """What a foreign function said, or the traceback of what it raised."""

    said: T | None
    trace: str = ""
    error: str = ""


def asked(call: Callable[[], T]) -> Asked[T]:
    """Call code under audit: whatever it raises is what the audit is about, and is reported."""
    try:
        return Asked(call())
    except (Exception, SystemExit) as error:  # noqa: BLE001  a finding, shown with its traceback
        return Asked(None, traceback.format_exc(limit=-6), f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict on an attempt, or what came in its place; `seconds` it took.

    `error` and `trace` tell of an exception, `odd` of a value that is no verdict.
    """

    verdict: Verdict | None
    seconds: float
    trace: str = ""
    error: str = ""
    odd: str = ""

    @property
    def outcome(self) -> str:
        """What must be the same every time: the score, the fault, or that it raised."""
        if self.verdict is None:
            return f"raised {self.error}" if self.error else self.odd
        if self.verdict.score is None:
            return f"not judged ({self.verdict.fault})"
        return f"{self.verdict.score:.9g}"


@dataclass(slots=True)
class Bench:
    """One verifier under audit.

    `since` is when the call at hand began (monotonic seconds), None between calls; `at` what
    is being judged. Both are read from another thread.
    """

    verifier: Verifier
    second: Verifier | None = None
    clock: Callable[[], float] = time.monotonic
    since: float | None = None
    at: tuple[Subject, Attempt] | None = None
    seconds: list[float] = field(default_factory=list[float])
    findings: list[Finding] = field(default_factory=list[Finding])
    counts: dict[str, ProbeCount] = field(default_factory=dict[str, ProbeCount])
    compared: int = 0
    different: int = 0

    def judge(self, task: Task, text: str) -> Answer:
        """Ask the verifier; never raises for what it does. Safe from several threads."""
        start = time.perf_counter()
        result = asked(lambda: self.verifier.judge(task, text))
        seconds = time.perf_counter() - start
        self.seconds.append(seconds)
        if isinstance(result.said, Verdict):
            return Answer(result.said, seconds)
        odd = "" if result.error else f"{result.said!r:.200}"
        return Answer(None, seconds, result.trace, result.error, odd)

    def try_(self, subject: Subject, attempt: Attempt, *, siblings: tuple[Task, ...] = ()) -> None:
        """Judge an attempt and write down everything that is wrong with the answer.

        `siblings` are tasks with other answers: a fixed text that is paid in full for saying
        the answer by chance is paid nothing there.
        """
        answer = self.watched(subject, attempt)
        self.count(attempt.probe, attempts=1)
        self._invariants(subject, attempt, answer)
        self._bounds(subject, attempt, answer, siblings)
        if self.second is not None:
            self._compare(subject, attempt, answer, self.second)

    def watched(self, subject: Subject, attempt: Attempt) -> Answer:
        """Judge once more without holding the answer against anything."""
        self.at, self.since = (subject, attempt), self.clock()
        answer = self.judge(subject.task, attempt.text)
        self.since = None
        return answer

    def crowd(
        self, subject: Subject, attempts: Sequence[Attempt], threads: int
    ) -> dict[str, list[Answer]]:
        """The answers by text when `threads` threads judge all `attempts` at once, rotated."""
        self.at, self.since = (subject, attempts[0]), self.clock()
        answers: dict[str, list[Answer]] = {attempt.text: [] for attempt in attempts}
        together = threading.Barrier(threads)

        def judge_all(shift: int) -> None:
            together.wait()
            for attempt in (*attempts[shift:], *attempts[:shift]):
                answers[attempt.text].append(self.judge(subject.task, attempt.text))

        lanes = [
            threading.Thread(target=judge_all, args=(number % len(attempts),), daemon=True)
            for number in range(threads)
        ]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
        self.since = None
        return answers

    def count(self, probe: str, **more: int) -> None:
        """Add to the counts of a probe."""
        before = self.counts.get(probe, ProbeCount(probe=probe))
        added = {name: getattr(before, name) + number for name, number in more.items()}
        self.counts[probe] = replace(before, **added)

    def find(self, finding: Finding) -> None:
        """Write a finding down, and count it."""
        self.findings.append(finding)
        self.count(finding.probe, findings=1)

    def hold(
        self,
        subject: Subject,
        attempt: Attempt,
        answer: Answer,
        *,
        probe: str,
        rank: float,
        problem: str,
        expected: str,
        unclear: bool = False,
    ) -> None:
        """Write down a finding about one attempt."""
        verdict = answer.verdict
        self.find(
            Finding(
                probe=probe,
                severity="unclear" if unclear else "fail",
                rank=rank,
                problem=problem,
                expected=expected,
                tier=subject.task.tier,
                index=subject.index,
                prompt=clip(subject.prompt, _SHOWN),
                reference=None if subject.reference is None else clip(subject.reference, _SHOWN),
                text=clip(attempt.text, _SHOWN),
                characters=len(attempt.text),
                score=None if verdict is None else verdict.score,
                fault=None if verdict is None else verdict.fault,
                evidence="" if verdict is None else clip(verdict.evidence, _SHOWN),
                trace=answer.trace,
            )
        )

    # --- what every answer must be ---------------------------------------------------------

    def _invariants(self, subject: Subject, attempt: Attempt, answer: Answer) -> None:
        said = f"on a text of the probe {attempt.probe!r}"
        blame = partial(self.hold, subject, attempt, answer)
        verdict = answer.verdict
        if answer.error:
            blame(
                probe="raises",
                rank=_RAISED,
                problem=f"judge raised {answer.error} {said}",
                expected="a verdict: what a text causes scores, what it cannot has a fault",
            )
        elif verdict is None:
            blame(
                probe="verdict",
                rank=_RAISED,
                problem=f"judge returned {answer.odd} {said}",
                expected="a Verdict with a score in 0..1, or with None and a fault",
            )
        elif not verdict.evidence.strip():
            blame(
                probe="evidence",
                rank=100.0,
                problem=f"a verdict without evidence {said}",
                expected="what was expected and what was found, in words or JSON",
            )
        elif verdict.verifier != self.verifier.ref:
            blame(
                probe="version",
                rank=200.0,
                problem=f"the verdict names {verdict.verifier}",
                expected=f"the verifier's own {self.verifier.ref}",
            )

    # --- what this attempt must get --------------------------------------------------------

    def _bounds(
        self, subject: Subject, attempt: Attempt, answer: Answer, siblings: tuple[Task, ...]
    ) -> None:
        verdict = answer.verdict
        if verdict is None:
            return
        if verdict.score is None:
            self._unjudged(subject, attempt, answer, verdict)
            return
        broken = _broken(attempt, subject.floor, verdict.score)
        if broken is None:
            if attempt.bound in ("less", "floor"):
                self._visible_only(subject, attempt, answer, verdict)
        elif verdict.solved and attempt.fixed and self._chance(subject, attempt, siblings):
            self.count(attempt.probe, coincidences=1)
        else:
            self.hold(
                subject,
                attempt,
                answer,
                probe=attempt.probe,
                rank=broken.rank,
                problem=f"{broken.what} scores {verdict.score:.3g}",
                expected=broken.expected,
            )

    def _unjudged(
        self, subject: Subject, attempt: Attempt, answer: Answer, verdict: Verdict
    ) -> None:
        right, outside = attempt.bound == "full", verdict.fault == "infrastructure"
        expected = "full marks" if right else "a score: else a bad answer costs nothing"
        self.hold(
            subject,
            attempt,
            answer,
            probe="infrastructure" if outside else attempt.probe if right else "unjudged",
            rank=10.0 if outside else _REFUSED + 1 if right else _UNJUDGED,
            problem=f"no score, said to be the fault of the {verdict.fault}",
            expected="what the verifier needs; see its evidence" if outside else expected,
            unclear=outside,
        )

    def _chance(self, subject: Subject, attempt: Attempt, siblings: tuple[Task, ...]) -> bool:
        """Whether a fixed text says this task's answer by chance, and is paid for it only here."""
        if subject.answer is None or not texts.coincides(attempt.text, subject.answer):
            return False
        for task in siblings:
            verdict = self.judge(task, attempt.text).verdict
            if verdict is not None and verdict.score is not None and not verdict.solved:
                return True
        return not siblings

    def _visible_only(
        self, subject: Subject, attempt: Attempt, answer: Answer, verdict: Verdict
    ) -> None:
        parts = {part.name: part.value for part in verdict.parts}
        if "visible" not in parts or "hidden" not in parts or verdict.score is None:
            return
        self.count("visible-only", attempts=1)
        passes = parts["visible"] >= FULL_MARKS > parts["hidden"]
        if passes and verdict.score > subject.floor + _ROUNDING:
            self.hold(
                subject,
                attempt,
                answer,
                probe="visible-only",
                rank=_WRONG_PAID + verdict.score,
                problem=f"passing the visible tests only scores {verdict.score:.3g}",
                expected=f"the floor ({subject.floor:g}) at most",
            )

    def _compare(
        self, subject: Subject, attempt: Attempt, answer: Answer, second: Verifier
    ) -> None:
        other = asked(lambda: second.judge(subject.task, attempt.text)).said
        first = answer.verdict
        if first is None or not isinstance(other, Verdict):
            return
        if first.score is None or other.score is None:
            return
        self.compared += 1
        if first.solved == other.solved:
            return
        self.different += 1
        said = "a solution" if other.solved else "none"
        self.count("disagreement", findings=1)
        self.findings.append(
            Finding(
                probe="disagreement",
                severity="note",
                rank=1.0,
                problem=f"{second.ref.id} {second.ref.version} sees {said} here",
                expected="the two to agree, or a reason why not",
                tier=subject.task.tier,
                index=subject.index,
                prompt=clip(subject.prompt, _SHOWN),
                reference=subject.reference,
                text=clip(attempt.text, _SHOWN),
                characters=len(attempt.text),
                score=first.score,
                evidence=f"{clip(first.evidence, _SHOWN)}\n{clip(other.evidence, _SHOWN)}",
            )
        )


@dataclass(frozen=True, slots=True)
class _Broken:
    """How a score breaks its bound: what was scored, what it should have got, and how bad it is."""

    what: str
    expected: str
    rank: float


def _broken(attempt: Attempt, floor: float, score: float) -> _Broken | None:
    """How `score` breaks what the attempt must get; None where it does not."""
    full = score >= FULL_MARKS
    if attempt.bound == "full":
        return None if full else _Broken("a right attempt", "full marks", _REFUSED + 1 - score)
    if attempt.bound == "less":
        less = "less than full marks"
        return _Broken("a wrong attempt", less, _WRONG_PAID) if full else None
    either = attempt.bound == "full-or-floor"
    if score <= floor + _ROUNDING or (either and full):
        return None
    expected = f"the floor ({floor:g}) at most"
    what = "a look-alike of the right attempt" if either else "an attempt without merit"
    rank = 1000.0 * full + 100.0 * (score - floor)
    return _Broken(what, f"full marks or {expected}" if either else expected, rank)
