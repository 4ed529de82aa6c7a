"""A local child process, run to its end within bounds, and the killing of all it started.

Used by backends whose commands are children of this process. May be known by backends; knows
no sandbox.

Killing goes by what the kernel tells of each process in `/proc`: its session, its parents and
the tags in the environment that it was started with. A process that leaves its session *and*
is orphaned *and* was started with a cleared environment is not found. So this is for programs
one trusts; a boundary needs a cgroup or a process-id namespace.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from headrace.errors import UsageError
from headrace.sandbox.capture import Collector, stdin_file
from headrace.sandbox.spec import Capture, ExecLimits, SandboxFailure, Usage

__all__ = [
    "Command",
    "Ended",
    "Watch",
    "Why",
    "in_thread",
    "kill_tree",
    "run_command",
    "start_command",
]

_KILL_S = 10.0
_LIMITED = 'test -z "$1" || ulimit -t "$1"; test -z "$2" || ulimit -f "$2"; shift 2; exec "$@"'

_LIMITS = ExecLimits()

Why = Literal["ended", "timeout", "flood"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run. `env` is the whole environment; `tag` is a "NAME=value" put into it, by
    which everything that the command starts is found again."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    tag: str
    limits: ExecLimits = _LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How it ended: exactly one of `exit_code` and `signal`; `why` it came to its end."""

    why: Why
    exit_code: int | None
    signal: int | None
    stdout: Capture
    stderr: Capture
    usage: Usage


class Watch:
    """What ends a command first: itself, its time, or a flood."""

    def __init__(self, flood_bytes: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.why: asyncio.Future[Why] = self.loop.create_future()
        self._left = flood_bytes

    def settle(self, why: Why) -> None:
        if not self.why.done():
            self.why.set_result(why)

    def count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            self.settle("flood")


async def run_command(command: Command, *, stdin: bytes = b"", timeout_s: float) -> Ended:
    """Run to the end of the main process, or until `timeout_s` or the flood limit; then
    everything that it started is killed.

    What a command left running goes on, and its pipes are closed rather than waited for.
    Cancelled, it kills as after a timeout. A program that cannot be started is exit code 126
    or 127, with the reason on stderr.
    """
    if not command.argv:
        raise UsageError("a command needs at least a program")
    began = time.monotonic()
    watch = Watch(command.limits.flood_bytes)
    child, streams = _launch(command, stdin, watch)
    if isinstance(child, Exception):
        code = 127 if isinstance(child, FileNotFoundError) else 126
        return _ended("ended", code, streams, Usage(wall_s=time.monotonic() - began))
    pidfd = os.pidfd_open(child)
    watch.loop.add_reader(pidfd, watch.settle, "ended")
    timer = watch.loop.call_later(timeout_s, watch.settle, "timeout")
    try:
        why = await watch.why
        if why != "ended":
            kill_tree(command.tag, session=child)
        _, status, used = os.wait4(child, 0)
    except BaseException:
        kill_tree(command.tag, session=child)
        os.waitpid(child, 0)
        raise
    finally:
        timer.cancel()
        watch.loop.remove_reader(pidfd)
        os.close(pidfd)
        for stream in streams:
            stream.drain()
            stream.close()
    usage = Usage(
        wall_s=time.monotonic() - began,
        user_s=used.ru_utime,
        system_s=used.ru_stime,
        peak_memory=used.ru_maxrss * 1024,
    )
    return _ended(why, os.waitstatus_to_exitcode(status), streams, usage)


def start_command(command: Command) -> None:
    """Start a command that goes on by itself, its streams on the null device.

    Raises SandboxFailure if it cannot be started. Ended by `kill_tree` of its tag.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        _start(command, null, null, null, orphan=True)
    except (OSError, ValueError) as error:
        raise SandboxFailure(
            f"cannot start {command.argv[0]!r}: {error}", where=str(command.cwd)
        ) from error
    finally:
        os.close(null)


def kill_tree(tag: str, *, session: int = -1, user: int = -1) -> None:
    """Kill every process started with the tag `tag`, in that session, or of that user id, with
    all descendants.

    Returns when none is left. Raises SandboxFailure if some are after 10 s (uninterruptible,
    or starting others faster than they can be killed).
    """
    deadline = time.monotonic() + _KILL_S
    while found := _tree(tag.encode(), session, user):
        # Its leader first: a shell that sees its command killed ends by itself, with a code.
        for pid in sorted(found, key=lambda pid: pid != session):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            raise SandboxFailure(f"processes that do not die: {sorted(found)}", where=tag)
        time.sleep(0.001)


async def in_thread(work: Callable[[], T]) -> T:
    """The result of `work` in a thread. Cancelled, it still waits for the thread to finish,
    so that nothing is changed behind the caller's back."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def _start(command: Command, stdin: int, stdout: int, stderr: int, *, orphan: bool = False) -> int:
    argv = list(command.argv)
    limits = command.limits
    if limits.cpu_s is not None or limits.file_mb is not None:
        blocks = "" if limits.file_mb is None else str(limits.file_mb * 2048)
        seconds = "" if limits.cpu_s is None else str(limits.cpu_s)
        argv = ["/bin/sh", "-c", _LIMITED, "sh", seconds, blocks, *argv]
    if orphan:
        argv = ["/bin/sh", "-c", '"$@" &', "sh", *argv]
    name, _, value = command.tag.partition("=")
    child = subprocess.Popen(
        argv,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=command.cwd,
        env={**command.env, name: value},
        start_new_session=True,
    )
    # It is waited for here, by descriptor, and not by its object.
    child.returncode = 0
    if orphan:
        os.waitpid(child.pid, 0)
    return child.pid


def _launch(
    command: Command, stdin: bytes, watch: Watch
) -> tuple[int | Exception, list[Collector]]:
    """The child's process id, or why there is none, and the readers of its two streams."""
    out_read, out_write = os.pipe2(os.O_CLOEXEC)
    err_read, err_write = os.pipe2(os.O_CLOEXEC)
    keep = command.limits.output_bytes
    streams = [Collector(fd, keep=keep, on_bytes=watch.count) for fd in (out_read, err_read)]
    source = stdin_file(stdin)
    try:
        return _start(command, source, out_write, err_write), streams
    except (OSError, ValueError) as error:
        os.write(err_write, f"cannot start {command.argv[0][:256]!r}: {error}\n".encode()[:4096])
        for stream in streams:
            stream.drain()
            stream.close()
        return error, streams
    finally:
        for fd in (source, out_write, err_write):
            os.close(fd)


def _ended(why: Why, code: int, streams: list[Collector], usage: Usage) -> Ended:
    return Ended(
        why=why,
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        stdout=streams[0].capture(),
        stderr=streams[1].capture(),
        usage=usage,
    )


def _tree(tag: bytes, session: int, user: int) -> set[int]:
    """The living processes of that tag, session or user, and all below them; never this one."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        stat = _read(f"/proc/{pid}/stat")
        state, parent, _, its_session = stat[stat.rfind(b")") + 2 :].split()[:4] or [b"Z"] * 4
        if state in b"ZX":
            continue
        parents[pid] = int(parent)
        tagged = b"\0" + tag + b"\0" in b"\0" + _read(f"/proc/{pid}/environ")
        if tagged or int(its_session) == session or _owner(pid) == user:
            found.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def _owner(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except (FileNotFoundError, ProcessLookupError):
        return None


def _read(path: str) -> bytes:
    """A file of /proc; empty for a process that ended or belongs to somebody else."""
    try:
        return Path(path).read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
