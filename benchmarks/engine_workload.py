"""What the engine benchmarks compute on: prompts and texts, the same for everybody. Seeded."""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import Tokenizer

__all__ = ["Workload"]

_PEOPLE = (
    "Ada",
    "Bela",
    "Carmen",
    "Dmitri",
    "Esther",
    "Farid",
    "Greta",
    "Hiro",
    "Imani",
    "Jonas",
    "Keiko",
    "Lucia",
)
_THINGS = (
    "apples",
    "lanterns",
    "stamps",
    "marbles",
    "tickets",
    "notebooks",
    "shells",
    "ribbons",
    "coins",
    "seeds",
)
_PLACES = (
    "market",
    "harbour",
    "library",
    "orchard",
    "workshop",
    "station",
    "garden",
    "school",
    "museum",
)
_VERBS = (
    "buys",
    "loses",
    "finds",
    "sells",
    "borrows",
    "paints",
    "counts",
    "repairs",
    "hides",
    "shares",
)
_QUESTIONS = (
    "How many are left at the end of the day, and how do you know?",
    "What does the whole errand cost if each of them is worth three cents?",
    "Who has the most now? Explain every step before you answer.",
    "Write down the sum that gives the answer, and then the answer itself.",
)


class Workload:
    """Texts by number: the same number gives the same text on every machine."""

    def __init__(self, model: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def question(self, number: int) -> str:
        """A word problem of a few sentences."""
        draw = random.Random(f"question {number}")
        sentences = [_sentence(draw) for _ in range(draw.randint(1, 2))]
        return " ".join([*sentences, draw.choice(_QUESTIONS)])

    def prompts(self, count: int, *, first: int) -> list[list[int]]:
        """`count` distinct prompts, about 30 to 60 tokens each."""
        return [self.ids(self.question(first + number)) for number in range(count)]

    def texts(self, tokens: int, *, first: int) -> list[list[int]]:
        """Sequences of log-normal length (20 to 500 tokens, half of them below 110) with
        `tokens` tokens in all."""
        texts: list[list[int]] = []
        left, number = tokens, first
        while left > 0:
            draw = random.Random(f"text {number}")
            length = min(500, max(20, round(draw.lognormvariate(4.7, 0.8))), left)
            ids: list[int] = []
            while len(ids) < length:
                ids += self.ids(_sentence(draw) + " ")
            if left - length < 20:  # the rest would be no text of its own
                length = left
            texts.append((ids * (1 + length // len(ids)))[:length])
            left -= length
            number += 1
        return texts

    def ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids


def _sentence(draw: random.Random) -> str:
    who, other = draw.sample(_PEOPLE, 2)
    place = draw.choice(_PLACES)
    return (
        f"On the way to the {place} {who} {draw.choice(_VERBS)} {draw.randint(2, 97)} "
        f"{draw.choice(_THINGS)} and gives {draw.randint(2, 40)} of them to {other}."
    )
