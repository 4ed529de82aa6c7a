"""Tables and numbers that a program wrote, read strictly and compared with tolerances.

A cell is a text, a number, a truth value or missing; what a file spells is read as what the
expected cell is. May be known by verifiers that compare data; knows no task.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.types import Json

__all__ = [
    "BadData",
    "Cell",
    "Rules",
    "Table",
    "difference",
    "equal",
    "number",
    "read_json",
    "read_table",
]

Cell = str | float | int | bool | None
"""NaN counts as missing, as None does."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?", re.ASCII)
_INFINITY = re.compile(r"([+-]?)(inf|infinity)", re.IGNORECASE)
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
_MOST_ROWS, _MOST_MATCHED = 100_000, 200
_LONGEST_INTEGER = 4000


class BadData(ValueError):
    """A file is no table, or no numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How two cells are compared, and two tables.

    Numbers are equal within `absolute` or within `relative` times the expected one; expected
    integers have no tolerance. Missing equals missing unless `missing` is "never". `grouped`
    reads 1,234.5 and `percent` reads 12.5% as 0.125. Without `row_order` rows are compared as a
    bag, without `column_order` columns by name; `extra_columns` may be there and are not looked
    at.
    """

    absolute: float = 1e-9
    relative: float = 1e-6
    missing: Literal["equal", "never"] = "equal"
    grouped: bool = False
    percent: bool = False
    row_order: bool = False
    column_order: bool = False
    extra_columns: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows; every row is as long as `columns`."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Json, ...], ...]


# --- reading -------------------------------------------------------------------------------


def read_table(data: bytes, form: Literal["csv", "json"], *, delimiter: str = ",") -> Table:
    """The table of a file; BadData if it is none.

    CSV has a header line and as many fields in each line (blank lines are skipped); JSON is a
    list of objects with the same keys in any order. Names of columns lose space around them and
    must differ.
    """
    table = _csv(_text(data), delimiter) if form == "csv" else _json(read_json(data))
    if len(set(table.columns)) != len(table.columns):
        raise BadData("two columns of one name")
    if len(table.rows) > _MOST_ROWS:
        raise BadData(f"more than {_MOST_ROWS} rows")
    return table


def read_json(data: bytes) -> Json:
    """A JSON value in which NaN and infinities may be; BadData for duplicate keys and the like."""

    def unique(pairs: list[tuple[str, Json]]) -> Json:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise BadData("a key twice in an object")
        return found

    try:
        return json.loads(_text(data), object_pairs_hook=unique)
    except RecursionError:
        raise BadData("nested too deep") from None
    except BadData:
        raise
    except ValueError as error:
        raise BadData(f"no JSON: {error}") from None


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadData("it is no UTF-8") from None


def _csv(text: str, delimiter: str) -> Table:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        lines = [line for line in reader if line]
    except csv.Error as error:
        raise BadData(f"no CSV: {error}") from None
    if not lines:
        raise BadData("it is empty")
    header = tuple(name.strip() for name in lines[0])
    for number, line in enumerate(lines[1:], 1):
        if len(line) != len(header):
            raise BadData(f"row {number} has {len(line)} fields and not {len(header)}")
    return Table(header, tuple(tuple(line) for line in lines[1:]))


def _json(value: Json) -> Table:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise BadData("a table in JSON is a list of objects")
    if not value:
        return Table((), ())
    columns = tuple(name.strip() for name in value[0])
    for number, row in enumerate(value):
        if row.keys() != value[0].keys():
            raise BadData(f"row {number} has other keys than the first")
    return Table(columns, tuple(tuple(row[name] for name in value[0]) for row in value))


def number(cell: Json, rules: Rules) -> float | int | None:
    """The number that a cell spells; None if it spells none. NaN is none.

    >>> number("1.5e1", Rules()), number("1,500", Rules()), number("12%", Rules(percent=True))
    (15.0, None, 0.12)
    """
    if isinstance(cell, bool):
        return None
    if isinstance(cell, (int, float)):
        return None if isinstance(cell, float) and math.isnan(cell) else cell
    if not isinstance(cell, str) or len(cell) > _LONGEST_INTEGER:
        return None
    text = cell.strip()
    scale = 1.0
    if rules.percent and text.endswith("%"):
        text, scale = text[:-1].rstrip(), 0.01
    if rules.grouped and _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    infinite = _INFINITY.fullmatch(text)
    if infinite:
        return -math.inf if infinite[1] == "-" else math.inf
    if not _NUMBER.fullmatch(text):
        return None
    if scale == 1.0 and text.lstrip("+-").isdecimal():
        return int(text)
    return float(text) * scale


# --- comparing -----------------------------------------------------------------------------


def equal(found: Json, wanted: Cell, rules: Rules) -> bool:
    """Whether a cell is what is wanted.

    >>> equal("0.3333333", 1 / 3, Rules()), equal("3.0", 3, Rules()), equal(True, 1, Rules())
    (True, True, False)
    """
    if _is_missing(wanted):
        return rules.missing == "equal" and _spells_missing(found)
    if isinstance(wanted, bool):
        spelled = found.strip().lower() if isinstance(found, str) else found
        return spelled is wanted or (isinstance(spelled, str) and spelled == str(wanted).lower())
    if isinstance(wanted, str):
        return isinstance(found, str) and found.strip() == wanted.strip()
    value = number(found, rules)
    if value is None or wanted is None:
        return False
    if isinstance(wanted, int) or math.inf in (abs(wanted), abs(value)):
        return value == wanted
    try:
        away = abs(value - wanted)
    except OverflowError:
        return False  # an integer beyond every float
    return away <= max(rules.absolute, rules.relative * abs(wanted))


