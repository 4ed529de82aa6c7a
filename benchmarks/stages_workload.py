"""Recorded data for the benchmark of stages: conversations and preferences, seeded, in JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from engine_workload import Workload

__all__ = ["StageData"]

_PEOPLE = ("Nadia", "Oskar", "Priya", "Quentin", "Rosa", "Sven", "Tomoko", "Uri", "Vera", "Wren")
_WORKS = ("mends the roof", "plants beans", "reads the map", "bakes bread", "tunes the piano")
_TIMES = ("before noon", "in the evening", "after the rain", "on market day", "once a week")
_REASONS = (
    "because nobody else had the time",
    "and writes down how long it took",
    "while the neighbours look on",
    "so that all of it is done by winter",
    "although it had been promised to somebody else",
)
_ASKS = (
    "Tell me in plain words what happened.",
    "Sum this up for a friend who was away.",
    "What should be done next, and by whom?",
    "Explain to a child why this matters.",
)

Row = dict[str, Any]


class StageData:
    """Rows by number: the same number gives the same row for the same tokenizer.

    Lengths are in tokens of `model`, to within a sentence.
    """

    def __init__(self, model: Path) -> None:
        self._workload = Workload(model)

    def write_conversations(self, path: Path, count: int) -> None:
        """One to three exchanges each, of log-normal length: 20 to 420 tokens beside those of the
        chat template, half below 67."""
        _write(path, self._conversation, count)

    def write_preferences(self, path: Path, count: int) -> None:
        """A prompt of about 100 tokens and two answers of about 60 (40 to 80) each."""
        _write(path, self._preference, count)

    def _conversation(self, number: int) -> Row:
        draw = random.Random(f"conversation {number}")
        length = min(420, max(20, round(draw.lognormvariate(4.2, 1.0))))
        exchanges = 1 + (length > 100) + (length > 250)
        messages: list[Row] = []
        for _ in range(exchanges):
            asked = self._text(draw, length // exchanges // 3, draw.choice(_ASKS))
            said = self._text(draw, 2 * length // exchanges // 3)
            messages += [_message("user", asked), _message("assistant", said)]
        return {"messages": messages}

    def _preference(self, number: int) -> Row:
        draw = random.Random(f"preference {number}")
        asked = self._text(draw, 100, draw.choice(_ASKS))
        sides = [self._text(draw, draw.randint(40, 80)) for _ in range(2)]
        return {
            "prompt": [_message("user", asked)],
            "chosen": [_message("assistant", sides[0])],
            "rejected": [_message("assistant", sides[1])],
        }

    def _text(self, draw: random.Random, tokens: int, last: str = "") -> str:
        """Sentences and `last`, as many as come nearest to `tokens`; at least one in all."""
        text, length = last, len(self._workload.ids(last))
        while True:
            longer = f"{_sentence(draw)} {text}".strip()
            reached = len(self._workload.ids(longer))
            if text and reached - tokens > tokens - length:
                return text
            text, length = longer, reached


def _sentence(draw: random.Random) -> str:
    return (
        f"{draw.choice(_PEOPLE)} {draw.choice(_WORKS)} {draw.choice(_TIMES)} "
        f"{draw.choice(_REASONS)}."
    )


def _message(role: str, content: str) -> Row:
    return {"role": role, "content": content}


def _write(path: Path, row: Callable[[int], Row], count: int) -> None:
    def lines() -> Iterator[str]:
        for number in range(count):
            yield json.dumps(row(number)) + "\n"

    path.write_text("".join(lines()))
