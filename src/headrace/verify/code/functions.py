"""The verifier `code-functions`: a Python function, called case by case in a sandbox.

Only sources and arguments go in, only spelled values come out, and they are compared here. May
be known by task packs and the audit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from headrace.sandbox.spec import SandboxFailure, SandboxSpec
from headrace.types import Json, Task, Verdict, VerdictPart, VerifierRef
from headrace.verify.base import BaseVerifier
from headrace.verify.boxes import Boxes, shared
from headrace.verify.code.calls import Called, Calls, Job, call
from headrace.verify.code.extract import function_source
from headrace.verify.code.places import candidates_spec
from headrace.verify.code.signs import signs
from headrace.verify.code.suites import FunctionCase, FunctionSuite, marked
from headrace.verify.code.values import Rule, agree, literal
from headrace.verify.kinds import Surface
from headrace.verify.verdicts import hack, scored, unjudged

__all__ = ["VERSION", "CodeFunctions"]

VERSION = "1"

_SHOWN = 3
_CUT = 300


@dataclass(frozen=True, slots=True)
class _Judged:
    """A case with what became of it and whether that is right."""

    number: int
    case: FunctionCase
    called: Called
    passed: bool


class CodeFunctions(BaseVerifier):
    """Whether a function does what it should, for hidden arguments.

    `Task.answer` is described by `suites.FunctionSuite`. The attempt is the last closed Python
    block that defines the function (`extract.function_source`); it runs in an isolated
    `/usr/bin/python3` without packages, each case in a process of its own that loads it anew.

    Parts: `tests` (weight 1): 1 if every case passed, or the share of those that did, as the
    task says; and without weight `visible` and `hidden`, the shares among the cases that the
    prompt shows and does not show (where there are such), `compiles`, `extracted`, and `hack`.

    What a source does to itself, its process, the runner or the sandbox's limits fails cases.
    Only a sandbox that fails by itself, twice, leaves an attempt unjudged.

    `boxes`: where sandboxes come from; those of the process by default.
    """

    ref = VerifierRef("code-functions", VERSION)
    surfaces: ClassVar[tuple[Surface, ...]] = ("text", "python")

    def __init__(self, boxes: Boxes | None = None, spec: SandboxSpec | None = None) -> None:
        self._boxes = boxes
        self._spec = spec

    def judge(self, task: Task, text: str) -> Verdict:
        try:
            suite = FunctionSuite.read(task.answer)
        except ValueError as error:
            return unjudged(self.ref, "task", {"malformed answer": str(error)})
        source = function_source(text, suite.entry)
        if source is None:
            return scored(
                self.ref, _parts(suite, []), evidence={"found": f"no code for {suite.entry}"}
            )
        job = Job(
            source=source,
            entry=suite.entry,
            arguments=[case.args for case in suite.cases],
            prelude=suite.prelude,
            limits=suite.limits,
            stop=suite.marks == "all",
        )
        try:
            calls = call(self._boxes or shared(), self._spec or candidates_spec(), job)
        except SandboxFailure as error:
            return unjudged(self.ref, "infrastructure", {"sandbox": str(error)})
        judged = [
            _judged(suite.rule, number, case, called)
            for number, (case, called) in enumerate(zip(suite.cases, calls.cases, strict=True))
        ]
        seen = signs(source)
        if calls.forged or any(called.status == "garbled" for called in calls.cases):
            seen.append("forged results")
        if calls.disturbed:
            seen.append("ended or stopped the runner")
        parts = _parts(suite, judged, compiled=calls.compiled, extracted=True, seen=bool(seen))
        return scored(self.ref, parts, evidence=_evidence(calls, judged, seen))

    def hints(self, task: Task) -> Mapping[str, str]:
        """`entry`: the function's name; `example_args` and `example_result`: the first case
        that the prompt shows, as Python (no arguments and None where it shows none)."""
        suite = FunctionSuite.read(task.answer)
        shown = next((case for case in suite.cases if case.visible), None)
        return {
            "entry": suite.entry,
            "example_args": "" if shown is None else ", ".join(map(literal, shown.args)),
            "example_result": "None" if shown is None else literal(shown.expected),
        }


def _judged(rule: Rule, number: int, case: FunctionCase, called: Called) -> _Judged:
    if called.status != "value":
        return _Judged(number, case, called, passed=False)
    try:
        return _Judged(number, case, called, agree(rule, case.expected, called.value))
    except ValueError as error:
        return _Judged(number, case, Called(status="garbled", note=str(error)), passed=False)


def _parts(
    suite: FunctionSuite,
    judged: Sequence[_Judged],
    *,
    compiled: bool = False,
    extracted: bool = False,
    seen: bool = False,
) -> list[VerdictPart]:
    passed = {item.number for item in judged if item.passed}
    parts = [VerdictPart("tests", marked(suite.marks, suite.cases, passed))]
    for name, visible in (("visible", True), ("hidden", False)):
        kept = [n for n, case in enumerate(suite.cases) if case.visible is visible]
        if kept:
            value = len(passed.intersection(kept)) / len(kept)
            parts.append(VerdictPart(name, value, 0.0))
    parts.append(VerdictPart("compiles", float(compiled), 0.0))
    parts.append(VerdictPart("extracted", float(extracted), 0.0))
    return [*parts, hack(seen)]


def _evidence(calls: Calls, judged: Sequence[_Judged], seen: Sequence[str]) -> dict[str, Json]:
    """What went wrong first. Values are in ASCII, whatever a candidate made them of."""
    failed = [item for item in judged if not item.passed]
    facts: dict[str, Json] = {"passed": f"{len(judged) - len(failed)} of {len(judged)}"}
    if not calls.compiled:
        facts["compiling"] = _ascii(f"{calls.load.status}: {calls.load.note}")
    else:
        facts["failed"] = [_failure(item) for item in failed[:_SHOWN]]
    return facts | {"outcome": str(calls.outcome), "signs": list(seen)}


def _failure(item: _Judged) -> dict[str, Json]:
    called = item.called
    found = literal(called.value) if called.status == "value" else f"{called.status}: {called.note}"
    return {
        "case": item.number,
        "visible": item.case.visible,
        "args": _ascii(", ".join(map(literal, item.case.args))),
        "expected": _ascii(literal(item.case.expected)),
        "found": _ascii(found),
    }


def _ascii(text: str) -> str:
    return text[:_CUT].encode("ascii", "backslashreplace").decode()
