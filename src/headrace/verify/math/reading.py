r"""From the text of an answer to what it says: a number, a list, an interval, a relation.

Structure only: what stands in a `Leaf` is a number or an expression that nobody has looked
into yet. Kinds are kept strictly apart: `(0, 1)` is a tuple unless something says that it is
an interval (an infinite end, a union, a half-open bracket, `x \in`, the task).
Known by `compare`, the verifier and the worker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from headrace.verify.math.notation import Enclosed, clean, enclosed, split, without_thousands
from headrace.verify.math.numerals import read_numeral
from headrace.verify.math.units import Unit, measured

__all__ = [
    "INFINITE",
    "Grid",
    "Group",
    "Leaf",
    "Manner",
    "Node",
    "Region",
    "Relation",
    "Span",
    "Union",
    "Unreadable",
    "Words",
    "leaves",
    "name_of",
    "readings",
]

DEPTH = 12
ITEMS = 64


class Unreadable(ValueError):
    """A text that says nothing this module understands."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A number or an expression as text, with the unit or percent sign that stood by it."""

    text: str
    unit: Unit | None = None
    percent: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    """A text answer, in lower case and with single spaces."""

    text: str


@dataclass(frozen=True, slots=True)
class Group:
    r"""Several answers: a bare "list", a "set" in braces, a "tuple" in brackets.

    `either` is True for a list joined by "or".
    """

    kind: Literal["list", "set", "tuple"]
    items: tuple[Node, ...]
    either: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """A matrix."""

    rows: tuple[tuple[Node, ...], ...]


@dataclass(frozen=True, slots=True)
class Span:
    """An interval."""

    low: Node
    high: Node
    low_open: bool
    high_open: bool


@dataclass(frozen=True, slots=True)
class Union:
    """A union of intervals and sets."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """Where a variable lies: `0 < x < 1`, `x \\in [0, 1)`."""

    variable: str
    region: Node


@dataclass(frozen=True, slots=True)
class Relation:
    """A chain of `terms` with a sign between each two: "=", "<", ..."""

    terms: tuple[Node, ...]
    signs: tuple[str, ...]


Node: TypeAlias = Leaf | Words | Group | Grid | Span | Union | Region | Relation

INFINITE = {"\\infty": 1, "+\\infty": 1, "-\\infty": -1}
REALS = Span(Leaf("-\\infty"), Leaf("\\infty"), True, True)
_SIGNS = {"=", "<", ">", "\\le", "\\ge", "\\ne", "\\approx"}
_FLIPPED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}
_NAME = re.compile(
    r"(?:m\s*)?(?:\\angle\s*|\\triangle\s*)?"
    r"(?:[A-Za-z]{1,3}|\\(?:alpha|beta|gamma|delta|theta|lambda|sigma|omega|phi|mu))'{0,2}"
    r"\s*(?:_\s*(?:[A-Za-z0-9]|\{[A-Za-z0-9, ]+\}))?\s*(?:\^\{-1\})?"
    r"\s*(?:\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])*\s*\))?"
)
_WORDS = re.compile(r"[A-Za-z][A-Za-z'\- ]*")
_SHORT = {
    *("no", "not", "yes", "all", "any", "the", "odd", "dne", "up", "red"),
    *("one", "two", "six", "ten", "mon", "tue", "wed", "thu", "fri", "sat", "sun"),
}
"""Words of fewer than four letters that are no products of variables."""
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_MATRIX = re.compile(
    r"\\begin\{(?P<kind>[pbB]?matrix|array)\}(?:\{[lcr| ]*\})?(?P<body>.*)\\end\{(?P=kind)\}",
    re.DOTALL,
)
_NOTHING = {"\\emptyset", "\\{\\}", "\\{ \\}", "{}"}
_ALL_REALS = {"\\mathbb{R}", "all real numbers", "all reals"}
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![A-Za-z])\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a task wants its answers read.

    `kind` settles what the writing leaves open: "interval" makes `(a, b)` one, "list" makes
    `[a, b]` a list, "text" takes all as words. `labels` are words that may stand behind a
    number and mean nothing ("eggs"). `loose` reads `5m` as five metres.
    """

    kind: Literal["auto", "interval", "list", "text"] = "auto"
    labels: tuple[str, ...] = field(default=())
    loose: bool = False


def readings(text: str, manner: Manner, *, both: bool = False) -> list[Node]:
    """What `text` may say: one thing, or two if `both` and commas may group digits or part items.

    Without `both` they group digits, except where the task wants a list. Raises Unreadable.
    """
    text = _unlabelled(clean(text), manner.labels)
    if manner.kind == "text":
        return [Words(_folded(_TEXT.sub(r" \1 ", text)))]
    grouped = without_thousands(text)
    if grouped == text or manner.kind == "list":
        return [_read(text, manner, 0)]
    return [_read(t, manner, 0) for t in ((grouped, text) if both else (grouped,))]


