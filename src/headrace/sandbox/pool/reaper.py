"""Removes what dead owners left: the leases name it, its backend takes it away from outside.

Runs at the start of every pool, now and then in its life, and from the command line. Several
may run at once; each sandbox is claimed by one of them. Knows leases and backends by protocol.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.errors import HeadraceError
from headrace.sandbox.pool.leases import Lease, Leases
from headrace.sandbox.spec import Backend

__all__ = ["Reaped", "Unreaped", "reap"]

_BATCH = 16
_CLAIM_S = 300.0
_FAILURES = (HeadraceError, OSError, RuntimeError, ValueError, subprocess.SubprocessError)


@dataclass(frozen=True, slots=True)
class Unreaped:
    """A sandbox that is still there, and why; its lease is kept, for the next time."""

    id: str
    backend: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """What one round did, by sandbox id: `gone` were removed, `failed` not, `elsewhere` belong
    to a backend that was not given, `left` were not reached in time.
    """

    gone: tuple[str, ...]
    failed: tuple[Unreaped, ...]
    elsewhere: tuple[Unreaped, ...]
    left: tuple[str, ...]
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether no orphan is left."""
        return not (self.failed or self.elsewhere or self.left)


def reap(
    backends: Sequence[Backend],
    leases: Leases,
    now: float | None = None,
    *,
    within_s: float = 30.0,
) -> Reaped:
    """Remove every orphan, the backends in parallel, in about `within_s` seconds at most.

    `now` (epoch seconds) is the leases' clock if it is not given. A failure is counted and the
    lease kept; it stops nobody else. Raises StorageError if the leases cannot be used.
    """
    began = time.monotonic()
    by_name = {backend.name: backend for backend in backends}
    work = {name: _Work(backend, leases, began + within_s) for name, backend in by_name.items()}
    elsewhere: list[Unreaped] = []
    for lease in leases.orphans(now):
        if lease.backend in work:
            work[lease.backend].orphans.append(lease)
        else:
            why = f"the backend {lease.backend!r} is not at hand here"
            elsewhere.append(Unreaped(lease.id, lease.backend, why))
    _run([each for each in work.values() if each.orphans], began + within_s)
    for each in work.values():
        if each.unusable is not None:
            raise each.unusable
    ended = [each.ended() for each in work.values()]
    done = {id for gone, failed in ended for id in (*gone, *(item.id for item in failed))}
    orphans = [lease.id for each in work.values() for lease in each.orphans]
    return Reaped(
        gone=tuple(id for gone, _ in ended for id in gone),
        failed=tuple(item for _, failed in ended for item in failed),
        elsewhere=tuple(elsewhere),
        left=tuple(id for id in orphans if id not in done),
        seconds=time.monotonic() - began,
    )


def _run(work: Sequence[_Work], deadline: float) -> None:
    """All of it at once; a backend that hangs is left behind in its thread."""
    threads = [threading.Thread(target=each.run, name="reap", daemon=True) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


@dataclass(slots=True)
class _Work:
    """One backend's orphans, in batches that are claimed only when their turn comes."""

    backend: Backend
    leases: Leases
    deadline: float
    orphans: list[Lease] = field(default_factory=list[Lease])
    unusable: HeadraceError | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _gone: list[str] = field(default_factory=list[str])
    _failed: list[Unreaped] = field(default_factory=list[Unreaped])

    def run(self) -> None:
        try:
            for start in range(0, len(self.orphans), _BATCH):
                if time.monotonic() >= self.deadline:
                    return
                expires = self.leases.clock() + _CLAIM_S
                batch = self.orphans[start : start + _BATCH]
                claims = [self.leases.claim(lease, expires=expires) for lease in batch]
                self._batch([claim for claim in claims if claim is not None])
        except HeadraceError as error:
            self.unusable = error  # of the leases; raised again in the caller's thread

    def ended(self) -> tuple[list[str], list[Unreaped]]:
        with self._lock:
            return list(self._gone), list(self._failed)

    def _batch(self, claims: Sequence[Lease]) -> None:
        try:
            gone = set(self.backend.reap([lease.id for lease in claims]))
            why = "its backend could not remove it"
        except _FAILURES as error:
            if len(claims) > 1:
                for lease in claims:
                    self._batch([lease])
                return
            gone, why = set[str](), str(error) or repr(error)
        for lease in claims:
            if lease.id in gone:
                self.leases.forget(lease)
                with self._lock:
                    self._gone.append(lease.id)
            else:
                self.leases.release(lease, why)
                with self._lock:
                    self._failed.append(Unreaped(lease.id, self.backend.name, why))
