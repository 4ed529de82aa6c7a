"""Words, sentences, paragraphs and lines of a reply: the units that instructions count.

A word is a run of letters, marks and digits; apostrophes and single hyphens join ("don't",
"well-known"), so do the points and commas inside a number ("1,000.5") and the points of initials
("e.g."). More than three parts glued by hyphens are that many words. Each Han, Hiragana or
Katakana character is a word of its own, since Chinese and Japanese are written without spaces;
Thai, Lao and Khmer are counted by the space.
A sentence ends at . ! ? … (and their likes in other scripts) before a space, at a blank line,
and around a list item or heading; common abbreviations do not end one, and neither does what
holds no letter count as one. May be known by the rules; knows none.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import cached_property

from headrace.verify.instructions.disguise import folded

__all__ = [
    "Reply",
    "bare",
    "closing",
    "ends_in_emoji",
    "plain_word",
    "sentences_of",
    "tokens_of",
    "words_of",
]


def _marks() -> str:
    """All combining marks of the basic plane, as the inside of a character class."""
    spans: list[list[int]] = []
    for code in range(0x300, min(0x10000, sys.maxunicode)):
        if unicodedata.category(chr(code)) in ("Mn", "Mc"):
            if spans and spans[-1][1] == code - 1:
                spans[-1][1] = code
            else:
                spans.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in spans)


_M = _marks()
_HAN = (
    "\u3005\u3007\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f"
)
_CORE = rf"(?:(?![{_HAN}])[^\W_])(?:(?![{_HAN}])[^\W_]|[{_M}])*"
_WORD = re.compile(
    rf"[{_HAN}]"
    r"|\d++(?:[.,]\d++)++"
    r"|(?:[A-Za-z]\.){2,}(?:[A-Za-z](?![^\W_]))?"
    rf"|{_CORE}(?:['’ʼ]{_CORE})*(?:[-‐‑]{_CORE}(?:['’ʼ]{_CORE})*)*"
)
_HYPHEN = re.compile("[-‐‑]")
_PARTS = 3

_MARKS = ".!?…‽。！？｡।॥؟۔"
_END = re.compile(
    rf"(?<![{_MARKS}])(?P<mark>[{_MARKS}]++)(?P<close>[\"'”’»)\]}}*_」』]*+)"
    r"(?=\s|\Z|(?<=[。！？｡」』]))"
)
_SHORT_FORMS = (
    "mr mrs ms dr prof st sr jr mt capt lt col gen sgt rev hon gov sen rep inc ltd co corp"
    " vs etc eg ie cf al approx dept est fig figs vol pp ed eds ch sec min max jan feb mar"
    " apr jun jul aug sept oct nov dec ave blvd rd"
)
_ABBREVIATIONS = frozenset(_SHORT_FORMS.split())
_ENDERS = frozenset({"etc", "inc", "ltd", "co", "corp", "jr", "sr", "al", "est", "min", "max"})
_SMALL = frozenset({"co", "min", "max", "ed", "mar", "ch", "rep", "sec", "est", "al", "dec", "mt"})
_LAST = re.compile(r"([^\s\"'“‘(\[]+)$")
_ITEM = re.compile(r"^\s*(?:[-*+•‣◦]\s+|\d{1,3}[.)]\s+|[A-Za-z][.)]\s+(?=\S)|#{1,6}\s+|>\s?)")
_EMOJI = (
    "\u231a\u231b\u23e9-\u23fa\u25aa-\u25fe\u2600-\u27bf\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55"
    "\U0001f000-\U0001faff"
)
_EMOJI_TAIL = re.compile(rf"[ \t]*(?:[{_EMOJI}]+[ \t]*)+")
_EMOJI_END = re.compile(rf"[{_EMOJI}]\Z")
_AFTER_MARK = " \t\n\"'”’»)]}*_」』"
_EDGES = "\"'“”‘’«»*_`()[]{}<>#.,;:!?…-–—~ \t\n"


class Reply:
    """A reply as a reader sees it, and its units, each worked out once. Immutable by habit."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def words(self) -> list[str]:
        return words_of(self.text)

    @cached_property
    def lowered(self) -> list[str]:
        """The words in one case, with plain apostrophes."""
        return [plain_word(word) for word in self.words]

    @cached_property
    def sentences(self) -> list[str]:
        return sentences_of(self.text)

    @cached_property
    def lines(self) -> list[str]:
        """The lines that hold more than space, indentation kept."""
        return [line.rstrip() for line in self.text.split("\n") if line.strip()]

    @cached_property
    def paragraphs(self) -> list[str]:
        """What blank lines separate, stripped, none empty."""
        return [part.strip() for part in re.split(r"\n[ \t]*\n", self.text) if part.strip()]

    @cached_property
    def unfenced(self) -> Reply:
        """The reply without its fenced blocks."""
        return Reply(
            re.sub(r"(?ms)^[ ]{0,3}(`{3,}|~{3,}).*?(?:^[ ]{0,3}\1[ \t]*$|\Z)", "", self.text)
        )

    @cached_property
    def looks(self) -> Reply:
        """The reply with look-alike letters folded to Latin ones."""
        return Reply(folded(self.text))


