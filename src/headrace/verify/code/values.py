"""Values as the sandbox tells them, compared without ever becoming objects again.

`runner.encode` spells them as JSON. Here a spelling becomes a canonical key, and equal values
have equal keys, so no method of a candidate's object decides anything and no table of hashes
can be attacked. May be known by the code verifiers and task packs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from headrace.types import Json
from headrace.verify.code.runner import DEPTH, NODES, encode

__all__ = ["Rule", "Types", "agree", "encode", "key", "literal"]

Types = Literal["equal", "exact", "loose"]

_SEQUENCES = {"$tuple": "()", "$set": "{}", "$frozenset": "<>"}
_EXACT_BITS = 1000


class Rule(BaseModel):
    """When a result is right.

    `types`: "equal" as `==` of Python has it (1 == 1.0 == True, a list is no tuple), but a NaN
    is a NaN; "exact" tells int, float and bool, set and frozenset apart as well; "loose" is
    "equal" with tuples and lists taken for the same. `tolerance`: how far numbers may be off,
    absolutely and relatively (`math.isclose`); None is not at all. `any_order`: whether the
    items of a list (or tuple) that is the whole result may come in any order.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    types: Types = "equal"
    tolerance: float | None = Field(default=None, gt=0, lt=1)
    any_order: bool = False

    @model_validator(mode="after")
    def _one_of_both(self) -> Rule:
        if self.tolerance is not None and self.any_order:
            raise ValueError("a tolerance and any order together are ambiguous")
        return self


def agree(rule: Rule, expected: Json, found: Json) -> bool:
    """Whether `found` is the `expected` value. ValueError if one of them spells no value."""
    if key(expected, rule.types) == key(found, rule.types):
        return True
    if rule.any_order:
        return _shuffled(expected, rule.types) == _shuffled(found, rule.types)
    return rule.tolerance is not None and _near(rule.types, rule.tolerance, expected, found)


def key(tree: Json, types: Types = "equal") -> str:
    """The canonical key of a value: equal values have equal ones, under those `types`.

    Raises ValueError for what spells no value, or one beyond the bounds of `runner`.

    >>> key([1.0, {"$set": [2, 1]}])
    '[1,{1,2}]'
    """
    left = NODES + 1

    def spell(tree: Json, depth: int) -> str:
        nonlocal left
        left -= 1
        if left < 0 or depth < 0:
            raise ValueError("a value too deep or too large")
        if isinstance(tree, list):
            return f"[{','.join(spell(item, depth - 1) for item in tree)}]"
        if not isinstance(tree, dict):
            return _atom(tree, types)
        tag = _tag(tree)
        inner: Json = tree[tag] if tag else []
        if tag in ("$float", "$bytes"):
            return _tagged_atom(tag, inner)
        if tag and not isinstance(inner, list):
            raise ValueError(f"no value: {tag} without a list")
        if tag in _SEQUENCES:
            return _sequence(tag, [spell(item, depth - 1) for item in inner], types)
        pairs = inner if tag else [[name, item] for name, item in tree.items()]
        return _mapping(pairs, lambda item: spell(item, depth - 1))

    return spell(tree, DEPTH)


def literal(tree: Json) -> str:
    """A value as one would type it in Python, in ASCII.

    >>> literal({"$tuple": [1, {"$float": "nan"}]})
    "(1, float('nan'))"
    """
    if isinstance(tree, list):
        return f"[{', '.join(literal(item) for item in tree)}]"
    if not isinstance(tree, dict):
        return ascii(tree)
    tag = _tag(tree)
    if tag == "$float":
        return f"float({tree[tag]!a})"
    if tag == "$bytes":
        return ascii(bytes.fromhex(tree[tag]))
    if tag in _SEQUENCES:
        items = ", ".join(literal(item) for item in tree[tag])
        if tag == "$tuple":
            return f"({items},)" if len(tree[tag]) == 1 else f"({items})"
        some = f"{{{items}}}" if items else "set()"
        return f"frozenset({some if items else ''})" if tag == "$frozenset" else some
    pairs = tree[tag] if tag else tree.items()
    return f"{{{', '.join(f'{literal(name)}: {literal(item)}' for name, item in pairs)}}}"


