"""Solids from boxes, cylinders, spheres and profiles. Lengths in mm, angles in degrees.

This file is copied into the sandbox as `cad.py`, so it stands alone. It computes no geometry: it
writes down what was asked for (`model.json`), and whoever judges evaluates that. May be known by
nobody on the judge's side but as text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

__all__ = ["Solid", "box", "cylinder", "extrude", "hull", "revolve", "sphere", "write"]

Number = float


class Solid:
    """A solid: `a + b` joins, `a - b` cuts, `a & b` keeps what both have. Never changes."""

    def __init__(self, node: dict[str, Any]) -> None:
        self.node = node

    def __add__(self, other: Solid) -> Solid:
        return self._with("union", other)

    def __sub__(self, other: Solid) -> Solid:
        return self._with("difference", other)

    def __and__(self, other: Solid) -> Solid:
        return self._with("intersection", other)

    def translate(self, x: Number = 0, y: Number = 0, z: Number = 0) -> Solid:
        """Moved."""
        return Solid({"op": "translate", "by": [x, y, z], "of": self.node})

    def rotate(self, x: Number = 0, y: Number = 0, z: Number = 0) -> Solid:
        """Turned about the axes through the origin: first x, then y, then z."""
        return Solid({"op": "rotate", "by": [x, y, z], "of": self.node})

    def scale(self, x: Number = 1, y: Number = 1, z: Number = 1) -> Solid:
        """Stretched from the origin."""
        return Solid({"op": "scale", "by": [x, y, z], "of": self.node})

    def mirror(self, x: Number = 0, y: Number = 0, z: Number = 0) -> Solid:
        """Mirrored at the plane through the origin with that normal."""
        return Solid({"op": "mirror", "by": [x, y, z], "of": self.node})

    def _with(self, op: str, other: Solid) -> Solid:
        same = self.node["op"] == op
        first = self.node["of"] if same else [self.node]
        return Solid({"op": op, "of": [*first, other.node]})


def box(x: Number, y: Number, z: Number, center: bool = False) -> Solid:
    """A box from the origin to (x, y, z), or around the origin."""
    return Solid({"op": "box", "size": [x, y, z], "center": center})


def cylinder(
    height: Number,
    radius: Number,
    top: Number | None = None,
    segments: int = 64,
    center: bool = False,
) -> Solid:
    """A cylinder along z from z = 0, or around the origin; a cone if `top` is another radius."""
    upper = radius if top is None else top
    node = {"op": "cylinder", "height": height, "radius": radius, "top": upper}
    return Solid({**node, "segments": segments, "center": center})


def sphere(radius: Number, segments: int = 64) -> Solid:
    """A sphere around the origin."""
    return Solid({"op": "sphere", "radius": radius, "segments": segments})


def extrude(
    points: Sequence[Sequence[Number]], height: Number, twist: Number = 0, scale: Number = 1
) -> Solid:
    """The polygon of (x, y) points, raised from z = 0."""
    node = {"op": "extrude", "points": [list(point) for point in points], "height": height}
    return Solid({**node, "twist": twist, "scale": scale})


def revolve(points: Sequence[Sequence[Number]], segments: int = 64, degrees: Number = 360) -> Solid:
    """The polygon of (radius, z) points, turned about the z axis."""
    node = {"op": "revolve", "points": [list(point) for point in points], "segments": segments}
    return Solid({**node, "degrees": degrees})


def hull(*solids: Solid) -> Solid:
    """The smallest convex solid around all of them."""
    return Solid({"op": "hull", "of": [solid.node for solid in solids]})


def write(solid: Solid) -> None:
    """Hand in the part: writes `model.json`. The last call counts."""
    with open("model.json", "w") as file:  # noqa: PTH123 (no pathlib: a script may not need it)
        json.dump(solid.node, file)
