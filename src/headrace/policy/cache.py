"""The model cache: a directory is either complete and provably so, or it is not used.

Layout under the cache root: `models/<slug>/` holds a model and its `manifest.json` (size and
SHA-256 of every file, written last); `models/.building/<slug>/` holds the lock of that model
and the work directories of builders. A builder holds the lock, so every work directory that
the next holder of the lock finds there was abandoned by a process that died.

Knows files and digests; knows nothing of where models come from or what is in them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Protocol

from headrace.errors import InfrastructureError, StorageError
from headrace.store.places import cache_root
from headrace.types import canonical_json

__all__ = [
    "MODEL_FILES",
    "FileRecord",
    "Filled",
    "Manifest",
    "Progress",
    "Silent",
    "cache_root",
    "durable",
    "install",
    "read_manifest",
    "record_directory",
    "require_space",
    "storage_errors",
    "verify",
    "write_file",
]

MANIFEST = "manifest.json"
MODEL_FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
"""The kinds of file that a model is read from; never pickles."""
_FORMAT = 1
_CHUNK = 1 << 20
_LOCK_SECONDS = 3600.0
_SPACE_HINT = "free some space, or set HEADRACE_CACHE to a directory on a larger disk"
_DENIED_HINT = "set HEADRACE_CACHE to a directory that you can write to"


class Progress(Protocol):
    """Where long work reports to: `start` a stage of `total` units, `advance`, `finish`.

    Stages come one after another. Units are bytes or tensors, as the label makes clear.
    """

    def start(self, total: int, label: str) -> None: ...

    def advance(self, n: int) -> None: ...

    def finish(self) -> None: ...


class Silent:
    """A progress that shows nothing."""

    def start(self, total: int, label: str) -> None: ...

    def advance(self, n: int) -> None: ...

    def finish(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of a model by relative `name`: `size` in bytes, `sha256` in hex."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a model directory consists of and where it came from.

    `directory` is where the files lie: the entry itself, or elsewhere for models that another
    tool keeps (a Hugging Face snapshot). `origin` records provenance, such as the digest of the
    file that was converted.
    """

    source: str
    directory: Path
    files: tuple[FileRecord, ...]
    origin: Mapping[str, str]

    @property
    def digest(self) -> str:
        """SHA-256 over names, sizes and digests of all files: the identity of the model."""
        listing = [asdict(record) for record in sorted(self.files, key=lambda r: r.name)]
        return hashlib.sha256(canonical_json(listing).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """What a builder made: its provenance, and the directory if it is not the one given."""

    origin: Mapping[str, str]
    elsewhere: Path | None = None


# --- writing -------------------------------------------------------------------------------


@contextlib.contextmanager
def storage_errors(path: Path, *, needed: int | None = None) -> Generator[None]:
    """Turn the operating system's refusals to write under `path` into StorageError.

    `needed` is how many bytes were wanted, for the message.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StorageError(
                f"{os.strerror(error.errno)}: {_space_report(path, needed)}",
                where=str(path),
                hint=_SPACE_HINT,
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StorageError(
                f"cannot write: {os.strerror(error.errno)}",
                where=str(error.filename or path),
                hint=_DENIED_HINT,
            ) from error
        if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EIO):
            raise StorageError(
                f"cannot write: {os.strerror(error.errno)}",
                where=str(error.filename or path),
                hint="set HEADRACE_CACHE to another directory",
            ) from error
        raise


def require_space(path: Path, needed: int) -> None:
    """Raise StorageError unless the disk of the directory `path` has `needed` bytes free."""
    if shutil.disk_usage(path).free < needed:
        raise StorageError(
            f"not enough disk space: {_space_report(path, needed)}",
            where=str(path),
            hint=_SPACE_HINT,
        )


@contextlib.contextmanager
def durable(path: Path) -> Generator[IO[bytes]]:
    """Open a new file for writing; on leaving, its bytes are on the disk (fsync)."""
    with path.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_file(path: Path, text: str) -> None:
    """Write a new text file and fsync it."""
    with durable(path) as file:
        file.write(text.encode())


def record_directory(directory: Path, source: str, progress: Progress) -> Manifest:
    """The manifest of a directory as it is now: its model files by size and digest.

    Subdirectories and files of other kinds (`MODEL_FILES` lists the kinds) are no part of it.
    """
    paths = sorted({path for pattern in MODEL_FILES for path in directory.glob(pattern)})
    sizes = {path: path.stat().st_size for path in paths if path.name != MANIFEST}
    progress.start(sum(sizes.values()), "taking digests")
    files = tuple(
        FileRecord(path.name, size, _sha256(path, progress.advance)) for path, size in sizes.items()
    )
    progress.finish()
    return Manifest(source=source, directory=directory, files=files, origin={})


def _sha256(path: Path, advance: Callable[[int], None]) -> str:
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
            advance(len(chunk))
    return hasher.hexdigest()


def _space_report(path: Path, needed: int | None) -> str:
    existing = next(place for place in (path, *path.absolute().parents) if place.exists())
    free = shutil.disk_usage(existing).free
    wanted = f"{needed:,} bytes needed, " if needed is not None else ""
    return f"{wanted}{free:,} bytes free"


# --- reading and checking ------------------------------------------------------------------


def read_manifest(entry: Path) -> Manifest | None:
    """The manifest of a cache entry; None where it is missing or not one of ours."""
    try:
        raw = json.loads((entry / MANIFEST).read_text())
        if raw["format"] != _FORMAT:
            return None
        files = tuple(
            FileRecord(str(f["name"]), int(f["size"]), str(f["sha256"])) for f in raw["files"]
        )
        directory = Path(raw["directory"]) if raw["directory"] else entry
        origin = {str(key): str(value) for key, value in raw["origin"].items()}
        return Manifest(source=str(raw["source"]), directory=directory, files=files, origin=origin)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def verify(
    manifest: Manifest, *, full: bool = False, progress: Progress | None = None
) -> list[str]:
    """What is wrong with the files of a model, one line each; empty when all is well.

    Compares sizes, which is fast enough for every use; `full` compares digests too.
    """
    progress = progress or Silent()
    problems: list[str] = []
    if full:
        progress.start(sum(record.size for record in manifest.files), "checking digests")
    for record in manifest.files:
        path = manifest.directory / record.name
        if not path.is_file():
            problems.append(f"{record.name} is missing")
        elif (size := path.stat().st_size) != record.size:
            problems.append(f"{record.name} has {size:,} bytes, not {record.size:,}")
        elif full and _sha256(path, progress.advance) != record.sha256:
            problems.append(f"{record.name} has changed (its SHA-256 differs)")
    if full:
        progress.finish()
    return problems


# --- installing ----------------------------------------------------------------------------


def install(
    slug: str, source: str, fill: Callable[[Path], Filled], *, progress: Progress
) -> Manifest:
    """The complete cache entry `slug`, built by `fill` in a work directory if need be.

    `fill` gets a fresh directory `model` beside which it may keep scratch files; all of it
    vanishes unless the build ends well. The files are recorded, the manifest is written last,
    and one rename makes the entry appear. Of several processes one builds and the rest wait.

    Raises StorageError where the disk refuses, InfrastructureError where the lock is not free
    within an hour, and whatever `fill` raises.
    """
    models = cache_root() / "models"
    entry = models / slug
    if (ready := _usable(entry)) is not None:
        return ready
    building = models / ".building" / slug
    with storage_errors(models):
        building.mkdir(parents=True, exist_ok=True)
        _sweep(models / ".building", besides=slug)
        with _locked(building, progress):
            if (ready := _usable(entry)) is not None:
                return ready
            _remove_work(building)
            if entry.exists():
                shutil.rmtree(entry)
            return _build(entry, building, source, fill, progress)


def _build(
    entry: Path, building: Path, source: str, fill: Callable[[Path], Filled], progress: Progress
) -> Manifest:
    work = Path(tempfile.mkdtemp(prefix="work-", dir=building))
    try:
        model = work / "model"
        model.mkdir()
        filled = fill(model)
        directory = filled.elsewhere or model
        records = record_directory(directory, source, progress).files
        document = {
            "format": _FORMAT,
            "source": source,
            "directory": str(filled.elsewhere) if filled.elsewhere else None,
            "origin": dict(filled.origin),
            "files": [asdict(record) for record in records],
        }
        write_file(model / MANIFEST, json.dumps(document, indent=1) + "\n")
        _sync_directory(model)
        model.rename(entry)
        _sync_directory(entry.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Manifest(
        source=source,
        directory=filled.elsewhere or entry,
        files=records,
        origin=dict(filled.origin),
    )


def _usable(entry: Path) -> Manifest | None:
    manifest = read_manifest(entry)
    return None if manifest is None or verify(manifest) else manifest


@contextlib.contextmanager
def _locked(building: Path, progress: Progress) -> Generator[None]:
    with (building / "lock").open("a") as lock:
        deadline = time.monotonic() + _LOCK_SECONDS
        waiting = False
        while not _try_lock(lock.fileno()):
            if not waiting:
                progress.start(1, "waiting for another process to finish this model")
                waiting = True
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    f"another process has held the model's lock for {_LOCK_SECONDS:.0f} s",
                    where=lock.name,
                    hint="end the process that holds it, then try again",
                )
            time.sleep(0.1)
        if waiting:
            progress.finish()
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sweep(root: Path, *, besides: str) -> None:
    """Remove what dead builders of other models left behind; live ones hold their locks."""
    for building in root.iterdir():
        if building.name == besides or not any(building.glob("work-*")):
            continue
        with (building / "lock").open("a") as lock:
            if _try_lock(lock.fileno()):
                _remove_work(building)


def _remove_work(building: Path) -> None:
    for work in building.glob("work-*"):
        shutil.rmtree(work, ignore_errors=True)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
