"""From a reference and `--set` overrides to a validated recipe and the origin of every value."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from pydantic import ValidationError

from headrace.configure.layers import Leaf, Node, flatten, origins_below, plain, replace_at, wrap
from headrace.configure.problems import explain
from headrace.configure.schema import AXES, keys, pattern
from headrace.configure.sources import cover, load_tree
from headrace.errors import RecipeError
from headrace.recipe import PRESETS, Recipe

__all__ = ["Resolved", "load_recipe", "parse_recipe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A recipe and, for each of its leaves by dotted path, where the value came from.

    Origins: "default", "preset NAME", "recipe NAME", "FILE:LINE", a Python reference, "--set".
    `origins` has exactly the keys of `leaves(recipe)`.
    """

    recipe: Recipe
    origins: Mapping[str, str]

    def values(self) -> dict[str, object]:
        """The JSON value of each leaf by dotted path, in the order of the schema."""
        return _leaves(self.recipe)


def load_recipe(ref: str, overrides: Sequence[str] = ()) -> Resolved:
    """The recipe that `ref` names, with `KEY=VALUE` overrides on top.

    `ref` is a shipped name, a path to .toml (or a run's recipe.json), `pkg.mod:function` or
    `file.py:function`. Raises RecipeError for anything that cannot be read or is not valid.
    """
    tree = load_tree(ref, algorithm_axes=AXES)
    parsed = [_override(text) for text in overrides]
    chooses = ("algorithm", "algorithm.preset")
    for path, value in sorted(parsed, key=lambda pair: pair[0] not in chooses):
        tree = _set(tree, path, value)
    return _resolve(tree, ref)


def parse_recipe(values: Mapping[str, object], *, where: str) -> Recipe:
    """The recipe a run was started with, from its JSON object. Raises RecipeError."""
    tree = cast("dict[str, Node]", wrap(values, lambda _: where))
    return _resolve(tree, where).recipe


def _resolve(tree: dict[str, Node], ref: str) -> Resolved:
    tree = cast("dict[str, Node]", _none(tree, ""))
    explicit = flatten(tree)
    try:
        recipe = Recipe.model_validate(plain(tree), strict=True)
    except ValidationError as error:
        raise explain(error, explicit, ref) from error
    return Resolved(recipe=recipe, origins=_origins(recipe, explicit))


def _origins(recipe: Recipe, explicit: Mapping[str, Leaf]) -> dict[str, str]:
    preset = recipe.algorithm.preset
    chosen = {f"algorithm.{key}" for key in PRESETS[preset]} if preset else set[str]()
    origins: dict[str, str] = {}
    for path in _leaves(recipe):
        said = origins_below(explicit, path)
        by_default = f"preset {preset}" if path in chosen else "default"
        origins[path] = ", ".join(said) or by_default
    return origins


def _leaves(recipe: Recipe) -> dict[str, object]:
    """JSON values by dotted path; a list of plain values is one leaf."""
    found: dict[str, object] = {}

    def visit(value: object, path: str) -> None:
        if isinstance(value, dict):
            for key, item in cast("dict[str, object]", value).items():
                visit(item, f"{path}.{key}" if path else key)
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            for index, item in enumerate(cast("list[object]", value)):
                visit(item, f"{path}.{index}")
        else:
            found[path] = value

    visit(recipe.model_dump(mode="json"), "")
    return found


def _none(node: Node, path: str) -> Node:
    """The word none where a key can be switched off (TOML has no null)."""
    if isinstance(node, Leaf):
        key = keys().get(pattern(path))
        off = node.value == "none" and key is not None and key.nullable
        return Leaf(None, node.origin) if off else node
    if isinstance(node, list):
        return [_none(item, f"{path}.{index}") for index, item in enumerate(node)]
    return {k: _none(item, f"{path}.{k}" if path else k) for k, item in node.items()}


# --- --set ---------------------------------------------------------------------------------


def _override(text: str) -> tuple[str, object]:
    """`KEY=VALUE`: the value is TOML where it parses as such, else the bare text."""
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not all(path.split(".")):
        raise RecipeError(
            f"--set needs KEY=VALUE, got {text!r}", hint="for example --set play.groups=16"
        )
    return path, _value(value.strip())


def _value(text: str) -> object:
    python_words = {"True": True, "False": False, "None": "none"}
    if text in python_words:
        return python_words[text]
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if set(parsed) == {"value"} else text


def _set(tree: dict[str, Node], path: str, value: object) -> dict[str, Node]:
    node = wrap(value, lambda _: "--set")
    parts = path.split(".")
    for depth, part in enumerate(parts):
        if part.isdecimal():
            tree = _with_default_list(tree, parts[:depth])
    if any(part.isdecimal() for part in parts):
        return cast("dict[str, Node]", replace_at(tree, parts, node))
    return cover(tree, cast("dict[str, Node]", replace_at({}, parts, node)), AXES)


def _with_default_list(tree: dict[str, Node], parts: Sequence[str]) -> dict[str, Node]:
    """Write the schema's default list at `parts` into the tree unless it says something there,
    so that `--set tasks.domains.0.weight=2` changes the default domain."""
    default = _at(Recipe().model_dump(), parts)
    is_key = pattern(".".join(parts)) in keys()
    if _at(tree, parts) is not None or not is_key or not isinstance(default, tuple | None):
        return tree
    start = wrap(default or (), lambda _: "default")
    return cast("dict[str, Node]", replace_at(tree, parts, start))


def _at(value: object, parts: Sequence[str]) -> object:
    for part in parts:
        value = cast("dict[str, object]", value).get(part) if isinstance(value, dict) else None
    return value
