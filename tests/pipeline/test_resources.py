from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import Exit, UsageError
from headrace.pipeline.needs import Needs, Pool
from headrace.pipeline.resources import Grant, InfeasibleNeeds, Resources, ResourceTimeout
from headrace.pipeline.virtual import VirtualClock, run

ONE = Needs({"slot": 1})


class Bench:
    """Resources in virtual time, and a list of who was served when."""

    def __init__(self, *pools: Pool, patience: int = 16) -> None:
        self.clock = VirtualClock()
        self.resources = Resources(pools, clock=self.clock, patience=patience)
        self.served: list[str] = []
        self.since: dict[str, float] = {}

    async def use(
        self,
        who: str,
        needs: Needs,
        *,
        seconds: float = 1.0,
        domain: str = "math",
        priority: int = 0,
        deadline_s: float = 10_000.0,
    ) -> None:
        grant = await self.resources.acquire(
            needs, domain=domain, deadline_s=deadline_s, who=who, priority=priority
        )
        self.served.append(who)
        self.since[who] = grant.since
        with grant:
            await asyncio.sleep(seconds)

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)

    @property
    def used(self) -> dict[str, int]:
        return {pool.name: pool.used for pool in self.resources.usage()}


def slots(capacity: int, *, most: int | None = None, domain_quota: int | None = None) -> Pool:
    return Pool(name="slot", capacity=capacity, most=most, domain_quota=domain_quota)


# --- what is granted -----------------------------------------------------------------------


def test_everything_is_granted_at_once_or_nothing_is_held() -> None:
    bench = Bench(slots(1), Pool(name="gpu", capacity=1))

    async def main() -> None:
        first = bench.start(bench.use("a", Needs({"gpu": 1}), seconds=5.0))
        await asyncio.sleep(1.0)
        second = bench.start(bench.use("b", Needs({"slot": 1, "gpu": 1})))
        await asyncio.sleep(1.0)
        assert bench.used == {"slot": 0, "gpu": 1}, "b holds no slot while it waits for the gpu"
        third = bench.start(bench.use("c", ONE))
        await asyncio.sleep(0.5)
        assert bench.served == ["a", "c"]
        await asyncio.gather(first, second, third)

    run(main(), clock=bench.clock)
    assert bench.used == {"slot": 0, "gpu": 0}


def test_a_gang_is_granted_together_and_released_one_by_one() -> None:
    bench = Bench(slots(4))

    async def main() -> None:
        small = bench.start(bench.use("small", ONE, seconds=5.0))
        await asyncio.sleep(1.0)
        gang = await bench.resources.acquire_gang(
            [Needs({"slot": 2}), Needs({"slot": 2})], domain="math", deadline_s=60.0, who="gang"
        )
        assert bench.clock.now() == 5.0
        assert bench.used == {"slot": 4}
        gang[0].release()
        assert bench.used == {"slot": 2}
        gang[1].release()
        await small

    run(main(), clock=bench.clock)


def test_crossing_needs_never_deadlock() -> None:
    """Philosophers: whoever held one fork while waiting for the other would stop them all."""
    count = 7
    bench = Bench(*(Pool(name=f"fork{i}", capacity=1) for i in range(count)))

    async def dine(seat: int) -> None:
        needs = Needs({f"fork{seat}": 1, f"fork{(seat + 1) % count}": 1})
        for _ in range(5):
            await bench.use(str(seat), needs)

    async def main() -> None:
        await asyncio.gather(*(dine(seat) for seat in range(count)))

    run(main(), clock=bench.clock)
    assert len(bench.served) == 5 * count
    assert bench.clock.now() <= 5 * 3.0, "three of seven eat at a time, and nobody is starved"


