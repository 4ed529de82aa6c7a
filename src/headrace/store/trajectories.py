"""The waves of a run: every trajectory on disk before anything depends on it.

A wave is the set of trajectories played and judged together. `WaveLog` appends waves to
segment files `part-00000.seg` of records

    [u32 length][u32 crc32][payload: ASCII JSON, `length` bytes]      (little-endian)

A wave is its trajectory records and then a commit record, flushed in that order, so a commit
on the disk means that the wave is. Whatever follows the last commit was never acknowledged.
Memory holds the places of waves, not the waves.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.errors import StorageError
from headrace.store.codec import trajectory_from_json, trajectory_to_json
from headrace.store.files import append_fsync, fsync_directory, parse_json, storage_guard
from headrace.types import Json, Trajectory

__all__ = ["Wave", "WaveLog"]

_HEADER = struct.Struct("<II")
_COMMIT_START = b'{"commit":'
_HINT = "restore the file from a backup, or start a new run"


@dataclass(frozen=True, slots=True)
class Wave:
    """A committed wave; `key` is whatever the writer named it, "000003:0" for step 3, wave 0."""

    key: str
    trajectories: list[Trajectory]


@dataclass(frozen=True, slots=True)
class _Place:
    segment: int
    offset: int
    length: int
    count: int


class WaveLog:
    """Waves by key, in the order they were appended.

    Opening for writing cuts what follows the last commit; with `read_only` it is only ignored,
    so a reader may look while a writer (the holder of the run's lock) appends. A reader sees
    what was committed when it opened. Segments roll at `segment_bytes`; a wave is never split.
    """

    def __init__(
        self, directory: Path, *, read_only: bool = False, segment_bytes: int = 64 << 20
    ) -> None:
        self.directory = directory
        self.read_only = read_only
        self._segment_bytes = segment_bytes
        self._index: dict[str, _Place] = {}
        self._segment = 0
        self._end = 0
        self._descriptor = -1
        if not read_only:
            with storage_guard(directory):
                directory.mkdir(parents=True, exist_ok=True)
        segments = self._segments()
        for number in segments:
            self._segment = number
            self._end = self._scan(number, last=number == segments[-1])
        if not read_only:
            self._open_segment()

    def _segments(self) -> list[int]:
        with storage_guard(self.directory, verb="read"):
            paths = self.directory.glob("part-[0-9][0-9][0-9][0-9][0-9].seg")
            numbers = sorted(int(path.stem.removeprefix("part-")) for path in paths)
        if numbers != list(range(len(numbers))):
            raise StorageError(
                f"trajectory segments are missing: found {numbers}",
                where=str(self.directory),
                hint=_HINT,
            )
        return numbers

    def _path(self, segment: int) -> Path:
        return self.directory / f"part-{segment:05d}.seg"

    # --- reading ---------------------------------------------------------------------------

    def keys(self) -> list[str]:
        """The committed waves, oldest first."""
        return list(self._index)

    def __contains__(self, key: str) -> bool:
        return key in self._index

    def count(self, key: str) -> int:
        """How many trajectories a committed wave has, without reading them (KeyError)."""
        return self._index[key].count

    def wave(self, key: str) -> list[Trajectory] | None:
        """The trajectories of a wave, exactly as appended, or None if it was not committed.

        Raises StorageError when the bytes on disk changed.
        """
        place = self._index.get(key)
        if place is None:
            return None
        path = self._path(place.segment)
        with storage_guard(path, verb="read"), path.open("rb") as file:
            file.seek(place.offset)
            data = file.read(place.length)
        payloads: list[bytes] = []
        position = 0
        while position < len(data):
            payload = _payload(data, position)
            if payload is None:
                raise _corrupt(path, place.offset + position)
            payloads.append(payload)
            position += _HEADER.size + len(payload)
        if len(payloads) != place.count + 1:
            raise _corrupt(path, place.offset)
        return [trajectory_from_json(_parsed(payload, path)) for payload in payloads[:-1]]

    def iterate(self, keys: Iterable[str] | None = None) -> Iterator[Wave]:
        """The waves of `keys` (all by default), read one at a time. KeyError if unknown."""
        for key in self.keys() if keys is None else keys:
            trajectories = self.wave(key)
            if trajectories is None:
                raise KeyError(key)
            yield Wave(key, trajectories)

    def _scan(self, segment: int, *, last: bool) -> int:
        """Index the waves of a segment; return where its last commit ends."""
        path = self._path(segment)
        with storage_guard(path, verb="read"):
            data = path.read_bytes()
        committed = position = records = 0
        while position < len(data):
            payload = _payload(data, position)
            if payload is None:
                if last and _is_torn(data, position):
                    break
                raise _corrupt(path, position)
            position += _HEADER.size + len(payload)
            if not payload.startswith(_COMMIT_START):
                records += 1
                continue
            key = _commit_key(_parsed(payload, path), records, path, committed)
            if key in self._index:
                raise _corrupt(path, committed)
            self._index[key] = _Place(segment, committed, position - committed, records)
            committed, records = position, 0
        if committed < len(data) and not last:
            raise _corrupt(path, committed)
        return committed

    # --- writing ---------------------------------------------------------------------------

    def append_wave(self, key: str, trajectories: Sequence[Trajectory]) -> None:
        """Append a wave and return once it is durable.

        Raises ValueError for a key that exists, StorageError when the write fails (the wave is
        then not in the log), and what `trajectory_to_json` raises.
        """
        if key in self._index:
            raise ValueError(f"wave {key} is already in the log")
        body = b"".join(_record(trajectory_to_json(item)) for item in trajectories)
        commit = _record({"commit": key, "count": len(trajectories)})
        if self._descriptor < 0:
            raise StorageError(
                "the trajectory log is closed or read-only",
                where=str(self.directory),
                hint="open it again for writing",
            )
        try:
            if self._end >= self._segment_bytes:
                self._segment, self._end = self._segment + 1, 0
                self._open_segment()
            path = self._path(self._segment)
            append_fsync(self._descriptor, path, body)
            append_fsync(self._descriptor, path, commit)
            length = len(body) + len(commit)
            self._index[key] = _Place(self._segment, self._end, length, len(trajectories))
            self._end += length
        except BaseException:
            self.close()
            raise

    def _open_segment(self) -> None:
        """Open the current segment for appending, cut at its last commit."""
        self.close()
        path = self._path(self._segment)
        with storage_guard(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            os.ftruncate(self._descriptor, self._end)
            os.fsync(self._descriptor)
            fsync_directory(self.directory)

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


# --- records -------------------------------------------------------------------------------


def _record(value: Json) -> bytes:
    payload = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return _HEADER.pack(len(payload), zlib.crc32(payload)) + payload


def _payload(data: bytes, position: int) -> bytes | None:
    """The payload of the intact record at `position`, or None."""
    start = position + _HEADER.size
    if start > len(data):
        return None
    length, checksum = _HEADER.unpack_from(data, position)
    payload = data[start : start + length]
    if not length or len(payload) < length or zlib.crc32(payload) != checksum:
        return None
    return payload


def _is_torn(data: bytes, position: int) -> bool:
    """Whether the bad record at `position` is what an interrupted write leaves at the end.

    It is a strict prefix of a record, or was extended with zeros when the power failed, and no
    commit follows. Anything else was damaged after it had been written.
    """
    rest = data[position:]
    found = rest.find(_COMMIT_START)
    while found >= 0:
        if found >= _HEADER.size and _payload(rest, found - _HEADER.size) is not None:
            return False
        found = rest.find(_COMMIT_START, found + 1)
    if len(rest) < _HEADER.size or rest.endswith(b"\0"):
        return True
    length, _ = _HEADER.unpack_from(rest)
    body = rest[_HEADER.size :]
    return len(body) < length and not _is_whole(body)


def _is_whole(body: bytes) -> bool:
    """Whether `body` is complete JSON, which no strict prefix of an object can be."""
    if not body.endswith(b"}"):
        return False
    try:
        parse_json(body)
    except ValueError:
        return False
    return True


def _parsed(payload: bytes, path: Path) -> Json:
    try:
        return parse_json(payload)
    except ValueError as error:
        raise StorageError(
            f"{path.name} holds a record that is not JSON: {error}", where=str(path), hint=_HINT
        ) from error


def _commit_key(commit: Json, records: int, path: Path, offset: int) -> str:
    match commit:
        case {"commit": str() as key, "count": int() as count} if count == records:
            return key
        case _:
            raise _corrupt(path, offset)


def _corrupt(path: Path, offset: int) -> StorageError:
    return StorageError(
        f"{path.name} is corrupt at byte {offset}", where=f"{path}:{offset}", hint=_HINT
    )
