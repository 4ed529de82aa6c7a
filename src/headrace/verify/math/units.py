r"""Units behind (or before) a number: which one it is, and how it converts.

A unit is a product of powers of named units, kept in one spelling. Only units of the table
are units: unknown words are left where they stand. Known by `reading` and `compare`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["PERCENT", "Measured", "Unit", "measured", "parse_unit"]

PERCENT = "%"


@dataclass(frozen=True, slots=True)
class _Base:
    dimension: str
    power: int
    factor: Fraction


@dataclass(frozen=True, slots=True)
class Unit:
    """Named units with their powers, sorted by name: km/h is (("h", -1), ("km", 1))."""

    powers: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return "*".join(n if p == 1 else f"{n}^{p}" for n, p in self.powers)

    def ratio(self, other: Unit) -> Fraction | None:
        """How many of `other` one of this is; None where they measure different things.

        >>> parse_unit("cm").ratio(parse_unit("m"))
        Fraction(1, 100)
        """
        mine, yours = self._reduced(), other._reduced()
        return mine[1] / yours[1] if mine[0] == yours[0] else None

    def _reduced(self) -> tuple[dict[str, int], Fraction]:
        dimensions: dict[str, int] = {}
        factor = Fraction(1)
        for name, power in self.powers:
            base = _BASES[name]
            dimensions[base.dimension] = dimensions.get(base.dimension, 0) + base.power * power
            factor *= base.factor**power
        return {d: p for d, p in dimensions.items() if p}, factor


_ROWS = """
length 1 m 1 m meter metre
length 1 km 1000 km kilometer kilometre
length 1 cm 1/100 cm centimeter centimetre
length 1 mm 1/1000 mm millimeter millimetre
length 1 in 127/5000 in inch inches
length 1 ft 381/1250 ft foot feet
length 1 yd 1143/1250 yd yard
length 1 mi 201168/125 mi mile
length 3 L 1/1000 L l liter litre
length 3 mL 1/1000000 mL ml milliliter millilitre cc
length 2 ha 10000 ha hectare
length 2 acre 316160658/78125 acre
length 3 gal 473176473/125000000000 gal gallon
mass 1 kg 1 kg kilogram kilo
mass 1 g 1/1000 g gram
mass 1 mg 1/1000000 mg milligram
mass 1 tonne 1000 tonne
mass 1 lb 45359237/100000000 lb lbs pound
mass 1 oz 45359237/1600000000 oz ounce
time 1 s 1 s sec second
time 1 ms 1/1000 ms millisecond
time 1 min 60 min minute
time 1 h 3600 h hr hrs hour
time 1 day 86400 day
time 1 week 604800 week
month 1 month 1 month
month 1 year 12 year yr
dollar 1 dollar 1 dollar USD usd
dollar 1 cent 1/100 cent
euro 1 euro 1 euro EUR
sterling 1 sterling 1 GBP
yen 1 yen 1 yen JPY
rupee 1 rupee 1 rupee INR
angle 1 degree 1 degree deg
radian 1 rad 1 rad radian
celsius 1 celsius 1 celsius
fahrenheit 1 fahrenheit 1 fahrenheit
kelvin 1 kelvin 1 kelvin
speed 1 mph 1 mph
power 1 W 1 W watt
power 1 kW 1000 kW kilowatt
energy 1 J 1 J joule
energy 1 kJ 1000 kJ kilojoule
force 1 N 1 N newton
tension 1 V 1 V volt
unit 1 unit 1 unit
"""
_BASES: dict[str, _Base] = {}
_ALIASES: dict[str, str] = {}
for _row in _ROWS.strip().splitlines():
    _dimension, _power, _name, _factor, *_names = _row.split()
    _BASES[_name] = _Base(_dimension, int(_power), Fraction(_factor))
    for _alias in _names:
        _ALIASES[_alias] = _name
        if len(_alias) > 2:
            _ALIASES.setdefault(f"{_alias}s", _name)

_CURRENCIES = {
    "\\$": "dollar",
    "$": "dollar",
    "€": "euro",
    "£": "sterling",
    "¥": "yen",
    "₹": "rupee",
}
_PERCENT = re.compile(
    r"(?:\\?%|\\text\{\s*(?:\\?%|percent|per cent)\s*\}|(?<![A-Za-z\\])(?:percent|per cent|pct))$"
)
_DEGREES = re.compile(r"\^\s*\\circ\s*(?:\\text\{\s*(?P<a>[CF])\s*\}|(?P<b>[CF]))?$")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_PIECE = re.compile(
    r"\s*(?P<slash>/|\bper\b)|\s*(?P<dot>\\cdot|\*|·|-)"
    r"|\s*(?P<word>[A-Za-z]+)\s*(?:\^\s*\{?\s*(?P<power>-?[0-9])\s*\}?)?"
)
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_START = re.compile(r"(?<![A-Za-z\\{])[A-Za-z]+")


def parse_unit(text: str) -> Unit | None:
    """The unit that the whole of `text` names, or None.

    >>> str(parse_unit("square feet")), str(parse_unit("km per hour"))
    ('ft^2', 'h^-1*km')
    """
    powers: dict[str, int] = {}
    text, position, side, ahead, last = text.strip(), 0, 1, 1, ""
    while position < len(text):
        match = _PIECE.match(text, position)
        if match is None:
            return None
        position = match.end()
        if match["slash"]:
            side = -1
        elif word := match["word"]:
            if word in _POWERS:
                if word.endswith("ed") and last:
                    powers[last] *= _POWERS[word]
                else:
                    ahead = _POWERS[word]
                continue
            name = _ALIASES.get(word) or _ALIASES.get(word.lower() if len(word) > 2 else word)
            if name is None:
                return None
            powers[name] = powers.get(name, 0) + side * ahead * int(match["power"] or 1)
            ahead, last = 1, name
    return Unit(tuple(sorted((n, p) for n, p in powers.items() if p))) if powers else None


@dataclass(frozen=True, slots=True)
class Measured:
    """A text without its unit: `number`, and the unit or the percent sign that was there."""

    number: str
    unit: Unit | None = None
    percent: bool = False


def measured(text: str, *, loose: bool = False) -> Measured:
    r"""`text` (as `clean` leaves it) parted from its unit.

    A unit of one letter must stand apart from a number written out, so that `5m` stays a
    product; `loose` lifts that where a unit is known to be expected.

    >>> measured(r"5\text{ cm}^2").number
    '5'
    """
    if match := _PERCENT.search(text):
        return Measured(text[: match.start()].strip(), percent=True)
    for sign, name in _CURRENCIES.items():
        bare = text.removeprefix("-").strip()
        if bare.startswith(sign) and len(bare) > len(sign):
            minus = "-" if text.startswith("-") else ""
            return Measured(minus + bare[len(sign) :].strip(), Unit(((name, 1),)))
        if text.endswith(sign) and sign not in {"$", "\\$"} and len(text) > len(sign):
            return Measured(text[: -len(sign)].strip(), Unit(((name, 1),)))
    if match := _DEGREES.search(text):
        scale = {"C": "celsius", "F": "fahrenheit"}.get(match["a"] or match["b"] or "", "degree")
        return Measured(text[: match.start()].strip(), Unit(((scale, 1),)))
    return _named(text, loose) or Measured(text)


def _named(text: str, loose: bool) -> Measured | None:
    """The longest end of `text` that is a unit, behind something that is not."""
    marked = text.find("\\text{")
    if marked > 0:
        unit = parse_unit(_TEXT.sub(r" \1 ", text[marked:]))
        return None if unit is None else Measured(text[:marked].strip(), unit)
    for match in _START.finditer(text):
        unit = parse_unit(text[match.start() :])
        number = text[: match.start()]
        if unit is None or not number.strip() or number.rstrip()[-1] in "+-*/^_=<>(,":
            continue
        apart = number[-1] == " " and number.strip()[-1].isdigit()
        if len(match.group()) > 1 or apart or loose:
            return Measured(number.strip(), unit)
    return None
