"""Sandboxes in numbers, under a manager that is killed at random: nothing is left of them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from abuse_support import groups
from headrace.sandbox.oci.backend import OciBackend
from headrace.sandbox.pool.leases import Leases
from headrace.sandbox.pool.reaper import reap

pytestmark = pytest.mark.skipif(
    OciBackend().available() is not None, reason=f"oci: {OciBackend().available()}"
)

CHILD = Path(__file__).with_name("soak_child.py")


def leftovers(state: Path) -> dict[str, list[str]]:
    """Everything on this machine that belongs to sandboxes of that state directory."""
    found: dict[str, list[str]] = {"processes": [], "groups": [], "mounts": [], "files": []}
    mark = str(state)
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        try:
            command = (path / "cmdline").read_bytes().decode(errors="replace")
            if "/headrace/" in (path / "cgroup").read_text() or mark in command:
                found["processes"].append(command.replace("\0", " "))
        except OSError:
            continue
    found["groups"] = groups("*/")
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found["mounts"] = [line for line in mounts if mark in line]
    found["files"] = [str(path) for path in (state / "oci").glob("**/*")]
    return {name: things for name, things in found.items() if things}


def soak(state: Path, count: int, seed: int) -> tuple[Counter[str], int]:
    """Have `count` sandboxes used by managers that are killed again and again; how each kind
    of use was finished, and how many managers were killed."""
    rng = random.Random(seed)
    environment = {**os.environ, "HEADRACE_SANDBOX_STATE": str(state)}
    finished: Counter[str] = Counter()
    kills = 0
    while (left := count - finished.total()) > 0:
        victim_after = rng.randrange(5, 10 + count // 10)
        with subprocess.Popen(
            [sys.executable, str(CHILD), str(left), str(rng.random())[2:8]],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as child:
            assert child.stdout is not None
            for seen, line in enumerate(child.stdout, start=1):
                said, kind = line.split()
                assert said == "done", line
                finished[kind] += 1
                if seen == victim_after:
                    time.sleep(rng.uniform(0, 0.02))
                    if rng.random() < 0.3:
                        kill_keepers(state)
                    child.send_signal(signal.SIGKILL)
                    kills += 1
        assert child.returncode in (0, -signal.SIGKILL), "a manager failed by itself"
    return finished, kills


def kill_keepers(state: Path) -> None:
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                command = (path / "cmdline").read_bytes()
            except OSError:
                continue
            if b"oci.keeper" in command and str(state).encode() in command:
                os.kill(int(path.name), signal.SIGKILL)


def settle(state: Path) -> dict[str, list[str]]:
    """What is left once the reaper has run and the last keeper has had its time."""
    deadline = time.monotonic() + 30
    while True:
        backend = OciBackend()
        reap([backend], Leases())
        backend.reap([])
        left = leftovers(state)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    state = tmp_path / "s"
    monkeypatch.setenv("HEADRACE_SANDBOX_STATE", str(state))
    finished, kills = soak(state, count, seed=count)
    assert kills >= 2
    assert finished.total() >= count
    assert not settle(state)
    assert not Leases().owned()


def test_a_short_soak_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, monkeypatch, 60)


@pytest.mark.slow
def test_five_thousand_sandboxes_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, monkeypatch, 5000)
