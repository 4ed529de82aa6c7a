"""What the workers of the placement tests do, and placements that tests can steer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.errors import StorageError
from headrace.pipeline.needs import Needs
from headrace.pipeline.placement.base import (
    PlacementError,
    WorkerLost,
    WorkerSpec,
    WorkerState,
    WorkOverdue,
)

HERE = "placement_support"


# --- entries that run in worker processes ---------------------------------------------------


def load(arguments: Any) -> Callable[[Any], Any]:
    """A handler of {"do": ...}; `arguments` may say how loading goes."""
    told = arguments or {}
    time.sleep(told.get("load_s", 0.0))
    if "storage" in told:
        raise StorageError("no space", where="/data", hint="free some")
    if "bug" in told:
        raise LookupError("no such weights")
    return handle


def handle(request: Any) -> Any:
    kind = request["do"]
    if kind == "echo":
        return request["say"]
    if kind == "pid":
        return os.getpid()
    if kind == "sleep":
        time.sleep(request["seconds"])
        return "slept"
    if kind == "child":
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid
    if kind == "exit":
        print("these are my last words", file=sys.stderr)
        os._exit(7)
    if kind == "junk":
        return os.write(int(sys.argv[1]), b"\xff" * 8)
    if kind == "storage":
        raise StorageError("disk full", where="/data", hint="free some")
    if kind == "bug":
        raise LookupError("a bug in the handler")
    if kind == "big":
        return "x" * request["bytes"]
    return object()


async def load_async(arguments: Any) -> Callable[[Any], Any]:
    await asyncio.sleep(0.0)
    return handle_async


async def handle_async(request: Any) -> Any:
    await asyncio.sleep(request.get("seconds", 0.0))
    if request.get("bug"):
        raise LookupError("a bug in the handler")
    return request["say"]


# --- processes ------------------------------------------------------------------------------


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def gone_within(pids: list[int], seconds: float) -> bool:
    """Whether all of `pids` are gone before `seconds` have passed."""
    until = time.monotonic() + seconds
    while any(is_alive(pid) for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


# --- a placement in virtual time that a test steers -----------------------------------------


class Puppet:
    """A worker that does what its placement's `behave` does, until `die` is called."""

    def __init__(self, name: str, stage: Stage) -> None:
        self.id = name
        self._stage = stage
        self._end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._busy = False

    @property
    def state(self) -> WorkerState:
        if self._end.done():
            return "ended"
        return "busy" if self._busy else "idle"

    def die(self, why: str) -> None:
        if not self._end.done():
            self._end.set_result(why)
            self._stage.living.discard(self)

    async def call(self, request: Any, *, deadline_s: float) -> Any:
        if self._end.done():
            raise WorkerLost(f"{self.id} is gone: {self._end.result()}")
        self._busy = True
        work = asyncio.ensure_future(self._stage.behave(self, request))
        try:
            await asyncio.wait(
                [work, self._end], timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED
            )
            if work.done():
                return work.result()
            if self._end.done():
                raise WorkerLost(f"{self.id} is gone: {self._end.result()}")
            raise WorkOverdue(f"{self.id} did not finish")
        finally:
            self._busy = False
            if not work.done():
                work.cancel()
                self.die("overdue or cancelled")

    async def ended(self) -> str:
        return await asyncio.shield(self._end)

    async def stop(self, *, grace_s: float) -> None:
        self.die("stopped")


class Stage:
    """A placement of puppets. The first `fails` placements fail; each takes `start_s`."""

    def __init__(
        self,
        behave: Callable[[Puppet, Any], Any],
        *,
        start_s: float = 1.0,
        fails: int = 0,
    ) -> None:
        self.behave, self._start_s, self._fails = behave, start_s, fails
        self.living: set[Puppet] = set()
        self.placed_at: list[float] = []
        self.started = 0

    async def place(self, spec: WorkerSpec, needs: Needs) -> Puppet:
        loop = asyncio.get_running_loop()
        self.placed_at.append(loop.time())
        name = f"{spec.name}-{len(self.placed_at)}"
        await asyncio.sleep(self._start_s)
        if self._fails > 0:
            self._fails -= 1
            raise PlacementError(f"{spec.name} did not start: no memory")
        self.started += 1
        puppet = Puppet(name, self)
        self.living.add(puppet)
        return puppet

    async def close(self) -> None:
        for puppet in list(self.living):
            puppet.die("closed")
