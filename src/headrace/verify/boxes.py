"""Sandboxes for verifiers: a pool shared by a process, behind calls that wait for their result.

A verifier says what it needs and what to do there; it gets a fresh sandbox, and once more a
fresh one if the first failed by no fault of the candidate. Nothing else may run candidates'
programs. May be known by verifiers, the audit and benchmarks.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from headrace.sandbox import registry
from headrace.sandbox.pool import Pool, PoolOptions
from headrace.sandbox.pool.leases import Leases
from headrace.sandbox.portal import Portal
from headrace.sandbox.spec import (
    BoxLimits,
    Capabilities,
    Isolation,
    Sandbox,
    SandboxFailure,
    SandboxGone,
    SandboxSpec,
)

__all__ = ["PROGRAMS", "Boxes", "shared"]

PROGRAMS = SandboxSpec(
    isolation=Isolation.PROCESS,
    limits=BoxLimits(memory_mb=512, disk_mb=64, cpus=1.0, processes=64, open_files=256),
)
"""What a candidate's program gets unless its task asks for something else: no network, the
host's programs, 512 MiB."""

_START_S = 60.0

T = TypeVar("T")


class Boxes:
    """A pool of sandboxes that any thread may borrow from; opened by its first use.

    `names` restricts the backends and sets their order (see `registry.choose`).

    >>> async def hello(box: Sandbox) -> bytes:
    ...     return (await box.exec(["echo", "42"])).stdout.data
    >>> Boxes().run(PROGRAMS, hello, timeout_s=10)  # doctest: +SKIP
    b'42\\n'
    """

    def __init__(
        self, names: Sequence[str] | None = None, options: PoolOptions | None = None
    ) -> None:
        self._names = names
        self._options = options or PoolOptions(warm=1)
        self._lock = threading.Lock()
        self._portal: Portal | None = None
        self._pools: dict[str, Pool] = {}
        self._chosen: dict[SandboxSpec, Pool] = {}
        self._gives: dict[SandboxSpec, Capabilities] = {}

    def run(
        self,
        spec: SandboxSpec,
        job: Callable[[Sandbox], Coroutine[Any, Any, T]],
        *,
        timeout_s: float,
    ) -> T:
        """What `job` makes of a fresh sandbox of that kind; `timeout_s` (seconds) bounds one try.

        Raises SandboxRefused if no backend here gives what is asked, SandboxFailure after two
        sandboxes that failed by no fault of the candidate.
        """
        portal, pool = self._open(spec)
        try:
            return portal.call(_borrow(pool, spec, job), timeout_s=timeout_s + _START_S)
        except (SandboxFailure, SandboxGone):
            return portal.call(_borrow(pool, spec, job), timeout_s=timeout_s + _START_S)
        finally:
            self._close_first()

    def _close_first(self) -> None:
        """Have this closed at exit before the backends that it uses: they say goodbye by
        themselves, and what is registered last is called first."""
        atexit.unregister(self.close)
        atexit.register(self.close)

    def capabilities(self, spec: SandboxSpec) -> Capabilities:
        """What the backend gives that sandboxes of that kind come from here.

        Raises SandboxRefused if there is none.
        """
        self._open(spec)
        return self._gives[spec]

    def close(self) -> None:
        """End all sandboxes; a later call opens the pool again."""
        atexit.unregister(self.close)
        with self._lock:
            portal, self._portal = self._portal, None
            pools, self._pools, self._chosen = list(self._pools.values()), {}, {}
        if portal is not None:
            for pool in pools:
                portal.call(pool.aclose(), timeout_s=_START_S)
            portal.close()

    def _open(self, spec: SandboxSpec) -> tuple[Portal, Pool]:
        with self._lock:
            if self._portal is None:
                self._portal = Portal()
            if spec not in self._chosen:
                backend = registry.choose(spec, self._names)
                if backend.name not in self._pools:
                    pool = Pool([backend], Leases(), self._options)
                    self._portal.call(pool.start(), timeout_s=_START_S)
                    self._pools[backend.name] = pool
                self._gives[spec] = backend.capabilities()
                self._chosen[spec] = self._pools[backend.name]
            return self._portal, self._chosen[spec]


async def _borrow(
    pool: Pool, spec: SandboxSpec, job: Callable[[Sandbox], Coroutine[Any, Any, T]]
) -> T:
    async with pool.acquire(spec) as box:
        return await job(box)


_shared: Boxes | None = None
_shared_lock = threading.Lock()


def shared() -> Boxes:
    """The one pool of this process, closed when it exits."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = Boxes()
        return _shared
