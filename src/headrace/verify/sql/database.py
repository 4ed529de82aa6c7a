"""What every database of this package can do: build, run one statement, read rows.

Nothing a statement says can reach a file, another database, an extension or a setting. Runs in
the child only, since a statement can exhaust or crash its process. May be known by `jobs` and by
the engines, which are one file each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

from headrace.types import Json
from headrace.verify.sql.cells import encoded

__all__ = [
    "MEMORY_MB",
    "Engine",
    "Failed",
    "Outcome",
    "Refused",
    "collected",
    "inserting",
    "quoted",
]

MEMORY_MB = 256
_MAX_ROWS = 10_000
_MAX_BYTES = 4 * 2**20

Outcome = Literal[
    "syntax",
    "error",
    "refused",
    "timeout",
    "memory",
    "flood",
    "build",
    "unreadable",
    "unsettled",
]
"""Why a statement has no result. The last three are those of a task or its reference only: the
database cannot be built, the query cannot be analysed, what it answers changes by itself."""


class Failed(Exception):
    """A statement without a result: an `outcome`, and what the database said."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome: Outcome = outcome
        self.message = message


class Refused(Failed):
    """A statement that asks for more than to read (or, in a script, to change) the tables."""

    def __init__(self, message: str) -> None:
        super().__init__("refused", message)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def inserting(name: str, columns: Sequence[str] | None, width: int, count: int) -> str:
    named = "" if columns is None else f" ({', '.join(quoted(column) for column in columns)})"
    row = f"({', '.join('?' * width)})"
    return f"INSERT INTO {quoted(name)}{named} VALUES {', '.join([row] * count)}"


def collected(
    columns: Sequence[str], fetch: Callable[[int], Sequence[Sequence[Any]]]
) -> dict[str, Json]:
    """All rows in wire form; Failed if there are too many."""
    rows: list[Json] = []
    size = 0
    while batch := fetch(500):
        for row in batch:
            cells = [encoded(value) for value in row]
            size += sum(len(str(cell)) for cell in cells)
            rows.append(cells)
        if len(rows) > _MAX_ROWS or size > _MAX_BYTES:
            raise Failed("flood", f"more than {_MAX_ROWS} rows or {_MAX_BYTES} bytes")
    return {"columns": list(columns), "rows": rows}


class Engine(ABC):
    """What differs between databases. `errors` are what its driver raises."""

    errors: tuple[type[Exception], ...]

    @abstractmethod
    def opened(self) -> AbstractContextManager[Any]:
        """An empty database in memory."""

    @abstractmethod
    def script(self, database: Any, sql: str) -> None:
        """Run the statements of a task's author."""

    @abstractmethod
    def tables(self, database: Any) -> list[str]:
        """The tables in the order of their creation."""

    def unsettle(self, database: Any) -> None:
        """Let the database return rows in another order, where it can and nothing asks for one."""
        del database

    @abstractmethod
    def query(self, database: Any, sql: str, until: float) -> dict[str, Json]:
        """The columns and rows of one statement that only reads."""

    @abstractmethod
    def change(self, database: Any, sql: str, until: float) -> None:
        """Run a script that changes rows; what it leaves in an open transaction is lost."""

    @abstractmethod
    def contents(self, database: Any, name: str) -> tuple[list[str], list[Sequence[Any]]]:
        """The columns that can be stored, and all rows of them as the driver gives them."""

    @abstractmethod
    def insert(
        self,
        database: Any,
        name: str,
        columns: Sequence[str] | None,
        rows: Sequence[Sequence[Any]],
    ) -> None:
        """Store rows; all or none."""
