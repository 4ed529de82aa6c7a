"""`metrics.parquet`: the numbers of a run as one table, for notebooks and SQL.

Derived from the event log alone; it can be deleted and made again at any time. May know the
store and pyarrow, and nothing of training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.store.events import Event, read_events
from headrace.store.files import write_atomic
from headrace.types import Json, canonical_json

__all__ = ["write_metrics"]

_KINDS = ("step", "evaluation")
_INT64 = range(-(2**63), 2**63)


def write_metrics(events_path: Path, out_path: Path) -> None:
    """Write one row for each step and evaluation of an event log, atomically.

    Columns: `seq`, `kind`, `step`, `time`, then every number, string and flag of the payload
    under its dotted name (`reward.mean`, `domains.arithmetic.pass_rate`), and timings under
    `timing.` (seconds, or per second). What a row lacks is null; a column whose values are of
    different kinds, or lists, holds JSON text. Raises StorageError.
    """
    events = [event for event in read_events(events_path) if event.kind in _KINDS]
    rows = [_row(event) for event in events]
    names = ["seq", "kind", "step", "time"]
    names += list(dict.fromkeys(name for row in rows for name in row if name not in names))
    columns = {name: _column([row.get(name) for row in rows]) for name in names}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    write_atomic(out_path, sink.getvalue().to_pybytes())


def _row(event: Event) -> dict[str, Json]:
    row: dict[str, Json] = {}
    _flatten(event.payload, "", row)
    _flatten(event.timing, "timing.", row)
    return {
        **row,
        "seq": event.seq,
        "kind": event.kind,
        "step": event.step,
        "time": event.time,
    }


def _flatten(values: Mapping[str, Json], prefix: str, row: dict[str, Json]) -> None:
    for key, value in values.items():
        if isinstance(value, dict):
            _flatten(value, f"{prefix}{key}.", row)
        else:
            row[prefix + key] = value


def _column(values: Sequence[Json]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int} and all(value in _INT64 for value in values if value is not None):
        return pa.array(values, pa.int64())
    if kinds <= {int, float}:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if kinds == {bool}:
        return pa.array(values, pa.bool_())
    if kinds == {str}:
        return pa.array(values, pa.string())
    texts = [None if value is None else canonical_json(value) for value in values]
    return pa.array(texts, pa.string())
