"""A writer to be killed: acknowledges on stdout whatever the store said is durable."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from pathlib import Path

from headrace.store.checkpoints import Checkpoints
from headrace.store.events import EventLog
from headrace.store.ledger import Consumed
from headrace.store.trajectories import Judged, TrajectoryStore
from headrace.types import Trajectory
from store_support import small_trajectory
from trajectories_support import admitted, attempt, verdict


def wave_of(number: int) -> list[Trajectory]:
    return [small_trajectory(1000 * number + index, tokens=50) for index in range(number % 5)]


def content_of(step: int) -> bytes:
    return step.to_bytes(4, "little") * (50_000 * (1 + step % 4))


def acknowledge(number: int) -> None:
    print(number, flush=True)


def write_events(directory: Path) -> None:
    log = EventLog(directory / "events.jsonl")
    while True:
        number = log.seq
        log.append("tick", number, {"n": number, "pad": "x" * (number * 997 % 20_000)})
        acknowledge(number)


def write_waves(directory: Path) -> None:
    log = TrajectoryStore(directory / "trajectories", segment_bytes=100_000)
    while True:
        number = len(log.keys())
        log.append_wave(str(number), wave_of(number))
        acknowledge(number)


THREADS = 4


def write_records(directory: Path) -> None:
    """Threads that admit, try, judge and consume groups of their own; one more seals."""
    importlib.import_module("headrace.store.sealing")  # takes longer than many a life
    store = TrajectoryStore(directory / "trajectories", segment_bytes=30_000)
    said = threading.Lock()

    def work(thread: int) -> None:
        number = sum(group.startswith(f"{thread}:") for group in store.groups())
        while True:
            group = f"{thread}:{number}"
            store.append(admitted(group))
            tried = store.append_nowait(attempt(group, tokens=50))
            judged = store.append_nowait(Judged(f"{group}/0", verdict(1.0)))
            for future in (tried, judged):
                future.result(60)
            store.append(Consumed(step=number, version=0, groups=(group,)))
            with said:
                acknowledge(number * THREADS + thread)
            number += 1

    jobs = [threading.Thread(target=work, args=(thread,)) for thread in range(THREADS)]
    for job in jobs:
        job.start()
    while True:
        store.seal(full_only=True)
        time.sleep(0.005)


def write_checkpoints(directory: Path) -> None:
    checkpoints = Checkpoints(directory / "checkpoints", keep=2)
    latest = checkpoints.latest()
    step = 0 if latest is None else latest.step
    while True:
        step += 1

        def fill(target: Path, step: int = step) -> None:
            (target / "model.bin").write_bytes(content_of(step))
            (target / "optimizer.bin").write_bytes(content_of(step + 1))

        checkpoints.write(f"step_{step:06d}", fill, {"step": step})
        acknowledge(step)


WRITERS = {
    "events": write_events,
    "waves": write_waves,
    "records": write_records,
    "checkpoints": write_checkpoints,
}

if __name__ == "__main__":
    WRITERS[sys.argv[1]](Path(sys.argv[2]))
