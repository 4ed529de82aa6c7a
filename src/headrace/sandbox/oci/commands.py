"""One command in a sandbox, from its pipes to its `Result`; and single files, in and out.

A command has a control group of its own, so that its deadline ends all that it started and
nothing else. May be known by the sandbox's handle only.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.errors import UsageError
from headrace.sandbox.capture import Collector, stdin_file
from headrace.sandbox.oci import cgroups, wire
from headrace.sandbox.oci.box import Box
from headrace.sandbox.oci.control import Died
from headrace.sandbox.spec import (
    Capture,
    ExecLimits,
    Outcome,
    Result,
    SandboxFailure,
    SandboxGone,
    Usage,
    User,
)

__all__ = ["Command", "move_file"]

_CHDIR, _EXEC, _FORK = 10, 11, 12
_KILL_S = 10.0
_AGAIN_S = 0.02
_MOVE_S = 60.0


class Command:
    """One command from its start to its `Result`."""

    def __init__(self, box: Box, limits: ExecLimits) -> None:
        self._box, self._limits = box, limits
        self._written = 0
        self._cut: Outcome | None = None
        self._stop = asyncio.Event()
        self._streams: list[Collector] = []

    def _count(self, length: int) -> None:
        self._written += length
        if self._written > self._limits.flood_bytes:
            self._end(Outcome.OUTPUT)

    def _end(self, why: Outcome) -> None:
        if self._cut is None:
            self._cut = why
            self._stop.set()

    def _pipes(self, stdin: bytes) -> list[int]:
        """The descriptors of the command; the ends that stay here are being read."""
        theirs = [stdin_file(stdin)]
        for _ in range(2):
            reader, writer = os.pipe2(os.O_CLOEXEC)
            theirs.append(writer)
            self._streams.append(
                Collector(reader, keep=self._limits.output_bytes, on_bytes=self._count)
            )
        return theirs

    async def run(
        self,
        argv: Sequence[str],
        stdin: bytes,
        timeout_s: float,
        env: Mapping[str, str],
        cwd: str | None,
        user: User,
    ) -> Result:
        box, loop = self._box, asyncio.get_running_loop()
        tag = box.control.next_tag()
        began = loop.time()
        timer = loop.call_later(timeout_s, self._end, Outcome.TIMEOUT)
        ending = box.control.expect(tag)
        group: Path | None = None
        try:
            async with box.changing:
                message = box.command(tag, argv, env, cwd, user, self._limits)
                group = box.take_group()
                box.running += 1
                await self._start(message, group, stdin)
            reply = await self._wait(ending, group)
            return await self._result(reply, loop.time() - began)
        except Died:
            return await self._crashed(loop.time() - began)
        finally:
            timer.cancel()
            if group is not None and not ending.done():
                await self._stop_all(ending, group)
            box.control.forget(tag)
            for stream in self._streams:
                stream.close()
            box.prepare_soon()
            if group is not None:
                box.running -= 1
                _remove(box, group)

    async def _start(self, message: bytes, group: Path, stdin: bytes) -> None:
        theirs = self._pipes(stdin)
        try:
            theirs.append(os.open(group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
            await self._box.control.send(message, theirs)
        finally:
            for fd in theirs:
                os.close(fd)

    async def _wait(self, ending: asyncio.Future[wire.Reply], group: Path) -> wire.Reply:
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((ending, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
        if not ending.done():
            await self._stop_all(ending, group)
        elif self._cut is not None:
            await _kill(group)
        return ending.result()

    async def _stop_all(self, ending: asyncio.Future[wire.Reply], group: Path) -> None:
        """Kill until the command has ended: it may join its group only after the first blow."""
        deadline = asyncio.get_running_loop().time() + _KILL_S
        while self._box.control.alive:
            await _kill(group)
            await asyncio.wait((ending,), timeout=_AGAIN_S)
            if ending.done():
                return
            if asyncio.get_running_loop().time() > deadline:
                self._box.control.close()
                raise SandboxFailure("a command survives being killed", where=self._box.id)

    async def _result(self, reply: wire.Reply, wall: float) -> Result:
        box = self._box
        for stream in self._streams:
            stream.drain()
        before, box.counts = box.counts, box.groups.counts()
        oom = box.counts.oom_kills > before.oom_kills
        refused = box.counts.refused_forks > before.refused_forks
        code, number, note = _ending(reply)
        out, err = (stream.capture() for stream in self._streams)
        if note:
            err = Capture(err.data + note, err.total + len(note), err.omitted)
        failed = code != 0
        outcome = Outcome.RESULT
        if self._cut is not None:
            outcome = self._cut
        elif failed and (oom or (reply.extra == _FORK and reply.value == errno.ENOMEM)):
            outcome = Outcome.MEMORY
        elif failed and (refused or reply.extra == _FORK):
            outcome = Outcome.PROCESSES
        elif failed and await box.full():
            outcome = Outcome.DISK
        return Result(
            outcome=outcome,
            exit_code=code,
            signal=number,
            stdout=out,
            stderr=err,
            usage=Usage(
                wall_s=wall,
                user_s=reply.user_s,
                system_s=reply.system_s,
                peak_memory=box.counts.peak_memory,
            ),
            oom=oom,
            epoch=box.epoch,
        )

    async def _crashed(self, wall: float) -> Result:
        """The supervisor is gone: by memory, if the kernel says so, else for no known reason."""
        box = self._box
        oom = False
        with contextlib.suppress(OSError):
            oom = box.groups.counts().oom_kills > box.counts.oom_kills
        out, err = (stream.capture() for stream in self._streams)
        return Result(
            outcome=Outcome.MEMORY if oom else Outcome.CRASH,
            exit_code=None,
            signal=signal.SIGKILL if oom else None,
            stdout=out,
            stderr=err,
            usage=Usage(wall_s=wall),
            oom=oom,
            epoch=box.epoch,
        )


def _ending(reply: wire.Reply) -> tuple[int | None, int | None, bytes]:
    """Exit code, signal, and a note for stderr where the program was never started."""
    if reply.kind is wire.Kind.ENDED:
        code = os.waitstatus_to_exitcode(reply.value)
        return (code, None, b"") if code >= 0 else (None, -code, b"")
    reason = os.strerror(reply.value)
    if reply.extra == _EXEC:
        code = 127 if reply.value == errno.ENOENT else 126
        return code, None, f"cannot start the program: {reason}\n".encode()
    if reply.extra == _CHDIR:
        return 126, None, f"cannot enter the working directory: {reason}\n".encode()
    if reply.extra == _FORK:
        return 126, None, f"cannot start a process: {reason}\n".encode()
    raise SandboxFailure(f"the supervisor failed at step {reply.extra}: {reason}")


def _remove(box: Box, group: Path) -> None:
    """The group of a command that has ended; one with processes in it stays."""
    try:
        group.rmdir()
    except FileNotFoundError:
        return
    except OSError:
        box.left_over = True


async def _kill(group: Path) -> None:
    """End every process of a command's group, without blocking others."""
    async with asyncio.timeout(_KILL_S):
        for empty in cgroups.kill_steps(group):
            if empty:
                return
            await asyncio.sleep(0.0005)