def _is_missing(cell: Cell) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def _spells_missing(cell: Json) -> bool:
    if isinstance(cell, str):
        return cell.strip().lower() in _MISSING
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def difference(
    found: Table, columns: Sequence[str], rows: Sequence[Sequence[Cell]], rules: Rules
) -> str:
    """In words how a table differs from the expected one; "" if it does not."""
    if not rows and not found.rows and not found.columns:
        return ""  # an empty list has no columns to name
    lacking = [name for name in columns if name not in found.columns]
    surplus = [name for name in found.columns if name not in columns]
    if lacking or (surplus and not rules.extra_columns):
        return f"columns: {', '.join(lacking) or 'none'} lacking, {', '.join(surplus[:8])} surplus"
    kept = [name for name in found.columns if name in columns]
    if rules.column_order and kept != list(columns):
        return f"columns in the order {', '.join(kept)}"
    if len(found.rows) != len(rows):
        return f"{len(found.rows)} rows and not {len(rows)}"
    places = [found.columns.index(name) for name in columns]
    mine = [[row[place] for place in places] for row in found.rows]
    if rules.row_order:
        for index, (row, wanted) in enumerate(zip(mine, rows, strict=True)):
            wrong = _first_wrong(row, wanted, rules)
            if wrong is not None:
                return f"row {index}, {columns[wrong]}: {row[wrong]!r} and not {wanted[wrong]!r}"
        return ""
    return _bag_difference(mine, rows, rules)


def _first_wrong(row: Sequence[Json], wanted: Sequence[Cell], rules: Rules) -> int | None:
    cells = enumerate(zip(row, wanted, strict=True))
    return next((at for at, (cell, want) in cells if not equal(cell, want, rules)), None)


def _bag_difference(rows: list[list[Json]], wanted: Sequence[Sequence[Cell]], rules: Rules) -> str:
    """Rows are grouped by the columns that have no tolerance; within a group they are sorted by
    the others, and matched one by one where that alone does not pair them."""
    exact = [
        at
        for at in range(len(wanted[0]) if wanted else 0)
        if not any(isinstance(row[at], float) and not _is_missing(row[at]) for row in wanted)
    ]
    wants: dict[tuple[Json, ...], list[Sequence[Cell]]] = defaultdict(list)
    haves: dict[tuple[Json, ...], list[Sequence[Json]]] = defaultdict(list)
    samples = {at: [row[at] for row in wanted] for at in exact}
    for row in wanted:
        wants[tuple(_wanted_key(row[at]) for at in exact)].append(row)
    for row in rows:
        haves[tuple(_key(row[at], samples[at], rules) for at in exact)].append(row)
    for key, group in wants.items():
        have = haves.get(key, [])
        if len(have) != len(group) or not _matched(have, group, rules):
            return f"rows with {key or 'these numbers'}: {have[:3]} and not {group[:3]}"
    return ""


def _wanted_key(cell: Cell) -> Json:
    if _is_missing(cell):
        return ("missing",)
    return ("text", cell.strip()) if isinstance(cell, str) else (type(cell) is bool, cell)


def _key(cell: Json, samples: Sequence[Cell], rules: Rules) -> Json:
    """A cell of an exact column, as `_wanted_key` spells the wanted cell that it equals."""
    kinds = {type(sample) for sample in samples}
    if _spells_missing(cell) and rules.missing == "equal" and any(map(_is_missing, samples)):
        return ("missing",)
    if bool in kinds:
        for truth in (True, False):
            if equal(cell, truth, rules):
                return (True, truth)
    if int in kinds and (value := number(cell, rules)) is not None:
        return (False, value)
    return ("text", cell.strip()) if isinstance(cell, str) else ("other", repr(cell))


def _matched(
    have: Sequence[Sequence[Json]], wanted: Sequence[Sequence[Cell]], rules: Rules
) -> bool:
    def place(row: Sequence[Json]) -> list[float]:
        values = [number(cell, rules) for cell in row]
        return [math.inf if value is None else _as_float(value) for value in values]

    pairs = zip(sorted(have, key=place), sorted(wanted, key=place), strict=True)
    if all(_first_wrong(row, want, rules) is None for row, want in pairs):
        return True
    if len(have) > _MOST_MATCHED:
        return False
    fits = [
        [i for i, want in enumerate(wanted) if _first_wrong(row, want, rules) is None]
        for row in have
    ]
    taken: dict[int, int] = {}

    def find(row: int, tried: set[int]) -> bool:
        for want in fits[row]:
            if want not in tried:
                tried.add(want)
                if want not in taken or find(taken[want], tried):
                    taken[want] = row
                    return True
        return False

    return all(find(row, set()) for row in range(len(have)))


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
