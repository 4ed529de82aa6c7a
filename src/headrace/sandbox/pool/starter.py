"""How one sandbox of a pool begins, is made new, multiplies and ends, with its lease.

The row is written before anything exists and removed after all of it is gone; what cannot be
shown to be gone keeps its row, for the reaper. Knows backends, leases and breakers; knows
neither queue nor borrowers (those are the pool's).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from headrace.errors import HeadraceError, StorageError
from headrace.sandbox.pool.breaker import Attempt, Breaker
from headrace.sandbox.pool.leases import Lease, Leases, State
from headrace.sandbox.pool.options import PoolOptions
from headrace.sandbox.pool.roster import Member
from headrace.sandbox.pool.stats import Recorder
from headrace.sandbox.registry import fitting, spec_digest
from headrace.sandbox.spec import (
    Backend,
    Sandbox,
    SandboxFailure,
    SandboxGone,
    SandboxRefused,
    SandboxSpec,
)

__all__ = ["Starter", "within"]


class _TooSlow(SandboxFailure):
    """Not done in time; what it left behind is not known."""


@asynccontextmanager
async def within(seconds: float, what: str) -> AsyncGenerator[None]:
    """SandboxFailure naming `what` if the block is not done in time; the block is cancelled."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise _TooSlow(f"{what} was not done within {seconds:g} s") from error


