from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import Exit, UsageError
from headrace.pipeline.clock import SystemClock
from headrace.pipeline.needs import Needs, Pool
from headrace.pipeline.placement.base import WorkerLost, WorkerSpec, WorkOverdue
from headrace.pipeline.placement.inside import InProcess
from headrace.pipeline.placement.processes import LocalProcesses
from headrace.pipeline.resources import Resources
from headrace.pipeline.scale import Bounds, Scaler
from headrace.pipeline.supervise import (
    Loss,
    SupervisionPolicy,
    Supervisor,
    WorkersKeepDying,
    WorkersStopped,
    WorkerTimeout,
)
from headrace.pipeline.virtual import VirtualClock, run
from placement_support import HERE, Puppet, Stage, gone_within, is_alive

SPEC = WorkerSpec(name="judge", entry="judges:load")
PATIENT = SupervisionPolicy(pause_s=1.0, longest_pause_s=8.0, deaths=1000)


async def behave(puppet: Puppet, request: Any) -> Any:
    """Do as the request says: die, fall asleep, hang; its answer is the worker's name."""
    if "die" in request:
        await asyncio.sleep(request["die"])
        puppet.die("killed by signal 9")
        await asyncio.sleep(1.0)
    await asyncio.sleep(request.get("seconds", 1.0))
    return puppet.id


class Bench:
    """A supervisor over puppets in virtual time, and what it reported lost."""

    def __init__(self, size: int, *, start_s: float = 1.0, fails: int = 0, **more: Any) -> None:
        self.clock = VirtualClock()
        self.stage = Stage(behave, start_s=start_s, fails=fails)
        self.losses: list[Loss] = []
        more.setdefault("policy", PATIENT)
        self.workers = Supervisor(
            self.stage,
            SPEC,
            Needs(),
            size=size,
            clock=self.clock,
            on_loss=self.losses.append,
            **more,
        )

    async def call(self, deadline_s: float = 100.0, wait_s: float = 1000.0, **request: Any) -> Any:
        lease = request.pop("lease", "")
        return await self.workers.call(request, deadline_s=deadline_s, wait_s=wait_s, lease=lease)


def test_work_is_shared_among_all_workers_first_come_first_served() -> None:
    bench = Bench(3)

    async def main() -> list[str]:
        async with bench.workers:
            return list(await asyncio.gather(*(bench.call() for _ in range(7))))

    names = run(main(), clock=bench.clock)
    assert sorted(names[:3]) == sorted(names[3:6]) == ["judge-1", "judge-2", "judge-3"]
    assert not bench.stage.living


def test_a_dead_worker_is_replaced_and_its_lease_reported_lost() -> None:
    bench = Bench(1)

    async def main() -> None:
        async with bench.workers:
            with pytest.raises(WorkerLost, match="killed by signal 9"):
                await bench.call(die=3.0, lease="verify 000003:0.2/1#7")
            assert await bench.call() == "judge-2"
            assert bench.workers.state().deaths == 1

    run(main(), clock=bench.clock)
    (loss,) = bench.losses
    assert (loss.lease, loss.worker, loss.at) == ("verify 000003:0.2/1#7", "judge-1", 4.0)
    assert "signal 9" in loss.why


def test_an_idle_worker_that_dies_is_replaced_as_well() -> None:
    bench = Bench(2)

    async def main() -> None:
        async with bench.workers:
            await asyncio.sleep(5.0)
            next(iter(bench.stage.living)).die("out of memory")
            await asyncio.sleep(5.0)
            state = bench.workers.state()
            assert (state.ready, state.deaths, state.last_death) == (2, 1, "out of memory")

    run(main(), clock=bench.clock)
    assert bench.losses == []


def test_replacement_backs_off_and_a_finished_work_ends_the_streak() -> None:
    bench = Bench(1, start_s=0.0)

    async def main() -> None:
        async with bench.workers:
            for _ in range(4):
                with pytest.raises(WorkerLost):
                    await bench.call(die=0.0)
            await bench.call(seconds=0.0)
            with pytest.raises(WorkerLost):
                await bench.call(die=0.0)
            await bench.call(seconds=0.0)

    run(main(), clock=bench.clock)
    starts = bench.stage.placed_at
    assert starts == [0.0, 1.0, 3.0, 7.0, 15.0, 16.0]


def test_a_worker_that_lived_for_long_begins_a_new_streak() -> None:
    policy = SupervisionPolicy(pause_s=1.0, longest_pause_s=8.0, settled_s=60.0)
    bench = Bench(1, start_s=0.0, policy=policy)

    async def main() -> None:
        async with bench.workers:
            for lived in (1.0, 1.0, 100.0, 1.0):
                while not bench.stage.living:
                    await asyncio.sleep(0.5)
                await asyncio.sleep(lived)
                next(iter(bench.stage.living)).die("killed")
            await asyncio.sleep(10.0)

    run(main(), clock=bench.clock)
    starts = bench.stage.placed_at
    ends = [1.0, starts[1] + 1.0, starts[2] + 100.0, starts[3] + 1.0]
    pauses = [start - end for start, end in zip(starts[1:], ends, strict=True)]
    assert pauses == pytest.approx([1.0, 2.0, 1.0, 2.0], abs=0.75)


