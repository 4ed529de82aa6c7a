"""Reading values that may be anything, and writing numbers for people.

Event files and evaluations come from disk and may be odd: what is not of the expected kind is
None, never an exception and never a 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import cast

from headrace.types import Json

__all__ = [
    "brief",
    "count",
    "fixed",
    "integer",
    "mapping",
    "number",
    "plain",
    "share",
    "signed",
    "sparse",
    "text",
]

_HUGE = 1e300
_MINUS = "\N{MINUS SIGN}"
_NOTHING: Mapping[str, Json] = {}


def number(value: Json, *path: str) -> float | None:
    """The finite number at `path`, or None. Values beyond ±1e300 are no numbers here.

    >>> number({"reward": {"mean": 1}}, "reward", "mean"), number({"reward": True}, "reward")
    (1.0, None)
    """
    found = _at(value, path)
    if type(found) is int and abs(found) <= _HUGE:
        return float(found)
    if type(found) is float and math.isfinite(found) and abs(found) <= _HUGE:
        return 0.0 if abs(found) < 1 / _HUGE else found
    return None


def integer(value: Json, *path: str) -> int | None:
    """The whole number at `path`, or None."""
    found = _at(value, path)
    return found if type(found) is int and abs(found) <= 2**53 else None


def share(value: Json, *path: str) -> float | None:
    """The number in [0, 1] at `path`, or None."""
    found = number(value, *path)
    return found if found is not None and 0.0 <= found <= 1.0 else None


def text(value: Json, *path: str) -> str:
    """The string at `path`, or ""."""
    found = _at(value, path)
    return found if isinstance(found, str) else ""


def mapping(value: Json, *path: str) -> Mapping[str, Json]:
    """The object at `path`, or an empty one."""
    found = _at(value, path)
    return cast("dict[str, Json]", found) if isinstance(found, dict) else _NOTHING


def _at(value: Json, path: tuple[str, ...]) -> Json:
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = cast("Mapping[str, Json]", value).get(key)
    return value


# --- for people ----------------------------------------------------------------------------


def sparse(value: float | None) -> float | int | None:
    """`value` at the precision the page shows: 4 significant digits."""
    if value is None:
        return None
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded


def brief(value: float | None) -> str:
    """A number in 4 significant digits, spelled as the page's script would; a dash for None.

    >>> brief(0.93751), brief(1234567), brief(None), brief(-0.000012), brief(4e-9)
    ('0.9375', '1235000', '–', '−0.000012', '4e−9')
    """
    rounded = sparse(value)
    if rounded is None:
        return "–"
    written = str(rounded)
    if "e" in written:
        mantissa, _, exponent = written.partition("e")
        power = int(exponent)
        small = -7 < power < 0
        written = f"{rounded:.9f}".rstrip("0") if small else f"{mantissa}e{power}"
    return written.replace("-", _MINUS)


def fixed(value: float | None, digits: int = 2) -> str:
    """
    >>> fixed(0.9375), fixed(None)
    ('0.94', '–')
    """
    if value is None:
        return "–"
    return f"{value:.{digits}f}".replace("-", _MINUS) if abs(value) < 1e15 else brief(value)


def signed(value: float | None, digits: int = 2) -> str:
    """
    >>> signed(0.6), signed(-0.25)
    ('+0.60', '−0.25')
    """
    return fixed(value, digits) if value is None or value < 0 else f"+{fixed(value, digits)}"


def count(value: float | None, one: str, many: str | None = None) -> str:
    """
    >>> count(1, "task"), count(1200, "task")
    ('1 task', '1,200 tasks')
    """
    if value is None:
        return f"an unknown number of {many or one + 's'}"
    return f"{value:,.0f} {one if value == 1 else many or one + 's'}"


def plain(value: Json) -> str:
    """Any JSON value as a short text: a string as itself, the rest as JSON.

    >>> plain("4"), plain(4), plain([1, None])
    ('4', '4', '[1,null]')
    """
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    except RecursionError:
        return "(nested too deeply to be shown)"
