"""Looking into a run: questions to its trajectory store, and what it is waiting for."""

from __future__ import annotations

import contextlib
import time

from headrace.cli.output import emit, emit_json, table, tell
from headrace.pipeline.broker import Wait, open_broker
from headrace.pipeline.clock import SystemClock
from headrace.pipeline.waits import read_waits
from headrace.store.query import run_query
from headrace.store.runs import RunDirectory

__all__ = ["show_query", "show_waits"]


def show_query(directory: RunDirectory, sql: str, *, limit: int, json: bool) -> None:
    """The answer to `sql` as a table, or as a list of objects."""
    found = run_query(directory.trajectories_path, sql, limit=limit)
    if json:
        emit_json([dict(zip(found.columns, row, strict=True)) for row in found.rows])
    else:
        cells = [["" if cell is None else str(cell) for cell in row] for row in found.rows]
        emit(table(cells, header=found.columns))
    if found.truncated:
        tell(f"only the first {limit} rows; --limit N shows more")


def show_waits(directory: RunDirectory, *, json: bool) -> None:
    """What the run waited for when it last said so, and the work that is leased or delayed."""
    waits = read_waits(directory.path / "waits.json")
    queue = directory.path / "queue.sqlite"
    url = (directory.recipe().get("queue") or {}).get("url")
    if queue.exists() or url:
        opened = open_broker(url or f"sqlite:///{queue}", clock=SystemClock())
        with contextlib.closing(opened) as broker:
            waits += broker.waits()
    if json:
        emit_json([_told(wait) for wait in waits])
    elif not waits:
        tell("nothing is waited for")
    else:
        now = time.time()
        rows = [
            [w.what, w.on, f"{now - w.since:.0f} s", "-" if w.until is None else _left(w, now)]
            for w in waits
        ]
        emit(table(rows, header=["WAIT", "ON", "SINCE", "GIVEN UP IN"]))


def _left(wait: Wait, now: float) -> str:
    assert wait.until is not None
    return f"{max(0.0, wait.until - now):.0f} s"


def _told(wait: Wait) -> dict[str, str | float | None]:
    return {"what": wait.what, "on": wait.on, "since": wait.since, "until": wait.until}
