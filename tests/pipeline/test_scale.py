from __future__ import annotations

import asyncio
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.pipeline.scale import Bounds, Observed, Scaler, decide, wanted
from headrace.pipeline.virtual import VirtualClock, run

BOUNDS = Bounds(least=2, most=50, target_queue_s=10.0, quiet_s=60.0)


def observed(rate: float, service: float, backlog: int, current: int = 2) -> Observed:
    return Observed(arrival_rate=rate, service_s=service, backlog=backlog, current=current)


@pytest.mark.parametrize(
    ("rate", "service", "backlog", "workers"),
    [
        (0.0, 5.0, 0, 2),  # nothing to do: the least
        (2.0, 5.0, 0, 10),  # Little's law: 2/s x 5 s are ten busy at a time
        (2.0, 5.0, 20, 20),  # twenty more of 5 s each are done by ten more within 10 s
        (0.1, 5.0, 1, 2),  # one worker would do, two are the least
        (9.0, 30.0, 0, 50),  # 270 would be needed, 50 are the most
    ],
)
def test_wanted_workers_follow_littles_law(
    rate: float, service: float, backlog: int, workers: int
) -> None:
    assert wanted(observed(rate, service, backlog), BOUNDS) == workers


def test_work_that_waits_gets_a_worker_even_if_it_takes_no_time() -> None:
    nothing = Bounds(least=0, most=4)
    assert wanted(observed(0.0, 0.0, 3, 0), nothing) == 1
    assert wanted(observed(0.0, 0.0, 0, 0), nothing) == 0


def test_growth_is_immediate_and_shrinking_waits_for_quiet() -> None:
    busy = Observed(arrival_rate=3.0, service_s=5.0, backlog=0, current=5)
    assert decide(busy, BOUNDS, now=0.0) == 15
    spare = Observed(arrival_rate=0.6, service_s=5.0, backlog=0, current=9, surplus_since=100.0)
    assert decide(spare, BOUNDS, now=159.9) == 9
    assert decide(spare, BOUNDS, now=160.0) == 3


@settings(max_examples=60, deadline=None)
@given(
    rate=st.floats(0, 1e4),
    service=st.floats(0, 1e4),
    backlog=st.integers(0, 10_000),
    current=st.integers(0, 100),
    since=st.none() | st.floats(0, 1000),
)
def test_a_decision_stays_in_bounds_and_more_work_never_asks_for_fewer(
    rate: float, service: float, backlog: int, current: int, since: float | None
) -> None:
    seen = Observed(
        arrival_rate=rate, service_s=service, backlog=backlog, current=current, surplus_since=since
    )
    assert 2 <= decide(seen, BOUNDS, now=500.0) <= 50
    more = observed(rate + 1.0, service, backlog + 1, current)
    assert wanted(more, BOUNDS) >= wanted(seen, BOUNDS)


def test_a_scaler_follows_a_burst_up_at_once_and_down_after_quiet() -> None:
    scaler = Scaler(Bounds(least=1, most=20, target_queue_s=10.0, quiet_s=30.0), expected_s=4.0)
    size, sizes = 1, list[int]()
    for second in range(200):
        now = float(second)
        if second < 60:
            scaler.arrived(now, 2)
            scaler.served(now, 5.0)
        size = scaler.target(now, backlog=10 if second < 20 else 0, current=size)
        sizes.append(size)
    assert sizes[0] >= 5  # ten waiting, 5 s each, within 10 s
    assert max(sizes) <= 16  # 2/s x 5 s, and half a worker for each of the ten
    assert 10 <= sizes[50] <= 16
    assert sizes[70] > 1, "quiet for less than 30 s"
    assert sizes[-1] == 1


def test_with_as_many_workers_as_wanted_the_queue_stays_near_its_target() -> None:
    """A simulated queue: 1.5 items/s of 4 s each; 30 of them wait at the beginning."""
    clock = VirtualClock()
    scaler = Scaler(Bounds(least=1, most=60, target_queue_s=5.0, quiet_s=20.0), expected_s=4.0)
    queue = deque[float]()
    waits: list[tuple[float, float]] = []
    busy = 0

    async def serve(since: float) -> None:
        nonlocal busy
        waits.append((clock.now(), clock.now() - since))
        await asyncio.sleep(4.0)
        scaler.served(clock.now(), 4.0)
        busy -= 1

    async def main() -> None:
        nonlocal busy
        size, tasks = 1, set[asyncio.Task[None]]()
        queue.extend([0.0] * 30)
        scaler.arrived(0.0, 30)
        for tick in range(400):
            if tick % 2 == 0:
                count = 2 if tick % 4 == 0 else 1
                queue.extend([clock.now()] * count)
                scaler.arrived(clock.now(), count)
            size = scaler.target(clock.now(), backlog=len(queue), current=size)
            while queue and busy < size:
                busy += 1
                tasks.add(asyncio.create_task(serve(queue.popleft())))
            await asyncio.sleep(0.5)
        await asyncio.gather(*tasks)

    run(main(), clock=clock)
    assert max(wait for at, wait in waits if at > 30.0) <= 5.0
    assert max(wait for _, wait in waits) <= 10.0


def test_impossible_bounds_are_refused() -> None:
    with pytest.raises(UsageError, match="least <= most"):
        Bounds(least=3, most=2)
