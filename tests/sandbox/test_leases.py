"""Leases: who owns what, across processes, deaths and time."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import StorageError
from headrace.sandbox.pool import leases as module
from headrace.sandbox.pool.leases import Lease, Leases, Owner, State
from headrace.sandbox.spec import SandboxGone
from sandbox_support import Clock

RECORDING = """
import sys, time
from pathlib import Path
from headrace.sandbox.pool.leases import Leases
leases = Leases(Path(sys.argv[1]))
first, second = leases.record(["a", "b"], backend="fake", spec="0", expires=time.time() + 3600)
leases.take(first)
print("recorded", flush=True)
sys.stdin.read()
"""
HAMMERING = """
import sys, time
from pathlib import Path
from headrace.sandbox.pool.leases import Leases, State
leases = Leases(Path(sys.argv[1]))
for number in range(25):
    (lease,) = leases.record(
        [f"{sys.argv[2]}-{number}"], backend="fake", spec="0", expires=time.time() + 60
    )
    lease = leases.take(leases.advance(lease, State.WARM))
    assert len(leases.renew()) == number // 5 + 1 + (number % 5 > 0)
    if number % 5:
        leases.forget(lease)
"""


def one(leases: Leases, id: str = "a", *, expires: float = 1_000_060.0) -> Lease:
    (lease,) = leases.record([id], backend="fake", spec="0", expires=expires)
    return lease


def manager(path: Path) -> subprocess.Popen[str]:
    """A process that has recorded the leases a and b, and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", RECORDING, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "recorded\n"
    return process


def end(process: subprocess.Popen[str], *, kill: bool) -> None:
    if kill:
        process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_sandbox_is_recorded_taken_and_forgotten(tmp_path: Path) -> None:
    with Leases(tmp_path / "leases.db", clock=Clock()) as leases:
        lease = one(leases)
        assert (lease.state, lease.epoch, lease.owner) == (State.STARTING, 0, Owner.here())
        lease = leases.advance(lease, State.WARM, expires=1_000_500.0)
        lease = leases.take(lease)
        assert leases.all() == [lease]
        assert (lease.state, lease.epoch, lease.expires) == (State.LEASED, 1, 1_000_500.0)
        assert leases.forget(lease)
        assert leases.all() == []
        assert not leases.forget(lease)


def test_a_stale_epoch_can_do_nothing(tmp_path: Path) -> None:
    with Leases(tmp_path / "leases.db", clock=Clock()) as leases:
        old = one(leases)
        new = leases.take(old)
        for change in (leases.take, lambda lease: leases.advance(lease, State.CLOSING)):  # pyright: ignore[reportUnknownVariableType]
            with pytest.raises(SandboxGone, match="no longer held"):
                change(old)
        assert not leases.forget(old)
        assert leases.claim(old, expires=2_000_000.0) is None
        assert leases.all() == [new]


def test_an_id_is_recorded_once_and_a_batch_whole_or_not_at_all(tmp_path: Path) -> None:
    with Leases(tmp_path / "leases.db") as leases:
        one(leases, "b")
        with pytest.raises(StorageError, match="UNIQUE"):
            leases.record(["a", "b", "c"], backend="fake", spec="0", expires=1.0)
        assert [lease.id for lease in leases.all()] == ["b"]


def test_what_a_living_owner_has_is_no_orphan_until_it_expires_and_a_while(tmp_path: Path) -> None:
    clock = Clock()
    with Leases(tmp_path / "leases.db", clock=clock) as leases:
        lease = one(leases)
        clock.now = lease.expires + 4.9
        assert leases.orphans() == []
        clock.now = lease.expires + 5.0
        assert leases.orphans() == [lease]
        (owned,) = leases.owned()
        assert (owned.id, owned.owner_pid, owned.orphan) == ("a", os.getpid(), True)


def test_a_killed_managers_sandboxes_are_orphans_at_once(tmp_path: Path) -> None:
    process = manager(tmp_path / "leases.db")
    with Leases(tmp_path / "leases.db") as leases:
        try:
            assert leases.orphans() == []
            assert {lease.state for lease in leases.all()} == {State.STARTING, State.LEASED}
        finally:
            end(process, kill=True)
        assert [lease.id for lease in leases.orphans()] == ["a", "b"]


