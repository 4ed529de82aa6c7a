"""A constant statement that answers like a table: what a policy would write that has seen it.

For tricks only; no score depends on it. May be known by the verifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from headrace.verify.sql.cells import Cell
from headrace.verify.sql.compare import Table

__all__ = ["constant"]


def constant(tables: Sequence[Table], names: Sequence[str] | None) -> str:
    """A query of literals that returns the rows of the only table; with `names` of the tables,
    a script that leaves those rows in each.

    >>> constant([Table(columns=("a",), rows=((("text", "o'b"),),))], None)
    "SELECT 'o''b' AS a"
    """
    if names is None:
        return _query(tables[0])
    parts: list[str] = []
    for name, table in zip(names, tables, strict=True):
        parts.append(f'DELETE FROM "{name}";')
        if table.rows:
            parts.append(f'INSERT INTO "{name}" {_query(table)};')
    return "\n".join(parts)


def _query(table: Table) -> str:
    if not table.rows:
        return f"SELECT {', '.join('NULL' for _ in table.columns)} WHERE 1 = 0"
    plain = [name if name.isidentifier() else f"c{i}" for i, name in enumerate(table.columns)]
    first = ", ".join(
        f"{_literal(cell)} AS {name}" for cell, name in zip(table.rows[0], plain, strict=True)
    )
    rest = [", ".join(_literal(cell) for cell in row) for row in table.rows[1:]]
    return " UNION ALL SELECT ".join([f"SELECT {first}", *rest])


def _literal(cell: Cell) -> str:
    tag, value = cell
    if tag == "null":
        return "NULL"
    if tag == "bool":
        return "TRUE" if value else "FALSE"
    if isinstance(value, Fraction):
        return str(int(value)) if tag == "int" else repr(float(value))
    text = str(value).replace("'", "''")
    typed = {"date": "DATE ", "timestamp": "TIMESTAMP "}.get(tag, "")
    return f"{typed}'{text}'"
