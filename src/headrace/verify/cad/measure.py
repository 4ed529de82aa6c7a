"""Measuring solids: what each is, and how far two are from being the same. Geometry, never images.

Volumes, areas, bodies, holes and intersections are exact for the facets given (manifold3d);
distances between surfaces are taken at seeded samples. Runs in the child only. May be known by
the worker.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import trimesh
from manifold3d import Manifold, Mesh64
from scipy.spatial import cKDTree

from headrace.types import Json
from headrace.verify.cad.meshes import Mesh

__all__ = ["Apart", "Shape", "aligned", "apart", "flaws", "overlap", "shape_of", "solid_of"]

Points = npt.NDArray[np.float64]

_SEED = 20240229
_PROBES, _TARGETS, _NEIGHBOURS = 1000, 5000, 8
_AXES = {"x": 0, "y": 1, "z": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A solid in numbers. `genera`: of each body, sorted, the through holes; `voids`: closed
    cavities; `low` and `high`: opposite corners of the bounding box."""

    volume: float
    area: float
    bodies: int
    voids: int
    genera: tuple[int, ...]
    low: tuple[float, float, float]
    high: tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """How far two surfaces are from each other, in the unit of the coordinates: the larger of
    the two 99th percentiles, and the mean of the two means (chamfer distance)."""

    p99: float
    chamfer: float


def flaws(mesh: Mesh) -> str | None:
    """Why a mesh bounds no solid; None if it does."""
    if not len(mesh.faces):
        return "empty"
    surface = trimesh.Trimesh(mesh.vertices, mesh.faces, process=False)
    if not surface.is_watertight:
        return "not watertight"
    if not surface.is_winding_consistent:
        return "inconsistent winding"
    if surface.volume <= 0.0:
        return "inside out"
    return None


def solid_of(mesh: Mesh) -> Manifold | None:
    """The solid inside a mesh without flaws; None if manifold3d finds one nevertheless."""
    triangles = np.ascontiguousarray(mesh.faces, dtype=np.uint64)
    solid = Manifold(Mesh64(np.ascontiguousarray(mesh.vertices), triangles))
    return None if solid.is_empty() else solid


def shape_of(solid: Manifold) -> Shape:
    """The numbers of a solid that is not empty."""
    parts = solid.decompose()
    volumes = [part.volume() for part in parts]
    box = solid.bounding_box()
    return Shape(
        volume=solid.volume(),
        area=solid.surface_area(),
        bodies=sum(volume > 0.0 for volume in volumes),
        voids=sum(volume < 0.0 for volume in volumes),
        genera=tuple(sorted(part.genus() for part in parts)),
        low=(box[0], box[1], box[2]),
        high=(box[3], box[4], box[5]),
    )


def overlap(first: Manifold, second: Manifold) -> float:
    """Intersection over union of volumes, 0..1."""
    common = (first ^ second).volume()
    whole = first.volume() + second.volume() - common
    return float(np.clip(common / whole, 0.0, 1.0)) if whole > 0.0 else 0.0


def apart(first: Manifold, second: Manifold) -> Apart:
    """The distances between the surfaces of two solids, at seeded samples of both."""
    one, other = _triangles(first), _triangles(second)
    there, back = _distances(one, other), _distances(other, one)
    return Apart(
        p99=float(max(np.quantile(there, 0.99), np.quantile(back, 0.99))),
        chamfer=float((there.mean() + back.mean()) / 2),
    )


def aligned(solid: Manifold, onto: Manifold, how: str) -> Manifold:
    """`solid` brought onto `onto` as far as `how` allows (see `CadSpec.align`)."""
    if how == "none":
        return solid
    goal = _centroid(onto)
    turns = _quarter_turns() if how == "pose" else [(0.0, 0.0, 0.0)]
    moved: list[Manifold] = []
    for turn in turns:
        turned = solid.rotate(turn)
        shift = goal - _centroid(turned)
        moved.append(turned.translate((float(shift[0]), float(shift[1]), float(shift[2]))))
    return max(moved, key=lambda candidate: overlap(candidate, onto))


def dimension(solid: Manifold, shape: Shape, measure: str, axis: str, at: float) -> float:
    """One measure of a solid; see `Dimension`."""
    place = _AXES[axis]
    low, high = shape.low[place], shape.high[place]
    values = {
        "extent": high - low,
        "minimum": low,
        "maximum": high,
        "volume": shape.volume,
        "area": shape.area,
    }
    if measure != "section":
        return values[measure]
    upright = {"x": (0.0, -90.0, 0.0), "y": (90.0, 0.0, 0.0), "z": (0.0, 0.0, 0.0)}[axis]
    return solid.rotate(upright).slice(at).area()


def facts(shape: Shape) -> dict[str, Json]:
    """A shape as evidence."""
    return {
        "volume": shape.volume,
        "area": shape.area,
        "bodies": shape.bodies,
        "voids": shape.voids,
        "genera": list(shape.genera),
        "low": list(shape.low),
        "high": list(shape.high),
    }


def _triangles(solid: Manifold) -> Points:
    """[m, 3, 3]"""
    mesh = solid.to_mesh64()
    vertices = np.asarray(mesh.vert_properties)[:, :3]
    return vertices[np.asarray(mesh.tri_verts).astype(np.int64)]


def _centroid(solid: Manifold) -> Points:
    """The centre of mass, from the signed tetrahedra between the facets and the origin."""
    corners = _triangles(solid)
    signed = np.einsum("ij,ij->i", corners[:, 0], np.cross(corners[:, 1], corners[:, 2]))
    return (corners.sum(axis=1) * signed[:, None]).sum(axis=0) / (4.0 * signed.sum())


def _quarter_turns() -> list[tuple[float, float, float]]:
    """Angles (x, y, z) of the 24 rotations that map the axes onto each other, each once."""
    found: dict[tuple[int, ...], tuple[float, float, float]] = {}
    cube = Manifold.cube((1.0, 2.0, 3.0)).translate((1.0, 1.0, 1.0))
    for x, y, z in itertools.product((0.0, 90.0, 180.0, 270.0), repeat=3):
        corners = cube.rotate((x, y, z)).bounding_box()
        found.setdefault(tuple(round(value) for value in corners), (x, y, z))
    return list(found.values())


def _samples(triangles: Points, count: int) -> tuple[Points, npt.NDArray[np.int64]]:
    """Points spread evenly over a surface, and the triangle of each."""
    random = np.random.default_rng(_SEED)
    sides = np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0])
    areas = np.linalg.norm(sides, axis=1)
    chosen = np.searchsorted(np.cumsum(areas), random.random(count) * areas.sum(), side="right")
    chosen = np.minimum(chosen, len(triangles) - 1)
    root = np.sqrt(random.random(count))
    along = random.random(count)
    weights = np.stack([1.0 - root, root * (1.0 - along), root * along], axis=1)
    return np.einsum("ni,nij->nj", weights, triangles[chosen]), chosen


def _distances(source: Points, target: Points) -> Points:
    """From samples of `source` to the surface `target`: exact to the triangles on which the
    nearest samples of `target` lie."""
    probes, _ = _samples(source, _PROBES)
    spots, owners = _samples(target, _TARGETS)
    nearest = cKDTree(spots).query(probes, k=_NEIGHBOURS)[1]
    facets = target[owners[nearest.reshape(-1)]]
    repeated = np.repeat(probes, _NEIGHBOURS, axis=0)
    closest = trimesh.triangles.closest_point(facets, repeated)
    gaps = np.linalg.norm(closest - repeated, axis=1).reshape(-1, _NEIGHBOURS)
    return gaps.min(axis=1)
