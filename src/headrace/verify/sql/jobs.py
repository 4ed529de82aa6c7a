"""Running one statement on one database that is built for it, in memory, and thrown away.

May be known by the worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.types import Json
from headrace.verify.sql.database import Engine, Failed, quoted
from headrace.verify.sql.duck import Duck
from headrace.verify.sql.sqlite import Sqlite

__all__ = ["Job", "run"]


_ENGINES: dict[str, Engine] = {"sqlite": Sqlite(), "duckdb": Duck()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One statement on one database.

    `rows`: of every table, or a script of inserts. `backwards`: the rows of every table are
    stored in the opposite order, which must not matter. `statement` is a query, or with `tables`
    a script after which those tables are read (all of them if it is empty). `until`: seconds of
    this thread's processor time.
    """

    schema: str
    rows: Mapping[str, Sequence[Sequence[Json]]] | str
    statement: str
    tables: Sequence[str] | None = None
    backwards: bool = False
    until: float


def run(dialect: str, job: Job) -> list[Json]:
    """The results, `{"name", "columns", "rows"}` each: one of a query, one for each table.

    Raises Failed.
    """
    engine = _ENGINES[dialect]
    with engine.opened() as database:
        _build(engine, database, job.schema, job.rows)
        if job.backwards:
            held = {name: engine.contents(database, name) for name in engine.tables(database)}
            with engine.opened() as mirror:
                _build(engine, mirror, job.schema, {})
                engine.unsettle(mirror)
                for name, (columns, rows) in held.items():
                    _fill(engine, mirror, name, columns, rows)
                return _answers(engine, mirror, job)
        return _answers(engine, database, job)


def _build(engine: Engine, database: Any, schema: str, rows: Any) -> None:
    try:
        engine.script(database, schema)
        if any(engine.contents(database, name)[1] for name in engine.tables(database)):
            raise Failed("build", "the schema holds rows")
        if isinstance(rows, str):
            engine.script(database, rows)
            return
        for name, items in rows.items():
            if items:
                engine.insert(database, name, None, items)
    except engine.errors as error:
        raise Failed("build", f"{type(error).__name__}: {error}") from error


def _fill(
    engine: Engine,
    database: Any,
    name: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> None:
    """Store rows last to first; first to last where they refer to each other."""
    if not rows:
        return
    try:
        engine.insert(database, name, columns, rows[::-1])
    except engine.errors:
        engine.insert(database, name, columns, rows)


def _answers(engine: Engine, database: Any, job: Job) -> list[Json]:
    if job.tables is None:
        return [{"name": "", **engine.query(database, job.statement, job.until)}]
    engine.change(database, job.statement, job.until)
    names = list(job.tables) or engine.tables(database)
    return [
        {"name": name, **engine.query(database, f"SELECT * FROM {quoted(name)}", job.until)}
        for name in names
    ]
