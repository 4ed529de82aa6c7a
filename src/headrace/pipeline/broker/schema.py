"""The tables, the same in SQLite and Postgres, and the version they have.

    items     one row per work item, whatever its state
    shares    what `headrace.pipeline.fair` computes with: one row per kind, domain and class;
              the row of the empty domain holds the clock of its class
    domains   weights and limits as they were set
    ledger    changes to shares that no claim has taken in yet: one row per call and kind.
              Only claims write shares, one at a time for a kind, so a commit that waits for the
              disk holds back nobody
    meta      the version

`due` is when something happens to a row by itself: a waiting one is ready, a ready one ages
into the next class, a lease runs out.
"""

from __future__ import annotations

import sqlalchemy as sa

__all__ = [
    "CANCELLED",
    "DEAD",
    "DONE",
    "LEASED",
    "READY",
    "VERSION",
    "WAITING",
    "domains",
    "is_leased",
    "is_pending",
    "is_ready",
    "items",
    "ledger",
    "meta",
    "metadata",
    "shares",
    "still",
]

VERSION = "1"

READY, WAITING, LEASED, DONE, DEAD, CANCELLED = range(6)

metadata = sa.MetaData()
_Number = sa.BigInteger().with_variant(sa.Integer, "sqlite")

items = sa.Table(
    "broker_items",
    metadata,
    sa.Column("id", _Number, primary_key=True, autoincrement=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("domain", sa.Text, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("state", sa.SmallInteger, nullable=False),
    sa.Column("since", sa.Double, nullable=False),
    sa.Column("due", sa.Double),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("cost", sa.Double, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("group_name", sa.Text),
    sa.Column("batch", sa.Text),
    sa.Column("worker", sa.Text),
    sa.Column("token", sa.BigInteger),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("poisons", sa.Integer, nullable=False),
    sa.Column("deaths", sa.Integer, nullable=False),
    sa.Column("evidence", sa.Text),
    sa.Column("result", sa.Text),
    sa.UniqueConstraint("key", "kind", name="broker_items_name"),
)


def _literal(state: int) -> sa.ColumnElement[int]:
    """Spelled out, not bound: a partial index serves no condition on a parameter."""
    return sa.literal_column(str(state), sa.SmallInteger)


def is_ready(table: sa.FromClause) -> sa.ColumnElement[bool]:
    return table.c.state == _literal(READY)


def is_leased(table: sa.FromClause) -> sa.ColumnElement[bool]:
    return table.c.state == _literal(LEASED)


def is_pending(table: sa.FromClause) -> sa.ColumnElement[bool]:
    """Ready or waiting."""
    return table.c.state < _literal(LEASED)


def still(state: int) -> sa.ColumnElement[bool]:
    """That rows looked up by their ids have this state: leads to no partial index instead."""
    return items.c.state + sa.literal_column("0") == _literal(state)


def _index(name: str, *columns: str, where: sa.ColumnElement[bool]) -> None:
    chosen = [items.c[column] for column in columns]
    sa.Index(f"broker_{name}", *chosen, sqlite_where=where, postgresql_where=where)


_index("ready", "kind", "priority", "domain", "id", where=is_ready(items))
_index("due", "kind", "due", where=sa.and_(is_pending(items), items.c.due.is_not(None)))
_index("leases", "due", where=is_leased(items))
_index("groups", "group_name", where=items.c.group_name.is_not(None))
_index("batches", "batch", where=items.c.batch.is_not(None))

shares = sa.Table(
    "broker_shares",
    metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("domain", sa.Text, primary_key=True),
    sa.Column("priority", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("weight", sa.Double, nullable=False),
    sa.Column("most", sa.Integer),
    sa.Column("virtual", sa.Double, nullable=False),
    sa.Column("ready", sa.BigInteger, nullable=False),
    sa.Column("running", sa.BigInteger, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
    postgresql_with={"fillfactor": 40},
)

domains = sa.Table(
    "broker_domains",
    metadata,
    sa.Column("domain", sa.Text, primary_key=True),
    sa.Column("weight", sa.Double, nullable=False),
    sa.Column("most", sa.Integer),
)

ledger = sa.Table(
    "broker_ledger",
    metadata,
    sa.Column("id", _Number, primary_key=True, autoincrement=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("changes", sa.Text, nullable=False),
)

meta = sa.Table(
    "broker_meta",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
