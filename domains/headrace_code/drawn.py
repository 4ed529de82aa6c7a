"""Random arguments for templates: numbers, words, lists. Pure functions of a `Random`."""

from __future__ import annotations

from random import Random
from typing import Any

from headrace_code.template import Draw

__all__ = ["ints", "number", "one", "sentence", "sorted_ints", "text", "two", "word", "words"]

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORDS = (
    *("river", "stone", "apple", "cloud", "eagle", "tiny", "ocean", "level", "sun", "moon"),
    *("a", "tree", "orange", "under", "noon", "idea", "glass", "up", "echo", "winter"),
)


def number(low: int, high: int) -> Draw:
    return lambda rng, _: (rng.randint(low, high),)


def two(low: int, high: int) -> Draw:
    return lambda rng, _: (rng.randint(low, high), rng.randint(low, high))


def ints(low: int = -20, high: int = 20, *, least: int = 1, most: int = 9) -> Draw:
    return lambda rng, _: ([rng.randint(low, high) for _ in range(rng.randint(least, most))],)


def sorted_ints(rng: Random, low: int = -20, high: int = 20, most: int = 7) -> list[int]:
    return sorted(rng.randint(low, high) for _ in range(rng.randint(0, most)))


def word(rng: Random) -> str:
    return rng.choice(_WORDS)


def words(least: int = 1, most: int = 6) -> Draw:
    return lambda rng, _: ([word(rng) for _ in range(rng.randint(least, most))],)


def sentence(least: int = 1, most: int = 6) -> Draw:
    return lambda rng, _: (" ".join(word(rng) for _ in range(rng.randint(least, most))),)


def text(letters: str = _LETTERS, least: int = 1, most: int = 10) -> Draw:
    return lambda rng, _: ("".join(rng.choice(letters) for _ in range(rng.randint(least, most))),)


def one(*choices: Any) -> Draw:
    return lambda rng, _: (rng.choice(choices),)
