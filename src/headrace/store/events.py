"""The event log of a run: append-only JSON lines, acknowledged once they are on the disk.

A line is `{"seq", "kind", "step", ...payload, "crc", "time", "timing"}`. Whatever may differ
between two identical runs lives only under `time` and `timing`; `crc` is the CRC-32 of the
bytes before it. `seq` counts the events of the run's history from 0.

A resumed run replays: the cursor goes back to the checkpoint's `seq`, and events appended
again are compared with the recorded ones and not written twice. Where they differ, a strict
log raises `Divergence`; otherwise a `rewound` line is written, which takes everything from
its `to_seq` on out of the history. Readers see one consistent history, never the mark.
"""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.errors import InfrastructureError, StorageError
from headrace.store.files import (
    append_fsync,
    fsync_directory,
    jsonable,
    parse_json,
    storage_guard,
)
from headrace.types import Json, canonical_json

__all__ = ["Divergence", "Event", "EventLog", "History", "read_events", "read_history"]

REWOUND = "rewound"
_RESERVED = frozenset({"seq", "kind", "step", "crc", "time", "timing"})
_CRC_MARK = b',"crc":"'


class Divergence(InfrastructureError):
    """A replayed run did something else than the recorded one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened.

    >>> Event(seq=0, kind="checkpoint", step=10, payload={"name": "step_000010"}).payload["name"]
    'step_000010'

    `step` is the training step it belongs to; `time` is ISO 8601 in UTC; `timing` in seconds
    or in things per second, as its keys say.
    """

    seq: int
    kind: str
    step: int
    payload: Mapping[str, Json]
    time: str = ""
    timing: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def fixed(self) -> dict[str, Json]:
        """What two identical runs share: everything but `time` and `timing`."""
        return {"seq": self.seq, "kind": self.kind, "step": self.step, **self.payload}


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """`events[i].seq == i`; `rewinds` are the marks of abandoned futures, oldest first."""

    events: list[Event]
    rewinds: list[Event]


def read_events(path: Path) -> list[Event]:
    """The history of a run, without what a rewind superseded; a torn last line is ignored.

    A missing file is an empty history. Raises StorageError for a corrupt line.
    """
    return read_history(path).events


def read_history(path: Path) -> History:
    """As `read_events`, with the rewinds. Safe while a writer appends."""
    scan = _scan(path, keep_events=True)
    return History(events=scan.events, rewinds=scan.rewinds)


# --- reading -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Scan:
    offsets: list[int] = field(default_factory=list[int])
    events: list[Event] = field(default_factory=list[Event])
    rewinds: list[Event] = field(default_factory=list[Event])
    end: int = 0


def _scan(path: Path, *, keep_events: bool) -> _Scan:
    """Offsets of the history's lines, its events if asked for, and where valid data ends."""
    scan = _Scan()
    with storage_guard(path, verb="read"):
        if not path.exists():
            return scan
        # read whole, then split: reading by lines goes on after a half-written one, and finds
        # its other half as a line of its own
        lines = io.BytesIO(path.read_bytes()).readlines()
    for number, line in enumerate(lines, start=1):
        if number == len(lines) and _is_torn(line):
            break
        try:
            event = _parse(line[:-1])
            _place(scan, event)
        except ValueError as error:
            raise StorageError(
                f"line {number} of {path.name} is corrupt: {error}",
                where=f"{path}:{number}",
                hint="restore the file from a backup; nothing from this line on can be trusted",
            ) from error
        if event.kind != REWOUND:
            scan.offsets.append(scan.end)
            if keep_events:
                scan.events.append(event)
        scan.end += len(line)
    return scan


def _is_torn(line: bytes) -> bool:
    """Whether a last line is what an interrupted write leaves: never acknowledged.

    It lacks its newline, or has zeros where a page did not reach the disk when the power
    failed. An event that is whole but for a damaged newline had been acknowledged.
    """
    if line.endswith(b"\n"):
        return b"\0" in line
    try:
        _parse(line[:-1])
    except ValueError:
        return True
    return False


def _place(scan: _Scan, event: Event) -> None:
    """Check an event's number against the history so far; apply it if it is a rewind."""
    due = len(scan.offsets)
    if event.kind != REWOUND:
        if event.seq != due:
            raise ValueError(f"it has seq {event.seq} where {due} was due")
        return
    target = event.payload.get("to_seq")
    if type(target) is not int or not 0 <= target <= due or target != event.seq:
        raise ValueError(f"it rewinds to {target!r} in a history of {due} events")
    del scan.offsets[target:]
    del scan.events[target:]
    scan.rewinds.append(event)


def _parse(line: bytes) -> Event:
    """An event from its line, which must match its checksum (ValueError)."""
    head, mark, tail = line.rpartition(_CRC_MARK)
    if not mark:
        raise ValueError("it has no checksum")
    fixed, varying = parse_json(head + b"}"), parse_json(b"{" + mark[1:] + tail)
    if varying.get("crc") != _checksum(head):
        raise ValueError("its checksum does not match")
    match varying:
        case {"crc": _, "time": str() as time, "timing": dict() as timing, **rest} if not rest:
            pass
        case _:
            raise ValueError("time or timing is missing, or something else is there")
    if not all(type(number) in (int, float) for number in timing.values()):
        raise ValueError("timing must hold numbers")
    match fixed:
        case {"seq": int() as seq, "kind": str() as kind, "step": int() as step, **payload}:
            return Event(seq=seq, kind=kind, step=step, payload=payload, time=time, timing=timing)
        case _:
            raise ValueError("seq and step must be integers and kind a string")


