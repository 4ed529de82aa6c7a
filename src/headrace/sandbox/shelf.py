"""Where a backend that copies puts its snapshots, and finds those that a dead process left.

May be known by backends; knows no sandbox.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tarfile
import uuid
from pathlib import Path

from headrace.errors import UsageError
from headrace.sandbox.state import state_root

__all__ = ["Shelf", "box_directory", "remove_tree", "unpacking_lacks"]

_PREFIX = "snapshots-"


class Shelf:
    """A directory of this backend object, locked for as long as it is open, so that another
    process can tell whether anybody still needs it."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._path: Path | None = None
        self._lock = -1

    def place(self, ref: str) -> Path:
        """Where the snapshot of that id is, or is to be."""
        if self._path is None:
            path = state_root() / self._backend / f"{_PREFIX}{uuid.uuid4().hex}"
            path.mkdir(parents=True)
            lock = _locked(path)
            assert lock is not None, "nobody else knows this name"
            self._path, self._lock = path, lock
        return self._path / ref

    def sweep(self) -> None:
        """Remove the shelves of this backend that processes left which are dead."""
        for left in (state_root() / self._backend).glob(f"{_PREFIX}*"):
            if left != self._path and (lock := _locked(left)) is not None:
                remove_tree(left)
                os.close(lock)

    def close(self) -> None:
        """Remove all snapshots. Idempotent."""
        if self._path is not None:
            remove_tree(self._path)
            os.close(self._lock)
            self._path = None


def box_directory(backend: str, id: str) -> Path:
    """The state directory of one sandbox; UsageError for an id that is none."""
    if not id or "/" in id or id.startswith((".", _PREFIX)):
        raise UsageError("not an id of a sandbox", where=id)
    return state_root() / backend / id


def unpacking_lacks() -> str | None:
    """None, or why hostile archives cannot be unpacked by this Python."""
    if hasattr(tarfile, "data_filter"):
        return None
    return "this Python cannot unpack archives safely: it needs 3.11.4 or later"


def remove_tree(path: Path) -> None:
    """Remove a tree, whatever permissions its directories were given."""
    for directory, names, _ in os.walk(path):
        for name in names:
            below = Path(directory, name)
            if not below.is_symlink():
                below.chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)


def _locked(path: Path) -> int | None:
    """A descriptor that holds the lock of a directory; None if another process does."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
