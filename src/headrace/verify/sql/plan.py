"""Reading a reference query: what orders its rows, and whether ties decide what it answers.

Parsed with sqlglot, in the child: a query may be deeply nested. Candidates are never parsed
here, since a parser that is not the database's own refuses what the database runs. May be known
by the worker.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp, parse
from sqlglot.errors import SqlglotError

__all__ = ["Plan", "Unreadable", "plan"]

_VOLATILE = frozenset(
    {
        *("random", "randomblob", "rand", "uuid", "uuidv4", "uuidv7", "gen_random_uuid"),
        *("now", "today", "curdate", "current_date", "current_time", "current_timestamp"),
        *("currentdate", "currenttime", "currenttimestamp", "localtime", "localtimestamp"),
        *("get_current_timestamp", "transaction_timestamp", "nextval"),
    }
)


class Unreadable(Exception):
    """The reference cannot be analysed; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A query as it will be run.

    `sql` returns `extra` more columns than was asked for, on the right. `keys` are the places of
    the columns that order the rows, counted from the right end of what `sql` returns if negative;
    None if nothing orders them. `volatile` names a function whose answer changes by itself.
    """

    tree: exp.Expr
    dialect: str
    extra: int
    keys: tuple[int, ...] | None
    volatile: str | None

    @property
    def sql(self) -> str:
        return self.tree.sql(dialect=self.dialect)

    def variants(self, columns: int) -> list[str]:
        """The query with all ties at a LIMIT broken one way, and the other; [] without a LIMIT.

        `columns` is the number that the reference returns, without the extra ones.
        """
        found = [self._broken(columns, descending) for descending in (False, True)]
        return [sql for sql in found if sql is not None]

    def _broken(self, columns: int, descending: bool) -> str | None:
        tree = self.tree.copy()
        changed = False
        for node in list(tree.find_all(exp.Query)):
            if node.args.get("limit") is None and node.args.get("offset") is None:
                continue
            starred = any(item.is_star for item in node.selects)
            if starred and node is not tree:
                continue
            count = columns if node is tree else len(node.selects)
            breakers = [
                exp.Ordered(this=exp.Literal.number(place), desc=descending)
                for place in range(1, count + 1)
            ]
            order = node.args.get("order")
            before = list(order.expressions) if order is not None else []
            node.set("order", exp.Order(expressions=[*before, *breakers]))
            changed = True
        return tree.sql(dialect=self.dialect) if changed else None


def plan(sql: str, dialect: str, *, ordered: bool) -> Plan:
    """The plan of a reference. With `ordered`, the keys of its order are made visible.

    Raises Unreadable where that cannot be done.
    """
    try:
        trees = [tree for tree in parse(sql, dialect=dialect) if tree is not None]
    except (SqlglotError, RecursionError) as error:
        raise Unreadable(f"sqlglot cannot read it: {str(error)[:300]}") from error
    if len(trees) != 1:
        raise Unreadable(f"{len(trees)} statements")
    tree = trees[0]
    order = tree.args.get("order") if ordered else None
    places: list[int | exp.Expr] = []
    for item in order.expressions if order is not None else []:
        places.extend(_places(tree, item.this))
    extras = [place for place in places if not isinstance(place, int)]
    if extras:
        tree.set("expressions", [*tree.expressions, *extras])
    free = iter(range(-len(extras), 0))
    keys = [
        (place if place >= 0 else place - len(extras)) if isinstance(place, int) else next(free)
        for place in places
    ]
    return Plan(
        tree=tree,
        dialect=dialect,
        extra=len(extras),
        keys=tuple(keys) if order is not None else None,
        volatile=_volatile(tree),
    )


def _places(tree: exp.Expr, key: exp.Expr) -> list[int | exp.Expr]:
    """Where an order key stands among the outputs of `tree`, or what to add to them."""
    outputs = tree.selects if isinstance(tree, exp.Query) else []
    starred = any(item.is_star for item in outputs)
    if key.name.upper() == "ALL" and not starred and isinstance(key, (exp.Column, exp.Var)):
        return list(range(len(outputs)))
    if isinstance(key, exp.Literal) and not key.is_string:
        return [int(key.name) - 1]
    for place, output in enumerate(outputs):
        named = isinstance(key, exp.Column) and not key.table and output.alias_or_name == key.name
        if (named or output.unalias() == key) and not output.is_star:
            starts = any(item.is_star for item in outputs[:place])
            return [place - len(outputs) if starts else place]
    if not isinstance(tree, exp.Select) or tree.args.get("distinct") is not None:
        raise Unreadable(f"its order key {key.sql()[:100]!r} is not among its columns")
    return [_comparable(_without_aliases(key, outputs))]


def _without_aliases(key: exp.Expr, outputs: list[exp.Expr]) -> exp.Expr:
    meaning = {item.alias: item.unalias() for item in outputs if isinstance(item, exp.Alias)}

    def replaced(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and not node.table and node.name in meaning:
            return exp.paren(meaning[node.name].copy())
        return node

    return key.copy().transform(replaced)


def _comparable(key: exp.Expr) -> exp.Expr:
    """Equal where the collation of the key says so."""
    if isinstance(key, exp.Collate) and key.expression.name.upper() == "NOCASE":
        return exp.Lower(this=key.this)
    return key


def _volatile(tree: exp.Expr) -> str | None:
    for node in tree.find_all(exp.Func, exp.Literal):
        if isinstance(node, exp.Literal):
            if node.name.lower() == "now" and isinstance(node.parent, exp.Func):
                return "'now'"
            continue
        name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
        if name.lower() in _VOLATILE:
            return name.lower()
    return None
