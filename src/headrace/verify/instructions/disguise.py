"""What a reader of a reply sees, and what was put there for a checker only.

Hidden markup goes; characters that show as nothing go, and are told of where they have no honest
use; letters that only look Latin can be folded to what they look like. Pure functions of strings.
May be known by the rules; knows none.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Seen", "folded", "seen"]

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_NOTE = re.compile(r"^[ ]{0,3}\[(?://|comment|#)\]:[^\n]*$", re.MULTILINE | re.IGNORECASE)
_UNSHOWN = re.compile(
    r"<(?P<tag>[a-z][a-z0-9]{0,15})\b(?=[^<>]{0,300}"
    r"(?:\bhidden\b|display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0))"
    r"[^<>]{0,400}>.*?(?:</(?P=tag)>|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_FENCED = re.compile(
    r"^[ ]{0,3}(`{3,}|~{3,})[^\n]*\n.*?(?:^[ ]{0,3}\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)

_BLANK_LOOKING = "\u2800\u3164\uffa0\u115f\u1160"
_LINE_ENDS = "\r\x0b\x0c\x85\u2028\u2029"
_FORMS = str.maketrans(dict.fromkeys(_BLANK_LOOKING, " ") | dict.fromkeys(_LINE_ENDS, "\n"))
_SELECTORS = "\ufe0e\ufe0f\u034f\xad"
_DIRECTION = re.compile("[\u202a-\u202e\u2066-\u2069]")
_JOINERS = re.compile(r"[\u200c\u200d]")
_NOTHING = re.compile("[\u200b\u2060-\u2064\ufeff\u180e\U000e0000-\U000e007f]")
_STYLED = re.compile("[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\U0001d400-\U0001d7ff]{2}")
_WIDE_SCRIPTS = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_LATIN = re.compile(r"[A-Za-z\u00c0-\u024f]")
_WORDLIKE = re.compile(r"[^\W\d_]+")

_TWINS = str.maketrans(
    # Cyrillic, then Greek: the letters that a common font draws like a Latin one
    "АВСЕНІЈКМОРЅТХУԌԚԜЗавсеһіјкморѕтхугԁԛԝӏ" + "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧορνικυχα",
    "ABCEHIJKMOPSTXYGQW3abcehijkmopstxyrdqwl" + "ABEZHIKMNOPTYXopvikuxa",
)
_TWIN = re.compile(f"[{''.join(map(chr, _TWINS.keys() - set(map(ord, 'κχα'))))}]")
"""Twins that no honest word mixes with Latin letters; biology writes TNFα and NFκB."""


@dataclass(frozen=True, slots=True)
class Seen:
    """`text` as a reader sees it, and why it cannot be read in good faith (`disguises`, in words).

    `hidden`: it held markup that shows nothing, which was taken away.
    """

    text: str
    disguises: tuple[str, ...]
    hidden: bool


def seen(text: str) -> Seen:
    """What a reader sees of `text`.

    Comments and unshown elements of HTML outside of fences, and comments of Markdown, are
    removed. All kinds of spaces and line ends become the common ones, letters with accents are
    composed (NFC), and what shows as nothing is removed.

    >>> seen("one<!-- keyword -->\\u00a0two").text
    'one two'
    >>> seen("o\\u200bne").disguises
    ('invisible characters',)
    """
    text = text.replace("\r\n", "\n").translate(_FORMS).removeprefix("\ufeff")
    shown = _outside_fences(text)
    disguises = tuple(_disguises(shown))
    plain = unicodedata.normalize("NFC", "".join(map(_visible, shown)))
    return Seen(plain, disguises, shown != text)


def folded(text: str) -> str:
    """`text` with every letter replaced by the Latin one it looks like; for what must not occur.

    Full width, styled and accentuated-over letters too; true accents stay.

    >>> folded("\\u0430pple, \\uff41pple, a\\u0336pple")
    'apple, apple, apple'
    """
    plain = unicodedata.normalize("NFKC", text).translate(_TWINS)
    return re.sub("[\u0300-\u036f\u20d0-\u20ff]", "", plain)


def _outside_fences(text: str) -> str:
    pieces: list[str] = []
    position = 0
    for fence in _FENCED.finditer(text):
        pieces += [_shown(text[position : fence.start()]), fence[0]]
        position = fence.end()
    return "".join([*pieces, _shown(text[position:])])


def _shown(text: str) -> str:
    if "<!--" in text:
        text = _COMMENT.sub("", text)
    if "]:" in text:
        text = _NOTE.sub("", text)
    if re.search("hidden|display|font-size", text, re.IGNORECASE):
        text = _UNSHOWN.sub("", text)
    return text


@lru_cache(maxsize=8192)
def _visible(char: str) -> str:
    if char in "\n\t":
        return char
    category = unicodedata.category(char)
    if category == "Zs":
        return " "
    return "" if category in ("Cf", "Cc", "Cs", "Co") or char in _SELECTORS else char


def _disguises(text: str) -> list[str]:
    found: list[str] = []
    if any(not _honest(text, match.start()) for match in _NOTHING.finditer(text)) or any(
        not _honest(text, match.start()) for match in _JOINERS.finditer(text)
    ):
        found.append("invisible characters")
    if _DIRECTION.search(text):
        found.append("marks that turn the direction of writing")
    if any(_TWIN.search(word) and _LATIN.search(word) for word in _WORDLIKE.findall(text)):
        found.append("letters of another script inside Latin words")
    if _STYLED.search(text) and not _WIDE_SCRIPTS.search(text):
        found.append("letters in full width or mathematical style")
    return found


def _honest(text: str, at: int) -> bool:
    """Whether an invisible character has a use where it stands: some scripts and emoji need it."""
    around = [text[i] for i in (at - 1, at + 1) if 0 <= i < len(text)]
    if text[at] == "\u200b":
        return bool(around) and all("\u0e00" <= char <= "\u17ff" for char in around)
    if text[at] in "\u200c\u200d":
        return any("\u0590" <= char <= "\u0dff" or char >= "\u2600" for char in around)
    return False
