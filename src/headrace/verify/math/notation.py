"""How an answer is written: one spelling for what LaTeX, plain text and Unicode write in many.

`clean` makes that spelling, `split` cuts at separators outside brackets, `enclosed` looks into
brackets. Works on characters only and knows nothing of mathematics; known by the whole package.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Enclosed", "Split", "clean", "enclosed", "mentions", "split", "without_thousands"]

_CHARACTERS = str.maketrans(
    {
        "\u2212": "-",
        "\u2013": "-",
        "\ufe63": "-",
        "\uff0d": "-",
        "\u00a0": " ",
        "\u2009": " ",
        "\u202f": " ",
        "\u2019": "'",
        "×": "\\times ",
        "·": "\\cdot ",
        "⋅": "\\cdot ",
        "∙": "\\cdot ",
        "÷": "/",
        "π": "\\pi ",
        "θ": "\\theta ",
        "α": "\\alpha ",
        "β": "\\beta ",
        "λ": "\\lambda ",
        "φ": "\\phi ",
        "∞": "\\infty ",
        "≤": "\\le ",
        "≥": "\\ge ",
        "≠": "\\ne ",
        "≈": "\\approx ",
        "±": "\\pm ",
        "∓": "\\mp ",
        "∪": "\\cup ",
        "∈": "\\in ",
        "∅": "\\emptyset ",
        "ℝ": "\\mathbb{R}",
        "°": "^\\circ ",
        "²": "^{2}",
        "³": "^{3}",
        "⁴": "^{4}",
        "½": " \\frac{1}{2}",
        "¼": " \\frac{1}{4}",
        "¾": " \\frac{3}{4}",
        "⅓": " \\frac{1}{3}",
        "⅔": " \\frac{2}{3}",
    }
)

_GREEK = "alpha|beta|gamma|delta|theta|lambda|sigma|omega|phi|pi|mu"
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])\s*\.?", ""),
        (r"\\(?:displaystyle|textstyle|limits|boldsymbol|bm)(?![A-Za-z])", ""),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\(?:leqslant|leq|le)(?![A-Za-z])|<=", r"\\le "),
        (r"\\(?:geqslant|geq|ge)(?![A-Za-z])|>=", r"\\ge "),
        (r"\\(?:neq|ne)(?![A-Za-z])|!=", r"\\ne "),
        (r"\\(?:approx|simeq)(?![A-Za-z])", r"\\approx "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\(?:varnothing|empty)(?![A-Za-z])", r"\\emptyset "),
        (r"\\R(?![A-Za-z])|\\Reals(?![A-Za-z])|\\mathbb\s*R(?![A-Za-z])", r"\\mathbb{R}"),
        (r"\\(?:math|text)(?:rm|bf|it|sf|normal|tt|up)\s*\{", r"\\text{"),
        (r"\\mbox\s*\{", r"\\text{"),
        (r"\\text\{([eid])\}", r"\1"),
        (r",?\s*\\text\{[,\s]*(and|or)\s*\}", r" \1 "),
        (r"\\(?:lor|vee)(?![A-Za-z])", " or "),
        (r"\\(?:land|wedge)(?![A-Za-z])", " and "),
        (r"\{,\}", ","),
        (r"(?<!\\)\\!", ""),
        (r"(?<!\\)\\(?:[,;: ]|(?:q?quad|thinspace)(?![A-Za-z]))|~", " "),
        (r"√\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"√\s*([0-9]+|[A-Za-z])", r"\\sqrt{\1}"),
        (r"\*\*", "^"),
        (r"==", "="),
        (r"\\frac\s*([0-9A-Za-z])\s*([0-9A-Za-z])", r"\\frac{\1}{\2}"),
        (r"\\frac\s*([0-9A-Za-z])\s*\{", r"\\frac{\1}{"),
        (r"(\\frac\s*\{[^{}]*\})\s*([0-9A-Za-z])", r"\1{\2}"),
        (r"\\frac\s+\{", r"\\frac{"),
        (r"\}\s+\{", "}{"),
        (r"\\sqrt\s*([0-9A-Za-z])", r"\\sqrt{\1}"),
        (r"\^\s*\{\s*\\circ\s*\}", r"^\\circ "),
        (r"\^\s*(-?[0-9]+(?:\.[0-9]+)?)", r"^{\1}"),
        (rf"(?<![\\A-Za-z])({_GREEK})(?![A-Za-z])", r"\\\1 "),
        (r"(?<![\\A-Za-z])(?:infinity|inf|oo)(?![A-Za-z])", r"\\infty "),
        (r"\s+", " "),
    )
)
_PAIRS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("`", "`"))
_DOLLAR = re.compile(r"(?<!\\)\$")
_TOKEN = re.compile(
    r"\\begin\{[A-Za-z*]*\}|\\end\{[A-Za-z*]*\}|\\[A-Za-z]+|\\.|[A-Za-z]+|.", re.DOTALL
)
_OPENING = ("(", "[", "{", "\\{", "\\langle")
_CLOSING = (")", "]", "}", "\\}", "\\rangle")
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_DECORATION = re.compile(r"\s+|\$|\\(?:left|right|displaystyle)(?![A-Za-z])|\\[,;:!()\[\] ]|\*\*")


def clean(text: str) -> str:
    r"""The one spelling: no delimiters, no layout commands, known names for known signs.

    >>> clean(r"$\dfrac12 \leq x$.")
    '\\frac{1}{2} \\le x'
    """
    text = _undressed(text.translate(_CHARACTERS))
    if len(_DOLLAR.findall(text)) % 2 == 0:
        text = _DOLLAR.sub("", text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text.strip().rstrip(".,;:").strip()


def _undressed(text: str) -> str:
    while True:
        stripped = text.strip().rstrip(".")
        for opening, closing in _PAIRS:
            inner = stripped[len(opening) : len(stripped) - len(closing)]
            if (
                len(stripped) > len(opening) + len(closing)
                and stripped.startswith(opening)
                and stripped.endswith(closing)
                and opening not in inner
            ):
                stripped = inner
                break
        else:
            return text.strip()
        text = stripped


@dataclass(frozen=True, slots=True)
class Split:
    """What a text falls into: `pieces`, and between them the `separators` (one fewer)."""

    pieces: tuple[str, ...]
    separators: tuple[str, ...]


def split(text: str, separates: Callable[[str], bool]) -> Split:
    """`text` cut at the tokens outside brackets that `separates`.

    >>> split("(1, 2), 3", lambda token: token == ",").pieces
    ('(1, 2)', '3')
    """
    pieces: list[str] = []
    separators: list[str] = []
    depth = start = 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token in _OPENING or token.startswith("\\begin"):
            depth += 1
        elif token in _CLOSING or token.startswith("\\end"):
            depth -= 1
        elif depth == 0 and separates(token):
            pieces.append(text[start : match.start()].strip())
            separators.append(token)
            start = match.end()
    pieces.append(text[start:].strip())
    return Split(tuple(pieces), tuple(separators))


@dataclass(frozen=True, slots=True)
class Enclosed:
    opening: str
    inner: str
    closing: str


def enclosed(text: str) -> Enclosed | None:
    """What a pair of brackets around the whole of `text` holds; None without such a pair.

    The two may differ, as in `[0, 1)`.
    """
    tokens = list(_TOKEN.finditer(text))
    if len(tokens) < 2 or tokens[0].group() not in _OPENING or tokens[-1].group() not in _CLOSING:
        return None
    depth = 0
    for match in tokens[:-1]:
        depth += (match.group() in _OPENING) - (match.group() in _CLOSING)
        if depth == 0:
            return None
    first, last = tokens[0], tokens[-1]
    return Enclosed(first.group(), text[first.end() : last.start()].strip(), last.group())


def without_thousands(text: str) -> str:
    """`text` without the commas that group digits outside brackets.

    >>> without_thousands("1,234,567 km, 5")
    '1234567 km, 5'
    """
    grouped = {
        position
        for match in _THOUSANDS.finditer(text)
        for position in range(match.start(), match.end())
        if text[position] == ","
    }
    depth, kept = 0, list[str]()
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth or position not in grouped:
            kept.append(character)
    return "".join(kept)


def mentions(text: str, part: str) -> bool:
    """Whether `part` stands in `text`, whatever the spaces and delimiters of the two.

    >>> mentions("What is $2 + 3$?", "2+3"), mentions("What is 12 + 3?", "2+3")
    (True, False)
    """
    whole, wanted = (_DECORATION.sub("", t.translate(_CHARACTERS)) for t in (text, part))
    wanted = wanted.rstrip(".")
    position = whole.find(wanted) if wanted else -1
    while position >= 0:
        end = position + len(wanted)
        before, after = whole[position - 1 : position], whole[end : end + 1]
        joined = (before.isalnum() and wanted[0].isdigit() and before.isdigit()) or before == "."
        goes_on = after.isdigit() and wanted[-1].isdigit()
        if not joined and not goes_on:
            return True
        position = whole.find(wanted, position + 1)
    return False
