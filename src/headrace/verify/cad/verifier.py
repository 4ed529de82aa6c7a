"""The verifier `cad-mesh`: run a CAD script in a sandbox, compare the solid it made with another.

See `CadSpec` for the hidden answer. May be known by audits and task packs.
"""

from __future__ import annotations

import base64
import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import ValidationError

from headrace.errors import UsageError
from headrace.sandbox.spec import ExecLimits, Result, Sandbox, SandboxRefused, SandboxSpec
from headrace.types import Json, Task, Verdict, VerdictPart, VerifierRef
from headrace.verify.answers import last_fence, without_thinking
from headrace.verify.base import BaseVerifier
from headrace.verify.boxes import PROGRAMS, Boxes, shared
from headrace.verify.cad.spec import CadSpec
from headrace.verify.child import ChildDied, ChildError, ChildSpent
from headrace.verify.children import Children
from headrace.verify.kinds import Surface
from headrace.verify.verdicts import hack, scored, unjudged

__all__ = ["CadMesh"]

_WORKER = "headrace.verify.cad.worker"
_MODELS = ("model.json", "model.stl", "model.obj")
_LANGUAGES = {"python": ("python", "py", "python3", ""), "openscad": ("openscad", "scad", "")}
_FILE_MB = 8
_UNITS = {25.4: "inch", 10.0: "cm", 1000.0: "m"}
_GATES = ("script", "file", "solid", "bodies", "size")
_MISSING = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """What a script left: how it ended, and the one model it handed in, or why there is none."""

    result: Result
    name: str | None
    data: bytes
    why: str
    forged: bool


