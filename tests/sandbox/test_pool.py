"""The pool: who gets what, and when."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.sandbox.plain import PlainBackend
from headrace.sandbox.pool import Pool
from headrace.sandbox.pool.leases import Leases, State
from headrace.sandbox.spec import (
    Isolation,
    Network,
    Outcome,
    Sandbox,
    SandboxFailure,
    SandboxGone,
    SandboxSpec,
)
from sandbox_support import (
    OTHER,
    QUICK,
    SPEC,
    Clock,
    FakeBackend,
    failure,
    leases_of,
    opened,
    settled,
    until_waiting,
)

# --- lending ------------------------------------------------------------------------------


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


def test_one_that_does_not_answer_is_closed_instead_of_recycled(tmp_path: Path) -> None:
    async def work() -> None:
        backend = FakeBackend()
        async with opened(tmp_path, backend) as pool:
            async with pool.acquire(SPEC) as sandbox:
                backend.fail("recycle", SandboxGone("no answer"))
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


# --- warm ones ----------------------------------------------------------------------------


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


# --- caps and the queue -------------------------------------------------------------------


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


# --- numbers ------------------------------------------------------------------------------


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