def test_a_zombie_owns_nothing(tmp_path: Path) -> None:
    process = manager(tmp_path / "leases.db")
    with Leases(tmp_path / "leases.db") as leases:
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        try:
            assert len(leases.orphans()) == 2
        finally:
            end(process, kill=False)


def test_a_reused_process_id_and_another_boot_are_somebody_else() -> None:
    here = Owner.here()
    assert not here.dead
    assert replace(here, started=here.started + 1).dead
    assert replace(here, boot="of yesterday").dead


def test_an_owner_in_another_process_namespace_is_dead_only_after_long_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    with Leases(tmp_path / "leases.db", clock=clock) as leases:
        one(leases, expires=2_000_000.0)
        monkeypatch.setattr(module, "_space", lambda: "pid:[1]")
        clock.now += 119.0
        assert leases.orphans() == []
        leases.renew()
        clock.now += 119.0
        assert leases.orphans() == []
        clock.now += 1.0
        assert len(leases.orphans()) == 1


def test_of_many_reapers_exactly_one_claims_a_row(tmp_path: Path) -> None:
    end(manager(tmp_path / "leases.db"), kill=True)
    with Leases(tmp_path / "leases.db") as first:
        orphan = first.orphans()[0]
        opened = [Leases(tmp_path / "leases.db") for _ in range(8)]
        won: list[Lease] = []

        def claim(leases: Leases) -> None:
            claimed = leases.claim(orphan, expires=leases.clock() + 60)
            if claimed is not None:
                won.append(claimed)

        threads = [threading.Thread(target=claim, args=(each,)) for each in opened]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for each in opened:
            each.close()
        (claimed,) = won
        assert (claimed.state, claimed.epoch) == (State.CLOSING, orphan.epoch + 1)
        assert claimed not in first.orphans()


def test_an_owner_that_gave_a_sign_of_life_meanwhile_keeps_its_row(tmp_path: Path) -> None:
    clock = Clock()
    with Leases(tmp_path / "leases.db", clock=clock) as leases:
        read = one(leases)
        clock.now += 1
        assert leases.renew() == {"a": 0}
        assert leases.claim(read, expires=2_000_000.0) is None


def test_giving_up_keeps_the_row_for_the_next_reaper_and_counts(tmp_path: Path) -> None:
    clock = Clock()
    with Leases(tmp_path / "leases.db", clock=clock) as leases:
        one(leases)
        for failures in ("1", "2"):
            clock.now += 100
            (orphan,) = leases.orphans()
            claimed = leases.claim(orphan, expires=clock.now + 300)
            assert claimed is not None
            leases.release(claimed, "busy")
            assert leases.all()[0].details == {"failures": failures, "failure": "busy"}


def test_processes_use_the_file_at_once(tmp_path: Path) -> None:
    workers = [
        subprocess.Popen([sys.executable, "-c", HAMMERING, str(tmp_path / "leases.db"), str(name)])
        for name in range(4)
    ]
    assert [worker.wait(60) for worker in workers] == [0, 0, 0, 0]
    with Leases(tmp_path / "leases.db") as leases:
        assert len(leases.orphans()) == 4 * 5


def test_threads_use_one_object_at_once(tmp_path: Path) -> None:
    with Leases(tmp_path / "leases.db") as leases:

        def work(name: int) -> None:
            for number in range(20):
                lease = leases.take(one(leases, f"{name}-{number}"))
                leases.forget(lease)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert leases.all() == []


def test_a_file_that_is_none_or_of_another_version_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "torn.db").write_bytes(b"no database, but long enough to look at" * 100)
    with pytest.raises(StorageError) as torn:
        Leases(tmp_path / "torn.db")
    assert "moved away" in torn.value.hint
    with sqlite3.connect(tmp_path / "new.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StorageError, match="99"):
        Leases(tmp_path / "new.db")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be used"):
        Leases(tmp_path / "file" / "leases.db")


def test_after_close_and_after_a_fork_it_says_so(tmp_path: Path) -> None:
    leases = Leases(tmp_path / "leases.db")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            leases.all()
        except StorageError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    one(leases)
    leases.close()
    leases.close()
    with pytest.raises(StorageError, match="closed"):
        leases.all()


def test_the_file_lies_in_the_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_SANDBOX_STATE", str(tmp_path / "state"))
    with Leases() as leases:
        assert leases.path == tmp_path / "state" / "leases.db"
        assert leases.path.exists()