def words_of(text: str) -> list[str]:
    """The words of `text` in order.

    >>> words_of("Don't pay 1,000.50 for well-known (so-called) goods, e.g. tea.")
    ["Don't", 'pay', '1,000.50', 'for', 'well-known', 'so-called', 'goods', 'e.g.', 'tea']
    >>> words_of("one-two-three-four 水の")
    ['one', 'two', 'three', 'four', '水', 'の']
    """
    found: list[str] = []
    for match in _WORD.finditer(text):
        parts = _HYPHEN.split(match[0])
        found += parts if len(parts) > _PARTS else [match[0]]
    return found


def tokens_of(text: str) -> list[str]:
    """What spaces separate and holds a letter or digit."""
    return [token for token in text.split() if any(char.isalnum() for char in token)]


def plain_word(word: str) -> str:
    """A word as it is compared: case folded, apostrophes plain."""
    return word.casefold().replace("’", "'").replace("ʼ", "'")


def bare(text: str) -> str:
    """`text` without the spaces, quotes, marks of punctuation and of Markdown around it."""
    return text.strip(_EDGES)


def closing(sentence: str) -> str:
    """What kind of sentence its last mark makes it: ".", "?", "!" or "".

    Quotes, brackets and emoji after the mark do not count; "?!" asks.

    >>> closing('"Really?"'), closing("Yes. \U0001f600"), closing("A heading")
    ('?', '.', '')
    """
    end = len(sentence)
    while end and (sentence[end - 1] in _AFTER_MARK or _EMOJI_END.match(sentence, end - 1, end)):
        end -= 1
    start = len(sentence[:end].rstrip(_MARKS))
    marks = sentence[start:end]
    if any(char in "?？؟‽" for char in marks):
        return "?"
    return "!" if any(char in "!！" for char in marks) else marks[:1] and "."


def ends_in_emoji(sentence: str) -> bool:
    """Whether the last thing of a sentence, but for punctuation around it, is an emoji."""
    return bool(_EMOJI_END.search(sentence.rstrip("\"'”’»)]}*_.!?…,;: \t\n")))


def sentences_of(text: str) -> list[str]:
    """The sentences of `text` in order, stripped; emoji after one belong to it.

    >>> sentences_of("Dr. Wu came at 3.5 p.m. today. Why? \\U0001f600 I know!")
    ['Dr. Wu came at 3.5 p.m. today.', 'Why? \\U0001f600', 'I know!']
    >>> sentences_of('"What?" he said.')
    ['"What?" he said.']
    """
    return [
        sentence
        for block in _blocks(text)
        for sentence in _split(block)
        if any(char.isalpha() for char in sentence)
    ]


def _blocks(text: str) -> Iterator[str]:
    """Runs of lines between blank lines, list items and headings; without their markers."""
    held: list[str] = []
    for line in text.split("\n"):
        marker = _ITEM.match(line)
        if (marker or not line.strip()) and held:
            yield " ".join(held)
            held = []
        if not line.strip():
            continue
        if marker and line.lstrip().startswith("#"):
            yield line[marker.end() :].strip()
            continue
        held.append((line[marker.end() :] if marker else line).strip())
    if held:
        yield " ".join(held)


def _split(block: str) -> Iterator[str]:
    start = 0
    for end in _END.finditer(block):
        if end.start() < start or not _ends(block, start, end):
            continue
        tail = _EMOJI_TAIL.match(block, end.end())
        stop = tail.end() if tail else end.end()
        yield block[start:stop].strip()
        start = stop
    if block[start:].strip():
        yield block[start:].strip()


def _ends(block: str, start: int, end: re.Match[str]) -> bool:
    """Whether a mark that could end a sentence does."""
    after = block[end.end() : end.end() + 40].lstrip()
    low = after[:1].islower()
    if end["mark"] in ("...", "…"):
        return not low
    if end["mark"] != ".":
        return not (low and end["close"].strip("*_"))
    last = _LAST.search(block[max(start, end.start() - 40) : end.start()])
    if last is None or end["close"].strip("*_"):
        return True
    word = last[1].casefold().replace(".", "")
    if "." in last[1] and len(word) <= 3:
        return bool(after[:1].isupper()) and word not in ("eg", "ie")
    if len(word) == 1 and last[1].isalpha() and word not in ("i", "a"):
        return not after
    if word not in _ABBREVIATIONS or (word in _SMALL and not last[1][:1].isupper()):
        return True
    return not after or (word in _ENDERS and not low)
