"""What the tests of the code verifiers share: tasks, and sandboxes that are watched or scripted."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from headrace.sandbox.spec import (
    Capture,
    ExecLimits,
    Outcome,
    Result,
    Sandbox,
    SandboxFailure,
    SandboxSpec,
    Usage,
)
from headrace.types import Json, Message, Task, Verdict, VerifierRef
from headrace.verify.boxes import Boxes, shared
from headrace.verify.code.values import encode

T = TypeVar("T")
_LIMITS = ExecLimits()


def code_task(answer: Json) -> Task:
    return Task(
        domain="test",
        problem="test",
        tier=0,
        split="train",
        messages=(Message.of("user", "write it"),),
        verifier=VerifierRef("code", "1"),
        answer=answer,
    )


def function_task(
    entry: str, cases: Sequence[tuple[tuple[Any, ...], Any]], *, visible: int = 0, **options: Json
) -> Task:
    """Cases are arguments and the value that is expected."""
    rows = [
        {
            "args": [encode(value) for value in args],
            "expected": encode(expected),
            "visible": number < visible,
        }
        for number, (args, expected) in enumerate(cases)
    ]
    return code_task({"entry": entry, "cases": rows, **options})


def program_task(
    language: str, cases: Sequence[tuple[str, str]], *, visible: int = 0, **options: Json
) -> Task:
    rows = [
        {"stdin": stdin, "stdout": stdout, "visible": number < visible}
        for number, (stdin, stdout) in enumerate(cases)
    ]
    return code_task({"language": language, "cases": rows, **options})


def parts(verdict: Verdict) -> Mapping[str, float]:
    return {part.name: part.value for part in verdict.parts}


@dataclass(slots=True)
class Watched:
    """A sandbox whose every input is kept."""

    box: Sandbox
    seen: list[bytes]

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        limits: ExecLimits = _LIMITS,
    ) -> Result:
        self.seen += [stdin, *(word.encode() for word in argv)]
        return await self.box.exec(argv, stdin=stdin, timeout_s=timeout_s, limits=limits)

    async def put_file(self, path: str, data: bytes) -> None:
        self.seen.append(data)
        await self.box.put_file(path, data)


@dataclass(slots=True)
class WatchedBoxes:
    """The sandboxes of this process, watched."""

    seen: list[bytes] = field(default_factory=list[bytes])

    def run(
        self,
        spec: SandboxSpec,
        job: Callable[[Sandbox], Coroutine[Any, Any, T]],
        *,
        timeout_s: float,
    ) -> T:
        async def watched(box: Sandbox) -> T:
            return await job(cast("Sandbox", Watched(box, self.seen)))

        return shared().run(spec, watched, timeout_s=timeout_s)

    @property
    def boxes(self) -> Boxes:
        return cast("Boxes", self)


@dataclass(slots=True)
class ScriptedBoxes:
    """Sandboxes in which every command ends as the next of `results` says."""

    results: list[Result | SandboxFailure]

    def run(
        self,
        spec: SandboxSpec,
        job: Callable[[Sandbox], Coroutine[Any, Any, T]],
        *,
        timeout_s: float,
    ) -> T:
        del spec, timeout_s
        try:
            job(cast("Sandbox", self)).send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("a scripted sandbox never waits")

    async def exec(self, argv: Sequence[str], **_: Any) -> Result:
        del argv
        result = self.results.pop(0)
        if isinstance(result, SandboxFailure):
            raise result
        return result

    async def put_file(self, path: str, data: bytes) -> None:
        del path, data

    @property
    def boxes(self) -> Boxes:
        return cast("Boxes", self)


def ended(
    stdout: bytes = b"",
    *,
    code: int | None = 0,
    outcome: Outcome = Outcome.RESULT,
    stderr: bytes = b"",
    signal: int | None = None,
) -> Result:
    """How a command ended."""
    return Result(
        outcome=outcome,
        exit_code=code,
        signal=signal,
        stdout=Capture(stdout, len(stdout)),
        stderr=Capture(stderr, len(stderr)),
        usage=Usage(wall_s=0.1),
        oom=False,
        epoch=0,
    )
