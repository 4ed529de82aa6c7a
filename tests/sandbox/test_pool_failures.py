"""The pool: what a failure costs, and what time and death do."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import StorageError
from headrace.sandbox.pool import Pool
from headrace.sandbox.pool.breaker import BreakerPolicy
from headrace.sandbox.pool.leases import Leases, State
from headrace.sandbox.spec import (
    Isolation,
    Network,
    SandboxFailure,
    SandboxGone,
    SandboxRefused,
)
from sandbox_support import (
    QUICK,
    SPEC,
    Clock,
    FakeBackend,
    FakeSandbox,
    failure,
    leases_of,
    opened,
    settled,
    until_waiting,
)

# --- failures -----------------------------------------------------------------------------


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


# --- time and death -----------------------------------------------------------------------


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
