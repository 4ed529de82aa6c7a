"""The trajectory store: every attempt, verdict and consumption on disk before anything depends on
it, and all of it found again by name.

`TrajectoryStore` is what everyone else knows. Below it, lowest first: `arrays` and `codec` (an
attempt as JSON and bytes), `ledger`, `records` (what a record says), `segments` (files that only
grow; group fsync), `index` (places in memory), `vault` (sealed files and their manifest),
`tables` and `sealed` (Parquet), `log` (all of it as it lies on the disk), `incoming` (what is
on its way there), `sealing`, `compaction`. Beside it: `query` (SQL) and `reuse` (exports).
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headrace.errors import StorageError
from headrace.store.files import fsync_directory, storage_guard
from headrace.store.incoming import Appended, Incoming, Item, Pending
from headrace.store.ledger import Consumed, Entry, Rewound
from headrace.store.log import Log
from headrace.store.records import (
    Admitted,
    Judged,
    Record,
    WaveFact,
    encode,
    encode_member,
    encode_rewound,
    encode_wave,
    fact_of,
)
from headrace.store.segments import SegmentWriter, cut, frame, path_of
from headrace.types import Trajectory, Verdict, VerifierRef

if TYPE_CHECKING:
    from headrace.store.compaction import Freed, Retention

__all__ = [
    "Admitted",
    "Appended",
    "Consumed",
    "Judged",
    "Record",
    "Sealing",
    "TrajectoryStore",
    "Wave",
]

PATIENCE = 600.0
"""Seconds that an append waits for the disk."""


@dataclass(frozen=True, slots=True)
class Wave:
    """A committed wave; `key` is whatever the writer named it, "000003:0" for step 3, wave 0."""

    key: str
    trajectories: list[Trajectory]


@dataclass(frozen=True, slots=True)
class Sealing:
    """What a seal did: how many segments, and their bytes before and after."""

    segments: int
    bytes_before: int
    bytes_after: int


class TrajectoryStore:
    """One directory of records, written by one process (the holder of the run's lock).

    Any number of threads may append and read. An append is acknowledged once it is durable; one
    flush serves all that wait for it. Ids make appends idempotent: an attempt (group/attempt), a
    wave's key, an admitted group, a verdict (attempt, verifier, version) and the consumption of
    a group count once, and whoever appends them again is told so.

    Opening for writing cuts what an interrupted write left; with `read_only` it is only ignored,
    so a reader may look while the writer appends. A reader sees what was there when it opened.
    Segments roll at `segment_bytes`; a wave is never split. `sealed` is the fsspec URL of sealed
    files, `sealed/` in the directory by default; later openings know it.

    When a write fails (a full disk) every append that waits raises StorageError, nothing of them
    is kept, and the store goes on: reading works, and so does appending once there is space.
    """

    def __init__(
        self,
        directory: Path,
        *,
        read_only: bool = False,
        segment_bytes: int = 64 << 20,
        sealed: str | None = None,
    ) -> None:
        self.directory = directory
        self.read_only = read_only
        if not read_only:
            with storage_guard(directory):
                directory.mkdir(parents=True, exist_ok=True)
        self.log = Log(directory, sealed)
        self._incoming = Incoming(self.log)
        self._sealing = threading.Lock()
        self._writer = None if read_only else self._opened(segment_bytes)

    def _opened(self, segment_bytes: int) -> SegmentWriter[Pending]:
        """A writer behind the last acknowledged record."""
        for number in self.log.manifest.segments:  # sealed, but not yet removed when killed
            self._remove(number)
        tail = self.log.tail
        segment, end = tail.segment, tail.end
        if tail.first_format and end:
            cut(self.directory, segment, end)
            segment, end = segment + 1, 0
        writer = SegmentWriter[Pending](
            self.directory, segment, end, segment_bytes=segment_bytes, owner=self._incoming
        )
        if end and not tail.marked:
            writer.mark()
        return writer

    # --- appending -------------------------------------------------------------------------

    def append(self, record: Record) -> Appended:
        """Append a record and return once it is durable. Raises as `append_nowait` and its
        future do, and StorageError when the disk takes longer than ten minutes."""
        return self._settled(self.append_nowait(record))

    def append_nowait(self, record: Record) -> Future[Appended]:
        """Append a record; the future is done once it is durable (or was already).

        Raises at once: ValueError for a verdict on an attempt that is not stored and for a
        group that was consumed otherwise before, StorageError when the store is closed, and
        what `codec.trajectory_to_json` raises. The future raises StorageError when the write
        fails; the record is then not in the store. Futures are done in a thread of the store.
        """
        item = Item.of(fact_of(record), encode(record))
        with self.log.lock:
            twin = self._incoming.twin(item)
            return self._submit([item]) if twin is None else twin

    def append_wave(self, key: str, trajectories: Sequence[Trajectory]) -> Appended:
        """Append attempts that become visible together, under `key`, once all are durable.

        Of attempts that are stored already the wave only takes note. Raises ValueError for a
        key that exists, StorageError when the write fails (nothing of the wave is then in the
        store), and what `codec.trajectory_to_json` raises.
        """
        ids = tuple(dict.fromkeys(trajectory.id for trajectory in trajectories))
        wave = WaveFact(key, ids)
        members = [Item.of(fact_of(told), encode_member(told)) for told in trajectories]
        with self.log.lock:
            if key in self.log.index.waves or ("wave", key) in self._incoming:
                raise ValueError(f"wave {key} is already in the log")
            fresh: dict[Hashable, Item] = {}
            for item in members:
                if self._incoming.twin(item) is None:
                    fresh.setdefault(item.names[0], item)
            done = self._submit([*fresh.values(), Item.of(wave, encode_wave(wave))])
        return self._settled(done)

    def rewind_consumed(self, step: int) -> None:
        """Take back what was consumed after `step`, durably: training resumes from there."""
        self.flush()
        mark = Rewound(step)
        with self.log.lock:
            if not self.log.index.ledger.is_after(step):
                return
            done = self._submit([Item.of(mark, encode_rewound(mark))])
        self._settled(done)

    def flush(self) -> None:
        """Return once everything that was appended before is durable."""
        self._settled(self._submit([]))

    def _writing(self) -> SegmentWriter[Pending]:
        if self._writer is None:
            raise StorageError(
                "the trajectory log is closed or read-only",
                where=str(self.directory),
                hint="open it again for writing",
            )
        return self._writer

    def _submit(self, items: Sequence[Item]) -> Future[Appended]:
        """Give records to the writer as one; they are in the index when the future is done."""
        writer = self._writing()
        frames = [frame(item.payload) for item in items]
        with self.log.lock:
            pending = self._incoming.add(items)
            try:
                writer.submit(frames, pending)
            except StorageError:
                self._incoming.forget(pending)
                raise
        return pending.future

    def _settled(self, future: Future[Appended]) -> Appended:
        try:
            return future.result(PATIENCE)
        except TimeoutError as error:
            raise StorageError(
                f"the disk has not acknowledged a write for {PATIENCE:.0f} s",
                where=str(self.directory),
                hint="check the disk and the system's log; nothing unacknowledged is relied on",
            ) from error

    # --- asking ----------------------------------------------------------------------------

    def keys(self) -> list[str]:
        """The committed waves, oldest first."""
        with self.log.lock:
            return list(self.log.index.waves)

    def __contains__(self, key: str) -> bool:
        """Whether a wave is committed."""
        return key in self.log.index.waves

    def __len__(self) -> int:
        """Attempts in the store."""
        return len(self.log.index.attempts)

    def count(self, key: str) -> int:
        """How many attempts a committed wave has, without reading them (KeyError)."""
        return len(self.log.index.waves[key])

    def groups(self) -> list[str]:
        """Every group that was admitted or attempted, oldest first."""
        with self.log.lock:
            return self.log.index.groups()

    def unconsumed(self) -> list[str]:
        """The groups that the ledger does not name, oldest first."""
        with self.log.lock:
            index = self.log.index
            return [group for group in index.groups() if group not in index.ledger]

    def consumed(self, group: str) -> Consumed | None:
        """The record that consumed a group, None while none counts."""
        with self.log.lock:
            return self.log.index.ledger.of(group)

    def ledger(self) -> list[Entry]:
        """The consumption ledger in order, with what resumes took back."""
        with self.log.lock:
            return list(self.log.index.ledger.entries())

    # --- reading ---------------------------------------------------------------------------
    # An attempt is read with the verdict that counts: the first with a score, or else the
    # first. So what was trained on stays what it was when a newer verifier judges again; with
    # `verifier` it is that verifier's verdict, or none. All of these raise StorageError when
    # bytes on the disk changed.

    def trajectory(
        self, trajectory: str, *, verifier: VerifierRef | None = None
    ) -> Trajectory | None:
        """The attempt of an id ("group/attempt"), None if there is none."""
        with self.log.lock:
            row = self.log.index.row_of(trajectory)
        return None if row is None else self._read(row, verifier)

    def verdicts(self, trajectory: str) -> list[Verdict]:
        """Every verdict on an attempt, oldest first."""
        with self.log.lock:
            index = self.log.index
            row = index.row_of(trajectory)
            numbers = [] if row is None else list(index.verdicts_of(row))
            places = [(index.verdicts[number], index.is_inside(number)) for number in numbers]
        return [self.log.verdict(place, inside=inside) for place, inside in places]

    def group(self, group: str) -> list[Trajectory]:
        """The attempts of a group that are there, by number."""
        with self.log.lock:
            rows = self.log.index.rows_of_group(group)
        return [self._read(row) for row in rows]

    def admitted(self, group: str) -> Admitted | None:
        """What was admitted under the name of a group."""
        with self.log.lock:
            row = self.log.index.admission(group)
            place = None if row is None else self.log.index.admissions[row]
        return None if place is None else self.log.admission(place)

    def wave(self, key: str) -> list[Trajectory] | None:
        """The attempts of a wave, or None if it was not committed."""
        with self.log.lock:
            rows = self.log.index.waves.get(key)
        return None if rows is None else [self._read(row) for row in rows]

    def iterate(self, keys: Iterable[str] | None = None) -> Iterator[Wave]:
        """The waves of `keys` (all by default), read one at a time. KeyError if unknown."""
        for key in self.keys() if keys is None else keys:
            trajectories = self.wave(key)
            if trajectories is None:
                raise KeyError(key)
            yield Wave(key, trajectories)

    def trajectories(self) -> Iterator[Trajectory]:
        """Every attempt, oldest first, read one at a time."""
        for row in range(len(self)):
            yield self._read(row)

    def unjudged(self, verifier: VerifierRef | None = None) -> Iterator[Trajectory]:
        """The attempts that have no verdict at all; or, to grade stored attempts again, those at
        tasks of this verifier's id that its version has given no score.

        Append what they deserve as `Judged`; nothing is sampled again, and an interrupted pass
        goes on where it was.
        """
        for row in range(len(self)):
            with self.log.lock:
                number = self.log.index.verdict(row, verifier)
                judged = number is not None and (
                    verifier is None or self.log.index.is_scored(number)
                )
            if judged:
                continue
            trajectory = self._read(row)
            if verifier is None or trajectory.task.verifier.id == verifier.id:
                yield trajectory

    def _read(self, row: int, verifier: VerifierRef | None = None) -> Trajectory:
        with self.log.lock:
            index = self.log.index
            place, number = index.attempts[row], index.verdict(row, verifier)
            inside = number is not None and index.is_inside(number)
            judged = None if number is None else index.verdicts[number]
        trajectory = self.log.attempt(place)
        if inside:
            return trajectory
        verdict = None if judged is None else self.log.verdict(judged, inside=False)
        return replace(trajectory, verdict=verdict)

    # --- sealing and compaction ------------------------------------------------------------

    def seal(self, *, full_only: bool = False) -> Sealing:
        """Turn segments into sealed Parquet: the full ones, or everything up to now.

        Appending goes on meanwhile; call it in a thread of its own. A kill at any instant loses
        nothing. Raises StorageError; what was sealed until then stays.
        """
        from headrace.store.sealing import seal_segment

        with self._sealing:
            writer = self._writing()
            end = writer.segment if full_only else writer.roll()
            numbers = range(len(self.log.manifest.segments), end)
            if numbers:
                self.log.vault.sweep(self.log.manifest.names())
            before, sealed_before = 0, self.log.manifest.size()
            for number in numbers:
                before += self.log.opened(number).size()
                seal_segment(self.log, number)
                self._remove(number)
            after = self.log.manifest.size() - sealed_before
        return Sealing(len(numbers), before, after)

    def _remove(self, number: int) -> None:
        """Remove a segment that the manifest has in sealed form."""
        path = path_of(self.directory, number)
        with storage_guard(path, verb="remove"):
            path.unlink(missing_ok=True)
            fsync_directory(self.directory)

    def compact(self, keep: Retention) -> Freed:
        """Drop from sealed files what `keep` lets go, under a new manifest; says what it freed.

        Not while someone iterates over this store. Raises StorageError.
        """
        from headrace.store.compaction import compact

        with self._sealing:
            return compact(self.log, keep, self._writing().between_flushes)

    # --- closing ---------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for what was appended, and for a seal that goes on; reading stays possible."""
        with self._sealing:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
