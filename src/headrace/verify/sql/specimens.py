"""Eight small SQL tasks with attempts that are right, and wrong in the ways that graders miss.

May be known by the kind.
"""

from __future__ import annotations

from headrace.types import Json
from headrace.verify.kinds import Specimen, Specimens
from headrace.verify.sql.verifier import SqlAnswer

__all__ = ["specimens"]

_SHOP = """\
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, total INTEGER NOT NULL);
"""
_SHOPS: list[Json] = [
    {
        "customers": [[1, "Ada", "Bern"], [2, "Ben", "Basel"], [3, "Cleo", None], [4, "Dan", None]],
        "orders": [[1, 1, 120], [2, 1, 300], [3, 2, 40], [4, 3, 420], [5, None, 500]],
    },
    {
        "customers": [[1, "Eve", "Chur"], [2, "Fay", "Chur"], [3, "Gus", "Bern"], [4, "Hal", None]],
        "orders": [[1, 2, 101], [2, 2, 99], [3, 2, 1000], [4, 3, 1100], [5, 1, 7], [6, None, 1]],
    },
    {"customers": [[1, "Ivo", "Sion"]], "orders": []},
]
_STAFF = "CREATE TABLE staff (id INTEGER PRIMARY KEY, name TEXT, team TEXT, pay INTEGER);"
_STAFFS: list[Json] = [
    {"staff": [[1, "Jo", "ops", 100], [2, "Kim", "dev", 151], [3, "Lea", "dev", 200]]},
    {"staff": [[1, "Max", "dev", 90], [2, "Nia", "ops", 75], [3, "Oli", "hr", 80]]},
]
_RIDES = "CREATE TABLE rides (id INTEGER, day DATE, km DOUBLE, paid BOOLEAN);"
_RIDES_ROWS: list[Json] = [
    {
        "rides": [
            [1, "2024-01-05", 2.5, True],
            [2, "2024-01-31", 4.0, False],
            [3, "2024-02-01", 1.25, True],
            [4, "2024-02-29", 0.1, True],
            [5, "2024-02-29", 0.2, None],
        ]
    },
    {"rides": [[1, "2023-12-31", 7.0, True], [2, "2024-01-01", 3.5, True]]},
]


def specimens() -> Specimens:
    """The domain with which the kind is audited."""
    return Specimens("sql-specimens", SqlAnswer(), (*_shop(), *_staff(), *_duckdb()))


def _sql(statement: str) -> str:
    return f"```sql\n{statement}\n```"


def _specimen(
    question: str,
    answer: dict[str, Json],
    *,
    right: tuple[str, ...] = (),
    wrong: tuple[str, ...] = (),
) -> Specimen:
    prompt = f"{question}\n\nThe schema:\n{answer['schema']}"
    return Specimen(
        prompt=prompt,
        answer=answer,
        reference=_sql(answer["reference"]),
        right=tuple(_sql(statement) for statement in right),
        wrong=tuple(_sql(statement) for statement in wrong),
    )


def _shop() -> tuple[Specimen, ...]:
    shop: dict[str, Json] = {"schema": _SHOP, "instances": _SHOPS}
    large = "SELECT c.name FROM customers c JOIN orders o ON o.customer = c.id WHERE o.total > 100"
    ranking = (
        "SELECT c.name, sum(o.total) AS spent FROM customers c JOIN orders o ON o.customer = c.id "
        "GROUP BY c.id"
    )
    idle = "SELECT name FROM customers c WHERE"
    unserved = f"{idle} NOT EXISTS (SELECT 1 FROM orders WHERE customer = c.id)"
    return (
        _specimen(
            "For every order above 100, the name of its customer (once for each such order).",
            {**shop, "reference": large},
            right=(
                "SELECT (SELECT name FROM customers WHERE id = customer) FROM orders "
                "WHERE total > 100 AND customer IN (SELECT id FROM customers) ORDER BY 1;",
            ),
            wrong=(
                large.replace("SELECT", "SELECT DISTINCT", 1),
                large.replace("JOIN", "RIGHT JOIN"),
                large.replace("> 100", ">= 100 OR o.total = 99"),
                "SELECT 42",
            ),
        ),
        _specimen(
            "The customers with orders and what they spent in all, the largest sum first.",
            {**shop, "reference": f"{ranking} ORDER BY spent DESC"},
            right=(
                f"{ranking} ORDER BY sum(o.total) DESC, c.name",
                f"{ranking} ORDER BY sum(o.total) DESC, c.name DESC",
                f"WITH r AS ({ranking}) SELECT name, spent * 1.0 FROM r ORDER BY 2 DESC",
            ),
            wrong=(
                f"{ranking} ORDER BY spent",
                f"SELECT * FROM ({ranking} ORDER BY spent DESC) ORDER BY name",
                f"{ranking} ORDER BY spent DESC LIMIT 1",
            ),
        ),
        _specimen(
            "The names of the customers without any order.",
            {**shop, "reference": unserved},
            right=(
                "SELECT name FROM customers EXCEPT SELECT c.name FROM customers c "
                "JOIN orders o ON o.customer = c.id",
            ),
            wrong=(f"{idle} id NOT IN (SELECT customer FROM orders)", f"{idle} city IS NULL"),
        ),
    )