# --- writing -------------------------------------------------------------------------------


def _checksum(head: bytes) -> str:
    return f"{zlib.crc32(head):08x}"


def _line(event: Event) -> bytes:
    head = json.dumps(event.fixed, separators=(",", ":"), allow_nan=False)[:-1].encode()
    tail = {"crc": _checksum(head), "time": event.time, "timing": dict(event.timing)}
    return (
        head + b"," + json.dumps(tail, separators=(",", ":"), allow_nan=False)[1:].encode() + b"\n"
    )


class EventLog:
    """The one writer of a run's events (the run's lock sees to that).

    Opening cuts a torn last line. `strict` makes a replay that differs from the record a
    `Divergence` instead of a rewind.
    """

    def __init__(self, path: Path, *, strict: bool = False) -> None:
        self.path = path
        self.strict = strict
        scan = _scan(path, keep_events=False)
        self._offsets = scan.offsets
        self._cursor = len(scan.offsets)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        with storage_guard(path):
            self._descriptor = os.open(path, flags, 0o644)
            os.ftruncate(self._descriptor, scan.end)
            os.fsync(self._descriptor)
            fsync_directory(path.parent)

    @property
    def seq(self) -> int:
        """The number of the next event, by the cursor."""
        return self._cursor

    @property
    def replaying(self) -> bool:
        """Whether recorded events lie ahead of the cursor."""
        return self._cursor < len(self._offsets)

    def rewind(self, seq: int) -> None:
        """Set the cursor to an earlier event. Raises StorageError if the log is shorter."""
        if not 0 <= seq <= len(self._offsets):
            raise StorageError(
                f"the event log holds {len(self._offsets)} events, but event {seq} is needed",
                where=str(self.path),
                hint="the log lost its end; restore it from a backup or start a new run",
            )
        self._cursor = seq

    def append(
        self,
        kind: str,
        step: int,
        payload: Mapping[str, Json],
        timing: Mapping[str, float] | None = None,
    ) -> None:
        """Record an event and return once it is durable; when replaying, compare instead.

        Raises ValueError for NaN, infinities or a reserved key, TypeError for what JSON cannot
        hold, StorageError when the write fails, `Divergence` when strict and different.
        """
        event = self._event(kind, step, payload, timing or {})
        if self.replaying:
            difference = self._difference(event)
            if difference is None:
                self._cursor += 1
                return
            if self.strict:
                raise difference
        self._write(event)

    def _event(
        self, kind: str, step: int, payload: Mapping[str, Json], timing: Mapping[str, float]
    ) -> Event:
        taken = _RESERVED & payload.keys()
        if taken or kind == REWOUND:
            raise ValueError(f"reserved by the log: {', '.join(sorted(taken)) or kind}")
        return Event(
            seq=self._cursor,
            kind=kind,
            step=jsonable(step, "step"),
            payload=jsonable(payload, kind),
            time=_now(),
            timing={key: float(jsonable(value, key)) for key, value in timing.items()},
        )

    def _difference(self, event: Event) -> Divergence | None:
        recorded = self._recorded(self._cursor)
        if canonical_json(recorded.fixed) == canonical_json(event.fixed):
            return None
        key, old, new = _first_difference(recorded.fixed, event.fixed)
        return Divergence(
            f"the replay differs from the record at event {event.seq} ({event.kind}, step "
            f"{event.step}): {key} was {old} and is now {new}",
            where=str(self.path),
            hint="same machine, threads and library versions? with deterministic = false "
            "the run goes on from here and records a rewind",
        )

    def _recorded(self, seq: int) -> Event:
        start = self._offsets[seq]
        with storage_guard(self.path, verb="read"), self.path.open("rb") as file:
            file.seek(start)
            return _parse(file.readline()[:-1])

    def _write(self, event: Event) -> None:
        """Append to the file and the index together; after any failure the log is closed."""
        if self._descriptor < 0:
            raise StorageError(
                "the event log is closed: an earlier write failed or was interrupted",
                where=str(self.path),
                hint=f"headrace resume {self.path.parent}",
            )
        try:
            if self.replaying:
                append_fsync(self._descriptor, self.path, _line(self._mark(event)))
                del self._offsets[self._cursor :]
            offset = os.fstat(self._descriptor).st_size
            append_fsync(self._descriptor, self.path, _line(event))
            self._offsets.append(offset)
            self._cursor += 1
        except BaseException:
            self.close()
            raise

    def _mark(self, event: Event) -> Event:
        """The line that takes what was recorded from the cursor on out of the history."""
        payload = {"to_seq": self._cursor, "superseded": len(self._offsets) - self._cursor}
        return Event(
            seq=self._cursor, kind=REWOUND, step=event.step, payload=payload, time=event.time
        )

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _first_difference(old: Json, new: Json, path: str = "") -> tuple[str, str, str]:
    """The path of the first difference of two JSON values, and both values, shortened."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            inner = f"{path}.{key}" if path else str(key)
            if key not in old or key not in new:
                return inner, _short(old.get(key, "absent")), _short(new.get(key, "absent"))
            if canonical_json(old[key]) != canonical_json(new[key]):
                return _first_difference(old[key], new[key], inner)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (left, right) in enumerate(zip(old, new, strict=True)):
            if canonical_json(left) != canonical_json(right):
                return _first_difference(left, right, f"{path}[{index}]")
    return path, _short(old), _short(new)


def _short(value: Json) -> str:
    text = canonical_json(value)
    return text if len(text) <= 80 else text[:77] + "..."
