"""Sealed segments: immutable Parquet of what a segment held, with an index of its facts.

    part-00000.0.index.json         what an open store keeps in memory, in the order of the log
    part-00000.0.attempts.parquet   `tables.ATTEMPTS`   (0: how often it was compacted)
    part-00000.0.verdicts.parquet   `tables.VERDICTS`
    part-00000.0.tasks.parquet      `tables.ADMISSIONS`

Opening a store reads the index alone; a row is found by its number, in row groups of
`ROWS`. Loads pyarrow: import it where it is needed.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import StorageError
from headrace.store import tables
from headrace.store.files import parse_json
from headrace.store.records import Admitted, Fact, fact_from_json, fact_to_json
from headrace.store.vault import SealedFile, SealedSegment, Vault
from headrace.types import Trajectory, Verdict

__all__ = ["ROWS", "SealedReader", "Tables", "facts_of", "put_segment", "table_of"]

ROWS = 256
"""Rows in a row group: some megabytes, what a read of one record costs."""

_FORMAT = 1
_CACHED = 4
"""Row groups that stay in memory."""
_WORDS = ("domain", "split", "verifier", "verifier_version", "fault", "ending", "wave", "task_id")
"""Columns that say the same again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What a segment held, ready to be sealed: `facts` in the order of the log, and the rows."""

    facts: Sequence[Fact]
    attempts: pa.Table
    verdicts: pa.Table
    admissions: pa.Table


def put_segment(vault: Vault, number: int, generation: int, told: Tables) -> SealedSegment:
    """Store the files of a segment. They count once a manifest names them."""
    stem = f"part-{number:05d}.{generation}"
    index = {"format": _FORMAT, "facts": [fact_to_json(fact) for fact in told.facts]}
    files = {
        "index": vault.put(f"{stem}.index.json", json.dumps(index, allow_nan=False).encode()),
        "attempts": vault.put(f"{stem}.attempts.parquet", _parquet(told.attempts)),
        "verdicts": vault.put(f"{stem}.verdicts.parquet", _parquet(told.verdicts)),
        "tasks": vault.put(f"{stem}.tasks.parquet", _parquet(told.admissions)),
    }
    return SealedSegment(number, generation, files)


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    told: dict[str, Any] = {"use_dictionary": [n for n in _WORDS if n in table.column_names]}
    pq.write_table(
        table, sink, compression="zstd", row_group_size=ROWS, write_page_checksum=True, **told
    )
    data: bytes = sink.getvalue().to_pybytes()
    return data


def facts_of(vault: Vault, segment: SealedSegment) -> list[Fact]:
    """The facts of a sealed segment, in the order of the log. Raises StorageError."""
    file = segment.files.get("index")
    if file is None:
        raise StorageError(f"segment {segment.number} has no index", where=vault.url)
    try:
        match parse_json(vault.read(file)):
            case {"format": 1, "facts": list() as facts}:
                return [fact_from_json(fact) for fact in facts]
            case _:
                raise ValueError("it is not an index")
    except ValueError as error:
        raise StorageError(f"{file.name}: {error}", where=vault.where(file.name)) from error


def table_of(vault: Vault, file: SealedFile) -> pa.Table:
    """All of a sealed table."""
    with vault.open(file) as opened:
        table: pa.Table = pq.read_table(opened)
        return table


class SealedReader:
    """Records out of sealed segments, by number. Safe from any thread."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._lock = threading.Lock()
        self._groups: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()

    def attempt(self, segment: SealedSegment, ordinal: int) -> Trajectory:
        """The attempt as it was recorded. Raises StorageError."""
        columns = ("record", *tables.ARRAYS)
        table = self._row_group(segment, "attempts", ordinal, columns)
        return tables.attempt_at(table, ordinal % ROWS)

    def verdict(self, segment: SealedSegment, ordinal: int) -> Verdict:
        table = self._row_group(segment, "verdicts", ordinal, ("record",))
        return tables.verdict_at(table, ordinal % ROWS)

    def admission(self, segment: SealedSegment, ordinal: int) -> Admitted:
        table = self._row_group(segment, "tasks", ordinal, ("record",))
        return tables.admission_at(table, ordinal % ROWS)

    def _row_group(
        self, segment: SealedSegment, kind: str, ordinal: int, columns: Sequence[str]
    ) -> pa.Table:
        file = segment.files[kind]
        key = (file.name, ordinal // ROWS)
        with self._lock:
            if key in self._groups:
                self._groups.move_to_end(key)
                return self._groups[key]
        with self._vault.open(file) as opened:
            parquet = pq.ParquetFile(opened, page_checksum_verification=True)
            table = parquet.read_row_group(key[1], columns=list(columns))
        with self._lock:
            self._groups[key] = table
            while len(self._groups) > _CACHED:
                self._groups.popitem(last=False)
        return table
