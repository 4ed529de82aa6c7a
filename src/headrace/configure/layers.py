"""Values that remember where they came from, and how one layer of them covers another.

A recipe is assembled from layers (a shipped recipe, a file, `--set`) before it is validated.
Each layer is a tree of dicts and lists whose leaves carry an origin. Knows nothing of recipes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from headrace.errors import RecipeError

__all__ = ["Leaf", "Node", "flatten", "merge", "origins_below", "plain", "replace_at", "wrap"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value and where it came from: "--set", "my.toml:12", "recipe quickstart"."""

    value: object
    origin: str


Node = Leaf | dict[str, "Node"] | list["Node"]


def wrap(value: object, origin: Callable[[str], str], path: str = "") -> Node:
    """The tree of a plain value; `origin(path)` says where the value at that path came from.

    >>> wrap({"steps": 3}, lambda path: "--set")
    {'steps': Leaf(value=3, origin='--set')}
    """
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value)
        return {str(k): wrap(v, origin, join(path, str(k))) for k, v in items.items()}
    if isinstance(value, list | tuple):
        sequence = cast("Sequence[object]", value)
        return [wrap(v, origin, join(path, str(i))) for i, v in enumerate(sequence)]
    return Leaf(value, origin(path))


def plain(node: Node) -> object:
    """The values alone; lists become tuples, as strict validation wants them."""
    if isinstance(node, Leaf):
        return node.value
    if isinstance(node, list):
        return tuple(plain(item) for item in node)
    return {key: plain(item) for key, item in node.items()}


def merge(base: Node, cover: Node) -> Node:
    """`cover` over `base`: tables merge key by key, anything else replaces what it covers."""
    if isinstance(base, dict) and isinstance(cover, dict):
        merged = dict(base)
        for key, node in cover.items():
            merged[key] = merge(base[key], node) if key in base else node
        return merged
    return cover


def replace_at(node: Node, keys: Sequence[str], value: Node, *, path: str = "") -> Node:
    """A copy of `node` with `value` at `keys`; missing tables are made on the way.

    A numeric key selects an element of a list; the index after the last one appends.
    """
    if not keys:
        return merge(node, value)
    key, rest = keys[0], keys[1:]
    here = join(path, key)
    if isinstance(node, list):
        if not key.isdecimal() or int(key) > len(node):
            raise RecipeError(
                f"{path} is a list of {len(node)}: {key!r} is not an index into it",
                where=here,
                hint=f"use {path}.0 to {path}.{len(node)} (the last one appends)",
            )
        child = node[int(key)] if int(key) < len(node) else {}
        changed = replace_at(child, rest, value, path=here)
        return [*node[: int(key)], changed, *node[int(key) + 1 :]]
    table = node if isinstance(node, dict) else {}
    return {**table, key: replace_at(table.get(key, {}), rest, value, path=here)}


def flatten(node: Node, path: str = "") -> dict[str, Leaf]:
    """Every leaf by its dotted path (an empty table or list has none)."""
    if isinstance(node, Leaf):
        return {path: node}
    items = node.items() if isinstance(node, dict) else enumerate(node)
    leaves: dict[str, Leaf] = {}
    for key, item in items:
        leaves.update(flatten(item, join(path, str(key))))
    return leaves


def origins_below(leaves: Mapping[str, Leaf], path: str) -> list[str]:
    """The distinct origins of the leaf at `path`, or of those under it, in order."""
    found = [
        leaf.origin
        for name, leaf in leaves.items()
        if name == path or name.startswith(f"{path}.") or not path
    ]
    return list(dict.fromkeys(found))


def join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
