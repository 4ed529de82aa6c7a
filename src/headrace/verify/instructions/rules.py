"""What a rule is: an instruction that a program can check, with its words and its arguments.

Each family of rules is a module with a tuple `RULES`. May be known by them and by whoever looks
rules up; knows none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headrace.types import Json
from headrace.verify.instructions.prose import Reply

__all__ = [
    "COUNT",
    "RELATION",
    "TEXT",
    "TEXTS",
    "WHOLE",
    "Args",
    "Example",
    "Finding",
    "Rule",
    "always",
    "compared",
    "counted",
    "is_upper_bound",
]

Args = Mapping[str, Json]
"""The arguments of an instruction, checked against the schema of its rule."""

TEXT: Json = {"type": "string", "pattern": r"\S", "maxLength": 20_000}
TEXTS: Json = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 200}
COUNT: Json = {"type": "integer", "minimum": 1, "maximum": 1_000_000}
WHOLE: Json = {"type": "integer", "minimum": 0, "maximum": 1_000_000}
RELATION: Json = {"enum": ["less than", "at least"]}


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a reply follows an instruction, and what in it says so."""

    ok: bool
    found: Json


@dataclass(frozen=True, slots=True)
class Example:
    """Arguments of a rule, and a reply that follows it."""

    kwargs: Args
    reply: str


def never(args: Args) -> bool:
    """No text follows it by accident."""
    del args
    return False


def always(args: Args) -> bool:
    """Text that knows nothing of it may well follow it."""
    del args
    return True


def is_upper_bound(args: Args) -> bool:
    """Whether the relation forbids rather than asks."""
    return any(value == "less than" for value in args.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An instruction that can be checked.

    `says` is the instruction in plain English with `{names}` of its arguments, or makes it of
    them. `schema` has a JSON Schema for each argument; all of them are required.
    `passive(args)`: a text that knows nothing of the instruction may well follow it, so it
    cannot carry a score alone. `brief`: its right answer may be a word. `copies`: its right
    answer is a copy of what was asked. `answer(text, args)`: what of a reply is its own words.

    >>> from headrace.verify.instructions.registry import RULES
    >>> RULES["keywords:frequency"].describe(
    ...     {"keyword": "tea", "frequency": 2, "relation": "at least"}
    ... )
    'Use the word "tea" at least 2 times.'
    """

    id: str
    says: str | Callable[[Args], str]
    check: Callable[[Reply, Args], Finding]
    example: Example
    schema: Mapping[str, Json] = field(default_factory=dict[str, Json])
    passive: Callable[[Args], bool] = never
    brief: bool = False
    copies: bool = False
    answer: Callable[[str, Args], str] | None = None

    def describe(self, args: Args) -> str:
        """The instruction in plain English."""
        if callable(self.says):
            return self.says(args)
        return self.says.format(**{name: _spoken(value) for name, value in args.items()})


def compared(count: int, bound: int, relation: str) -> bool:
    """Whether `count` is "less than" or "at least" `bound`."""
    return count < bound if relation == "less than" else count >= bound


def counted(count: int, bound: int, relation: str, what: str) -> Finding:
    """The finding of a count against a bound."""
    return Finding(compared(count, bound, relation), f"{count} {what}")


def _spoken(value: Json) -> str:
    if isinstance(value, list):
        return ", ".join(f'"{item}"' for item in value)
    return str(value)
