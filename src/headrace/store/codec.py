"""Trajectories as JSON and back, bit for bit.

Arrays travel as base64 of their little-endian bytes with their dtype, or beside the JSON as the
streams of `arrays`; everything else as itself. Decoding is strict: the bytes may come from
anywhere, so what is missing, unknown, of another type or inconsistent is a `StorageError`, never
a guess.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import TypeVar, get_args

import numpy as np
import numpy.typing as npt

from headrace.errors import StorageError
from headrace.store.arrays import ArrayReader, ArrayWriter, little_bytes
from headrace.store.files import jsonable
from headrace.types import (
    Ending,
    Failure,
    Fault,
    ImagePart,
    Json,
    Limits,
    Message,
    Part,
    Role,
    SandboxNeed,
    Split,
    StopReason,
    Support,
    Task,
    TextPart,
    ToolCall,
    ToolSpec,
    Trajectory,
    Turn,
    Verdict,
    VerdictPart,
    VerifierRef,
    VersionSpan,
)

__all__ = [
    "FORMAT",
    "FORMAT_BESIDE",
    "task_from_json",
    "task_to_json",
    "trajectory_from_json",
    "trajectory_to_json",
    "verdict_from_json",
    "verdict_to_json",
]

FORMAT = 1
FORMAT_BESIDE = 2
"""Versions of the encoding, with its arrays inside of the JSON and beside it; they change whenever
an old reader would misread a new file."""

_T = TypeVar("_T")
_Scalar = TypeVar("_Scalar", bound=np.generic)
_ISOLATIONS = ("trusted", "process", "namespace", "user-kernel", "virtual-machine")
_Put = Callable[[npt.NDArray[np.generic], type[np.generic], str], Json]
"""Takes an array, its type and the name of its stream; gives what stands in its place."""


# --- encoding ------------------------------------------------------------------------------


def trajectory_to_json(
    trajectory: Trajectory, arrays: ArrayWriter | None = None, task: Json | None = None
) -> dict[str, Json]:
    """The JSON object of a trajectory; its arrays go to `arrays` if that is given. `task` is that
    of its task, where it is known already.

    Raises TypeError for an array of another dtype than `headrace.types` says or for a value
    JSON cannot hold, ValueError for a number that is not finite outside the arrays.
    """
    put = _array if arrays is None else arrays.put
    return {
        "format": FORMAT if arrays is None else FORMAT_BESIDE,
        "group": trajectory.group,
        "attempt": trajectory.attempt,
        "seed": trajectory.seed,
        "ending": trajectory.ending,
        "task": task_to_json(trajectory.task) if task is None else task,
        "turns": [_turn(turn, put) for turn in trajectory.turns],
        "verdict": None if trajectory.verdict is None else verdict_to_json(trajectory.verdict),
        "failure": None if trajectory.failure is None else _failure(trajectory.failure),
        "timings": jsonable(trajectory.timings, "timings"),
        "snapshots": list(trajectory.snapshots),
        "provenance": jsonable(trajectory.provenance, "provenance"),
    }


def _array(array: npt.NDArray[np.generic], kind: type[np.generic], where: str) -> Json:
    data = base64.b64encode(little_bytes(array, kind, where))
    return {"dtype": np.dtype(kind).newbyteorder("<").str, "data": data.decode()}


def task_to_json(task: Task) -> dict[str, Json]:
    """The JSON object of a task; errors as of `trajectory_to_json`."""
    need, limits = task.sandbox, task.limits
    return {
        "domain": task.domain,
        "problem": task.problem,
        "tier": task.tier,
        "split": task.split,
        "messages": [
            {"role": message.role, "parts": [_part(part) for part in message.parts]}
            for message in task.messages
        ],
        "verifier": _verifier(task.verifier),
        "answer": jsonable(task.answer, "answer"),
        "tools": [
            {
                "name": tool.name,
                "description": tool.description,
                "parameters": jsonable(tool.parameters, "parameters"),
            }
            for tool in task.tools
        ],
        "sandbox": None
        if need is None
        else {"isolation": need.isolation, "image": need.image, "memory_mb": need.memory_mb},
        "limits": {
            "new_tokens": limits.new_tokens,
            "turns": limits.turns,
            "seconds": jsonable(limits.seconds, "limits.seconds"),
        },
        "lineage": jsonable(task.lineage, "lineage"),
    }


def _part(part: Part) -> Json:
    if isinstance(part, TextPart):
        return {"text": part.text}
    return {"image": part.digest, "media_type": part.media_type}


def _verifier(ref: VerifierRef) -> Json:
    return {"id": ref.id, "version": ref.version}


def _turn(turn: Turn, put: _Put) -> Json:
    support = turn.support
    return {
        "role": turn.role,
        "text": turn.text,
        "ids": put(turn.ids, np.int32, "ids"),
        "sampled": put(turn.sampled, np.bool_, "sampled"),
        "logps": put(turn.logps, np.float32, "logps"),
        "versions": [[span.version, span.count] for span in turn.versions],
        "temperature": jsonable(turn.temperature, "temperature"),
        "support": None
        if support is None
        else {
            "offsets": put(support.offsets, np.int64, "support.offsets"),
            "ids": put(support.ids, np.int32, "support.ids"),
        },
        "tool_calls": [
            {
                "id": call.id,
                "name": call.name,
                "raw": call.raw,
                "arguments": jsonable(call.arguments, "arguments"),
                "result": call.result,
            }
            for call in turn.tool_calls
        ],
        "stop_reason": turn.stop_reason,
    }


def verdict_to_json(verdict: Verdict) -> dict[str, Json]:
    """The JSON object of a verdict; errors as of `trajectory_to_json`."""
    return {
        "score": jsonable(verdict.score, "score"),
        "verifier": _verifier(verdict.verifier),
        "parts": [
            {
                "name": part.name,
                "value": jsonable(part.value, f"verdict part {part.name}"),
                "weight": jsonable(part.weight, f"weight of verdict part {part.name}"),
            }
            for part in verdict.parts
        ],
        "evidence": verdict.evidence,
        "fault": verdict.fault,
    }


def _failure(failure: Failure) -> Json:
    return {"boundary": failure.boundary, "message": failure.message, "fault": failure.fault}


# --- decoding ------------------------------------------------------------------------------


def trajectory_from_json(value: Json, arrays: ArrayReader | None = None) -> Trajectory:
    """The trajectory that `trajectory_to_json` made `value` (and `arrays`) from.

    Raises StorageError.
    """
    expected = FORMAT if arrays is None else FORMAT_BESIDE
    try:
        fields = _Object(value, "trajectory", arrays)
        version = fields.take("format")
        if type(version) is not int or version != expected:
            raise ValueError(f"trajectory.format is {version!r}; this headrace reads {expected}")
        trajectory = Trajectory(
            group=fields.text("group"),
            attempt=fields.integer("attempt"),
            seed=fields.integer("seed"),
            ending=fields.choice("ending", get_args(Ending)),
            task=_read_task(fields.object("task")),
            turns=tuple(_read_turn(turn) for turn in fields.objects("turns")),
            verdict=fields.optional("verdict", _read_verdict),
            failure=fields.optional("failure", _read_failure),
            timings=fields.numbers("timings"),
            snapshots=fields.texts("snapshots"),
            provenance=fields.mapping("provenance"),
        )
        fields.done()
        if arrays is not None:
            arrays.done()
    except ValueError as error:
        raise StorageError(
            f"not a stored trajectory: {error}",
            hint="the file was written by another version of headrace, or changed since",
        ) from error
    return trajectory


def task_from_json(value: Json) -> Task:
    """The task that `task_to_json` made `value` from. Raises StorageError."""
    try:
        return _read_task(_Object(value, "task"))
    except ValueError as error:
        raise StorageError(f"not a stored task: {error}") from error


def verdict_from_json(value: Json) -> Verdict:
    """The verdict that `verdict_to_json` made `value` from. Raises StorageError."""
    try:
        return _read_verdict(_Object(value, "verdict"))
    except ValueError as error:
        raise StorageError(f"not a stored verdict: {error}") from error


class _Object:
    """Strict access to one JSON object: each field once, of the right type, none left over.

    Every method raises ValueError that names the path of the field.
    """

    def __init__(self, value: Json, path: str, arrays: ArrayReader | None = None) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{path} is not an object")
        self._fields = dict(value)
        self._path = path
        self._arrays = arrays

    def __contains__(self, key: str) -> bool:
        return key in self._fields

    def take(self, key: str) -> Json:
        if key not in self._fields:
            raise ValueError(f"{self._path}.{key} is missing")
        return self._fields.pop(key)

    def done(self) -> None:
        if self._fields:
            raise ValueError(f"{self._path} has unknown fields: {', '.join(self._fields)}")

    def typed(self, key: str, kind: type[_T]) -> _T:
        value = self.take(key)
        if type(value) is not kind:
            raise ValueError(f"{self._path}.{key} is not a {kind.__name__}: {value!r:.40}")
        return value

    def text(self, key: str) -> str:
        return self.typed(key, str)

    def integer(self, key: str) -> int:
        return self.typed(key, int)

    def number(self, key: str) -> float:
        value = self.take(key)
        if type(value) not in (int, float):
            raise ValueError(f"{self._path}.{key} is not a number: {value!r:.40}")
        return value

    def maybe(self, key: str, read: Callable[[str], _T]) -> _T | None:
        """What `read` (a method of this object) gives for the key, or None for null."""
        if self._fields.get(key, key) is None:
            return self.take(key)
        return read(key)

    def choice(self, key: str, choices: tuple[_T, ...]) -> _T:
        value = self.take(key)
        for choice in choices:
            if choice == value:
                return choice
        raise ValueError(f"{self._path}.{key} is {value!r:.40}, not one of {choices}")

    def items(self, key: str) -> list[Json]:
        return self.typed(key, list)

    def texts(self, key: str) -> tuple[str, ...]:
        items = self.items(key)
        if not all(isinstance(item, str) for item in items):
            raise ValueError(f"{self._path}.{key} is not a list of strings")
        return tuple(items)

    def object(self, key: str) -> _Object:
        return _Object(self.take(key), f"{self._path}.{key}", self._arrays)

    def objects(self, key: str) -> list[_Object]:
        path = f"{self._path}.{key}"
        items = enumerate(self.items(key))
        return [_Object(item, f"{path}[{i}]", self._arrays) for i, item in items]

    def optional(self, key: str, read: Callable[[_Object], _T]) -> _T | None:
        """What `read` makes of the object under the key, or None for null."""
        value = self.take(key)
        if value is None:
            return None
        return read(_Object(value, f"{self._path}.{key}", self._arrays))

    def mapping(self, key: str) -> dict[str, Json]:
        return self.typed(key, dict)

    def numbers(self, key: str) -> dict[str, float]:
        fields = self.object(key)
        return {name: fields.number(name) for name in list(fields._fields)}

    def array(self, key: str, kind: type[_Scalar], stream: str) -> npt.NDArray[_Scalar]:
        """The array under the key: inside of the JSON, or the next of its stream."""
        if self._arrays is not None:
            return self._arrays.take(stream, self.integer(key), kind)
        fields = self.object(key)
        little = np.dtype(kind).newbyteorder("<")
        if fields.text("dtype") != little.str:
            raise ValueError(f"{self._path}.{key} does not have the dtype {little.str}")
        try:
            data = base64.b64decode(fields.text("data"), validate=True)
        except binascii.Error as error:
            raise ValueError(f"{self._path}.{key} is not base64: {error}") from error
        fields.done()
        if len(data) % little.itemsize:
            raise ValueError(f"{self._path}.{key} is not a whole number of items")
        if kind is np.bool_ and data.strip(b"\0\1"):
            raise ValueError(f"{self._path}.{key} holds bytes that are no booleans")
        return np.frombuffer(data, little).astype(kind)


def _read_task(fields: _Object) -> Task:
    limits = fields.object("limits")
    task = Task(
        domain=fields.text("domain"),
        problem=fields.text("problem"),
        tier=fields.integer("tier"),
        split=fields.choice("split", get_args(Split)),
        messages=tuple(_read_message(message) for message in fields.objects("messages")),
        verifier=_read_verifier(fields.object("verifier")),
        answer=fields.take("answer"),
        tools=tuple(_read_tool(tool) for tool in fields.objects("tools")),
        sandbox=fields.optional("sandbox", _read_sandbox),
        limits=Limits(
            new_tokens=limits.maybe("new_tokens", limits.integer),
            turns=limits.integer("turns"),
            seconds=limits.maybe("seconds", limits.number),
        ),
        lineage=fields.mapping("lineage"),
    )
    limits.done()
    fields.done()
    return task


def _read_message(fields: _Object) -> Message:
    message = Message(
        role=fields.choice("role", get_args(Role)),
        parts=tuple(_read_part(part) for part in fields.objects("parts")),
    )
    fields.done()
    return message


def _read_part(fields: _Object) -> Part:
    part: Part
    if "text" in fields:
        part = TextPart(fields.text("text"))
    else:
        part = ImagePart(fields.text("image"), fields.text("media_type"))
    fields.done()
    return part


def _read_verifier(fields: _Object) -> VerifierRef:
    ref = VerifierRef(fields.text("id"), fields.text("version"))
    fields.done()
    return ref


def _read_tool(fields: _Object) -> ToolSpec:
    tool = ToolSpec(fields.text("name"), fields.text("description"), fields.mapping("parameters"))
    fields.done()
    return tool


def _read_sandbox(fields: _Object) -> SandboxNeed:
    need = SandboxNeed(
        isolation=fields.choice("isolation", _ISOLATIONS),
        image=fields.maybe("image", fields.text),
        memory_mb=fields.integer("memory_mb"),
    )
    fields.done()
    return need


def _read_turn(fields: _Object) -> Turn:
    turn = Turn(
        role=fields.choice("role", get_args(Role)),
        text=fields.text("text"),
        ids=fields.array("ids", np.int32, "ids"),
        sampled=fields.array("sampled", np.bool_, "sampled"),
        logps=fields.array("logps", np.float32, "logps"),
        versions=tuple(_read_span(span) for span in fields.items("versions")),
        temperature=fields.number("temperature"),
        support=fields.optional("support", _read_support),
        tool_calls=tuple(_read_call(call) for call in fields.objects("tool_calls")),
        stop_reason=fields.choice("stop_reason", (None, *get_args(StopReason))),
    )
    fields.done()
    return turn


def _read_span(value: Json) -> VersionSpan:
    match value:
        case [version, count] if type(version) is int and type(count) is int and count >= 0:
            return VersionSpan(version, count)
        case _:
            raise ValueError(f"a version span is [version, count], not {value!r:.40}")


def _read_support(fields: _Object) -> Support:
    support = Support(
        offsets=fields.array("offsets", np.int64, "support.offsets"),
        ids=fields.array("ids", np.int32, "support.ids"),
    )
    fields.done()
    offsets = support.offsets
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(support.ids):
        raise ValueError("support offsets do not span the support ids")
    if bool(np.any(np.diff(offsets) < 0)):
        raise ValueError("support offsets go backwards")
    return support


def _read_call(fields: _Object) -> ToolCall:
    call = ToolCall(
        id=fields.text("id"),
        name=fields.text("name"),
        raw=fields.text("raw"),
        arguments=fields.maybe("arguments", fields.mapping),
        result=fields.maybe("result", fields.text),
    )
    fields.done()
    return call


def _read_verdict(fields: _Object) -> Verdict:
    verdict = Verdict(
        score=fields.maybe("score", fields.number),
        verifier=_read_verifier(fields.object("verifier")),
        parts=tuple(_read_verdict_part(part) for part in fields.objects("parts")),
        evidence=fields.text("evidence"),
        fault=fields.choice("fault", (None, *get_args(Fault))),
    )
    fields.done()
    return verdict


def _read_verdict_part(fields: _Object) -> VerdictPart:
    part = VerdictPart(fields.text("name"), fields.number("value"), fields.number("weight"))
    fields.done()
    return part


def _read_failure(fields: _Object) -> Failure:
    failure = Failure(
        fields.text("boundary"),
        fields.text("message"),
        fields.choice("fault", get_args(Fault)),
    )
    fields.done()
    return failure
