"""Sealed files and the manifest that vouches for them.

A sealed file never changes: it is written aside or in one request, at any fsspec URL, and counts
from the moment the manifest names it with its length and SHA-256. The manifest is one local
file, replaced atomically, so every instant has either the old set of files or the new one. What
no manifest names was never there, and is swept by the next writer.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import StorageError
from headrace.store.files import read_json, storage_guard, write_atomic, write_json_atomic
from headrace.types import Json

__all__ = ["Manifest", "SealedFile", "SealedSegment", "Vault"]

_FORMAT = 1
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class SealedFile:
    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """The files of one segment by what they hold ("index", "attempts", ...); `generation`
    counts how often it was compacted."""

    number: int
    generation: int
    files: Mapping[str, SealedFile]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Which segments are sealed and where: at `url`, or in `sealed/` beside the manifest."""

    url: str | None = None
    segments: Mapping[int, SealedSegment] = field(default_factory=dict[int, SealedSegment])

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """The manifest in a directory, an empty one if there is none. Raises StorageError."""
        path = directory / "manifest.json"
        if not path.exists():
            return cls()
        value = read_json(path)
        try:
            manifest = _manifest(value)
        except ValueError as error:
            raise StorageError(
                f"{path.name} is not a manifest: {error}",
                where=str(path),
                hint="restore it from a backup; without it the sealed segments cannot be read",
            ) from error
        numbers = sorted(manifest.segments)
        if numbers != list(range(len(numbers))):
            raise StorageError(f"{path.name} lacks segments: it has {numbers}", where=str(path))
        return manifest

    def write(self, directory: Path) -> None:
        """Put this manifest in the place of the old one, durably."""
        segments = [
            {
                "segment": segment.number,
                "generation": segment.generation,
                "files": {
                    kind: {"name": file.name, "size": file.size, "sha256": file.sha256}
                    for kind, file in segment.files.items()
                },
            }
            for _, segment in sorted(self.segments.items())
        ]
        told = {"format": _FORMAT, "url": self.url, "segments": segments}
        write_json_atomic(directory / "manifest.json", told)

    def names(self) -> set[str]:
        return {file.name for s in self.segments.values() for file in s.files.values()}

    def size(self) -> int:
        return sum(file.size for s in self.segments.values() for file in s.files.values())


def _manifest(value: Json) -> Manifest:
    match value:
        case {"format": int() as version, "url": str() | None as url, "segments": list() as told}:
            if version != _FORMAT:
                raise ValueError(f"its format is {version}; this headrace reads {_FORMAT}")
        case _:
            raise ValueError("format, url or segments are missing")
    segments = [_segment(item) for item in told]
    return Manifest(url, {segment.number: segment for segment in segments})


def _segment(value: Json) -> SealedSegment:
    match value:
        case {"segment": int() as number, "generation": int() as generation, "files": dict() as f}:
            files = {str(kind): _file(item) for kind, item in f.items()}
            return SealedSegment(number, generation, files)
        case _:
            raise ValueError(f"not a segment: {value!r:.60}")


def _file(value: Json) -> SealedFile:
    match value:
        case {"name": str() as name, "size": int() as size, "sha256": str() as sha256} if (
            name.startswith("part-") and "/" not in name
        ):
            return SealedFile(name, size, sha256)
        case _:
            raise ValueError(f"not a file: {value!r:.60}")


class Vault:
    """The place of sealed files. Nothing in it is believed before its digest was compared."""

    def __init__(self, directory: Path, url: str | None) -> None:
        """`url` None is `sealed/` in the store's own `directory`."""
        import fsspec
        from fsspec.implementations.local import LocalFileSystem

        self.url = str((directory / "sealed").absolute()) if url is None else url
        with self._guard("open", self.url):
            self.fs, self.root = fsspec.url_to_fs(self.url)
        self.local = isinstance(self.fs, LocalFileSystem)
        self._trusted: set[SealedFile] = set()
        self._lock = threading.Lock()

    def path(self, file: SealedFile) -> str:
        """Where a file is, as the file system calls it."""
        return f"{self.root.rstrip('/')}/{file.name}"

    def where(self, name: str) -> str:
        return f"{self.url.rstrip('/')}/{name}"

    @contextlib.contextmanager
    def _guard(self, verb: str, where: str) -> Generator[None]:
        """An error of the file system becomes a StorageError; so does a lack of its driver."""
        try:
            yield
        except (OSError, ImportError, ValueError) as error:
            raise StorageError(
                f"cannot {verb} {where}: {error}",
                where=where,
                hint="check the address, the credentials and the network, then try again",
            ) from error

    def put(self, name: str, data: bytes) -> SealedFile:
        """Store a file durably; it does not count until a manifest names it."""
        file = SealedFile(name, len(data), hashlib.sha256(data).hexdigest())
        if self.local:
            path = Path(self.path(file))
            with storage_guard(path, needed=len(data)):
                path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, data)
        else:
            with self._guard("write", self.where(name)):
                self.fs.makedirs(self.root, exist_ok=True)
                self.fs.pipe_file(self.path(file), data)
        self._trusted.add(file)
        return file

    def trust(self, file: SealedFile) -> str:
        """Compare a file with its digest, once; its path. Raises StorageError."""
        with self._lock:
            if file in self._trusted:
                return self.path(file)
        digest, size = hashlib.sha256(), 0
        with self._guard("read", self.where(file.name)), self.fs.open(self.path(file), "rb") as f:
            while chunk := f.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
        if size != file.size or digest.hexdigest() != file.sha256:
            raise StorageError(
                f"{file.name} does not match its SHA-256 ({size:,} of {file.size:,} bytes)",
                where=self.where(file.name),
                hint="restore the file from a backup; its manifest says what it must be",
            )
        with self._lock:
            self._trusted.add(file)
        return self.path(file)

    def read(self, file: SealedFile) -> bytes:
        """All of a file. Raises StorageError when it is not what the manifest says."""
        path = self.trust(file)
        with self._guard("read", self.where(file.name)):
            data: bytes = self.fs.cat_file(path)
        return data

    def open(self, file: SealedFile) -> Any:
        """A file for reading at random."""
        path = self.trust(file)
        with self._guard("read", self.where(file.name)):
            return self.fs.open(path, "rb")

    def sweep(self, keep: set[str]) -> None:
        """Remove the store's files that are not in `keep`: what no manifest names."""
        with self._guard("list", self.url):
            self.fs.invalidate_cache()
            if not self.fs.exists(self.root):
                return
            found = [str(path).rpartition("/")[2] for path in self.fs.ls(self.root, detail=False)]
        for name in found:
            ours = name.startswith(("part-", ".tmp-part-"))
            if ours and name not in keep:
                with self._guard("remove", self.where(name)):
                    self.fs.rm_file(f"{self.root.rstrip('/')}/{name}")