def leaves(node: Node) -> Iterator[Leaf]:
    """All leaves of `node`, from left to right."""
    match node:
        case Leaf():
            yield node
        case Words():
            return
        case Group(items=children) | Union(parts=children) | Relation(terms=children):
            for child in children:
                yield from leaves(child)
        case Grid(rows=rows):
            for row in rows:
                for child in row:
                    yield from leaves(child)
        case Span(low=low, high=high):
            yield from leaves(low)
            yield from leaves(high)
        case Region(region=region):
            yield from leaves(region)


def name_of(node: Node) -> str | None:
    """What `node` is if it only names: `x`, `f(x)`, `(x, y)`, `\\angle A`, words."""
    if isinstance(node, Words):
        return node.text
    if isinstance(node, Group) and node.kind == "tuple":
        names = [name_of(item) for item in node.items]
        return None if None in names else f"({','.join(map(str, names))})"
    if isinstance(node, Leaf) and node.unit is None and not node.percent:
        text = node.text.strip()
        if _NAME.fullmatch(text):
            return text.replace(" ", "")
    return None


def _unlabelled(text: str, labels: tuple[str, ...]) -> str:
    for label in labels:
        word = re.escape(label)
        text = re.sub(rf"(?:\\text\{{\s*{word}\s*\}}|\s{word})$", "", text).strip()
    return text


def _folded(text: str) -> str:
    return " ".join(text.replace("-", " ").casefold().split()).rstrip(".")


def _read(text: str, manner: Manner, depth: int) -> Node:
    if not text or depth > DEPTH:
        raise Unreadable("nothing to read" if not text else "nested too deeply")
    if text in _NOTHING:
        return Group("set", ())
    if text in _ALL_REALS:
        return REALS
    for reader in (_words, _matrix, _list, _plus_minus, _member, _relation, _union, _brackets):
        found = reader(text, manner, depth)
        if found is not None:
            return found
    return _leaf(text, manner)


def _words(text: str, manner: Manner, depth: int) -> Node | None:
    bare = _TEXT.sub(r"\1", text).strip() if text.startswith("\\text{") else text
    if bare != text and _TEXT.fullmatch(text):
        if len(bare.strip("() ")) == 1:
            return _leaf(bare.strip("() "), manner)
        if any(c.isdigit() for c in bare) or "\\" in bare:
            return _read(clean(bare), manner, depth + 1)
        return Words(_folded(bare)) if bare else None
    if not _WORDS.fullmatch(bare):
        return None
    parts = [part for part in re.split(r"[ \-]", bare.casefold()) if part not in {"and", "or", ""}]
    if any(len(part) > 3 or part in _SHORT for part in parts):
        return Words(_folded(bare))
    return None


def _matrix(text: str, manner: Manner, depth: int) -> Node | None:
    match = _MATRIX.fullmatch(text)
    if match is None or "\\begin" in match["body"]:
        return None
    lines = [line.strip() for line in match["body"].replace("\\hline", "").split("\\\\")]
    return Grid(
        tuple(
            tuple(_read(cell.strip(), manner, depth + 1) for cell in line.split("&"))
            for line in lines
            if line
        )
    )


def _list(text: str, manner: Manner, depth: int) -> Node | None:
    cut = split(text, lambda token: token in {",", ";", "and", "or"})
    pieces = [piece for piece in cut.pieces if piece]
    if len(pieces) < 2 or len(pieces) > ITEMS:
        return None
    items = _flat(_read(piece, manner, depth + 1) for piece in pieces)
    return _either(items) if "or" in cut.separators else Group("list", items)


def _flat(items: Iterator[Node]) -> tuple[Node, ...]:
    flat: list[Node] = []
    for item in items:
        flat.extend(item.items if isinstance(item, Group) and item.kind == "list" else (item,))
    return tuple(flat)


def _either(items: tuple[Node, ...]) -> Node:
    """A list joined by "or"; inequalities in one variable make a union."""
    regions = [item for item in items if isinstance(item, Region)]
    if len(regions) == len(items) and len({r.variable for r in regions}) == 1:
        return Region(regions[0].variable, Union(tuple(r.region for r in regions)))
    return Group("list", items, either=True)


def _plus_minus(text: str, manner: Manner, depth: int) -> Node | None:
    if not _PLUS_MINUS.search(text):
        return None
    upper = _PLUS_MINUS.sub(lambda m: "+" if m[1] == "pm" else "-", text)
    lower = _PLUS_MINUS.sub(lambda m: "-" if m[1] == "pm" else "+", text)
    sides = [side.removeprefix("+").strip() for side in (upper, lower)]
    return Group("list", tuple(_read(side, manner, depth + 1) for side in sides))


