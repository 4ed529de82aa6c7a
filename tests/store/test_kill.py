"""SIGKILL of a real writer at random instants: what it acknowledged is there, always."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from headrace.store.checkpoints import Checkpoints
from headrace.store.events import read_events
from headrace.store.trajectories import TrajectoryStore
from store_support import bits
from trajectories_support import admitted, attempt, verdict

CHILD = Path(__file__).with_name("kill_child.py")
LIVES = 6


def child_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kill_child", CHILD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def live_and_die(kind: str, directory: Path, rng: random.Random) -> list[int]:
    """Run a writer until some time after its first acknowledgement, kill it: what it said."""
    environment = {**os.environ, "PYTHONPATH": str(CHILD.parents[1])}
    with subprocess.Popen(
        [sys.executable, str(CHILD), kind, str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(rng.uniform(0, 0.1))
        child.kill()
        rest = child.stdout.read()
    lines = (first + rest).split("\n")
    return [int(line) for line in lines[:-1]]


def test_acknowledged_events_survive_any_kill(tmp_path: Path) -> None:
    rng = random.Random(0)
    acknowledged: list[int] = []
    for _ in range(LIVES):
        acknowledged += live_and_die("events", tmp_path, rng)
        events = read_events(tmp_path / "events.jsonl")
        assert [event.seq for event in events] == list(range(len(events)))
        assert all(event.payload["n"] == event.seq for event in events)
        assert len(events) > max(acknowledged)
    assert len(acknowledged) == len(set(acknowledged)), "nothing was written twice"
    assert len(acknowledged) > 2 * LIVES


def test_acknowledged_waves_survive_any_kill_and_none_is_half(tmp_path: Path) -> None:
    rng = random.Random(1)
    wave_of = child_module().wave_of
    acknowledged: list[int] = []
    for _ in range(LIVES):
        acknowledged += live_and_die("waves", tmp_path, rng)
        log = TrajectoryStore(tmp_path / "trajectories", read_only=True)
        assert log.keys() == [str(number) for number in range(len(log.keys()))]
        assert len(log.keys()) > max(acknowledged)
        for wave in log.iterate(log.keys()[-8:]):
            assert bits(wave.trajectories) == bits(wave_of(int(wave.key)))
    assert len(acknowledged) == len(set(acknowledged)), "nothing was written twice"
    assert len(acknowledged) > 2 * LIVES


def survivors(directory: Path, lives: int, rng: random.Random) -> int:
    """Kill the writer of records again and again; everything it said is there. How much it was.

    `lives` at least, and as many more as it takes until a segment was sealed (a busy machine may
    kill every one of the first before its sealer had a turn).
    """
    acknowledged: list[int] = []
    sealed = lived = 0
    while lived < lives or not sealed:
        lived += 1
        assert lived <= 20 * lives, "a writer that never seals"
        acknowledged += live_and_die("records", directory, rng)
        store = TrajectoryStore(directory / "trajectories", read_only=True)
        spent = {group for e in store.ledger() for group in e.consumed.groups}
        assert {f"{number % 4}:{number // 4}" for number in acknowledged} <= spent
        for number in acknowledged[-20:]:
            group = f"{number % 4}:{number // 4}"
            expected = attempt(group, tokens=50).judged(verdict(1.0))
            assert bits(store.trajectory(f"{group}/0")) == bits(expected)
            assert bits(store.admitted(group)) == bits(admitted(group))
            assert store.verdicts(f"{group}/0") == [verdict(1.0)]
        sealed = len(store.log.manifest.segments)
    assert len(acknowledged) == len(set(acknowledged)), "nothing was done twice"
    return len(acknowledged)


def test_records_of_many_threads_survive_any_kill_while_segments_are_sealed(
    tmp_path: Path,
) -> None:
    assert survivors(tmp_path, 3, random.Random(3)) > 6


@pytest.mark.slow
def test_records_survive_a_hundred_kills(tmp_path: Path) -> None:
    assert survivors(tmp_path, 100, random.Random(4)) > 1000


def test_the_newest_acknowledged_checkpoint_survives_any_kill(tmp_path: Path) -> None:
    rng = random.Random(2)
    content_of = child_module().content_of
    acknowledged: list[int] = []
    for _ in range(LIVES):
        acknowledged += live_and_die("checkpoints", tmp_path, rng)
        latest = Checkpoints(tmp_path / "checkpoints", read_only=True).latest()
        assert latest is not None
        assert latest.problems == ()
        assert latest.step >= max(acknowledged)
        assert latest.state == {"step": latest.step}
        assert (latest.path / "model.bin").read_bytes() == content_of(latest.step)
        assert (latest.path / "optimizer.bin").read_bytes() == content_of(latest.step + 1)
    assert len(acknowledged) > LIVES


@pytest.mark.parametrize("kind", ["events", "waves"])
def test_a_reader_beside_a_writer_only_ever_sees_a_growing_prefix(
    tmp_path: Path, kind: str
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(CHILD.parents[1])}
    sizes: list[int] = []
    with subprocess.Popen(
        [sys.executable, str(CHILD), kind, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        deadline = time.monotonic() + 30
        while len(set(sizes)) < 20 and time.monotonic() < deadline:
            if kind == "events":
                sizes.append(len(read_events(tmp_path / "events.jsonl")))
            else:
                sizes.append(len(TrajectoryStore(tmp_path / "trajectories", read_only=True).keys()))
        child.kill()
    assert sizes == sorted(sizes)
    assert sizes[0] >= 1
    assert len(set(sizes)) >= 20
