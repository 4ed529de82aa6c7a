"""Workers as processes of this machine, started anew (spawned) and spoken to in frames.

Nothing outlives this process: not when it closes the placement, not when it is killed. A worker
at work is judged by its work's deadline alone; only an idle one must be heard of. Implements
`base`; what runs on the other side is `worker`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from headrace.errors import HeadraceError
from headrace.pipeline.needs import Needs
from headrace.pipeline.placement.base import (
    PlacementError,
    WorkerLost,
    WorkerSpec,
    WorkerState,
    WorkFailed,
    WorkOverdue,
    rebuild_error,
)
from headrace.pipeline.placement.frames import Frame, FrameError, encode, receive_async
from headrace.pipeline.resources import Grant, Resources

if TYPE_CHECKING:
    from headrace.types import Json

__all__ = ["LocalProcesses"]

BEAT_S = 1.0
_KILL_S = 10.0
_LAST_WORDS = 2000
_CLOSED = "its connection closed"


class LocalProcesses:
    """Places workers as child processes; each writes what it says to a file of its own in `logs`.

    With `resources`, a worker holds its needs until it ends and, while it starts, what its spec
    needs for that; both are granted together. Workers beat every `beat_s` seconds.
    """

    def __init__(
        self, *, logs: Path, resources: Resources | None = None, beat_s: float = BEAT_S
    ) -> None:
        self._logs, self._resources, self._beat_s = logs, resources, beat_s
        self._numbers = itertools.count(1)
        self._workers: dict[str, _Worker] = {}
        self._closed = False

    async def place(self, spec: WorkerSpec, needs: Needs) -> _Worker:
        """A ready worker; see `Placement.place`."""
        name = f"{spec.name}-{next(self._numbers)}"
        grants: list[Grant] = []
        if self._resources is not None:
            grants = await self._resources.acquire_gang(
                [needs, spec.starting], domain=spec.domain, deadline_s=spec.place_s, who=name
            )
        if self._closed:
            for grant in grants:
                grant.release()
            raise PlacementError(f"{name} cannot be placed", where="the placement was closed")
        worker = _Worker(name, spec, self._logs / f"{name}.log", self._forget, grants[:1])
        self._workers[name] = worker
        try:
            await worker.start(self._beat_s)
        finally:
            for grant in grants[1:]:
                grant.release()
        return worker

    async def close(self) -> None:
        """Kill every worker and wait until it is gone."""
        self._closed = True
        await asyncio.gather(*(w.stop(grace_s=0.0) for w in self._workers.values()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _forget(self, worker: _Worker) -> None:
        self._workers.pop(worker.id, None)


class _Worker:
    """The parent's side of one worker process."""

    def __init__(
        self,
        name: str,
        spec: WorkerSpec,
        log: Path,
        on_end: Callable[[_Worker], None],
        grants: list[Grant],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._name, self._spec, self._log = name, spec, log
        self._on_end, self._grants = on_end, grants
        self._ready: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[str] = loop.create_future()
        self._answer: asyncio.Future[Json] | None = None
        self._call = 0
        self._silent = False
        self._why = ""
        self._alarm: asyncio.TimerHandle | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._life: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self._name

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def state(self) -> WorkerState:
        if self._why:
            return "ended"
        if self._answer is None:
            return "idle"
        return "silent" if self._silent else "busy"

    async def start(self, beat_s: float) -> None:
        """Start the process and wait until it is ready; nothing is left of one that fails."""
        self._life = asyncio.create_task(self._live(beat_s), name=f"worker {self._name}")
        started = False
        try:
            async with asyncio.timeout(self._spec.start_s):
                await asyncio.shield(self._ready)
            started = True
        except TimeoutError:
            raise PlacementError(
                f"{self._name} was not ready within {self._spec.start_s:g} s",
                where=self._last_words(),
                hint=f"see {self._log}; give it more time or less to load",
            ) from None
        finally:
            if not started:
                await self.stop(grace_s=0.0)

    async def call(self, request: Json, *, deadline_s: float) -> Json:
        """One piece of work; see `Placed.call`."""
        if self._answer is not None:
            raise RuntimeError(f"{self._name} is at work already")
        if self._why or self._writer is None:
            raise self._lost()
        self._call += 1
        frame = encode("call", id=self._call, request=request)
        answer = self._answer = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(deadline_s):
                self._writer.write(frame)
                return await answer
        except TimeoutError:
            overdue = f"its work did not end within {deadline_s:g} s"
            self._kill(overdue)
            raise WorkOverdue(
                f"{self._name} was ended: {overdue}",
                where=f"log {self._log}",
                hint="it is replaced; give the work more time if it needs it",
            ) from None
        finally:
            self._answer = None
            if answer.cancelled():
                self._kill("its work was cancelled")

    async def ended(self) -> str:
        return await asyncio.shield(self._ended)

    async def stop(self, *, grace_s: float) -> None:
        """Let it finish, then kill it; PlacementError if even that does not end it."""
        self._why = self._why or "it was stopped"
        if grace_s > 0 and self._writer is not None and not self._ended.done():
            self._writer.write(encode("stop"))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self.ended()
        self._kill("it was stopped")
        if self._process is None and self._life is not None:
            self._life.cancel()
        try:
            async with asyncio.timeout(_KILL_S):
                await self.ended()
        except TimeoutError:
            raise PlacementError(
                f"{self._name} does not end",
                where=f"{_KILL_S:g} s after it was killed",
                hint="it hangs in the kernel; see to its disk or device",
            ) from None

    # --- its life --------------------------------------------------------------------------

    async def _live(self, beat_s: float) -> None:
        """From the start of the process until nothing of it is left."""
        try:
            await self._listen(await self._spawn(beat_s))
        except (OSError, FrameError) as error:
            self._why = self._why or str(error)
        finally:
            self._kill(_CLOSED)
            await asyncio.shield(self._bury())

    async def _spawn(self, beat_s: float) -> asyncio.StreamReader:
        ours, theirs = socket.socketpair()
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with theirs, self._log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "headrace.pipeline.placement.worker"),
                    *(str(theirs.fileno()), str(os.getpid())),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            reader, writer = await asyncio.open_connection(sock=ours)
            self._writer = writer
        finally:
            if self._writer is None:
                ours.close()
        path = [part or str(Path.cwd()) for part in sys.path]
        entry, arguments = self._spec.entry, self._spec.arguments
        writer.write(encode("start", entry=entry, arguments=arguments, path=path, beat_s=beat_s))
        return reader

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while (frame := await receive_async(reader)) is not None:
            self._heard()
            self._take(frame)

    def _take(self, frame: Frame) -> None:
        kind, answer = frame["kind"], self._answer
        if kind == "ready" and not self._ready.done():
            self._ready.set_result(None)
        elif kind == "refused":
            error = rebuild_error(frame["error"])
            self._why = self._why or str(error)
            if not self._ready.done():
                self._ready.set_exception(_refusal(self._name, error))
        elif answer is None or answer.done() or frame.get("id") != self._call:
            return
        elif kind == "done":
            answer.set_result(frame["result"])
        elif kind == "failed":
            answer.set_exception(rebuild_error(frame["error"]))

    def _heard(self) -> None:
        """It lives: wait for its next word."""
        self._silent = False
        if self._alarm is not None:
            self._alarm.cancel()
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(self._spec.silence_s, self._not_heard)

    def _not_heard(self) -> None:
        """Nothing came for `silence_s`: a death if it is idle, and not if it is at work."""
        if self._answer is None and self._ready.done():
            self._kill(f"it was idle and not heard of for {self._spec.silence_s:g} s")
            return
        self._silent = True
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(self._spec.silence_s, self._not_heard)

    def _kill(self, why: str) -> None:
        """Kill the process and what it has started; the first reason is the one that is told."""
        self._why = self._why or why
        if self._process is not None and not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _bury(self) -> None:
        """The process is reaped; whoever waits for it hears why it ended."""
        code = None if self._process is None else await self._process.wait()
        if self._alarm is not None:
            self._alarm.cancel()
        if self._writer is not None:
            self._writer.close()
        if self._why == _CLOSED:
            self._why = f"it ended by itself ({_told(code)}): {self._last_words()}"
        for grant in self._grants:
            grant.release()
        self._ended.set_result(self._why)
        if not self._ready.done():
            self._ready.set_exception(
                PlacementError(f"{self._name} did not start: {self._why}", where=str(self._log))
            )
            self._ready.exception()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._lost())
        self._on_end(self)

    def _lost(self) -> WorkerLost:
        return WorkerLost(
            f"{self._name} is gone: {self._why}",
            where=f"log {self._log}",
            hint="its work is done again by another worker",
        )

    def _last_words(self) -> str:
        """The end of what it wrote to its log."""
        if not self._log.exists():
            return "it said nothing"
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - _LAST_WORDS))
            lines = log.read().decode(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:]) or "it said nothing"


def _refusal(name: str, error: HeadraceError) -> HeadraceError:
    """A wrong entry stays what it is; a bug while loading is a worker that does not start."""
    if isinstance(error, WorkFailed):
        return PlacementError(f"{name} did not start: {error.what}", where=error.where)
    return error


def _told(code: int | None) -> str:
    if code is None:
        return "it never started"
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
