"""Writing numbers and values for people."""

from __future__ import annotations

import json

from headrace.types import Json

__all__ = [
    "brief",
    "count",
    "fixed",
    "plain",
    "signed",
    "sparse",
]

_MINUS = "\N{MINUS SIGN}"


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