def test_a_path_draws_from_every_declared_pool_on_its_way() -> None:
    bench = Bench(
        Pool(name="sandbox", capacity=3),
        Pool(name="sandbox/namespace", capacity=2),
        Pool(name="sandbox/namespace/python", capacity=1),
    )

    async def main() -> None:
        take = bench.resources.try_acquire
        python = take(Needs({"sandbox/namespace/python": 1}), domain="code", who="a")
        assert python is not None
        assert take(Needs({"sandbox/namespace/python": 1}), domain="code", who="b") is None
        assert take(Needs({"sandbox/namespace/rust": 1}), domain="code", who="c") is not None
        assert take(Needs({"sandbox/namespace/rust": 1}), domain="code", who="d") is None
        assert take(Needs({"sandbox/virtual-machine": 1}), domain="code", who="e") is not None
        assert take(Needs({"sandbox/virtual-machine": 1}), domain="code", who="f") is None
        python.release()
        assert bench.used == {
            "sandbox": 2,
            "sandbox/namespace": 1,
            "sandbox/namespace/python": 0,
        }

    run(main(), clock=bench.clock)


def test_releasing_again_changes_nothing() -> None:
    bench = Bench(slots(2))

    async def main() -> None:
        first = await bench.resources.acquire(ONE, domain="a", deadline_s=1.0, who="x")
        await bench.resources.acquire(ONE, domain="a", deadline_s=1.0, who="y")
        first.release()
        first.release()
        with first:
            pass
        assert bench.used == {"slot": 1}

    run(main(), clock=bench.clock)


def test_an_elastic_pool_grows_for_whoever_waits_and_takes_nothing_back() -> None:
    bench = Bench(slots(1, most=4))

    async def main() -> None:
        tasks = [bench.start(bench.use(name, ONE, seconds=10.0)) for name in "abc"]
        await asyncio.sleep(1.0)
        assert bench.served == ["a"]
        bench.resources.resize("slot", 3)
        await asyncio.sleep(1.0)
        assert bench.served == ["a", "b", "c"]
        bench.resources.resize("slot", 0)
        assert bench.used == {"slot": 3}
        with pytest.raises(UsageError, match=r"not in 0\.\.4"):
            bench.resources.resize("slot", 5)
        await asyncio.gather(*tasks)
        late = bench.start(bench.use("d", Needs({"slot": 4})))
        await asyncio.sleep(1.0)
        bench.resources.resize("slot", 4)
        await late

    run(main(), clock=bench.clock)


# --- what can never be, or does not come in time -------------------------------------------


def test_what_can_never_be_granted_fails_at_once_and_says_why() -> None:
    bench = Bench(
        slots(8, domain_quota=4),
        Pool(name="accelerator", capacity=2),
    )
    cases = {
        "needs 3 of accelerator, and there will never be more than 2": [Needs({"accelerator": 3})],
        "needs 5 of slot, and domain math may never hold more than 4": [Needs({"slot": 5})],
        "needs 4 of accelerator, and there will never be": [Needs({"accelerator": 2})] * 2,
        "needs tpu, of which there is no pool": [Needs({"tpu": 1})],
    }

    async def main() -> None:
        for reason, gang in cases.items():
            with pytest.raises(InfeasibleNeeds, match=reason) as caught:
                await bench.resources.acquire_gang(gang, domain="math", deadline_s=1e6, who="train")
            assert caught.value.exit_code is Exit.USAGE
        assert bench.clock.now() == 0.0, "nobody waited"
        assert bench.resources.waits() == []

    run(main(), clock=bench.clock)


def test_a_wait_ends_at_its_deadline_and_names_who_has_it() -> None:
    bench = Bench(slots(2))

    async def main() -> None:
        holders = [
            bench.start(bench.use("verify 7", ONE, seconds=500.0, domain="code")),
            bench.start(bench.use("verify 8", ONE, seconds=500.0, domain="cad")),
        ]
        await asyncio.sleep(100.0)
        with pytest.raises(ResourceTimeout) as caught:
            await bench.resources.acquire(ONE, domain="math", deadline_s=20.0, who="play 3")
        assert bench.clock.now() == 120.0
        assert caught.value.what == "play 3 waited 20 s for 1 of slot"
        assert caught.value.where == (
            "0 of 2 slot free, held by code 1, cad 1; longest by verify 7 for 120 s"
        )
        assert caught.value.exit_code is Exit.INFRASTRUCTURE
        assert bench.resources.waits() == []
        await asyncio.gather(*holders)

    run(main(), clock=bench.clock)
    assert bench.used == {"slot": 0}


