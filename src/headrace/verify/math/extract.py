r"""Where the answer stands in an attempt: one place, so that betting on several does not pay.

The first of these that is there: the last `<answer>` pair, the last `\boxed{...}`, what follows
the last `####`, what follows the last "answer is" or "answer:", the last expression. Thinking
is never an answer. Known by the verifier.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from headrace.verify.answers import boxed, tagged, without_thinking
from headrace.verify.math.notation import clean
from headrace.verify.math.units import parse_unit

__all__ = ["Found", "extract"]

Place = Literal["tag", "box", "mark", "phrase", "last"]

_PHRASE = re.compile(
    r"\banswers?(?:\s+to\b[^.\n]{0,100}?)?\s*(?:\*\*)?\s*(?:is|are|=|:)\s*:?", re.IGNORECASE
)
_SENTENCE = re.compile(r"(?:[.!?](?=\s|$)|\n|$)")
_MATH = re.compile(
    r"\$\$?([^$]+)\$\$?|\\\(((?:(?!\\\)).)+)\\\)|\\\[((?:(?!\\\]).)+)\\\]", re.DOTALL
)
_NUMBER = r"(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)"
_EXPRESSION = re.compile(
    rf"(?<![\w.])[-−+]?[$€£]?[(]*{_NUMBER}(?:[ \t]*[-−+*/^×÷·=][ \t]*[-−+(]*{_NUMBER}[)]*)*"
    r"(?:\s?\\?%|\s+percent\b|\s+[0-9]+/[0-9]+|[eE][-+]?[0-9]+)?"
)
_UNIT = re.compile(r"[ ]?(?:square |cubic |sq )?[A-Za-z]+(?:[/^][A-Za-z0-9]+)*(?: per [A-Za-z]+)?")
_TAIL = 4000


@dataclass(frozen=True, slots=True)
class Found:
    """The answer as it was written, and where it stood."""

    text: str
    place: Place


def extract(text: str) -> Found | None:
    """The one answer of an attempt, or None if it gives none."""
    text = without_thinking(text)
    if (inside := tagged(text)) is not None:
        inner = boxed(inside)
        return _found(inside if inner is None else inner, "tag")
    if (inside := boxed(text)) is not None:
        return _found(inside, "box")
    text = text[-_TAIL:]
    if (position := text.rfind("####")) >= 0:
        return _found(text[position + 4 :].lstrip().partition("\n")[0], "mark")
    phrases = list(_PHRASE.finditer(text))
    if phrases:
        after = text[phrases[-1].end() :].lstrip(" \t*")
        if (math := _MATH.match(after)) is not None:
            return _found(math.group(), "phrase")
        end = _SENTENCE.search(after)
        return _found(after[: end.start()] if end else after, "phrase")
    return _last(text)


def _found(text: str, place: Place) -> Found | None:
    text = text.strip("* \t\r\n")
    return Found(text, place) if clean(text) else None


def _last(text: str) -> Found | None:
    """The formula or number that comes last."""
    formulas = list(_MATH.finditer(text))
    numbers = list(_EXPRESSION.finditer(text))
    if formulas and (not numbers or numbers[-1].start() < formulas[-1].end()):
        return _found(formulas[-1].group(), "last")
    if not numbers:
        return None
    number = numbers[-1]
    word = _UNIT.match(text, number.end())
    unit = word.group() if word and parse_unit(word.group()) else ""
    return Found(number.group().strip() + unit, "last")
