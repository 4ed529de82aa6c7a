"""Whether an answer says the same as the reference: structure, units, exact numbers.

Everything that takes algebra is asked of an `Algebra`; `NoAlgebra` refuses, which tells the
verifier to ask in the child process. Known by the verifier and the worker.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Protocol

from headrace.verify.math.numerals import Numeral, read_numeral
from headrace.verify.math.reading import (
    INFINITE,
    Grid,
    Group,
    Leaf,
    Node,
    Region,
    Relation,
    Span,
    Union,
    Words,
    leaves,
    name_of,
    readings,
)
from headrace.verify.math.reference import Reference, Tolerance

__all__ = ["Algebra", "Comparison", "NeedsAlgebra", "NoAlgebra", "is_plain"]

_HUNDREDTH = Fraction(1, 100)
_CHOICES = frozenset("ABCDEFGHIJ")
_CHOICE = re.compile(r"\A(?:\\[a-z]+\{)?\s*\(?([A-J])\)\}?[\s:.\\](?!.*\([A-J]\)).*\Z", re.DOTALL)


class NeedsAlgebra(Exception):
    """The comparison takes algebra, and there is none here."""


class Algebra(Protocol):
    """What the comparison asks about expressions. Texts are as `clean` leaves them.

    Raises Unreadable for a text that is no expression.
    """

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
        """gold = said * factor; `irrational` asks that what was said is, `final` for a result."""
        ...

    def same_relation(self, gold: Sequence[str], said: Sequence[str]) -> bool:
        """Two relations (left, sign, right) hold for the same values of their symbols."""
        ...

    def same_region(self, gold: Node, said: Node) -> bool:
        """Two unions of intervals and sets are the same set of real numbers."""
        ...


class NoAlgebra:
    """Refuses everything."""

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
        raise NeedsAlgebra

    def same_relation(self, gold: Sequence[str], said: Sequence[str]) -> bool:
        raise NeedsAlgebra

    def same_region(self, gold: Node, said: Node) -> bool:
        raise NeedsAlgebra


def is_plain(node: Node) -> bool:
    """Whether `node` has nothing in it but numerals, infinities, names and words; no union."""
    region = node.region if isinstance(node, Region) else node
    return not isinstance(region, Union) and all(
        read_numeral(leaf.text) is not None or leaf.text in INFINITE or name_of(leaf) is not None
        for leaf in leaves(node)
    )


class Comparison:
    """One comparison. `notes` afterwards say why the two differ, as far as that is known."""

    def __init__(self, reference: Reference, algebra: Algebra) -> None:
        self.reference = reference
        self.algebra = algebra
        self.notes: list[str] = []

    def run(self, said: str) -> bool:
        """Whether `said` answers the reference; raises Unreadable if it says nothing."""
        golds = readings(self.reference.text, self.reference.manner())
        loose = any(leaf.unit is not None for gold in golds for leaf in leaves(gold))
        if len(golds) == 1 and isinstance(golds[0], Leaf) and golds[0].text in _CHOICES:
            said = _CHOICE.sub(r"\1", said)
        answers = readings(said, self.reference.manner(loose=loose), both=True)
        return any(self.same(gold, answer) for gold in golds for answer in answers)

    def same(self, gold: Node, said: Node, *, final: bool = True) -> bool:
        """`final` is False for the steps of a chain, which need not be worked out."""
        if isinstance(gold, Relation) or isinstance(said, Relation):
            return self._relations(gold, said, final)
        if isinstance(gold, (Region, Span, Union)) or isinstance(said, (Region, Span, Union)):
            return self._regions(gold, said)
        if isinstance(gold, Group) or isinstance(said, Group):
            return self._groups(gold, said)
        match gold, said:
            case Leaf(), Leaf():
                return self._leaves(gold, said, final)
            case Words(), Words():
                return gold.text == said.text
            case Grid(), Grid():
                shapes = [[len(row) for row in grid.rows] for grid in (gold, said)]
                return shapes[0] == shapes[1] and all(
                    self.same(g, s)
                    for row, other in zip(gold.rows, said.rows, strict=True)
                    for g, s in zip(row, other, strict=True)
                )
            case _:
                return self._differ(gold, said)

    def _differ(self, gold: Node, said: Node) -> bool:
        self.notes.append(f"a {_kind(said)} instead of a {_kind(gold)}")
        return False

    # --- relations -------------------------------------------------------------------------

    def _relations(self, gold: Node, said: Node, final: bool) -> bool:
        """`x = 5` says 5; every step of a chain must be right; equations may be rearranged."""
        if not isinstance(said, Relation):
            name, values = _named(gold)
            if name is None or not values:
                return self._differ(gold, said)
            return self.same(values[-1], said, final=final)
        said_name, said_values = _named(said)
        if not isinstance(gold, Relation):
            steps = said_values if said_name is not None else _chain(said)
            return bool(steps) and all(
                self.same(gold, step, final=position == len(steps) - 1)
                for position, step in enumerate(steps)
            )
        name, values = _named(gold)
        if name is not None and name == said_name and values and said_values:
            return all(self.same(values[-1], value) for value in said_values)
        sides = [_sides(relation) for relation in (gold, said)]
        if sides[0] is None or sides[1] is None:
            return self._differ(gold, said)
        return self.algebra.same_relation(sides[0], sides[1])

    # --- sets of numbers -------------------------------------------------------------------

    def _regions(self, gold: Node, said: Node) -> bool:
        names = [node.variable for node in (gold, said) if isinstance(node, Region)]
        if len(set(names)) == 2:
            self.notes.append(f"about {names[1]} instead of {names[0]}")
            return False
        gold = gold.region if isinstance(gold, Region) else gold
        said = said.region if isinstance(said, Region) else said
        if isinstance(gold, Span) and isinstance(said, Span):
            return (gold.low_open, gold.high_open) == (said.low_open, said.high_open) and all(
                self.same(g, s) for g, s in ((gold.low, said.low), (gold.high, said.high))
            )
        regions = [isinstance(node, (Span, Union)) for node in (gold, said)]
        if all(regions):
            return self.algebra.same_region(gold, said)
        return self._differ(gold, said) if any(regions) else self.same(gold, said)

    # --- several answers -------------------------------------------------------------------

    def _groups(self, gold: Node, said: Node) -> bool:
        kinds = {node.kind for node in (gold, said) if isinstance(node, Group)}
        if "tuple" in kinds:
            if not (isinstance(gold, Group) and isinstance(said, Group) and kinds == {"tuple"}):
                return self._differ(gold, said)
            return self._in_order(gold.items, said.items)
        golds, saids = _items(gold), _items(said)
        if "set" in kinds:
            golds, saids = self._distinct(golds), self._distinct(saids)
        if len(golds) != len(saids):
            self.notes.append(f"{len(saids)} answers instead of {len(golds)}")
            return False
        if self.reference.ordered and "set" not in kinds:
            return self._in_order(golds, saids)
        return self._matched(golds, saids)

    def _in_order(self, golds: Sequence[Node], saids: Sequence[Node]) -> bool:
        return len(golds) == len(saids) and all(map(self.same, golds, saids))

    def _distinct(self, items: Sequence[Node]) -> list[Node]:
        kept: list[Node] = []
        for item in items:
            if not any(self.same(item, other, final=False) for other in kept):
                kept.append(item)
        return kept

    def _matched(self, golds: Sequence[Node], saids: Sequence[Node]) -> bool:
        """Whether the two can be paired off (augmenting paths: a tolerance is not transitive)."""
        right = [[self.same(gold, said) for said in saids] for gold in golds]
        owner: dict[int, int] = {}

        def place(gold: int, tried: set[int]) -> bool:
            for said, fits in enumerate(right[gold]):
                if fits and said not in tried:
                    tried.add(said)
                    if said not in owner or place(owner[said], tried):
                        owner[said] = gold
                        return True
            return False

        return all(place(gold, set()) for gold in range(len(golds)))

    # --- numbers and expressions -----------------------------------------------------------

    def _leaves(self, gold: Leaf, said: Leaf, final: bool) -> bool:
        factor = self._factor(gold, said)
        if factor is None:
            return False
        if self._values(gold.text, said.text, factor, final):
            return True
        return (
            self.reference.percent_optional
            and gold.percent != said.percent
            and self._values(gold.text, said.text, Fraction(1), final)
        )

    def _factor(self, gold: Leaf, said: Leaf) -> Fraction | None:
        """What a said number is multiplied by to be compared with the reference's number."""
        percent = (_HUNDREDTH if said.percent else 1) / (
            _HUNDREDTH if gold.percent else Fraction(1)
        )
        wanted = gold.unit or self.reference.unit
        if wanted is None or said.unit == wanted:
            return Fraction(percent)
        if said.unit is None:
            if self.reference.unit_optional:
                return Fraction(percent)
            self.notes.append(f"no unit; {wanted} is expected")
            return None
        ratio = said.unit.ratio(wanted) if self.reference.convert else None
        if ratio is None:
            self.notes.append(f"in {said.unit} instead of {wanted}")
            return None
        return percent * ratio

    def _values(self, gold: str, said: str, factor: Fraction, final: bool) -> bool:
        if gold in INFINITE or said in INFINITE:
            return INFINITE.get(gold) == INFINITE.get(said)
        if len(gold) == len(said) == 1 and gold.isalpha() and said.isalpha():
            return gold == said
        expected, number = read_numeral(gold), read_numeral(said)
        must = final and self.reference.worked_out and expected is not None
        tolerance = self.reference.tolerance
        if expected is not None and number is not None:
            if must and expected.worked_out and not number.worked_out:
                self.notes.append("not worked out")
                return False
            return _close(expected, number, factor, tolerance)
        if must and tolerance is None:
            self.notes.append("not worked out")
            return False
        return self.algebra.same(
            gold,
            said,
            factor=factor,
            tolerance=tolerance,
            irrational=must,
            final=final and self.reference.worked_out,
        )


