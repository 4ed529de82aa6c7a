"""The store's part of `pipeline.py`: how fast records become durable, and that none is lost.

    python benchmarks/pipeline_store.py        this part alone

The disk is measured in the same rounds, with the same bytes between two flushes.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from rows import Row, table

from headrace.store.records import encode
from headrace.store.trajectories import Appended, TrajectoryStore
from headrace.types import (
    Json,
    Message,
    Task,
    Trajectory,
    Turn,
    Verdict,
    VerdictPart,
    VerifierRef,
    VersionSpan,
)

TOKENS = 1000
WORDS = ("so", "the", "answer", "is", "not", "seven", "but", "eight")
VERIFIER = VerifierRef("final-integer", "1")
PRODUCERS = 2
WINDOW = 512
"""Appends that a producer has under way: what a rollout engine returns between two updates."""
BLOCKING = 32
ENOUGH = 10_000
"""Records a second that are enough on any disk."""
SHARE = 0.6
"""Of the disk's sequential rate, which is enough where the disk is the limit."""


def rows(quick: bool, told: dict[str, Json]) -> list[Row]:
    """Append, blocking append, opening, sealing, memory and SIGKILL."""
    count, rounds = (4000, 2) if quick else (20_000, 5)
    attempts = _attempts(count)
    size = len(encode(attempts[0]))
    ours, disk, blocking = list[float](), list[float](), list[float]()
    opening, sealing, flushes = list[float](), list[float](), list[float]()
    sealed_share = 0.0
    for number in range(rounds):
        with _scratch() as scratch:
            seconds, syncs = _append(scratch / "store", attempts)
            ours.append(count / seconds)
            flushes.append(count / syncs)
            disk.append(_disk(scratch / "disk", size * count, syncs) / size)
            began = time.perf_counter()
            with TrajectoryStore(scratch / "store") as store:
                opening.append(count / (time.perf_counter() - began))
                if number == 0:
                    began = time.perf_counter()
                    done = store.seal()
                    sealing.append(count / (time.perf_counter() - began))
                    sealed_share = done.bytes_after / done.bytes_before
            blocking.append(_blocking(scratch / "blocking", attempts[: count // 4]))
    enough = bool(ours) and sorted(ours)[len(ours) // 2] >= ENOUGH
    lives = 5 if quick else 40
    lost, acknowledged = _kills(lives)
    told["store"] = {
        "record_bytes": size,
        "records_per_flush": flushes,
        "sealed_bytes_per_raw_byte": sealed_share,
        "acknowledged_before_kills": acknowledged,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    what = f"append, {TOKENS:,}-token records, group fsync"
    return [
        Row(
            what=what,
            peer="the disk, same bytes a flush",
            unit="records/s",
            ours=tuple(ours),
            theirs=tuple(disk),
            least=ENOUGH if enough else None,
            bar=None if enough else SHARE,
        ),
        Row(
            what=f"the same, {BLOCKING} threads that wait for each",
            peer="-",
            unit="records/s",
            ours=tuple(blocking),
        ),
        Row(what="open an unsealed log", peer="-", unit="records/s", ours=tuple(opening)),
        Row(what="seal to Parquet", peer="-", unit="records/s", ours=tuple(sealing)),
        Row(
            what="memory of an open store",
            peer="-",
            unit="bytes/attempt",
            ours=(_memory(attempts[: min(count, 4000)]),),
            most=1000,
        ),
        Row(
            what=f"acknowledged records lost in {lives} SIGKILLs",
            peer="-",
            unit="records",
            ours=(lost,),
            most=0,
        ),
    ]


@contextmanager
def _scratch() -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix="headrace-store-") as name:
        yield Path(name)


# --- what is appended ----------------------------------------------------------------------


def _attempts(count: int) -> list[Trajectory]:
    """Judged attempts of `TOKENS` sampled tokens, in groups of eight that share their task."""
    rng = np.random.default_rng(0)
    tasks = [_task(f"What is {group} + {group % 7}? Think, then answer.") for group in range(count)]
    groups = [(f"{index // 64:06d}:0.{index // 8 % 8}", index % 8) for index in range(count)]
    return [
        _attempt(tasks[index // 8], group, number, rng)
        for index, (group, number) in enumerate(groups)
    ]


def _task(asked: str) -> Task:
    return Task(
        domain="arithmetic",
        problem=asked,
        tier=0,
        split="train",
        messages=(Message.of("user", asked),),
        verifier=VERIFIER,
        answer=7,
    )


def _attempt(task: Task, group: str, number: int, rng: np.random.Generator) -> Trajectory:
    prompt = Turn(
        role="user",
        text=task.problem,
        ids=rng.integers(0, 49152, 40, dtype=np.int32),
        sampled=np.zeros(40, np.bool_),
        logps=np.zeros(0, np.float32),
    )
    answer = Turn(
        role="assistant",
        text=" ".join(rng.choice(WORDS, TOKENS).tolist()),
        ids=rng.integers(0, 49152, TOKENS, dtype=np.int32),
        sampled=np.ones(TOKENS, np.bool_),
        logps=-rng.random(TOKENS, dtype=np.float32),
        versions=(VersionSpan(3, TOKENS),),
        stop_reason="stop",
    )
    return Trajectory(
        task=task,
        group=group,
        attempt=number,
        seed=number,
        turns=(prompt, answer),
        ending="finished",
        verdict=Verdict(score=1.0, verifier=VERIFIER, parts=(VerdictPart("answer", 1.0),)),
        timings={"play": 1.5},
    )


# --- measuring -----------------------------------------------------------------------------


def _append(directory: Path, attempts: Sequence[Trajectory]) -> tuple[float, int]:
    """Seconds until everything is durable, and flushes that took."""
    syncs = 0
    real = os.fdatasync

    def counting(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        real(descriptor)

    def produce(store: TrajectoryStore, share: Sequence[Trajectory]) -> None:
        waiting: deque[Future[Appended]] = deque()
        for attempt in share:
            waiting.append(store.append_nowait(attempt))
            if len(waiting) == WINDOW:
                waiting.popleft().result(60)
        for future in waiting:
            future.result(60)

    os.fdatasync = counting
    try:
        with TrajectoryStore(directory) as store:
            shares = [attempts[start::PRODUCERS] for start in range(PRODUCERS)]
            began = time.perf_counter()
            with ThreadPoolExecutor(PRODUCERS) as pool:
                for done in [pool.submit(produce, store, share) for share in shares]:
                    done.result()
            return time.perf_counter() - began, syncs
    finally:
        os.fdatasync = real


def _blocking(directory: Path, attempts: Sequence[Trajectory]) -> float:
    """Records a second of threads that wait for each of theirs."""
    with TrajectoryStore(directory) as store:
        began = time.perf_counter()
        with ThreadPoolExecutor(BLOCKING) as pool:
            list(pool.map(store.append, attempts))
        return len(attempts) / (time.perf_counter() - began)


def _disk(path: Path, size: int, syncs: int) -> float:
    """Bytes a second of plain writes of the same size with as many flushes."""
    chunk = random.Random(0).randbytes(max(1, size // syncs))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        began = time.perf_counter()
        for _ in range(syncs):
            view = memoryview(chunk)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fdatasync(descriptor)
        return len(chunk) * syncs / (time.perf_counter() - began)
    finally:
        os.close(descriptor)


def _memory(attempts: Sequence[Trajectory]) -> float:
    """Bytes an attempt that an open store keeps, by the interpreter's own count."""
    with _scratch() as scratch:
        with TrajectoryStore(scratch) as store:
            store.append_wave("all", attempts)
        tracemalloc.start()
        store = TrajectoryStore(scratch, read_only=True)
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return size / len(store)


# --- SIGKILL -------------------------------------------------------------------------------


def _kills(lives: int) -> tuple[int, int]:
    """Acknowledged records that are not there after random kills of a writer, and of how many."""
    rng = random.Random(0)
    acknowledged: set[str] = set()
    with _scratch() as scratch:
        for _ in range(lives):
            command = [sys.executable, __file__, "--writer", str(scratch)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
                assert child.stdout is not None
                first = child.stdout.readline()
                time.sleep(rng.uniform(0, 0.3))
                child.kill()
                said = first + child.stdout.read()
            acknowledged.update(said.split("\n")[:-1])
        store = TrajectoryStore(scratch, read_only=True)
        found = {trajectory.id for trajectory in store.trajectories()}
    return len(acknowledged - found), len(acknowledged)


def _write_for_ever(directory: Path) -> None:
    """Threads that append and say what was acknowledged, until they are killed."""
    store = TrajectoryStore(directory, segment_bytes=2 << 20)
    (template,) = _attempts(1)
    said = threading.Lock()
    start = len(store)

    def work(thread: int) -> None:
        number = start
        while True:
            attempt = replace(template, group=f"{thread}:{number}")
            store.append(attempt)
            with said:
                print(attempt.id, flush=True)
            number += 1

    for thread in range(8):
        threading.Thread(target=work, args=(thread,)).start()
    while True:
        store.seal(full_only=True)
        time.sleep(0.01)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--writer"]:
        _write_for_ever(Path(sys.argv[2]))
    else:
        from rich.console import Console

        facts: dict[str, Json] = {}
        Console().print(table(rows("--quick" in sys.argv, facts)))
        Console().print(facts)