def test_a_wait_says_who_waits_for_what_on_whom_since_when() -> None:
    bench = Bench(slots(2, domain_quota=1))

    async def main() -> None:
        held = bench.start(bench.use("a", ONE, seconds=50.0, domain="code"))
        await asyncio.sleep(10.0)
        waiting = bench.start(bench.use("b", ONE, domain="code", deadline_s=100.0))
        await asyncio.sleep(5.0)
        (wait,) = bench.resources.waits()
        assert (wait.who, wait.domain, wait.what) == ("b", "code", "1 of slot")
        assert (wait.since, wait.until) == (10.0, 110.0)
        assert wait.on == (
            "0 of 1 slot within the quota of code free, held by code 1; longest by a for 15 s"
        )
        (pool,) = bench.resources.usage()
        assert (pool.used, pool.waiting, pool.by_domain) == (1, 1, {"code": 1})
        await asyncio.gather(held, waiting)

    run(main(), clock=bench.clock)


def test_needs_and_pools_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError):
        Needs({"slot": 0})
    with pytest.raises(UsageError):
        Pool(name="slot", capacity=3, most=2)
    with pytest.raises(UsageError):
        Bench(slots(1), slots(2))


# --- the order -----------------------------------------------------------------------------


def test_equals_are_served_in_the_order_they_came_and_priority_goes_first() -> None:
    bench = Bench(slots(1))

    async def main() -> None:
        tasks = [bench.start(bench.use("first", ONE))]
        await asyncio.sleep(0.1)
        for who, priority in (("low1", 2), ("low2", 2), ("high1", 0), ("mid", 1), ("high2", 0)):
            tasks.append(bench.start(bench.use(who, ONE, priority=priority)))
        await asyncio.gather(*tasks)

    run(main(), clock=bench.clock)
    assert bench.served == ["first", "high1", "high2", "mid", "low1", "low2"]


def test_a_big_request_is_passed_by_small_ones_only_so_often() -> None:
    bench = Bench(slots(4), patience=5)

    async def small(number: int) -> None:
        await bench.use(f"small{number}", ONE, seconds=4.0)

    async def main() -> None:
        tasks: list[asyncio.Task[None]] = []
        for number in range(40):
            tasks.append(bench.start(small(number)))
            if number == 3:
                tasks.append(bench.start(bench.use("big", Needs({"slot": 4}))))
            await asyncio.sleep(1.0)
        await asyncio.gather(*tasks)

    run(main(), clock=bench.clock)
    assert bench.served.index("big") == 4 + 5


def test_an_urgent_stream_cannot_starve_the_rest() -> None:
    bench = Bench(slots(1), patience=4)

    async def main() -> None:
        tasks = [bench.start(bench.use(f"urgent{n}", ONE, priority=0)) for n in range(30)]
        tasks += [bench.start(bench.use(f"rest{n}", ONE, priority=2)) for n in range(3)]
        for number in range(30, 60):
            await asyncio.sleep(1.0)
            tasks.append(bench.start(bench.use(f"urgent{number}", ONE, priority=0)))
        await asyncio.gather(*tasks)

    run(main(), clock=bench.clock)
    places = [bench.served.index(f"rest{n}") for n in range(3)]
    assert places[0] > 20, "older urgent ones are not overtaking it"
    assert places[2] - places[0] <= 2 * 5
    assert places[2] < 50


