"""Bytes and JSON on disk so that a kill or a full disk leaves the old or the new, never half.

Everything the store writes goes through here, and every `OSError` becomes a `StorageError`
that says what to free and what to type. Knows nothing of runs beyond where their recipe is.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from headrace.errors import HeadraceError, StorageError
from headrace.types import Json

__all__ = [
    "append_fsync",
    "fsync_directory",
    "jsonable",
    "parse_json",
    "read_json",
    "storage_guard",
    "write_atomic",
    "write_json_atomic",
]

_REASONS = {
    errno.ENOSPC: "no space left on device",
    errno.EDQUOT: "disk quota exceeded",
    errno.EFBIG: "the file size limit is reached",
    errno.EIO: "the device reports an input/output error",
    errno.EACCES: "permission denied",
    errno.EPERM: "operation not permitted",
    errno.EROFS: "the file system is read-only",
}
_FULL = (errno.ENOSPC, errno.EDQUOT)


def storage_guard(
    path: Path, *, needed: int = 0, verb: str = "write"
) -> AbstractContextManager[None]:
    """Turn an operating system's error inside the block into a `StorageError` about `path`.

    That is any `OSError`, and whatever else carries its number in Rust's words, as safetensors
    does: "No space left on device (os error 28)". `needed`: bytes the operation wants, for the
    hint of a full disk; 0 when unknown.
    """
    return _Guard(path, needed, verb)


@dataclass(frozen=True, slots=True)
class _Guard:
    path: Path
    needed: int
    verb: str

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        cause = error if isinstance(error, OSError) else _rust_error(error)
        if cause is None:
            return
        reason = _REASONS.get(cause.errno or 0) or cause.strerror or str(cause)
        raise StorageError(
            f"cannot {self.verb} {self.path}: {reason}",
            where=str(self.path),
            hint=_hint(cause, self.path, self.needed),
        ) from error


def _rust_error(error: BaseException | None) -> OSError | None:
    if error is None or isinstance(error, HeadraceError):
        return None
    match = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(match[1]), os.strerror(int(match[1]))) if match else None


def _hint(error: OSError, path: Path, needed: int) -> str:
    run = _run_of(path)
    then = "then run the same command again" if run is None else f"then: headrace resume {run}"
    if error.errno in _FULL:
        amount = f"at least {needed:,} bytes" if needed else "space"
        return f"free {amount} on the disk of {path.parent}, {then}"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"make {path.parent} writable, {then}"
    return f"check the disk that holds {path.parent}, {then}"


def _run_of(path: Path) -> Path | None:
    """The run directory that `path` lies in, if any: the nearest one that holds a recipe."""
    for directory in path.absolute().parents:
        if (directory / "recipe.json").exists():
            return directory
    return None


def fsync_directory(directory: Path) -> None:
    """Make the names in `directory` durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` at `path` so that a reader, or a later boot, sees all of it or the old file.

    Raises StorageError; the old file is then intact and nothing else is left behind.
    """
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    with storage_guard(path, needed=len(data)):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                _write_all(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        fsync_directory(path.parent)


def append_fsync(descriptor: int, path: Path, data: bytes) -> None:
    """Append `data` to an open file and return once it is durable.

    On failure the file is cut back to its old length and StorageError raised; should the cut
    fail too, the torn tail is what the next opening cuts.
    """
    start = os.fstat(descriptor).st_size
    with storage_guard(path, needed=len(data)):
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
        except BaseException:
            os.ftruncate(descriptor, start)
            raise


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


# --- JSON ----------------------------------------------------------------------------------


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def parse_json(data: bytes) -> Json:
    """Parse strict JSON in UTF-8: NaN, infinities and absurd nesting raise ValueError."""
    try:
        return _DECODER.decode(data.decode())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_json(path: Path) -> Json:
    """The JSON value in a file. Raises StorageError when unreadable or malformed."""
    with storage_guard(path, verb="read"):
        data = path.read_bytes()
    try:
        return parse_json(data)
    except ValueError as error:
        raise StorageError(
            f"{path.name} is not valid JSON: {error}",
            where=str(path),
            hint="restore the file from a backup, or remove it if it can be made again",
        ) from error


def write_json_atomic(path: Path, value: Json) -> None:
    """Write a JSON value, indented for people, as `write_atomic` does."""
    text = json.dumps(jsonable(value, path.name), indent=2, allow_nan=False)
    write_atomic(path, text.encode() + b"\n")


def jsonable(value: object, where: str) -> Json:
    """`value` as plain JSON types, exactly: tuples become lists, numpy scalars Python's own.

    Raises TypeError for anything else (arrays, sets, keys that are not strings) and ValueError
    for NaN and infinities; both name the place, starting from `where`.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value}, which JSON cannot hold")
        return value
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {_key(key, where): jsonable(item, f"{where}.{key}") for key, item in items}
    if isinstance(value, (list, tuple)):
        sequence = cast("Sequence[object]", value)
        return [jsonable(item, f"{where}[{index}]") for index, item in enumerate(sequence)]
    raise TypeError(f"{where} is a {type(value).__name__}, which JSON cannot hold")


def _key(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{where} has the key {key!r}; JSON keys are strings")
    return key