def _close(
    expected: Numeral, number: Numeral, factor: Fraction, tolerance: Tolerance | None
) -> bool:
    distance = abs(number.value * factor - expected.value)
    if tolerance is None:
        return distance == 0
    return distance <= max(tolerance.absolute, tolerance.relative * abs(expected.value))


def _items(node: Node) -> Sequence[Node]:
    return node.items if isinstance(node, Group) else (node,)


def _named(node: Node) -> tuple[str | None, tuple[Node, ...]]:
    """The name that a chain of equations gives, and its values; approximations come last."""
    if not isinstance(node, Relation) or not set(node.signs) <= {"=", "\\approx"}:
        return None, ()
    terms = _chain(node)
    if (name := name_of(node.terms[0])) is not None:
        return name, terms[1:] or node.terms[1:]
    if len(node.terms) == 2 and (name := name_of(node.terms[1])) is not None:
        return name, node.terms[:1]
    return None, ()


def _chain(relation: Relation) -> tuple[Node, ...]:
    """The terms up to the first approximation; none unless all signs before are "="."""
    end = relation.signs.index("\\approx") if "\\approx" in relation.signs else None
    signs = relation.signs[:end]
    return relation.terms[: len(signs) + 1] if set(signs) <= {"="} else ()


def _sides(relation: Relation) -> tuple[str, str, str] | None:
    match relation.terms:
        case (Leaf(unit=None, percent=False) as left, Leaf(unit=None, percent=False) as right):
            return left.text, relation.signs[0], right.text
        case _:
            return None


def _kind(node: Node) -> str:
    match node:
        case Leaf():
            return "number or expression"
        case Words():
            return "text"
        case Group(kind=kind):
            return kind
        case Grid():
            return "matrix"
        case Span() | Union():
            return "interval"
        case Region():
            return "range of a variable"
        case Relation():
            return "relation"
