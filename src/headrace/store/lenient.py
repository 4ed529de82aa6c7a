"""Reading values that may be anything: event files and evaluations come from disk.

What is not of the expected kind is None or empty, never an exception and never a 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from headrace.types import Json

__all__ = ["integer", "mapping", "number", "share", "text"]

_HUGE = 1e300
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
