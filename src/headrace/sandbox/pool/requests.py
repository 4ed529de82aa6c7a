"""One request of a pool, from its place in the queue to a sandbox: deadline, tries, backends.

Knows the queue and how a sandbox begins; what becomes of it afterwards is the pool's. Known by
the pool only.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

from headrace.errors import HeadraceError
from headrace.sandbox.pool.options import PoolOptions
from headrace.sandbox.pool.roster import Member, Roster, Ticket
from headrace.sandbox.pool.starter import Starter
from headrace.sandbox.pool.stats import Recorder
from headrace.sandbox.spec import Backend, SandboxFailure, SandboxRefused

__all__ = ["Requests"]


class Requests:
    """How the requests of one pool are served. `must_be_open` raises once that is over.

    `failed` counts those that infrastructure made fail.
    """

    def __init__(
        self,
        roster: Roster,
        starter: Starter,
        options: PoolOptions,
        recorder: Recorder,
        must_be_open: Callable[[], None],
    ) -> None:
        self.failed = 0
        self._roster = roster
        self._starter = starter
        self._options = options
        self._recorder = recorder
        self._must_be_open = must_be_open
        self._random = random.Random()

    @asynccontextmanager
    async def waiting(self, ticket: Ticket, timeout_s: float | None) -> AsyncGenerator[None]:
        """The deadline of a request (None: `wait_s`): SandboxFailure naming what it waited for."""
        seconds = self._options.wait_s if timeout_s is None else timeout_s
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            self.failed += 1
            raise SandboxFailure(
                f"no sandbox within {seconds:g} s: waited for {self._roster.why(ticket)}",
                where=ticket.spec.image,
                hint="a longer timeout, or a pool that holds or starts more",
            ) from error
        except SandboxFailure:
            self.failed += 1
            raise

    async def obtain(self, ticket: Ticket) -> Member:
        """An idle sandbox or a started one, retried and on other backends as allowed."""
        plan = await self._starter.plan(ticket.spec)
        failures: Counter[str] = Counter()
        while True:
            self._must_be_open()
            (member,) = await self.granted(ticket)
            if member.raw is not None:
                return member
            chosen = self._starter.admit(plan, ticket.spec.image)
            if chosen is None:
                self._roster.drop(member)
                self._hold(ticket, plan)
                continue
            backend, attempt = chosen
            ticket.waits_for = f"{backend.name} to start it"
            try:
                await self._starter.begin(member, backend, attempt)
            except (SandboxFailure, SandboxRefused) as failure:
                self._roster.drop(member)
                failures[backend.name] += 1
                if isinstance(failure, SandboxRefused) or (
                    failures[backend.name] > self._options.retries
                ):
                    plan.remove(backend)
                if not plan:
                    raise
                self._recorder.count(backend.name, "retried")
                self._back_off(ticket, failures.total(), failure)
            except BaseException:
                self._roster.drop(member)
                raise
            else:
                return member

    async def granted(self, ticket: Ticket) -> list[Member]:
        """What the queue gives for a ticket: idle sandboxes, or room for new ones."""
        ticket.waits_for = ticket.waits_for if ticket.held_until else ""
        self._roster.join(ticket)
        try:
            if not ticket.granted.done():
                await ticket.granted
        except BaseException:
            self._roster.leave(ticket)
            raise
        return ticket.granted.result()

    def _hold(self, ticket: Ticket, plan: Sequence[Backend]) -> None:
        """Every breaker is open: nothing is started for it until one could close."""
        names = ", ".join(backend.name for backend in plan)
        ticket.waits_for = f"the breaker of {names} to let a start of {ticket.spec.image!r} through"
        self._not_before(ticket, self._starter.retry_in(plan, ticket.spec.image) + 0.001)

    def _back_off(self, ticket: Ticket, tries: int, failure: HeadraceError) -> None:
        base = min(self._options.backoff_s * 2 ** (tries - 1), self._options.backoff_most_s)
        ticket.waits_for = f"another try after: {failure}"
        self._not_before(ticket, base * self._random.uniform(0.5, 1.0))

    def _not_before(self, ticket: Ticket, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        ticket.held_until = loop.time() + seconds
        loop.call_at(ticket.held_until + 1e-4, self._roster.serve)
