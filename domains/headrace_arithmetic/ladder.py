"""The ladder of integer problems, each in a dozen phrasings.

A candidate index walks a tier's whole space (operands x phrasings) in a scattered order and
then again, so consecutive indices meet every task once before any comes twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.types import Message, Task, split_of
from headrace_arithmetic.final_integer import FinalInteger

__all__ = ["TIERS", "Arithmetic", "Problem", "Tier"]

_SCATTER = 2_654_435_761
"""A prime that divides no tier's size, so multiplying by it permutes the indices."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An expression as asked (`written`), its key for every order and phrasing, its value.

    `spoken` is the expression in words and `noun` what its result is called; `story` asks for
    it without naming an operation.
    """

    written: str
    spoken: str
    noun: str
    story: str
    request: str
    key: str
    value: int


@dataclass(frozen=True, slots=True)
class Tier:
    """One rung: what it asks, the sizes of its operands' ranges, and the problem of a choice."""

    title: str
    sizes: tuple[int, ...]
    problem: Callable[[tuple[int, ...]], Problem]


def _plus(a: int, b: int) -> Problem:
    low, high = sorted((a, b))
    return Problem(
        written=f"{a} + {b}",
        spoken=f"{a} plus {b}",
        noun=f"the sum of {a} and {b}",
        story=f"If you have {a} apples and get {b} more, how many apples do you have?",
        request=f"Add {a} and {b}.",
        key=f"{low}+{high}",
        value=a + b,
    )


def _minus(a: int, b: int) -> Problem:
    return Problem(
        written=f"{a} - {b}",
        spoken=f"{a} minus {b}",
        noun=f"{a} reduced by {b}",
        story=f"It was {a} degrees and got {b} degrees colder. How many degrees is it now?",
        request=f"Subtract {b} from {a}.",
        key=f"{a}-{b}",
        value=a - b,
    )


def _times(a: int, b: int) -> Problem:
    low, high = sorted((a, b))
    return Problem(
        written=f"{a} * {b}",
        spoken=f"{a} times {b}",
        noun=f"the product of {a} and {b}",
        story=f"There are {a} boxes with {b} pens in each. How many pens are there?",
        request=f"Multiply {a} by {b}.",
        key=f"{low}*{high}",
        value=a * b,
    )


def _divided(a: int, b: int) -> Problem:
    return Problem(
        written=f"{a} / {b}",
        spoken=f"{a} divided by {b}",
        noun=f"the quotient of {a} and {b}",
        story=f"{a} pens are shared equally by {b} people. How many pens does each get?",
        request=f"Divide {a} by {b}.",
        key=f"{a}/{b}",
        value=a // b,
    )


def _three(a: int, b: int, c: int, *, less: bool) -> Problem:
    first = _plus(a, b)
    third = ("-", "minus", "loses") if less else ("+", "plus", "finds")
    sign, word, verb = third
    low, high = sorted((a, b))
    key = f"{low}+{high}-{c}" if less else "+".join(str(term) for term in sorted((a, b, c)))
    return Problem(
        written=f"{first.written} {sign} {c}",
        spoken=f"{first.spoken} {word} {c}",
        noun=f"{first.noun}, {'reduced' if less else 'increased'} by {c}",
        story=f"Tom has {a} coins, finds {b} and then {verb} {c}. How many coins has he?",
        request=f"Add {a} and {b}, then {'subtract' if less else 'add'} {c}.",
        key=key,
        value=a + b + (-c if less else c),
    )


def _three_terms(choice: tuple[int, ...]) -> Problem:
    a, b, c, less = choice
    return _three(a, b, c, less=bool(less) and c <= a + b)


def _nonnegative_difference(choice: tuple[int, ...]) -> Problem:
    return _minus(max(choice), min(choice))


def _three_digits(choice: tuple[int, ...]) -> Problem:
    a, b, less = choice
    return (_minus if less else _plus)(a + 100, b + 100)


TIERS = (
    Tier("one-digit addition", (10, 10), lambda c: _plus(c[0], c[1])),
    Tier(
        "two-digit plus one-digit",
        (90, 10, 2),
        lambda c: _plus(c[0] + 10, c[1]) if c[2] else _plus(c[1], c[0] + 10),
    ),
    Tier("two-digit addition", (90, 90), lambda c: _plus(c[0] + 10, c[1] + 10)),
    Tier("subtraction below 100", (100, 100), _nonnegative_difference),
    Tier("one-digit multiplication", (10, 10), lambda c: _times(c[0], c[1])),
    Tier("three terms up to 20", (21, 21, 21, 2), _three_terms),
    Tier("three-digit addition and subtraction", (900, 900, 2), _three_digits),
    Tier("two-digit by one-digit multiplication", (90, 8), lambda c: _times(c[0] + 10, c[1] + 2)),
    Tier("two-digit multiplication", (90, 90), lambda c: _times(c[0] + 10, c[1] + 10)),
    Tier(
        "division without remainder",
        (98, 8),
        lambda c: _divided((c[0] + 2) * (c[1] + 2), c[1] + 2),
    ),
)

_PHRASINGS: tuple[Callable[[Problem], str], ...] = (
    lambda p: f"What is {p.written}?",
    lambda p: f"{p.written} =",
    lambda p: p.request,
    lambda p: f"Calculate {p.spoken}.",
    lambda p: f"How much is {p.written}? Answer with a number.",
    lambda p: f"What is {p.noun}?",
    lambda p: f"{p.written.replace(' ', '')}=?",
    lambda p: f"Compute: {p.written}",
    lambda p: p.story,
    lambda p: f"Please work out {p.spoken}.",
    lambda p: f"What does {p.spoken} make?",
    lambda p: f"Find the value of {p.written}.",
)


class Arithmetic:
    """The domain `arithmetic`: ten tiers from one-digit addition to division.

    A problem's key is the same in every phrasing, and in either order of a sum or product, so
    a held-out problem is held out in all its forms.
    """

    name = "arithmetic"
    tiers = len(TIERS)

    def __init__(self) -> None:
        self.verifier = FinalInteger()

    def task(self, tier: int, index: int) -> Task:
        """Candidate `index` (0..2**63 - 1) of tier `tier` (0..9); a pure function of the two."""
        rung = TIERS[tier]
        rest = index * _SCATTER % self.size(tier)
        rest, phrasing = divmod(rest, len(_PHRASINGS))
        choice: list[int] = []
        for size in rung.sizes:
            rest, operand = divmod(rest, size)
            choice.append(operand)
        problem = rung.problem(tuple(choice))
        return Task(
            domain=self.name,
            problem=problem.key,
            tier=tier,
            split=split_of(self.name, problem.key),
            messages=(Message.of("user", _PHRASINGS[phrasing](problem)),),
            verifier=self.verifier.ref,
            answer=problem.value,
        )

    def reference(self, task: Task) -> str:
        """The integer alone."""
        return str(task.answer)

    def wrong(self, task: Task) -> tuple[str, ...]:
        """Neighbours, bets on two numbers, and numbers that are part of something else."""
        value: int = task.answer
        return (
            str(value + 1),
            str(value - 10),
            f"{value} or {value + 2}",
            f"{value}%",
            f"{value}.5",
            f"It is {value}/2",
            f"{value}e1",
        )

    def size(self, tier: int) -> int:
        """How many candidates a tier has before they repeat (operands x phrasings)."""
        count = len(_PHRASINGS)
        for size in TIERS[tier].sizes:
            count *= size
        return count
