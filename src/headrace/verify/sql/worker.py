"""The child in which statements run: `python -m headrace.verify.sql.worker`.

It returns rows and knows no right ones: what a reference answers and what a candidate answers
are separate requests, compared by the parent.
"""

from __future__ import annotations

import time

from headrace.types import Json
from headrace.verify.child import serve
from headrace.verify.sql.database import Failed
from headrace.verify.sql.jobs import Job, run
from headrace.verify.sql.plan import Plan, Unreadable, plan

__all__ = ["handle"]


def handle(request: Json) -> Json:
    """A list with one run for each instance: `{"outcome", ...}`, up to the first that fails."""
    until = time.thread_time() + request["seconds"]
    work = _reference if request["op"] == "reference" else _candidate
    runs: list[Json] = []
    for rows in request["instances"]:
        runs.append(work(request, rows, until))
        if runs[-1]["outcome"] != "ok":
            break
    return runs


def _candidate(request: Json, rows: Json, until: float) -> Json:
    try:
        return {"outcome": "ok", "tables": run(request["dialect"], _job(request, rows, until))}
    except Failed as failure:
        return {"outcome": failure.outcome, "message": failure.message}


def _reference(request: Json, rows: Json, until: float) -> Json:
    """As for a candidate, and beside it what else the reference may answer.

    `keys` are the places of the columns that order the rows (from the right if negative), None
    if nothing does; the last `extra` columns are there for them only. `others` are answers that
    must be the same: with the rows stored backwards, and with ties at a LIMIT broken both ways.
    `before`: the tables that a script began with.
    """
    dialect = request["dialect"]
    try:
        tables = run(dialect, _job(request, rows, until))
        changes = request["tables"] is not None
        before = run(dialect, _job(request, rows, until, "SELECT 1")) if changes else None
        made = _plan(request)
        sql = request["statement"]
        if made is not None and made.extra:
            sql = made.sql
            tables = run(dialect, _job(request, rows, until, sql))
        others = [run(dialect, _job(request, rows, until, sql, backwards=True))]
        if made is not None:
            for variant in made.variants(len(tables[0]["columns"]) - made.extra):
                others.extend(_variant(dialect, _job(request, rows, until, variant)))
    except Failed as failure:
        return {"outcome": failure.outcome, "message": failure.message}
    return {
        "outcome": "ok",
        "tables": tables,
        "keys": None if made is None else made.keys,
        "extra": 0 if made is None else made.extra,
        "others": [None if other == tables else other for other in others],
        "before": before,
    }


def _plan(request: Json) -> Plan | None:
    """None where there is nothing to plan: a script, or an order that nobody asks for."""
    if request["tables"] is not None:
        return None
    try:
        made = plan(request["statement"], request["dialect"], ordered=request["ordered"])
    except Unreadable as error:
        if not request["ordered"]:
            return None
        raise Failed("unreadable", str(error)) from error
    if made.volatile is not None:
        raise Failed("unsettled", f"{made.volatile} changes by itself")
    return made


def _variant(dialect: str, job: Job) -> list[list[Json]]:
    """What the variant answers; nothing where its rows cannot be ordered by all columns."""
    try:
        return [run(dialect, job)]
    except Failed as failure:
        if failure.outcome in ("error", "syntax"):
            return []
        raise


def _job(
    request: Json, rows: Json, until: float, sql: str | None = None, *, backwards: bool = False
) -> Job:
    return Job(
        schema=request["schema"],
        rows=rows,
        statement=request["statement"] if sql is None else sql,
        tables=request["tables"],
        backwards=backwards,
        until=until,
    )


if __name__ == "__main__":
    serve(lambda: handle)
