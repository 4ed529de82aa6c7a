"""Checkpoints of a run: written aside, made durable, then renamed into place.

A checkpoint is a directory `step_000010` with the files of whoever fills it, `state.json`,
and `manifest.json` with the SHA-256 and size of every other file. A directory without a
manifest that matches is not a checkpoint, and is never used.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from headrace.errors import CheckpointError, StorageError
from headrace.store.files import (
    fsync_directory,
    read_json,
    storage_guard,
    write_json_atomic,
)
from headrace.types import Json

__all__ = ["Checkpoint", "Checkpoints"]

_NAME = re.compile(r"step_(\d{6,})")
_TEMPORARY = ".tmp-"
_REPLACED = ".replaced-"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose every byte was verified.

    `state` is what the writer gave; `problems` says of each newer one why it was passed over.
    """

    name: str
    path: Path
    state: Json
    problems: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        """The number in the name."""
        return _step(self.name)


class Checkpoints:
    """The checkpoints of one run, of which the newest `keep` are kept.

    Opening for writing (by the holder of the run's lock) sweeps what a killed writer left;
    `read_only` touches nothing.
    """

    def __init__(self, directory: Path, keep: int = 2, *, read_only: bool = False) -> None:
        if keep < 1:
            raise ValueError("at least one checkpoint must be kept")
        self.directory = directory
        self.keep = keep
        self.pinned: str | None = None
        if not read_only:
            with storage_guard(directory):
                directory.mkdir(parents=True, exist_ok=True)
                self._sweep()

    def _sweep(self) -> None:
        for path in self.directory.glob(f"{_REPLACED}*"):
            original = self.directory / path.name.removeprefix(_REPLACED)
            if original.exists():
                shutil.rmtree(path)
            else:
                path.rename(original)
        for path in self.directory.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(path)

    def names(self) -> list[str]:
        """What is there, oldest first, verified or not."""
        with storage_guard(self.directory, verb="read"):
            if not self.directory.exists():
                return []
            names = [path.name for path in self.directory.iterdir() if path.is_dir()]
        return sorted((name for name in names if _NAME.fullmatch(name)), key=_step)

    # --- reading ---------------------------------------------------------------------------

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that verifies; None if there are none at all.

        Raises CheckpointError if there are some and none of them verifies.
        """
        problems: list[str] = []
        for name in reversed(self.names()):
            path = self.directory / name
            try:
                state = _verify(path)
            except (CheckpointError, StorageError) as error:
                problems.append(f"{name}: {error.what}")
                continue
            return Checkpoint(name, path, state, tuple(problems))
        if problems:
            raise CheckpointError(
                f"no checkpoint can be used; {'; '.join(problems)}",
                where=str(self.directory),
                hint=f"restore a checkpoint from a backup, or remove {self.directory} to train "
                "again from the start",
            )
        return None

    # --- writing ---------------------------------------------------------------------------

    def write(self, name: str, fill: Callable[[Path], None], state: Json) -> Path:
        """Write a checkpoint and return its directory once it is durable.

        `fill` puts files (any tree of regular files) into the directory it is given. A failure
        or an interrupt leaves nothing behind and the older checkpoints as they were; OSError
        becomes StorageError. Then those older than the newest `keep`, and those of a later
        step, left from a future that was abandoned, are removed.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"a checkpoint is named step_NNNNNN, not {name!r}")
        final = self.directory / name
        with self._temporary(name) as temporary, storage_guard(final, needed=self._size()):
            fill(temporary)
            write_json_atomic(temporary / "state.json", state)
            manifest = {"format": _FORMAT, "files": _flush(temporary)}
            write_json_atomic(temporary / "manifest.json", manifest)
            self._publish(temporary, final)
        self._prune(name)
        return final

    @contextmanager
    def _temporary(self, name: str) -> Generator[Path]:
        """A fresh directory beside the checkpoints, gone at the end unless it was renamed."""
        path = self.directory / f"{_TEMPORARY}{name}-{os.getpid()}"
        with storage_guard(path):
            path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def _publish(self, temporary: Path, final: Path) -> None:
        """Put a complete directory in place; a kill in between is mended by the next sweep."""
        replaced = self.directory / f"{_REPLACED}{final.name}"
        if final.exists():
            final.rename(replaced)
        temporary.rename(final)
        fsync_directory(self.directory)
        if replaced.exists():
            shutil.rmtree(replaced)

    def _prune(self, newest: str) -> None:
        names = self.names()
        past = [name for name in names if _step(name) <= _step(newest)]
        for name in set(names) - set(past[-self.keep :]) - {self.pinned}:
            doomed = self.directory / f"{_TEMPORARY}{name}-pruned"
            with storage_guard(self.directory / name, verb="remove"):
                (self.directory / name).rename(doomed)
                shutil.rmtree(doomed)

    def _size(self) -> int:
        """Bytes of the newest checkpoint: what the next one will want; 0 if there is none."""
        names = self.names()
        if not names:
            return 0
        newest = self.directory / names[-1]
        return sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())


