"""Stored attempts as training data: nothing is sampled again.

    sft      conversations whose last word is the assistant's, as `messages` (and `tools`)
    distill  the same as `prompt` and `completion`, with token ids, mask and log-probabilities
    replay   whole attempts with their verdicts, as `codec.trajectory_to_json` writes them

As JSON lines or, by the name of the file, Parquet. Loads duckdb and pyarrow: import it where it
is needed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import UsageError
from headrace.store.codec import trajectory_to_json
from headrace.store.files import fsync_directory, storage_guard
from headrace.store.query import ids_where
from headrace.store.trajectories import TrajectoryStore
from headrace.types import (
    ImagePart,
    Json,
    Message,
    ToolCall,
    Trajectory,
    Turn,
    VerifierRef,
    canonical_json,
)

__all__ = ["Exported", "Kind", "conversation", "export"]

Kind = Literal["sft", "distill", "replay"]

_ROWS = 256
"""Attempts written at once."""

_SAID = pa.list_(
    pa.struct(
        [
            ("role", pa.string()),
            ("content", pa.string()),
            ("tool_calls", pa.string()),
            ("tool_call_id", pa.string()),
        ]
    )
)
_COMMON = [
    ("id", pa.string()),
    ("task_id", pa.string()),
    ("domain", pa.string()),
    ("score", pa.float64()),
]
_SCHEMAS = {
    "sft": pa.schema([*_COMMON, ("messages", _SAID), ("tools", pa.string())]),
    "distill": pa.schema(
        [
            *_COMMON,
            ("prompt", _SAID),
            ("completion", _SAID),
            ("tools", pa.string()),
            ("ids", pa.list_(pa.int32())),
            ("sampled", pa.list_(pa.bool_())),
            ("logps", pa.list_(pa.float32())),
        ]
    ),
    "replay": pa.schema([*_COMMON, ("trajectory", pa.string())]),
}
_NESTED = ("messages", "prompt", "completion")


@dataclass(frozen=True, slots=True)
class Exported:
    """Where the rows are and how many; `skipped` were chosen but have nothing of this kind to
    give: no last word of the assistant, or arrays that compaction dropped."""

    path: Path
    rows: int
    skipped: int


def export(
    store: TrajectoryStore,
    path: Path,
    *,
    kind: Kind,
    where: str = "true",
    verifier: VerifierRef | None = None,
) -> Exported:
    """Write the attempts for which `where` holds to `path`, oldest first, atomically.

    `where` is an SQL condition over the view `trajectories`, "domain = 'arithmetic' AND solved";
    it can do no more than choose. `verifier`: whose verdict the rows carry. Raises UsageError
    for a condition that is wrong and StorageError.
    """
    if kind not in _SCHEMAS:
        raise UsageError(f"no export {kind!r}", where="kind", hint=f"one of {', '.join(_SCHEMAS)}")
    chosen = ids_where(store.log, where)
    found = (store.trajectory(trajectory, verifier=verifier) for trajectory in chosen)
    rows = (_row(kind, trajectory) for trajectory in found if trajectory is not None)
    written = 0
    with _replacing(path) as temporary, storage_guard(path):
        if path.suffix == ".parquet":
            written = _write_parquet(temporary, rows, _SCHEMAS[kind])
        else:
            written = _write_lines(temporary, rows)
    return Exported(path, written, len(chosen) - written)


@contextmanager
def _replacing(path: Path) -> Generator[Path]:
    """A file beside `path` that takes its place at the end, or is gone."""
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    try:
        yield temporary
        with storage_guard(path):
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
            fsync_directory(path.absolute().parent)
    finally:
        temporary.unlink(missing_ok=True)


def _write_lines(path: Path, rows: Iterable[dict[str, Json] | None]) -> int:
    written = 0
    with path.open("w", encoding="ascii") as file:
        for row in rows:
            if row is not None:
                file.write(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n")
                written += 1
    return written


def _write_parquet(path: Path, rows: Iterable[dict[str, Json] | None], schema: pa.Schema) -> int:
    written = 0
    flat = (_flat(row) for row in rows if row is not None)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in _batches(flat):
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
            written += len(batch)
    return written


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while batch := list(islice(rows, _ROWS)):
        yield batch


def _flat(row: dict[str, Json]) -> dict[str, Any]:
    """A row with what Parquet has no type for as JSON text."""
    flat = {
        key: value if key in ("score", "ids", "sampled", "logps") else _word(value)
        for key, value in row.items()
    }
    for key in _NESTED:
        if key in row:
            flat[key] = [{name: _word(v) for name, v in said.items()} for said in row[key]]
    return flat


def _word(value: Json) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode()


# --- rows ----------------------------------------------------------------------------------


def _row(kind: Kind, trajectory: Trajectory) -> dict[str, Json] | None:
    """The row of an attempt, None if it has nothing of this kind to give."""
    task = trajectory.task
    common: dict[str, Json] = {
        "id": trajectory.id,
        "task_id": task.id,
        "domain": task.domain,
        "score": trajectory.score,
    }
    whole = any(len(turn.ids) for turn in trajectory.turns)
    if kind == "replay":
        return {**common, "trajectory": trajectory_to_json(trajectory)} if whole else None
    messages = conversation(trajectory)
    start = len(task.messages)
    if len(messages) == start or messages[-1]["role"] != "assistant":
        return None
    if task.tools:
        common["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                },
            }
            for tool in task.tools
        ]
    if kind == "sft":
        return {**common, "messages": messages}
    if not whole:
        return None
    turns = trajectory.turns
    return {
        **common,
        "prompt": messages[:start],
        "completion": messages[start:],
        "ids": [item for turn in turns for item in turn.ids.tolist()],
        "sampled": [item for turn in turns for item in turn.sampled.tolist()],
        "logps": [_finite(item) for turn in turns for item in turn.logps.tolist()],
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def conversation(trajectory: Trajectory) -> list[dict[str, Json]]:
    """An attempt as messages: the task's, then what was said from the policy's first word on.

    Calls have their arguments as JSON text and results follow them as messages of their own.
    """
    messages = [_message(message) for message in trajectory.task.messages]
    roles = [turn.role for turn in trajectory.turns]
    first = roles.index("assistant") if "assistant" in roles else len(roles)
    open_calls: list[ToolCall] = []
    for turn in trajectory.turns[first:]:
        if turn.role == "tool":
            answered = open_calls.pop(0) if open_calls else None
            messages.append(_result(turn.text, answered))
            continue
        messages += _results(open_calls)
        messages.append(_turn(turn))
        open_calls = list(turn.tool_calls)
    return messages + _results(open_calls)


def _message(message: Message) -> dict[str, Json]:
    if not any(isinstance(part, ImagePart) for part in message.parts):
        return {"role": message.role, "content": message.text}
    parts: list[Json] = [
        {"type": "image", "sha256": part.digest, "media_type": part.media_type}
        if isinstance(part, ImagePart)
        else {"type": "text", "text": part.text}
        for part in message.parts
    ]
    return {"role": message.role, "content": parts}


def _turn(turn: Turn) -> dict[str, Json]:
    said: dict[str, Json] = {"role": turn.role, "content": turn.text}
    if turn.tool_calls:
        said["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call)},
            }
            for call in turn.tool_calls
        ]
    return said


def _arguments(call: ToolCall) -> str:
    return call.raw if call.arguments is None else canonical_json(dict(call.arguments))


def _results(calls: Sequence[ToolCall]) -> list[dict[str, Json]]:
    return [_result(call.result, call) for call in calls if call.result is not None]


def _result(text: str, call: ToolCall | None) -> dict[str, Json]:
    said: dict[str, Json] = {"role": "tool", "content": text}
    return said if call is None else {**said, "tool_call_id": call.id}
