r"""Equality of expressions, with sympy: exact where it can be, to high precision where not.

LaTeX is parsed by the parser of math-verify (latex2sympy2_extended), after everything that it
would read in another sense has been rewritten: decimals become exact fractions, `2(3)` and
`2\frac{3}{2}` are products, letters keep their case, units never vanish. Two expressions are
equal if their difference cancels, or if both agree to so many digits that no number written
in them could hide the difference. Lives in the worker process only: any of this may hang.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy

from headrace.verify.math.numerals import read_numeral
from headrace.verify.math.reading import INFINITE, Group, Leaf, Node, Span, Union, Unreadable
from headrace.verify.math.reference import Tolerance

__all__ = ["SympyAlgebra", "TooExpensive", "parse", "real_set"]


class TooExpensive(Exception):
    """An expression whose value would not fit anywhere."""


_MOST_BITS, _MOST_FACTORIAL, _MOST_TERMS, _MOST_BRACKETS = 2_000_000, 100_000, 200, 100

_NATURAL = r"(?<![_^0-9.A-Za-z])([0-9]+)"
_FUNCTIONS = (
    "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp|max|min|gcd|lcm"
)
_PREPARED = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (rf"(?<![\\A-Za-z])({_FUNCTIONS})(?![A-Za-z])", r"\\\1 "),
        (r"\\operatorname\{([A-Za-z]+)\}", r"\\\1 "),
        (r"\\text\{([^{}]*)\}", r"\1"),
        (r"\\(?:cdot|times)(?![A-Za-z])", r"\\cdot "),
        (r"\*", r"\\cdot "),
    )
)
_MIXED = re.compile(rf"{_NATURAL}\s*\\frac\{{\s*([0-9]+)\s*\}}\{{\s*([0-9]+)\s*\}}")
_TOUCHING = re.compile(
    rf"(?:{_NATURAL}|(\\frac\{{-?[0-9]+\}}\{{-?[0-9]+\}})|(\)))\s*(?=\(|\\frac(?![A-Za-z]))"
)
_DECIMAL = re.compile(r"([0-9]*)\.([0-9]+)|([0-9]+)\.(?![0-9])")
_SPACED = re.compile(r"(?<![_^0-9.])[0-9.]+\s+[0-9]")
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_EXPONENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)[eE]([-+]?[0-9]{1,4})(?![0-9])")
_UNEVALUATED = (sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit, sympy.Derivative)
_SAMPLES = (
    Fraction(7, 3),
    Fraction(-11, 5),
    Fraction(17, 13),
    Fraction(-5, 19),
    Fraction(29, 7),
    Fraction(3, 23),
)
_DIGITS, _MOST_DIGITS, _SPARE = 60, 12_000, 20


@lru_cache(maxsize=256)
def parse(text: str) -> Any:
    """The sympy expression or matrix that `text` writes, evaluated; Unreadable if none."""
    if (number := read_numeral(text)) is not None:
        return sympy.Rational(number.value.numerator, number.value.denominator)
    if text in INFINITE:
        return INFINITE[text] * sympy.oo
    found = _unevaluated(text)
    if isinstance(found, sympy.Expr):
        _size(found)
    return _evaluated(found)


@lru_cache(maxsize=256)
def _unevaluated(text: str) -> Any:
    prepared = _prepared(text)
    try:
        return latex2sympy(
            prepared,
            normalization_config=None,
            conversion_config=ConversionConfig(lowercase_symbols=False),
        )
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # the library raises bare Exceptions
        raise Unreadable(f"{type(error).__name__}: {str(error)[:200]}") from error


def _imaginary(found: Any) -> dict[Any, Any]:
    """A free `i` is the imaginary unit."""
    return {symbol: sympy.I for symbol in found.free_symbols if symbol.name == "i"}


def _size(found: Any) -> float:
    """About the bits of the largest number that evaluating `found` makes; bounds them."""
    if isinstance(found, sympy.Rational):
        return max(abs(found.p).bit_length(), found.q.bit_length())
    sizes = [_size(part) for part in found.args]
    bits = sum(sizes) if isinstance(found, sympy.Mul) else max(sizes, default=1.0)
    if isinstance(found, sympy.factorial):
        if sizes[0] > 40 or (not found.free_symbols and 2 ** sizes[0] > 2 * _MOST_FACTORIAL):
            raise TooExpensive("a factorial of a huge number")
        return 2 ** sizes[0] * sizes[0]
    if isinstance(found, sympy.Pow) and not found.exp.free_symbols:
        if sizes[1] > 40:
            raise TooExpensive("a power with a huge exponent")
        power = abs(_upper(found.exp, sizes[1]))
        bits = sizes[0] * max(power, 1)
        if found.base.free_symbols and found.base.is_Add and power > _MOST_TERMS:
            raise TooExpensive("a sum to a huge power")
    if bits > _MOST_BITS:
        raise TooExpensive(f"a number of about {bits:.0f} bits")
    return bits


def _upper(exponent: Any, bits: float) -> float:
    return float(exponent) if exponent.is_Rational else 2.0**bits


def _evaluated(found: Any) -> Any:
    if not isinstance(found, (sympy.Expr, sympy.MatrixBase)):
        raise Unreadable(f"a {type(found).__name__}, not an expression")
    value = found.xreplace(_imaginary(found)).doit()
    if not isinstance(value, (sympy.Expr, sympy.MatrixBase)):
        raise Unreadable(f"a {type(value).__name__}, not an expression")
    if value.has(sympy.nan, sympy.zoo):
        raise Unreadable("not a number")
    return value


def _prepared(text: str) -> str:
    """`text` in words that latex2sympy reads as a mathematician would."""
    text = _THOUSANDS.sub(lambda m: m.group().replace(",", ""), _roots(text))
    text = _EXPONENT.sub(r"(\1 \\cdot 10^{\2})", text)
    for pattern, replacement in _PREPARED:
        text = pattern.sub(replacement, text)
    if any(text.count(bracket) > _MOST_BRACKETS for bracket in "([{"):
        raise Unreadable("too many brackets")
    if _SPACED.search(text):
        raise Unreadable("two numbers without a sign between them")
    text = _MIXED.sub(_mixed, text)
    text = _DECIMAL.sub(_decimal, text)
    return _TOUCHING.sub(lambda m: f"{m.group().rstrip()} \\cdot ", text).strip()


def _roots(text: str) -> str:
    """Plain `sqrt(...)` and `^(...)` with their brackets turned to braces."""
    text = re.sub(r"(?<![\\A-Za-z])sqrt", r"\\sqrt", text)
    position = 0
    while match := re.compile(r"(?:\\sqrt|\^)\s*\(").search(text, position):
        start, depth = match.end() - 1, 0
        for end in range(start, len(text)):
            depth += (text[end] == "(") - (text[end] == ")")
            if depth == 0:
                text = f"{text[:start]}{{{text[start + 1 : end]}}}{text[end + 1 :]}"
                break
        position = match.end()
    return text


def _mixed(match: re.Match[str]) -> str:
    whole, upper, lower = match.groups()
    sign = "+" if 0 < int(upper) < int(lower) else "\\cdot "
    return f"({whole}{sign}\\frac{{{upper}}}{{{lower}}})"


def _decimal(match: re.Match[str]) -> str:
    if match[3]:
        return match[3]
    return f"(\\frac{{{int(match[1] + match[2])}}}{{{10 ** len(match[2])}}})"


class SympyAlgebra:
    """See `compare.Algebra`. `notes` afterwards say how equality was found."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def same(
        self,
        gold: str,
        said: str,
        *,
        factor: Fraction,
        tolerance: Tolerance | None,
        irrational: bool,
        final: bool,
    ) -> bool:
        """gold = said * factor, exactly or within `tolerance`."""
        expected = parse(gold)
        if final and _open_work(said) and not _open_work(gold):
            self.notes.append("not worked out")
            return False
        value = parse(said) * sympy.Rational(factor.numerator, factor.denominator)
        if irrational and value.is_rational is not False:
            self.notes.append("not worked out")
            return False
        if tolerance is not None and _within(expected, value, tolerance):
            return True
        return self._equal(expected, value)

    def same_relation(self, gold: Sequence[str], said: Sequence[str]) -> bool:
        """f = 0 and g = 0 are the same equation if g/f is a number other than 0.

        For an inequality that number must be positive, or negative and the sign turned round.
        """
        (first, sign), (second, other) = (_difference(sides) for sides in (gold, said))
        if 0 in (first, second) or first.free_symbols != second.free_symbols:
            return False
        ratio = sympy.cancel(second / first)
        if ratio.free_symbols or not ratio.is_real or ratio.is_zero is not False:
            return False
        if sign == other and sign in {"=", "\\ne"}:
            return True
        turned = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}
        return other == sign if ratio.is_positive else other == turned.get(sign)

    def same_region(self, gold: Node, said: Node) -> bool:
        """Equality of the two as sets of real numbers."""
        first, second = real_set(gold), real_set(said)
        return bool(first == second or (first.symmetric_difference(second)).is_empty)

    def _equal(self, gold: Any, said: Any) -> bool:
        if isinstance(gold, sympy.MatrixBase) or isinstance(said, sympy.MatrixBase):
            return (
                isinstance(gold, sympy.MatrixBase)
                and isinstance(said, sympy.MatrixBase)
                and gold.shape == said.shape
                and all(self._equal(g, s) for g, s in zip(gold.flat(), said.flat(), strict=True))
            )
        if gold == said:
            return True
        if gold.is_infinite or said.is_infinite or (gold.is_Rational and said.is_Rational):
            return False
        difference = sympy.expand(gold - said)
        if difference.is_Rational:
            return bool(difference == 0)
        return self._agree(gold, said, difference)

    def _agree(self, gold: Any, said: Any, difference: Any) -> bool:
        """Refutes by numbers first, which is quick; then believes numbers, then simplification."""
        digits = 2 * _longest(gold, said) + _DIGITS
        symbols = sorted((gold.free_symbols | said.free_symbols), key=str)
        if digits <= _MOST_DIGITS:
            points = [_point(symbols, shift) for shift in range(len(_SAMPLES) if symbols else 1)]
            found = [_alike(gold.subs(at), said.subs(at), digits) for at in points]
            if False in found:
                return False
            if found.count(True) >= (3 if symbols else 1):
                self.notes.append(f"equal to {digits} digits")
                return True
        return bool(sympy.simplify(difference) == 0)


