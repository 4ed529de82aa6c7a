"""What a task asks: instructions with their arguments, and how following them is scored.

Reads `Task.answer`. Whatever is wrong with it is the task's fault and never a score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from headrace.errors import UsageError
from headrace.types import Json
from headrace.verify.instructions.registry import arguments, find
from headrace.verify.instructions.rules import Args, Rule

__all__ = ["MIN_WORDS", "Instruction", "Order", "read_order"]

MIN_WORDS = 3
"""The fewest words that are an answer, unless an instruction asks for a brief one."""

_OWN = {"instructions"}
_OFFICIAL = {"instruction_id_list", "kwargs"}
_OPTIONS = {"mode", "score", "min_words", "echo"}
_MOST = 100


@dataclass(frozen=True, slots=True)
class Instruction:
    """A rule with its arguments; `name` tells repeated ones apart ("keywords:frequency#2")."""

    name: str
    rule: Rule
    args: Args

    @property
    def passive(self) -> bool:
        """Whether a text that knows nothing of it may well follow it."""
        return self.rule.passive(self.args)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """All instructions of a task in order, and how they are scored (see `Instructions`)."""

    instructions: tuple[Instruction, ...]
    mode: Literal["strict", "loose"]
    score: Literal["all", "mean"]
    min_words: int
    may_echo: bool
    brief: bool


def read_order(answer: Json) -> Order:
    """The order that a task's answer spells; UsageError saying what is wrong with it."""
    if not isinstance(answer, Mapping):
        raise UsageError(f"the answer is a {type(answer).__name__}, not an object")
    answer = cast("Mapping[str, Json]", answer)
    shape = _OWN if "instructions" in answer else _OFFICIAL
    odd = sorted(str(key) for key in set(answer) - shape - _OPTIONS)
    if odd:
        raise UsageError(f"unknown keys: {', '.join(odd)[:300]}")
    pairs = _pairs(answer)
    instructions: list[Instruction] = []
    seen: dict[str, int] = {}
    for id_, kwargs in pairs:
        rule, args = find(id_), arguments(id_, kwargs)
        seen[id_] = seen.get(id_, 0) + 1
        name = id_ if seen[id_] == 1 else f"{id_}#{seen[id_]}"
        instructions.append(Instruction(name, rule, args))
    brief = any(instruction.rule.brief for instruction in instructions)
    copies = any(instruction.rule.copies for instruction in instructions)
    min_words = answer.get("min_words", 1 if brief else MIN_WORDS)
    if type(min_words) is not int or not 1 <= min_words <= 10_000:
        raise UsageError(f"min_words is {min_words!r}, not 1..10000")
    echo = _choice(answer, "echo", ("allow", "refuse") if copies else ("refuse", "allow"))
    return Order(
        instructions=tuple(instructions),
        mode=cast("Literal['strict', 'loose']", _choice(answer, "mode", ("strict", "loose"))),
        score=cast("Literal['all', 'mean']", _choice(answer, "score", ("all", "mean"))),
        min_words=min_words,
        may_echo=echo == "allow",
        brief=brief,
    )


def _pairs(answer: Mapping[str, Json]) -> list[tuple[str, Json]]:
    if "instructions" in answer:
        items = answer["instructions"]
        if not isinstance(items, Sequence) or isinstance(items, str):
            raise UsageError("instructions is no list")
        for item in items:
            if not isinstance(item, Mapping) or not set(item) <= {"id", "kwargs"}:
                raise UsageError(f"an instruction is {{id, kwargs}}, not {item!r}"[:300])
        pairs = [(item.get("id"), item.get("kwargs", {})) for item in items]
    else:
        ids, kwargs = answer.get("instruction_id_list"), answer.get("kwargs")
        if not isinstance(ids, list) or not isinstance(kwargs, list) or len(ids) != len(kwargs):
            raise UsageError("instruction_id_list and kwargs are no two lists of one length")
        pairs = list(zip(ids, kwargs, strict=True))
    if not 0 < len(pairs) <= _MOST:
        raise UsageError(f"{len(pairs)} instructions, not 1..{_MOST}")
    for id_, _ in pairs:
        if not isinstance(id_, str):
            raise UsageError(f"an id is {id_!r}, not a text"[:300])
    return pairs


def _choice(answer: Mapping[str, Json], key: str, choices: tuple[str, str]) -> str:
    """The value of an option, the first choice by default."""
    value = answer.get(key, choices[0])
    if value not in choices:
        raise UsageError(f"{key} is {value!r}, not {' or '.join(choices)}"[:300])
    return value
