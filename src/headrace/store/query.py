"""SQL over a trajectory store: sealed and active records as one set of views, and nothing else.

DuckDB reads tables that were handed to it; files, the network, extensions, settings and Python's
names are shut, a statement may only read, and time, memory and rows are bounded. So the text of a
query may come from anyone. Loads duckdb and pyarrow: import it where it is needed.

    trajectories  one row an attempt, with the verdict that counts (`tables.ATTEMPTS`); `step` is
                  where it was consumed, or else admitted if its name says so
    verdicts      one row a verdict, of every verifier and version
    tasks         one row an admitted group
    consumed      one row a group and ledger record; `void` where a resume took it back
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import FSSpecHandler, PyFileSystem

from headrace.errors import StorageError, UsageError
from headrace.store import tables
from headrace.store.log import Log
from headrace.store.sealing import tables_of
from headrace.store.vault import Manifest
from headrace.types import Json

__all__ = ["QueryResult", "ids_where", "query", "run_query"]

SECONDS = 30.0
"""What a query may take by default."""

_SHUT: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "max_temp_directory_size": "0MB",
    "memory_limit": "2GB",
}
_HINT = "tables: trajectories, verdicts, tasks, consumed; columns: DESCRIBE trajectories"
_KINDS = {
    "attempts": tables.ATTEMPTS,
    "verdicts": tables.VERDICTS,
    "tasks": tables.ADMISSIONS,
}
_VERDICT = ("score", "solved", "verifier", "verifier_version", "fault", "parts", "evidence")
_VIEWS = f"""
CREATE VIEW verdicts AS SELECT * FROM _sealed_verdicts UNION ALL SELECT * FROM _live_verdicts;
CREATE VIEW tasks AS SELECT * FROM _sealed_tasks UNION ALL SELECT * FROM _live_tasks;
CREATE VIEW consumed AS SELECT * FROM _ledger;
CREATE VIEW _attempts AS SELECT * FROM _sealed_attempts UNION ALL SELECT * FROM _live_attempts;
CREATE VIEW _counting AS SELECT id, {", ".join(_VERDICT)} FROM verdicts
  QUALIFY row_number() OVER (PARTITION BY id ORDER BY score IS NULL, seq) = 1;
CREATE VIEW _spent AS SELECT group_id, step FROM _ledger WHERE NOT void;
CREATE VIEW trajectories AS
  SELECT t.* REPLACE (
    coalesce(s.step, t.step) AS step,
    {", ".join(f"v.{name} AS {name}" for name in _VERDICT)}
  )
  FROM _attempts AS t
    LEFT JOIN _counting AS v ON t.id = v.id
    LEFT JOIN _spent AS s ON t.group_id = s.group_id;
"""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Rows of JSON values, at most as many as were asked for; `truncated` if there were more."""

    columns: list[str]
    rows: list[list[Json]]
    truncated: bool


def run_query(
    directory: Path, sql: str, *, limit: int = 1000, seconds: float = SECONDS
) -> QueryResult:
    """What one reading statement says about the store in a directory (a run's `trajectories/`).

    Safe beside a writer: it sees what was durable when it began. Raises UsageError for a
    statement that is wrong, writes, or takes more than `seconds`; StorageError for damage.
    """
    return query(Log(directory, None), sql, limit=limit, seconds=seconds)


def query(log: Log, sql: str, *, limit: int, seconds: float = SECONDS) -> QueryResult:
    """The same of a log that is open."""
    with _database(log) as database, _failing(database, sql, seconds):
        _checked(database, sql)
        cursor = database.execute(sql)
        columns = [str(column[0]) for column in cursor.description or ()]
        found = cursor.fetchmany(limit + 1)
        rows = [[_plain(value) for value in row] for row in found[:limit]]
        return QueryResult(columns, rows, truncated=len(found) > limit)


def ids_where(log: Log, condition: str, *, seconds: float = SECONDS) -> list[str]:
    """The ids of the attempts for which a condition over `trajectories` holds, oldest first."""
    sql = f"SELECT id FROM trajectories WHERE (\n{condition}\n) ORDER BY seq"
    with _database(log) as database, _failing(database, condition, seconds):
        _checked(database, sql)
        return [str(row[0]) for row in database.execute(sql).fetchall()]


@contextlib.contextmanager
def _database(log: Log) -> Generator[duckdb.DuckDBPyConnection]:
    """A database in memory with the views over a log, and everything else shut."""
    with contextlib.closing(duckdb.connect(":memory:", config=_SHUT)) as database:
        with log.lock:
            live, manifest = dict(log.files), log.manifest
            ledger = list(log.index.ledger.entries())
        told = tables_of(log, live)
        tables_live = {
            "attempts": told.attempts,
            "verdicts": told.verdicts,
            "tasks": told.admissions,
        }
        for kind, schema in _KINDS.items():
            database.register(f"_live_{kind}", tables_live[kind])
            database.register(f"_sealed_{kind}", _sealed(log, manifest, kind, schema))
        database.register("_ledger", tables.consumed(ledger))
        database.execute(_VIEWS)
        database.execute("SET lock_configuration = true")
        yield database


def _sealed(log: Log, manifest: Manifest, kind: str, schema: pa.Schema) -> Any:
    """The sealed tables of a kind, whose digests were compared, for DuckDB to read from."""
    files = [segment.files[kind] for segment in manifest.segments.values()]
    if not files:
        return schema.empty_table()
    vault = log.vault
    paths = [vault.trust(file) for file in files]
    return ds.dataset(
        paths,
        schema=schema,
        format=ds.ParquetFileFormat(
            default_fragment_scan_options=ds.ParquetFragmentScanOptions(
                page_checksum_verification=True
            )
        ),
        filesystem=PyFileSystem(FSSpecHandler(vault.fs)),
    )


def _checked(database: duckdb.DuckDBPyConnection, sql: str) -> None:
    statements = database.extract_statements(sql)
    if len(statements) != 1:
        raise UsageError(
            f"one statement at a time, not {len(statements)}", where="--sql", hint=_HINT
        )
    kind = statements[0].type.name
    if kind not in ("SELECT", "EXPLAIN"):
        raise UsageError(f"a query may only read; this is {kind}", where="--sql", hint=_HINT)


@contextlib.contextmanager
def _failing(database: duckdb.DuckDBPyConnection, sql: str, seconds: float) -> Generator[None]:
    """What DuckDB refuses becomes a UsageError, and so does what takes longer than `seconds`."""
    timer = threading.Timer(seconds, database.interrupt)
    timer.start()
    try:
        yield
    except duckdb.InterruptException as error:
        raise UsageError(
            f"the query took more than {seconds:g} s", where=f"{sql:.200}", hint=_HINT
        ) from error
    except (duckdb.IOException, pa.ArrowException) as error:
        raise StorageError(f"the query could not read the store: {error}") from error
    except (duckdb.Error, ValueError, RuntimeError) as error:
        raise UsageError(f"the query failed: {error}", where=f"{sql:.200}", hint=_HINT) from error
    finally:
        timer.cancel()
        timer.join()


def _plain(value: Any) -> Json:
    """A value of DuckDB's as JSON; what JSON has no word for is text."""
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, list | tuple):
        items: list[Any] = list(value)
        return [_plain(item) for item in items]
    if isinstance(value, dict):
        pairs: dict[Any, Any] = value
        return {str(key): _plain(item) for key, item in pairs.items()}
    return str(value)
