"""What a SQL task hides: its database, its instances and the reference. Parsed strictly.

May be known by the verifier and its child; knows no database.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from headrace.types import Json

__all__ = ["Instance", "SqlSpec"]

_Cell = bool | int | float | str | None
Instance = dict[str, list[list[_Cell]]] | str
"""The rows of every table in the order of its columns, or a script of INSERT statements."""

_Tolerance = Annotated[float, Field(ge=0.0, le=1.0)]


class SqlSpec(BaseModel):
    """The hidden answer of a SQL task, as JSON (unknown keys are an error).

    - `dialect`: "sqlite" or "duckdb".
    - `schema`: a script that creates tables and views, without rows, triggers or virtual tables.
    - `instances`: at least two sets of rows for that schema; the reference must not answer the
      same on all of them, or a constant would pass.
    - `reference`: one query; for the mode "state" a script of INSERT, UPDATE and DELETE.
    - `mode`: "query" compares what the statement returns, "state" what `tables` (all of them
      if empty) hold in the end.
    - `order`: "reference" compares the order of rows if the reference orders its result, up to
      ties under its keys; "exact" always, "ignore" never.
    - `columns`: "positions" compares columns by position and ignores their names; "names" pairs
      them by name without regard to case or position.
    - `types`: "loose" takes 1 and 1.0, a date and its midnight for the same; "strict" does not.
    - `relative`, `absolute`: how far a number that is no integer may be from the reference's.

    >>> SqlSpec.model_validate(
    ...     {"schema": "CREATE TABLE t (a)", "instances": ["", ""], "reference": "SELECT 1"}
    ... ).dialect
    'sqlite'
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    dialect: Literal["sqlite", "duckdb"] = "sqlite"
    ddl: str = Field(alias="schema")
    instances: list[Instance] = Field(min_length=2, max_length=16)
    reference: str
    mode: Literal["query", "state"] = "query"
    tables: list[str] = []
    order: Literal["reference", "exact", "ignore"] = "reference"
    columns: Literal["positions", "names"] = "positions"
    types: Literal["loose", "strict"] = "loose"
    relative: _Tolerance = 1e-9
    absolute: _Tolerance = 1e-12

    @model_validator(mode="after")
    def _tables_are_for_states(self) -> SqlSpec:
        if self.tables and self.mode == "query":
            raise ValueError("tables are compared in the mode 'state' only")
        return self

    def request(self) -> dict[str, Json]:
        """What the child needs to build the databases."""
        return {"dialect": self.dialect, "schema": self.ddl, "instances": list(self.instances)}
