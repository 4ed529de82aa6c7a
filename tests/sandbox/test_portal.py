"""The portal: coroutines for callers without a loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.sandbox.pool import Pool
from headrace.sandbox.pool.leases import Leases
from headrace.sandbox.portal import Portal
from headrace.sandbox.spec import SandboxFailure
from sandbox_support import QUICK, SPEC, FakeBackend, nothing_left


def test_results_and_exceptions_pass_through() -> None:
    async def fails() -> None:
        raise UsageError("no", where="here")

    async def slow_by_itself() -> None:
        raise TimeoutError("mine")

    with Portal() as portal:
        assert portal.call(asyncio.sleep(0, 7), timeout_s=5) == 7
        with pytest.raises(UsageError, match="no"):
            portal.call(fails(), timeout_s=5)
        with pytest.raises(TimeoutError, match="mine"):
            portal.call(slow_by_itself(), timeout_s=5)


def test_a_call_that_takes_too_long_is_cancelled_before_the_failure_is_raised() -> None:
    ended: list[str] = []

    async def long() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    with Portal() as portal:
        with pytest.raises(SandboxFailure, match=r"0\.01 s"):
            portal.call(long(), timeout_s=0.01)
        assert ended == ["cleaned up"]


def test_many_threads_call_at_once() -> None:
    results: list[int] = []

    async def double(value: int) -> int:
        await asyncio.sleep(0.001)
        return 2 * value

    with Portal() as portal:
        threads = [
            threading.Thread(
                target=lambda value=value: results.append(portal.call(double(value), timeout_s=5))
            )
            for value in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(results) == [2 * value for value in range(20)]


def test_closing_cancels_what_runs_joins_the_thread_and_is_idempotent() -> None:
    portal = Portal("closing")
    begun, failures = threading.Event(), list[str]()

    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    def caller() -> None:
        try:
            portal.call(forever(), timeout_s=60)
        except SandboxFailure as error:
            failures.append(error.what)

    thread = threading.Thread(target=caller)
    thread.start()
    assert begun.wait(5)
    portal.close()
    portal.close()
    thread.join(5)
    assert failures == ["the portal was closed during a call"]
    assert "closing" not in {each.name for each in threading.enumerate()}
    with pytest.raises(SandboxFailure, match="closed"):
        portal.call(asyncio.sleep(0), timeout_s=1)


def test_a_call_from_inside_is_refused_instead_of_hanging() -> None:
    with Portal() as portal:

        async def inside() -> None:
            portal.call(asyncio.sleep(0), timeout_s=1)

        with pytest.raises(RuntimeError, match="await instead"):
            portal.call(inside(), timeout_s=5)


def test_closing_says_so_when_something_does_not_let_itself_be_cancelled() -> None:
    portal = Portal("stubborn")
    release, begun = threading.Event(), threading.Event()

    async def blocks() -> None:
        begun.set()
        release.wait(5)

    thread = threading.Thread(target=lambda: portal.call(blocks(), timeout_s=60))
    thread.start()
    assert begun.wait(5)
    with pytest.raises(SandboxFailure, match="did not end"):
        portal.close(timeout_s=0.01)
    release.set()
    thread.join(5)
    portal.close(timeout_s=5)


def test_a_pool_is_used_from_threads_through_a_portal(tmp_path: Path) -> None:
    backend = FakeBackend()
    with Leases(tmp_path / "leases.db") as leases, Portal() as portal:
        pool = Pool([backend], leases, QUICK)
        portal.call(pool.start(), timeout_s=5)
        said: list[bytes] = []

        def verify(name: str) -> None:
            sandbox = portal.call(pool.take(SPEC), timeout_s=10)
            said.append(portal.call(sandbox.exec(["touch", name]), timeout_s=5).stdout.data)
            portal.call(pool.give_back(sandbox), timeout_s=5)

        threads = [threading.Thread(target=verify, args=(str(name),)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        portal.call(pool.aclose(), timeout_s=5)
        assert sorted(said) == [str(name).encode() for name in range(8)]
        assert nothing_left(backend, leases)
