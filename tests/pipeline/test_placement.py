from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import Exit, InfrastructureError, StorageError, UsageError
from headrace.pipeline.clock import SystemClock
from headrace.pipeline.needs import Needs, Pool
from headrace.pipeline.placement.base import (
    PlacementError,
    WorkerLost,
    WorkerSpec,
    WorkFailed,
    WorkOverdue,
)
from headrace.pipeline.placement.frames import FrameError, encode, receive, receive_async
from headrace.pipeline.placement.inside import InProcess
from headrace.pipeline.placement.processes import LocalProcesses
from headrace.pipeline.resources import Resources
from headrace.pipeline.virtual import VirtualClock, run
from placement_support import HERE, gone_within, is_alive

NOTHING = Needs()
BLOCKING = WorkerSpec(name="w", entry=f"{HERE}:load")
ASYNC = WorkerSpec(name="w", entry=f"{HERE}:load_async")


def spec(**more: Any) -> WorkerSpec:
    return WorkerSpec(name="w", entry=f"{HERE}:load", **more)


@contextlib.asynccontextmanager
async def processes(logs: Path, **more: Any) -> AsyncGenerator[LocalProcesses]:
    async with asyncio.timeout(60.0), LocalProcesses(logs=logs, **more) as placement:
        yield placement


# --- what both placements promise ----------------------------------------------------------


async def conform(placement: InProcess | LocalProcesses) -> None:
    """Results, failures by kind, bugs with their trace, unfinished work, and one clean end."""
    worker = await placement.place(BLOCKING, NOTHING)
    assert worker.state == "idle"
    said = {"text": "déjà vu", "n": [1, 2.5, None]}
    assert await worker.call({"do": "echo", "say": said}, deadline_s=20.0) == said
    with pytest.raises(StorageError, match="disk full") as failed:
        await worker.call({"do": "storage"}, deadline_s=20.0)
    assert (failed.value.where, failed.value.hint) == ("/data", "free some")
    with pytest.raises(WorkFailed, match="LookupError: a bug in the handler") as bug:
        await worker.call({"do": "bug"}, deadline_s=20.0)
    assert "in handle" in bug.value.where
    assert bug.value.exit_code is Exit.BUG

    first = asyncio.create_task(worker.call({"do": "sleep", "seconds": 0.1}, deadline_s=20.0))
    await asyncio.sleep(0.02)
    assert worker.state == "busy"
    with pytest.raises(RuntimeError, match="at work already"):
        await worker.call({"do": "echo", "say": 1}, deadline_s=20.0)
    assert await first == "slept"

    with pytest.raises(WorkOverdue, match=r"did not end within 0\.1 s"):
        await worker.call({"do": "sleep", "seconds": 1.0}, deadline_s=0.1)
    assert "overdue" in await worker.ended() or "did not end" in await worker.ended()
    assert worker.state == "ended"
    with pytest.raises(WorkerLost, match="is gone"):
        await worker.call({"do": "echo", "say": 1}, deadline_s=1.0)
    await worker.stop(grace_s=1.0)


async def conform_in_starting(placement: InProcess | LocalProcesses) -> None:
    """A wrong entry is a usage error, a known failure keeps its kind, a bug is no start."""
    nowhere = WorkerSpec(name="w", entry="placement_support:nothing")
    with pytest.raises(UsageError, match="names no function"):
        await placement.place(nowhere, NOTHING)
    with pytest.raises(UsageError, match="No module named"):
        await placement.place(WorkerSpec(name="w", entry="no_such_module:f"), NOTHING)
    with pytest.raises(StorageError, match="no space"):
        await placement.place(spec(arguments={"storage": 1}), NOTHING)
    with pytest.raises(PlacementError, match="LookupError: no such weights"):
        await placement.place(spec(arguments={"bug": 1}), NOTHING)
    with pytest.raises(PlacementError, match=r"not ready within 0\.05 s"):
        await placement.place(spec(arguments={"load_s": 0.5}, start_s=0.05), NOTHING)


def test_workers_inside_this_process_keep_the_protocol() -> None:
    async def main() -> None:
        async with InProcess() as placement:
            await conform(placement)
            await conform_in_starting(placement)

    asyncio.run(main())


def test_worker_processes_keep_the_protocol(tmp_path: Path) -> None:
    async def main() -> None:
        async with processes(tmp_path) as placement:
            await conform(placement)
            await conform_in_starting(placement)

    asyncio.run(main())


# --- inside --------------------------------------------------------------------------------


