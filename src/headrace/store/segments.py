"""Segments: files of records that only grow, and what a kill or a power failure may do to them.

A segment `part-00000.seg` is a sequence of

    [u32 length][u32 crc32][payload, `length` bytes]      (little-endian)

`SegmentWriter` writes whatever came while the last flush went on, flushes it once, puts a mark
behind it and only then acknowledges. So everything that was acknowledged lies before a mark:
damage there is reported, with file and offset; damage behind the last mark is what an
interrupted write left, and is cut. Segments of the first format have commits of waves instead
of marks, and are never appended to.

Knows the kinds of records (`records`), not what they say.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from headrace.errors import StorageError
from headrace.store.files import fsync_directory, storage_guard
from headrace.store.records import MARK, kind_of

__all__ = [
    "HINT",
    "OVERHEAD",
    "Descriptor",
    "Located",
    "Owner",
    "Scan",
    "SegmentWriter",
    "corrupt",
    "cut",
    "frame",
    "numbers_of",
    "path_of",
    "payload_at",
    "scan",
]

_T = TypeVar("_T")
_T_contra = TypeVar("_T_contra", contravariant=True)
_Result = TypeVar("_Result")
_HEADER = struct.Struct("<II")
OVERHEAD = _HEADER.size
"""Bytes a record takes beside its payload."""

HINT = "restore the file from a backup, or start a new run"
_OLD_COMMIT = b'{"commit":'
_BATCH_BYTES = 16 << 20
"""The most that is written before a flush, unless one record is larger."""


def frame(payload: bytes) -> bytes:
    """A payload as it stands in a segment."""
    return _HEADER.pack(len(payload), zlib.crc32(payload)) + payload


_MARK = frame(MARK)


def path_of(directory: Path, segment: int) -> Path:
    return directory / f"part-{segment:05d}.seg"


def numbers_of(directory: Path) -> list[int]:
    """The segments in a directory, in order."""
    with storage_guard(directory, verb="read"):
        paths = directory.glob("part-[0-9][0-9][0-9][0-9][0-9].seg")
        return sorted(int(path.stem.removeprefix("part-")) for path in paths)


def corrupt(path: Path, offset: int, why: str = "") -> StorageError:
    return StorageError(
        f"{path.name} is corrupt at byte {offset}{f': {why}' if why else ''}",
        where=f"{path}:{offset}",
        hint=HINT,
    )


def cut(directory: Path, segment: int, end: int) -> None:
    """Cut a segment, durably."""
    path = path_of(directory, segment)
    file = Descriptor(path, os.O_RDWR)
    with storage_guard(path):
        os.ftruncate(file.number, end)
        os.fsync(file.number)


class Descriptor:
    """An open file, closed at the latest when nothing refers to it any more."""

    def __init__(self, path: Path, flags: int) -> None:
        self.number = -1
        self.path = path
        with storage_guard(path, verb="read" if flags == os.O_RDONLY else "write"):
            self.number = os.open(path, flags, 0o644)

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; safe from any thread, and after the file was unlinked."""
        parts: list[bytes] = []
        with storage_guard(self.path, verb="read"):
            while length > 0 and (part := os.pread(self.number, length, offset)):
                parts.append(part)
                offset, length = offset + len(part), length - len(part)
        return b"".join(parts)

    def size(self) -> int:
        return os.fstat(self.number).st_size

    def close(self) -> None:
        if self.number >= 0:
            os.close(self.number)
            self.number = -1

    __del__ = close


def payload_at(file: Descriptor, offset: int, length: int) -> bytes:
    """The payload of `length` bytes in the record at `offset`; StorageError if it changed."""
    data = file.read(offset, OVERHEAD + length)
    payload = _payload(data, 0)
    if payload is None or len(payload) != length:
        raise corrupt(file.path, offset)
    return payload


def _payload(data: bytes, position: int) -> bytes | None:
    """The payload of the intact record at `position`, or None."""
    start = position + OVERHEAD
    if start > len(data):
        return None
    length, checksum = _HEADER.unpack_from(data, position)
    payload = data[start : start + length]
    if not length or len(payload) < length or zlib.crc32(payload) != checksum:
        return None
    return payload