class Starter:
    """The mechanics of a pool, one member at a time."""

    def __init__(
        self, backends: Sequence[Backend], leases: Leases, options: PoolOptions, recorder: Recorder
    ) -> None:
        self.backends = tuple(backends)
        self.breakers: dict[tuple[str, str], Breaker] = {}
        self._leases = leases
        self._options = options
        self._recorder = recorder
        self._plans: dict[SandboxSpec, tuple[Backend, ...]] = {}

    async def plan(self, spec: SandboxSpec) -> list[Backend]:
        """The backends to try, in order: one, or with `fallback` those at least as strong too.

        Raises SandboxRefused with what each backend lacks.
        """
        if spec not in self._plans:
            choice = await asyncio.to_thread(fitting, self.backends, spec)
            best = choice.best(spec)
            least = best.capabilities().isolation
            others = choice.backends[1:] if self._options.fallback else ()
            equals = [each for each in others if each.capabilities().isolation >= least]
            self._plans[spec] = (best, *equals)
        return list(self._plans[spec])

    def breaker(self, backend: Backend, image: str) -> Breaker:
        """The breaker of starts of that image there."""
        key = (backend.name, image)
        if key not in self.breakers:
            self.breakers[key] = Breaker(self._options.breaker)
        return self.breakers[key]

    def admit(self, plan: Sequence[Backend], image: str) -> tuple[Backend, Attempt] | None:
        """The first backend whose breaker gives leave, and that leave."""
        for backend in plan:
            attempt = self.breaker(backend, image).admit()
            if attempt is not None:
                return backend, attempt
        return None

    def retry_in(self, plan: Sequence[Backend], image: str) -> float:
        """Seconds until a breaker could give leave."""
        return min(self.breaker(backend, image).retry_in for backend in plan)

    async def begin(self, member: Member, backend: Backend, attempt: Attempt) -> None:
        """Make the sandbox of a member. If it raises, nothing is left but perhaps a row for the
        reaper."""
        member.backend = backend
        began = time.monotonic()
        try:
            self._record([member], backend)
            async with within(self._options.start_s, f"the start of a sandbox by {backend.name}"):
                member.raw = await backend.create(member.spec, id=member.id)
        except BaseException as error:
            self._settle_attempt(attempt, backend, error)
            self._undo([member], error)
            raise
        attempt.succeeded()
        self._recorder.started(backend.name, time.monotonic() - began)
        member.expires = self._leases.clock() + member.spec.lifetime_s

    async def fill(self, member: Member) -> bool:
        """One try to start it for nobody in particular; whoever asks for one meets the reason."""
        try:
            chosen = self.admit(await self.plan(member.spec), member.spec.image)
            if chosen is not None:
                await self.begin(member, *chosen)
        except (SandboxFailure, SandboxRefused):
            return False
        return chosen is not None

    async def healthy(self, member: Member) -> bool:
        """Whether an idle sandbox still answers; not asked again within `check_after_s`."""
        raw, backend = _exists(member)
        if self._leases.clock() < member.idle_since + self._options.check_after_s:
            return True
        try:
            async with within(self._options.start_s, f"a health check by {backend.name}"):
                await raw.health()
        except SandboxFailure as error:
            self.crashed(member, str(error))
            return False
        return True

    async def fork(self, parent: Member, children: Sequence[Member]) -> None:
        """Make the sandboxes of `children` from the tree of `parent`, all or none."""
        raw, backend = _exists(parent)
        for child in children:
            child.backend, child.once = backend, True
        try:
            self._record(children, backend)
            async with within(self._options.start_s, f"a fork by {backend.name}"):
                made = await raw.fork(len(children), ids=[child.id for child in children])
        except BaseException as error:
            self._undo(children, error)
            raise
        for child, sandbox in zip(children, made, strict=True):
            child.raw = sandbox
            child.expires = self._leases.clock() + child.spec.lifetime_s

    async def renewed(self, member: Member) -> bool:
        """Make it as new under the next epoch, with a warm lease; False if it must be closed."""
        raw, backend = _exists(member)
        left = member.expires - self._leases.clock()
        if member.broken or member.once or member.used > self._options.reuses:
            return False
        if left < member.spec.lifetime_s / 2 or not backend.capabilities().recycle:
            return False
        try:
            async with within(self._options.close_s, f"making a sandbox new by {backend.name}"):
                fresh = await backend.recycle(raw, epoch=raw.epoch + 1)
        except SandboxFailure as error:
            self.crashed(member, str(error))
            return False
        if fresh is None:
            return False
        member.raw = fresh
        try:
            self.warm(member)
        except SandboxGone:
            return False
        self._recorder.count(backend.name, "recycled")
        self.breaker(backend, member.spec.image).observe(ok=True)
        return True

    def warm(self, member: Member) -> None:
        """Its lease says that it waits for a borrower. SandboxGone if it is not held."""
        member.lease = self._leases.advance(_held(member), State.WARM, expires=member.expires)

    def lend(self, member: Member) -> None:
        """Its lease says that it is in use. SandboxGone if it is not held."""
        member.lease = self._leases.take(_held(member), expires=member.expires)
        member.used += 1

    def crashed(self, member: Member, why: str) -> None:
        """It failed while it existed: counted once, never lent again."""
        if not member.broken and member.backend is not None:
            self._recorder.count(member.backend.name, "crashed")
            self.breaker(member.backend, member.spec.image).observe(ok=False)
        member.broken = member.broken or why

    def expired(self, member: Member) -> None:
        """Its hard end has come."""
        if member.backend is not None:
            self._recorder.count(member.backend.name, "expired")

    async def close(self, member: Member) -> None:
        """End it, and forget it once it is gone; SandboxFailure if it may still be there, with
        its row kept for the reaper."""
        raw, backend = _exists(member)
        why = "its end was cancelled"
        try:
            await self._close(member, raw, f"the end of sandbox {member.id} by {backend.name}")
            why = ""
        except (SandboxFailure, OSError) as error:
            why = str(error) or repr(error)
            raise SandboxFailure(why, where=member.id) from error
        finally:
            if why:
                self._recorder.count(backend.name, "unclosed")
                self._leases.release(_held(member), why)
        self._leases.forget(_held(member))

    async def end(self) -> dict[str, str]:
        """Close the backends, all at once; those that failed, and why."""
        failed: dict[str, str] = {}

        async def close(backend: Backend) -> None:
            try:
                async with within(self._options.close_s, f"the end of {backend.name}"):
                    await backend.aclose()
            except (HeadraceError, OSError) as error:
                failed[f"backend {backend.name}"] = str(error) or repr(error)

        await asyncio.gather(*(close(backend) for backend in self.backends))
        return failed

    async def _close(self, member: Member, raw: Sandbox, what: str) -> None:
        expires = self._leases.clock() + self._options.close_s
        # A row that another has claimed, or a disk that is full, is no reason to leave it open.
        with contextlib.suppress(SandboxGone, StorageError):
            member.lease = self._leases.advance(_held(member), State.CLOSING, expires=expires)
        async with within(self._options.close_s, what):
            await raw.close()

    def _record(self, members: Sequence[Member], backend: Backend) -> None:
        rows = self._leases.record(
            [member.id for member in members],
            backend=backend.name,
            spec=spec_digest(members[0].spec),
            expires=self._leases.clock() + self._options.start_s,
            details={"image": members[0].spec.image},
        )
        for member, row in zip(members, rows, strict=True):
            member.lease = row

    def _undo(self, members: Sequence[Member], error: BaseException) -> None:
        """After a start that failed: a backend that failed, refused or was cancelled left
        nothing, which is its contract; after anything else the reaper has a look."""
        clean = isinstance(error, (SandboxFailure, SandboxRefused, asyncio.CancelledError))
        for member in members:
            lease, member.lease = member.lease, None
            if lease is None:
                continue
            if clean and not isinstance(error, _TooSlow):
                self._leases.forget(lease)
            else:
                self._leases.release(lease, str(error) or repr(error))

    def _settle_attempt(self, attempt: Attempt, backend: Backend, error: BaseException) -> None:
        if isinstance(error, (SandboxRefused, StorageError, asyncio.CancelledError)):
            attempt.given_up()
        else:
            attempt.failed()
            self._recorder.count(backend.name, "failed")


def _exists(member: Member) -> tuple[Sandbox, Backend]:
    assert member.raw is not None, "it was started"
    assert member.backend is not None, "it was started"
    return member.raw, member.backend


def _held(member: Member) -> Lease:
    assert member.lease is not None, "it was started"
    return member.lease