def _staff() -> tuple[Specimen, ...]:
    return (
        _specimen(
            "The average pay of every team: columns `team` and `average`.",
            {
                "schema": _STAFF,
                "instances": _STAFFS,
                "columns": "names",
                "reference": "SELECT team, avg(pay) AS average FROM staff GROUP BY team",
            },
            right=(
                "SELECT sum(pay) * 1.0 / count(*) AS average, team FROM staff GROUP BY team",
                "SELECT DISTINCT team, avg(pay) OVER (PARTITION BY team) AS Average FROM staff",
            ),
            wrong=(
                "SELECT team, sum(pay) / count(*) AS average FROM staff GROUP BY team",
                "SELECT team, round(avg(pay)) AS average FROM staff GROUP BY team",
                "SELECT team, avg(pay) FROM staff GROUP BY team",
            ),
        ),
        _specimen(
            "Raise the pay of everybody in `dev` by 10, and remove everybody in `ops`.",
            {
                "schema": _STAFF,
                "instances": _STAFFS,
                "mode": "state",
                "reference": "UPDATE staff SET pay = pay + 10 WHERE team = 'dev';\n"
                "DELETE FROM staff WHERE team = 'ops';",
            },
            right=(
                "BEGIN;\nDELETE FROM staff WHERE team = 'ops';\n"
                "UPDATE staff SET pay = pay + CASE team WHEN 'dev' THEN 10 ELSE 0 END;\nCOMMIT;",
            ),
            wrong=(
                "UPDATE staff SET pay = pay + 10 WHERE team = 'dev';",
                "UPDATE staff SET pay = pay + 10; DELETE FROM staff WHERE team = 'ops';",
                "BEGIN; UPDATE staff SET pay = pay + 10 WHERE team = 'dev'; "
                "DELETE FROM staff WHERE team = 'ops';",
                "DELETE FROM staff;",
            ),
        ),
    )


def _duckdb() -> tuple[Specimen, ...]:
    rides: dict[str, Json] = {
        "dialect": "duckdb",
        "schema": _RIDES,
        "instances": _RIDES_ROWS,
    }
    monthly = "SELECT date_trunc('month', day) AS month, sum(km) FROM rides GROUP BY ALL"
    return (
        _specimen(
            "The kilometres of every month, months as dates, the latest first (DuckDB).",
            {**rides, "reference": f"{monthly} ORDER BY month DESC"},
            right=(
                "SELECT make_date(year(day), month(day), 1) AS month, sum(km) FROM rides "
                "GROUP BY month ORDER BY month DESC",
            ),
            wrong=(
                "SELECT strftime(day, '%Y-%m-01'), sum(km) FROM rides GROUP BY 1 ORDER BY 1 DESC",
                f"{monthly} ORDER BY month",
                "SELECT date_trunc('month', day), max(km) FROM rides GROUP BY 1 ORDER BY 1 DESC",
            ),
        ),
        _specimen(
            "Of every ride its id and whether it was paid, as a boolean (DuckDB).",
            {**rides, "reference": "SELECT id, coalesce(paid, false) FROM rides"},
            right=("SELECT id, paid IS NOT NULL AND paid FROM rides ORDER BY id DESC",),
            wrong=(
                "SELECT id, paid FROM rides",
                "SELECT id, CASE WHEN paid THEN 1 ELSE 0 END FROM rides",
            ),
        ),
        _specimen(
            "The ids of the two longest rides, the longest first (DuckDB).",
            {**rides, "reference": "SELECT id FROM rides ORDER BY km DESC LIMIT 2"},
            right=(
                "SELECT id FROM rides QUALIFY row_number() OVER (ORDER BY km DESC) <= 2 "
                "ORDER BY km DESC",
            ),
            wrong=(
                "SELECT id FROM rides ORDER BY km LIMIT 2",
                "SELECT id FROM rides ORDER BY km DESC",
                "SELECT id FROM (SELECT * FROM rides ORDER BY km DESC LIMIT 2) ORDER BY id DESC",
            ),
        ),
    )