# --- scanning ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Located:
    """A payload and where its record begins."""

    offset: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Scan:
    """What a segment holds: units of records that were written as one (a single record, or a
    wave's with its commit), and where the last of them or the last mark ends.

    `first_format`: it was written before marks were, and must not be appended to. `marked`: a
    mark is the last thing in it.
    """

    units: list[list[Located]]
    end: int
    first_format: bool
    marked: bool


def scan(file: Descriptor, *, last: bool) -> Scan:
    """Read a segment. Only the `last` one may end in something unfinished, which is left out.

    Raises StorageError for damage to what had been acknowledged.
    """
    data = file.read(0, file.size())
    first_format = data[OVERHEAD : OVERHEAD + 1] == b"{"
    units: list[list[Located]] = []
    unit: list[Located] = []
    position = end = 0
    marked = True
    while position < len(data):
        payload = _payload(data, position)
        if payload is None:
            if not last or not _is_torn(data, position, first_format=first_format):
                raise corrupt(file.path, position)
            break
        kind, offset = kind_of(payload), position
        position += OVERHEAD + len(payload)
        if unit and kind not in ("t", "W"):
            raise corrupt(file.path, unit[0].offset, "a wave without its commit")
        if kind != "M":
            unit.append(Located(offset, payload))
            if kind == "t":
                continue
            units.append(unit)
            unit = []
        end, marked = position, kind == "M"
    if end < len(data) and not last:
        raise corrupt(file.path, end)
    return Scan(units, end, first_format, marked)


def _is_torn(data: bytes, position: int, *, first_format: bool) -> bool:
    """Whether the bad record at `position` may be what an interrupted write left."""
    if _follows(data, position, MARK) or _follows(data, position, _OLD_COMMIT):
        return False
    return not first_format or _is_torn_first(data[position:])


def _follows(data: bytes, position: int, start: bytes) -> bool:
    """Whether an intact record whose payload begins with `start` lies after `position`."""
    found = data.find(start, position + 1)
    while found >= 0:
        if found >= position + OVERHEAD and _payload(data, found - OVERHEAD) is not None:
            return True
        found = data.find(start, found + 1)
    return False


def _is_torn_first(rest: bytes) -> bool:
    """The same for the first format, whose last commit nothing follows: torn is a strict prefix
    of a record, or one that was extended with zeros when the power failed."""
    if len(rest) < OVERHEAD or rest.endswith(b"\0"):
        return True
    length, checksum = _HEADER.unpack_from(rest)
    body = rest[OVERHEAD:]
    return len(body) < length and zlib.crc32(body) != checksum


# --- writing -------------------------------------------------------------------------------


class Owner(Protocol[_T_contra]):
    """Who hears what became of the records it submitted, by token, in the writer's thread."""

    def landed(self, token: _T_contra, segment: int, offset: int) -> None:
        """They are durable, at `offset`. Called in the order in which they were submitted."""

    def acknowledged(self, token: _T_contra) -> None:
        """The same, once all that were flushed together have landed."""

    def failed(self, tokens: Sequence[_T_contra], error: BaseException) -> None:
        """Nothing of them is in the segment."""


@dataclass(frozen=True, slots=True)
class _Unit(Generic[_T]):
    frames: Sequence[bytes]
    token: _T


