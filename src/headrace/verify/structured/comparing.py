"""Comparing an expected value with a found one, field by field.

A field is a leaf of the expected value: a string, number, bool, null, or an empty container.
Pure functions; may be known by verifiers.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from headrace.types import Json
from headrace.verify.matching import pairs
from headrace.verify.structured.ask import Rule

__all__ = ["NOTHING", "Comparison", "Difference", "compare", "exact_number", "folded"]

NOTHING = "(nothing)"
"""Stands for a missing value in evidence."""

_PLAIN = Rule()
_CELL = re.compile(r"[+-]?\d{1,40}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,3})?", re.ASCII)
_CELLS = {True: "true", False: "false", None: ""}


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that is not right, by its JSON pointer."""

    path: str
    expected: Json
    found: Json


@dataclass(slots=True)
class Comparison:
    """Weights of the right fields and of all, and what differs."""

    right: float = 0.0
    total: float = 0.0
    differences: list[Difference] = field(default_factory=list[Difference])

    @property
    def same(self) -> bool:
        """Nothing differs."""
        return not self.differences

    @property
    def share(self) -> float:
        """The weighted share of right fields, 0..1; with nothing to earn, 1 if nothing differs."""
        return self.right / self.total if self.total > 0 else float(self.same)


def compare(
    expected: Json, found: Json, rules: Mapping[str, Rule] | None = None, *, cells: bool = False
) -> Comparison:
    """How much of `expected` is in `found`; `rules` by JSON pointer with `*` for list indices.

    Fields that are missing, wrong or that nobody asked for lower the share alike, so stuffing
    does not pay. A null, "" or empty container earns nothing when it is right, and costs when
    it is wrong: saying nothing does not pay either. A list in order is compared index by index.
    With `cells`, the found leaves are texts of a table: expected numbers, bools and nulls are
    compared with what their text means.

    >>> compare({"a": 1, "b": "x"}, {"a": 1.0, "b": "y"}).share
    0.5
    """
    comparer = _Comparer(rules or {}, cells=cells)
    comparer.visit(expected, found, "", "")
    return comparer.result


def exact_number(value: float) -> Fraction:
    """The number that is written: of a float, its shortest decimal form, so 0.1 is a tenth."""
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


def folded(text: str) -> str:
    """`text` without differences of case, of runs of space, and of composed accents.

    Compatibility forms stay different: ２ is not 2.
    """
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


