"""Turns what pydantic found wrong into one error a person can act on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import ValidationError

from headrace.configure.layers import Leaf, origins_below
from headrace.configure.schema import keys, nearest, pattern
from headrace.errors import RecipeError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = ["explain"]

_LONGEST = 60


def explain(error: ValidationError, leaves: Mapping[str, Leaf], ref: str) -> RecipeError:
    """One RecipeError for everything in `error`: `path: message (got X, from ORIGIN)`."""
    found: dict[str, str] = {}
    hint = table = ""
    for detail in error.errors(include_url=False):
        path = _path(detail)
        near = nearest(path) if detail["type"] == "extra_forbidden" else None
        if near and not hint:
            hint = f"did you mean {near}?"
        unknown = detail["type"] == "extra_forbidden"
        table = table or (path.rpartition(".")[0] if unknown else path)
        found.setdefault(path, _line(detail, path, near, leaves))
    lines = list(found.values())
    hint = hint or f"headrace recipes keys {pattern(table)}".rstrip()
    if len(lines) == 1:
        return RecipeError(lines[0], hint=hint)
    listed = "".join(f"\n  {line}" for line in lines)
    return RecipeError(f"{len(lines)} problems in recipe {ref}:{listed}", hint=hint)


def _path(detail: ErrorDetails) -> str:
    """The dotted path, without the names pydantic gives to the members of a union."""
    path = ""
    for part in detail["loc"]:
        longer = f"{path}.{part}" if path else str(part)
        known = isinstance(part, int) or pattern(longer) in keys()
        if not known and detail["type"] != "extra_forbidden":
            break
        path = longer
    return path


def _line(detail: ErrorDetails, path: str, near: str | None, leaves: Mapping[str, Leaf]) -> str:
    if detail["type"] == "missing":
        return f"{path}: is required and missing{_from(leaves, path.rpartition('.')[0])}"
    if detail["type"] == "extra_forbidden":
        guess = f"; the nearest is {near}" if near else ""
        return f"{path}: unknown key{guess}{_from(leaves, path)}"
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if detail["type"] == "value_error":
        return f"{path}: {message}" if path else message
    plain = {"tuple_type": "should be a list", "model_type": "should be a table"}
    message = plain.get(detail["type"], message)
    return f"{path}: {message}{_from(leaves, path, got=detail['input'])}"


def _from(leaves: Mapping[str, Leaf], path: str, *, got: object = ...) -> str:
    """` (got X, from ORIGIN)`, as much of it as there is to say."""
    origins = ", ".join(o for o in origins_below(leaves, path) if o != "default")
    parts = [] if got is ... else [f"got {_shown(got)}"]
    parts += [f"from {origins}"] if origins else []
    return f" ({', '.join(parts)})" if parts else ""


def _shown(value: object) -> str:
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
