"""The end of the page: what exactly was run, on what, and how to go on from here."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from headrace.observe.report.gather import Material
from headrace.observe.report.markup import Html, Node, clip, tag
from headrace.observe.report.parts import absent, section, table
from headrace.observe.report.values import plain
from headrace.recipe import Recipe
from headrace.types import Json

__all__ = ["details"]

_DEEPEST = 8
_CLIP = 300
_FILES = (
    ("recipe.json", "the resolved recipe"),
    ("env.json", "machine and software"),
    ("status.json", "how the run stands"),
    ("events.jsonl", "everything that happened, one line each"),
    ("metrics.parquet", "the numbers as a table"),
    ("trajectories/", "every attempt, token by token"),
    ("evals/", "every held-out answer"),
    ("checkpoints/", "weights and state to resume from"),
    ("logs/", "what was said on the console"),
)


def details(material: Material) -> Html:
    """The section: recipe, environment, files, next commands."""
    return section(
        "details",
        "What was run",
        tag("h3", "Recipe"),
        *_recipe(material.recipe),
        tag("h3", "Machine and software"),
        _environment(material.env),
        tag("h3", "Files of the run"),
        _files(material),
        tag("h3", "From here"),
        _commands(material),
    )


def _recipe(recipe: Json) -> list[Html]:
    if not isinstance(recipe, dict):
        return [absent("The recipe could not be read.")]
    default = _flat(Recipe().model_dump(mode="json"))
    values = _flat(recipe)
    changed: list[list[Node]] = [
        [tag("code", key), _value(value), _value(default[key]) if key in default else "–"]
        for key, value in values.items()
        if key not in default or plain(default[key]) != plain(value)
    ]
    if not changed:
        return [absent("Every value is the default.")]
    everything: list[list[Node]] = [
        [tag("code", key), _value(value)] for key, value in values.items()
    ]
    return [
        table(["Changed from the default", "Value", "Default"], changed),
        tag(
            "details",
            tag("summary", f"All {len(values)} values"),
            table(["Key", "Value"], everything),
        ),
    ]


def _flat(value: Json, prefix: str = "", depth: int = 0) -> dict[str, Json]:
    """Leaves of nested objects by dotted name; lists of scalars stay whole."""
    if isinstance(value, dict) and value and depth < _DEEPEST:
        inner: dict[str, Json] = {}
        for key, item in value.items():
            inner |= _flat(item, f"{prefix}.{key}" if prefix else str(key), depth + 1)
        return inner
    return {prefix or "(all)": value}


def _value(value: Json) -> Html:
    return tag("code", clip(plain(value), _CLIP))


def _environment(env: Mapping[str, Json]) -> Html:
    rows: list[list[Node]] = [
        [tag("code", key), _value(value)] for key, value in _flat(dict(env)).items()
    ]
    if not env:
        return absent("The environment was not recorded.")
    return table(["What", "Value"], rows)


def _files(material: Material) -> Html:
    there: list[list[Node]] = [
        [tag("code", name), told] for name, told in _FILES if (material.path / name).exists()
    ]
    return table([f"In {material.path}", ""], there)


def _commands(material: Material) -> Html:
    run = shlex.quote(str(material.path))
    state = material.status.state if material.status else ""
    lines = [f"headrace show {run} --json", f"headrace diff {run} OTHER_RUN"]
    if state in ("interrupted", "failed", "dead"):
        lines.insert(0, f"headrace resume {run}")
    return tag("pre", "\n".join(lines), class_="commands")
