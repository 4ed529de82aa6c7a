"""The pool under random histories: caps hold, nobody is forgotten, nothing is left."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sandbox.pool import Pool
from headrace.sandbox.pool.breaker import BreakerPolicy
from headrace.sandbox.spec import Sandbox, SandboxFailure, SandboxGone
from sandbox_support import OTHER, QUICK, SPEC, FakeBackend, opened, settled

PATIENT = replace(
    QUICK, retries=10**6, breaker=BreakerPolicy(failures=10**6, window=10**6), backoff_s=1e-5
)
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["take", "take other", "give back", "break", "fork", "cancel", "fail"]),
        st.integers(0, 7),
        st.integers(0, 4),
    ),
    max_size=40,
)


@dataclass(slots=True)
class History:
    """Borrowers that take, fork, break, give back and change their minds."""

    pool: Pool
    backend: FakeBackend
    takes: list[asyncio.Task[Sandbox]] = field(default_factory=list[asyncio.Task[Sandbox]])
    forks: list[asyncio.Task[list[Sandbox]]] = field(
        default_factory=list[asyncio.Task[list[Sandbox]]]
    )

    def taken(self) -> list[Sandbox]:
        ended = [each for each in self.takes if each.done() and not each.cancelled()]
        return [each.result() for each in ended]

    def forked(self) -> list[Sandbox]:
        ended = [each for each in self.forks if each.done() and each.exception() is None]
        return [sandbox for each in ended for sandbox in each.result()]

    async def do(self, what: str, which: int) -> None:
        held = self.taken()
        if what == "take":
            self.takes.append(asyncio.create_task(self.pool.take(SPEC)))
        elif what == "take other":
            self.takes.append(asyncio.create_task(self.pool.take(OTHER)))
        elif what == "fail":
            self.backend.fail("create", SandboxFailure("no space left on device"))
        elif what == "cancel" and self.takes:
            self.takes[which % len(self.takes)].cancel()
        elif what == "fork" and held:
            parent = held[which % len(held)]
            self.forks.append(asyncio.create_task(self.pool.fork(parent, 2)))
        elif held:
            await self.pool.give_back(held[which % len(held)], broken=what == "break")

    async def turn(self) -> None:
        await asyncio.sleep(0)
        assert len(self.backend.exists) <= QUICK.most
        assert self.pool.stats().starting <= QUICK.starting + 1  # a fork starts two at once

    async def end(self) -> None:
        """Everybody who waits is served as long as everybody gives back."""
        async with asyncio.timeout(10):
            while not all(each.done() for each in (*self.takes, *self.forks)):
                for sandbox in (*self.taken(), *self.forked()):
                    await self.pool.give_back(sandbox)
                await self.turn()
        for sandbox in (*self.taken(), *self.forked()):
            await self.pool.give_back(sandbox)
        await settled(self.pool)
        assert self.pool.stats().backends["fake"].in_use == 0
        assert all(isinstance(each.exception(), SandboxGone | None) for each in self.forks)


@settings(max_examples=40, deadline=None)
@given(OPERATIONS)
def test_in_any_history_the_caps_hold_nobody_is_forgotten_and_nothing_is_left(
    operations: list[tuple[str, int, int]],
) -> None:
    async def work() -> None:
        backend = FakeBackend()
        with tempfile.TemporaryDirectory() as directory:
            async with opened(Path(directory), backend, options=PATIENT) as pool:
                history = History(pool, backend)
                for what, which, turns in operations:
                    await history.do(what, which)
                    for _ in range(turns):
                        await history.turn()
                await history.end()

    asyncio.run(work())
