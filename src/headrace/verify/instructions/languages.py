"""Which language a text is in: by script, then by its common words. Deterministic, no models.

What it can do: tell the languages of `CODES` apart in a text of a sentence or more. What it
cannot: name a language in a word or two without a common one, tell languages that share most
common words (Norwegian from Danish, Assamese from Bengali), or know any language that is not
listed; a Latin text in one of those is "unknown" or, rarely, a neighbour. It says None rather
than guess. Pure functions of strings. May be known by the rules; knows none.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from headrace.verify.instructions.common_words import COMMON
from headrace.verify.instructions.prose import plain_word, words_of

__all__ = ["CODES", "identify", "is_in", "is_plausibly_english", "name_of"]

CODES = {
    "ar": "Arabic",
    "bg": "Bulgarian",
    "bn": "Bengali",
    "cs": "Czech",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "fa": "Persian",
    "fi": "Finnish",
    "fr": "French",
    "gu": "Gujarati",
    "he": "Hebrew",
    "hi": "Hindi",
    "hu": "Hungarian",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "kn": "Kannada",
    "ko": "Korean",
    "ml": "Malayalam",
    "mr": "Marathi",
    "ne": "Nepali",
    "nl": "Dutch",
    "no": "Norwegian",
    "pa": "Punjabi",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sv": "Swedish",
    "sw": "Swahili",
    "ta": "Tamil",
    "te": "Telugu",
    "th": "Thai",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "ur": "Urdu",
    "vi": "Vietnamese",
    "zh": "Chinese",
}

_LATIN = "cs da de en es fi fr hu id it nl no pl pt ro sv sw tr vi"
_SCRIPTS: dict[str, tuple[str, ...]] = {
    "LATIN": tuple(_LATIN.split()),
    "CYRILLIC": ("ru", "uk", "bg"),
    "ARABIC": ("ar", "fa", "ur"),
    "DEVANAGARI": ("hi", "mr", "ne"),
    "BENGALI": ("bn",),
    "GREEK": ("el",),
    "GUJARATI": ("gu",),
    "HEBREW": ("he",),
    "KANNADA": ("kn",),
    "HANGUL": ("ko",),
    "MALAYALAM": ("ml",),
    "GURMUKHI": ("pa",),
    "TAMIL": ("ta",),
    "TELUGU": ("te",),
    "THAI": ("th",),
    "HIRAGANA": ("ja",),
    "KATAKANA": ("ja",),
    "CJK": ("zh",),
}

_LETTERS: dict[str, str] = {
    "ru": "ыэё",
    "uk": "іїєґ",
    "bg": "",
    "fa": "پچژگکی",
    "ur": "ٹڈڑےںھہگچپ",
    "ar": "ةىيك",
    "de": "äöüß",
    "es": "ñ¿¡",
    "fi": "äö",
    "sv": "åäö",
    "da": "æøå",
    "no": "æøå",
    "fr": "çèêàœù",
    "pt": "ãõç",
    "pl": "ąćęłńśźż",
    "cs": "ěščřžůď",
    "hu": "őű",
    "ro": "ăâîșțşţ",
    "tr": "ğışç",
    "vi": "đơưăạảấầẩậắằẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỷỹỵ",
}
"""Letters that speak for a language among those that share its script."""

_SHARE = 0.8
"""The share of letters in one script from which a text is said to be in that script."""

_LONG = 12
"""Words from which a paragraph can be held against the rest of a text."""


def name_of(code: str) -> str:
    """The English name of a language; the code itself for an unknown one."""
    return CODES.get(code, code)


def identify(text: str) -> str | None:
    """The code of the language of `text`, or None where that cannot be said.

    >>> identify("The river runs to the sea and it never comes back.")
    'en'
    >>> identify("Der Fluss fließt in das Meer und er kommt nie zurück.")
    'de'
    >>> identify("0 1 2") is None
    True
    """
    script, share = _script(text)
    if script is None or share < _SHARE:
        return None
    candidates = _SCRIPTS[script]
    if len(candidates) == 1:
        return candidates[0]
    scores = _scores(text, candidates)
    best, second = scores.most_common(2)
    if best[1] <= 0 or best[1] < second[1] * 1.02:
        return None
    return best[0]


def is_in(text: str, code: str) -> bool:
    """Whether all of `text` is in a language: the whole, and no long paragraph in another.

    >>> is_in("Das ist ein Haus und es ist sehr alt.", "de")
    True
    """
    if identify(text) != code:
        return False
    parts = (part for part in re.split(r"\n+", text) if len(words_of(part)) >= _LONG)
    return all(identify(part) in (code, None) for part in parts)


def is_plausibly_english(text: str) -> bool:
    """Whether a text could be English: it is, or it is too short to say and in plain letters.

    >>> is_plausibly_english("HELLO WORLD"), is_plausibly_english("BONJOUR LE MONDE")
    (True, False)
    """
    found = identify(text)
    if found is not None:
        return is_in(text, "en")
    letters = [char for char in text if char.isalpha()]
    return bool(letters) and sum(char.isascii() for char in letters) >= 0.95 * len(letters)


def _script(text: str) -> tuple[str | None, float]:
    """The script of most letters, and its share among them. Kana among Han makes it Japanese."""
    counts = Counter(_script_of(char) for char in text if char.isalpha())
    total = sum(counts.values())
    if not total:
        return None, 0.0
    kana = counts["HIRAGANA"] + counts["KATAKANA"]
    if kana * 10 >= kana + counts["CJK"] and kana:
        counts["HIRAGANA"] = kana + counts.pop("CJK", 0)
        counts.pop("KATAKANA", None)
    script, count = max(counts.items(), key=lambda item: (item[1], item[0]))
    return (script if script in _SCRIPTS else None), count / total


@lru_cache(maxsize=4096)
def _script_of(char: str) -> str:
    return unicodedata.name(char, "?").partition(" ")[0].partition("-")[0]


def _scores(text: str, candidates: Iterable[str]) -> Counter[str]:
    """For each language the share of its common words in `text`, and of its own letters."""
    words = [plain_word(word) for word in words_of(text)][:5000]
    letters = [char for char in text.casefold() if char.isalpha() or char in "¿¡"][:20_000]
    scores: Counter[str] = Counter()
    for code in candidates:
        common = COMMON.get(code, frozenset[str]())
        own = _LETTERS.get(code, "")
        hits = sum(word in common for word in words) / max(1, len(words))
        marked = sum(char in own for char in letters) / max(1, len(letters))
        scores[code] = round(1_000_000 * (hits + 2 * min(marked, 0.08)))
    return scores