def _open_work(text: str) -> bool:
    """Whether an integral, a sum or a limit was left standing in `text`."""
    if read_numeral(text) is not None or text in INFINITE:
        return False
    found = _unevaluated(text)
    return bool(isinstance(found, (sympy.Basic, sympy.MatrixBase)) and found.has(*_UNEVALUATED))


def _point(symbols: Sequence[Any], shift: int) -> Mapping[Any, Any]:
    """Values for the symbols: different ones, and others for each shift."""
    values = [_SAMPLES[(index + shift) % len(_SAMPLES)] for index in range(len(symbols))]
    laps = [index // len(_SAMPLES) for index in range(len(symbols))]
    return {
        symbol: sympy.Rational(value.numerator, value.denominator) + lap
        for symbol, value, lap in zip(symbols, values, laps, strict=True)
    }


def _longest(*expressions: Any) -> int:
    """Digits of the longest number written in them: what may hide a difference."""
    numbers = {atom for e in expressions for atom in e.atoms(sympy.Rational)}
    bits = [max(abs(n.p).bit_length(), n.q.bit_length()) for n in numbers]
    return int(max(bits, default=0) * 0.302)


def _alike(gold: Any, said: Any, digits: int) -> bool | None:
    """Whether both are the same number to `digits` digits; None where that cannot be said."""
    first, second = (value.evalf(digits, maxn=3 * digits) for value in (gold, said))
    if not all(value.is_number and value.is_finite for value in (first, second)):
        return None
    if any(value.has(sympy.nan, sympy.zoo, sympy.oo) for value in (first, second)):
        return None
    size = max(abs(first).evalf(30), abs(second).evalf(30))
    if size < sympy.Float(10) ** -(digits // 2):
        return None
    return bool(abs(first - second).evalf(30) <= size * sympy.Float(10) ** (_SPARE - digits))


def _within(gold: Any, said: Any, tolerance: Tolerance) -> bool:
    if isinstance(gold, sympy.MatrixBase) or isinstance(said, sympy.MatrixBase):
        return False
    if gold.free_symbols or said.free_symbols:
        return False
    distance, size = abs(gold - said).evalf(50), abs(gold).evalf(50)
    if not (distance.is_Float or distance.is_Rational) or not size.is_finite:
        return False
    bounds = (tolerance.absolute, tolerance.relative)
    absolute, relative = (sympy.Rational(b.numerator, b.denominator) for b in bounds)
    return bool(distance <= max(absolute, relative * size))


def _difference(sides: Sequence[str]) -> tuple[Any, str]:
    left, sign, right = sides
    return sympy.expand(parse(left) - parse(right)), sign


def real_set(node: Node) -> Any:
    """The sympy set that intervals, unions and sets of numbers make; Unreadable if none."""
    match node:
        case Span(low=Leaf(text=low), high=Leaf(text=high)):
            ends = (parse(low), parse(high))
            if not all(end.is_extended_real for end in ends):
                raise Unreadable("an interval between things that are not real numbers")
            return sympy.Interval(*ends, node.low_open, node.high_open)
        case Union(parts=parts):
            return sympy.Union(*(real_set(part) for part in parts))
        case Group(kind="set", items=items):
            return sympy.FiniteSet(*(parse(i.text) for i in items if isinstance(i, Leaf)))
        case _:
            raise Unreadable("not a set of real numbers")
