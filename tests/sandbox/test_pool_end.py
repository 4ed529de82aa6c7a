"""The pool: nothing is ever left behind, whatever ends it and whenever."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.sandbox.pool import Pool
from headrace.sandbox.pool.leases import Leases, State
from headrace.sandbox.spec import (
    SandboxFailure,
    SandboxGone,
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

# --- cancellation -------------------------------------------------------------------------


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


# --- forks --------------------------------------------------------------------------------


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


def test_who_wants_one_does_not_overtake_who_wants_two(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, FakeBackend(), options=replace(QUICK, most=3)) as pool:
            parent, *others = [await pool.take(SPEC) for _ in range(3)]
            forking = asyncio.create_task(pool.fork(parent, 2))
            await until_waiting(pool, 1)
            taking = asyncio.create_task(pool.take(OTHER))
            await until_waiting(pool, 2)
            await pool.give_back(others[0], broken=True)
            while pool.stats().backends["fake"].in_use + pool.stats().backends["fake"].closing > 2:
                await asyncio.sleep(0)
            assert pool.stats().waiting == 2
            await pool.give_back(others[1], broken=True)
            children = await forking
            assert not taking.done()
            for sandbox in children:
                await pool.give_back(sandbox)
            await pool.give_back(await taking)

    asyncio.run(work())


# --- the end ------------------------------------------------------------------------------


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
