"""Tar archives on their way into a container and out of it, and where snapshots are kept.

May be known by the engine backend only.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import tarfile
import uuid
from pathlib import Path

from headrace.errors import UsageError
from headrace.sandbox.state import state_root

__all__ = ["Snapshots", "complete", "only_of", "without_top"]

_HOME = "snapshots-"
_NOWHERE = "/headrace-nowhere"


def without_top(archive: Path | bytes, room: int, into: Path) -> None:
    """A copy of an uncompressed archive, less entries for the directory that it is unpacked in
    (whose owner may be another). UsageError for one that is damaged, leaves that directory, or
    holds more than `room` bytes."""
    size = 0
    try:
        with (
            io.BytesIO(archive) if isinstance(archive, bytes) else archive.open("rb") as file,
            tarfile.open(fileobj=file, mode="r:") as source,
            tarfile.open(into, mode="w:", format=tarfile.GNU_FORMAT) as target,
        ):
            for member in source:
                size += max(member.size, 0)
                if size > room:
                    raise UsageError(f"an archive of more than {room} bytes does not fit")
                checked = tarfile.data_filter(member, _NOWHERE)
                if checked.name.rstrip("/") not in ("", "."):
                    member.name = checked.name
                    member.uid = member.gid = 0
                    member.uname = member.gname = ""
                    _add(source, member, target)
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise UsageError(f"not an archive that can be unpacked: {error}") from error


def only_of(archive: Path, uid: int, into: Path) -> int:
    """A copy with the entries of one owner, and how many they are. UsageError if damaged."""
    count = 0
    try:
        with (
            tarfile.open(archive, mode="r:") as source,
            tarfile.open(into, mode="w:", format=tarfile.GNU_FORMAT) as target,
        ):
            for member in source:
                if member.uid == uid:
                    _add(source, member, target)
                    count += 1
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise UsageError(f"the image's tar wrote no archive: {error}") from error
    return count


def complete(archive: Path) -> bool:
    """Whether an archive ends as one does: with two empty blocks."""
    size = archive.stat().st_size
    if size < 1024:
        return False
    with archive.open("rb") as file:
        file.seek(size - 1024)
        return not any(file.read())


def _add(source: tarfile.TarFile, member: tarfile.TarInfo, target: tarfile.TarFile) -> None:
    content = source.extractfile(member) if member.isreg() else None
    if content is not None:
        member.type = tarfile.REGTYPE
    target.addfile(member, content)


class Snapshots:
    """A directory of this process, which others may remove when its lock is free."""

    def __init__(self, backend: str) -> None:
        self._home = state_root() / backend
        self.path = self._home / f"{_HOME}{uuid.uuid4().hex}"
        self.path.mkdir(parents=True, mode=0o700)
        self._lock = _locked(self.path)

    def close(self) -> None:
        """Drop all of them. Idempotent."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None

    @staticmethod
    def sweep(backend: str) -> None:
        """Remove those of dead processes."""
        for left in (state_root() / backend).glob(f"{_HOME}*"):
            lock = _locked(left)
            if lock is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(lock)


def _locked(path: Path) -> int | None:
    """A descriptor that holds the lock of a directory; None if somebody else does, or it is
    gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
