"""DuckDB with everything shut that is not a table: files, extensions, settings, Python's names.

May be known by `jobs`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Any

import duckdb

from headrace.types import Json
from headrace.verify.sql.database import (
    MEMORY_MB,
    Engine,
    Failed,
    Refused,
    collected,
    inserting,
    quoted,
)

__all__ = ["Duck"]

_SHUT: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "max_temp_directory_size": "0MB",
    "memory_limit": f"{MEMORY_MB}MB",
    "threads": "1",
}
_READS = {"SELECT"}
_CHANGES = _READS | {"INSERT", "UPDATE", "DELETE", "MERGE_INTO", "TRANSACTION"}


class Duck(Engine):
    """One instance for the life of the process, since to open one costs ten times what a query
    does; every use has a connection and a database in memory of its own, and leaves none.

    Processor time is bounded by the child's end.
    """

    errors = (duckdb.Error, ValueError, OverflowError)

    def __init__(self) -> None:
        self._instance: duckdb.DuckDBPyConnection | None = None
        self._uses = 0

    @contextlib.contextmanager
    def opened(self) -> Generator[duckdb.DuckDBPyConnection]:
        if self._instance is None:
            self._instance = duckdb.connect(":memory:", config=_SHUT)
            self._instance.execute("SET lock_configuration = true")
        self._uses += 1
        name = f"job{self._uses}"
        with contextlib.closing(self._instance.cursor()) as database:
            database.execute(f"ATTACH ':memory:' AS {name}")
            database.execute(f"USE {name}")
            try:
                yield database
            finally:
                self._leave(database, name)

    def script(self, database: duckdb.DuckDBPyConnection, sql: str) -> None:
        if sql.strip():
            database.execute(sql)

    def tables(self, database: duckdb.DuckDBPyConnection) -> list[str]:
        found = database.execute(
            "SELECT table_name FROM duckdb_tables() "
            "WHERE NOT internal AND database_name = current_database() ORDER BY table_oid"
        )
        return [name for (name,) in found.fetchall()]

    def query(self, database: duckdb.DuckDBPyConnection, sql: str, until: float) -> dict[str, Json]:
        with _failing():
            _checked(database, sql, _READS, most=1)
            database.execute("BEGIN TRANSACTION READ ONLY")
            cursor = database.execute(sql)
            columns = [column[0] for column in cursor.description or ()]
            found = collected(columns, cursor.fetchmany)
            database.rollback()
            return found

    def change(self, database: duckdb.DuckDBPyConnection, sql: str, until: float) -> None:
        with _failing():
            _checked(database, sql, _CHANGES, most=1000)
            database.execute(sql)
        _rolled_back(database)

    def contents(
        self, database: duckdb.DuckDBPyConnection, name: str
    ) -> tuple[list[str], list[Sequence[Any]]]:
        cursor = database.execute(f"SELECT * FROM {quoted(name)}")
        columns = [column[0] for column in cursor.description or ()]
        return columns, list(cursor.fetchall())

    def insert(
        self,
        database: duckdb.DuckDBPyConnection,
        name: str,
        columns: Sequence[str] | None,
        rows: Sequence[Sequence[Any]],
    ) -> None:
        width = len(rows[0])
        size = max(1, 500 // max(1, width))
        database.begin()
        try:
            for start in range(0, len(rows), size):
                batch = rows[start : start + size]
                cells = [cell for row in batch for cell in row]
                database.execute(inserting(name, columns, width, len(batch)), cells)
        except self.errors:
            database.rollback()
            raise
        database.commit()

    def _leave(self, database: duckdb.DuckDBPyConnection, name: str) -> None:
        """Drop the database; an instance that cannot do so any more is given up."""
        try:
            _rolled_back(database)
            database.execute("USE memory")
            database.execute(f"DETACH {name}")
        except duckdb.Error:
            self._instance = None


def _rolled_back(database: duckdb.DuckDBPyConnection) -> None:
    with contextlib.suppress(duckdb.TransactionException):
        database.rollback()


def _checked(database: duckdb.DuckDBPyConnection, sql: str, kinds: set[str], *, most: int) -> None:
    statements = database.extract_statements(sql)
    if not statements:
        raise Failed("syntax", "no statement")
    if len(statements) > most:
        raise Refused("more than one statement")
    for statement in statements:
        if statement.type.name not in kinds:
            raise Refused(f"not allowed: {statement.type.name}")


@contextlib.contextmanager
def _failing() -> Generator[None]:
    """What goes wrong becomes Failed."""
    try:
        yield
    except (duckdb.ParserException, duckdb.SyntaxException, UnicodeError) as error:
        raise Failed("syntax", str(error)) from error
    except duckdb.PermissionException as error:
        raise Refused(f"not allowed: {error}") from error
    except (duckdb.OutOfMemoryException, MemoryError) as error:
        raise Failed("memory", str(error)) from error
    except (*Duck.errors, RuntimeError) as error:
        if "read-only" in str(error):
            raise Refused("not allowed: it writes") from error
        raise Failed("error", str(error)) from error
