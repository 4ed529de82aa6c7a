from __future__ import annotations

import json
import math
import os
import runpy
import sys
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import pytest
import trimesh

import headrace.verify
from headrace.errors import UsageError
from headrace.sandbox.spec import (
    Capture,
    Outcome,
    Result,
    Sandbox,
    SandboxRefused,
    SandboxSpec,
    Usage,
)
from headrace.types import Json, Message, Task, Verdict
from headrace.verify.boxes import Boxes
from headrace.verify.cad import KIND, CadMesh, measure, sandboxed
from headrace.verify.cad.meshes import BadMesh, Mesh, read_obj, read_stl
from headrace.verify.cad.specimens import specimens
from headrace.verify.cad.tree import BadModel, evaluated
from headrace.verify.kinds import Specimens

TRICKS = sorted((Path(headrace.verify.__file__).parent / "audit/tricks/cad").glob("*.trick"))
T = TypeVar("T")
BOX = sandboxed.box


class PlainBox:
    """Runs the scripts of this file in this process, which is fast; no candidate comes here."""

    spec = SandboxSpec()

    def __init__(self, home: Path, patch: pytest.MonkeyPatch, *, openscad: bool) -> None:
        self.home = home
        self.patch = patch
        self.openscad = openscad

    async def put_file(self, path: str, data: bytes) -> None:
        (self.home / path).write_bytes(data)

    async def exec(self, argv: Sequence[str], **_: object) -> Result:
        code = 0
        listed = ""
        if argv[0] == "openscad" and not self.openscad:
            code = 127
        elif argv[0] == "stat":
            for path in (self.home / name for name in argv[3:]):
                kind = "symbolic link" if path.is_symlink() else "regular file"
                listed += f"{kind}|{path.name}\n" if os.path.lexists(path) else ""
        elif "part.scad" in argv:
            text = (self.home / "part.scad").read_text()
            (self.home / "model.stl").write_text(text)
        elif argv[0] == "python3":
            self.patch.chdir(self.home)
            try:
                with warnings.catch_warnings(action="ignore"):
                    runpy.run_path(str(self.home / "part.py"))
            except SystemExit as ended:
                code = int(ended.code or 0)
            except (ArithmeticError, NameError, SyntaxError, OSError):
                code = 1
        nothing = Capture(b"", 0)
        return Result(
            outcome=Outcome.RESULT,
            exit_code=code,
            signal=None,
            stdout=Capture(listed.encode(), len(listed)),
            stderr=nothing,
            usage=Usage(wall_s=0.0),
            oom=False,
            epoch=0,
        )

    async def get_file(self, path: str, *, limit_mb: int) -> bytes:
        return (self.home / path).read_bytes()


class PlainBoxes(Boxes):
    """Plain boxes, or real sandboxes while `real` is set: both for the one child of a verifier."""

    def __init__(self, home: Path, patch: pytest.MonkeyPatch, *, openscad: bool = True) -> None:
        super().__init__()
        self.home, self.patch, self.openscad, self.count = home, patch, openscad, 0
        self.real = False

    def run(
        self,
        spec: SandboxSpec,
        job: Callable[[Sandbox], Coroutine[Any, Any, T]],
        *,
        timeout_s: float,
    ) -> T:
        if self.real:
            return super().run(spec, job, timeout_s=timeout_s)
        self.count += 1
        home = self.home / str(self.count)
        home.mkdir()
        box = PlainBox(home, self.patch, openscad=self.openscad)
        coroutine = job(cast(Sandbox, box))
        try:
            coroutine.send(None)
        except StopIteration as ended:
            return ended.value
        raise AssertionError("the box never waits")


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainBoxes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cad", sandboxed)
        made = PlainBoxes(tmp_path_factory.mktemp("boxes"), patch)
        yield made
        made.close()


@pytest.fixture(scope="module")
def plain(boxes: PlainBoxes) -> Iterator[CadMesh]:
    made = CadMesh(boxes)
    yield made
    made.close()


