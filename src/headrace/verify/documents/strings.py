"""Comparing short answers: ANLS, and the token F1 and exact match of SQuAD.

Pure functions over strings; may be known by verifiers and evaluations.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

__all__ = ["anls", "disguised", "distance", "exact_match", "normalised", "token_f1", "tokens"]

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))", re.ASCII)
_MARKS = re.escape(string.punctuation)
_PUNCTUATION = re.compile(rf"((?<=\d)[{_MARKS}](?=\d)|(?<!\S)-(?=\.?\d))|[{_MARKS}]", re.ASCII)


def anls(answer: str, references: Sequence[str], *, threshold: float = 0.5) -> float:
    """The best similarity 1 - NL to any reference, or 0 where NL is not below `threshold`.

    NL is the edit distance over the length of the longer of the two, after lower case and single
    spaces (Biten et al., "Scene Text Visual Question Answering", 2019). Exactly half is 0. An
    empty answer is 0.

    >>> round(anls("kitten", ["sitting", "dog"]), 3)
    0.571
    >>> anls("ab", ["a"])
    0.0
    """
    said = " ".join(answer.lower().split())
    best = 0.0
    for reference in references:
        meant = " ".join(reference.lower().split())
        longest = max(len(said), len(meant))
        if not said or abs(len(said) - len(meant)) >= threshold * longest:
            continue  # the distance is at least the difference of the lengths
        away = distance(said, meant)
        if away < threshold * longest:
            best = max(best, 1.0 - away / longest)
    return best


def distance(left: str, right: str) -> int:
    """The least number of insertions, deletions and substitutions between two texts."""
    row = list(range(len(right) + 1))
    for i, here in enumerate(left, 1):
        diagonal, row[0] = row[0], i
        for j, there in enumerate(right, 1):
            diagonal, row[j] = (
                row[j],
                min(row[j] + 1, row[j - 1] + 1, diagonal + (here != there)),
            )
    return row[-1]


def normalised(text: str, *, articles: bool = False) -> str:
    """Lower case, without ASCII punctuation, articles (unless kept) and spare space.

    What makes another number stays, unlike in SQuAD's own script: the point in 1.5, the hyphen in
    2-3, the sign of -5. Commas between thousands go.
    """
    text = _PUNCTUATION.sub(lambda m: m[1] or "", _THOUSANDS.sub("", text.lower()))
    return " ".join((text if articles else _ARTICLE.sub(" ", text)).split())


def tokens(text: str, *, articles: bool = False) -> list[str]:
    """The words of `normalised`."""
    return normalised(text, articles=articles).split()


def exact_match(answer: str, references: Sequence[str]) -> bool:
    """Whether the normalised answer is any normalised reference.

    A reference that is nothing but articles ("A", "The The") keeps them, and so does the answer
    to it: nothing equals nothing otherwise. Of a reference without words and digits ("%"), the
    very characters must be said.
    """
    return any(said == meant for said, meant in (_pair(answer, ref) for ref in references))


def token_f1(answer: str, references: Sequence[str]) -> float:
    """The best harmonic mean of precision and recall of words, as bags, over the references.

    Rajpurkar et al., "SQuAD", 2016, section 6.1; normalised as in `exact_match`. An answer
    without words is 0.

    >>> token_f1("the red house", ["red barn", "a house, red"])
    1.0
    """
    best = 0.0
    for reference in references:
        said, meant = _pair(answer, reference)
        common = (Counter(said) & Counter(meant)).total()
        if common:
            best = max(best, 2 * common / (len(said) + len(meant)))
    return best


def disguised(answer: str, references: Sequence[str]) -> bool:
    """Whether `answer` has letters or digits of a script that neither ASCII nor any reference has,
    or characters that nobody sees: it looks like a text that it is not.

    >>> disguised("p\u0430ris", ["paris"]), disguised("Orl\u00e9ans", ["Orleans"])
    (True, False)
    """
    known = {"LATIN", *(_script(letter) for reference in references for letter in reference)}
    return any(_script(letter) not in known for letter in answer if not letter.isascii())


def _script(letter: str) -> str:
    """The first word of a letter's or digit's name; LATIN for what is neither and seen."""
    if letter.isalnum():
        return unicodedata.name(letter, "UNNAMED").split()[0]
    return "UNSEEN" if unicodedata.category(letter) == "Cf" else "LATIN"


def _pair(answer: str, reference: str) -> tuple[list[str], list[str]]:
    """The words of both, normalised alike and as far as the reference survives it."""
    for articles in (False, True):
        meant = tokens(reference, articles=articles)
        if meant:
            return tokens(answer, articles=articles), meant
    return answer.split(), reference.split()
