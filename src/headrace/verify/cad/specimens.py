"""Five parts with scripts that make them, and others that only look as if they did.

May be known by the kind.
"""

from __future__ import annotations

from headrace.types import Json
from headrace.verify.cad.verifier import CadMesh
from headrace.verify.kinds import Specimen, Specimens

__all__ = ["API", "specimens"]

API = """\
Write a Python script in a ```python fence that builds the part with the module `cad` and hands \
it in with `write(part)`. Lengths are in mm, angles in degrees.

box(x, y, z, center=False): from the origin to (x, y, z), or around the origin
cylinder(height, radius, top=None, segments=64, center=False): along z; `top`: another radius
sphere(radius, segments=64)
extrude(points, height, twist=0, scale=1): a polygon of (x, y), raised along z
revolve(points, segments=64, degrees=360): a polygon of (radius, z), turned about z
hull(*parts)
a + b, a - b, a & b: union, difference, intersection
.translate(x, y, z) .rotate(x, y, z) .scale(x, y, z) .mirror(x, y, z)
"""
"""What a prompt says of the module `cad`."""

_PLATE = "box(60, 40, 6)"


def specimens() -> Specimens:
    """The domain with which the kind is audited."""
    return Specimens(
        "cad-specimens", CadMesh(), (_plate(), _bracket(), _spacer(), _wedge(), _pin())
    )


def _script(code: str) -> str:
    return f"```python\nfrom cad import *\n{code}\n```"


def _specimen(
    question: str,
    answer: dict[str, Json],
    reference: str,
    *,
    right: tuple[str, ...] = (),
    wrong: tuple[str, ...] = (),
) -> Specimen:
    return Specimen(
        prompt=f"{question}\n\n{API}",
        answer=answer,
        reference=_script(reference),
        right=tuple(_script(code) for code in right),
        wrong=tuple(_script(code) for code in wrong),
    )


def _box(*size: float) -> Json:
    return {"op": "box", "size": list(size), "center": False}


def _moved(node: Json, *by: float) -> Json:
    return {"op": "translate", "by": list(by), "of": node}


def _round(height: float, radius: float) -> Json:
    node = {"op": "cylinder", "height": height, "radius": radius, "top": radius}
    return {**node, "segments": 128, "center": False}


def _plate() -> Specimen:
    places = [(10, 10), (50, 10), (10, 30), (50, 30)]
    holes = [_moved(_round(10, 4), x, y, -2) for x, y in places]
    code = f"part = {_PLATE}\nfor x in (10, 50):\n    for y in (10, 30):\n        part = part - "
    return _specimen(
        "A plate of 60 x 40 x 6 with a corner in the origin, and four holes of diameter 8 along z "
        "at (10, 10), (50, 10), (10, 30) and (50, 30).",
        {
            "reference": {"tree": {"op": "difference", "of": [_box(60, 40, 6), *holes]}},
            "dimensions": [
                {"name": "thickness", "measure": "extent", "axis": "z", "tolerance": 0.05},
                {"name": "section", "measure": "section", "axis": "z", "at": 3, "tolerance": 5.0},
            ],
        },
        code + "cylinder(10, 4).translate(x, y, -2)\nwrite(part)",
        right=(
            "a = cylinder(20, 4, segments=96, center=True)\n"
            "h = a.translate(-20, -10) + a.translate(20, -10)\n"
            "part = box(60, 40, 6, center=True) - h - h.translate(0, 20)\n"
            "write(part.translate(30, 20, 3))",
        ),
        wrong=(
            f"write({_PLATE})",
            code + "cylinder(10, 8).translate(x, y, -2)\nwrite(part)",
            code + "cylinder(5, 4).translate(x, y, 3)\nwrite(part)",
            code + "cylinder(10, 4).translate(x, y, -2)\nwrite(part.translate(-30, -20, 0))",
            code + "cylinder(10, 4).translate(x, y, -2)\nwrite(part.scale(1, 1, 1.5))",
        ),
    )