class CadMesh(BaseVerifier):
    """How near the part that a script makes comes to the right solid: geometry, never pictures.

    The script is the last closed fence in the task's language. A Python script imports `cad`
    (see `sandboxed`) and calls `write(part)`, or writes `model.stl` or `model.obj` itself; it
    must hand in one model only. An OpenSCAD script is rendered by the `openscad` of the sandbox.

    Gates (without weight, in this order; without all of them the score is 0): `script` ended
    well, `file` is a model, `solid` (closed, consistently wound, not inside out, not empty),
    `bodies` as many as asked, `size` between half and twice the diagonal asked for.

    Parts, each times `shape`, so that a likeness without the shape is worth nothing:
    `shape` (3) is the volume IoU, rescaled so that the reference's bounding box gets 0 and
    1 - slack gets 1; `volume` and `area` (1 each) by ratio; `surface` (2) by the 99th percentile
    of the distance between the surfaces; `topology` (1), the through holes and cavities;
    `dimensions` (2, if there are any), the share within tolerance. `hack` says that a model was
    no regular file, or that there were several.
    """

    surfaces: ClassVar[tuple[Surface, ...]] = ("text", "cad")
    ref = VerifierRef("cad-mesh", "1")

    def __init__(
        self,
        boxes: Boxes | None = None,
        *,
        spec: SandboxSpec = PROGRAMS,
        script_seconds: float = 30.0,
        seconds: float = 20.0,
        wall_seconds: float = 120.0,
    ) -> None:
        """`script_seconds` (wall) for the script, `seconds` (processor) to measure its part."""
        self._boxes = boxes
        self._spec = spec
        self._script_seconds = script_seconds
        self._seconds = seconds
        self._wall_seconds = wall_seconds
        self._children = Children(_WORKER, memory_mb=4096, size=1)

    def judge(self, task: Task, text: str) -> Verdict:
        """Raises UsageError without the extra `cad`, SandboxRefused without a sandbox or the
        program openscad in it."""
        _require_extra()
        try:
            spec = CadSpec.model_validate(task.answer)
        except ValidationError as error:
            problems = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
            return unjudged(self.ref, "task", {"malformed answer": problems})
        script = last_fence(without_thinking(text), *_LANGUAGES[spec.language])
        made = None if script is None else self._made(script, spec.language)
        model = None if made is None else _model(made)
        try:
            reply = self._measured(spec, model)
        except (ChildSpent, ChildDied) as error:
            if model is None:
                return unjudged(self.ref, "task", {"reference": str(error)})
            return self._failed("file", {"why": f"too much to measure: {error}"})
        except ChildError as error:
            return unjudged(self.ref, "infrastructure", {"error": str(error)})
        if "fault" in reply:
            return unjudged(self.ref, "task", {"reference": reply["fault"]})
        if made is None:
            return self._failed(None, {"why": "no closed fence with a script"})
        if model is None:
            gate = "file" if made.result.ok else "script"
            return self._failed(gate, _ending(made), forged=made.forged)
        if "gate" in reply:
            return self._failed(reply["gate"], {"why": reply["why"]})
        return self._compared(spec, reply)

    def hints(self, task: Task) -> Mapping[str, str]:
        """`x`, `y`, `z`: the size of the part, and `x0`, `y0`, `z0`, where its box begins: what
        a prompt gives away of the overall dimensions."""
        _require_extra()
        reply = self._measured(CadSpec.model_validate(task.answer), None)
        if "fault" in reply:
            return {}
        low, high = reply["reference"]["low"], reply["reference"]["high"]
        sizes = {axis: f"{high[i] - low[i]:.6g}" for i, axis in enumerate("xyz")}
        return sizes | {f"{axis}0": f"{low[i]:.6g}" for i, axis in enumerate("xyz")}

    def near(self, task: Task, reference: str) -> Sequence[str]:
        """The part of a Python script, stretched, inflated, and moved where that matters."""
        script = last_fence(reference, "python")
        if script is None or "write(" not in script:
            return ()
        head, _, tail = script.rpartition("write(")
        part = tail.rstrip().removesuffix(")")
        changes = ["scale(1.2, 1, 1)", "scale(1, 1, 3)"]
        if CadSpec.model_validate(task.answer).align == "none":
            changes.append("translate(7, 0, 0)")
        return tuple(f"```python\n{head}write(({part}).{change})\n```" for change in changes)

    def close(self) -> None:
        """End the child processes; a later call starts new ones."""
        self._children.close()

    def _made(self, script: str, language: str) -> _Made:
        async def job(box: Sandbox) -> _Made:
            return await _run(box, script, language, self._script_seconds)

        boxes = self._boxes or shared()
        return boxes.run(self._spec, job, timeout_s=2 * self._script_seconds)

    def _measured(self, spec: CadSpec, model: Mapping[str, Json] | None) -> dict[str, Json]:
        request = {
            "reference": spec.reference.model_dump(),
            "candidate": model,
            "align": spec.align,
            "dimensions": [item.model_dump() for item in spec.dimensions],
        }
        return self._children.call(request, deadline=self._wall_seconds, cpu=self._seconds)

    def _compared(self, spec: CadSpec, reply: Mapping[str, Json]) -> Verdict:
        found, wanted = reply["candidate"], reply["reference"]
        bodies = wanted["bodies"] if spec.bodies is None else spec.bodies
        scale = _diagonal(found) / _diagonal(wanted)
        if found["bodies"] != bodies:
            why = f"{found['bodies']} separate bodies instead of {bodies}"
            return self._failed("bodies", {"why": why, **reply})
        if not 0.5 <= scale <= 2.0 or "iou" not in reply:
            why = f"{scale:.4g} times the size{_unit(scale)}"
            return self._failed("size", {"why": why, **reply})
        fits, rows = _dimensions(spec, reply["dimensions"])
        shape = _above(reply["iou"], _baseline(wanted, spec.slack), 1.0 - spec.slack)
        least = 1.0 - 2 * spec.slack
        same = found["genera"] == wanted["genera"] and found["voids"] == wanted["voids"]
        reach = reply["p99"] / (spec.distance * _diagonal(wanted))
        values = [
            ("volume", _above(_ratio(found["volume"], wanted["volume"]), 0.8, least), 1.0),
            ("area", _above(_ratio(found["area"], wanted["area"]), 0.8, least), 1.0),
            ("surface", 1.0 - _above(reach, 1.0, 4.0), 2.0),
            ("topology", float(same), 1.0),
        ]
        if spec.dimensions:
            values.append(("dimensions", fits, 2.0))
        parts = [VerdictPart("shape", shape, 3.0)]
        parts += [VerdictPart(name, value * shape, weight) for name, value, weight in values]
        parts += [VerdictPart(gate, 1.0, 0.0) for gate in _GATES]
        parts += [VerdictPart("extracted", 1.0, 0.0), hack(False)]
        measures = {key: reply[key] for key in ("iou", "p99", "chamfer", "candidate", "reference")}
        raw = {name: value for name, value, _ in values}
        return scored(self.ref, parts, evidence={**measures, "raw": raw, "dimensions": rows})

    def _failed(
        self, gate: str | None, facts: Mapping[str, Json], *, forged: bool = False
    ) -> Verdict:
        """The floor: `gate` is the first that was not passed, None if there was no script."""
        passed = 0 if gate is None else _GATES.index(gate)
        parts = [VerdictPart("shape", 0.0, 3.0)]
        parts += [VerdictPart(name, float(i < passed), 0.0) for i, name in enumerate(_GATES)]
        parts += [VerdictPart("extracted", float(gate is not None), 0.0), hack(forged)]
        return scored(self.ref, parts, evidence={"failed": gate or "no script", **facts})


