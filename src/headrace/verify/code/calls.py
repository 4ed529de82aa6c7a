"""Calling a function of somebody else's source in a sandbox, and reading what was told of it.

The grader's end of `runner`: what goes in is the source and the arguments; what comes out are
claims, read strictly. May be known by the code verifiers and by task packs that let a
reference solution compute what is expected.
"""

from __future__ import annotations

import hmac
import json
import marshal
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from headrace.sandbox.spec import (
    ExecLimits,
    Outcome,
    Result,
    Sandbox,
    SandboxFailure,
    SandboxSpec,
)
from headrace.types import Json
from headrace.verify.boxes import Boxes
from headrace.verify.code import runner
from headrace.verify.code.suites import CaseLimits

__all__ = ["PYTHON", "Called", "Calls", "Job", "Status", "call", "read_lines"]

PYTHON = ("/usr/bin/python3", "-I", "-S", "-B")
"""The interpreter of the image "host": isolated from the environment, without site packages."""

Status = Literal[
    "value", "raised", "unfit", "missing", "syntax", "ended", "timeout", "garbled", "not run"
]

_TOLD = ("value", "raised", "unfit", "missing", "syntax")
_SOURCE = Path(runner.__file__).read_text(encoding="utf-8")
_MOST_BYTES = 16 * 2**20
_LINE_BYTES = 2 * runner.FRAME_BYTES
_GRACE_S = 10.0
_MARSHAL = 4
_IMPORTS = re.compile(r"^[ \t]*(?:from|import)[ \t]+([a-z_]+)", re.MULTILINE)
_MODULES = frozenset(
    (
        *("bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "enum"),
        *("fractions", "functools", "hashlib", "heapq", "itertools", "json", "math"),
        *("operator", "random", "re", "statistics", "string", "typing"),
    )
)
"""Modules that are loaded once, before the cases, where a source seems to want them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What goes into the sandbox, all of it: two sources, the function's name, its arguments
    for each case (as `runner.encode` spells them), and limits. `stop`: whether a case that
    ran out of time is the last one."""

    source: str
    entry: str
    arguments: Sequence[Sequence[Json]]
    prelude: str = ""
    limits: CaseLimits
    stop: bool = False

    def _modules(self) -> list[str]:
        return sorted(_MODULES.intersection(_IMPORTS.findall(f"{self.prelude}\n{self.source}")))

    def payload(self, nonce: str) -> bytes:
        """The runner's standard input; the nonce comes last and is read last."""
        work: dict[str, Any] = {
            "source": self.source,
            "prelude": self.prelude,
            "entry": self.entry,
            "cases": [list(case) for case in self.arguments],
            "cpu_s": self.limits.cpu_s,
            "wall_s": self.limits.wall_s,
            "total_s": self.limits.total_s,
            "memory_mb": self.limits.memory_mb,
            "stop": self.stop,
            "modules": self._modules(),
        }
        data = marshal.dumps(work, _MARSHAL)
        return f"{len(data):016d}".encode() + data + nonce.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """What became of one case: a `value` (spelled as by `runner.encode`, not yet checked), or
    a `note` on why there is none."""

    status: Status
    value: Json = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """What became of all cases, in their order, and of compiling (`load`).

    `forged`: lines came that the runner did not write. `disturbed`: the runner was killed,
    stopped or broken, without a limit of the sandbox. `outcome`: how it ended.
    """

    load: Called
    cases: tuple[Called, ...]
    forged: bool
    disturbed: bool = False
    outcome: Outcome

    @property
    def compiled(self) -> bool:
        return self.load.status == "value"


def call(boxes: Boxes, spec: SandboxSpec, job: Job) -> Calls:
    """Run it in a fresh sandbox. SandboxFailure where that is not possible, and nothing is
    known of the source: whatever a source can cause is in the result.

    A runner that never said it was ready was let down by its sandbox, or silenced by the
    candidate: a harmless source in another sandbox shows which.
    """
    nonce = secrets.token_hex(16)
    result = _run(boxes, spec, job, nonce)
    if not result.stdout.data.startswith(runner.READY):
        control = _run(boxes, spec, _CONTROL, nonce)
        if not control.stdout.data.startswith(runner.READY):
            raise SandboxFailure(
                f"the runner did not begin ({control.outcome}, exit code {control.exit_code}): "
                f"{control.stderr.text[-300:].strip()}",
                where=PYTHON[0],
                hint="the sandbox needs Python 3.9 or later there",
            )
    told = read_lines(
        result.stdout.data.split(b"\n")[1:],
        nonce=nonce,
        count=len(job.arguments),
        outcome=result.outcome,
    )
    disturbed = result.outcome is Outcome.TIMEOUT or (
        result.outcome is Outcome.RESULT and not result.ok
    )
    return replace(told, disturbed=disturbed)


def _run(boxes: Boxes, spec: SandboxSpec, job: Job, nonce: str) -> Result:
    total = job.limits.total_s + _GRACE_S

    async def work(box: Sandbox) -> Result:
        result = await box.exec(
            [*PYTHON, "-c", _SOURCE],
            stdin=job.payload(nonce),
            timeout_s=total,
            limits=ExecLimits(output_bytes=_MOST_BYTES, flood_bytes=_MOST_BYTES),
        )
        if result.outcome is Outcome.CRASH:
            raise SandboxFailure("the sandbox died", where="code runner")
        return result

    return boxes.run(spec, work, timeout_s=total + _GRACE_S)


_CONTROL = Job(source="def f():\n    return 1\n", entry="f", arguments=[[]], limits=CaseLimits())


def read_lines(lines: Sequence[bytes], *, nonce: str, count: int, outcome: Outcome) -> Calls:
    """What the lines after the first tell. A line that is not the runner's proves a forgery
    and tells nothing; a case told twice is not told; one not told did not run."""
    told: dict[int, Called] = {}
    forged = False
    for line in lines:
        entry = _entry(line, nonce, count) if line else None
        if entry is None:
            forged = forged or bool(line)
        elif entry[0] in told:
            forged = True
            told[entry[0]] = Called(status="garbled", note="told twice")
        else:
            told[entry[0]] = entry[1]
    missing = Called(status="not run", note=f"the runner ended early ({outcome})")
    return Calls(
        load=told.get(-1, missing),
        cases=tuple(told.get(number, missing) for number in range(count)),
        forged=forged,
        outcome=outcome,
    )


def _entry(line: bytes, nonce: str, count: int) -> tuple[int, Called] | None:
    """The case of a line and what became of it; None if the runner did not write it."""
    message = _strict(line)
    if not isinstance(message, dict) or set(message) != {"nonce", "case", "how", "text"}:
        return None
    said, number, how, text = (message[name] for name in ("nonce", "case", "how", "text"))
    if not isinstance(said, str) or not hmac.compare_digest(said.encode(), nonce.encode()):
        return None
    if type(number) is not int or not -1 <= number < count or not isinstance(text, str):
        return None
    if how == "told":
        return number, _called(text)
    if how in ("ended", "timeout", "garbled"):
        return number, Called(status=how, note=_WHY[how])
    return None


_WHY = {
    "ended": "its process ended without a result",
    "timeout": "out of time",
    "garbled": "it wrote into the runner's pipe",
}


def _called(text: str) -> Called:
    """What the process of a case said of itself."""
    frame = _strict(text.encode())
    if isinstance(frame, dict) and frame.get("status") in _TOLD:
        if set(frame) == {"status", "value"} and frame["status"] == "value":
            return Called(status="value", value=frame["value"])
        if set(frame) == {"status", "note"} and isinstance(frame["note"], str):
            status = frame["status"]
            if status != "value":
                return Called(status=status, note=frame["note"][:300])
    return Called(status="garbled", note="no result that can be read")


def _strict(data: bytes) -> Json:
    """JSON without what JSON does not have, or with a key twice; None for anything else."""
    if len(data) > _LINE_BYTES:
        return None
    try:
        return json.loads(data, object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key twice")
    return found


def _refuse(name: str) -> Json:
    raise ValueError(name)
