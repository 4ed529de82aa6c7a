"""What the hidden answer of a code task holds: cases, how they are judged, and limits.

The docstrings of the two suites define the shape of `Task.answer`. May be known by the code
verifiers and task packs.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from headrace.types import Json
from headrace.verify.code.outputs import Checker
from headrace.verify.code.values import Rule, key

__all__ = [
    "CaseLimits",
    "FunctionCase",
    "FunctionSuite",
    "Language",
    "Marks",
    "ProgramCase",
    "ProgramSuite",
    "marked",
]

Marks = Literal["all", "share"]
Language = Literal["python", "c", "shell"]

_WALL = 4


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class CaseLimits(_Model):
    """`cpu_s` (processor seconds, whole) and `memory_mb` (MiB of address space) of one case;
    `total_s` (seconds) of all cases of a verdict together. A case may take four times its
    `cpu_s` by the clock."""

    cpu_s: int = Field(default=2, ge=1, le=60)
    memory_mb: int = Field(default=320, ge=64, le=384)
    total_s: float = Field(default=30.0, gt=0, le=300)

    @property
    def wall_s(self) -> float:
        return float(_WALL * self.cpu_s)


class FunctionCase(_Model):
    """One call: positional arguments, and the value that is right for them."""

    args: list[Any]
    expected: Any
    visible: bool = False


class FunctionSuite(_Model):
    """The answer of a `code-functions` task, as JSON:

    - `entry`: the function's name;
    - `cases`: objects with `args` (a list), `expected`, and `visible` (whether the prompt
      shows the case); values are spelled as by `values.encode`;
    - `rule`: when a result is right (`values.Rule`), as an object;
    - `prelude`: Python source that runs before the candidate's (imports, helpers);
    - `marks`: "all" (1 only if every case passes) or "share" (of those that the prompt does
      not show: what it shows can be copied);
    - `limits`: see `CaseLimits`.

    Only `entry` and `cases` are required.
    """

    entry: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    cases: list[FunctionCase] = Field(min_length=1, max_length=500)
    rule: Rule = Rule()
    prelude: str = ""
    marks: Marks = "all"
    limits: CaseLimits = CaseLimits()

    @model_validator(mode="after")
    def _values(self) -> FunctionSuite:
        for case in self.cases:
            for value in (*case.args, case.expected):
                key(value)
        return self

    @classmethod
    def read(cls, answer: Json) -> FunctionSuite:
        """ValueError for anything that is not such an answer."""
        return cls.model_validate(answer)


class ProgramCase(_Model):
    """One run: what the program reads, and what it must print."""

    stdin: str
    stdout: str
    visible: bool = False


class ProgramSuite(_Model):
    """The answer of a `code-programs` task, as JSON:

    - `language`: "python", "c" or "shell" (bash);
    - `cases`: objects with `stdin`, `stdout` and `visible`;
    - `checker`: how output is compared (`outputs.Checker`), as an object;
    - `marks`: "all" or "share";
    - `compiles_weight`: what the part `compiles` weighs beside 1 for `tests`; 0 by default.
      What it pays, a program without merit gets too: it is the floor;
    - `limits`: see `CaseLimits`; `memory_mb` is not used, a program has its sandbox's memory.

    Only `language` and `cases` are required.
    """

    language: Language
    cases: list[ProgramCase] = Field(min_length=1, max_length=500)
    checker: Checker = Checker()
    marks: Marks = "all"
    compiles_weight: float = Field(default=0.0, ge=0, le=1)
    limits: CaseLimits = CaseLimits()

    @classmethod
    def read(cls, answer: Json) -> ProgramSuite:
        """ValueError for anything that is not such an answer."""
        return cls.model_validate(answer)


def marked(
    marks: Marks, cases: Sequence[FunctionCase] | Sequence[ProgramCase], passed: AbstractSet[int]
) -> float:
    """What the part `tests` is when the cases of these numbers passed. The share is among the
    hidden cases, if there are any."""
    if marks == "all":
        return float(len(passed) == len(cases))
    hidden = {number for number, case in enumerate(cases) if not case.visible}
    counted = hidden or set(range(len(cases)))
    return len(counted & passed) / len(counted)