class _Comparer:
    def __init__(self, rules: Mapping[str, Rule], *, cells: bool) -> None:
        self._rules = rules
        self._cells = cells
        self.result = Comparison()

    def visit(self, expected: Json, found: Json, path: str, pattern: str) -> None:
        """Add the fields at and below `path`."""
        rule = self._rules.get(pattern, _PLAIN)
        if rule.weight == 0:
            return
        if rule.compare in ("bag", "set") and isinstance(expected, list) and expected:
            self._unordered(expected, found, path, pattern, rule)
        elif isinstance(expected, dict) and expected and isinstance(found, dict):
            self._mapping(expected, found, path, pattern)
        elif isinstance(expected, list) and expected and isinstance(found, list):
            self._sequence(expected, found, path, pattern)
        elif isinstance(expected, (dict, list)) and expected:
            self._lost(expected, path, pattern, found)
        elif self._leaf(expected, found, rule):
            if not _is_empty(expected):
                self.result.right += rule.weight
                self.result.total += rule.weight
        else:
            self._lost(expected, path, pattern, found)

    def _mapping(
        self, expected: dict[str, Json], found: dict[str, Json], path: str, pattern: str
    ) -> None:
        for key, value in expected.items():
            inner = _below(path, key), _below(pattern, key)
            if key in found:
                self.visit(value, found[key], *inner)
            else:
                self._lost(value, *inner, NOTHING)
        for key, value in found.items():
            if key not in expected:
                self._extra(value, _below(path, key), _below(pattern, key))

    def _sequence(self, expected: list[Json], found: list[Json], path: str, pattern: str) -> None:
        for index, value in enumerate(expected):
            if index < len(found):
                self.visit(value, found[index], f"{path}/{index}", f"{pattern}/*")
            else:
                self._lost(value, f"{path}/{index}", f"{pattern}/*", NOTHING)
        for index in range(len(expected), len(found)):
            self._extra(found[index], f"{path}/{index}", f"{pattern}/*")

    def _unordered(
        self, expected: list[Json], found: Json, path: str, pattern: str, rule: Rule
    ) -> None:
        items: list[Json] = found if isinstance(found, list) else []
        stuffed = len(items) > 2 * len(expected) + 10
        matched = [] if stuffed else pairs(expected, items, lambda e, f: self._fits(e, f, pattern))
        taken = {j for _, j in matched}
        rest = [item for j, item in enumerate(items) if j not in taken]
        if rule.compare == "set" and not stuffed:
            rest = [f for f in rest if not any(self._fits(e, f, pattern) for e in expected)]
        self.result.right += rule.weight * len(matched)
        self.result.total += rule.weight * max(len(expected), len(matched) + len(rest))
        met = {i for i, _ in matched}
        missing = [item for i, item in enumerate(expected) if i not in met]
        if missing or rest:
            self._differ(path, missing, rest if isinstance(found, list) else found)

    def _fits(self, expected: Json, found: Json, pattern: str) -> bool:
        inner = _Comparer(self._rules, cells=self._cells)
        inner.visit(expected, found, "", f"{pattern}/*")
        return inner.result.same

    def _leaf(self, expected: Json, found: Json, rule: Rule) -> bool:
        if self._cells and isinstance(found, str) and not isinstance(expected, str):
            if expected is None or isinstance(expected, bool):
                return found == _CELLS[expected]
            if not isinstance(expected, (int, float)) or not _CELL.fullmatch(found):
                return False
            return _near(exact_number(expected), Fraction(found), rule)
        if isinstance(expected, bool) or isinstance(found, bool):
            return expected is found
        if isinstance(expected, (int, float)) and isinstance(found, (int, float)):
            return _near(exact_number(expected), exact_number(found), rule)
        if rule.compare == "text" and isinstance(expected, str) and isinstance(found, str):
            return folded(expected) == folded(found)
        return type(expected) is type(found) and expected == found

    def _lost(self, expected: Json, path: str, pattern: str, found: Json) -> None:
        weight = self._weight(expected, pattern)
        self.result.total += weight
        if weight > 0:
            self._differ(path, expected, found)

    def _extra(self, found: Json, path: str, pattern: str) -> None:
        weight = self._weight(found, pattern)
        self.result.total += weight
        if weight > 0:
            self._differ(path, NOTHING, found)

    def _weight(self, value: Json, pattern: str) -> float:
        """What all leaves of `value` weigh."""
        rule = self._rules.get(pattern, _PLAIN)
        if rule.weight == 0:
            return 0.0
        if isinstance(value, dict) and value:
            return sum(self._weight(item, _below(pattern, key)) for key, item in value.items())
        if isinstance(value, list) and value:
            if rule.compare in ("bag", "set"):
                return rule.weight * len(value)
            return sum(self._weight(item, f"{pattern}/*") for item in value)
        return rule.weight

    def _differ(self, path: str, expected: Json, found: Json) -> None:
        self.result.differences.append(Difference(path, expected, found))


def _near(expected: Fraction, found: Fraction, rule: Rule) -> bool:
    if rule.compare != "number":
        return expected == found
    allowed = max(exact_number(rule.absolute), exact_number(rule.relative) * abs(expected))
    return abs(expected - found) <= allowed


def _is_empty(value: Json) -> bool:
    return value is None or (isinstance(value, (str, list, dict)) and not value)


def _below(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