def _member(text: str, manner: Manner, depth: int) -> Node | None:
    cut = split(text, lambda token: token == "\\in")
    if len(cut.pieces) != 2 or not _NAME.fullmatch(cut.pieces[0]):
        return None
    inside = _read(cut.pieces[1], replace(manner, kind="interval"), depth + 1)
    return Region(cut.pieces[0].replace(" ", ""), inside)


def _relation(text: str, manner: Manner, depth: int) -> Node | None:
    cut = split(text, _SIGNS.__contains__)
    pieces, signs = cut.pieces, cut.separators
    if not signs:
        return None
    if not pieces[0] and signs[0] in {"=", "\\approx"}:
        return _read(" ".join(pieces[1:]), manner, depth + 1) if len(signs) == 1 else None
    terms = tuple(_read(piece, manner, depth + 1) for piece in pieces)
    return _inequality(terms, signs) or Relation(terms, signs)


def _inequality(terms: tuple[Node, ...], signs: tuple[str, ...]) -> Region | None:
    """`a < x <= b` and the like as the region of its one variable."""
    if len(terms) == 2 and signs[0] == "\\ne" and (name := name_of(terms[0])):
        point = terms[1]
        return Region(
            name,
            Union((Span(REALS.low, point, True, True), Span(point, REALS.high, True, True))),
        )
    ends, between = list(terms), list(signs)
    if between[0] in {">", "\\ge"}:
        ends, between = ends[::-1], [_FLIPPED.get(sign, sign) for sign in between[::-1]]
    if not set(between) <= {"<", "\\le"} or len(ends) > 3:
        return None
    if len(ends) == 2 and name_of(ends[0]):
        ends, between = [REALS.low, *ends], ["<", *between]
    elif len(ends) == 2:
        ends, between = [*ends, REALS.high], [*between, "<"]
    low, middle, high = ends
    name = name_of(middle)
    if name is None or name_of(low) or name_of(high):
        return None
    return Region(name, Span(low, high, between[0] == "<", between[1] == "<"))


def _union(text: str, manner: Manner, depth: int) -> Node | None:
    cut = split(text, lambda token: token == "\\cup")
    if len(cut.pieces) < 2:
        return None
    inner = replace(manner, kind="interval")
    return Union(tuple(_read(piece, inner, depth + 1) for piece in cut.pieces))


def _brackets(text: str, manner: Manner, depth: int) -> Node | None:
    held = enclosed(text)
    if held is None:
        return None
    cut = split(held.inner, lambda token: token in {",", ";"})
    ends = (held.opening, held.closing)
    if ends == ("\\{", "\\}") or (ends == ("{", "}") and len(cut.pieces) > 1):
        return _braces(held.inner, cut.pieces, manner, depth)
    if len(cut.pieces) == 1:
        return _read(held.inner, manner, depth + 1) if _idle(held) else None
    if ends == ("[", "]") and all(p.startswith("[") and p.endswith("]") for p in cut.pieces):
        rows = [split(piece[1:-1], lambda token: token == ",").pieces for piece in cut.pieces]
        return Grid(tuple(tuple(_read(c, manner, depth + 1) for c in row) for row in rows))
    items = tuple(_read(piece, manner, depth + 1) for piece in cut.pieces)
    endless = any(isinstance(item, Leaf) and item.text in INFINITE for item in items)
    if ends == ("[", "]") and manner.kind == "list":
        return Group("list", items)
    round_pair = ends == ("(", ")") and not endless and manner.kind != "interval"
    if len(items) == 2 and ends[0] in "([" and ends[1] in ")]" and not round_pair:
        return Span(items[0], items[1], ends[0] == "(", ends[1] == ")")
    return Group("tuple", items)


def _idle(held: Enclosed) -> bool:
    """Whether brackets around one thing mean nothing: `[5]`, `(x = 5)`, `(C)`, a matrix."""
    if (held.opening, held.closing) in {("[", "]"), ("{", "}")}:
        return True
    if (held.opening, held.closing) != ("(", ")"):
        return False
    single = len(held.inner) == 1 or held.inner.startswith("\\begin")
    return single or bool(split(held.inner, _SIGNS.__contains__).separators)


def _braces(inner: str, pieces: tuple[str, ...], manner: Manner, depth: int) -> Node:
    built = split(inner, lambda token: token in {"\\mid", "|", ":"})
    if len(built.pieces) == 2 and _NAME.fullmatch(built.pieces[0].split("\\in")[0].strip()):
        return _read(built.pieces[1], manner, depth + 1)
    items = _flat(_read(piece, manner, depth + 1) for piece in pieces if piece)
    return Group("set", items)


def _leaf(text: str, manner: Manner) -> Node:
    if read_numeral(text) is not None:
        return Leaf(text)
    parts = measured(text, loose=manner.loose)
    if not parts.number:
        raise Unreadable("a unit without a number")
    return Leaf(parts.number, parts.unit, parts.percent)