async def move_file(
    box: Box, mode: wire.Mode, path: str, stream: int, user: User, *, limit_mb: int = 0
) -> None:
    """Write the descriptor's content to a file, or a file of at most `limit_mb` to it.

    Raises UsageError for what the user may not do there, or a full disk.
    """
    tag = box.control.next_tag()
    ending = box.control.expect(tag)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    ends = [stream, null] if mode is wire.Mode.WRITE_FILE else [null, stream]
    try:
        async with box.changing:
            message = box.file_message(tag, mode, path, user, limit_mb)
            await box.control.send(message, [*ends, null])
        async with asyncio.timeout(_MOVE_S):
            reply = await ending
    except TimeoutError:
        box.control.close()
        raise SandboxGone(f"no file was moved in {_MOVE_S:.0f} s", where=path) from None
    except asyncio.CancelledError:
        box.control.close()
        raise
    finally:
        box.control.forget(tag)
        os.close(null)
    verb = "write" if mode is wire.Mode.WRITE_FILE else "read"
    if reply.kind is wire.Kind.FAILED:
        reasons = {
            errno.EFBIG: f"it is larger than {limit_mb} MiB",
            errno.EINVAL: "no regular file",
        }
        reason = reasons.get(reply.value, os.strerror(reply.value))
        full = reply.value in (errno.ENOSPC, errno.EDQUOT)
        hint = f"limits.disk_mb is {box.spec.limits.disk_mb}" if full else ""
        raise UsageError(f"cannot {verb} a file of the sandbox: {reason}", where=path, hint=hint)
    if reply.value:
        raise SandboxFailure(f"cannot {verb} a file: wait status {reply.value}", where=path)