def test_coroutines_are_placed_in_virtual_time_and_threads_are_refused_there() -> None:
    clock = VirtualClock()

    async def main() -> None:
        async with InProcess() as placement:
            worker = await placement.place(ASYNC, NOTHING)
            assert await worker.call({"say": 5, "seconds": 3600.0}, deadline_s=4000.0) == 5
            with pytest.raises(WorkFailed, match="LookupError"):
                await worker.call({"say": 5, "bug": True}, deadline_s=1.0)
            with pytest.raises(WorkOverdue):
                await worker.call({"say": 5, "seconds": 100.0}, deadline_s=10.0)
            with pytest.raises(PlacementError, match="no place for a thread"):
                await placement.place(BLOCKING, NOTHING)

    run(main(), clock=clock)
    assert clock.now() == 3610.0


def test_threads_that_hang_are_left_behind_and_bounded() -> None:
    async def main() -> None:
        async with InProcess(threads=2) as placement:
            for _ in range(2):
                worker = await placement.place(BLOCKING, NOTHING)
                with pytest.raises(WorkOverdue):
                    await worker.call({"do": "sleep", "seconds": 1.0}, deadline_s=0.02)
            with pytest.raises(PlacementError, match="2 threads of workers live"):
                await placement.place(BLOCKING, NOTHING)

    began = time.perf_counter()
    asyncio.run(main())
    assert time.perf_counter() - began < 0.9, "nobody waits for a thread that hangs"


def test_a_worker_holds_what_it_needs_until_it_ends() -> None:
    clock = VirtualClock()
    resources = Resources([Pool(name="slot", capacity=1)], clock=clock)

    async def main() -> None:
        async with InProcess(resources=resources) as placement:
            slot = Needs({"slot": 1})
            first = await placement.place(ASYNC, slot)
            second = asyncio.create_task(placement.place(ASYNC, slot))
            await asyncio.sleep(1.0)
            assert not second.done()
            await first.stop(grace_s=0.0)
            worker = await second
            with pytest.raises(WorkOverdue):
                await worker.call({"say": 1, "seconds": 9.0}, deadline_s=1.0)
            assert resources.usage()[0].used == 0

    run(main(), clock=clock)


# --- processes -----------------------------------------------------------------------------


def test_a_worker_that_dies_at_work_is_lost_with_its_last_words(tmp_path: Path) -> None:
    async def main() -> None:
        async with processes(tmp_path) as placement:
            worker = await placement.place(BLOCKING, NOTHING)
            with pytest.raises(WorkerLost, match=r"exit code 7.*these are my last words"):
                await worker.call({"do": "exit"}, deadline_s=20.0)
            odd = await placement.place(BLOCKING, NOTHING)
            with pytest.raises(WorkerLost, match="frame of 4294967295 bytes"):
                await odd.call({"do": "junk"}, deadline_s=20.0)
            other = await placement.place(BLOCKING, NOTHING)
            os.kill(other.pid, signal.SIGKILL)
            assert "signal 9" in await other.ended()

    asyncio.run(main())


def test_a_busy_worker_is_not_an_unhealthy_one_but_an_idle_silent_one_is(tmp_path: Path) -> None:
    """Beats are far apart here, as those of a worker whose interpreter is blocked."""

    async def main() -> None:
        async with processes(tmp_path, beat_s=0.1) as placement:
            worker = await placement.place(spec(silence_s=0.4), NOTHING)
            work = asyncio.create_task(
                worker.call({"do": "sleep", "seconds": 0.3}, deadline_s=20.0)
            )
            await asyncio.sleep(0.05)
            os.kill(worker.pid, signal.SIGSTOP)
            await asyncio.sleep(1.0)
            assert worker.state == "silent"
            os.kill(worker.pid, signal.SIGCONT)
            assert await work == "slept"
            await asyncio.sleep(0.6)
            assert worker.state == "idle", "it beats while it is idle"
            os.kill(worker.pid, signal.SIGSTOP)
            assert "idle and not heard of for 0.4 s" in await worker.ended()
            assert not is_alive(worker.pid)

    asyncio.run(main())


