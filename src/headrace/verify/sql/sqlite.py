"""SQLite under an authorizer: a query only reads, a script only changes rows.

May be known by `jobs`.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Generator, Sequence
from typing import Any

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

__all__ = ["Sqlite"]

_LENGTH = 1_000_000
_READS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
_CHANGES = _READS | {
    sqlite3.SQLITE_INSERT,
    sqlite3.SQLITE_UPDATE,
    sqlite3.SQLITE_DELETE,
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_SAVEPOINT,
}
_NEVER_BUILT = {
    sqlite3.SQLITE_ATTACH: "ATTACH",
    sqlite3.SQLITE_DETACH: "DETACH",
    sqlite3.SQLITE_PRAGMA: "PRAGMA",
    sqlite3.SQLITE_CREATE_TRIGGER: "a trigger",
    sqlite3.SQLITE_CREATE_VTABLE: "a virtual table",
}
_ACTIONS = {
    value: name.removeprefix("SQLITE_")
    for name, value in vars(sqlite3).items()
    if name.startswith(("SQLITE_CREATE_", "SQLITE_DROP_", "SQLITE_ALTER_"))
    or name
    in {
        *("SQLITE_INSERT", "SQLITE_UPDATE", "SQLITE_DELETE", "SQLITE_PRAGMA", "SQLITE_ATTACH"),
        *("SQLITE_DETACH", "SQLITE_TRANSACTION", "SQLITE_SAVEPOINT", "SQLITE_ANALYZE"),
        *("SQLITE_REINDEX",),
    }
}
_UNSETTLED = {
    *("random", "randomblob", "current_date", "current_time", "current_timestamp"),
    *("load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"),
}
_UNPARSED = ("syntax error", "incomplete input", "unrecognized token", "unterminated")


class Sqlite(Engine):
    errors = (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError)

    @contextlib.contextmanager
    def opened(self) -> Generator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
            database.execute("PRAGMA temp_store = MEMORY")
            database.execute(f"PRAGMA hard_heap_limit = {MEMORY_MB * 2**20}")
            database.text_factory = _text
            yield database

    def script(self, database: sqlite3.Connection, sql: str) -> None:
        def allowed(action: int, first: str | None, *_: str | None) -> int:
            denied = action in _NEVER_BUILT and first != "foreign_keys"
            return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK

        database.set_authorizer(allowed)
        database.executescript(sql)
        database.set_authorizer(None)

    def tables(self, database: sqlite3.Connection) -> list[str]:
        found = database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' "
            "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY rowid"
        )
        return [name for (name,) in found]

    def unsettle(self, database: sqlite3.Connection) -> None:
        database.execute("PRAGMA reverse_unordered_selects = 1")

    def query(self, database: sqlite3.Connection, sql: str, until: float) -> dict[str, Json]:
        with self._watched(database, _READS, until):
            cursor = database.execute(sql)
            columns = [column[0] for column in cursor.description or ()]
            if not columns:
                raise Refused("it returns no rows: not a query")
            return collected(columns, cursor.fetchmany)

    def change(self, database: sqlite3.Connection, sql: str, until: float) -> None:
        with self._watched(database, _CHANGES, until):
            database.executescript(sql)
        if database.in_transaction:
            database.rollback()

    def contents(
        self, database: sqlite3.Connection, name: str
    ) -> tuple[list[str], list[Sequence[Any]]]:
        found = database.execute(f"PRAGMA table_xinfo({quoted(name)})").fetchall()
        columns = [row[1] for row in found if row[6] == 0]
        listed = ", ".join(quoted(column) for column in columns)
        return columns, database.execute(f"SELECT {listed} FROM {quoted(name)}").fetchall()

    def insert(
        self,
        database: sqlite3.Connection,
        name: str,
        columns: Sequence[str] | None,
        rows: Sequence[Sequence[Any]],
    ) -> None:
        with database:
            database.execute("BEGIN")
            database.executemany(inserting(name, columns, len(rows[0]), 1), rows)

    @contextlib.contextmanager
    def _watched(
        self, database: sqlite3.Connection, actions: set[int], until: float
    ) -> Generator[None]:
        """Only `actions` are allowed, and an end comes; what goes wrong becomes Failed."""
        denied: list[str] = []

        def allowed(action: int, first: str | None, second: str | None, *_: str | None) -> int:
            unsettled = action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _UNSETTLED
            if action in actions and not unsettled:
                return sqlite3.SQLITE_OK
            what = f"the function {second}" if unsettled else _ACTIONS.get(action, str(action))
            denied.append(f"{what} {first or ''}".strip())
            return sqlite3.SQLITE_DENY

        limits = {
            sqlite3.SQLITE_LIMIT_LENGTH: _LENGTH,
            sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
            sqlite3.SQLITE_LIMIT_ATTACHED: 0,
            sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,
        }
        for limit, value in limits.items():
            database.setlimit(limit, value)
        database.set_authorizer(allowed)
        database.set_progress_handler(lambda: time.thread_time() > until, 10_000)
        try:
            yield
        except (*self.errors, MemoryError) as error:
            raise _sqlite_failure(error, denied) from error
        finally:
            database.set_progress_handler(None, 0)
            database.set_authorizer(None)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _sqlite_failure(error: Exception, denied: Sequence[str]) -> Failed:
    message = str(error)
    if denied:
        return Refused(f"not allowed: {denied[0]}")
    if "one statement at a time" in message:
        return Refused("more than one statement")
    code = getattr(error, "sqlite_errorname", "")
    if code == "SQLITE_INTERRUPT":
        return Failed("timeout", "it used up its processor time")
    if isinstance(error, MemoryError) or code in ("SQLITE_NOMEM", "SQLITE_TOOBIG"):
        return Failed("memory", message or "out of memory")
    if any(words in message for words in _UNPARSED) or isinstance(error, ValueError):
        return Failed("syntax", message)
    return Failed("error", message)
