"""One database behind the broker: how it is opened, how a call's one transaction is run on it.

All that differs between SQLite and Postgres is here. Every failure of the database leaves as a
`StorageError`.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool, StaticPool

from headrace.errors import StorageError, UsageError
from headrace.pipeline.broker.schema import VERSION, meta, metadata

__all__ = ["Database", "Prepared", "among", "insert_into", "told_rows"]

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

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
    # every statement looks up rows by an index, and its plan is kept while the tables grow
    "SET enable_seqscan = off",
    "SET enable_hashjoin = off",
    "SET enable_mergejoin = off",
    "SET jit = off",
)
_CONFLICTS = ("40001", "40P01")


class Prepared:
    """A statement that is rendered once for each dialect and given to the driver as it is.

    For what every claim and commit runs, as rendering and wrapping cost more than running.
    `build` makes it, told whether it is for SQLite; parameters are named. `returns` says whether
    it has a result.
    """

    def __init__(self, build: Callable[[bool], sa.ClauseElement], *, returns: bool = True) -> None:
        self._build, self._returns = build, returns
        self._rendered: dict[str, tuple[str, dict[str, Any]]] = {}

    def run(self, connection: sa.Connection, **told: object) -> list[tuple[Any, ...]]:
        """The rows it returns, as the driver makes them."""
        dialect = connection.dialect
        if dialect.name not in self._rendered:
            compiled = self._build(dialect.name == "sqlite").compile(dialect=dialect)
            self._rendered[dialect.name] = str(compiled), dict(compiled.params or {})
        text, constants = self._rendered[dialect.name]
        cursor = connection.info.get("cursor")
        if cursor is None:
            cursor = connection.info["cursor"] = connection.connection.cursor()
        cursor.execute(text, {**constants, **told})
        return list(cursor.fetchall()) if self._returns else []


def insert_into(table: sa.Table, *, is_sqlite: bool) -> sqlite.Insert | postgresql.Insert:
    """How an INSERT with ON CONFLICT begins; the other dialect is not loaded."""
    if is_sqlite:
        from sqlalchemy.dialects.sqlite import insert

        return insert(table)
    from sqlalchemy.dialects.postgresql import insert as postgres_insert

    return postgres_insert(table)


def told_rows(is_sqlite: bool, **types: sa.types.TypeEngine[Any]) -> sa.Subquery:
    """The parameter `rows`, a JSON array of arrays, as a table with columns of these types."""
    text = sa.bindparam("rows", type_=sa.Text)
    unnested = (
        sa.func.json_each(text)
        if is_sqlite
        else sa.func.json_array_elements(sa.cast(text, sa.JSON))
    )
    value = unnested.table_valued("value").c.value
    columns = [
        sa.cast(value.op("->>")(sa.literal_column(str(n))), type_).label(name)
        for n, (name, type_) in enumerate(types.items())
    ]
    return sa.select(*columns).subquery("told")


def among(
    is_sqlite: bool, column: sa.ColumnElement[Any], told: sa.ColumnElement[Any]
) -> sa.ColumnElement[bool]:
    """Whether `column` is one of the `told`, which come first: never a scan of column's table."""
    chosen = sa.select(told)
    if is_sqlite:
        return column.in_(chosen)
    return column == sa.any_(sa.func.array(chosen.scalar_subquery()))


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
            statement.run(connection, space=_LOCKS, kind=kind)

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
                    with self._turn, engine.begin() as connection, _wrapped(connection):
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


@contextlib.contextmanager
def _wrapped(connection: sa.Connection) -> Generator[None]:
    """Make errors of the driver, which `Prepared` lets through, SQLAlchemy's."""
    driver = connection.dialect.loaded_dbapi
    try:
        yield
    except driver.Error as error:
        if connection.dialect.is_disconnect(error, connection.connection.dbapi_connection, None):
            connection.invalidate(error)
        raise exc.DBAPIError.instance(None, None, error, driver.Error) from error


_LIGHTLY = sa.func.set_config("synchronous_commit", "off", True)
_TAKEN = sa.func.pg_advisory_xact_lock(
    sa.bindparam("space", type_=sa.Integer),
    sa.func.hashtext(sa.bindparam("kind", type_=sa.Text)),
)
_LOCK = Prepared(lambda _: sa.select(_TAKEN), returns=False)
_LOCK_LIGHTLY = Prepared(lambda _: sa.select(_LIGHTLY, _TAKEN), returns=False)


def _engine(url: sa.URL, *, is_sqlite: bool) -> sa.Engine:
    if is_sqlite:
        in_memory = url.database in (None, "", ":memory:")
        engine = sa.create_engine(
            url,
            paramstyle="named",
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
