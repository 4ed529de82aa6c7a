"""Rows of IFEval and IFBench as answers of tasks, with what looks wrong in them.

Published rows contradict their prompts here and there (google-research issues 3103 and 3427,
pull request 3361): a number that the prompt does not say, an instruction twice. Such a row is
still read, and its doubts come with it, so that a person can leave it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.errors import UsageError
from headrace.types import Json
from headrace.verify.instructions.orders import Order, read_order
from headrace.verify.instructions.prose import Reply, words_of

__all__ = ["Imported", "from_row"]

_SPELLED = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    " fifteen sixteen seventeen eighteen nineteen twenty"
)
_NUMBER_WORDS = _SPELLED.split()
_TIMES = {1: ("once", "a", "an", "first", "single"), 2: ("twice", "second", "both"), 3: ("third",)}
_EDITS = re.compile(
    r"\b(?:re-?write|re-?phrase|paraphrase|edit|proofread|correct|fix|translate|summari[sz]e|convert"
    r"|improve|polish|expand|shorten|punctuate|capitali[sz]e|repeat|copy)\b",
    re.IGNORECASE,
)
_COPIED = frozenset({"reference_text", "prompt_to_repeat"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A row that can be judged: `prompt`, `answer` (for `Task.answer`), and what seems wrong."""

    key: str
    prompt: str
    answer: Json
    doubts: tuple[str, ...]


def from_row(row: Mapping[str, Json], *, mode: str = "strict", score: str = "all") -> Imported:
    """A row {key, prompt, instruction_id_list, kwargs} as an answer of the kind `instructions`.

    Nulls among kwargs are dropped. A prompt that asks to edit a text may be echoed. Raises
    UsageError for a row that cannot be judged: ids unknown here, wrong or missing arguments.

    >>> row = {
    ...     "key": 1,
    ...     "prompt": "Write at least 400 words.",
    ...     "instruction_id_list": ["length_constraints:number_words"],
    ...     "kwargs": [{"relation": "at least", "num_words": 336}],
    ... }
    >>> from_row(row).doubts
    ('length_constraints:number_words: the prompt does not say num_words = 336',)
    """
    key, prompt = str(row.get("key", "")), row.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise UsageError("a row without a prompt", where=f"key {key}")
    official: dict[str, Json] = {
        "instruction_id_list": row.get("instruction_id_list"),
        "kwargs": row.get("kwargs"),
        "mode": mode,
        "score": score,
    }
    try:
        order = read_order(official)
    except UsageError as error:
        raise UsageError(error.what, where=f"key {key} {error.where}", hint=error.hint) from error
    answer: dict[str, Json] = {
        "instructions": [
            {"id": one.rule.id, "kwargs": dict(one.args)} for one in order.instructions
        ],
        "mode": mode,
        "score": score,
    }
    if order.may_echo or _EDITS.search(prompt):
        answer["echo"] = "allow"
    return Imported(key=key, prompt=prompt, answer=answer, doubts=tuple(_doubts(order, prompt)))


def _doubts(order: Order, prompt: str) -> Iterable[str]:
    said = set(Reply(prompt).lowered) | set(re.findall(r"\d+", prompt.replace(",", "")))
    earlier: list[tuple[str, Json]] = []
    for one in order.instructions:
        if (one.rule.id, dict(one.args)) in earlier:
            yield f"{one.name}: the same instruction again"
        earlier.append((one.rule.id, dict(one.args)))
        for name, value in one.args.items():
            if isinstance(value, int) and not _says_number(said, value):
                yield f"{one.name}: the prompt does not say {name} = {value}"
            texts = value if isinstance(value, list) else [value]
            for text in texts:
                if isinstance(text, str) and not _says_text(prompt, name, text):
                    yield f"{one.name}: the prompt does not say {name} = {text[:60]!r}"


def _says_number(said: set[str], value: int) -> bool:
    """Whether a prompt names a number, or one beside it ("more than 4" is at least 5)."""
    near = {value, value - 1, value + 1}
    words = {_NUMBER_WORDS[one] for one in near if 0 <= one < len(_NUMBER_WORDS)}
    endings = {f"{one}{end}" for one in near for end in ("", "st", "nd", "rd", "th")}
    others = {word for one in near for word in _TIMES.get(one, ())}
    return bool(said & (words | endings | others))


def _says_text(prompt: str, name: str, text: str) -> bool:
    if name in _COPIED or name in ("language", "relation", "let_relation", "capital_relation"):
        return True
    wanted = [word.casefold() for word in words_of(text)]
    there = {word.casefold() for word in words_of(prompt)}
    return all(word in there or word in prompt.casefold() for word in wanted)