class SegmentWriter(Generic[_T]):
    """Appends to the last segment of a directory, one flush for all that wait (group fsync).

    `submit` may be called from any thread. What it takes is written in that order by one
    thread, which exists while there is a writer, and which tells the `owner` what became of it.
    When a write fails the segment is cut back and everything that was waiting fails with the
    same StorageError; what comes later is tried anew.
    """

    def __init__(
        self,
        directory: Path,
        segment: int,
        end: int,
        *,
        segment_bytes: int,
        owner: Owner[_T],
    ) -> None:
        """`segment` is opened or made, and cut at `end`."""
        self.directory = directory
        self._owner = owner
        self.segment_bytes = segment_bytes
        self.segment = segment
        self._lock = threading.Lock()
        self._queue: list[_Unit[_T]] = []
        self._flushing = False
        self._closed = False
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="headrace-store")
        self.file = self._opened(segment)
        self._end = end
        with storage_guard(self.file.path):
            os.ftruncate(self.file.number, end)
            os.fsync(self.file.number)

    def _opened(self, segment: int) -> Descriptor:
        file = Descriptor(path_of(self.directory, segment), os.O_RDWR | os.O_CREAT | os.O_APPEND)
        with storage_guard(file.path):
            fsync_directory(self.directory)
        return file

    def submit(self, frames: Sequence[bytes], token: _T) -> None:
        """Write framed records as one; the owner hears of it by `token`. StorageError if the
        writer is closed."""
        with self._lock:
            if self._closed:
                raise StorageError(
                    "the trajectory log is closed or read-only",
                    where=str(self.directory),
                    hint="open it again for writing",
                )
            self._queue.append(_Unit(frames, token))
            if not self._flushing:
                self._flushing = True
                self._executor.submit(self._flush)

    def mark(self) -> None:
        """Put a mark at the end, behind what an earlier writer left without one."""
        with storage_guard(self.file.path, needed=len(_MARK)):
            _write_all(self.file.number, _MARK)
        self._end += len(_MARK)

    def roll(self) -> int:
        """Start a new segment unless the last one is empty; the number of the last one then."""
        return self.between_flushes(partial(self._roll, 1))

    def between_flushes(self, work: Callable[[], _Result]) -> _Result:
        """What `work` gives, done while everything that is written is also in the index."""
        return self._executor.submit(work).result()

    def close(self) -> None:
        """Wait for what was submitted, then close the file."""
        with self._lock:
            self._closed = True
        self._executor.shutdown(wait=True)
        self.file.close()

    # --- in the writer's thread --------------------------------------------------------------

    def _flush(self) -> None:
        while batch := self._next_batch():
            try:
                self._roll(self.segment_bytes)
                self._write(batch)
            except StorageError as error:
                self._fail(batch, error)
            except BaseException as error:
                with self._lock:
                    self._closed = True
                self._fail(batch, error)
                raise

    def _next_batch(self) -> list[_Unit[_T]]:
        with self._lock:
            count = size = 0
            while count < len(self._queue) and (not count or size < _BATCH_BYTES):
                size += sum(map(len, self._queue[count].frames))
                count += 1
            batch, self._queue = self._queue[:count], self._queue[count:]
            self._flushing = bool(batch)
        return batch

    def _write(self, batch: Sequence[_Unit[_T]]) -> None:
        """Make a batch durable, mark it, acknowledge it. On failure nothing of it is left."""
        start = self._end
        body = b"".join([frame for unit in batch for frame in unit.frames])
        if body:
            self._put(body)
        for unit in batch:
            self._owner.landed(unit.token, self.segment, start)
            start += sum(map(len, unit.frames))
        for unit in batch:
            self._owner.acknowledged(unit.token)

    def _put(self, body: bytes) -> None:
        start = self._end
        with storage_guard(self.file.path, needed=len(body)):
            if self.file.size() != start:  # an earlier failure could not be cut back
                os.ftruncate(self.file.number, start)
            try:
                _write_all(self.file.number, body)
                os.fdatasync(self.file.number)
                _write_all(self.file.number, _MARK)
            except BaseException:
                os.ftruncate(self.file.number, start)
                raise
        self._end = start + len(body) + len(_MARK)

    def _fail(self, batch: Sequence[_Unit[_T]], error: BaseException) -> None:
        """Whatever waits may build on what has just failed, so it fails too."""
        with self._lock:
            waiting, self._queue = self._queue, []
        self._owner.failed([unit.token for unit in (*batch, *waiting)], error)

    def _roll(self, full: int) -> int:
        if self._end >= full:
            file = self._opened(self.segment + 1)
            self.file, self._end = file, 0
            self.segment += 1
        return self.segment


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
