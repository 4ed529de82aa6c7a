"""What keys a recipe has: their dotted paths, types and defaults, read off the pydantic models.

List positions are written `N`: `tasks.domains.N.weight`.
"""

from __future__ import annotations

import difflib
import types
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from headrace.recipe import PRESETS, Recipe

__all__ = ["AXES", "Key", "keys", "nearest", "pattern"]

AXES = frozenset(key for preset in PRESETS.values() for key in preset)
"""The keys of `algorithm` that presets choose."""

_PLAIN = (int, float, str, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of a recipe. `table` holds further keys below it; `default` is shown, not used.

    `nullable`: the word none switches it off.
    """

    path: str
    type: str
    default: str
    table: bool
    nullable: bool


@cache
def keys() -> dict[str, Key]:
    """Every key of a recipe by its path, in the order of the schema."""
    return {key.path: key for key in _walk(Recipe, "")}


def pattern(path: str) -> str:
    """`tasks.domains.3.weight` -> `tasks.domains.N.weight`."""
    return ".".join("N" if part.isdecimal() else part for part in path.split("."))


def nearest(path: str) -> str | None:
    """The valid key most like an unknown one, or None.

    Tried in turn: the same name elsewhere in the recipe (nearest to the top), a sibling with
    those initials (lr for learning_rate), a similar sibling, a similar name elsewhere.

    >>> nearest("learning_rate"), nearest("play.group")
    ('learner.learning_rate', 'play.groups')
    """
    parent, _, name = path.rpartition(".")
    prefix = f"{parent}." if parent else ""
    below = [key.removeprefix(pattern(prefix)) for key in keys() if key.startswith(pattern(prefix))]
    siblings = [key for key in below if "." not in key]
    elsewhere: dict[str, str] = {}
    for key in sorted(keys(), key=lambda key: key.count(".")):
        elsewhere.setdefault(key.rpartition(".")[2], key)
    if name in elsewhere:
        return elsewhere[name]
    initials = {"".join(word[:1] for word in key.split("_")): key for key in siblings}
    if near := [initials[name]] if name in initials else _similar(name, siblings, 0.6):
        return f"{prefix}{near[0]}"
    near = _similar(name, list(elsewhere), 0.75)
    return elsewhere[near[0]] if near else None


def _similar(name: str, names: list[str], cutoff: float) -> list[str]:
    return difflib.get_close_matches(name, names, n=1, cutoff=cutoff)


def _walk(model: type[BaseModel], prefix: str) -> list[Key]:
    found: list[Key] = []
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        inner, repeated = _inner(field.annotation)
        nullable = type(None) in get_args(field.annotation)
        found.append(
            Key(
                path=path,
                type=_type_name(field),
                default=_default(field),
                table=inner is not None,
                nullable=nullable,
            )
        )
        if inner is not None:
            found += _walk(inner, f"{path}.N." if repeated else f"{path}.")
    return found


def _inner(annotation: object) -> tuple[type[BaseModel] | None, bool]:
    """The model inside an annotation, and whether a list of them is meant."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for argument in get_args(annotation):
        inner, _ = _inner(argument)
        if inner is not None:
            return inner, get_origin(annotation) is tuple
    return None, False


def _type_name(field: FieldInfo) -> str:
    name = _spell(field.annotation)
    bounds = _bounds(field.metadata)
    return f"{name} {bounds}" if bounds else name


def _spell(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = _bounds(_constraints(arguments[1:]))
        return f"{_spell(arguments[0])} {bounds}" if bounds else _spell(arguments[0])
    if origin is Literal:
        return " | ".join(repr(value) for value in arguments)
    if origin in (Union, types.UnionType):
        return " | ".join("none" if a is type(None) else _spell(a) for a in arguments)
    if origin is tuple:
        return f"list of {_spell(arguments[0])}"
    return annotation.__name__ if annotation in _PLAIN else "table"


def _constraints(metadata: tuple[object, ...]) -> list[object]:
    found: list[object] = []
    for item in metadata:
        found += item.metadata if isinstance(item, FieldInfo) else [item]
    return found


def _bounds(metadata: list[Any]) -> str:
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    return ", ".join(
        f"{sign} {getattr(item, name)!r}"
        for item in metadata
        for name, sign in signs.items()
        if getattr(item, name, None) is not None
    )


def _default(field: FieldInfo) -> str:
    default = cast("object", field.default)
    if default is PydanticUndefined:
        return "(required)"
    if default is None:
        return "none"
    return repr(default) if isinstance(default, _PLAIN) else ""
