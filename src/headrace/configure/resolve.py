"""From a reference and `--set` overrides to a validated recipe and the origin of every value."""

from __future__ import annotations

import difflib
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
from headrace.recipe import PRESETS, Plan, Recipe, Stage

__all__ = ["Resolved", "ResolvedPlan", "load", "load_recipe", "parse_plan", "parse_recipe"]

_STAGES = "stages"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPlan:
    """A plan, and each of its stages with the origin of every value."""

    plan: Plan
    stages: Mapping[str, Resolved]


def load_recipe(ref: str, overrides: Sequence[str] = ()) -> Resolved:
    """What `load` gives, where it must be a single recipe."""
    resolved = load(ref, overrides)
    if isinstance(resolved, ResolvedPlan):
        stages = ", ".join(resolved.stages)
        raise RecipeError(
            f"{ref} is a plan of several stages: {stages}",
            hint="headrace run runs all of them",
        )
    return resolved


def load(ref: str, overrides: Sequence[str] = ()) -> Resolved | ResolvedPlan:
    """The recipe that `ref` names, with `KEY=VALUE` overrides on top; a plan if it has stages.

    `ref` is a shipped name, a path to .toml (or a run's recipe.json), `pkg.mod:function` or
    `file.py:function`. In a plan an override is for all stages, `stages.NAME.KEY=VALUE` for one.
    Raises RecipeError for anything that cannot be read or is not valid.
    """
    tree = load_tree(ref, algorithm_axes=AXES)
    parsed = [_override(text) for text in overrides]
    if _STAGES not in tree:
        return _resolve(_overridden(tree, parsed), ref)
    return _resolve_plan(tree, parsed, ref)


def _overridden(tree: dict[str, Node], overrides: Sequence[tuple[str, object]]) -> dict[str, Node]:
    chooses = ("algorithm", "algorithm.preset")
    for path, value in sorted(overrides, key=lambda pair: pair[0] not in chooses):
        tree = _set(tree, path, value)
    return tree


def _resolve_plan(
    tree: dict[str, Node], overrides: Sequence[tuple[str, object]], ref: str
) -> ResolvedPlan:
    """Each stage's table covers what is said outside of stages."""
    common = {
        key: node for key, node in tree.items() if key not in (_STAGES, "name", "description")
    }
    tables = tree[_STAGES]
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise RecipeError("stages must be a list of tables", where=ref, hint="write [[stages]]")
    resolved: dict[str, Resolved] = {}
    confirms: dict[str, object] = {}
    for place, table in enumerate(cast("list[dict[str, Node]]", tables)):
        name = plain(table.get("name", Leaf(f"stage-{place + 1}", ref)))
        if not isinstance(name, str) or name in resolved:
            raise RecipeError(f"stage {place + 1} needs a name of its own, not {name!r}", where=ref)
        confirms[name] = plain(table.get("confirm", Leaf(False, ref)))
        body = {key: node for key, node in table.items() if key != "confirm"}
        mine = [(path, value) for path, value in overrides if not path.startswith(f"{_STAGES}.")]
        mine += [
            (path.removeprefix(f"{_STAGES}.{name}."), value)
            for path, value in overrides
            if path.startswith(f"{_STAGES}.{name}.")
        ]
        merged = _overridden(cover(common, {**body, "name": Leaf(name, ref)}, AXES), mine)
        resolved[name] = _resolve(merged, f"{ref}, stage {name}")
    _refuse_unknown_stages(overrides, resolved)
    plan = {
        "name": plain(tree["name"]),
        "description": plain(tree.get("description", Leaf("", ref))),
        _STAGES: tuple(
            Stage.model_construct(name=name, recipe=stage.recipe, confirm=confirms[name])
            for name, stage in resolved.items()
        ),
    }
    try:
        return ResolvedPlan(plan=Plan.model_validate(plan, strict=True), stages=resolved)
    except ValidationError as error:
        raise explain(error, flatten(tree), ref) from error


def _refuse_unknown_stages(
    overrides: Sequence[tuple[str, object]], stages: Mapping[str, Resolved]
) -> None:
    for path, _ in overrides:
        name = path.split(".")[1] if path.startswith(f"{_STAGES}.") else None
        if name is not None and name not in stages:
            near = difflib.get_close_matches(name, stages, n=1) or list(stages)
            raise RecipeError(
                f"--set {path}: there is no stage {name}", hint=f"did you mean {near[0]}?"
            )


def parse_plan(values: Mapping[str, object], *, where: str) -> Plan | None:
    """The plan that a run was started with, from its JSON object; None for a single recipe."""
    if _STAGES not in values:
        return None
    tree = cast("dict[str, Node]", wrap(values, lambda _: where))
    try:
        return Plan.model_validate(plain(tree), strict=True)
    except ValidationError as error:
        raise explain(error, flatten(tree), where) from error


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