async def _run(box: Sandbox, script: str, language: str, seconds: float) -> _Made:
    limits = ExecLimits(output_bytes=2**16, flood_bytes=8 * 2**20)
    if language == "python":
        await box.put_file("cad.py", Path(__file__).with_name("sandboxed.py").read_bytes())
        await box.put_file("part.py", script.encode("utf-8", "replace"))
        argv = ["python3", "-B", "part.py"]
    else:
        await box.put_file("part.scad", script.encode("utf-8", "replace"))
        argv = ["openscad", "-o", "model.stl", "part.scad"]
        probe = await box.exec(["openscad", "--version"], timeout_s=20.0, limits=limits)
        if probe.exit_code == _MISSING:
            raise SandboxRefused(
                "this task needs openscad, which the sandbox image does not have",
                where=box.spec.image,
                hint="name an image with openscad in CadMesh(spec=...), or install it here",
            )
    result = await box.exec(argv, timeout_s=seconds, limits=limits)
    models: dict[str, bytes] = {}
    troubles: list[str] = []
    listing = await box.exec(["stat", "-c", "%F|%n", *_MODELS], timeout_s=20.0, limits=limits)
    for line in listing.stdout.text.splitlines():
        kind, _, name = line.partition("|")
        if not kind.startswith("regular"):  # a link is not followed
            troubles.append(f"{name}: {kind}")
            continue
        try:
            models[name] = await box.get_file(name, limit_mb=_FILE_MB)
        except UsageError as error:
            troubles.append(f"{name}: {error.what}")
    several = len(models) > 1
    if len(models) == 1 and not troubles:
        name, data = next(iter(models.items()))
        return _Made(result=result, name=name, data=data, why="", forged=False)
    why = f"several models: {', '.join(models)}" if several else "; ".join(troubles)
    return _Made(
        result=result,
        name=None,
        data=b"",
        why=why or "the script wrote no model",
        forged=several or bool(troubles),
    )


def _model(made: _Made) -> dict[str, Json] | None:
    """What the child is given; None if the script did not end well or left no model."""
    if made.name is None or not made.result.ok:
        return None
    return {"name": made.name, "data": base64.b64encode(made.data).decode()}


def _ending(made: _Made) -> dict[str, Json]:
    return {
        "why": made.why,
        "outcome": str(made.result.outcome),
        "exit code": made.result.exit_code,
        "stderr": made.result.stderr.text[-2000:],
    }


def _require_extra() -> None:
    lacks = [name for name in ("trimesh", "manifold3d") if importlib.util.find_spec(name) is None]
    if lacks:
        raise UsageError(
            f"the verifier cad-mesh needs {' and '.join(lacks)}",
            hint="pip install 'headrace[cad]'",
        )


def _baseline(wanted: Mapping[str, Json], slack: float) -> float:
    """The IoU of the reference's bounding box, which is worth nothing. A part that fills its box
    is not told from it by that, and half of it is worth nothing then."""
    sides = [high - low for low, high in zip(wanted["low"], wanted["high"], strict=True)]
    filled = wanted["volume"] / math.prod(sides)
    return filled if filled <= 1.0 - 4 * slack else 0.5


def _dimensions(spec: CadSpec, measured: Sequence[Sequence[float]]) -> tuple[float, list[Json]]:
    """The share of the named dimensions within their tolerance, and each as evidence."""
    rows: list[Json] = []
    fits = 0
    for item, (found, own) in zip(spec.dimensions, measured, strict=True):
        wanted = own if item.value is None else item.value
        fit = abs(found - wanted) <= item.tolerance
        fits += fit
        rows.append({"name": item.name, "found": found, "wanted": wanted, "fits": fit})
    return (fits / len(rows) if rows else 1.0), rows


def _above(value: float, zero: float, one: float) -> float:
    """0 up to `zero`, 1 from `one` on, straight between."""
    return min(1.0, max(0.0, (value - zero) / (one - zero)))


def _ratio(found: float, wanted: float) -> float:
    return min(found, wanted) / max(found, wanted)


def _diagonal(shape: Mapping[str, Json]) -> float:
    return math.dist(shape["low"], shape["high"])


def _unit(scale: float) -> str:
    for factor, unit in _UNITS.items():
        if any(math.isclose(scale, f, rel_tol=0.05) for f in (factor, 1.0 / factor)):
            return f" (as between mm and {unit})"
    return ""
