"""Reading one number as people write it: signs, separators, scale words, currencies, units.

Pure functions over strings, exact in decimal. May be known by verifiers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["Quantity", "convert", "read_quantity", "unit_name"]

_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+", re.ASCII)
_EXPONENT = re.compile(r"(?:[eE]|\s?[x×*]\s?10\s?\^\s?)([+-]?\d{1,2})(?!\w|\.\d)", re.ASCII)
_WORD = re.compile(r"[A-Za-z]+|[%‰°€$£¥₹]")
_SEVERAL = re.compile(r"\n|\b(?:or|either|alternatively)\b", re.IGNORECASE)
_PHRASE = re.compile(r"[A-Za-z]+\s[A-Za-z]+")
_RATIO = re.compile(r"([A-Za-z%€$£¥₹]+)\s?/\s?([A-Za-z]+)")
_SIGNS = str.maketrans({"−": "-", "–": "-", "﹣": "-", "－": "-", "\xa0": " ", "\u202f": " "})
_MAX_DIGITS = 60

_SCALES = {
    "thousand": 3,
    "million": 6,
    "millions": 6,
    "mio": 6,
    "mn": 6,
    "mln": 6,
    "billion": 9,
    "billions": 9,
    "bn": 9,
    "trillion": 12,
    "trillions": 12,
    "tn": 12,
}
_LETTERS = {"k": 3, "K": 3, "M": 6, "B": 9, "T": 12}
_MONEY_LETTERS = {**_LETTERS, "m": 6, "b": 9, "t": 12}

_CURRENCIES = {
    "USD": ("$", "us$", "usd", "dollar", "dollars"),
    "EUR": ("€", "eur", "euro", "euros"),
    "GBP": ("£", "gbp", "pound sterling", "pounds sterling"),
    "JPY": ("¥", "jpy", "yen"),
    "CHF": ("chf", "francs", "franc"),
    "INR": ("₹", "inr", "rupee", "rupees"),
}
_UNITS: dict[str, tuple[str, Fraction, tuple[str, ...]]] = {
    "%": ("share", Fraction(1, 100), ("%", "percent", "per cent", "pct")),
    "bp": ("share", Fraction(1, 10_000), ("bp", "bps", "basis point", "basis points")),
    "pp": ("points", Fraction(1), ("pp", "percentage point", "percentage points")),
    "mm": ("length", Fraction(1, 1000), ("mm", "millimetre", "millimeter")),
    "cm": ("length", Fraction(1, 100), ("cm", "centimetre", "centimeter")),
    "m": ("length", Fraction(1), ("m", "metre", "meter")),
    "km": ("length", Fraction(1000), ("km", "kilometre", "kilometer")),
    "in": ("length", Fraction(254, 10_000), ("inch", "inches")),
    "ft": ("length", Fraction(3048, 10_000), ("ft", "foot", "feet")),
    "mi": ("length", Fraction(1_609_344, 1000), ("mi", "mile")),
    "mg": ("mass", Fraction(1, 1000), ("mg", "milligram")),
    "g": ("mass", Fraction(1), ("g", "gram")),
    "kg": ("mass", Fraction(1000), ("kg", "kilogram")),
    "t": ("mass", Fraction(1_000_000), ("t", "tonne", "metric ton")),
    "oz": ("mass", Fraction(28_349_523_125, 1_000_000_000), ("oz", "ounce")),
    "lb": ("mass", Fraction(45_359_237, 100_000), ("lb", "lbs")),
    "ml": ("volume", Fraction(1, 1000), ("ml", "millilitre", "milliliter")),
    "l": ("volume", Fraction(1), ("l", "litre", "liter")),
    "ms": ("time", Fraction(1, 1000), ("ms", "millisecond")),
    "s": ("time", Fraction(1), ("s", "sec", "second")),
    "min": ("time", Fraction(60), ("min", "minute")),
    "h": ("time", Fraction(3600), ("h", "hr", "hour")),
    "d": ("time", Fraction(86_400), ("day",)),
}
_NAMES = (
    {spelling: name for name, spellings in _CURRENCIES.items() for spelling in spellings}
    | {spelling: name for name, (_, _, spellings) in _UNITS.items() for spelling in spellings}
    | {
        f"{spelling}s": name
        for name, (_, _, spellings) in _UNITS.items()
        for spelling in spellings
        if len(spelling) > 2
    }
)
_SYMBOLS = ("us$", "$", "€", "£", "¥", "₹", "usd", "eur", "gbp", "jpy", "chf", "inr")
_MONEY = frozenset(spelling for spellings in _CURRENCIES.values() for spelling in spellings)


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number, scale words applied, and its unit: a name of the tables here, another word as
    it is written in lower case, or "" without one."""

    value: Fraction
    unit: str


@dataclass(frozen=True, slots=True)
class _Front:
    """What stands directly before a number."""

    currency: str
    sign: str
    parenthesis: bool
    words: str