@pytest.fixture
def real(boxes: PlainBoxes, plain: CadMesh) -> Iterator[CadMesh]:
    boxes.real = True
    yield plain
    boxes.real = False


def a_task(**answer: Json) -> Task:
    reference = {"tree": (BOX(10, 20, 30) - BOX(4, 4, 40).translate(3, 3, -5)).node}
    hidden: Json = {"reference": reference, **answer}
    return Task(
        domain="test",
        problem="?",
        tier=0,
        split="train",
        messages=(Message.of("user", "?"),),
        verifier=CadMesh.ref,
        answer=hidden,
    )


GOOD = "part = box(10, 20, 30) - box(4, 4, 40).translate(3, 3, -5)"


def python(code: str) -> str:
    return f"```python\nfrom cad import *\n{code}\n```"


def part(verdict: Verdict, name: str) -> float:
    return next(part.value for part in verdict.parts if part.name == name)


def why(verdict: Verdict) -> str:
    found: dict[str, str] = json.loads(verdict.evidence)
    return found["why"]


def domain_with(verifier: CadMesh) -> Specimens:
    return Specimens("cad-specimens", verifier, specimens().items)


# --- specimens and tricks ------------------------------------------------------------------


@pytest.mark.parametrize(
    "most", [1, pytest.param(9, marks=pytest.mark.slow)], ids=["the first", "all"]
)
def test_every_specimen_is_judged_as_it_says(most: int, plain: CadMesh) -> None:
    domain = domain_with(plain)
    for index, item in enumerate(domain.items):
        task = domain.task(0, index)
        near = plain.near(task, item.reference)
        for text in (item.reference, *item.right[-most:]):
            verdict = plain.judge(task, text)
            assert verdict.solved, (text, verdict.evidence)
        for text in (*item.wrong[:most], *near[:most]):
            verdict = plain.judge(task, text)
            assert verdict.score is not None
            assert verdict.score < 0.9, (text, verdict.evidence)
    assert KIND.specimens().name == domain.name


def test_no_trick_gets_more_than_the_floor(plain: CadMesh) -> None:
    domain = domain_with(plain)
    gates: set[str] = set()
    task = domain.task(0, 1)
    known = {"prompt": task.messages[0].text, **plain.hints(task)}
    for path in TRICKS:
        text = path.read_text().split("\n---\n", 1)[1]
        for name, value in known.items():
            text = text.replace("{{" + name + "}}", value)
        verdict = plain.judge(task, text)
        assert verdict.score == 0.0, (path.name, verdict.evidence)
        gates.add(json.loads(verdict.evidence).get("failed", "none"))
    assert len(TRICKS) >= 12
    assert gates == {"file", "solid", "bodies", "size", "none"}


# --- in a real sandbox ---------------------------------------------------------------------


def test_a_script_runs_in_a_sandbox(real: CadMesh) -> None:
    text = f"Not yet:\n{python(GOOD)}\nbut:\n{python(GOOD + chr(10) + 'write(part)')}"
    verdict = real.judge(a_task(), text)
    assert verdict.solved, verdict.evidence


def test_a_link_is_no_model(real: CadMesh) -> None:
    code = "import os\nos.symlink('/etc/passwd', 'model.stl')"
    verdict = real.judge(a_task(), python(code))
    assert (verdict.score, part(verdict, "hack")) == (0.0, 1.0)
    assert "model.stl" in why(verdict)


def test_a_script_that_fails_after_it_wrote_its_part_gets_nothing(real: CadMesh) -> None:
    verdict = real.judge(a_task(), python(f"{GOOD}\nwrite(part)\n1 / 0"))
    assert (verdict.score, part(verdict, "script")) == (0.0, 0.0)
    assert "ZeroDivisionError" in verdict.evidence


