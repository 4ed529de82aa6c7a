"""The pool: who gets what, what comes back, what a failure costs; nothing is ever left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.sandbox.breaker import BreakerPolicy
from headrace.sandbox.leases import Leases, State
from headrace.sandbox.options import PoolOptions
from headrace.sandbox.plain import PlainBackend
from headrace.sandbox.pool import Pool
from headrace.sandbox.spec import (
    Isolation,
    Network,
    Outcome,
    Sandbox,
    SandboxFailure,
    SandboxGone,
    SandboxRefused,
    SandboxSpec,
)
from sandbox_support import SPEC, Clock, FakeBackend, FakeSandbox, nothing_left, settled

OTHER = replace(SPEC, workdir="/elsewhere")
QUICK = PoolOptions(
    most=4, starting=2, wait_s=5, backoff_s=0.001, backoff_most_s=0.002, close_s=2, beat_s=60
)


@asynccontextmanager
async def opened(
    path: Path, *backends: FakeBackend, options: PoolOptions = QUICK, clock: Clock | None = None
) -> AsyncGenerator[Pool]:
    """A pool over its own leases; afterwards nothing may be left of it."""
    with Leases(path / "leases.db", clock=clock or Clock()) as leases:
        async with Pool(backends, leases, options) as pool:
            yield pool
        for backend in backends:
            assert nothing_left(backend, leases)
            assert not backend.open


def leases_of(path: Path) -> list[tuple[State, int]]:
    with Leases(path / "leases.db") as leases:
        return [(lease.state, lease.epoch) for lease in leases.all()]


async def until_waiting(pool: Pool, count: int) -> None:
    async with asyncio.timeout(5):
        while pool.stats().waiting < count:
            await asyncio.sleep(0)


def failure(text: str = "no space left on device") -> SandboxFailure:
    return SandboxFailure(text)


# --- lending -------------------------------------------------------------------------------


def test_a_sandbox_is_lent_used_and_made_new(tmp_path: Path) -> None:
    async def work() -> None:
        backend = FakeBackend()
        async with opened(tmp_path, backend) as pool:
            async with pool.acquire(SPEC) as sandbox:
                assert isinstance(sandbox, Sandbox)
                first = (sandbox.id, sandbox.epoch)
                assert (await sandbox.exec(["touch", "x"])).stdout.data == b"x"
                assert leases_of(tmp_path) == [(State.LEASED, 1)]
            await settled(pool)
            assert leases_of(tmp_path) == [(State.WARM, 1)]
            async with pool.acquire(SPEC) as again:
                assert (again.id, again.epoch) == (first[0], first[1] + 1)
                assert (await again.exec(["ls"])).stdout.data == b""  # no sentinel survives
            stats = pool.stats().backends["fake"]
            assert (stats.started, stats.recycled) == (1, 1)

    asyncio.run(work())


def test_a_handle_is_worthless_once_it_was_given_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, FakeBackend()) as pool:
            old = await pool.take(SPEC)
            await pool.give_back(old)
            await settled(pool)
            new = await pool.take(SPEC)
            assert new.id == old.id
            with pytest.raises(SandboxGone, match="given back"):
                await old.exec(["ls"])
            await pool.give_back(old)  # does not take the sandbox from its new borrower
            assert (await new.exec(["ls"])).ok
            await new.close()
            await new.close()
            with pytest.raises(SandboxGone, match="closed"):
                await new.health()

    asyncio.run(work())


def test_one_is_reused_so_often_and_then_replaced(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, FakeBackend(), options=replace(QUICK, reuses=2)) as pool:
            ids: list[str] = []
            for _ in range(4):
                async with pool.acquire(SPEC) as sandbox:
                    ids.append(sandbox.id)
                await settled(pool)
            assert len(set(ids[:3])) == 1
            assert ids[3] != ids[2]

    asyncio.run(work())


@pytest.mark.parametrize("how", ["crash", "gone", "given back as broken", "no recycling"])
def test_one_that_is_not_known_to_be_good_is_never_lent_again(tmp_path: Path, how: str) -> None:
    async def work() -> None:
        backend = FakeBackend(recycles=how != "no recycling")
        async with opened(tmp_path, backend) as pool:
            sandbox = await pool.take(SPEC)
            if how == "crash":
                backend.outcome = Outcome.CRASH
                assert (await sandbox.exec(["ls"])).outcome is Outcome.CRASH
            elif how == "gone":
                del backend.exists[sandbox.id]
                with pytest.raises(SandboxGone):
                    await sandbox.exec(["ls"])
            await pool.give_back(sandbox, broken=how == "given back as broken")
            await settled(pool)
            assert backend.calls["recycle"] == 0
            stats = pool.stats().backends["fake"]
            assert stats.crashed == (1 if how in ("crash", "gone") else 0)
            async with pool.acquire(SPEC) as fresh:
                assert fresh.id != sandbox.id

    asyncio.run(work())


def test_one_that_fails_its_health_check_is_closed_instead_of_recycled(tmp_path: Path) -> None:
    async def work() -> None:
        backend = FakeBackend()
        async with opened(tmp_path, backend) as pool:
            async with pool.acquire(SPEC) as sandbox:
                backend.fail("health", SandboxGone("no answer"))
            await settled(pool)
            assert sandbox.id not in backend.exists
            assert pool.stats().backends["fake"].crashed == 1

    asyncio.run(work())


def test_an_idle_one_that_died_is_not_lent(tmp_path: Path) -> None:
    async def work() -> None:
        backend, clock = FakeBackend(), Clock()
        async with opened(tmp_path, backend, clock=clock) as pool:
            await pool.warm(SPEC, 1)
            backend.exists.clear()
            clock.now += QUICK.check_after_s
            async with pool.acquire(SPEC) as sandbox:
                assert (await sandbox.exec(["ls"])).ok

    asyncio.run(work())


# --- warm ones -----------------------------------------------------------------------------


def test_warm_ones_are_kept_at_their_number_and_equal_specifications_share(tmp_path: Path) -> None:
    async def work() -> None:
        backend = FakeBackend()
        async with opened(tmp_path, backend) as pool:
            await pool.warm(SPEC, 2)
            assert pool.stats().backends["fake"].warm == 2
            begun = backend.calls["create"]
            borrowed = await pool.take(SandboxSpec())
            assert backend.calls["create"] == begun
            await settled(pool)
            assert pool.stats().backends["fake"].warm == 2  # filled up again
            assert pool.stats().backends["fake"].in_use == 1
            await pool.give_back(borrowed)

    asyncio.run(work())


def test_options_keep_every_kind_in_use_warm_and_let_go_of_what_idles(tmp_path: Path) -> None:
    async def work() -> None:
        backend, clock = FakeBackend(), Clock()
        options = replace(QUICK, warm=1, check_after_s=1e9)
        async with opened(tmp_path, backend, options=options, clock=clock) as pool:
            async with pool.acquire(SPEC):
                await settled(pool)
                assert pool.stats().backends["fake"].warm == 1
            await settled(pool)
            assert pool.stats().backends["fake"].warm == 2
            clock.now += options.idle_s
            await pool.tend()
            await settled(pool)
            assert pool.stats().backends["fake"].warm == 0
            assert backend.exists == {}

    asyncio.run(work())


def test_more_warm_ones_than_the_pool_holds_are_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, FakeBackend()) as pool:
            with pytest.raises(UsageError, match="5 warm sandboxes of 4"):
                await pool.warm(SPEC, 5)

    asyncio.run(work())


def test_a_failing_fill_is_not_tried_without_pause(tmp_path: Path) -> None:
    async def work() -> None:
        backend = FakeBackend()
        async with opened(tmp_path, backend) as pool:
            await pool.warm(SPEC, 1)
            backend.fail("create", *[failure() for _ in range(50)])
            async with pool.acquire(SPEC):
                for _ in range(200):
                    await asyncio.sleep(0)
                assert backend.calls["create"] == 2

    asyncio.run(work())


# --- caps and the queue --------------------------------------------------------------------


def test_never_more_start_at_once_nor_exist_than_allowed(tmp_path: Path) -> None:
    async def work() -> None:
        starting, most_starting, most = 0, 0, 0

        async def pause(verb: str) -> None:
            nonlocal starting, most_starting, most
            if verb == "create":
                starting += 1
                most_starting, most = max(most_starting, starting), max(most, len(backend.exists))
                await asyncio.sleep(0.001)
                starting -= 1

        backend = FakeBackend(pause=pause)
        async with opened(tmp_path, backend) as pool:

            async def one(number: int) -> None:
                async with pool.acquire(SPEC if number % 3 else OTHER) as sandbox:
                    await sandbox.exec(["ls"])

            await asyncio.gather(*(one(number) for number in range(40)))
            assert most_starting == QUICK.starting
            assert most <= QUICK.most

    asyncio.run(work())


def test_who_waits_is_served_in_order_and_room_is_made_by_closing_idle_ones(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, FakeBackend(), options=replace(QUICK, most=1)) as pool:
            holding = await pool.take(SPEC)
            order: list[int] = []

            async def wait(number: int) -> None:
                async with pool.acquire(OTHER if number % 2 else SPEC):
                    order.append(number)

            waiting: list[asyncio.Task[None]] = []
            for number in range(6):
                waiting.append(asyncio.create_task(wait(number)))
                await until_waiting(pool, number + 1)
            await pool.give_back(holding)
            await asyncio.gather(*waiting)
            assert order == list(range(6))

    asyncio.run(work())


def test_a_wait_has_a_deadline_that_names_what_it_waited_for(tmp_path: Path) -> None:
    async def work() -> None:
        never = asyncio.Event()

        async def pause(verb: str) -> None:
            if verb == "create" and backend.calls["create"] > 1:
                await never.wait()

        backend = FakeBackend(pause=pause)
        options = replace(QUICK, starting=1)
        async with opened(tmp_path, backend, options=options) as pool:
            held = [await pool.take(SPEC)]
            stuck = asyncio.create_task(pool.take(SPEC, timeout_s=0.03))
            await asyncio.sleep(0)
            with pytest.raises(SandboxFailure, match="leave to start: 1 are starting, 0 wait"):
                await pool.take(SPEC, timeout_s=0.01)
            with pytest.raises(SandboxFailure, match=r"within 0\.03 s: waited for fake to start"):
                await stuck
            never.set()
            held += [await pool.take(SPEC) for _ in range(3)]
            with pytest.raises(SandboxFailure, match="room: all 4 sandboxes are taken"):
                await pool.take(SPEC, timeout_s=0.01)
            assert pool.stats().infra_failed == 3
            for sandbox in held:
                await pool.give_back(sandbox)

    asyncio.run(work())


# --- failures ------------------------------------------------------------------------------


def test_infrastructure_is_retried_and_a_success_ends_it(tmp_path: Path) -> None:
    async def work() -> None:
        backend = FakeBackend()
        backend.fail("create", failure(), failure())
        async with opened(tmp_path, backend) as pool, pool.acquire(SPEC):
            stats = pool.stats()
            assert (stats.backends["fake"].failed, stats.backends["fake"].retried) == (2, 2)
            assert stats.infra_failed == 0

    asyncio.run(work())


def test_after_its_retries_the_failure_is_raised_and_counted(tmp_path: Path) -> None:
    async def work() -> None:
        backend = FakeBackend()
        backend.fail("create", *[failure() for _ in range(9)])
        options = replace(QUICK, retries=2)
        async with opened(tmp_path, backend, options=options) as pool:
            with pytest.raises(SandboxFailure, match="no space left"):
                await pool.take(SPEC)
            assert backend.calls["create"] == 3
            assert pool.stats().infra_failed == 1

    asyncio.run(work())


def test_a_refusal_is_never_retried(tmp_path: Path) -> None:
    async def work() -> None:
        backend = FakeBackend()
        backend.fail("create", SandboxRefused("no such image"))
        async with opened(tmp_path, backend) as pool:
            with pytest.raises(SandboxRefused, match="no such image"):
                await pool.take(SPEC)
            assert backend.calls["create"] == 1
            with pytest.raises(SandboxRefused, match="fake: lacks network full"):
                await pool.take(replace(SPEC, network=Network(kind="full")))
            assert pool.stats().infra_failed == 0
            assert set(pool.stats().breakers.values()) == {"closed"}

    asyncio.run(work())


def test_a_start_that_hangs_ends_and_leaves_its_row_for_the_reaper(tmp_path: Path) -> None:
    async def work() -> None:
        async def pause(verb: str) -> None:
            if verb == "create":
                await asyncio.Event().wait()

        backend = FakeBackend(pause=pause)
        options = replace(QUICK, start_s=0.01, retries=0)
        with Leases(tmp_path / "leases.db", clock=Clock()) as leases:
            async with Pool([backend], leases, options) as pool:
                with pytest.raises(SandboxFailure, match=r"not done within 0\.01 s"):
                    await pool.take(SPEC)
            assert leases_of(tmp_path) == [(State.CLOSING, 0)]

    asyncio.run(work())


def test_a_full_disk_opens_the_breaker_and_one_probe_closes_it(tmp_path: Path) -> None:
    async def work() -> None:
        backend = FakeBackend()
        backend.fail("create", *[failure() for _ in range(4)])
        policy = BreakerPolicy(failures=3, cooldown_s=0.02, cooldown_most_s=0.02)
        options = replace(QUICK, breaker=policy, retries=9)
        async with opened(tmp_path, backend, options=options) as pool:
            waiting = [asyncio.create_task(pool.take(SPEC)) for _ in range(4)]
            async with asyncio.timeout(5):
                while pool.stats().breakers.get("fake/host") != "open":
                    await asyncio.sleep(0)
            tried = backend.calls["create"]
            assert tried <= 4  # two at once: the third failure opens it, a fourth may be under way
            with pytest.raises(SandboxFailure, match="waited for the breaker of fake"):
                await pool.take(SPEC, timeout_s=0.005)
            assert backend.calls["create"] == tried
            for sandbox in await asyncio.gather(*waiting):
                await pool.give_back(sandbox)
            assert pool.stats().breakers["fake/host"] == "closed"

    asyncio.run(work())


def test_breakers_are_one_per_image(tmp_path: Path) -> None:
    async def work() -> None:
        backend = FakeBackend()
        options = replace(QUICK, breaker=BreakerPolicy(failures=1, cooldown_s=60), retries=0)
        async with opened(tmp_path, backend, options=options) as pool:
            backend.fail("create", failure())
            with pytest.raises(SandboxFailure):
                await pool.take(SPEC)
            async with pool.acquire(replace(SPEC, image="host:other")):
                breakers = pool.stats().breakers
                assert breakers == {"fake/host": "open", "fake/host:other": "closed"}

    asyncio.run(work())


@pytest.mark.parametrize("fallback", [True, False])
def test_another_backend_is_fallen_back_on_only_where_that_is_allowed(
    tmp_path: Path, fallback: bool
) -> None:
    async def work() -> None:
        weak = FakeBackend(name="weak", isolation=Isolation.NAMESPACE)
        first = FakeBackend(name="first", isolation=Isolation.USER_KERNEL)
        strong = FakeBackend(name="strong", isolation=Isolation.VIRTUAL_MACHINE)
        first.fail("create", *[failure() for _ in range(9)])
        options = replace(QUICK, fallback=fallback, retries=1)
        async with opened(tmp_path, first, weak, strong, options=options) as pool:
            if fallback:
                async with pool.acquire(SPEC) as sandbox:
                    assert sandbox.id in strong.exists
            else:
                with pytest.raises(SandboxFailure):
                    await pool.take(SPEC)
            assert first.calls["create"] == 2
            assert weak.calls["create"] == 0

    asyncio.run(work())


def test_an_open_breaker_sends_to_the_next_backend_without_trying(tmp_path: Path) -> None:
    async def work() -> None:
        first, second = FakeBackend(name="first"), FakeBackend(name="second")
        first.fail("create", failure())
        policy = BreakerPolicy(failures=1, cooldown_s=60)
        options = replace(QUICK, fallback=True, breaker=policy)
        async with opened(tmp_path, first, second, options=options) as pool:
            for _ in range(3):
                async with pool.acquire(SPEC):
                    pass
            assert (first.calls["create"], second.calls["create"] > 0) == (1, True)

    asyncio.run(work())


# --- time and death ------------------------------------------------------------------------


def test_what_is_never_given_back_comes_back_at_its_expiry(tmp_path: Path) -> None:
    async def work() -> None:
        backend, clock = FakeBackend(), Clock()
        options = replace(QUICK, most=1)
        spec = replace(SPEC, lifetime_s=100.0)
        async with opened(tmp_path, backend, options=options, clock=clock) as pool:
            forgotten = await pool.take(spec)
            next_one = asyncio.create_task(pool.take(spec))
            await until_waiting(pool, 1)
            clock.now += 100.0
            await pool.tend()
            fresh = await next_one
            assert fresh.id != forgotten.id
            with pytest.raises(SandboxGone, match="lifetime of 100 s is over"):
                await forgotten.exec(["ls"])
            assert pool.stats().backends["fake"].expired == 1
            await pool.give_back(fresh)

    asyncio.run(work())


def test_the_heartbeat_renews_and_notices_what_was_taken_away(tmp_path: Path) -> None:
    async def work() -> None:
        backend, clock = FakeBackend(), Clock()
        async with opened(tmp_path, backend, clock=clock) as pool:
            sandbox = await pool.take(SPEC)
            clock.now += 50
            await pool.tend()
            with Leases(tmp_path / "leases.db", clock=clock) as reaper:
                (lease,) = reaper.all()
                assert lease.beat == clock.now
                claimed = reaper.claim(lease, expires=clock.now + 60)
                assert claimed is not None
                await pool.tend()
                with pytest.raises(SandboxGone, match="taken away"):
                    await sandbox.exec(["ls"])
                await settled(pool)
                assert reaper.forget(claimed)  # the row was the reaper's to remove

    asyncio.run(work())


def test_the_upkeep_runs_by_itself(tmp_path: Path) -> None:
    async def work() -> None:
        clock = Clock()
        options = replace(QUICK, beat_s=0.01)
        spec = replace(SPEC, lifetime_s=100.0)
        async with opened(tmp_path, FakeBackend(), options=options, clock=clock) as pool:
            sandbox = await pool.take(spec)
            clock.now += 100.0
            async with asyncio.timeout(5):
                while pool.stats().backends["fake"].expired == 0:
                    await asyncio.sleep(0.005)
            with pytest.raises(SandboxGone):
                await sandbox.health()

    asyncio.run(work())


def test_leases_that_cannot_be_written_for_a_while_are_counted_and_end_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.errors import StorageError

    def full() -> dict[str, int]:
        raise StorageError("no space left on device")

    async def work() -> None:
        with Leases(tmp_path / "leases.db", clock=Clock()) as leases:
            async with Pool([FakeBackend()], leases, QUICK) as pool:
                sandbox = await pool.take(SPEC)
                with monkeypatch.context() as patch:
                    patch.setattr(leases, "renew", full)
                    await pool.tend()
                stats = pool.stats()
                assert (stats.lease_errors, stats.lease_error) == (1, "no space left on device")
                assert (await sandbox.exec(["ls"])).ok

    asyncio.run(work())


def test_a_pool_begins_by_removing_what_a_dead_owner_left(tmp_path: Path) -> None:
    async def work() -> None:
        backend, clock = FakeBackend(), Clock()
        backend.exists["old"] = FakeSandbox(backend, SPEC, "old", 0)
        with Leases(tmp_path / "leases.db", clock=clock) as leases:
            leases.record(["old"], backend="fake", spec="0", expires=clock.now - 60)
        async with opened(tmp_path, backend, clock=clock):
            assert backend.exists == {}

    asyncio.run(work())


# --- cancellation --------------------------------------------------------------------------


async def cancelled_after(steps: int, work: Coroutine[None, None, None]) -> bool:
    """Run it for so many turns of the loop, then cancel it; whether it had ended by itself."""
    task = asyncio.create_task(work)
    for turn in range(steps):
        await asyncio.sleep(0 if turn < 30 else 0.001)
    ended = task.done()
    task.cancel()
    await asyncio.wait([task])
    return ended


@pytest.mark.parametrize("scene", ["cold", "warm", "full", "failing", "other kind", "fork"])
def test_cancelled_at_any_await_it_leaves_nothing_behind(tmp_path: Path, scene: str) -> None:
    async def use(pool: Pool) -> None:
        async with pool.acquire(SPEC) as sandbox:
            if scene == "fork":
                for child in await pool.fork(sandbox, 2):
                    await pool.give_back(child)
            await sandbox.exec(["ls"])

    async def at(steps: int) -> bool:
        backend = FakeBackend(steps=2)
        clock = Clock()
        options = replace(QUICK, most=1 if scene in ("full", "other kind") else 4)
        async with opened(tmp_path / str(steps), backend, options=options, clock=clock) as pool:
            blocking = await pool.take(OTHER if scene == "other kind" else SPEC)
            if scene != "full":
                await pool.give_back(blocking, broken=scene in ("cold", "failing", "fork"))
                await settled(pool)
            clock.now += QUICK.check_after_s
            if scene == "failing":
                backend.fail("create", failure(), failure())
            ended = await cancelled_after(steps, use(pool))
            if scene == "full":
                assert pool.stats().waiting == 0
                await pool.give_back(blocking)
            await settled(pool)
            stats = pool.stats().backends["fake"]
            assert stats.in_use == 0
            assert stats.warm == len(backend.exists) <= options.most
            async with pool.acquire(SPEC, timeout_s=5) as sandbox:  # no room, no probe was lost
                await sandbox.exec(["ls"])
        return ended

    async def work() -> None:
        steps, ended = 0, False
        while not ended and steps < 120:
            ended = await at(steps)
            steps += 1
            if scene == "full" and steps == 20:
                return
        assert ended
        assert steps > 4

    asyncio.run(work())


def test_cancelled_just_as_it_is_granted_the_grant_goes_to_the_next(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, FakeBackend(), options=replace(QUICK, most=1)) as pool:
            holding = await pool.take(SPEC)
            first = asyncio.create_task(pool.take(SPEC))
            second = asyncio.create_task(pool.take(SPEC))
            await until_waiting(pool, 2)
            await pool.give_back(holding)
            async with asyncio.timeout(5):
                while pool.stats().waiting == 2:
                    await asyncio.sleep(0)
            first.cancel()  # it was granted the sandbox and has not run since
            await pool.give_back(await second)
            assert first.cancelled()

    asyncio.run(work())


# --- forks ---------------------------------------------------------------------------------


def test_forks_have_leases_before_they_exist_and_come_back_one_by_one(tmp_path: Path) -> None:
    async def work() -> None:
        seen: list[list[tuple[State, int]]] = []

        async def pause(verb: str) -> None:
            if verb == "fork":
                seen.append(leases_of(tmp_path))

        backend = FakeBackend(pause=pause)
        async with opened(tmp_path, backend) as pool:
            async with pool.acquire(SPEC) as parent:
                await parent.exec(["touch", "x"])
                children = await parent.fork(2)
                assert sorted(seen[0]) == [(State.LEASED, 1)] + 2 * [(State.STARTING, 0)]
                assert leases_of(tmp_path) == 3 * [(State.LEASED, 1)]
                for child in children:
                    assert (await child.exec(["ls"])).stdout.data == b"x"
                    await pool.give_back(child)
                with pytest.raises(UsageError, match="the pool chooses"):
                    await parent.fork(1, ids=["mine"])
                with pytest.raises(UsageError, match="4 forks"):
                    await parent.fork(4)
            await settled(pool)
            assert len(backend.exists) == 1  # the parent is as new, its children are gone
            with pytest.raises(SandboxGone):
                await pool.fork(parent, 1)

    asyncio.run(work())


def test_a_fork_that_fails_leaves_no_child(tmp_path: Path) -> None:
    async def work() -> None:
        backend = FakeBackend()
        async with opened(tmp_path, backend) as pool, pool.acquire(SPEC) as parent:
            backend.fail("fork", failure("half of it"))
            with pytest.raises(SandboxFailure, match="half of it"):
                await parent.fork(2)
            assert list(backend.exists) == [parent.id]
            assert leases_of(tmp_path) == [(State.LEASED, 1)]

    asyncio.run(work())


# --- the end -------------------------------------------------------------------------------


def test_176_sandboxes_are_closed_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        closing, most = 0, 0

        async def pause(verb: str) -> None:
            nonlocal closing, most
            if verb == "close":
                closing += 1
                most = max(most, closing)
                await asyncio.sleep(0.01)
                closing -= 1

        backend = FakeBackend(pause=pause)
        options = replace(QUICK, most=176, starting=64)
        async with opened(tmp_path, backend, options=options) as pool:
            await asyncio.gather(*(pool.take(SPEC) for _ in range(176)))
        assert most == 176

    asyncio.run(work())


def test_a_close_that_fails_or_hangs_stops_no_other_and_stays_in_the_leases(tmp_path: Path) -> None:
    async def work() -> None:
        clock = Clock()
        hanging = set[str]()

        async def pause(verb: str) -> None:
            if verb == "close" and hanging:
                hanging.pop()
                await asyncio.Event().wait()

        backend, other = FakeBackend(pause=pause), FakeBackend(name="other")
        with Leases(tmp_path / "leases.db", clock=clock) as leases:
            pool = Pool([backend, other], leases, replace(QUICK, close_s=0.05))
            await pool.start()
            for _ in range(4):
                await pool.take(SPEC)
            hanging.add("one")
            backend.fail("close", failure("busy"))
            with pytest.raises(SandboxFailure) as error:
                await pool.aclose()
            await pool.aclose()  # idempotent
            left = {lease.id for lease in leases.all()}
            assert len(left) == 2
            assert left == set(backend.exists)
            assert all(id in error.value.what for id in left)
            assert "busy" in error.value.what
            assert error.value.hint == "headrace sandbox reap"
            assert not backend.open
            assert not other.open
            clock.now += 60
            assert len(leases.orphans()) == 2

    asyncio.run(work())


def test_who_waits_when_the_pool_closes_is_told(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, FakeBackend(), options=replace(QUICK, most=1)) as pool:
            await pool.take(SPEC)
            waiting = asyncio.create_task(pool.take(SPEC))
            await until_waiting(pool, 1)
        with pytest.raises(SandboxGone, match="the pool was closed"):
            await waiting
        with pytest.raises(SandboxGone, match="not open"):
            await pool.take(SPEC)

    asyncio.run(work())


def test_one_that_starts_while_the_pool_closes_is_closed_too(tmp_path: Path) -> None:
    async def work() -> None:
        go = asyncio.Event()

        async def pause(verb: str) -> None:
            if verb == "create":
                await go.wait()

        backend = FakeBackend(pause=pause)
        async with opened(tmp_path, backend) as pool:
            starting = asyncio.create_task(pool.take(SPEC))
            async with asyncio.timeout(5):
                while not backend.exists:
                    await asyncio.sleep(0)
            closing = asyncio.create_task(pool.aclose())
            await asyncio.sleep(0)
            go.set()
            await closing
            with pytest.raises(SandboxGone):
                await starting

    asyncio.run(work())


def test_a_bug_of_a_backend_reaches_the_caller_and_the_row_stays(tmp_path: Path) -> None:
    async def work() -> None:
        backend = FakeBackend()
        backend.fail("create", ZeroDivisionError("a bug"))
        with Leases(tmp_path / "leases.db", clock=Clock()) as leases:
            async with Pool([backend], leases, QUICK) as pool:
                with pytest.raises(ZeroDivisionError):
                    await pool.take(SPEC)
                async with pool.acquire(SPEC):
                    pass
            assert leases_of(tmp_path) == [(State.CLOSING, 0)]

    asyncio.run(work())


# --- numbers -------------------------------------------------------------------------------


def test_the_numbers_of_a_moment(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, FakeBackend()) as pool:
            assert pool.stats().backends["fake"].start_p50_s != pool.stats().waiting  # NaN
            await pool.warm(SPEC, 1)
            async with pool.acquire(SPEC), pool.acquire(OTHER):
                await settled(pool)
                stats = pool.stats().backends["fake"]
                assert (stats.in_use, stats.warm, stats.starting) == (2, 1, 0)
                assert stats.started == 3
                assert 0 < stats.start_p50_s <= stats.start_p95_s

    asyncio.run(work())


def test_over_child_processes_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_SANDBOX_STATE", str(tmp_path))
    spec = SandboxSpec(isolation=Isolation.TRUSTED, network=Network(kind="full"))

    async def work() -> None:
        with Leases() as leases:
            async with Pool([PlainBackend()], leases, QUICK) as pool:
                for _ in range(2):
                    async with pool.acquire(spec) as sandbox:
                        assert not (await sandbox.exec(["cat", "x"])).ok
                        await sandbox.put_file("x", b"1")
                        (child,) = await sandbox.fork(1)
                        assert await child.get_file("x") == b"1"
                        await child.close()
                    await settled(pool)
                assert pool.stats().backends["subprocess"].recycled == 2
            assert leases.all() == []
        assert [path.name for path in (tmp_path / "subprocess").iterdir()] == []

    asyncio.run(work())
