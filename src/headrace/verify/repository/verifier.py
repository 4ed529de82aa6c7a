"""Judging a change to a repository: the patched tree against tests that it cannot reach.

Knows patches, attempts and the test run; may be known by the kind and by agent environments.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pydantic import ValidationError

from headrace.errors import InfrastructureError, UsageError
from headrace.sandbox.spec import SandboxRefused, SandboxSpec
from headrace.types import Json, Task, Verdict, VerdictPart, VerifierRef
from headrace.verify import boxes
from headrace.verify.base import BaseVerifier
from headrace.verify.boxes import Boxes
from headrace.verify.repository.answer import RepositoryAnswer
from headrace.verify.repository.attempts import Edited, edited, steers
from headrace.verify.repository.patches import changed_lines
from headrace.verify.repository.run import SUITE, Report, run_tests
from headrace.verify.trees import TreeError
from headrace.verify.verdicts import hack, scored, unjudged

__all__ = ["RepositoryPatch"]

_START_S = 30.0


class RepositoryPatch(BaseVerifier):
    """Whether a patch makes the tests pass that should, and breaks none that did.

    `task.answer` is a `RepositoryAnswer` as JSON. An attempt is a unified diff (the last block
    called diff or patch, or the whole text) or whole files, each a line `FILE: path` above a
    block. Parts: `resolved` (weight 1) is 1 if all of `fail_to_pass` and `pass_to_pass` passed
    and nothing but the expected tests ran. `edits` and `steps` weigh what the answer says; they
    are 0 for what is not resolved, 1 within the allowance, and fall as allowance / use beyond
    it. `fail_to_pass`, `pass_to_pass` (shares), `applied`, `counted` and `hack` inform only.

    >>> RepositoryPatch().ref.id
    'repository-patch'
    """

    ref = VerifierRef("repository-patch", "1")
    surfaces = ("patch",)

    def __init__(self, pool: Boxes | None = None, spec: SandboxSpec = SUITE) -> None:
        self._pool, self._spec = pool, spec

    def judge(self, task: Task, text: str) -> Verdict:
        """The verdict on one answer in text; it counts as one step."""
        answer = _answer(task)
        if isinstance(answer, str):
            return unjudged(self.ref, "task", answer)
        try:
            attempt = edited(text, answer.files, answer.tests)
        except TreeError as error:
            return self._nothing({"refused": str(error)})
        if attempt is None:
            return self._nothing({"refused": "there is no patch and no file"})
        return self._grade(answer, attempt, steps=1)

    def judge_tree(self, task: Task, tree: Mapping[str, str], *, steps: int) -> Verdict:
        """The verdict on a tree that an agent left after `steps` steps: path to text.

        Files beside those of the task count, unless they steer the test run.
        """
        answer = _answer(task)
        if isinstance(answer, str):
            return unjudged(self.ref, "task", answer)
        kept: dict[str, str] = {}
        ignored: dict[str, str] = {}
        for path, text in tree.items():
            if path in answer.tests:
                if text != answer.files.get(path):
                    ignored[path] = "a test file: the task's own is used"
            elif steers(path) and text != answer.files.get(path):
                ignored[path] = "it steers the test run"
            else:
                kept[path] = text
        attempt = Edited(tree=kept, ignored=ignored, tampered=bool(ignored))
        return self._grade(answer, attempt, steps=steps)

    def hints(self, task: Task) -> Mapping[str, str]:
        """`path` and `module` of the longest source file, `test` the path of a test file,
        `test_module` its module, `case` its class and `method` one of its methods."""
        answer = RepositoryAnswer.model_validate(task.answer)
        sources = [path for path in sorted(answer.files) if path not in answer.tests]
        path = max(sources, key=lambda name: len(answer.files[name]))
        name = answer.fail_to_pass[0].split(".")
        return {
            "path": path,
            "module": path.removesuffix(".py").replace("/", "."),
            "test": f"{'/'.join(name[:-2])}.py",
            "test_module": ".".join(name[:-2]),
            "case": name[-2],
            "method": name[-1],
        }

    # --- grading ---------------------------------------------------------------------------

    def _grade(self, answer: RepositoryAnswer, attempt: Edited, *, steps: int) -> Verdict:
        before = {p: text for p, text in answer.files.items() if p not in answer.tests}
        facts: dict[str, Json] = {"steps": steps}
        if attempt.ignored:
            facts["ignored"] = dict(attempt.ignored)
        if attempt.tree == before:
            facts["refused"] = "nothing that counts is changed"
            return self._nothing(facts, applied=True, tampered=attempt.tampered)
        report = self._run(answer, attempt.tree)
        if isinstance(report, Verdict):
            return report
        changed = changed_lines(before, attempt.tree)
        return self._weigh(answer, attempt, report, changed, steps, facts)

    def _run(self, answer: RepositoryAnswer, tree: Mapping[str, str]) -> Report | Verdict:
        pool = self._pool or boxes.shared()
        try:
            if not pool.capabilities(self._spec).users:
                raise SandboxRefused(
                    "a test run needs a sandbox with two users",
                    where="repository-patch",
                    hint="headrace sandbox doctor",
                )
            job = partial(run_tests, answer=answer, tree=tree)
            return pool.run(self._spec, job, timeout_s=answer.run_s + _START_S)
        except (InfrastructureError, SandboxRefused) as error:
            return unjudged(self.ref, "infrastructure", str(error))
        except UsageError as error:  # the task's files do not fit into the sandbox
            return unjudged(self.ref, "task", str(error))

    def _weigh(
        self,
        answer: RepositoryAnswer,
        attempt: Edited,
        report: Report,
        changed: int,
        steps: int,
        facts: dict[str, Json],
    ) -> Verdict:
        fixed, kept = report.passed(answer.fail_to_pass), report.passed(answer.pass_to_pass)
        extra = sorted(set(report.status) - set(answer.expected))
        counted = report.complete and set(report.status) == set(answer.expected)
        resolved = counted and fixed + kept == len(answer.expected)
        allowed = answer.edit_factor * answer.reference_lines or changed
        budget = answer.step_budget or steps
        weights = answer.weights
        failed = [name for name in answer.expected if report.status.get(name) != "passed"]
        facts |= {
            "failed": {name: report.notes.get(name, "it did not run") for name in failed},
            "ran": len(report.status),
            "expected": len(answer.expected),
            "changed_lines": changed,
        }
        if extra:
            facts["not expected"] = extra
        if report.broken:
            facts["test files that do not load"] = dict(report.broken)
        if not report.complete:
            facts["ended"] = report.outcome
        parts = (
            VerdictPart("resolved", float(resolved)),
            VerdictPart("edits", resolved * _within(changed, allowed), weights.edits),
            VerdictPart("steps", resolved * _within(steps, budget), weights.steps),
            VerdictPart("fail_to_pass", _share(fixed, answer.fail_to_pass), 0.0),
            VerdictPart("pass_to_pass", _share(kept, answer.pass_to_pass), 0.0),
            VerdictPart("counted", float(counted), 0.0),
            VerdictPart("applied", 1.0, 0.0),
            hack(attempt.tampered),
        )
        return scored(self.ref, parts, evidence=facts)

    def _nothing(
        self, facts: dict[str, Json], *, applied: bool = False, tampered: bool = False
    ) -> Verdict:
        """The verdict on an attempt that needs no run."""
        parts = (
            VerdictPart("resolved", 0.0),
            VerdictPart("applied", float(applied), 0.0),
            hack(tampered),
        )
        return scored(self.ref, parts, evidence=facts)


def _share(passed: int, of: tuple[str, ...]) -> float:
    return passed / len(of) if of else 1.0


def _within(used: float, allowed: float) -> float:
    """1 within the allowance, and beyond it the share of it in the use."""
    return 1.0 if used <= allowed else allowed / used


def _answer(task: Task) -> RepositoryAnswer | str:
    """The task's answer, or in words what is wrong with it."""
    try:
        return RepositoryAnswer.model_validate(task.answer)
    except (ValidationError, TreeError) as error:
        return f"the task's answer is no repository: {error}"
