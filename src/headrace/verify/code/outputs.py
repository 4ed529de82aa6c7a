"""Whether what a program printed is what it should have printed.

Pure functions of two texts. May be known by the code verifiers.
"""

from __future__ import annotations

import math
import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Checker", "CheckerKind", "same_output"]

CheckerKind = Literal["exact", "lines", "tokens", "numbers"]

_NUMBER = re.compile(
    r"[+-]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,4})?", re.ASCII
)


class Checker(BaseModel):
    """How outputs are compared.

    "exact": every character, but one newline at the end may be missing or too many. "lines":
    line by line, without the space that ends a line and the empty lines that end the text.
    "tokens": what stands between white space. "numbers": as tokens, but where a decimal number
    is expected, a number within `tolerance` of it, absolutely or relatively, is right.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: CheckerKind = "lines"
    tolerance: float = Field(default=1e-6, gt=0, lt=1)


def same_output(checker: Checker, expected: str, found: str) -> bool:
    """Whether `found` is right.

    >>> same_output(Checker(kind="numbers", tolerance=1e-3), "x 0.5", "x  0.5001")
    True
    """
    if checker.kind == "exact":
        return expected.removesuffix("\n") == found.removesuffix("\n")
    if checker.kind == "lines":
        return _lines(expected) == _lines(found)
    ours, theirs = expected.split(), found.split()
    if checker.kind == "tokens":
        return ours == theirs
    return len(ours) == len(theirs) and all(
        _close(a, b, checker.tolerance) for a, b in zip(ours, theirs, strict=True)
    )


def _lines(text: str) -> list[str]:
    lines = [line.rstrip(" \t\r") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _close(expected: str, found: str, tolerance: float) -> bool:
    if expected == found:
        return True
    if not (_NUMBER.fullmatch(expected) and _NUMBER.fullmatch(found)):
        return False
    a, b = float(expected), float(found)
    return math.isfinite(a) and math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
