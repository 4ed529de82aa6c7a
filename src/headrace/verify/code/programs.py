"""The verifier `code-programs`: a program that reads and prints, run case by case in a sandbox.

Only the source and what a case reads go in; what it prints is compared here. May be known by
task packs and the audit.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from headrace.sandbox.spec import (
    ExecLimits,
    Outcome,
    Result,
    Sandbox,
    SandboxFailure,
    SandboxSpec,
)
from headrace.types import Json, Task, Verdict, VerdictPart, VerifierRef
from headrace.verify.base import BaseVerifier
from headrace.verify.boxes import Boxes, shared
from headrace.verify.code.calls import PYTHON
from headrace.verify.code.extract import program_source
from headrace.verify.code.outputs import same_output
from headrace.verify.code.places import candidates_spec
from headrace.verify.code.signs import signs
from headrace.verify.code.suites import Language, ProgramCase, ProgramSuite, marked
from headrace.verify.kinds import Surface
from headrace.verify.verdicts import hack, scored, unjudged

__all__ = ["VERSION", "CodePrograms"]

VERSION = "1"

_BUILD_S, _BUILD_CPU_S = 20.0, 10
_GRACE_S = 10.0
_OUTPUT_BYTES = 2**20
_SHOWN, _CUT = 3, 300
_CANNOT_START = (126, 127)
_OUT_OF_TIME = (signal.SIGXCPU, signal.SIGKILL)
_CHECK = "import sys; compile(open(sys.argv[1], 'rb').read(), 'main.py', 'exec')"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Toolchain:
    """Under which name a source is kept, and the commands that check or build it and run it."""

    file: str
    build: tuple[str, ...]
    run: tuple[str, ...]


_TOOLCHAINS: dict[Language, _Toolchain] = {
    "python": _Toolchain(
        file="main.py", build=(*PYTHON, "-c", _CHECK, "main.py"), run=(*PYTHON, "main.py")
    ),
    "c": _Toolchain(
        file="main.c",
        build=("cc", "-O2", "-std=gnu17", "-w", "-o", "program", "main.c", "-lm"),
        run=("./program",),
    ),
    "shell": _Toolchain(
        file="main.sh", build=("bash", "-n", "main.sh"), run=("bash", "--norc", "main.sh")
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """What a case printed, or why that does not count."""

    stdout: str | None
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """Whether it could be built, with what was said about it, and the cases that ran."""

    compiled: bool
    note: str
    cases: tuple[_Ran, ...] = ()


class CodePrograms(BaseVerifier):
    """Whether a program in Python, C or shell prints what it should, for hidden input.

    `Task.answer` is described by `suites.ProgramSuite`. The attempt is the last closed fenced
    block of the language. It is compiled in the sandbox (Python and shell: checked for syntax),
    then started once for each case, with limits of its own. Exit codes count for nothing;
    output does, if the program ended within its limits.

    Parts: `tests` (weight 1): 1 if every case passed, or the share of those that did, as the
    task says; `compiles`, with the task's weight (0 by default); and without weight `visible`
    and `hidden`, the shares among the cases that the prompt shows and does not show,
    `extracted`, and `hack`.
    """

    ref = VerifierRef("code-programs", VERSION)
    surfaces: ClassVar[tuple[Surface, ...]] = ("text", "program", "c")

    def __init__(self, boxes: Boxes | None = None, spec: SandboxSpec | None = None) -> None:
        self._boxes = boxes
        self._spec = spec

    def judge(self, task: Task, text: str) -> Verdict:
        try:
            suite = ProgramSuite.read(task.answer)
        except ValueError as error:
            return unjudged(self.ref, "task", {"malformed answer": str(error)})
        source = program_source(text, suite.language)
        if source is None:
            return scored(
                self.ref, _parts(suite, []), evidence={"found": f"no {suite.language} block"}
            )
        try:
            runs = self._run(suite, source)
        except SandboxFailure as error:
            return unjudged(self.ref, "infrastructure", {"sandbox": str(error)})
        passed = [
            ran.stdout is not None and same_output(suite.checker, case.stdout, ran.stdout)
            for case, ran in zip(suite.cases, runs.cases, strict=False)
        ]
        seen = signs(source)
        parts = _parts(suite, passed, compiled=runs.compiled, extracted=True, seen=bool(seen))
        return scored(self.ref, parts, evidence=_evidence(suite, runs, passed, seen))

    def floor(self, task: Task) -> float:
        """What the part `compiles` pays: a program without merit can compile."""
        weight = ProgramSuite.read(task.answer).compiles_weight
        return weight / (1.0 + weight)

    def hints(self, task: Task) -> Mapping[str, str]:
        """`example_input` and `example_output`: the first case that the prompt shows (empty
        where it shows none); `language`."""
        suite = ProgramSuite.read(task.answer)
        shown = next((case for case in suite.cases if case.visible), None)
        return {
            "language": suite.language,
            "example_input": "" if shown is None else shown.stdin.rstrip("\n"),
            "example_output": "" if shown is None else shown.stdout.rstrip("\n"),
        }

    def _run(self, suite: ProgramSuite, source: str) -> _Runs:
        tools = _TOOLCHAINS[suite.language]
        total = suite.limits.total_s

        async def work(box: Sandbox) -> _Runs:
            await box.put_file(tools.file, source.encode("utf-8", "replace"))
            built = await box.exec(
                tools.build, timeout_s=_BUILD_S, limits=ExecLimits(cpu_s=_BUILD_CPU_S)
            )
            note = f"{built.outcome}: {built.stderr.text[-_CUT:].strip()}"
            if built.exit_code in _CANNOT_START or built.outcome is Outcome.CRASH:
                raise SandboxFailure(
                    f"cannot build {suite.language} programs: {note}",
                    where=tools.build[0],
                    hint="headrace sandbox doctor",
                )
            if not built.ok:
                return _Runs(compiled=False, note=note)
            return _Runs(compiled=True, note="", cases=await _cases(box, suite, tools.run))

        most = _BUILD_S + total + suite.limits.wall_s + _GRACE_S
        return (self._boxes or shared()).run(self._spec or candidates_spec(), work, timeout_s=most)


async def _cases(box: Sandbox, suite: ProgramSuite, command: Sequence[str]) -> tuple[_Ran, ...]:
    """The cases one after the other, until their time is up; with all-or-nothing marks, until
    one ran out of time."""
    ran: list[_Ran] = []
    until = time.monotonic() + suite.limits.total_s
    limits = ExecLimits(
        output_bytes=_OUTPUT_BYTES, flood_bytes=8 * _OUTPUT_BYTES, cpu_s=suite.limits.cpu_s
    )
    for case in suite.cases:
        left = min(suite.limits.wall_s, until - time.monotonic())
        if left <= 0:
            break
        result = await box.exec(
            command, stdin=case.stdin.encode("utf-8", "replace"), timeout_s=left, limits=limits
        )
        if result.outcome is Outcome.CRASH:
            raise SandboxFailure("the sandbox died", where="code program")
        ran.append(_ran(result))
        late = result.outcome is Outcome.TIMEOUT or result.signal in _OUT_OF_TIME
        if late and suite.marks == "all":
            break
    return tuple(ran)


def _ran(result: Result) -> _Ran:
    ended = f"signal {result.signal}" if result.signal else f"exit code {result.exit_code}"
    note = f"{result.outcome}, {ended}: {result.stderr.text[-_CUT:].strip()}"
    over = result.outcome is not Outcome.RESULT or result.signal in _OUT_OF_TIME
    if over or result.stdout.truncated:
        return _Ran(stdout=None, note=note)
    try:
        return _Ran(stdout=result.stdout.data.decode(), note=note)
    except UnicodeDecodeError:
        return _Ran(stdout=None, note="its output is not UTF-8")


def _parts(
    suite: ProgramSuite,
    passed: Sequence[bool],
    *,
    compiled: bool = False,
    extracted: bool = False,
    seen: bool = False,
) -> list[VerdictPart]:
    numbers = {number for number, right in enumerate(passed) if right}
    parts = [
        VerdictPart("tests", marked(suite.marks, suite.cases, numbers)),
        VerdictPart("compiles", float(compiled), suite.compiles_weight),
    ]
    for name, visible in (("visible", True), ("hidden", False)):
        kept = [n for n, case in enumerate(suite.cases) if case.visible is visible]
        if kept:
            value = len(numbers.intersection(kept)) / len(kept)
            parts.append(VerdictPart(name, value, 0.0))
    return [*parts, VerdictPart("extracted", float(extracted), 0.0), hack(seen)]


def _evidence(
    suite: ProgramSuite, runs: _Runs, passed: Sequence[bool], seen: Sequence[str]
) -> dict[str, Json]:
    facts: dict[str, Json] = {"passed": f"{sum(passed)} of {len(suite.cases)}"}
    if not runs.compiled:
        return facts | {"compiling": runs.note, "signs": list(seen)}
    failed = [
        _failure(number, case, ran)
        for number, (case, ran) in enumerate(zip(suite.cases, runs.cases, strict=False))
        if not passed[number]
    ]
    if len(runs.cases) < len(suite.cases):
        facts["not run"] = len(suite.cases) - len(runs.cases)
    return facts | {"failed": list(failed[:_SHOWN]), "signs": list(seen)}


def _failure(number: int, case: ProgramCase, ran: _Ran) -> dict[str, Json]:
    return {
        "case": number,
        "visible": case.visible,
        "stdin": case.stdin[:_CUT],
        "expected": case.stdout[:_CUT],
        "found": None if ran.stdout is None else ran.stdout[:_CUT],
        "ended": ran.note[:_CUT],
    }
