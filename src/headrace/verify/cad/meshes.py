"""Reading mesh files, strictly: binary and ASCII STL, and OBJ with nothing but its geometry.

A file is bytes from a sandbox, and hostile. Runs in the child only. May be known by the worker.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["BadMesh", "Mesh", "read_obj", "read_stl"]

_MAX_TRIANGLES = 200_000
_MAX_LENGTH = 1e6
_OBJ_IGNORED = frozenset({"vn", "vt", "o", "g", "s", "usemtl", "mtllib"})


class BadMesh(ValueError):
    """A file that is no mesh of its format; the message says why."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """`vertices` float64 [n, 3], all different; `faces` int64 [m, 3], none without three
    different corners."""

    vertices: npt.NDArray[np.float64]
    faces: npt.NDArray[np.int64]


def read_stl(data: bytes) -> Mesh:
    """A binary file (84 bytes and 50 for each triangle, exactly), else an ASCII one."""
    count = int.from_bytes(data[80:84], "little") if len(data) >= 84 else -1
    if len(data) == 84 + 50 * count:
        _few(count)
        record = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("rest", "<u2")])
        corners = np.frombuffer(data, record, count, 84)["corners"].astype(np.float64)
        return _welded(corners.reshape(-1, 3), np.arange(3 * count).reshape(-1, 3))
    return _ascii_stl(data)


def read_obj(data: bytes) -> Mesh:
    """Vertices and polygons (cut into fans). Materials and other files are never looked for."""
    vertices: list[list[float]] = []
    faces: list[tuple[int, int, int]] = []
    for line in _lines(data):
        words = line.split()
        if not words or words[0].startswith("#") or words[0] in _OBJ_IGNORED:
            continue
        if words[0] == "v" and len(words) in (4, 7):
            vertices.append([_number(word) for word in words[1:4]])
        elif words[0] == "f" and len(words) >= 4:
            corners = [_corner(word, len(vertices)) for word in words[1:]]
            faces.extend(
                (corners[0], second, third) for second, third in itertools.pairwise(corners[1:])
            )
            _few(len(faces))
        else:
            raise BadMesh(f"not a line of a mesh: {line[:60]!r}")
    _few(len(faces))
    return _welded(np.array(vertices, np.float64).reshape(-1, 3), np.array(faces).reshape(-1, 3))


def _ascii_stl(data: bytes) -> Mesh:
    lines = [line.split() for line in _lines(data) if line.strip()]
    if not lines or lines[0][0] != "solid" or lines[-1][0] != "endsolid":
        raise BadMesh("neither binary nor ASCII STL")
    body = lines[1:-1]
    if len(body) % 7:
        raise BadMesh("a facet has seven lines")
    _few(len(body) // 7)
    corners: list[list[float]] = []
    frame = ("facet", "outer", "vertex", "vertex", "vertex", "endloop", "endfacet")
    for start in range(0, len(body), 7):
        facet = body[start : start + 7]
        if tuple(words[0] for words in facet) != frame:
            raise BadMesh(f"not a facet: {' '.join(facet[0])[:60]!r}")
        for words in facet[2:5]:
            if len(words) != 4:
                raise BadMesh("a vertex has three coordinates")
            corners.append([_number(word) for word in words[1:]])
    points = np.array(corners, np.float64).reshape(-1, 3)
    return _welded(points, np.arange(len(points)).reshape(-1, 3))


def _lines(data: bytes) -> list[str]:
    try:
        return data.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise BadMesh("neither a binary mesh nor ASCII text") from error


def _number(word: str) -> float:
    try:
        value = float(word)
    except ValueError as error:
        raise BadMesh(f"not a number: {word[:40]!r}") from error
    if not math.isfinite(value):
        raise BadMesh(f"not a finite number: {word[:40]!r}")
    return value


def _corner(word: str, count: int) -> int:
    text = word.split("/")[0]
    digits = text.removeprefix("-")
    if not (digits.isdecimal() and len(digits) < 10):
        raise BadMesh(f"not a corner: {word[:40]!r}")
    index = int(text)
    place = index - 1 if index > 0 else count + index
    if index == 0 or not 0 <= place < count:
        raise BadMesh(f"a corner that is no vertex: {word[:40]!r}")
    return place


def _few(triangles: int) -> None:
    if not 0 < triangles <= _MAX_TRIANGLES:
        raise BadMesh(f"{triangles} triangles; it must be 1 to {_MAX_TRIANGLES}")


def _welded(points: npt.NDArray[np.float64], faces: npt.NDArray[np.int64]) -> Mesh:
    """Vertices at the same place become one; triangles that are only a line go."""
    if not np.isfinite(points).all() or np.abs(points).max(initial=0.0) > _MAX_LENGTH:
        raise BadMesh(f"coordinates beyond {_MAX_LENGTH:g}, or not finite")
    used = points[faces.reshape(-1)] + 0.0
    vertices, places = np.unique(used, axis=0, return_inverse=True)
    corners = places.reshape(-1, 3)
    a, b, c = corners.T
    return Mesh(vertices, corners[(a != b) & (b != c) & (c != a)])