def test_a_domain_at_its_quota_slows_only_itself() -> None:
    bench = Bench(slots(4, domain_quota=2), patience=1)

    async def main() -> None:
        tasks = [
            bench.start(bench.use(f"slow{n}", ONE, seconds=1000.0, domain="slow")) for n in range(6)
        ]
        tasks.append(bench.start(bench.use("slow-big", Needs({"slot": 2}), domain="slow")))
        for number in range(50):
            await asyncio.sleep(1.0)
            tasks.append(bench.start(bench.use(f"quick{number}", ONE, domain="quick")))
        await asyncio.sleep(5.0)
        assert [who for who in bench.served if who.startswith("quick")] == [
            f"quick{n}" for n in range(50)
        ]
        assert bench.clock.now() < 60.0
        await asyncio.gather(*tasks)

    run(main(), clock=bench.clock)
    assert len(bench.served) == 57


def test_a_big_request_is_not_hidden_behind_one_that_waits_for_its_own_quota() -> None:
    bench = Bench(Pool(name="slot", capacity=4, quotas={"slow": 1}), patience=3)

    async def main() -> None:
        tasks = [
            bench.start(bench.use(f"slow{n}", ONE, seconds=500.0, domain="slow")) for n in range(3)
        ]
        tasks.append(bench.start(bench.use("s", ONE, seconds=2.0, domain="quick")))
        await asyncio.sleep(0.1)
        tasks.append(bench.start(bench.use("big", Needs({"slot": 3}), domain="big")))
        for _ in range(60):
            await asyncio.sleep(1.0)
            tasks.append(bench.start(bench.use("s", ONE, seconds=2.0, domain="quick")))
        assert "big" in bench.served[:8]
        await asyncio.gather(*tasks)

    run(main(), clock=bench.clock)


def test_a_big_request_is_not_hidden_behind_one_that_has_its_place_already() -> None:
    bench = Bench(Pool(name="gpu", capacity=1), slots(5), patience=2)

    async def main() -> None:
        tasks = [bench.start(bench.use("gpu", Needs({"gpu": 1}), seconds=500.0))]
        await asyncio.sleep(0.1)
        tasks.append(bench.start(bench.use("both", Needs({"gpu": 1, "slot": 1}))))
        for number in range(40):
            tasks.append(bench.start(bench.use("s", ONE, seconds=2.5)))
            if number == 8:
                tasks.append(bench.start(bench.use("big", Needs({"slot": 4}))))
            await asyncio.sleep(1.0)
        assert "big" in bench.served[:13]
        await asyncio.gather(*tasks)

    run(main(), clock=bench.clock)


def test_what_is_kept_for_a_big_request_is_only_its_share() -> None:
    bench = Bench(Pool(name="gpu", capacity=2), slots(8), patience=1)
    both = Needs({"gpu": 2, "slot": 2})

    async def main() -> None:
        holder = bench.start(bench.use("holder", Needs({"gpu": 1}), seconds=100.0))
        await asyncio.sleep(1.0)
        big = bench.start(bench.use("big", both))
        await asyncio.sleep(1.0)
        others = [bench.start(bench.use(f"o{n}", ONE, seconds=50.0)) for n in range(8)]
        await asyncio.sleep(1.0)
        assert [who for who in bench.served if who.startswith("o")] == [f"o{n}" for n in range(6)]
        waits = {wait.who: wait.on for wait in bench.resources.waits()}
        assert waits["o6"] == "kept for big"
        await asyncio.gather(holder, big, *others)

    run(main(), clock=bench.clock)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6))
def test_overtaking_is_bounded(seed: int, patience: int) -> None:
    """With k older requests before it, nobody sees more than (k + 1) x patience younger go."""
    draw = random.Random(seed)
    bench = Bench(slots(6), patience=patience)
    arrived: list[int] = []
    ahead: dict[int, int] = {}

    async def request(number: int) -> None:
        ahead[number] = sum(str(n) not in bench.served for n in arrived)
        arrived.append(number)
        needs = Needs({"slot": draw.choice([1, 1, 1, 2, 6])})
        await bench.use(
            str(number), needs, seconds=draw.uniform(0.5, 3.0), priority=draw.randrange(3)
        )

    async def main() -> None:
        tasks: list[asyncio.Task[None]] = []
        for number in range(60):
            tasks.append(bench.start(request(number)))
            await asyncio.sleep(draw.choice([0.0, 0.3, 1.0]))
        await asyncio.gather(*tasks)

    run(main(), clock=bench.clock)
    since = {int(who): at for who, at in bench.since.items()}
    for number, at in since.items():
        younger = sum(other > number and since[other] < at for other in since)
        assert younger <= (ahead[number] + 1) * patience