def test_one_that_beats_but_finishes_nothing_is_ended_at_its_works_deadline(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with processes(tmp_path, beat_s=0.02) as placement:
            worker = await placement.place(spec(silence_s=5.0), NOTHING)
            child = int(await worker.call({"do": "child"}, deadline_s=20.0))
            with pytest.raises(WorkOverdue):
                await worker.call({"do": "sleep", "seconds": 600.0}, deadline_s=0.3)
            assert "did not end within 0.3 s" in await worker.ended()
            assert gone_within([worker.pid, child], 5.0)

    asyncio.run(main())


def test_a_call_that_is_cancelled_ends_its_worker(tmp_path: Path) -> None:
    async def main() -> None:
        async with processes(tmp_path) as placement:
            worker = await placement.place(BLOCKING, NOTHING)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await worker.call({"do": "sleep", "seconds": 600.0}, deadline_s=500.0)
            assert await worker.ended() == "its work was cancelled"

    asyncio.run(main())


def test_stopping_lets_work_finish_and_closing_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> list[int]:
        async with processes(tmp_path) as placement:
            gentle = await placement.place(BLOCKING, NOTHING)
            work = asyncio.create_task(
                gentle.call({"do": "sleep", "seconds": 0.3}, deadline_s=20.0)
            )
            await asyncio.sleep(0.05)
            await gentle.stop(grace_s=10.0)
            assert await work == "slept"
            left = await placement.place(BLOCKING, NOTHING)
            child = int(await left.call({"do": "child"}, deadline_s=20.0))
        with pytest.raises(PlacementError, match="was closed"):
            await placement.place(BLOCKING, NOTHING)
        return [gentle.pid, left.pid, child]

    pids = asyncio.run(main())
    assert gone_within(pids, 5.0)


def test_results_that_are_no_json_or_too_long_fail_and_the_worker_lives(tmp_path: Path) -> None:
    async def main() -> None:
        async with processes(tmp_path) as placement:
            worker = await placement.place(BLOCKING, NOTHING)
            with pytest.raises(WorkFailed, match="not JSON serializable"):
                await worker.call({"do": "object"}, deadline_s=20.0)
            with pytest.raises(InfrastructureError, match=r"frame of .* bytes"):
                await worker.call({"do": "big", "bytes": 17 * 2**20}, deadline_s=20.0)
            with pytest.raises(TypeError):
                await worker.call({"do": object()}, deadline_s=20.0)
            assert await worker.call({"do": "echo", "say": 1}, deadline_s=20.0) == 1

    asyncio.run(main())


def test_starts_take_turns_under_a_memory_budget(tmp_path: Path) -> None:
    """Each takes 400 MB while it loads and 100 after it: with 1,000 two load at a time."""
    resources = Resources([Pool(name="memory", capacity=1000)], clock=SystemClock())
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, resources.usage()[0].used)
            await asyncio.sleep(0.01)

    async def main() -> None:
        async with processes(tmp_path, resources=resources) as placement:
            watcher = asyncio.create_task(watch())
            heavy = spec(starting=Needs({"memory": 300}), arguments={"load_s": 0.1})
            workers = await asyncio.gather(
                *(placement.place(heavy, Needs({"memory": 100})) for _ in range(4))
            )
            assert resources.usage()[0].used == 400
            for worker in workers:
                assert await worker.call({"do": "echo", "say": 1}, deadline_s=20.0) == 1
            watcher.cancel()

    asyncio.run(main())
    assert 800 <= most <= 1000
    assert resources.usage()[0].used == 0


SUPERVISED = """
import asyncio, sys
from pathlib import Path
from headrace.pipeline.placement.base import WorkerSpec
from headrace.pipeline.placement.processes import LocalProcesses
from headrace.pipeline.needs import Needs

async def main():
    placement = LocalProcesses(logs=Path(sys.argv[1]))
    spec = WorkerSpec(name="w", entry="placement_support:load")
    workers = [await placement.place(spec, Needs()) for _ in range(2)]
    busy = asyncio.ensure_future(workers[0].call({"do": "sleep", "seconds": 600}, deadline_s=600))
    print(*(worker.pid for worker in workers), flush=True)
    await busy

asyncio.run(main())
"""


def test_killing_the_main_process_leaves_no_worker(tmp_path: Path) -> None:
    main = subprocess.Popen(
        [sys.executable, "-c", SUPERVISED, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with main:
        assert main.stdout is not None
        pids = [int(word) for word in main.stdout.readline().split()]
        assert len(pids) == 2
        assert all(is_alive(pid) for pid in pids)
        main.send_signal(signal.SIGKILL)
        assert gone_within(pids, 5.0)


# --- frames --------------------------------------------------------------------------------


def test_frames_come_through_whole_and_nothing_else_is_taken() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        long = encode("call", id=1, request={"x": "ü" * 70_000})
        sender = threading.Thread(target=theirs.sendall, args=(long,))
        sender.start()
        assert receive(ours) == {"kind": "call", "id": 1, "request": {"x": "ü" * 70_000}}
        sender.join()
        for hostile, why in (
            (b"\xff\xff\xff\xff", "frame of 4294967295 bytes"),
            (b"\x00\x00\x00\x04\x80\x04K\x01", "not JSON"),
            (b"\x00\x00\x00\x02[]", "not an object"),
            (b"\x00\x00\x00\x0a" + b'{"kind":1}', "not an object"),
        ):
            theirs.sendall(hostile)
            with pytest.raises(FrameError, match=why):
                receive(ours)
        theirs.sendall(b"\x00\x00\x00\x09abc")
        theirs.close()
        assert receive(ours) is None


def test_a_frame_that_is_cut_off_is_the_end() -> None:
    async def main() -> object:
        reader = asyncio.StreamReader()
        reader.feed_data(encode("beat")[:-2])
        reader.feed_eof()
        return await receive_async(reader)

    assert asyncio.run(main()) is None