def _bracket() -> Specimen:
    code = "part = box(40, 20, 5) + box(5, 20, 30)\n"
    return _specimen(
        "An L-shaped bracket, a corner in the origin: a foot of 40 x 20 x 5 and a wall of "
        "5 x 20 x 30 that stands on the side x = 0 (30 high in all).",
        {"reference": {"tree": {"op": "union", "of": [_box(40, 20, 5), _box(5, 20, 30)]}}},
        code + "write(part)",
        right=(
            "profile = [(0, 0), (40, 0), (40, 5), (5, 5), (5, 30), (0, 30)]\n"
            "write(extrude(profile, 20).rotate(90).translate(0, 20))",
        ),
        wrong=(
            code + "write(part.mirror(1).translate(40))",
            code + "write(part + box(2, 2, 2).translate(60, 60, 60))",
            code + "write(part.rotate(0, 0, 90))",
            "write(hull(box(40, 20, 5), box(5, 20, 30)))",
            "write(box(40, 20, 5))",
        ),
    )


def _spacer() -> Specimen:
    tree = {"op": "difference", "of": [_round(12, 10), _moved(_round(16, 6), 0, 0, -2)]}
    return _specimen(
        "A ring-shaped spacer around the z axis, from z = 0 to z = 12: outer diameter 20, bore 12. "
        "Use at least 64 segments.",
        {
            "reference": {"tree": tree},
            "dimensions": [
                {"name": "height", "measure": "extent", "axis": "z", "tolerance": 0.01},
                {"name": "diameter", "measure": "extent", "axis": "x", "tolerance": 0.1},
            ],
        },
        "write(cylinder(12, 10) - cylinder(20, 6).translate(0, 0, -4))",
        right=(
            "write(revolve([(6, 0), (10, 0), (10, 12), (6, 12)], segments=90))",
            "import math\n"
            "n = 80\n"
            "def p(r, z, i):\n"
            "    a = 2 * math.pi * (i % n) / n\n"
            "    return f'vertex {r * math.cos(a)} {r * math.sin(a)} {z}'\n"
            "ring = [(6, 0), (10, 0), (10, 12), (6, 12)]\n"
            "out = ['solid part']\n"
            "def facet(*c):\n"
            "    out.extend(['facet normal 0 0 0', 'outer loop', *c, 'endloop', 'endfacet'])\n"
            "for i in range(n):\n"
            "    for (r, z), (s, w) in zip(ring, ring[1:] + ring[:1]):\n"
            "        a, b, c, d = p(r, z, i), p(s, w, i), p(s, w, i + 1), p(r, z, i + 1)\n"
            "        facet(a, c, b)\n"
            "        facet(a, d, c)\n"
            "open('model.stl', 'w').write('\\n'.join([*out, 'endsolid part']))",
        ),
        wrong=(
            "write(cylinder(12, 10))",
            "write(cylinder(12, 10, segments=8) - cylinder(20, 6, segments=8).translate(0, 0, -4))",
            "write(cylinder(12, 20) - cylinder(20, 12).translate(0, 0, -4))",
            "write(cylinder(12, 10) - cylinder(11, 6).translate(0, 0, -4))",
            "write(cylinder(12, 10) - cylinder(8, 6).translate(0, 0, 2))",
        ),
    )


def _wedge() -> Specimen:
    node = {"op": "extrude", "points": [[0, 0], [30, 0], [0, 20]], "height": 10}
    code = "part = extrude([(0, 0), (30, 0), (0, 20)], 10)\n"
    return _specimen(
        "A wedge 10 thick, its side a right triangle with legs of 30 and 20. It may lie anywhere "
        "and in any quarter turn.",
        {
            "reference": {"tree": {**node, "twist": 0, "scale": 1}},
            "align": "pose",
        },
        code + "write(part)",
        right=(code + "write(part.rotate(90, 0, 180).translate(50, 60, 70))",),
        wrong=(
            "write(extrude([(0, 0), (30, 0), (0, 10)], 10))",
            code + "write(part.scale(25.4, 25.4, 25.4))",
            code + "write(part.rotate(0, 0, 45))",
        ),
    )


def _pin() -> Specimen:
    tree = {"op": "union", "of": [_round(20, 3), _moved(_round(4, 6), 0, 0, 20)]}
    code = "pin = cylinder(20, 3) + cylinder(4, 6).translate(0, 0, {z})\nwrite(pin)"
    return _specimen(
        "A pin along z: a shaft of diameter 6 from z = 0 to z = 20, and on it a head of diameter "
        "12 and 4 high.",
        {"reference": {"tree": tree}},
        code.format(z=20),
        right=("write(revolve([(0, 0), (3, 0), (3, 20), (6, 20), (6, 24), (0, 24)], 72))",),
        wrong=(
            code.format(z=21),
            code.format(z=10),
            "write(cylinder(24, 3))",
            "write(cylinder(24, 6))",
        ),
    )
