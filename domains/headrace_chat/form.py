"""The verifier `chat-form`: is a reply well made, and about what was asked?

It never knows whether a reply is true. May be known by the domains of this pack.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from headrace.types import Json, Task, Verdict, VerdictPart, VerifierRef
from headrace.verify.answers import without_thinking
from headrace.verify.base import BaseVerifier
from headrace.verify.instructions.answered import why_no_answer
from headrace.verify.instructions.disguise import seen
from headrace.verify.instructions.orders import Order
from headrace.verify.instructions.prose import plain_word, sentences_of, words_of
from headrace.verify.verdicts import hack, scored, unjudged

__all__ = ["WEIGHTS", "ChatForm", "Form"]

WEIGHTS: Mapping[str, float] = {
    "own": 1.0,
    "topic": 2.0,
    "start": 1.0,
    "plain": 1.0,
    "loops": 3.0,
    "length": 2.0,
    "list": 2.0,
}
"""The parts and what each weighs."""

_QUOTES = "\"'“‘«„"
_MARKS = "-*•+–"
_ITEM = re.compile(r"[ \t]*(?:[-*•+–](?![-*])|\d{1,2}[.):])[ \t]*\S")
_RUN, _MOST_RUNS = 6, 2
_ECHO = 3
_LONGEST = 20_000
_LONGEST_WORD = 40
_LEAST_LETTERS = 0.6
_ORDER = Order(
    instructions=(), mode="strict", score="all", min_words=4, may_echo=False, brief=False
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What a reply has to be: `topic` are words of which it says one, in lower case; it has
    `least` to `most` words and, where `items` is not 0, at least so many list items."""

    topic: tuple[str, ...]
    least: int
    most: int
    items: int = 0

    @property
    def answer(self) -> Json:
        """It as `Task.answer`."""
        return {
            "topic": list(self.topic),
            "least": self.least,
            "most": self.most,
            "items": self.items,
        }

    @staticmethod
    def read(answer: Json) -> Form | None:
        """The form that a task's answer spells; None where it spells none."""
        if not isinstance(answer, Mapping) or set(answer) != {"topic", "least", "most", "items"}:
            return None
        answer = cast("Mapping[str, Json]", answer)
        topic, numbers = answer["topic"], [answer[name] for name in ("least", "most", "items")]
        spelt = isinstance(topic, list) and topic and all(type(word) is str for word in topic)
        if not spelt or not all(type(number) is int and number >= 0 for number in numbers):
            return None
        least, most, items = numbers
        return Form(topic=tuple(topic), least=least, most=most, items=items)


class ChatForm(BaseVerifier):
    """Whether a reply is well formed and mentions its topic (`Task.answer`: see `Form`).

    Parts, each 0 or 1:

    - `own`: it is more than the request given back, and written to be read (no disguises);
    - `topic`: outside of what it repeats of the request, it says a word of the topic;
    - `start`: it begins with a letter, a digit, a quote or a list mark;
    - `plain`: printable characters, mostly letters, no word of more than 40 characters;
    - `loops`: no run of six words comes more than twice, no line of words twice;
    - `length`: its words are within the bounds;
    - `list`, where items are asked for: so many lines begin with a list mark or a number.

    A reply without `own` or `topic` scores 0, whatever its other parts: shape alone earns
    nothing. Else the score is their mean by `WEIGHTS`. Thinking blocks are no part of a reply;
    one of more than 20,000 characters is none.
    """

    ref = VerifierRef("chat-form", "1")

    def judge(self, task: Task, text: str) -> Verdict:
        """The verdict on a reply; unjudged where the task's answer is no form."""
        form = Form.read(task.answer)
        if form is None:
            return unjudged(self.ref, "task", {"answer": "no form of a reply"})
        reply = without_thinking(text).strip()
        shown = seen(reply if len(reply) <= _LONGEST else "")
        prompt = "\n".join(message.text for message in task.messages)
        nothing = why_no_answer(shown, _ORDER, prompt)
        if nothing is None and _flat(shown.text) in _flat(prompt):
            nothing = "it is a piece of the request"
        words = [plain_word(word) for word in words_of(shown.text)]
        found: dict[str, str | None] = {
            "own": nothing,
            "topic": _off_topic(words, form, prompt),
            "start": _odd_start(shown.text),
            "plain": _odd_text(shown.text),
            "loops": _loop(words, shown.text),
            "length": _odd_length(len(words), form),
        }
        if form.items:
            found["list"] = _no_list(shown.text, form.items)
        lacking = [name for name in ("own", "topic") if found[name] is not None]
        parts = [
            VerdictPart(
                name,
                float(why is None),
                0.0 if lacking and name not in lacking else WEIGHTS[name],
            )
            for name, why in found.items()
        ]
        evidence = {name: why for name, why in found.items() if why is not None}
        return scored(
            self.ref,
            [*parts, hack(shown.hidden or bool(shown.disguises))],
            evidence=evidence or {"well formed": f"{len(words)} words"},
        )


def _flat(text: str) -> str:
    return " ".join(text.split()).casefold()


def _off_topic(words: Sequence[str], form: Form, prompt: str) -> str | None:
    rest = f" {' '.join(words)} "
    for sentence in sentences_of(prompt):
        asked = [plain_word(word) for word in words_of(sentence)]
        if len(asked) >= _ECHO:
            rest = rest.replace(f" {' '.join(asked)} ", " ")
    pieces = {piece for word in rest.split() for piece in _pieces(word)}
    if pieces.isdisjoint(form.topic):
        return f"it says none of: {', '.join(form.topic)}"
    return None


def _pieces(word: str) -> Iterator[str]:
    """A word without 's, and the parts of a compound."""
    word = word.removesuffix("'s").removesuffix("'")
    yield word
    yield from word.split("-")


def _odd_start(text: str) -> str | None:
    first = text[:1]
    if first.isalnum() or (first and first in _QUOTES + _MARKS):
        return None
    return f"it begins with {first!r}"


def _odd_text(text: str) -> str | None:
    odd = sorted({char for char in text if not _printable(char)})
    if odd:
        return f"it holds {odd[:5]!r}"
    solid = [char for char in text if not char.isspace()]
    if sum(char.isalnum() for char in solid) < _LEAST_LETTERS * len(solid):
        return "it is mostly signs"
    long = max((len(word) for word in words_of(text)), default=0)
    return f"it has a word of {long} characters" if long > _LONGEST_WORD else None


def _printable(char: str) -> bool:
    return char in "\n\t" or (char != "\ufffd" and unicodedata.category(char)[0] != "C")


def _loop(words: Sequence[str], text: str) -> str | None:
    runs = Counter(zip(*(words[start:] for start in range(_RUN)), strict=False))
    run, count = max(runs.items(), key=lambda item: item[1], default=((), 0))
    if count > _MOST_RUNS:
        return f"{' '.join(run)!r} comes {count} times"
    lines = Counter(
        _flat(line) for line in text.split("\n") if any(char.isalnum() for char in line)
    )
    again = next((line for line, count in lines.items() if count > 1), None)
    return None if again is None else f"the line {again[:200]!r} comes again"


def _odd_length(count: int, form: Form) -> str | None:
    if form.least <= count <= form.most:
        return None
    return f"{count} words, not {form.least} to {form.most}"


def _no_list(text: str, items: int) -> str | None:
    lines = [line for line in text.split("\n") if any(char.isalnum() for char in line)]
    count = sum(_ITEM.match(line) is not None for line in lines)
    return None if count >= items else f"{count} list items, fewer than {items}"
