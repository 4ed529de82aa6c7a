"""Warm sandboxes under leases: lent one by one, closed or made new when they come back.

`acquire` is what callers use. Behind it: a queue in which nobody overtakes who waits for room
(`roster`), backends in order of preference (`requests`) with a breaker each, a row in a file for
everything that exists or may (`starter`), and one task that renews the rows, ends what expired,
keeps what is warm warm and lets what idles go. Refusal rather than degradation: a sandbox of a
class weaker than that of the first choice is never given in its place.

One event loop; callers without one use `portal`. Known by environments, callers of verifiers
and the command line; knows backends by protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from headrace.errors import HeadraceError, StorageError, UsageError
from headrace.sandbox.pool.background import Background
from headrace.sandbox.pool.handle import PooledSandbox
from headrace.sandbox.pool.leases import Leases, State
from headrace.sandbox.pool.options import PoolOptions
from headrace.sandbox.pool.reaper import reap
from headrace.sandbox.pool.requests import Requests
from headrace.sandbox.pool.roster import Member, Roster
from headrace.sandbox.pool.starter import Starter, within
from headrace.sandbox.pool.stats import PoolStats, Recorder
from headrace.sandbox.spec import (
    Backend,
    Sandbox,
    SandboxFailure,
    SandboxGone,
    SandboxSpec,
)

__all__ = ["Pool", "PoolOptions"]

_REAP_S = 10.0
_LAST_S = 1.0


class Pool:
    """Sandboxes of `backends` (best first), which the pool closes with itself.

    >>> from headrace.sandbox import registry
    >>> async def answer() -> bytes:
    ...     async with Pool(registry.backends(), Leases()) as pool:
    ...         async with pool.acquire(SandboxSpec()) as sandbox:
    ...             return (await sandbox.exec(["echo", "42"])).stdout.data
    >>> asyncio.run(answer())  # doctest: +SKIP
    b'42\\n'
    """

    def __init__(
        self, backends: Sequence[Backend], leases: Leases, options: PoolOptions | None = None
    ) -> None:
        self.options = options or PoolOptions()
        self._leases = leases
        self._recorder = Recorder()
        self._starter = Starter(backends, leases, self.options, self._recorder)
        self._roster = Roster(
            self.options,
            evict=lambda member: self._retire(member, "its room was needed"),
            clock=lambda: asyncio.get_running_loop().time(),
        )
        self._requests = Requests(
            self._roster, self._starter, self.options, self._recorder, self._must_be_open
        )
        self._fill_after = 0.0
        self._reap_after = 0.0
        self._background = Background(self._fill)
        self._fills: set[asyncio.Task[None]] = set()
        self._tender: asyncio.Task[None] | None = None
        self._open = False
        self._unclosed: dict[str, str] = {}

    async def __aenter__(self) -> Pool:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Remove what dead owners left, and begin to lend. StorageError without leases."""
        await self._reap()
        self._open = True
        self._tender = self._background.spawn(self._tend_on())

    # --- lending ---------------------------------------------------------------------------

    @asynccontextmanager
    async def acquire(
        self, spec: SandboxSpec, *, timeout_s: float | None = None
    ) -> AsyncGenerator[Sandbox]:
        """A sandbox for the block; see `take`."""
        sandbox = await self.take(spec, timeout_s=timeout_s)
        try:
            yield sandbox
        finally:
            await self.give_back(sandbox)

    async def take(self, spec: SandboxSpec, *, timeout_s: float | None = None) -> Sandbox:
        """A sandbox of that kind, for the caller alone, until it is given back or expires.

        Raises SandboxRefused if no backend gives what is asked; SandboxFailure if none could be
        started, or none was free within `timeout_s` (else `wait_s`), naming what was waited for.
        Cancelled, it leaves nothing behind.
        """
        self._must_be_open()
        self._roster.used[spec] = self._leases.clock()
        ticket = self._roster.ticket(spec)
        async with self._requests.waiting(ticket, timeout_s):
            while True:
                member = await self._requests.obtain(ticket)
                if await self._fit(member) and (handle := self._lend(member)) is not None:
                    self._fill_soon()
                    return handle

    async def give_back(self, sandbox: Sandbox, *, broken: bool = False) -> None:
        """The end of a loan; the handle is stale. Does not wait: what follows, making it new or
        closing it, goes on in the background. Nothing happens for what is not lent (any more).
        """
        member = self._borrowed(sandbox)
        if member is None:
            return
        if broken:
            member.broken = member.broken or "it was given back as broken"
        member.renewing = not member.broken
        self._end_loan(member, "it was given back")
        self._background.spawn(self._settle(member))

    async def warm(self, spec: SandboxSpec, count: int, *, timeout_s: float | None = None) -> None:
        """Keep `count` idle sandboxes of that kind from now on, and wait until they are there.

        Raises as `take`; UsageError for more than the pool holds.
        """
        self._must_be_open()
        if not 0 <= count <= self.options.most:
            raise UsageError(f"{count} warm sandboxes of {self.options.most} at most")
        self._roster.targets[spec] = count
        lacking = count - len(self._roster.idle.get(spec, ()))
        ended = await asyncio.gather(
            *(self._warm_one(spec, timeout_s) for _ in range(lacking)), return_exceptions=True
        )
        for end in ended:
            if isinstance(end, BaseException):
                raise end

    async def fork(
        self, sandbox: Sandbox, count: int, *, timeout_s: float | None = None
    ) -> list[Sandbox]:
        """`count` further sandboxes with the file tree of a borrowed one; give each back.

        All or none. Raises as `take`, and SandboxGone if `sandbox` is not lent any more.
        """
        self._must_be_open()
        parent = self._borrowed(sandbox)
        if parent is None:
            raise SandboxGone("it is not lent any more", where=sandbox.id)
        if not 1 <= count < self.options.most:
            raise UsageError(f"{count} forks in a pool of {self.options.most}", where=sandbox.id)
        backend = parent.backend
        if backend is not None and backend.capabilities().fork == "native":
            return await self._fork_into_warm(sandbox, backend, count, timeout_s)
        ticket = self._roster.ticket(parent.spec, count=count, fresh=True)
        async with self._requests.waiting(ticket, timeout_s):
            children = await self._requests.granted(ticket)
            ticket.waits_for = f"a fork of {sandbox.id}"
            try:
                await self._starter.fork(parent, children)
            except BaseException as error:
                if isinstance(error, SandboxFailure):
                    self._starter.crashed(parent, str(error))
                for child in children:
                    self._roster.drop(child)
                raise
        return self._lend_all(children)

    async def _fork_into_warm(
        self, parent: Sandbox, backend: Backend, count: int, timeout_s: float | None
    ) -> list[Sandbox]:
        """Where a tree can be put into any sandbox of its kind, warm ones become the forks."""
        ref = await parent.snapshot()
        children: list[Sandbox] = []
        try:
            for _ in range(count):
                child = await self.take(parent.spec, timeout_s=timeout_s)
                children.append(child)
                member = self._borrowed(child)
                if member is None or member.backend is not backend:
                    raise SandboxFailure(f"only {backend.name} has the tree", where=parent.id)
            await asyncio.gather(*(child.restore(ref) for child in children))
        except BaseException:
            for child in children:
                await self.give_back(child, broken=True)
            raise
        return children

    # --- what a handle tells ---------------------------------------------------------------

    def broke(self, handle: PooledSandbox, why: str) -> None:
        """The sandbox of that handle failed: it is not lent again."""
        member = self._borrowed(handle)
        if member is not None:
            self._starter.crashed(member, why)

    async def discard(self, handle: PooledSandbox) -> None:
        """Close the sandbox of that handle, and wait for that."""
        member = self._borrowed(handle)
        if member is not None:
            self._end_loan(member, "it was closed")
            await asyncio.shield(self._background.spawn(self._close(member)))

    # --- lending what was got --------------------------------------------------------------

    async def _fit(self, member: Member) -> bool:
        """Whether an idle sandbox is still good; one that is not is closed."""
        if member.state is State.STARTING:
            return True
        if member.state is not State.WARM:
            return False
        good = False
        try:
            good = await self._starter.healthy(member)
        finally:
            if not good:
                self._retire(member, "it did not answer")
        return good

    def _lend(self, member: Member) -> PooledSandbox | None:
        """The borrower's handle; None if the sandbox was taken away meanwhile."""
        if member.raw is None or not self._open or member.state is State.CLOSING:
            self._retire(member, "the pool was closed")
            return None
        lent = False
        try:
            self._starter.lend(member)
            lent = True
        except SandboxGone:
            return None
        finally:
            if not lent:
                self._retire(member, "its lease was lost")
        self._roster.move(member, State.LEASED)
        member.handle = PooledSandbox(self, member.raw)
        self._roster.serve()
        return member.handle

    def _lend_all(self, children: Sequence[Member]) -> list[Sandbox]:
        handles: list[Sandbox] = []
        try:
            for child in children:
                handle = self._lend(child)
                if handle is None:
                    raise SandboxGone("a fork was taken away as it began", where=child.id)
                handles.append(handle)
        except HeadraceError:
            for child in children:
                self._retire(child, "a sibling could not be lent")
            raise
        return handles

    async def _warm_one(self, spec: SandboxSpec, timeout_s: float | None) -> None:
        ticket = self._roster.ticket(spec, fresh=True)
        async with self._requests.waiting(ticket, timeout_s):
            self._shelve(await self._requests.obtain(ticket))

    # --- what became of it -----------------------------------------------------------------

    def _borrowed(self, sandbox: Sandbox) -> Member | None:
        member = self._roster.members.get(sandbox.id)
        return member if member is not None and member.handle is sandbox else None

    def _end_loan(self, member: Member, why: str) -> None:
        if member.handle is not None:
            member.handle.end(why)
        member.handle = None
        self._roster.move(member, State.CLOSING)

    def _retire(self, member: Member, why: str) -> None:
        """Close it in the background, whatever it does now."""
        if member.state is State.CLOSING or member.raw is None:
            return
        self._roster.unshelve(member)
        self._end_loan(member, why)
        self._background.spawn(self._close(member))

    async def _settle(self, member: Member) -> None:
        renewed = False
        try:
            renewed = self._open and await self._starter.renewed(member) and self._open
        finally:
            member.renewing = False
            if renewed:
                self._roster.shelve(member, self._leases.clock())
            else:
                await self._close(member)

    async def _close(self, member: Member) -> None:
        self._unclosed[member.id] = "it did not end in time"
        try:
            await self._starter.close(member)
            del self._unclosed[member.id]
        except SandboxFailure as error:
            self._unclosed[member.id] = error.what
        finally:
            self._roster.drop(member)

    def _shelve(self, member: Member) -> None:
        """A sandbox that was just started waits for a borrower."""
        warm = False
        try:
            if self._open:
                self._starter.warm(member)
                warm = True
        finally:
            if not warm:
                self._retire(member, "it could not be kept warm")
        if warm:
            self._roster.shelve(member, self._leases.clock())

    # --- upkeep ----------------------------------------------------------------------------

    async def tend(self) -> None:
        """One round: a sign of life for the leases, an end to what expired or was taken away,
        warm ones up to their number, idle ones down to it, and orphans of dead owners."""
        now = self._leases.clock()
        try:
            held = self._leases.renew()
        except StorageError as error:
            self._background.not_written(error)
            held = None
        for member in list(self._roster.members.values()):
            if member.lease is None or member.state is State.CLOSING:
                continue
            if now >= member.expires and member.raw is not None:
                self._starter.expired(member)
                self._retire(member, f"its lifetime of {member.spec.lifetime_s:g} s is over")
            elif held is not None and held.get(member.id) != member.lease.epoch:
                self._retire(member, "its lease was taken away: its owner was taken for dead")
        for member in self._roster.surplus(now):
            self._retire(member, "it idled")
        self._roster.serve()
        self._fill()
        if asyncio.get_running_loop().time() >= self._reap_after:
            await self._reap()

    async def _tend_on(self) -> None:
        while True:
            ends = self._roster.next_end - self._leases.clock()
            await asyncio.sleep(max(0.01, min(self.options.beat_s, ends)))
            try:
                await self.tend()
            except StorageError as error:
                self._background.not_written(error)

    def _fill_soon(self) -> None:
        """Let the borrower begin first: a start takes the machine from it."""
        asyncio.get_running_loop().call_later(self.options.calm_s, self._fill)

    def _fill(self) -> None:
        """Start what is lacking of the warm ones, as far as nobody is kept waiting by it."""
        if not self._open or asyncio.get_running_loop().time() < self._fill_after:
            return
        for member in self._roster.stock(self._leases.clock()):
            task = self._background.spawn(
                self._fill_one(member), done=functools.partial(self._drop_unstarted, member)
            )
            self._fills.add(task)
            task.add_done_callback(self._fills.discard)

    async def _fill_one(self, member: Member) -> None:
        if await self._starter.fill(member):
            self._shelve(member)
        else:
            self._fill_after = asyncio.get_running_loop().time() + self.options.beat_s

    def _drop_unstarted(self, member: Member) -> None:
        if member.raw is None:
            self._roster.drop(member)

    async def _reap(self) -> None:
        self._reap_after = asyncio.get_running_loop().time() + self.options.reap_s
        backends, within_s = self._starter.backends, _REAP_S
        done = await asyncio.to_thread(reap, backends, self._leases, within_s=within_s)
        for id in done.gone:
            self._unclosed.pop(id, None)

    def stats(self) -> PoolStats:
        """How it is now, and what happened since it was opened."""
        breakers = self._starter.breakers.items()
        return PoolStats(
            backends={
                backend.name: self._recorder.snapshot(backend.name, self._roster.states(backend))
                for backend in self._starter.backends
            },
            breakers={
                f"{name}/{image}": breaker.state.value for (name, image), breaker in breakers
            },
            waiting=self._roster.waiting,
            starting=self._roster.starting,
            infra_failed=self._requests.failed,
            lease_errors=self._background.storage_errors,
            lease_error=self._background.storage_error,
        )

    # --- the end ---------------------------------------------------------------------------

    def _must_be_open(self) -> None:
        if not self._open:
            raise SandboxGone("the pool is not open")

    async def aclose(self) -> None:
        """Close everything at once, in about `close_s` seconds for the sandboxes and as many
        for the backends. Idempotent.

        Raises SandboxFailure naming what may still be there; that stays in the leases.
        """
        if self._tender is None:
            return
        tender, self._tender, self._open = self._tender, None, False
        tender.cancel()
        for task in self._fills:
            task.cancel()
        self._roster.refuse(SandboxGone("the pool was closed"))
        for member in list(self._roster.members.values()):
            self._retire(member, "the pool was closed")
        await self._emptied()
        self._unclosed.update(await self._starter.end())
        if self._background.bugs:
            raise self._background.bugs[0]
        if self._unclosed:
            raise SandboxFailure(
                "not closed: " + "; ".join(f"{id}: {why}" for id, why in self._unclosed.items()),
                where=str(self._leases.path),
                hint="headrace sandbox reap",
            )

    async def _emptied(self) -> None:
        with contextlib.suppress(SandboxFailure):
            async with within(self.options.close_s, "the end of the sandboxes"):
                await self._roster.emptied()
        await self._background.end(within_s=_LAST_S)
        for member in self._roster.members.values():
            self._unclosed[member.id] = "it did not end in time"
            if member.lease is not None:
                self._leases.release(member.lease, "it did not end in time")