# --- gates ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "gate", "says"),
    [
        ("pass", "file", "no model"),
        ("raise SystemExit(3)", "script", "no model"),
        ("open('model.json', 'w').write('{')", "file", "JSON"),
        ("open('model.json', 'w').write('{\"op\": \"sphere\"}')", "file", "keys"),
        ("open('model.stl', 'w').write('solid')", "file", "STL"),
        (f"{GOOD}\nwrite(part - box(99, 99, 99))", "solid", "empty"),
        (f"{GOOD}\nwrite(part + box(1, 1, 1).translate(20))", "bodies", "2 separate bodies"),
        (f"{GOOD}\nwrite(part.scale(25.4, 25.4, 25.4))", "size", "inch"),
        (f"{GOOD}\nwrite(part.scale(0.1, 0.1, 0.1))", "size", "cm"),
        (f"{GOOD}\nwrite(part.scale(1e4, 1e4, 1e4))", "size", "1e+04"),
    ],
)
def test_gates(code: str, gate: str, says: str, plain: CadMesh) -> None:
    verdict = plain.judge(a_task(), python(code))
    assert verdict.score == 0.0
    assert json.loads(verdict.evidence)["failed"] == gate
    assert says in why(verdict)
    assert part(verdict, gate) == 0.0


def test_a_text_without_a_script_is_no_extraction(plain: CadMesh) -> None:
    unclosed, other = "```python\nfrom cad import *", "```scad\ncube(1);\n```"
    for text in ("", "write(box(1, 1, 1))", unclosed, other):
        verdict = plain.judge(a_task(), text)
        assert (verdict.score, part(verdict, "extracted")) == (0.0, 0.0)


@pytest.mark.parametrize(
    "answer",
    [
        {"reference": {}},
        {"reference": {"tree": {"op": "box"}}},
        {"reference": {"tree": (BOX(1, 1, 1) - BOX(2, 2, 2)).node}},
        {"reference": {"stl": "solid x\nendsolid x"}},
        {"align": "anyhow"},
        {"slack": 0},
        {"unknown": 1},
    ],
)
def test_a_task_that_cannot_be_judged_says_so(answer: dict[str, Json], plain: CadMesh) -> None:
    for text in ("", python(f"{GOOD}\nwrite(part)")):
        verdict = plain.judge(a_task(**answer), text)
        assert (verdict.score, verdict.fault) == (None, "task")
        assert verdict.evidence


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="trimesh") as error:
        CadMesh().judge(a_task(), "")
    assert "headrace[cad]" in error.value.hint


def test_openscad_is_refused_where_it_is_missing_and_rendered_where_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: CadMesh
) -> None:
    stl = exported(trimesh.creation.box(bounds=[[0, 0, 0], [10, 20, 30]]), "stl_ascii").decode()
    task = a_task(language="openscad", reference={"stl": stl})
    text = f"```openscad\n{stl}\n```"
    verdict = plain.judge(task, text)
    assert verdict.solved, verdict.evidence
    without = CadMesh(PlainBoxes(tmp_path, monkeypatch, openscad=False))
    with pytest.raises(SandboxRefused, match="openscad") as error:
        without.judge(task, text)
    assert error.value.hint
    without.close()


# --- scores --------------------------------------------------------------------------------


def test_a_likeness_without_the_shape_is_worth_nothing(plain: CadMesh) -> None:
    """The bounding box has the right size, place, body and nearly the right volume."""
    verdict = plain.judge(a_task(), python("write(box(10, 20, 30))"))
    assert verdict.score == 0.0
    raw = json.loads(verdict.evidence)["raw"]
    assert raw["volume"] > 0.5


def test_a_better_part_gets_a_better_score(plain: CadMesh) -> None:
    scores = [
        plain.judge(a_task(), python(f"{GOOD}\nwrite(part.translate({x}))")).score or 0.0
        for x in (0, 0.1, 0.2, 3)
    ]
    assert scores[0] == 1.0
    assert scores[0] > scores[1] > scores[2] > scores[3] == 0.0


