"""Whether two results of queries are the same: bags of rows, up to order, ties and rounding.

A pure function of two tables. May be known by the verifier; knows no database.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from headrace.verify.sql.cells import NUMBERS, Cell, readable

__all__ = ["Difference", "Rules", "Table", "difference", "tied"]

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Named columns and rows, in the order in which they came."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """When two cells are the same; see `SqlSpec` for the meaning of each."""

    names: bool = False
    strict: bool = False
    relative: float = 1e-9
    absolute: float = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Why two tables differ: a reason, and some rows that are missing or too many."""

    reason: str
    missing: tuple[object, ...] = ()
    extra: tuple[object, ...] = ()


def difference(
    found: Table, expected: Table, rules: Rules, groups: Sequence[int] | None = None
) -> Difference | None:
    """What tells `found` from `expected`; None if nothing does.

    Rows are compared as a bag. `groups` are the sizes of consecutive runs of rows of `expected`
    whose order among themselves is free, while the runs must follow each other as they do.

    >>> one = Table(columns=("a",), rows=((("int", Fraction(1)),),))
    >>> real = Table(columns=("b",), rows=((("float", Fraction(1)),),))
    >>> difference(real, one, Rules()) is None
    True
    >>> difference(Table(columns=("a",), rows=one.rows * 2), one, Rules()).reason
    '2 rows instead of 1'
    """
    if len(found.columns) != len(expected.columns):
        return Difference(reason=f"{len(found.columns)} columns instead of {len(expected.columns)}")
    if rules.names:
        places = _by_name(found.columns, expected.columns)
        if places is None:
            return Difference(
                reason=f"columns {list(found.columns)} instead of {list(expected.columns)}"
            )
        rows = tuple(tuple(row[place] for place in places) for row in found.rows)
    else:
        rows = found.rows
    scales = [
        _Scale([row[column] for row in expected.rows], rules)
        for column in range(len(expected.columns))
    ]
    got = [tuple(s.key(c) for s, c in zip(scales, row, strict=True)) for row in rows]
    want = [tuple(s.key(c) for s, c in zip(scales, row, strict=True)) for row in expected.rows]
    if len(got) == len(want) and Counter(got) == Counter(want):
        return _disorder(got, want, expected, groups or (len(want),))
    reason = f"{len(got)} rows instead of {len(want)}" if len(got) != len(want) else "other rows"
    return Difference(
        reason=reason,
        missing=_surplus(want, got, expected.rows),
        extra=_surplus(got, want, rows),
    )


def tied(keys: Sequence[tuple[Cell, ...]]) -> tuple[int, ...]:
    """The sizes of the runs of equal keys.

    >>> tied([(("int", 1),), (("int", 1),), (("int", 2),)])
    (2, 1)
    """
    sizes: list[int] = []
    for number, key in enumerate(keys):
        if number and key == keys[number - 1]:
            sizes[-1] += 1
        else:
            sizes.append(1)
    return tuple(sizes)


def _by_name(found: Sequence[str], expected: Sequence[str]) -> list[int] | None:
    names = [name.casefold() for name in found]
    wanted = [name.casefold() for name in expected]
    if sorted(names) != sorted(wanted) or len(set(names)) != len(names):
        return None
    return [names.index(name) for name in wanted]


class _Scale:
    """The numbers that the reference has in a column; another number is the nearest of them if
    it is close enough. Reference numbers that are close to each other are one."""

    def __init__(self, cells: Sequence[Cell], rules: Rules) -> None:
        self._rules = rules
        self._relative, self._absolute = Fraction(rules.relative), Fraction(rules.absolute)
        known: dict[Fraction, bool] = {}
        for tag, value in cells:
            if tag in NUMBERS and isinstance(value, Fraction):
                known[value] = known.get(value, True) and tag == "int"
        self._values = sorted(known)
        self._whole = [known[value] for value in self._values]
        self._marks: list[int] = []
        for place in range(len(self._values)):
            close = place > 0 and self._close(place - 1, self._values[place], self._whole[place])
            self._marks.append(self._marks[-1] if close else place)

    def key(self, cell: Cell) -> Cell:
        """Equal for cells that are the same under the rules."""
        tag, value = cell
        if tag in NUMBERS:
            kind = tag if self._rules.strict else "number"
            return kind, self._snapped(tag, value) if isinstance(value, Fraction) else value
        if tag == "date" and not self._rules.strict:
            return "timestamp", f"{value}T00:00:00"
        return cell

    def _snapped(self, tag: str, value: Fraction) -> tuple[str, int | Fraction]:
        """The mark of the nearest number of the reference, or the number itself."""
        place = bisect.bisect_left(self._values, value)
        near = [p for p in (place - 1, place) if 0 <= p < len(self._values)]
        near.sort(key=lambda p: abs(self._values[p] - value))
        for p in near:
            if self._close(p, value, tag == "int"):
                return "known", self._marks[p]
        return "other", value

    def _close(self, place: int, value: Fraction, whole: bool) -> bool:
        other = self._values[place]
        if value == other or (whole and self._whole[place]):
            return value == other
        most = max(self._absolute, self._relative * max(abs(value), abs(other)))
        return abs(value - other) <= most


def _disorder(
    got: Sequence[tuple[Cell, ...]],
    want: Sequence[tuple[Cell, ...]],
    expected: Table,
    groups: Sequence[int],
) -> Difference | None:
    start = 0
    for size in groups:
        if Counter(got[start : start + size]) != Counter(want[start : start + size]):
            row = [readable(cell) for cell in expected.rows[start]]
            return Difference(reason=f"other order: row {start + 1} should be", missing=(row,))
        start += size
    return None


def _surplus(
    keys: Sequence[tuple[Cell, ...]],
    others: Sequence[tuple[Cell, ...]],
    rows: Sequence[tuple[Cell, ...]],
) -> tuple[object, ...]:
    """Some of the rows whose keys come more often than in `others`."""
    left = Counter(others)
    out: list[object] = []
    for key, row in zip(keys, rows, strict=True):
        left[key] -= 1
        if left[key] < 0 and len(out) < _SHOWN:
            out.append([readable(cell) for cell in row])
    return tuple(out)
