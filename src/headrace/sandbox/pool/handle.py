"""What a pool lends: a sandbox that is the borrower's until it is given back or expires.

The handle passes every call on, tells the pool when the sandbox fails, and is worthless from
the moment that the lease ends, whatever becomes of the sandbox behind it. Knows the pool as a
`Lender` only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from headrace.errors import UsageError
from headrace.sandbox.spec import (
    ExecLimits,
    Outcome,
    Result,
    Sandbox,
    SandboxFailure,
    SandboxGone,
    SandboxSpec,
    SnapshotRef,
    User,
)

__all__ = ["Lender", "PooledSandbox"]

_T = TypeVar("_T")
_LIMITS = ExecLimits()


class Lender(Protocol):
    """What a handle needs of its pool."""

    def broke(self, handle: PooledSandbox, why: str) -> None:
        """The sandbox failed: it is not lent again."""
        ...

    async def fork(self, sandbox: Sandbox, count: int) -> list[Sandbox]:
        """Children that the pool owns."""
        ...

    async def discard(self, handle: PooledSandbox) -> None:
        """Close the sandbox, and wait for that."""
        ...


class PooledSandbox:
    """A borrowed sandbox; see `Sandbox` for the calls. Stale after it is given back."""

    def __init__(self, lender: Lender, raw: Sandbox) -> None:
        self._lender = lender
        self._raw = raw
        self._ended = ""

    @property
    def id(self) -> str:
        return self._raw.id

    @property
    def epoch(self) -> int:
        return self._raw.epoch

    @property
    def spec(self) -> SandboxSpec:
        return self._raw.spec

    def end(self, why: str) -> None:
        """The lease is over: every further call raises SandboxGone with that reason."""
        self._ended = self._ended or why

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: User = "agent",
        limits: ExecLimits = _LIMITS,
    ) -> Result:
        result = await self._do(
            lambda raw: raw.exec(
                argv,
                stdin=stdin,
                timeout_s=timeout_s,
                env=env,
                cwd=cwd,
                user=user,
                limits=limits,
            )
        )
        if result.outcome is Outcome.CRASH:
            self._lender.broke(self, "it died under a command")
        return result

    async def put(self, archive: Path | bytes, to: str = "", *, user: User = "agent") -> None:
        await self._do(lambda raw: raw.put(archive, to, user=user))

    async def put_file(self, path: str, data: bytes, *, user: User = "agent") -> None:
        await self._do(lambda raw: raw.put_file(path, data, user=user))

    async def get(self, path: str, into: Path, *, limit_mb: int = 1024) -> None:
        await self._do(lambda raw: raw.get(path, into, limit_mb=limit_mb))

    async def get_file(self, path: str, *, limit_mb: int = 16) -> bytes:
        return await self._do(lambda raw: raw.get_file(path, limit_mb=limit_mb))

    async def snapshot(self) -> SnapshotRef:
        return await self._do(lambda raw: raw.snapshot())

    async def restore(self, ref: SnapshotRef) -> None:
        await self._do(lambda raw: raw.restore(ref))

    async def fork(self, count: int, *, ids: Sequence[str] | None = None) -> list[Sandbox]:
        """`count` further sandboxes with this file tree, borrowed from the same pool: give each
        of them back. The pool chooses the ids (UsageError for `ids`)."""
        if ids is not None:
            raise UsageError("the pool chooses the ids of its sandboxes", where=self.id)
        return await self._lender.fork(self, count)

    async def health(self, *, timeout_s: float = 5.0) -> None:
        await self._do(lambda raw: raw.health(timeout_s=timeout_s))

    async def close(self) -> None:
        """Give it back, not to be used again. Idempotent."""
        await self._lender.discard(self)

    async def _do(self, call: Callable[[Sandbox], Awaitable[_T]]) -> _T:
        if self._ended:
            raise self._gone()
        try:
            return await call(self._raw)
        except SandboxFailure as error:
            self._lender.broke(self, str(error))
            if self._ended:
                raise self._gone() from error
            raise

    def _gone(self) -> SandboxGone:
        return SandboxGone(f"the sandbox is not lent any more: {self._ended}", where=self.id)
