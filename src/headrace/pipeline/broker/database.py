"""One database behind the broker: how it is opened, how a call's one transaction is run on it.

All that differs between SQLite and Postgres is here. Every failure of the database leaves as a
`StorageError`.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool, StaticPool

from headrace.errors import StorageError, UsageError
from headrace.pipeline.broker.schema import VERSION, meta, metadata

__all__ = ["Database", "Insert"]

Insert = Callable[[sa.Table], sqlite.Insert | postgresql.Insert]
"""How an INSERT with ON CONFLICT begins."""

_T = TypeVar("_T")
_BUSY_S = 30
_CONNECTIONS = 16
_TRIES = 3
_LOCKS = 0x68656164
"""The first half of the broker's advisory locks in Postgres ("head"); the second is the kind."""

_SQLITE = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    f"PRAGMA busy_timeout = {_BUSY_S * 1000}",
)
_POSTGRES = (
    f"SET statement_timeout = '{_BUSY_S * 2}s'",
    f"SET lock_timeout = '{_BUSY_S}s'",
    # every statement has an index to go by, and its plan is kept while the tables grow
    "SET enable_seqscan = off",
    "SET jit = off",
)
_CONFLICTS = ("40001", "40P01")


class Database:
    """Opens, and makes if need be, the broker's tables at `url`.

    Raises UsageError for a URL that is none or lacks its driver, StorageError where the
    database cannot be used or was made by another version.
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = sa.make_url(url)
            self.is_sqlite = parsed.get_backend_name() == "sqlite"
            if not self.is_sqlite and parsed.get_backend_name() != "postgresql":
                raise exc.ArgumentError(f"{parsed.get_backend_name()} is not supported")
            self.where = parsed.render_as_string(hide_password=True)
            self._engine = _engine(parsed, is_sqlite=self.is_sqlite)
        except (exc.ArgumentError, ModuleNotFoundError) as error:
            raise UsageError(
                f"no broker can be opened: {error}",
                where="the broker's URL",
                hint="sqlite:///PATH, or postgresql+psycopg://USER@HOST/NAME with "
                "pip install 'headrace[postgres]'",
            ) from error
        self._writer = self._engine.execution_options(begin="BEGIN IMMEDIATE")
        self._turn = threading.Lock() if self.is_sqlite else contextlib.nullcontext()
        self._closed = False
        self.insert: Insert = sqlite.insert if self.is_sqlite else postgresql.insert
        try:
            self.write(self._prepare)
        except BaseException:
            self.close()
            raise

    def write(self, work: Callable[[sa.Connection], _T]) -> _T:
        """Run `work` in a transaction; again if it lost against another one.

        Raises StorageError, and then nothing of it has happened, unless the connection broke in
        the very moment of the commit.
        """
        return self._run(self._writer, work)

    def read(self, work: Callable[[sa.Connection], _T]) -> _T:
        return self._run(self._engine, work)

    def lock(self, connection: sa.Connection, kinds: Sequence[str], *, durable: bool) -> None:
        """Be the only one who writes shares of `kinds` until the transaction ends.

        Where it need not be `durable`, Postgres does not wait for the disk when it commits.
        SQLite has one writer at a time, and its WAL waits for the disk at checkpoints only.
        """
        if self.is_sqlite:
            return
        for kind in sorted(kinds):
            statement = _LOCK if durable else _LOCK_LIGHTLY
            connection.execute(statement, {"space": _LOCKS, "kind": kind})

    def lightly(self, connection: sa.Connection) -> None:
        """Do not wait for the disk when this transaction commits."""
        if not self.is_sqlite:
            connection.execute(sa.select(_LIGHTLY))

    def close(self) -> None:
        """Close all connections; a call after this is a StorageError."""
        self._closed = True
        self._engine.dispose()

    def _run(self, engine: sa.Engine, work: Callable[[sa.Connection], _T]) -> _T:
        with self._guard():
            for left in reversed(range(_TRIES)):
                try:
                    with self._turn, engine.begin() as connection:
                        return work(connection)
                except exc.DBAPIError as error:
                    if getattr(error.orig, "sqlstate", None) not in _CONFLICTS or not left:
                        raise
        raise AssertionError("unreachable: the last try returns or raises")

    @contextlib.contextmanager
    def _guard(self) -> Generator[None]:
        if self._closed:
            raise StorageError(
                "the broker is closed", where=self.where, hint="open it again with open_broker"
            )
        try:
            yield
        except (exc.DBAPIError, exc.TimeoutError) as error:
            cause = error.orig if isinstance(error, exc.DBAPIError) else error
            what = " ".join(str(cause).split())
            raise StorageError(
                f"the broker's database cannot be used: {what}",
                where=self.where,
                hint=_hint(cause, what),
            ) from error

    def _prepare(self, connection: sa.Connection) -> None:
        self.lock(connection, [""], durable=True)
        if not sa.inspect(connection).has_table(meta.name):
            metadata.create_all(connection)
            connection.execute(sa.insert(meta), {"name": "version", "value": VERSION})
            return
        version = connection.scalar(sa.select(meta.c.value).where(meta.c.name == "version"))
        if version != VERSION:
            raise StorageError(
                f"the broker's tables have version {version}; this headrace knows {VERSION}",
                where=self.where,
                hint="use the headrace that made them, or name another database: what is in the "
                "store is enqueued again when the run resumes",
            )


_LIGHTLY = sa.func.set_config("synchronous_commit", "off", True)
_TAKEN = sa.func.pg_advisory_xact_lock(
    sa.bindparam("space", type_=sa.Integer),
    sa.func.hashtext(sa.bindparam("kind", type_=sa.Text)),
)
_LOCK = sa.select(_TAKEN)
_LOCK_LIGHTLY = sa.select(_LIGHTLY, _TAKEN)


def _engine(url: sa.URL, *, is_sqlite: bool) -> sa.Engine:
    if is_sqlite:
        in_memory = url.database in (None, "", ":memory:")
        engine = sa.create_engine(
            url,
            poolclass=StaticPool if in_memory else QueuePool,
            connect_args={"timeout": _BUSY_S, "check_same_thread": False},
        )
    else:
        engine = sa.create_engine(
            url,
            pool_size=_CONNECTIONS,
            max_overflow=0,
            pool_timeout=_BUSY_S,
            connect_args={"connect_timeout": _BUSY_S},
        )

    def connected(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.isolation_level = None  # the begin event below begins, nothing else does
        with contextlib.closing(connection.cursor()) as cursor:
            for statement in _SQLITE if is_sqlite else _POSTGRES:
                cursor.execute(statement)
        if not is_sqlite:
            connection.commit()

    def begun(connection: sa.Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))

    event.listen(engine, "connect", connected)
    if is_sqlite:
        event.listen(engine, "begin", begun)
    return engine


def _hint(cause: object, what: str) -> str:
    code = getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None) or ""
    if "FULL" in code or code == "53100" or "No space left" in what:
        return "free space on its disk, then resume: nothing that was acknowledged is lost"
    if "BUSY" in code or "LOCKED" in code or isinstance(cause, exc.TimeoutError):
        return f"someone else held it for {_BUSY_S} s; see who does, then resume"
    if "CORRUPT" in code or "NOTADB" in code:
        return "move it away and resume: what is in the store is enqueued again"
    if isinstance(cause, sqlite3.Error):
        return "see that its directory exists and is writable, then resume"
    return "see that the server runs and can be reached at this address, then resume"