def test_workers_that_keep_dying_end_it_with_the_reason() -> None:
    policy = SupervisionPolicy(pause_s=0.1, longest_pause_s=1.0, deaths=4, within_s=60.0)
    bench = Bench(2, fails=100, policy=policy)

    async def main() -> None:
        async with bench.workers:
            with pytest.raises(WorkersKeepDying, match="5 judge workers died within 60 s") as told:
                await bench.call()
            assert "did not start: no memory" in str(told.value)
            assert told.value.exit_code is Exit.INFRASTRUCTURE
            with pytest.raises(WorkersKeepDying):
                await bench.call()
            await asyncio.sleep(100.0)
            assert len(bench.stage.placed_at) <= 6, "no more are started"

    run(main(), clock=bench.clock)
    assert bench.clock.now() < 150.0


def test_deaths_that_are_far_apart_do_not_end_it() -> None:
    policy = SupervisionPolicy(pause_s=1.0, deaths=2, within_s=60.0)
    bench = Bench(1, policy=policy)

    async def main() -> None:
        async with bench.workers:
            for _ in range(10):
                with pytest.raises(WorkerLost):
                    await bench.call(die=40.0)
            assert (await bench.call()).startswith("judge-")

    run(main(), clock=bench.clock)


def test_a_hung_worker_is_replaced_at_the_deadline_of_its_work() -> None:
    bench = Bench(1)

    async def main() -> None:
        async with bench.workers:
            with pytest.raises(WorkOverdue):
                await bench.call(seconds=1e9, deadline_s=30.0, lease="x")
            assert await bench.call() == "judge-2"

    run(main(), clock=bench.clock)
    assert [loss.lease for loss in bench.losses] == ["x"]


def test_waiting_for_a_worker_ends_at_its_deadline_and_says_what_they_do() -> None:
    bench = Bench(1)

    async def main() -> None:
        async with bench.workers:
            long = asyncio.create_task(bench.call(seconds=50.0, lease="verify 1"))
            await asyncio.sleep(11.0)
            late = asyncio.create_task(bench.call(lease="verify 2", wait_s=20.0))
            await asyncio.sleep(1.0)
            (wait,) = bench.workers.waits()
            assert (wait.who, wait.what) == ("verify 2", "an idle judge worker")
            assert wait.on == "judge-1 is at verify 1 for 11 s"
            with pytest.raises(WorkerTimeout, match="no judge worker took verify 2 within 20 s"):
                await late
            assert bench.clock.now() == 31.0
            assert bench.workers.waits() == []
            assert await long == "judge-1"

    run(main(), clock=bench.clock)


def test_a_caller_that_leaves_does_not_take_the_worker_with_it() -> None:
    bench = Bench(1)

    async def main() -> None:
        async with bench.workers:
            surplus = asyncio.create_task(bench.call(seconds=10.0))
            await asyncio.sleep(2.0)
            queued = asyncio.create_task(bench.call())
            await asyncio.sleep(0.0)
            surplus.cancel()
            queued.cancel()
            assert await bench.call(seconds=0.0) == "judge-1"
            assert bench.clock.now() == 11.0

    run(main(), clock=bench.clock)
    assert bench.losses == []


def test_it_grows_at_once_and_shrinks_without_losing_work() -> None:
    bench = Bench(1)

    async def main() -> None:
        async with bench.workers:
            bench.workers.resize(4)
            calls = [asyncio.create_task(bench.call(seconds=20.0)) for _ in range(3)]
            await asyncio.sleep(5.0)
            state = bench.workers.state()
            assert (state.ready, state.busy) == (4, 3)
            bench.workers.resize(1)
            await asyncio.sleep(1.0)
            state = bench.workers.state()
            assert (state.wanted, state.ready, state.busy) == (1, 3, 3), "the idle one goes first"
            assert len(set(await asyncio.gather(*calls))) == 3
            await asyncio.sleep(1.0)
            assert len(bench.stage.living) == 1
            bench.workers.resize(0)
            await asyncio.sleep(1.0)
            assert not bench.stage.living
            with pytest.raises(UsageError):
                bench.workers.resize(-1)

    run(main(), clock=bench.clock)
    assert bench.losses == []


def test_shrinking_gives_up_workers_that_have_not_started_yet() -> None:
    bench = Bench(5, start_s=100.0)

    async def main() -> None:
        async with bench.workers:
            await asyncio.sleep(1.0)
            bench.workers.resize(2)
            await asyncio.sleep(150.0)
            assert len(bench.stage.living) == bench.stage.started == 2

    run(main(), clock=bench.clock)


