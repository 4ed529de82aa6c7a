from __future__ import annotations

import asyncio
import threading
import time

import pytest

from headrace.pipeline.virtual import Deadlocked, VirtualClock, run


def test_a_day_of_sleep_takes_no_time_and_moves_the_clock_by_a_day() -> None:
    clock = VirtualClock(epoch=500.0)
    began = time.perf_counter()
    run(asyncio.sleep(86_400.0), clock=clock)
    assert time.perf_counter() - began < 5.0
    assert clock.now() == 500.0 + 86_400.0


def test_timers_fire_in_the_order_of_their_times_at_exactly_their_times() -> None:
    clock = VirtualClock()
    seen: list[tuple[float, str]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((clock.now(), name))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for name, seconds in (("c", 200_000.5), ("a", 0.25), ("b", 3.0)):
                group.create_task(sleeper(name, seconds))

    run(main(), clock=clock)
    assert seen == [(0.25, "a"), (3.0, "b"), (200_000.5, "c")]


def test_a_timeout_ends_a_wait_for_something_that_never_comes() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60.0):
                await asyncio.Event().wait()
        return loop.time()

    assert run(main()) == 60.0


def test_a_thousand_workers_keep_the_clock_true() -> None:
    clock = VirtualClock()

    async def worker(number: int) -> None:
        for _ in range(20):
            await asyncio.sleep(1.0 + number / 1000)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(1000):
                group.create_task(worker(number))

    run(main(), clock=clock)
    assert clock.now() == pytest.approx(20 * 1.999)


def test_a_deadlock_is_an_error_that_names_who_waits_where() -> None:
    async def inner(queue: asyncio.Queue[int]) -> int:
        return await queue.get()

    async def main() -> None:
        queue = asyncio.Queue[int]()
        waiter = asyncio.create_task(inner(queue), name="verifier-7")
        await asyncio.sleep(30.0)
        await waiter

    with pytest.raises(Deadlocked, match="nothing can happen any more") as caught:
        run(main())
    assert "verifier-7 in " in str(caught.value)
    assert "inner > Queue.get" in str(caught.value)
    assert "30 s after the start" in str(caught.value)


def test_time_that_only_a_heartbeat_moves_ends_at_the_limit() -> None:
    async def beat() -> None:
        while True:
            await asyncio.sleep(1.0)

    async def main() -> None:
        beats = asyncio.create_task(beat(), name="beats")
        await asyncio.Event().wait()
        await beats

    with pytest.raises(Deadlocked, match="past its limit of 100 s"):
        run(main(), limit_s=100.0)


def test_a_second_run_on_the_same_clock_goes_on_where_the_first_ended() -> None:
    clock = VirtualClock()
    run(asyncio.sleep(10.0), clock=clock)
    run(asyncio.sleep(5.0), clock=clock, limit_s=6.0)
    assert clock.now() == 15.0


def test_tasks_left_over_are_cancelled_and_may_clean_up_in_virtual_time() -> None:
    clock = VirtualClock()
    cleaned: list[float] = []

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(2.0)
            cleaned.append(clock.now())

    async def main() -> asyncio.Task[None]:
        task = asyncio.create_task(background())
        await asyncio.sleep(1.0)
        return task

    assert run(main(), clock=clock).cancelled()
    assert cleaned == [3.0]


def test_an_error_of_the_main_coroutine_comes_out_as_it_is() -> None:
    async def main() -> None:
        await asyncio.sleep(1.0)
        raise LookupError("lost")

    with pytest.raises(LookupError, match="lost"):
        run(main())


def test_threads_sockets_and_processes_are_refused() -> None:
    async def thread() -> None:
        await asyncio.to_thread(time.sleep, 0.01)

    async def socket() -> None:
        await asyncio.open_connection("127.0.0.1", 9)

    async def from_outside() -> list[BaseException]:
        loop = asyncio.get_running_loop()
        caught: list[BaseException] = []

        def intrude() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except RuntimeError as error:
                caught.append(error)

        intruder = threading.Thread(target=intrude)
        intruder.start()
        intruder.join()
        return caught

    with pytest.raises(RuntimeError, match="virtual time has no place for a thread for"):
        run(thread())
    with pytest.raises(RuntimeError, match="virtual time has no place for a"):
        run(socket())
    assert "no place for a thread" in str(run(from_outside())[0])
