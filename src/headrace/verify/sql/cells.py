"""Values of databases on their way from the child to the comparison: typed, exact, JSON.

A cell is `[tag, value]`: what a database calls equal and what Python calls equal differ (1 and
TRUE, a text and a date), so the type always travels with the value. May be known by the engines
and the comparison.
"""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

from headrace.types import Json

__all__ = ["NUMBERS", "Cell", "decoded", "encoded", "readable"]

Cell = tuple[str, Any]
"""A tag and a hashable value: numbers as Fraction or "nan", "inf", "-inf"; lists as tuples."""

NUMBERS = frozenset({"int", "float", "decimal"})


def encoded(value: object) -> Json:
    """The wire form of what a database driver returned.

    >>> encoded(1.5), encoded(None), encoded(b"a")
    (['float', '1.5'], ['null', None], ['bytes', '61'])
    """
    for kind, encode in _ENCODERS:
        if isinstance(value, kind):
            return encode(value)
    return ["other", f"{type(value).__name__}: {value}"]


def decoded(wire: Json) -> Cell:
    """The cell of a wire form."""
    tag, value = wire
    if tag == "int":
        return tag, Fraction(value)
    if tag in ("float", "decimal"):
        return tag, value if value in ("nan", "inf", "-inf") else Fraction(value)
    if tag in ("list", "struct"):
        return tag, tuple(decoded(item) for item in value)
    return tag, value


def readable(cell: Cell) -> Json:
    """A cell as it is shown in evidence."""
    tag, value = cell
    if isinstance(value, Fraction):
        return int(value) if tag == "int" else float(value)
    if isinstance(value, tuple):
        return [readable(item) for item in value]
    return value if tag in ("null", "bool", "text") else f"{tag} {value}"


def _float(value: float) -> Json:
    return ["float", repr(value) if math.isfinite(value) else str(value)]


def _decimal(value: Decimal) -> Json:
    return ["decimal", str(value) if value.is_finite() else str(float(value))]


_ENCODERS: tuple[tuple[type[Any], Any], ...] = (
    (type(None), lambda v: ["null", None]),
    (bool, lambda v: ["bool", v]),
    (int, lambda v: ["int", str(v)]),
    (float, _float),
    (str, lambda v: ["text", v]),
    (bytes, lambda v: ["bytes", v.hex()]),
    (Decimal, _decimal),
    (datetime.datetime, lambda v: ["timestamp", v.isoformat()]),
    (datetime.date, lambda v: ["date", v.isoformat()]),
    (datetime.time, lambda v: ["time", v.isoformat()]),
    (datetime.timedelta, lambda v: ["interval", str(v.total_seconds())]),
    (list, lambda v: ["list", [encoded(item) for item in v]]),
    (tuple, lambda v: ["list", [encoded(item) for item in v]]),
    (dict, lambda v: ["struct", [encoded([str(k), item]) for k, item in v.items()]]),
)
"""In this order: bool is an int, and datetime a date, to `isinstance`."""
