"""Nouns behind a number: "18 eggs" says 18 where the question speaks of eggs.

Only words of the prompt count, and never words that change a number ("dozen", "squared", "or").
Known by the verifier.
"""

from __future__ import annotations

import re

from headrace.verify.math.notation import clean
from headrace.verify.math.numerals import read_numeral
from headrace.verify.math.units import measured, parse_unit

__all__ = ["without_noun"]

_COUNTED = re.compile(r"(?P<number>.*?[0-9}])\s+(?P<words>[A-Za-z][A-Za-z ]*)", re.DOTALL)
_WORD = re.compile(r"[A-Za-z]+")
_IDLE = frozenset({"a", "each", "for", "in", "of", "per", "the", "total"})
_TELLING = {
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "twenty", "thirty", "forty", "fifty", "dozen", "dozens", "score"),
    *("hundred", "hundreds", "thousand", "thousands", "million", "millions", "billion", "trillion"),
    *("half", "halves", "third", "thirds", "quarter", "quarters", "fourth", "fourths", "fifth"),
    *("fifths", "tenth", "tenths", "hundredth", "hundredths", "percent", "percentage", "power"),
    *("times", "squared", "cubed", "square", "cubic", "factorial", "plus", "minus", "over"),
    *("under", "divided", "multiplied", "by", "more", "less", "fewer", "than", "least", "most"),
    *("about", "almost", "nearly", "around", "between", "and", "or", "to", "not", "no", "root"),
    *("negative", "pair", "pairs", "double", "twice", "triple", "mod", "modulo"),
}
"""Words that change the number before them, or offer another."""


def without_noun(text: str, prompt: str) -> str:
    """The number that `text` begins with, if nothing but nouns of `prompt` follows; else `text`.

    >>> without_noun("18 eggs in total", "How many eggs are there?")
    '18'
    >>> without_noun("18 dozen", "How many dozen eggs are there?")
    '18 dozen'
    """
    match = _COUNTED.fullmatch(re.sub(r"\\text\{([^{}]*)\}", r" \1 ", clean(text)).strip())
    if match is None or parse_unit(match["words"]) is not None:
        return text
    if read_numeral(measured(match["number"]).number) is None:
        return text
    known = {word.casefold() for word in _WORD.findall(prompt)} - _TELLING
    words = [word.casefold() for word in match["words"].split()]
    if all(word in known or word in _IDLE for word in words) and not set(words) <= _IDLE:
        return match["number"]
    return text