def _tag(tree: dict[str, Json]) -> str:
    """The type that an object of one key tells; "" for a plain dict."""
    first = next(iter(tree), "")
    if not any(name.startswith("$") for name in tree):
        return ""
    if len(tree) == 1 and first in {*_SEQUENCES, "$dict", "$float", "$bytes"}:
        return first
    raise ValueError(f"no value: an object with the key {first[:40]!a}")


def _atom(value: Json, types: Types) -> str:
    if value is None:
        return "None"
    if isinstance(value, str):
        return json.dumps(value)
    if not isinstance(value, (bool, int, float)):
        raise ValueError(f"no value: {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("no value: a number that JSON does not have")
    if types == "exact":
        return repr(value + 0.0 if isinstance(value, float) else value)
    return str(int(value)) if value == int(value) else repr(value)


def _tagged_atom(tag: str, inner: Json) -> str:
    if tag == "$float" and inner in ("nan", "inf", "-inf"):
        return f"float {inner}"
    if tag == "$bytes" and isinstance(inner, str):
        return f"bytes {bytes.fromhex(inner).hex()}"
    raise ValueError(f"no value: {tag}")


def _sequence(tag: str, items: list[str], types: Types) -> str:
    opening, closing = _SEQUENCES[tag]
    if tag == "$tuple":
        opening, closing = ("[", "]") if types == "loose" else (opening, closing)
        return f"{opening}{','.join(items)}{closing}"
    if len(set(items)) < len(items):
        raise ValueError("no value: a set with equal elements")
    if types != "exact":
        opening, closing = "{}"
    return f"{opening}{','.join(sorted(items))}{closing}"


def _mapping(pairs: list[Json], spell: Callable[[Json], str]) -> str:
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise ValueError("no value: a dict without pairs")
    spelled = sorted((spell(name), spell(item)) for name, item in pairs)
    if len({name for name, _ in spelled}) < len(spelled):
        raise ValueError("no value: a dict with equal keys")
    return f"dict{{{','.join(f'{name}:{item}' for name, item in spelled)}}}"


def _shuffled(tree: Json, types: Types) -> Json:
    """The same for two lists (or tuples) of the same items, and else for equal values only."""
    is_tuple = isinstance(tree, dict) and "$tuple" in tree
    items = tree["$tuple"] if is_tuple else tree
    if not isinstance(items, list):
        return key(tree, types)
    return [is_tuple and types != "loose", sorted(key(item, types) for item in items)]


def _near(types: Types, tolerance: float, expected: Json, found: Json) -> bool:
    """Equal but for numbers that are a little off. Keys and elements of sets must be equal."""
    if isinstance(expected, (bool, int, float)) and isinstance(found, (bool, int, float)):
        if types == "exact" and type(expected) is not type(found):
            return False
        if any(isinstance(n, int) and n.bit_length() > _EXACT_BITS for n in (expected, found)):
            return expected == found
        return math.isclose(expected, found, rel_tol=tolerance, abs_tol=tolerance)
    ours, theirs = _items(expected, types), _items(found, types)
    if ours is None or theirs is None:
        return key(expected, types) == key(found, types)
    return ours.keys() == theirs.keys() and all(
        _near(types, tolerance, ours[name], theirs[name]) for name in ours
    )


def _items(tree: Json, types: Types) -> dict[str, Json] | None:
    """What a sequence or dict holds, by position or key, with its type; None for the rest."""
    tag = _tag(tree) if isinstance(tree, dict) else ""
    if isinstance(tree, list) or tag == "$tuple":
        kind = "tuple" if tag and types != "loose" else "list"
        items: Json = tree if isinstance(tree, list) else tree[tag]
        return {kind: None} | {str(place): item for place, item in enumerate(items)}
    if isinstance(tree, dict) and tag in ("", "$dict"):
        pairs = tree[tag] if tag else [[name, item] for name, item in tree.items()]
        return {"dict": None} | {f"k{key(name, types)}": item for name, item in pairs}
    return None
