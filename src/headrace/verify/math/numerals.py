r"""Numbers that are written out: their exact value, without any algebra.

A numeral is a result: an integer, a decimal, a fraction of integers, a mixed number, a
repeating decimal, scientific notation. `2 + 3`, `3!` and `\sqrt{4}` are expressions, not
numerals. Known by the whole package; only ASCII digits are digits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

__all__ = ["MAX_EXPONENT", "Numeral", "read_numeral"]

MAX_EXPONENT = 4000
"""Larger powers of ten are left to algebra, in the child."""

_NATURAL = r"[0-9]+(?:[ ][0-9]{3})*"
_SIGN = r"(?P<sign>[-+]?)\s*"
_PLAIN = re.compile(rf"{_SIGN}(?P<whole>[0-9]{{1,3}}(?:[ ][0-9]{{3}})+|[0-9]*)(?P<rest>\.[0-9]*)?")
_REPEATING = re.compile(
    rf"{_SIGN}(?P<whole>[0-9]*)\.(?P<fixed>[0-9]*)\\overline\{{(?P<cycle>[0-9]+)\}}"
)
_FRACTION = re.compile(
    rf"{_SIGN}(?:\\frac\{{\s*(?P<a>-?[0-9]+)\s*\}}\{{\s*(?P<b>-?[0-9]+)\s*\}}"
    r"|(?P<c>[0-9]+)\s*/\s*(?P<d>[0-9]+))"
)
_MIXED = re.compile(
    rf"{_SIGN}(?P<whole>[0-9]+)\s*(?:\\frac\{{\s*(?P<a>[0-9]+)\s*\}}\{{\s*(?P<b>[0-9]+)\s*\}}"
    r"|(?:(?<=[0-9])\s+)(?P<c>[0-9]+)\s*/\s*(?P<d>[0-9]+))"
)
_POWER = (
    r"10\s*\^\s*(?:\{\s*(?P<k1>[-+]?[0-9]+)\s*\}|(?P<k2>[-+]?[0-9]+)|\(\s*(?P<k3>[-+]?[0-9]+)\s*\))"
)
_SCIENTIFIC = re.compile(
    rf"{_SIGN}(?:(?P<mantissa>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*"
    rf"(?:(?:\\times|\\cdot|\*|x)\s*{_POWER}|[eE](?P<k4>[-+]?[0-9]+))"
    r"|10\s*\^\s*(?:\{\s*(?P<k5>[-+]?[0-9]+)\s*\}|(?P<k6>[0-9]+)))"
)


@dataclass(frozen=True, slots=True)
class Numeral:
    """An exact `value`; `worked_out` is False for a quotient that is an integer, as `10/2`.

    `reduced` is False for a fraction that can be cancelled.
    """

    value: Fraction
    worked_out: bool = True
    reduced: bool = True


@lru_cache(maxsize=1024)
def read_numeral(text: str) -> Numeral | None:
    r"""The number that the whole of `text` (as `clean` leaves it) writes out, or None.

    >>> read_numeral("-1 1/2").value, read_numeral(r"0.1\overline{6}").value
    (Fraction(-3, 2), Fraction(1, 6))
    >>> read_numeral("2 + 3") is None
    True
    """
    text = _unbraced(text.strip())
    for reader in (_plain, _fraction, _mixed, _scientific, _repeating):
        found = reader(text)
        if found is not None:
            return found
    return None


def _unbraced(text: str) -> str:
    while len(text) > 1 and (text[0], text[-1]) in {("{", "}"), ("(", ")")}:
        inner = text[1:-1].strip()
        if any(bracket in inner for bracket in "{}()"):
            return text
        text = inner
    return text


def _signed(match: re.Match[str], value: Fraction) -> Fraction:
    return -value if match["sign"] == "-" else value


def _plain(text: str) -> Numeral | None:
    match = _PLAIN.fullmatch(text)
    if match is None or not any("0" <= c <= "9" for c in text):
        return None
    whole, rest = match["whole"].replace(" ", ""), (match["rest"] or ".")[1:]
    return Numeral(_signed(match, Fraction(int((whole + rest) or "0"), 10 ** len(rest))))


def _quotient(match: re.Match[str]) -> tuple[int, int]:
    upper, lower = (match["a"], match["b"]) if match["a"] else (match["c"], match["d"])
    return int(upper), int(lower)


def _fraction(text: str) -> Numeral | None:
    match = _FRACTION.fullmatch(text)
    if match is None:
        return None
    upper, lower = _quotient(match)
    if lower == 0:
        return None
    value = Fraction(upper, lower)
    return Numeral(
        _signed(match, value),
        worked_out=value.denominator != 1,
        reduced=value.denominator == abs(lower),
    )


def _mixed(text: str) -> Numeral | None:
    match = _MIXED.fullmatch(text)
    if match is None:
        return None
    upper, lower = _quotient(match)
    if not 0 < upper < lower:
        return None
    return Numeral(_signed(match, int(match["whole"]) + Fraction(upper, lower)))


def _scientific(text: str) -> Numeral | None:
    match = _SCIENTIFIC.fullmatch(text)
    if match is None:
        return None
    power = next(match[k] for k in ("k1", "k2", "k3", "k4", "k5", "k6") if match[k])
    if len(power) > 6 or abs(int(power)) > MAX_EXPONENT:
        return None
    return Numeral(_signed(match, Fraction(match["mantissa"] or "1") * Fraction(10) ** int(power)))


def _repeating(text: str) -> Numeral | None:
    match = _REPEATING.fullmatch(text)
    if match is None:
        return None
    fixed, cycle = match["fixed"], match["cycle"]
    start = Fraction(int((match["whole"] + fixed) or "0"), 10 ** len(fixed))
    tail = Fraction(int(cycle), (10 ** len(cycle) - 1) * 10 ** len(fixed))
    return Numeral(_signed(match, start + tail))