def test_where_and_how_a_part_lies_counts_unless_the_task_allows_it(plain: CadMesh) -> None:
    moved = python(f"{GOOD}\nwrite(part.translate(5, 6, 7))")
    turned = python(f"{GOOD}\nwrite(part.rotate(90, 90, 0).translate(5, 6, 7))")
    solved = [
        [plain.judge(a_task(align=how), text).solved for text in (moved, turned)]
        for how in ("none", "position", "pose")
    ]
    assert solved == [[False, False], [True, False], [True, True]]
    chiral = BOX(30, 10, 10) + BOX(10, 20, 10) + BOX(10, 10, 15)
    script = "part = box(30, 10, 10) + box(10, 20, 10) + box(10, 10, 15)\nwrite(part{})"
    task = a_task(reference={"tree": chiral.node}, align="pose")
    assert plain.judge(task, python(script.format(".rotate(0, 180, 90)"))).solved
    assert not plain.judge(task, python(script.format(".mirror(1)"))).solved


def test_a_tiny_missing_hole_is_seen_in_the_topology(plain: CadMesh) -> None:
    node = (BOX(50, 50, 5) - BOX(1, 1, 9).translate(20, 20, -2)).node
    task = a_task(reference={"tree": node})
    verdict = plain.judge(task, python("write(box(50, 50, 5))"))
    assert (part(verdict, "shape"), part(verdict, "topology")) == (1.0, 0.0)
    assert not verdict.solved


def test_dimensions_are_named_in_the_evidence(plain: CadMesh) -> None:
    dimensions: list[Json] = [
        {"name": "width", "measure": "extent", "axis": "x", "tolerance": 0.1},
        {"name": "top", "measure": "maximum", "axis": "z", "tolerance": 0.1, "value": 31.0},
    ]
    verdict = plain.judge(a_task(dimensions=dimensions), python(f"{GOOD}\nwrite(part)"))
    rows = json.loads(verdict.evidence)["dimensions"]
    assert [(row["name"], row["fits"]) for row in rows] == [("width", True), ("top", False)]
    assert part(verdict, "dimensions") == 0.5
    assert verdict.score == pytest.approx(9.0 / 10.0)


# --- geometry against closed forms ---------------------------------------------------------


def solid(made: sandboxed.Solid) -> Any:
    return evaluated(json.loads(json.dumps(made.node)))


def test_volumes_and_areas_of_primitives_are_those_of_the_formulas() -> None:
    n = 200
    polygon = n / 2 * math.sin(2 * math.pi / n)  # area of a regular polygon in the unit circle
    cases: list[tuple[sandboxed.Solid, float]] = [
        (sandboxed.box(2, 3, 4), 24.0),
        (sandboxed.cylinder(5, 2, segments=n), 5 * 4 * polygon),
        (sandboxed.cylinder(6, 0, top=3, segments=n), 6 / 3 * 9 * polygon),
        (sandboxed.cylinder(6, 3, top=1, segments=n), 6 / 3 * (9 + 3 + 1) * polygon),
        (sandboxed.extrude([(0, 0), (4, 0), (0, 3)], 5), 30.0),
        (sandboxed.extrude([(-1, -1), (1, -1), (1, 1), (-1, 1)], 3, scale=0), 4.0),
        (sandboxed.revolve([(2, 0), (3, 0), (3, 1), (2, 1)], segments=n), 5 * polygon),
        (sandboxed.hull(sandboxed.box(1, 1, 1), sandboxed.box(1, 1, 1).translate(4)), 5.0),
        (sandboxed.box(2, 2, 2) & sandboxed.box(2, 2, 2).translate(1, 1, 1), 1.0),
        (sandboxed.box(2, 2, 2).rotate(10, 20, 30).mirror(1, 1).scale(1, 1, -2), 16.0),
    ]
    for made, volume in cases:
        assert solid(made).volume() == pytest.approx(volume, rel=1e-9), made.node
    ball = solid(sandboxed.sphere(3, segments=256))
    assert ball.volume() == pytest.approx(4 / 3 * math.pi * 27, rel=2e-3)
    cone = solid(sandboxed.cylinder(6, 0, top=3, center=True))
    assert cone.bounding_box()[2] == pytest.approx(-3.0)
    assert cone.trim_by_plane((0.0, 0.0, 1.0), 0.0).volume() > 0.8 * cone.volume()