def _step(name: str) -> int:
    return int(name.removeprefix("step_"))


# --- manifests -----------------------------------------------------------------------------


def _flush(directory: Path) -> Json:
    """Make a tree durable and return {relative path: {sha256, size}} of its files.

    Hashing one file overlaps with flushing another: both leave the interpreter free.
    """
    files = [path for path in sorted(directory.rglob("*")) if not path.is_dir()]
    odd = [path.name for path in files if path.is_symlink() or not path.is_file()]
    if odd:
        raise ValueError(f"a checkpoint holds regular files only, not {', '.join(odd)}")
    with ThreadPoolExecutor(max_workers=4) as pool:
        flushed = pool.map(_fsync_file, files)
        digests = pool.map(_digest, files)
        list(flushed)
        entries = {
            path.relative_to(directory).as_posix(): {
                "sha256": digest,
                "size": path.stat().st_size,
            }
            for path, digest in zip(files, digests, strict=True)
        }
    for inner in [directory, *(path for path in directory.rglob("*") if path.is_dir())]:
        fsync_directory(inner)
    return entries


def _fsync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _verify(directory: Path) -> Json:
    """The state of a checkpoint after checking every byte of it. Raises CheckpointError."""
    manifest_path = directory / "manifest.json"
    if not manifest_path.exists():
        raise CheckpointError("manifest.json is missing", where=str(directory))
    entries = _entries(read_json(manifest_path), manifest_path)
    for entry in entries:
        _check_size(directory, entry)
    with ThreadPoolExecutor(max_workers=2) as pool:
        paths = [directory / entry.path for entry in entries]
        with storage_guard(directory, verb="read"):
            digests = list(pool.map(_digest, paths))
    for entry, digest in zip(entries, digests, strict=True):
        if digest != entry.sha256:
            raise CheckpointError(
                f"{entry.path} does not match its SHA-256", where=str(directory / entry.path)
            )
    return read_json(directory / "state.json")


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    sha256: str
    size: int


def _entries(manifest: Json, path: Path) -> list[_Entry]:
    match manifest:
        case {"format": int() as version, "files": {"state.json": _, **_rest} as files}:
            if version != _FORMAT:
                raise CheckpointError(
                    f"manifest.json has format {version}; this headrace reads {_FORMAT}",
                    where=str(path),
                )
        case _:
            raise CheckpointError("manifest.json is not a manifest", where=str(path))
    return [_entry(str(name), value, path) for name, value in files.items()]


def _entry(name: str, value: Json, path: Path) -> _Entry:
    pure = PurePosixPath(name)
    match value:
        case {"sha256": str() as sha256, "size": int() as size} if (
            not pure.is_absolute() and ".." not in pure.parts
        ):
            return _Entry(name, sha256, size)
        case _:
            raise CheckpointError(f"manifest.json is wrong about {name}", where=str(path))


def _check_size(directory: Path, entry: _Entry) -> None:
    path = directory / entry.path
    if not path.is_file():
        raise CheckpointError(f"{entry.path} is missing", where=str(path))
    size = path.stat().st_size
    if size != entry.size:
        raise CheckpointError(
            f"{entry.path} has {size:,} bytes instead of {entry.size:,}", where=str(path)
        )
