"""Judging a shell script by the state it leaves.

Knows the inspection; may be known by the kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from headrace.errors import InfrastructureError, UsageError
from headrace.sandbox.spec import (
    BoxLimits,
    Isolation,
    Outcome,
    Sandbox,
    SandboxFailure,
    SandboxRefused,
    SandboxSpec,
)
from headrace.types import Json, Task, Verdict, VerdictPart, VerifierRef
from headrace.verify import boxes
from headrace.verify.answers import last_fence, without_thinking
from headrace.verify.base import BaseVerifier
from headrace.verify.boxes import Boxes
from headrace.verify.terminal.checks import Check, Checker, Output
from headrace.verify.terminal.inspection import Inspection, inspect
from headrace.verify.trees import TreeError, archive, check_path, check_tree
from headrace.verify.verdicts import hack, scored, unjudged

__all__ = ["MACHINE", "FinalState", "StateAnswer"]

MACHINE = SandboxSpec(
    isolation=Isolation.NAMESPACE,
    limits=BoxLimits(memory_mb=512, disk_mb=64, cpus=1.0, processes=64, open_files=256),
)
"""The sandbox of a script: two users, no network, the host's programs."""

_LANGUAGES = ("sh", "bash", "shell")
_ATTEMPT = "/tmp/attempt.sh"
_LONGEST = 2**18
_START_S = 60.0


class StateAnswer(BaseModel):
    """`files` (path below /workspace to text) with `modes` (octal digits, where not 644) are
    there when the script starts in /workspace; `checks` are what must hold afterwards, all of
    them. `roots` are the directories that are looked at; `links` allows links out of them.

    `replay` runs the script a second time in a fresh sandbox: the digests of both final trees
    must agree. `seconds` bounds one run of the script, which may be cut off and still be right.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: dict[str, str] = {}
    modes: dict[str, Annotated[str, Field(pattern=r"^[0-7]{3}$")]] = {}
    checks: Annotated[tuple[Check, ...], Field(min_length=1)]
    roots: Annotated[tuple[str, ...], Field(min_length=1)] = ("/workspace",)
    links: bool = False
    replay: bool = False
    seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 30.0

    @model_validator(mode="after")
    def _consistent(self) -> StateAnswer:
        for path in self.files:
            check_path(path)
        check_tree(self.files)
        if not all(root.startswith("/") and not root.endswith("/") for root in self.roots):
            raise ValueError("roots are absolute directories")
        if set(self.modes) - set(self.files):
            raise ValueError("a mode of no file")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run of a script: how it ended, and what was found afterwards."""

    outcome: str
    words: str
    inspection: Inspection


class FinalState(BaseVerifier):
    """Whether all checks of a task hold for the tree that a script leaves.

    `task.answer` is a `StateAnswer` as JSON. The attempt is the last block called sh, bash or
    shell; it runs under bash as the user "agent". Parts: `state` (weight 1) is 1 if every check
    holds and, where `replay` asks for it, a second run leaves the same tree; `checks` (the
    share that holds), `extracted`, `finished` (the script ended by itself with exit code 0) and
    `hack` (links that lead out of the tree) inform only.
    """

    ref = VerifierRef("final-state", "1")
    surfaces = ("shell",)

    def __init__(self, pool: Boxes | None = None, spec: SandboxSpec = MACHINE) -> None:
        self._pool, self._spec = pool, spec

    def judge(self, task: Task, text: str) -> Verdict:
        """The verdict on the last script in `text`."""
        try:
            answer = StateAnswer.model_validate(task.answer)
        except (ValidationError, TreeError) as error:
            return unjudged(self.ref, "task", f"the task's answer is no state: {error}")
        script = last_fence(without_thinking(text), *_LANGUAGES)
        if script is None or not script.strip() or len(script) > _LONGEST:
            facts = {"refused": "there is no script in a block called sh or bash, or it is huge"}
            parts = (VerdictPart("state", 0.0), VerdictPart("extracted", 0.0, 0.0), hack(False))
            return scored(self.ref, parts, evidence=facts)
        pool = self._pool or boxes.shared()
        try:
            self._must_separate(pool)
            job = partial(_play, answer=answer, script=script)
            bound = answer.seconds + _START_S + sum(_seconds(check) for check in answer.checks)
            runs = [
                pool.run(self._spec, job, timeout_s=bound) for _ in range(1 + int(answer.replay))
            ]
        except (InfrastructureError, SandboxRefused) as error:
            return unjudged(self.ref, "infrastructure", str(error))
        except UsageError as error:  # the task's files do not fit into the sandbox
            return unjudged(self.ref, "task", str(error))
        return self._verdict(runs)

    def hints(self, task: Task) -> Mapping[str, str]:
        """`path`: the first path that a check names, below the working directory."""
        checks = StateAnswer.model_validate(task.answer).checks
        named = [str(getattr(check, "path", "")) for check in checks]
        return {"path": next((path for path in named if path), "out.txt")}

    def _must_separate(self, pool: Boxes) -> None:
        can = pool.capabilities(self._spec)
        if not can.users or can.snapshot is None:
            raise SandboxRefused(
                "a final state needs a sandbox with two users and snapshots",
                where="final-state",
                hint="headrace sandbox doctor",
            )

    def _verdict(self, runs: list[_Run]) -> Verdict:
        first, inspection = runs[0], runs[0].inspection
        digests = {run.inspection.digest for run in runs}
        same = len(digests) == 1 and "" not in digests
        right = all(run.inspection.passed for run in runs) and (same or len(runs) == 1)
        held = sum(result.passed for result in inspection.results) / len(inspection.results)
        facts: dict[str, Json] = {
            "failed": {r.name: r.found for r in inspection.results if not r.passed},
            "script": first.outcome,
            "stderr": first.words,
            "digest": inspection.digest,
        }
        if inspection.escaping:
            facts["links out of the tree"] = list(inspection.escaping)
        if len(runs) > 1 and not same:
            facts["replay"] = "a second run leaves another tree"
        parts = (
            VerdictPart("state", float(right)),
            VerdictPart("checks", held, 0.0),
            VerdictPart("extracted", 1.0, 0.0),
            VerdictPart("finished", float(first.outcome == "exit code 0"), 0.0),
            hack(bool(inspection.escaping)),
        )
        return scored(self.ref, parts, evidence=facts)


def _seconds(check: Check) -> float:
    return check.seconds if isinstance(check, (Output, Checker)) else 0.0


async def _play(box: Sandbox, answer: StateAnswer, script: str) -> _Run:
    """Run the script in `box`, which nobody has used, and look at what it leaves."""
    if answer.files:
        modes = {path: int(mode, 8) for path, mode in answer.modes.items()}
        await box.put(archive(answer.files, modes), "/workspace")
    await box.put_file(_ATTEMPT, script.encode("utf-8", "replace"))
    result = await box.exec(["bash", _ATTEMPT], timeout_s=answer.seconds, cwd="/workspace")
    if result.outcome is Outcome.CRASH:
        raise SandboxFailure("the sandbox died under the script")
    ending = f"exit code {result.exit_code}" if result.signal is None else "killed by a signal"
    return _Run(
        outcome=ending if result.outcome is Outcome.RESULT else result.outcome.value,
        words=result.stderr.text[-400:],
        inspection=await inspect(box, answer.checks, roots=answer.roots, links=answer.links),
    )
