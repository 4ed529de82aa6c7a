"""The reaper: what dead managers left goes, what fails stays and is counted."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.errors import StorageError
from headrace.sandbox.plain import PlainBackend
from headrace.sandbox.pool.leases import Leases
from headrace.sandbox.pool.reaper import reap
from sandbox_support import SPEC, Clock, FakeBackend, FakeSandbox

KILLED = """
import asyncio, os, signal, sys, time
from headrace.sandbox.pool.leases import Leases
from headrace.sandbox.plain import PlainBackend
from headrace.sandbox.spec import Isolation, Network, SandboxSpec

async def work():
    spec = SandboxSpec(isolation=Isolation.TRUSTED, network=Network(kind="full"))
    leases, backend = Leases(), PlainBackend()
    for id in ("a", "b"):
        leases.record([id], backend=backend.name, spec="0", expires=time.time() + 3600)
        box = await backend.create(spec, id=id)
        await box.exec(["sh", "-c", "sleep 300 >/dev/null 2>&1 </dev/null &"])
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(work())
"""


def abandoned(path: Path, backend: FakeBackend, ids: Sequence[str]) -> Leases:
    """Leases in which these sandboxes, which exist, have expired."""
    clock = Clock()
    leases = Leases(path / "leases.db", clock=clock)
    leases.record(ids, backend=backend.name, spec="0", expires=clock.now)
    backend.exists.update({id: FakeSandbox(backend, SPEC, id, 0) for id in ids})
    clock.now += 60
    return leases


def test_every_orphan_is_removed_and_forgotten(tmp_path: Path) -> None:
    backend = FakeBackend()
    ids = [f"{number:03}" for number in range(100)]
    with abandoned(tmp_path, backend, ids) as leases:
        leases.record(["living"], backend="fake", spec="0", expires=leases.clock() + 60)
        report = reap([backend], leases)
        assert report.clean
        assert sorted(report.gone) == ids
        assert backend.exists == {}
        assert [lease.id for lease in leases.all()] == ["living"]
        assert backend.calls["reap"] < 20  # in batches


def test_one_that_fails_is_kept_and_counted_and_stops_nobody(tmp_path: Path) -> None:
    backend = FakeBackend(unreapable={"03"})
    with abandoned(tmp_path, backend, [f"{number:02}" for number in range(20)]) as leases:
        report = reap([backend], leases)
        assert len(report.gone) == 19
        (failed,) = report.failed
        assert failed.id == "03"
        assert "busy" in failed.why
        assert [lease.id for lease in leases.all()] == ["03"]
        assert leases.all()[0].details["failures"] == "1"
        backend.unreapable.clear()
        assert reap([backend], leases, leases.clock() + 60).gone == ("03",)
        assert leases.all() == []


def test_one_backend_that_hangs_holds_up_no_other_and_not_the_caller(tmp_path: Path) -> None:
    release = threading.Event()

    class Hanging(FakeBackend):
        def reap(self, ids: Sequence[str]) -> list[str]:
            release.wait(10)
            return super().reap(ids)

    hanging, good = Hanging(name="hanging"), FakeBackend(name="good")
    with abandoned(tmp_path, hanging, ["h"]) as leases:
        leases.record(["g"], backend="good", spec="0", expires=leases.clock() - 60)
        began = time.monotonic()
        report = reap([hanging, good], leases, within_s=0.05)
        assert time.monotonic() - began < 5
        assert report.gone == ("g",)
        assert report.left == ("h",)
        assert not report.clean
        release.set()
        deadline = time.monotonic() + 5
        while leases.all() and time.monotonic() < deadline:
            time.sleep(0.005)
        assert leases.all() == []  # it ended late, and forgot late


def test_orphans_of_a_backend_that_is_not_at_hand_are_reported_and_kept(tmp_path: Path) -> None:
    backend = FakeBackend(name="elsewhere")
    with abandoned(tmp_path, backend, ["a"]) as leases:
        report = reap([FakeBackend()], leases)
        assert [(item.id, item.backend) for item in report.elsewhere] == [("a", "elsewhere")]
        assert not report.clean
        assert len(leases.orphans()) == 1


def test_reapers_at_once_share_the_work_and_none_does_it_twice(tmp_path: Path) -> None:
    backend = FakeBackend()
    reaped: list[str] = []

    class Shared(FakeBackend):
        def reap(self, ids: Sequence[str]) -> list[str]:
            reaped.extend(ids)
            return super().reap(ids)

    shared = Shared()
    with abandoned(tmp_path, backend, [f"{number:03}" for number in range(80)]) as leases:
        others = [Leases(leases.path, clock=leases.clock) for _ in range(3)]
        threads = [threading.Thread(target=reap, args=([shared], each)) for each in others]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for each in others:
            each.close()
        assert len(reaped) == len(set(reaped)) == 80
        assert leases.all() == []


def test_leases_that_cannot_be_used_are_an_error(tmp_path: Path) -> None:
    leases = Leases(tmp_path / "leases.db")
    leases.close()
    with pytest.raises(StorageError):
        reap([FakeBackend()], leases)


def test_what_a_killed_manager_left_on_the_machine_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_SANDBOX_STATE", str(tmp_path))
    killed = subprocess.run([sys.executable, "-c", KILLED], check=False)
    assert killed.returncode == -9
    assert running_in(tmp_path)
    with Leases() as leases:
        report = reap([PlainBackend()], leases)
        assert report.clean
        assert sorted(report.gone) == ["a", "b"]
        assert leases.all() == []
    assert not running_in(tmp_path)
    assert not list((tmp_path / "subprocess").iterdir())


def running_in(directory: Path) -> list[int]:
    """The processes whose working directory lies there."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(directory):
                found.append(int(process.name))
        except OSError:
            continue  # it ended meanwhile
    return found