# --- cancellation --------------------------------------------------------------------------


def test_a_grant_that_meets_a_cancellation_goes_back() -> None:
    bench = Bench(slots(1))

    async def main() -> None:
        held = await bench.resources.acquire(ONE, domain="a", deadline_s=1.0, who="held")
        waiting = bench.start(bench.use("waiting", ONE))
        await asyncio.sleep(1.0)
        held.release()  # granted to `waiting`, which has not run yet
        assert bench.used == {"slot": 1}
        waiting.cancel()
        await asyncio.sleep(0.0)
        await asyncio.sleep(0.0)
        assert waiting.cancelled()
        assert bench.used == {"slot": 0}

    run(main(), clock=bench.clock)


def test_one_that_is_cancelled_keeps_nothing_from_others() -> None:
    bench = Bench(slots(2), patience=1)

    async def main() -> None:
        held = bench.start(bench.use("held", ONE, seconds=100.0))
        await asyncio.sleep(1.0)
        big = bench.start(bench.use("big", Needs({"slot": 2})))
        await asyncio.sleep(1.0)
        first = bench.start(bench.use("first", ONE))
        await asyncio.sleep(2.0)
        second = bench.start(bench.use("second", ONE))
        await asyncio.sleep(1.0)
        assert bench.served == ["held", "first"], "kept for big"
        big.cancel()
        await asyncio.sleep(0.1)
        assert bench.served == ["held", "first", "second"]
        await asyncio.gather(held, first, second)

    run(main(), clock=bench.clock)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_cancellation_and_timeouts_leak_nothing(seed: int) -> None:
    """Whatever is cancelled or times out when: books balance, limits hold, all is free at last."""
    draw = random.Random(seed)
    bench = Bench(
        Pool(name="gpu", capacity=3, domain_quota=2),
        Pool(name="slot", capacity=5, most=7, quotas={"a": 3}),
        patience=draw.randint(1, 4),
    )
    live: set[Grant] = set()

    async def request(number: int) -> None:
        gang = [
            Needs({name: draw.randint(1, 2) for name in draw.sample(["gpu", "slot"], 1)})
            for _ in range(draw.randint(1, 2))
        ]
        domain = draw.choice("ab")
        try:
            grants = await bench.resources.acquire_gang(
                gang,
                domain=domain,
                deadline_s=draw.choice([0.0, 0.5, 2.0, 50.0]),
                who=str(number),
                priority=draw.randrange(2),
            )
        except (ResourceTimeout, InfeasibleNeeds):
            return
        live.update(grants)
        try:
            check()
            await asyncio.sleep(draw.choice([0.0, 0.5, 1.0]))
        finally:
            live.difference_update(grants)
            for grant in grants:
                grant.release()

    def check() -> None:
        for pool in bench.resources.usage():
            assert pool.used >= sum(grant.needs.amounts.get(pool.name, 0) for grant in live)
            assert sum(pool.by_domain.values()) == pool.used
            assert pool.used <= 7
        assert sum(g.needs.amounts.get("gpu", 0) for g in live if g.domain == "a") <= 2

    async def main() -> None:
        tasks: list[asyncio.Task[None]] = []
        for number in range(40):
            tasks.append(bench.start(request(number)))
            await asyncio.sleep(draw.choice([0.0, 0.0, 0.5]))
            draw.choice(tasks).cancel()
            if draw.random() < 0.2:
                bench.resources.resize("slot", draw.randint(4, 7))
        await asyncio.gather(*tasks, return_exceptions=True)
        assert bench.resources.waits() == []

    run(main(), clock=bench.clock)
    assert bench.used == {"gpu": 0, "slot": 0}
