"""All rules by id, and what can be done with an id: check its arguments, say it in words.

The 25 instructions of IFEval (Zhou et al. 2023, arXiv 2311.07911) and the 58 of IFBench (Pyatkin
et al. 2025, arXiv 2507.02833). May be known by the verifier and by generators of tasks.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from jsonschema import Draft202012Validator

from headrace.errors import UsageError
from headrace.types import Json
from headrace.verify.instructions import (
    content,
    customs,
    keywords,
    layout,
    length,
    sentences,
    words,
)
from headrace.verify.instructions.rules import Args, Rule

__all__ = ["RULES", "arguments", "describe", "find", "schema"]

RULES: Mapping[str, Rule] = {
    rule.id: rule
    for family in (keywords, length, content, layout, words, sentences, customs)
    for rule in family.RULES
}
"""Id to rule, for every instruction that can be checked."""


def find(id_: str) -> Rule:
    """The rule of an id; UsageError naming the nearest for an unknown one."""
    if id_ not in RULES:
        near = difflib.get_close_matches(id_[:200], RULES, n=1, cutoff=0.0)
        raise UsageError(f"no instruction {id_[:200]!r}", hint=f"did you mean {near[0]}?")
    return RULES[id_]


def schema(id_: str) -> Json:
    """The JSON Schema of the arguments of an id: all of them required, no others."""
    rule = find(id_)
    return {
        "type": "object",
        "properties": dict(rule.schema),
        "required": sorted(rule.schema),
        "additionalProperties": False,
    }


def arguments(id_: str, kwargs: Json) -> Args:
    """The arguments of an instruction, checked; UsageError for missing, unknown or wrong ones.

    Nulls are arguments of other instructions, as data sets with one column for all of them have
    them; whole numbers may come as floats.

    >>> arguments("format:list", {"sep": "-", "N": None})
    {'sep': '-'}
    """
    if not isinstance(kwargs, Mapping):
        raise UsageError(f"the arguments are a {type(kwargs).__name__}", where=id_)
    given = {name: value for name, value in kwargs.items() if value is not None}
    error = next(iter(Draft202012Validator(schema(id_)).iter_errors(given)), None)
    if error is not None:
        place = "".join(f"[{part!r}]" for part in error.absolute_path)
        raise UsageError(f"wrong arguments: {error.message[:300]}", where=f"{id_}{place}")
    checked = {
        name: int(value) if _is_integer(find(id_).schema[name]) else value
        for name, value in given.items()
    }
    for low, high in (
        ("min_words", "max_words"),
        ("n_start", "n_end"),
        ("nth_paragraph", "num_paragraphs"),
    ):
        if low in checked and high in checked and checked[low] > checked[high]:
            raise UsageError(f"{low} is more than {high}", where=id_)
    if "n_end" in checked and checked["n_end"] >= len(str(checked["prompt_to_repeat"]).split()):
        raise UsageError("n_end is beyond the last word", where=id_)
    return checked


def describe(id_: str, kwargs: Json) -> str:
    """The instruction in plain English, to build prompts from.

    >>> describe("count:word_count_range", {"min_words": 5, "max_words": 9})
    'Write between 5 and 9 words.'
    """
    return find(id_).describe(arguments(id_, kwargs))


def _is_integer(fragment: Json) -> bool:
    return isinstance(fragment, Mapping) and fragment.get("type") == "integer"
