"""Killed processes, full disks, databases that are not there: what was said stays true."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from broker_support import Hand, OpenBroker, Worker, done, keys, work
from headrace.errors import StorageError, UsageError
from headrace.pipeline.broker import Broker, open_broker
from headrace.pipeline.broker.database import Database
from store_support import FULL, tiny_disk

DEADLINE_S = 60.0

VICTIM = """
import sys
from headrace.pipeline.broker import Done, Work, open_broker
from headrace.pipeline.clock import SystemClock

broker = open_broker(sys.argv[1], clock=SystemClock())
[held] = broker.claim(["held"], worker="victim", limit=1, lease_s=3600)
print("held", flush=True)
while leases := broker.claim(["play"], worker="victim", limit=3, lease_s=3600):
    results = []
    for lease in leases:
        follow = Work(kind="verify", key=lease.key + "/then", domain=lease.domain, payload="")
        results.append(Done(lease, "result", 1.0, (follow,)))
    assert broker.commit(results) == []
    print(*(lease.key for lease in leases), flush=True)
"""


def kill_after(url: str, lines: int) -> list[str]:
    """Run the victim until it said so many lines, then SIGKILL it; the keys it acknowledged."""
    command = [sys.executable, "-c", VICTIM, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        said = [victim.stdout.readline() for _ in range(lines)]
        time.sleep(0.002 * lines)
        victim.kill()
        said += victim.stdout.readlines()
        victim.wait(DEADLINE_S)
    assert said[0] == "held\n"
    return [key for line in said[1:] for key in line.split()]


def test_a_process_killed_anywhere_loses_no_acknowledged_result_and_repeats_no_effect(
    url: str, opened: OpenBroker
) -> None:
    with open_broker(url, clock=Hand()) as broker:
        broker.enqueue([work(f"{n}", domain=f"d{n % 5}") for n in range(900)])
        broker.enqueue([work("held", kind="held")])
    acknowledged: list[str] = []
    for lines in (2, 7):
        acknowledged += kill_after(url, lines)
        broker = opened()
        counts = {kind.kind: kind for kind in broker.stats().kinds}
        assert counts["play"].done == counts["verify"].ready
        assert counts["play"].done >= len(acknowledged)
        assert counts["play"].done + counts["play"].ready + counts["play"].leased == 900
        assert counts["held"].leased == 1
        assert broker.reset("victim") == 1 + counts["play"].leased
    worker = Worker(broker)
    assert keys(worker.claim(kinds=["held"])) == ["held"]
    redone: list[str] = []
    while leases := worker.claim(300):
        assert broker.commit([done(lease) for lease in leases]) == []
        redone += keys(leases)
    assert len(acknowledged) == len(set(acknowledged))
    assert not set(redone) & set(acknowledged)
    assert len(redone) + counts["verify"].ready == 900


# --- what cannot be used -------------------------------------------------------------------


def test_a_full_disk_is_a_storage_error_and_the_broker_goes_on_when_there_is_space(
    tmp_path: Path,
) -> None:
    with tiny_disk(tmp_path / "small", kilobytes=600) as directory:
        ballast = directory / "ballast"
        ballast.write_bytes(b"x" * 150_000)
        with open_broker(f"sqlite:///{directory / 'queue.sqlite'}", clock=Hand()) as broker:
            accepted: list[int] = []
            with pytest.raises(StorageError, match=f"(?i){FULL}|disk is full|disk I/O") as caught:
                enqueue_until_refused(broker, accepted)
            assert "free space" in caught.value.hint or "directory" in caught.value.hint
            ballast.unlink()
            assert len(accepted) > 10
            assert broker.stats().kinds[0].ready == len(accepted)
            assert broker.enqueue([work("after")]) == 1
            assert len(Worker(broker).claim(10)) == 10


def enqueue_until_refused(broker: Broker, accepted: list[int]) -> None:
    for n in range(10_000):
        broker.enqueue([work(f"{n}", payload="p" * 1000)])
        accepted.append(n)


def test_a_closed_broker_says_so(broker: Broker) -> None:
    broker.close()
    with pytest.raises(StorageError, match="is closed") as caught:
        broker.enqueue([work("a")])
    assert caught.value.hint


def test_tables_of_another_version_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "queue.sqlite"
    open_broker(f"sqlite:///{file}", clock=Hand()).close()
    connection = sqlite3.connect(file)
    connection.execute("UPDATE broker_meta SET value = '99'")
    connection.commit()
    connection.close()
    with pytest.raises(StorageError, match="have version 99") as caught:
        open_broker(f"sqlite:///{file}", clock=Hand())
    assert "another database" in caught.value.hint


def test_a_database_that_is_none_or_not_there_is_a_storage_error_with_a_hint(
    tmp_path: Path,
) -> None:
    (tmp_path / "text.sqlite").write_text("no database, but long enough to look at " * 50)
    unusable = {
        f"sqlite:///{tmp_path / 'text.sqlite'}": "move it away",
        f"sqlite:///{tmp_path / 'missing' / 'queue.sqlite'}": "directory exists",
        f"postgresql+psycopg://u:secret@/db?host={tmp_path}": "server runs",
    }
    for url, hint in unusable.items():
        with pytest.raises(StorageError) as caught:
            open_broker(url, clock=Hand())
        assert hint in caught.value.hint
        assert "secret" not in str(caught.value)


def test_a_url_that_names_no_database_we_know_is_a_usage_error() -> None:
    for url in ("mysql://host/db", "no url at all", "redis://host"):
        with pytest.raises(UsageError) as caught:
            open_broker(url, clock=Hand())
        assert "sqlite:///PATH" in caught.value.hint


def test_the_server_going_away_is_a_storage_error(postgres_url: str) -> None:
    """The server ends the connections; the next call says so, the one after it works again."""
    database, other = Database(postgres_url), Database(postgres_url)
    try:
        mine = database.read(lambda connection: _scalar(connection, "SELECT pg_backend_pid()"))
        ended = f"SELECT pg_terminate_backend({mine}, 10000)"
        assert other.read(lambda connection: _scalar(connection, ended))
        with pytest.raises(StorageError, match="cannot be used") as caught:
            database.read(lambda connection: _scalar(connection, "SELECT 1"))
        assert "server" in caught.value.hint
        assert database.read(lambda connection: _scalar(connection, "SELECT 1")) == 1
    finally:
        database.close()
        other.close()


def test_two_openings_at_once_make_the_tables_once(url: str) -> None:
    command = [sys.executable, "-c", OPENER, url]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=DEADLINE_S)[0] for process in both]
    assert [json.loads(line) for line in said] == [1, 1]


OPENER = """
import os
import sys
from headrace.pipeline.broker import Work, open_broker
from headrace.pipeline.clock import SystemClock

broker = open_broker(sys.argv[1], clock=SystemClock())
print(broker.enqueue([Work(kind="k", key=str(os.getpid()), domain="d", payload="")]))
"""


def _scalar(connection: Any, statement: str) -> Any:
    return connection.exec_driver_sql(statement).scalar()