def test_bodies_holes_and_cavities_are_counted() -> None:
    hole = sandboxed.box(1, 1, 9).translate(1, 1, -1)
    frame = sandboxed.box(9, 9, 3) - hole - hole.translate(3, 3)
    shape = measure.shape_of(solid(frame))
    assert (shape.bodies, shape.voids, shape.genera) == (1, 0, (2,))
    hollow = sandboxed.box(9, 9, 9) - sandboxed.box(3, 3, 3).translate(3, 3, 3)
    shape = measure.shape_of(solid(hollow + sandboxed.box(1, 1, 1).translate(20)))
    assert (shape.bodies, shape.voids, shape.volume) == (2, 1, pytest.approx(729 - 27 + 1))


def test_overlap_and_distance_of_shifted_cubes_are_known() -> None:
    cube, moved = solid(sandboxed.box(1, 1, 1)), solid(sandboxed.box(1, 1, 1).translate(0.25))
    assert measure.overlap(cube, moved) == pytest.approx(0.75 / 1.25)
    gaps = measure.apart(cube, moved)
    assert gaps.p99 == pytest.approx(0.25, abs=1e-6)
    # By hand: of the one cube, a face is 0.25 away; a face lies inside the other cube, its points
    # as far from that one's sides as from their own edges, or 0.25 (the integral of (1 - 2t)^2);
    # and of the four faces along the way the first quarter is 0.125 away on average.
    mean = (0.25 + (1 - 0.5**3) / 6 + 4 * 0.25 * 0.125) / 6
    assert gaps.chamfer == pytest.approx(mean, rel=0.05)
    assert measure.apart(cube, cube).p99 == pytest.approx(0.0, abs=1e-9)
    assert gaps == measure.apart(cube, moved)


def test_sections_are_cut_across_each_axis() -> None:
    made = solid(sandboxed.box(2, 3, 5).translate(10, 20, 30))
    shape = measure.shape_of(made)
    places = {"x": (11, 15.0), "y": (21, 10.0), "z": (31, 6.0)}
    for axis, (at, area) in places.items():
        assert measure.dimension(made, shape, "section", axis, at) == pytest.approx(area)
        assert measure.dimension(made, shape, "section", axis, at + 10) == 0.0
    assert measure.dimension(made, shape, "maximum", "y", 0) == pytest.approx(23.0)


# --- mesh files ----------------------------------------------------------------------------


def exported(mesh: trimesh.Trimesh, kind: str) -> bytes:
    data: Any = mesh.export(file_type=kind)
    return data.encode() if isinstance(data, str) else data


def test_the_same_solid_is_read_from_every_format() -> None:
    made = trimesh.creation.icosphere(subdivisions=2)
    files: Sequence[tuple[Callable[[bytes], Mesh], bytes]] = [
        (read_stl, exported(made, "stl")),
        (read_stl, exported(made, "stl_ascii")),
        (read_obj, exported(made, "obj")),
    ]
    for read, data in files:
        mesh = read(data)
        assert (len(mesh.vertices), len(mesh.faces)) == (len(made.vertices), len(made.faces))
        assert measure.flaws(mesh) is None
        found = measure.solid_of(mesh)
        assert found is not None
        assert found.volume() == pytest.approx(made.volume, rel=1e-5)


CUBE = [(x, y, z) for x in (0, 1) for y in (0, 1) for z in (0, 1)]
QUADS = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]


def obj(faces: Sequence[Sequence[int]], corners: Sequence[Sequence[float]] = CUBE) -> bytes:
    lines = [f"v {x} {y} {z}" for x, y, z in corners]
    lines += ["f " + " ".join(f"{corner + 1}//1" for corner in face) for face in faces]
    return "\n".join(["# a cube", "mtllib /etc/passwd", *lines]).encode()


