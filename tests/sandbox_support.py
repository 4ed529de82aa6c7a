"""What the sandbox layer's tests share: a backend in memory whose failures are scripted."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.sandbox.pool import Pool
from headrace.sandbox.pool.leases import Leases, State
from headrace.sandbox.pool.options import PoolOptions
from headrace.sandbox.spec import (
    Capabilities,
    Capture,
    ExecLimits,
    Isolation,
    Outcome,
    Result,
    Sandbox,
    SandboxFailure,
    SandboxGone,
    SandboxSpec,
    SnapshotRef,
    Usage,
    User,
)

SPEC = SandboxSpec()
ALL_LIMITS = frozenset({"memory_mb", "disk_mb", "cpus", "processes", "open_files"})
LIMITS = ExecLimits()
OTHER = replace(SPEC, workdir="/elsewhere")
QUICK = PoolOptions(
    calm_s=0.0,
    most=4,
    starting=2,
    wait_s=5,
    backoff_s=0.001,
    backoff_most_s=0.002,
    close_s=2,
    beat_s=60,
)


@dataclass(slots=True)
class Clock:
    """Seconds of the epoch that pass when told to."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


async def nothing(_: str) -> None:
    """No pause."""


@dataclass(slots=True, eq=False)
class FakeBackend:
    """A machine in memory. `exists` is what a look at the machine would find, by id.

    `failures` holds, by verb ("create", "recycle", "health", "exec", "fork", "close"), what the
    next calls raise; None lets one pass. Every verb yields `steps` times before and after it
    takes effect, and then awaits `pause(verb)`.
    """

    name: str = "fake"
    isolation: Isolation = Isolation.NAMESPACE
    recycles: bool = True
    unavailable: str | None = None
    steps: int = 1
    pause: Callable[[str], Awaitable[None]] = nothing
    exists: dict[str, FakeSandbox] = field(default_factory=dict[str, "FakeSandbox"])
    failures: dict[str, deque[BaseException | None]] = field(
        default_factory=dict[str, "deque[BaseException | None]"]
    )
    calls: Counter[str] = field(default_factory=Counter[str])
    unreapable: set[str] = field(default_factory=set[str])
    outcome: Outcome = Outcome.RESULT
    open: bool = True

    def available(self) -> str | None:
        return self.unavailable

    def capabilities(self) -> Capabilities:
        return Capabilities(
            isolation=self.isolation,
            limits=ALL_LIMITS,
            networks=frozenset({"none"}),
            recycle=self.recycles,
        )

    def fail(self, verb: str, *errors: BaseException | None) -> None:
        self.failures.setdefault(verb, deque()).extend(errors)

    async def step(self, verb: str) -> None:
        for _ in range(self.steps):
            await asyncio.sleep(0)

    async def effect(self, verb: str) -> None:
        self.calls[verb] += 1
        await self.step(verb)
        await self.pause(verb)
        planned = self.failures.get(verb)
        error = planned.popleft() if planned else None
        if error is not None:
            raise error

    async def create(self, spec: SandboxSpec, *, id: str) -> Sandbox:
        assert id not in self.exists
        box = FakeSandbox(self, spec, id, 0)
        self.exists[id] = box
        try:
            await self.effect("create")
        except BaseException:
            del self.exists[id]
            raise
        return box

    async def recycle(self, sandbox: Sandbox, *, epoch: int) -> Sandbox | None:
        assert epoch > sandbox.epoch
        await self.effect("recycle")
        assert self.exists[sandbox.id] is sandbox
        fresh = FakeSandbox(self, sandbox.spec, sandbox.id, epoch)
        self.exists[sandbox.id] = fresh
        return fresh

    def reap(self, ids: Sequence[str]) -> list[str]:
        self.calls["reap"] += 1
        if self.unreapable.intersection(ids):
            raise OSError(16, "device or resource busy")
        for id in ids:
            self.exists.pop(id, None)
        return list(ids)

    async def aclose(self) -> None:
        self.open = False


@dataclass(slots=True, eq=False)
class FakeSandbox:
    """A set of file names; `exec(["touch", name])` adds one and `exec(["ls"])` prints them."""

    backend: FakeBackend
    spec: SandboxSpec
    id: str
    epoch: int
    files: set[str] = field(default_factory=set[str])

    def _live(self) -> None:
        if self.backend.exists.get(self.id) is not self:
            raise SandboxGone("it is gone", where=self.id)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: User = "agent",
        limits: ExecLimits = LIMITS,
    ) -> Result:
        self._live()
        await self.backend.effect("exec")
        self._live()
        self.files.update(argv[1:])
        said = Capture(" ".join(sorted(self.files)).encode(), 0)
        crash = self.backend.outcome is Outcome.CRASH
        return Result(
            outcome=self.backend.outcome,
            exit_code=None if crash else 0,
            signal=None,
            stdout=said,
            stderr=Capture(b"", 0),
            usage=Usage(wall_s=0.0),
            oom=False,
            epoch=self.epoch,
        )

    async def put(self, archive: Path | bytes, to: str = "", *, user: User = "agent") -> None:
        self._live()

    async def put_file(self, path: str, data: bytes, *, user: User = "agent") -> None:
        self._live()
        self.files.add(path)

    async def get(self, path: str, into: Path, *, limit_mb: int = 1024) -> None:
        self._live()

    async def get_file(self, path: str, *, limit_mb: int = 16) -> bytes:
        self._live()
        return b""

    async def snapshot(self) -> SnapshotRef:
        self._live()
        return SnapshotRef("snapshot", 1)

    async def restore(self, ref: SnapshotRef) -> None:
        self._live()

    async def fork(self, count: int, *, ids: Sequence[str] | None = None) -> list[Sandbox]:
        self._live()
        assert ids is not None
        children = [
            FakeSandbox(self.backend, self.spec, id, 0, files=set(self.files)) for id in ids
        ]
        self.backend.exists.update({child.id: child for child in children})
        try:
            await self.backend.effect("fork")
        except BaseException:
            for child in children:
                del self.backend.exists[child.id]
            raise
        return list(children)

    async def health(self, *, timeout_s: float = 5.0) -> None:
        self._live()
        await self.backend.effect("health")

    async def close(self) -> None:
        await self.backend.effect("close")
        if self.backend.exists.get(self.id) is self:
            del self.backend.exists[self.id]


async def settled(pool: Pool) -> None:
    """Wait until nothing of the pool is starting or closing (5 s at most)."""
    await asyncio.sleep(0.001)  # a refill begins in a later round of the loop
    async with asyncio.timeout(5):
        while (stats := pool.stats()).starting or any(
            each.closing for each in stats.backends.values()
        ):
            await asyncio.sleep(0)


def nothing_left(backend: FakeBackend, leases: Leases) -> bool:
    """No sandbox on the machine, and no row in the leases."""
    return not backend.exists and not leases.all()


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
    """State and epoch of every row."""
    with Leases(path / "leases.db") as leases:
        return [(lease.state, lease.epoch) for lease in leases.all()]


async def until_waiting(pool: Pool, count: int) -> None:
    """Wait until so many requests are in the queue."""
    async with asyncio.timeout(5):
        while pool.stats().waiting < count:
            await asyncio.sleep(0)


def failure(text: str = "no space left on device") -> SandboxFailure:
    """The world's fault."""
    return SandboxFailure(text)