def test_a_scaler_is_carried_out() -> None:
    bounds = Bounds(least=1, most=6, target_queue_s=5.0, quiet_s=20.0)
    bench = Bench(1, scaler=Scaler(bounds, expected_s=5.0, window_s=20.0))
    sizes: list[int] = []

    async def main() -> None:
        async with bench.workers:
            calls: list[asyncio.Task[Any]] = []
            for second in range(120):
                if second < 40:
                    calls.append(asyncio.create_task(bench.call(seconds=4.0)))
                await asyncio.sleep(1.0)
                sizes.append(len(bench.stage.living))
            await asyncio.gather(*calls)

    run(main(), clock=bench.clock)
    assert sizes[0] <= 1
    assert 4 <= max(sizes) <= 6
    assert sizes[-1] == 1
    assert bench.losses == []


def test_leaving_lets_work_finish_within_the_grace_and_ends_the_rest() -> None:
    policy = SupervisionPolicy(grace_s=10.0)
    bench = Bench(2, policy=policy)

    async def main() -> None:
        async with bench.workers:
            await asyncio.sleep(1.5)
            short = asyncio.create_task(bench.call(seconds=5.0, lease="short"))
            long = asyncio.create_task(bench.call(seconds=500.0, deadline_s=900.0, lease="long"))
            queued = asyncio.create_task(bench.call(lease="queued"))
            await asyncio.sleep(1.0)
        assert await short
        with pytest.raises(WorkerLost, match="stopped at its work"):
            await long
        with pytest.raises(WorkersStopped, match="were stopped"):
            await queued
        with pytest.raises(WorkersStopped, match="were stopped"):
            await bench.call()

    run(main(), clock=bench.clock)
    assert bench.clock.now() == 2.5 + 10.0
    assert [loss.lease for loss in bench.losses] == ["long"]
    assert not bench.stage.living


def test_needs_that_can_never_be_met_are_told_to_whoever_calls() -> None:
    clock = VirtualClock()
    resources = Resources([Pool(name="slot", capacity=1)], clock=clock)

    async def main() -> None:
        spec = WorkerSpec(name="judge", entry=f"{HERE}:load_async")
        placement = InProcess(resources=resources)
        async with Supervisor(placement, spec, Needs({"slot": 2}), size=1, clock=clock) as judges:
            with pytest.raises(UsageError, match="there will never be more than 1"):
                await judges.call({"say": 1}, deadline_s=1.0, wait_s=1e6)

    run(main(), clock=clock)


def test_workers_inside_the_process_are_supervised_in_virtual_time() -> None:
    clock = VirtualClock()

    async def main() -> None:
        spec = WorkerSpec(name="judge", entry=f"{HERE}:load_async")
        async with (
            InProcess() as placement,
            Supervisor(placement, spec, Needs(), size=2, clock=clock) as judges,
        ):
            with pytest.raises(WorkOverdue):
                await judges.call({"say": 0, "seconds": 99.0}, deadline_s=9.0, wait_s=9.0)
            answers = await asyncio.gather(
                *(
                    judges.call({"say": n, "seconds": 60.0}, deadline_s=90.0, wait_s=900.0)
                    for n in range(10)
                )
            )
            assert answers == list(range(10))

    run(main(), clock=clock)


def test_killed_processes_are_replaced_and_all_work_gets_done(tmp_path: Path) -> None:
    losses: list[Loss] = []
    pids: set[int] = set()

    def living() -> list[int]:
        return [pid for pid in pids if is_alive(pid)]

    async def work(judges: Supervisor, number: int) -> int:
        """As the broker has it: what is lost is done again."""
        while True:
            try:
                request = {"do": "sleep", "seconds": 0.02}
                pids.add(await judges.call({"do": "pid"}, deadline_s=20.0, wait_s=40.0))
                await judges.call(request, deadline_s=20.0, wait_s=40.0, lease=str(number))
            except WorkerLost:
                continue
            return number

    async def main() -> None:
        spec = WorkerSpec(name="judge", entry=f"{HERE}:load")
        policy = SupervisionPolicy(pause_s=0.05)
        async with (
            asyncio.timeout(60.0),
            LocalProcesses(logs=tmp_path) as placement,
            Supervisor(
                placement,
                spec,
                Needs(),
                size=2,
                clock=SystemClock(),
                policy=policy,
                on_loss=losses.append,
            ) as judges,
        ):
            tasks = [asyncio.create_task(work(judges, number)) for number in range(40)]
            for done in (10, 20):
                while sum(task.done() for task in tasks) < done or not living():
                    await asyncio.sleep(0.01)
                os.kill(living().pop(), signal.SIGKILL)
            assert await asyncio.gather(*tasks) == list(range(40))
            assert judges.state().deaths == 2

    asyncio.run(main())
    assert len(pids) >= 3
    assert gone_within(list(pids), 5.0)
