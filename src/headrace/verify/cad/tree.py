"""Evaluating the description of a solid that a script in a sandbox wrote. Hostile input.

The format is what `sandboxed` writes: a node is `{"op": ...}` with exactly the keys of that op.
Runs in the child only. May be known by the worker.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from manifold3d import CrossSection, FillRule, Manifold

from headrace.types import Json

__all__ = ["BadModel", "evaluated", "parsed"]

_MAX_NODES, _MAX_DEPTH, _MAX_POINTS, _MAX_TRIANGLES = 2000, 150, 2000, 200_000
_MAX_LENGTH = 1e5


class BadModel(ValueError):
    """A file that describes no solid; the message says why."""


def parsed(text: bytes) -> Json:
    """The description in a file. Raises BadModel."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadModel(f"model.json is no JSON: {str(error)[:200]}") from error


def evaluated(node: Json) -> Manifold:
    """The solid of a description. Raises BadModel for anything else."""
    return _Evaluation().solid(node, 0)


class _Evaluation:
    """Counts what the whole description costs."""

    def __init__(self) -> None:
        self._nodes = 0
        self._triangles = 0

    def solid(self, node: Json, depth: int) -> Manifold:
        self._nodes += 1
        if self._nodes > _MAX_NODES or depth > _MAX_DEPTH:
            raise BadModel(f"more than {_MAX_NODES} nodes or {_MAX_DEPTH} levels")
        if not isinstance(node, dict) or not isinstance(node.get("op"), str):
            raise BadModel(f"not a node: {str(node)[:80]}")
        op = node["op"]
        if op in _JOINS:
            return self._joined(op, _checked(node, {"op", "of"})["of"], depth)
        if op in _MOVES:
            inner = _checked(node, {"op", "by", "of"})
            return _MOVES[op](self.solid(inner["of"], depth + 1), _vector(inner["by"], 3))
        if op in _SHAPES:
            return self._shaped(node)
        raise BadModel(f"no such op: {op[:40]!r}")

    def _joined(self, op: str, parts: Json, depth: int) -> Manifold:
        if not isinstance(parts, list) or not parts:
            raise BadModel(f"{op} of nothing")
        return _JOINS[op]([self.solid(part, depth + 1) for part in parts])

    def _shaped(self, node: dict[str, Json]) -> Manifold:
        keys, make = _SHAPES[node["op"]]
        _checked(node, keys)
        segments = _segments(node["segments"]) if "segments" in keys else 1
        points = len(_points(node["points"])) if "points" in keys else 1
        self._triangles += segments**2 // 2 if node["op"] == "sphere" else 4 * segments * points
        if self._triangles > _MAX_TRIANGLES:  # before any is made
            raise BadModel(f"about {self._triangles} triangles, more than {_MAX_TRIANGLES}")
        return make(node)


def _checked(node: dict[str, Json], keys: set[str]) -> dict[str, Json]:
    if set(node) != keys:
        raise BadModel(f"{node['op']} needs exactly the keys {sorted(keys)}")
    return node


def _length(value: Json, least: float = -_MAX_LENGTH) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadModel(f"not a number: {str(value)[:40]}")
    if not (math.isfinite(value) and least <= value <= _MAX_LENGTH):
        raise BadModel(f"a number out of range: {str(value)[:40]}")
    return float(value)


def _positive(value: Json) -> float:
    return _length(value, 1e-6)


def _vector(value: Json, size: int) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) != size:
        raise BadModel(f"not {size} numbers: {str(value)[:80]}")
    return tuple(_length(item) for item in value)


def _segments(value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 3 <= value <= 512:
        raise BadModel(f"segments must be 3 to 512, not {str(value)[:40]}")
    return value


def _points(points: Json) -> list[Json]:
    if not isinstance(points, list) or not 3 <= len(points) <= _MAX_POINTS:
        raise BadModel(f"a profile needs 3 to {_MAX_POINTS} points")
    return points


def _profile(points: Json) -> CrossSection:
    corners = np.array([_vector(point, 2) for point in _points(points)], np.float64)
    return CrossSection([corners], FillRule.EvenOdd)


def _box(node: dict[str, Json]) -> Manifold:
    size = node["size"]
    if not isinstance(size, list) or len(size) != 3:
        raise BadModel(f"not 3 numbers: {str(size)[:80]}")
    x, y, z = (_positive(item) for item in size)
    return Manifold.cube((x, y, z), node["center"] is True)


def _cylinder(node: dict[str, Json]) -> Manifold:
    low, high = _length(node["radius"], 0.0), _length(node["top"], 0.0)
    if max(low, high) == 0.0:
        raise BadModel("a cylinder without a radius")
    height, segments = _positive(node["height"]), _segments(node["segments"])
    if low == 0.0:  # manifold3d wants the larger end below
        cone = Manifold.cylinder(height, high, low, segments).rotate((180.0, 0.0, 0.0))
        made = cone.translate((0.0, 0.0, height))
    else:
        made = Manifold.cylinder(height, low, high, segments)
    return made.translate((0.0, 0.0, -height / 2)) if node["center"] is True else made


def _sphere(node: dict[str, Json]) -> Manifold:
    return Manifold.sphere(_positive(node["radius"]), _segments(node["segments"]))


def _extrude(node: dict[str, Json]) -> Manifold:
    twist, scale = _length(node["twist"]), _length(node["scale"], 0.0)
    slices = min(256, math.ceil(abs(twist) / 5.0))
    height = _positive(node["height"])
    return Manifold.extrude(_profile(node["points"]), height, slices, twist, (scale, scale))


def _revolve(node: dict[str, Json]) -> Manifold:
    degrees = _length(node["degrees"], 1e-3)
    return Manifold.revolve(
        _profile(node["points"]), _segments(node["segments"]), min(degrees, 360.0)
    )


def _difference(parts: list[Manifold]) -> Manifold:
    made = parts[0]
    for part in parts[1:]:
        made = made - part
    return made


def _union(parts: list[Manifold]) -> Manifold:
    made = parts[0]
    for part in parts[1:]:
        made = made + part
    return made


def _intersection(parts: list[Manifold]) -> Manifold:
    made = parts[0]
    for part in parts[1:]:
        made = made ^ part
    return made


def _scaled(solid: Manifold, by: tuple[float, ...]) -> Manifold:
    if 0.0 in by:
        raise BadModel("scaled to nothing")
    return solid.scale((by[0], by[1], by[2]))


def _mirrored(solid: Manifold, by: tuple[float, ...]) -> Manifold:
    if not any(by):
        raise BadModel("mirrored at no plane")
    return solid.mirror((by[0], by[1], by[2]))


_JOINS: dict[str, Callable[[list[Manifold]], Manifold]] = {
    "union": _union,
    "difference": _difference,
    "intersection": _intersection,
    "hull": Manifold.batch_hull,
}
_MOVES: dict[str, Callable[[Manifold, tuple[float, ...]], Manifold]] = {
    "translate": lambda solid, by: solid.translate((by[0], by[1], by[2])),
    "rotate": lambda solid, by: solid.rotate((by[0], by[1], by[2])),
    "scale": _scaled,
    "mirror": _mirrored,
}
_SHAPES: dict[str, tuple[set[str], Callable[[dict[str, Any]], Manifold]]] = {
    "box": ({"op", "size", "center"}, _box),
    "cylinder": ({"op", "height", "radius", "top", "segments", "center"}, _cylinder),
    "sphere": ({"op", "radius", "segments"}, _sphere),
    "extrude": ({"op", "points", "height", "twist", "scale"}, _extrude),
    "revolve": ({"op", "points", "segments", "degrees"}, _revolve),
}
