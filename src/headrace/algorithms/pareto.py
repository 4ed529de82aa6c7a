"""Several objectives at once: which of several models nobody would trade for another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["front"]


def front(points: Sequence[Mapping[str, float | None]]) -> list[bool]:
    """Which of `points` are on the Pareto front: nothing is better in one way and no worse in any.

    Each point holds a value for each objective, more being better; all have the same objectives.
    One without a value (None: could not be judged) can be compared with nothing: it is not on
    the front and keeps nobody off it. Of equal points all are.

    >>> helpful, safe, dull = (
    ...     {"help": 3.0, "safe": 1.0},
    ...     {"help": 2.0, "safe": 2.0},
    ...     {"help": 1.0, "safe": 2.0},
    ... )
    >>> front([helpful, safe, dull])
    [True, True, False]

    Raises ValueError for points with other objectives than the first.
    """
    names = set(points[0]) if points else set[str]()
    if any(set(point) != names for point in points):
        raise ValueError("points of a front must have the same objectives")
    whole = [_whole(point) for point in points]
    return [
        point is not None and not any(_beats(other, point) for other in whole if other is not None)
        for point in whole
    ]


def _whole(point: Mapping[str, float | None]) -> dict[str, float] | None:
    known = {name: value for name, value in point.items() if value is not None}
    return known if len(known) == len(point) else None


def _beats(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Whether `one` is no worse in anything and better in something."""
    return all(one[name] >= value for name, value in other.items()) and any(
        one[name] > value for name, value in other.items()
    )