def read_quantity(text: str, *, decimal_comma: bool = False) -> Quantity | None:
    """The one number in `text`; None if there is none, several, one that is part of a word, or if
    something else is offered beside it (with "or", or on another line).

    `$1.2 million`, `-3.5%`, `1,234 kg`, `2e3`, `USD 4.1m`; words may stand around it. A whole
    answer in parentheses is negative, as in accounts: `(5)`, `$(4.1) million`. k, M, B and T
    scale; a small m, b or t does so with a currency only (5 m are metres, 5 t are tonnes).

    >>> read_quantity("about $1.2 million")
    Quantity(value=Fraction(1200000, 1), unit='USD')
    >>> read_quantity("3 or 4") is None
    True
    """
    text = text.translate(_SIGNS).strip().rstrip(".")
    if decimal_comma:
        text = text.translate({ord(","): ".", ord("."): ","})
    found = _NUMBER.search(text)
    if found is None or len(found.group()) > _MAX_DIGITS:
        return None
    value = Fraction(found.group().replace(",", ""))
    front, after = _front(text[: found.start()]), text[found.end() :]
    if exponent := _EXPONENT.match(after):
        value *= Fraction(10) ** int(exponent[1])
        after = after[exponent.end() :]
    if front is None or re.match(r"[.,:/-]\w", after):
        return None
    around = front.words + after
    if any(letter.isdigit() for letter in around) or _SEVERAL.search(around):
        return None
    if front.parenthesis:
        inside, closed, outside = after.partition(")")
        if not closed or front.words or front.sign:
            return None
        after = f"{inside} {outside}"
    scale, unit = _back(after.strip(), money=bool(front.currency))
    if front.currency and unit in (*_CURRENCIES, *_UNITS) and unit != front.currency:
        return None
    negative = front.parenthesis or front.sign == "-"
    value *= Fraction(10) ** scale * (-1 if negative else 1)
    return Quantity(value, front.currency or unit)


def unit_name(unit: str) -> str:
    """The name by which a spelling of a unit is known here; else itself in lower case."""
    spelling = " ".join(unit.lower().split())
    return _NAMES.get(spelling, spelling)


def convert(quantity: Quantity, unit: str) -> Fraction | None:
    """The value in `unit` (a spelling); None if the quantity is of another kind.

    A unit that is not in the tables must be the same word, in singular or plural. Where no unit
    is asked for, a word that is no unit here is taken for what was counted.

    >>> convert(Quantity(Fraction(5), "km"), "metres")
    Fraction(5000, 1)
    """
    wanted = unit_name(unit)
    if quantity.unit == wanted:
        return quantity.value
    if quantity.unit in _UNITS and wanted in _UNITS:
        dimension, factor, _ = _UNITS[quantity.unit]
        other, divisor, _ = _UNITS[wanted]
        return quantity.value * factor / divisor if dimension == other else None
    known = {*_UNITS, *_CURRENCIES}
    if quantity.unit in known or wanted in known or "/" in quantity.unit:
        return None
    counted = quantity.unit.removesuffix("s") == wanted.removesuffix("s")
    return quantity.value if counted or not wanted else None


def _front(before: str) -> _Front | None:
    """Peels sign, currency and parenthesis off the end; None if the number belongs to a word."""
    currency = sign = ""
    parenthesis = False
    rest = before
    while True:
        rest = rest.rstrip()
        symbol = next((s for s in _SYMBOLS if rest.lower().endswith(s)), "")
        ahead = rest[: len(rest) - len(symbol)]
        if symbol and not currency and not (symbol.isalpha() and ahead[-1:].isalnum()):
            currency, rest = _NAMES[symbol], ahead
        elif rest.endswith("(") and not parenthesis:
            parenthesis, rest = True, rest[:-1]
        elif rest.endswith(("-", "+")) and not sign:
            sign, rest = rest[-1], rest[:-1]
            if rest[-1:].isalnum():
                return None  # COVID-19
        else:
            break
    adjacent = rest[-1:] if rest == before else ""
    if adjacent.isalnum() or rest.endswith(("-", "/", "_", "^")) or adjacent in (".", ",", ":"):
        return None
    return _Front(currency, sign, parenthesis, rest)


def _back(after: str, *, money: bool) -> tuple[int, str]:
    """The power of ten of a scale word, and the unit, that follow a number."""
    money = money or any(word.lower() in _MONEY for word in _WORD.findall(after))
    letters = _MONEY_LETTERS if money else _LETTERS
    scale = 0
    word = _WORD.match(after)
    if word and (word.group().lower() in _SCALES or word.group() in letters):
        spelled = word.group()
        scale = letters.get(spelled) or _SCALES[spelled.lower()]
        after = after[word.end() :].strip()
        word = _WORD.match(after)
    if word is None:
        return scale, ""
    if ratio := _RATIO.match(after):
        return scale, f"{unit_name(ratio[1])}/{unit_name(ratio[2])}"
    phrase = _PHRASE.match(after)
    if phrase and " ".join(phrase.group().lower().split()) in _NAMES:
        return scale, unit_name(phrase.group())
    return scale, unit_name(word.group())
