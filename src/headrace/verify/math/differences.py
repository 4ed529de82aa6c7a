r"""Where this verifier and plain math-verify 0.9.0 part ways, and why.

A test asks both. Documentation and benchmarks may list it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DIFFERENCES", "Difference"]


@dataclass(frozen=True, slots=True)
class Difference:
    """`gold` and `said` in LaTeX without delimiters; `ours` and `theirs`: are they equal?"""

    gold: str
    said: str
    ours: bool
    theirs: bool
    why: str


DIFFERENCES = (
    Difference(
        "\\frac{1}{2004!}", "\\frac{1}{2006!}", False, True, "values below 1e-15 are cut to 0"
    ),
    Difference("\\frac{1}{2^{99}}", "\\frac{1}{2^{98}}", False, True, "the same, at 1e-30"),
    Difference("50\\%", "50", False, True, "a percent sign is a factor of 1/100, not a unit"),
    Difference("\\frac{1}{3}", "0.333333", False, True, "six decimals are no third"),
    Difference("5\\text{ cm}", "5\\text{ m}", False, True, "units are dropped there"),
    Difference("2", "2t", False, True, "a trailing `t` is dropped as if it were a unit"),
    Difference("5", "2(3)", False, True, "a product of two integers is read as a mixed number"),
    Difference(
        "0 < x < 12.5", "(0, 12.5)", False, True, "a tuple is no interval unless the task says so"
    ),
    Difference(
        "(-\\infty, 3)", "x < 3", True, False, "an inequality and an interval, in either order"
    ),
    Difference("5", "5 = 6 = 5", False, True, "every side of an equation must be right"),
    Difference("5", "2 + 3", False, True, "a sum left standing is no result (an option allows it)"),
    Difference("X", "x", False, True, "letters keep their case"),
    Difference("0.\\overline{3}", "\\frac{1}{3}", True, False, "repeating decimals are exact"),
)