@pytest.mark.parametrize(
    ("faces", "flaw"),
    [
        (QUADS, None),
        (QUADS[:5], "not watertight"),
        ([tuple(reversed(quad)) for quad in QUADS], "inside out"),
        ([*QUADS[:5], tuple(reversed(QUADS[5]))], "inconsistent winding"),
        ([(0, 0, 1)], "empty"),
        ([*QUADS, *QUADS], "not watertight"),
    ],
)
def test_flaws_of_meshes_are_named(faces: list[tuple[int, ...]], flaw: str | None) -> None:
    assert measure.flaws(read_obj(obj(faces))) == flaw


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"v 0 0 0\nf 1 1 2",
        b"v 0 0 0\nf 0 0 0",
        b"v 0 0 0\nf 1 -2 1",
        b"v 0 0\n",
        b"v 0 0 nan\nf 1 1 1",
        b"v 0 0 1e9\nf 1 1 1",
        b"v 0 0 zero\n",
        b"call /etc/passwd\n",
        "v 0 0 ٣\n".encode(),
        b"v 0 0 0\nf 1 1 99999999999999999999",
    ],
)
def test_bad_obj_files_are_refused(data: bytes) -> None:
    with pytest.raises(BadMesh):
        read_obj(data)


FACET = "facet normal 0 0 1\nouter loop\n" + "vertex 0 0 0\n" * 3 + "endloop\nendfacet\n"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"solid x\nendsolid x",
        bytes(80) + b"\xff" * 4 + bytes(50),
        bytes(84),
        ("solid x\n" + FACET).encode(),
        ("solid x\n" + FACET.replace("outer", "inner") + "endsolid").encode(),
        ("solid x\n" + FACET.replace("0 0 0", "0 0") + "endsolid").encode(),
        ("solid x\n" + FACET.replace("0 0 0", "0 0 inf") + "endsolid").encode(),
        ("solid x\n" + FACET.replace("endfacet\n", "") + "endsolid").encode(),
    ],
)
def test_bad_stl_files_are_refused(data: bytes) -> None:
    with pytest.raises(BadMesh):
        read_stl(data)


def test_a_binary_file_may_begin_like_an_ascii_one() -> None:
    data = exported(trimesh.creation.box(), "stl")
    mesh = read_stl(b"solid".ljust(80) + data[80:])
    assert len(mesh.faces) == 12
    assert np.abs(mesh.vertices).max() == 0.5


LEAF: Json = {"op": "sphere", "radius": 1, "segments": 8}


def nested(depth: int) -> Json:
    node = LEAF
    for _ in range(depth):
        node = {"op": "translate", "by": [0, 0, 0], "of": node}
    return node


@pytest.mark.parametrize(
    "node",
    [
        None,
        [],
        {},
        {"op": "import", "file": "/etc/passwd"},
        {**LEAF, "extra": 1},
        {**LEAF, "radius": True},
        {**LEAF, "radius": "1"},
        {**LEAF, "radius": 0},
        {**LEAF, "radius": 1e300},
        {**LEAF, "radius": math.nan},
        {**LEAF, "segments": 10**6},
        {**LEAF, "segments": 8.0},
        {"op": "union", "of": []},
        {"op": "union", "of": {}},
        {"op": "scale", "by": [1, 0, 1], "of": LEAF},
        {"op": "mirror", "by": [0, 0, 0], "of": LEAF},
        {"op": "rotate", "by": [0, 0], "of": LEAF},
        {"op": "extrude", "points": [[0, 0], [1, 1]], "height": 1, "twist": 0, "scale": 1},
        {"op": "union", "of": [LEAF] * 2001},
        {"op": "union", "of": [{**LEAF, "segments": 512}] * 10},
        nested(200),
    ],
)
def test_descriptions_of_no_solid_are_refused(node: Json) -> None:
    with pytest.raises(BadModel):
        evaluated(node)


def test_the_shipped_module_stands_alone_and_flattens_long_sums() -> None:
    source = Path(sandboxed.__file__).read_text()
    assert "headrace" not in source
    row = BOX(1, 1, 1)
    for place in range(1, 300):
        row = row + BOX(1, 1, 1).translate(place)
    assert solid(row).volume() == pytest.approx(300.0)
    cut = BOX(9, 1, 1) - BOX(1, 9, 9) - BOX(1, 9, 9).translate(8)
    assert len(cut.node["of"]) == 3
    assert solid(cut).volume() == pytest.approx(7.0)
