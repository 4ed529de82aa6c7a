"""The child in which meshes are read and measured: `python -m headrace.verify.cad.worker`.

Needs trimesh and manifold3d. A candidate's file is data here, never a program.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Mapping

from manifold3d import Manifold

from headrace.types import Json, canonical_json
from headrace.verify.cad import measure
from headrace.verify.cad.meshes import BadMesh, read_obj, read_stl
from headrace.verify.cad.tree import BadModel, evaluated, parsed
from headrace.verify.child import serve

__all__ = ["handle"]

_READERS = {"model.stl": read_stl, "model.obj": read_obj}


class _Flawed(Exception):
    """A candidate without a solid: the gate it fails, and why."""

    def __init__(self, gate: str, why: str) -> None:
        super().__init__(why)
        self.gate = gate
        self.why = why


def handle(request: Json) -> Json:
    """`{"fault"}` for a bad reference, `{"gate", "why"}` for a candidate without a solid, else
    all measures of both. With no `candidate`, those of the reference alone."""
    try:
        right = _reference(canonical_json(request["reference"]))
    except (BadModel, BadMesh) as error:
        return {"fault": str(error)}
    wanted = measure.shape_of(right)
    reply: dict[str, Json] = {"reference": measure.facts(wanted)}
    if request["candidate"] is None:
        return reply
    try:
        found = _candidate(request["candidate"])
    except _Flawed as flaw:
        return {**reply, "gate": flaw.gate, "why": flaw.why}
    sizes = measure.facts(measure.shape_of(found))
    if not _comparable(sizes, reply["reference"]):
        return {**reply, "candidate": sizes}
    placed = measure.aligned(found, right, request["align"])
    shape = measure.shape_of(placed)
    gaps = measure.apart(placed, right)
    return {
        **reply,
        "candidate": measure.facts(shape),
        "iou": measure.overlap(placed, right),
        "p99": gaps.p99,
        "chamfer": gaps.chamfer,
        "dimensions": [
            [
                measure.dimension(solid, of, item["measure"], item["axis"], item["at"])
                for solid, of in ((placed, shape), (right, wanted))
            ]
            for item in request["dimensions"]
        ],
    }


@functools.lru_cache(maxsize=16)
def _reference(text: str) -> Manifold:
    """Remembered, since many attempts share a task."""
    reference = json.loads(text)
    if reference["stl"] is None:
        solid = evaluated(reference["tree"])
    else:
        mesh = read_stl(reference["stl"].encode("ascii", "replace"))
        flaw = measure.flaws(mesh)
        if flaw is not None:
            raise BadMesh(flaw)
        solid = measure.solid_of(mesh)
    if solid is None or solid.is_empty() or solid.volume() <= 0.0:
        raise BadModel("the reference is no solid")
    return solid


def _candidate(candidate: Mapping[str, Json]) -> Manifold:
    data = base64.b64decode(candidate["data"])
    try:
        if candidate["name"] == "model.json":
            solid = evaluated(parsed(data))
        else:
            mesh = _READERS[candidate["name"]](data)
            flaw = measure.flaws(mesh)
            if flaw is not None:
                raise _Flawed("solid", flaw)
            solid = measure.solid_of(mesh)
    except (BadModel, BadMesh) as error:
        raise _Flawed("file", str(error)) from error
    if solid is None or solid.is_empty() or solid.volume() <= 0.0:
        raise _Flawed("solid", "empty, or not a manifold")
    return solid


def _comparable(found: Mapping[str, Json], wanted: Mapping[str, Json]) -> bool:
    """Not so large or small that exact booleans of both lose their meaning."""
    return 1e-3 < _diagonal(found) / _diagonal(wanted) < 1e3


def _diagonal(shape: Mapping[str, Json]) -> float:
    return (
        sum((high - low) ** 2 for low, high in zip(shape["low"], shape["high"], strict=True)) ** 0.5
    )


if __name__ == "__main__":
    serve(lambda: handle)
