"""Where recipes come from: shipped by name, a TOML file, a run's recipe.json, Python code.

Each source gives a tree of leaves that know their origin. Python code is imported only when a
reference names it (`pkg.mod:function`, `file.py:function`), never through `extends`.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import json
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import cast

from headrace.configure.layers import Leaf, Node, merge, wrap
from headrace.errors import RecipeError

__all__ = ["Shipped", "cover", "load_tree", "shipped_recipes", "shipped_text"]


@dataclass(frozen=True, slots=True)
class Shipped:
    """A recipe that comes with headrace: its name, one line about it, and its TOML text."""

    name: str
    description: str
    text: str


def shipped_recipes() -> tuple[Shipped, ...]:
    """Every shipped recipe, by name."""
    found: list[Shipped] = []
    for entry in (files("headrace") / "recipes").iterdir():
        if entry.name.endswith(".toml"):
            text = entry.read_text(encoding="utf-8")
            description = str(tomllib.loads(text).get("description", ""))
            found.append(Shipped(entry.name.removesuffix(".toml"), description, text))
    return tuple(sorted(found, key=lambda shipped: shipped.name))


def shipped_text(name: str) -> str:
    """The TOML text of the shipped recipe `name`."""
    known = {shipped.name: shipped.text for shipped in shipped_recipes()}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        shipped = f"shipped recipes: {', '.join(known)}"
        raise RecipeError(
            f"no recipe {name!r}",
            hint=f"did you mean {near[0]}? {shipped}" if near else f"{shipped}; or a path to .toml",
        )
    return known[name]


def load_tree(ref: str, *, algorithm_axes: frozenset[str]) -> dict[str, Node]:
    """The values that `ref` sets, with those of the recipes it extends beneath.

    `algorithm_axes` are the keys of `algorithm` that a preset chooses: see `cover`.
    """
    if ":" in ref and not ref.endswith((".toml", ".json")):
        values = _call(ref)
        tree, base = _rooted(values, lambda _: ref, fallback_name=ref.rpartition(":")[2])
        return _extend(tree, base, Path(), (ref,), algorithm_axes)
    return _load_file(ref, Path(), (), algorithm_axes)


def cover(base: dict[str, Node], layer: dict[str, Node], axes: frozenset[str]) -> dict[str, Node]:
    """`layer` over `base`. A layer that chooses a preset chooses every axis anew: what `base`
    said about the axes was said about another algorithm."""
    chosen = layer.get("algorithm")
    if isinstance(chosen, dict) and "preset" in chosen and isinstance(base.get("algorithm"), dict):
        before = cast("dict[str, Node]", base["algorithm"])
        kept: dict[str, Node] = {key: node for key, node in before.items() if key not in axes}
        base = {**base, "algorithm": kept}
    return cast("dict[str, Node]", merge(base, layer))


def _load_file(
    ref: str, folder: Path, chain: tuple[str, ...], axes: frozenset[str]
) -> dict[str, Node]:
    """Load a shipped name or a path (relative to `folder`), refusing to go in circles."""
    if ref.endswith((".toml", ".json")):
        path = (folder / ref).expanduser()
        identity, text = str(path.resolve()), _read(path)
        values, origin = _parse(text, path, ref)
        stem, folder = path.stem, path.parent
    else:
        identity, text = f"recipe {ref}", shipped_text(ref)
        values, origin = tomllib.loads(text), lambda _: f"recipe {ref}"
        stem, folder = ref, Path()
    if identity in chain:
        circle = " -> ".join((*chain, identity))
        raise RecipeError(f"recipes extend each other: {circle}", hint="remove one `extends`")
    tree, base = _rooted(values, origin, fallback_name=stem)
    return _extend(tree, base, folder, (*chain, identity), axes)


def _extend(
    tree: dict[str, Node],
    base: str | None,
    folder: Path,
    chain: tuple[str, ...],
    axes: frozenset[str],
) -> dict[str, Node]:
    if base is None:
        return tree
    if ":" in base:
        raise RecipeError(
            f"extends = {base!r} would run code",
            where=chain[-1],
            hint="extend a shipped recipe or a .toml file; name Python code on the command line",
        )
    parent = _load_file(base, folder, chain, axes)
    parent = {key: node for key, node in parent.items() if key not in ("name", "description")}
    return cover(parent, tree, axes)


def _rooted(
    values: Mapping[str, object], origin: Callable[[str], str], *, fallback_name: str
) -> tuple[dict[str, Node], str | None]:
    """The tree of a source, named after the source unless it says otherwise, and its base."""
    values = dict(values)
    base = values.pop("extends", None)
    if base is not None and not isinstance(base, str):
        raise RecipeError(f"extends must be a string, got {base!r}", where=origin("extends"))
    tree = cast("dict[str, Node]", wrap(values, origin))
    if "name" not in tree:
        slug = re.sub(r"[^a-z0-9_.-]+", "-", fallback_name.lower()).strip("-_.")[:64]
        tree["name"] = Leaf(slug or "run", origin(""))
    return tree, base


# --- files ---------------------------------------------------------------------------------


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        near = difflib.get_close_matches(path.name, _names(path.parent), n=1)
        hint = f"did you mean {path.parent / near[0]}?" if near else "headrace recipes ls"
        raise RecipeError("no such recipe file", where=str(path), hint=hint) from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot read the recipe: {error}", where=str(path)) from error


def _names(folder: Path) -> list[str]:
    return [entry.name for entry in folder.glob("*.toml")]


def _parse(text: str, path: Path, ref: str) -> tuple[dict[str, object], Callable[[str], str]]:
    try:
        if path.suffix == ".toml":
            lines = _toml_lines(text)
            return tomllib.loads(text), lambda key: _located(ref, key, lines)
        values: object = json.loads(text)
    except ValueError as error:
        raise RecipeError(f"not valid {path.suffix[1:].upper()}: {error}", where=ref) from error
    if not isinstance(values, dict):
        raise RecipeError("a recipe must be a JSON object", where=ref)
    return cast("dict[str, object]", values), lambda _: ref


def _located(ref: str, key: str, lines: Mapping[str, int]) -> str:
    """`ref:line` of the key or of the nearest table above it, `ref` if neither was found."""
    while key and key not in lines:
        key = key.rpartition(".")[0]
    return f"{ref}:{lines[key]}" if key else ref


_HEADER = re.compile(r"^\s*(\[\[?)\s*([\w.\-]+)\s*\]")
_KEY = re.compile(r"^\s*([\w.\-]+)\s*=")


def _toml_lines(text: str) -> dict[str, int]:
    """The line of each table and key written in the plain style; others are just not found."""
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            table = header[2]
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = f"{table}.{counts[table]}"
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault(f"{table}.{key[1]}" if table else key[1], number)
    return lines


# --- Python --------------------------------------------------------------------------------


def _call(ref: str) -> dict[str, object]:
    """Import and call `pkg.mod:function` or `file.py:function`; the values it sets."""
    from headrace.recipe import PRESETS, Recipe

    target, _, attribute = ref.rpartition(":")
    function = getattr(_import(target, ref), attribute, None)
    if not callable(function):
        raise RecipeError(f"{target} has no function {attribute!r}", where=ref)
    made: object = function()
    if isinstance(made, Recipe):
        values = made.model_dump(exclude_unset=True)
        algorithm = values.get("algorithm", {})
        preset = PRESETS.get(algorithm.get("preset"), {})
        for key in [key for key, value in preset.items() if algorithm.get(key) == value]:
            del algorithm[key]
        return values
    if not isinstance(made, dict):
        raise RecipeError(
            f"a recipe function must return a Recipe or a dict, got {type(made).__name__}",
            where=ref,
        )
    return cast("dict[str, object]", made)


def _import(target: str, ref: str) -> ModuleType:
    try:
        if not target.endswith(".py"):
            sys.path.insert(0, str(Path.cwd()))
            try:
                return importlib.import_module(target)
            finally:
                sys.path.remove(str(Path.cwd()))
        path = Path(target).expanduser().resolve()
        spec = importlib.util.spec_from_file_location(f"_headrace_recipe_{path.stem}", path)
        if spec is None or spec.loader is None:
            raise RecipeError("cannot be imported", where=target)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module
    except (ImportError, OSError, SyntaxError) as error:
        raise RecipeError(
            f"cannot import {target}: {error}",
            where=ref,
            hint="name it as pkg.mod:function or path/to/file.py:function",
        ) from error
