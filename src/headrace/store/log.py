"""A trajectory log as it lies on the disk: what is sealed, what is in segments, and the index of
both; and reading a record at its place.

Shared by the store, sealing, compaction and queries. Writes nothing.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import StorageError
from headrace.store.index import Index, Place
from headrace.store.records import (
    Admitted,
    Fact,
    Parsed,
    admitted_of,
    facts_of_unit,
    parse,
    trajectory_of,
    verdict_of,
)
from headrace.store.segments import (
    HINT,
    Descriptor,
    Located,
    corrupt,
    numbers_of,
    path_of,
    payload_at,
    scan,
)
from headrace.store.vault import Manifest, SealedSegment, Vault
from headrace.types import Trajectory, Verdict

if TYPE_CHECKING:
    from headrace.store.sealed import SealedReader

__all__ = ["Found", "Log", "Tail"]

_TRIES = 10


@dataclass(frozen=True, slots=True)
class Tail:
    """The last segment: its number and where its records end."""

    segment: int
    end: int
    marked: bool
    first_format: bool


@dataclass(frozen=True, slots=True)
class Found:
    """A record of a segment with its place and its fact."""

    located: Located
    parsed: Parsed
    fact: Fact


class Log:
    """Loaded once; its owner keeps `index`, `manifest` and `files` up to date, under `lock`."""

    def __init__(self, directory: Path, url: str | None) -> None:
        self.directory = directory
        self.lock = threading.RLock()
        self.index = Index()
        self.manifest = Manifest()
        self.files: dict[int, Descriptor] = {}
        self.tail = Tail(0, 0, marked=True, first_format=False)
        self._url = url
        self._vault: Vault | None = None
        self._sealed: SealedReader | None = None
        self.load()

    # --- what is sealed --------------------------------------------------------------------

    @property
    def vault(self) -> Vault:
        """Where sealed files are, or will be."""
        with self.lock:
            if self._vault is None:
                url = self.manifest.url if self.manifest.segments else self._url
                self._vault = Vault(self.directory, url)
            return self._vault

    @property
    def sealed(self) -> SealedReader:
        from headrace.store.sealed import SealedReader

        vault = self.vault
        with self.lock:
            if self._sealed is None:
                self._sealed = SealedReader(vault)
            return self._sealed

    @property
    def url(self) -> str | None:
        """What the manifest says of the place of sealed files; None is beside it."""
        return self.manifest.url if self.manifest.segments else self._url

    # --- loading ---------------------------------------------------------------------------

    def load(self) -> None:
        """Read what is on the disk, again if a writer seals segments meanwhile."""
        for attempt in range(_TRIES):
            manifest = Manifest.read(self.directory)
            try:
                return self._load(manifest)
            except StorageError:
                if attempt == _TRIES - 1 or Manifest.read(self.directory) == manifest:
                    raise
        return None

    def _load(self, manifest: Manifest) -> None:
        if manifest.segments and self._url is not None and self._url != manifest.url:
            raise StorageError(
                f"the sealed segments of this log are at {manifest.url or 'sealed/'}, "
                f"not at {self._url}",
                where=str(self.directory / "manifest.json"),
                hint="leave the address out, or name the one in manifest.json",
            )
        with self.lock:
            self.index, self.manifest, self.files = Index(), manifest, {}
            for number in manifest.segments:
                self._learn_sealed(number)
            live = [n for n in numbers_of(self.directory) if n not in manifest.segments]
            first = len(manifest.segments)
            if live != list(range(first, first + len(live))):
                raise StorageError(
                    f"trajectory segments are missing: found {live} where {first} is next",
                    where=str(self.directory),
                    hint=HINT,
                )
            self.tail = Tail(first, 0, marked=True, first_format=False)
            for number in live:
                self._learn(number, last=number == live[-1])

    def _learn_sealed(self, number: int) -> None:
        from headrace.store.sealed import facts_of

        segment = self.manifest.segments[number]
        try:
            for fact in facts_of(self.vault, segment):
                self.index.apply(fact, number, 0, 0)
        except ValueError as error:
            raise StorageError(
                f"the index of sealed segment {number} is wrong: {error}", where=self.vault.url
            ) from error

    def _learn(self, number: int, *, last: bool) -> None:
        found = scan(self.opened(number), last=last)
        for unit in found.units:
            for record in self._understood(number, unit):
                located = record.located
                try:
                    self.index.apply(record.fact, number, located.offset, len(located.payload))
                except ValueError as error:
                    raise corrupt(self._path(number), located.offset, str(error)) from error
        self.tail = Tail(number, found.end, found.marked, found.first_format)

    def _understood(self, number: int, unit: list[Located]) -> list[Found]:
        try:
            parsed = [parse(located.payload) for located in unit]
            facts = facts_of_unit(parsed)
        except ValueError as error:
            raise corrupt(self._path(number), unit[0].offset, str(error)) from error
        return [Found(*found) for found in zip(unit, parsed, facts, strict=True)]

    def opened(self, number: int) -> Descriptor:
        """A segment, open for reading. It stays readable when it is sealed meanwhile."""
        with self.lock:
            if number not in self.files:
                self.files[number] = Descriptor(self._path(number), os.O_RDONLY)
            return self.files[number]

    def _path(self, number: int) -> Path:
        return path_of(self.directory, number)

    def records(self, number: int, file: Descriptor) -> list[Found]:
        """Everything in a segment that is not sealed. Raises StorageError."""
        found = scan(file, last=True)
        return [record for unit in found.units for record in self._understood(number, unit)]

    # --- reading ---------------------------------------------------------------------------

    def attempt(self, place: Place) -> Trajectory:
        """The attempt at a place, as it was recorded. Raises StorageError."""
        source = self._source(place)
        if isinstance(source, SealedSegment):
            return self.sealed.attempt(source, place.ordinal)
        parsed = self._record(source, place)
        try:
            return trajectory_of(parsed)
        except (StorageError, ValueError) as error:
            raise self._misread(place, error) from error

    def verdict(self, place: Place, *, inside: bool) -> Verdict:
        """The verdict at a place: `inside` of an attempt's record, or a record of its own."""
        source = self._source(place)
        if isinstance(source, SealedSegment):
            return self.sealed.verdict(source, place.ordinal)
        parsed = self._record(source, place)
        try:
            found = trajectory_of(parsed).verdict if inside else verdict_of(parsed).verdict
        except (StorageError, ValueError) as error:
            raise self._misread(place, error) from error
        if found is None:
            raise corrupt(self._path(place.segment), place.offset, "its verdict is gone")
        return found

    def admission(self, place: Place) -> Admitted:
        """The admitted group at a place. Raises StorageError."""
        source = self._source(place)
        if isinstance(source, SealedSegment):
            return self.sealed.admission(source, place.ordinal)
        parsed = self._record(source, place)
        try:
            return admitted_of(parsed)
        except (StorageError, ValueError) as error:
            raise self._misread(place, error) from error

    def _source(self, place: Place) -> SealedSegment | Descriptor:
        """Where a place is now; both stay readable when the segment is sealed meanwhile."""
        with self.lock:
            sealed = self.manifest.segments.get(place.segment)
            return self.opened(place.segment) if sealed is None else sealed

    def _record(self, file: Descriptor, place: Place) -> Parsed:
        payload = payload_at(file, place.offset, place.length)
        try:
            return parse(payload)
        except ValueError as error:
            raise self._misread(place, error) from error

    def _misread(self, place: Place, error: Exception) -> StorageError:
        path = self._path(place.segment)
        hint = error.hint if isinstance(error, StorageError) and error.hint else HINT
        return StorageError(
            f"{path.name} holds a record that cannot be read: {error}",
            where=f"{path}:{place.offset}",
            hint=hint,
        )
