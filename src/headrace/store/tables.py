"""Records as tables: the columns that people and SQL see, and the record itself among them.

`seq` orders rows as the log does: segment x 2**32 + number in it. Texts are what they were but
for half surrogate pairs, which no UTF-8 can hold; integers beyond 64 bits are null. `record` is
the exact JSON (see `records`) without its arrays, and these are columns of their own, so a row
gives back the record bit for bit.

Loads pyarrow: import it where it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.store.arrays import STREAMS, ArrayReader
from headrace.store.codec import (
    trajectory_from_json,
    verdict_from_json,
    verdict_to_json,
)
from headrace.store.files import parse_json
from headrace.store.ledger import Entry
from headrace.store.records import (
    Admitted,
    Judged,
    Parsed,
    admitted_of,
    admitted_to_json,
    header_text,
    lengths_of,
    split_id,
)
from headrace.types import Json, Task, Trajectory, Verdict

__all__ = [
    "ADMISSIONS",
    "ARRAYS",
    "ATTEMPTS",
    "CONSUMED",
    "VERDICTS",
    "AdmissionRow",
    "AttemptRow",
    "VerdictRow",
    "admission_at",
    "admissions",
    "attempt_at",
    "attempts",
    "consumed",
    "step_of",
    "verdict_at",
    "verdicts",
    "without_arrays",
]

_INT64 = range(-(2**63), 2**63)
_VERDICT = [
    ("score", pa.float64()),
    ("solved", pa.bool_()),
    ("verifier", pa.string()),
    ("verifier_version", pa.string()),
    ("fault", pa.string()),
    (
        "parts",
        pa.list_(
            pa.struct([("name", pa.string()), ("value", pa.float64()), ("weight", pa.float64())])
        ),
    ),
    ("evidence", pa.string()),
]
_TASK = [
    ("task_id", pa.string()),
    ("domain", pa.string()),
    ("tier", pa.int64()),
    ("split", pa.string()),
    ("prompt", pa.string()),
]
_STREAM_TYPES = {
    "ids": pa.int32(),
    "sampled": pa.bool_(),
    "logps": pa.float32(),
    "support.offsets": pa.int64(),
    "support.ids": pa.int32(),
}
ARRAYS = tuple(name.replace(".", "_") for name in STREAMS)
"""The columns of an attempt that hold its arrays."""

ATTEMPTS = pa.schema(
    [
        ("seq", pa.int64()),
        ("id", pa.string()),
        ("group_id", pa.string()),
        ("attempt", pa.int64()),
        ("wave", pa.string()),
        ("step", pa.int64()),
        *_TASK,
        *_VERDICT,
        ("ending", pa.string()),
        ("failure", pa.string()),
        ("prompt_tokens", pa.int64()),
        ("tokens", pa.int64()),
        ("completion", pa.string()),
        ("version_first", pa.int64()),
        ("version_last", pa.int64()),
        ("versions", pa.list_(pa.struct([("version", pa.int64()), ("count", pa.int64())]))),
        ("timings", pa.map_(pa.string(), pa.float64())),
        ("record", pa.string()),
        *((name.replace(".", "_"), pa.list_(kind)) for name, kind in _STREAM_TYPES.items()),
    ]
)
VERDICTS = pa.schema(
    [
        ("seq", pa.int64()),
        ("id", pa.string()),
        ("group_id", pa.string()),
        ("attempt", pa.int64()),
        *_VERDICT,
        ("inside", pa.bool_()),
        ("record", pa.string()),
    ]
)
ADMISSIONS = pa.schema(
    [
        ("seq", pa.int64()),
        ("group_id", pa.string()),
        ("step", pa.int64()),
        ("size", pa.int64()),
        ("position", pa.int64()),
        ("version", pa.int64()),
        *_TASK,
        ("problem", pa.string()),
        ("answer", pa.string()),
        ("verifier", pa.string()),
        ("verifier_version", pa.string()),
        ("record", pa.string()),
    ]
)
CONSUMED = pa.schema(
    [
        ("step", pa.int64()),
        ("version", pa.int64()),
        ("group_id", pa.string()),
        ("trained", pa.bool_()),
        ("reason", pa.string()),
        ("void", pa.bool_()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """An attempt as it was recorded (`parsed`, with its arrays beside it), and what is known of
    it now: its wave, the step that consumed its group, the verdict that counts."""

    seq: int
    trajectory: Trajectory
    parsed: Parsed
    wave: str | None
    step: int | None
    verdict: Verdict | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    seq: int
    judged: Judged
    inside: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRow:
    seq: int
    admitted: Admitted


# --- rows to tables ------------------------------------------------------------------------


def attempts(rows: Sequence[AttemptRow]) -> pa.Table:
    headers = [dict(row.parsed.header) for row in rows]
    readers = [
        ArrayReader.of(lengths_of(header), row.parsed.arrays)
        for header, row in zip(headers, rows, strict=True)
    ]
    plain = pa.Table.from_pylist(
        [_attempt(row) for row in rows],
        schema=pa.schema([field for field in ATTEMPTS if field.name not in ARRAYS]),
    )
    for name, kind in _STREAM_TYPES.items():
        column = _lists([reader.stream(name) for reader in readers], STREAMS[name], kind)
        plain = plain.append_column(pa.field(name.replace(".", "_"), pa.list_(kind)), column)
    return plain


def _lists(
    arrays: Sequence[npt.NDArray[np.generic]], dtype: np.dtype[np.generic], kind: pa.DataType
) -> pa.ListArray:
    offsets = np.zeros(len(arrays) + 1, np.int32)
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    values = np.concatenate([np.zeros(0, dtype), *arrays])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, kind))


def _attempt(row: AttemptRow) -> dict[str, Any]:
    trajectory = row.trajectory
    spans = [span for turn in trajectory.turns for span in turn.versions]
    failure = trajectory.failure
    total = sum(len(turn.ids) for turn in trajectory.turns)
    return {
        "seq": row.seq,
        "id": _text(trajectory.id),
        "group_id": _text(trajectory.group),
        "attempt": _int64(trajectory.attempt),
        "wave": None if row.wave is None else _text(row.wave),
        "step": _int64(row.step),
        **_task(trajectory.task),
        **_verdict(row.verdict),
        "ending": trajectory.ending,
        "failure": None if failure is None else _text(f"{failure.boundary}: {failure.message}"),
        "prompt_tokens": total - trajectory.sampled_tokens,
        "tokens": trajectory.sampled_tokens,
        "completion": _text(trajectory.completion),
        "version_first": _int64(min((span.version for span in spans), default=None)),
        "version_last": _int64(max((span.version for span in spans), default=None)),
        "versions": [{"version": _int64(s.version), "count": s.count} for s in spans],
        "timings": [(_text(name), float(value)) for name, value in trajectory.timings.items()],
        "record": header_text(row.parsed.header),
    }


def verdicts(rows: Sequence[VerdictRow]) -> pa.Table:
    return pa.Table.from_pylist([_judged(row) for row in rows], schema=VERDICTS)


def _judged(row: VerdictRow) -> dict[str, Any]:
    trajectory = row.judged.trajectory
    group, attempt = split_id(trajectory) or (trajectory, None)
    return {
        "seq": row.seq,
        "id": _text(trajectory),
        "group_id": _text(group),
        "attempt": _int64(attempt),
        **_verdict(row.judged.verdict),
        "inside": row.inside,
        "record": header_text(verdict_to_json(row.judged.verdict)),
    }


def admissions(rows: Sequence[AdmissionRow]) -> pa.Table:
    return pa.Table.from_pylist([_admitted(row) for row in rows], schema=ADMISSIONS)


def _admitted(row: AdmissionRow) -> dict[str, Any]:
    told, task = row.admitted, row.admitted.task
    return {
        "seq": row.seq,
        "group_id": _text(told.group),
        "step": step_of(told.group),
        "size": _int64(told.size),
        "position": _int64(told.position),
        "version": _int64(told.version),
        **_task(task),
        "problem": _text(task.problem),
        "answer": header_text(task.answer),
        "verifier": _text(task.verifier.id),
        "verifier_version": _text(task.verifier.version),
        "record": header_text(admitted_to_json(told)),
    }


def consumed(entries: Sequence[Entry]) -> pa.Table:
    """One row a group and record; `void` where a resume took it back."""
    rows = [
        {
            "step": _int64(entry.consumed.step),
            "version": _int64(entry.consumed.version),
            "group_id": _text(group),
            "trained": entry.consumed.trained,
            "reason": None if entry.consumed.reason is None else _text(entry.consumed.reason),
            "void": entry.void,
        }
        for entry in entries
        for group in entry.consumed.groups
    ]
    return pa.Table.from_pylist(rows, schema=CONSUMED)


def _task(task: Task) -> dict[str, Any]:
    return {
        "task_id": _task_id(task),
        "domain": _text(task.domain),
        "tier": _int64(task.tier),
        "split": task.split,
        "prompt": _text("\n\n".join(message.text for message in task.messages)),
    }


def _task_id(task: Task) -> str | None:
    try:
        return task.id
    except UnicodeEncodeError:  # half a surrogate pair has no canonical spelling
        return None


def _verdict(verdict: Verdict | None) -> dict[str, Any]:
    if verdict is None:
        return {}
    return {
        "score": verdict.score,
        "solved": verdict.solved,
        "verifier": _text(verdict.verifier.id),
        "verifier_version": _text(verdict.verifier.version),
        "fault": verdict.fault,
        "parts": [
            {"name": _text(part.name), "value": part.value, "weight": part.weight}
            for part in verdict.parts
        ],
        "evidence": _text(verdict.evidence),
    }


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _int64(value: int | None) -> int | None:
    return value if value is not None and value in _INT64 else None


def step_of(group: str) -> int | None:
    """The step in which a group was admitted, by its name: 3 for "000003:0.2"."""
    head, colon, _ = group.partition(":")
    return int(head) if colon and head.isascii() and head.isdecimal() and len(head) < 16 else None


# --- rows back to records ------------------------------------------------------------------


def attempt_at(table: pa.Table, row: int) -> Trajectory:
    """The attempt in a row of a table with the columns `record` and `ARRAYS`.

    Raises StorageError, or ValueError.
    """
    header = parse_json(table["record"][row].as_py().encode())
    lengths_of(header)
    streams = {
        name: _numbers(table[name.replace(".", "_")][row], dtype) for name, dtype in STREAMS.items()
    }
    return trajectory_from_json(header, ArrayReader(streams))


def _numbers(cell: Any, dtype: np.dtype[np.generic]) -> npt.NDArray[np.generic]:
    if not cell.is_valid:
        return np.zeros(0, dtype)
    return cell.values.to_numpy(zero_copy_only=False).astype(dtype)


def verdict_at(table: pa.Table, row: int) -> Verdict:
    """The verdict in a row of a table with the column `record`. StorageError, or ValueError."""
    return verdict_from_json(parse_json(table["record"][row].as_py().encode()))


def admission_at(table: pa.Table, row: int) -> Admitted:
    """The same for an admitted group."""
    header: Json = parse_json(table["record"][row].as_py().encode())
    return admitted_of(Parsed("A", header, b""))


def without_arrays(record: str) -> str:
    """The record of an attempt with the same texts and no arrays, which says so itself."""
    header = parse_json(record.encode())
    for turn in header["turns"]:
        turn.update(ids=0, sampled=0, logps=0, versions=[], support=None)
    header["arrays"] = [0] * len(STREAMS)
    header["provenance"] = {**header["provenance"], "arrays": "dropped by compaction"}
    return header_text(header)
