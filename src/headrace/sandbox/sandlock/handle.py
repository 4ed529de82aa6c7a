"""A sandbox of the backend `sandlock`: the calls of `Sandbox` on one box.

May be known by that backend. Work on files is done by a program inside the box, as confined as
the candidate's programs, so that no link or race of theirs can lead it anywhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

from headrace.errors import UsageError
from headrace.sandbox.capture import Collector, stdin_file
from headrace.sandbox.process import Watch, Why, in_thread
from headrace.sandbox.sandlock.box import Box, Run
from headrace.sandbox.spec import (
    ExecLimits,
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

__all__ = ["SHARED", "Home", "SandlockSandbox"]

SHARED = ("/tmp", "/dev/shm")
"""What of the file tree can be written besides the working directory."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FILE_S = 600.0
_PIPE_S = 5.0
_FULL_BLOCKS = 16
_CHUNK = 2**16
_MEGA = 2**20
_KILL = 9
_UNFIT = (3, 4, 5)
_LIMITS = ExecLimits()


class Home(Protocol):
    """What a sandbox needs of its backend."""

    async def begin(
        self, spec: SandboxSpec, id: str, *, tree: SnapshotRef | None = None
    ) -> SandlockSandbox: ...

    async def end(self, sandbox: SandlockSandbox, box: Box) -> None: ...

    def snapshot_path(self, ref: SnapshotRef) -> Path: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    outcome: Outcome
    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False


class SandlockSandbox:
    """One box. See `Sandbox` for the calls. Agent and verifier are the same user here."""

    def __init__(self, home: Home, spec: SandboxSpec, id: str, *, epoch: int, box: Box) -> None:
        self._home = home
        self._spec = spec
        self._id = id
        self._epoch = epoch
        self._box = box
        self._depth = 0
        self._closed = False
        self._starting = asyncio.Lock()

    @property
    def id(self) -> str:
        return self._id

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def spec(self) -> SandboxSpec:
        return self._spec

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
        del user
        self._check()
        if not argv:
            raise UsageError("a command needs at least a program")
        await self._ready()
        began = time.monotonic()
        watch = Watch(limits.flood_bytes)
        request = self._request(argv, env or {}, cwd or "", limits)
        with _pipes(limits.output_bytes, watch) as (streams, writers):
            run = self._start(request, [stdin_file(stdin), *writers])
            run.ended.add_done_callback(lambda _: watch.settle("ended"))
            timer = watch.loop.call_later(timeout_s, watch.settle, "timeout")
            try:
                why = await watch.why
                if why != "ended":
                    await self._box.kill(run)
            except BaseException:
                await self._box.kill(run)
                raise
            finally:
                timer.cancel()
        verdict = await self._judge(why, run, limits)
        return Result(
            outcome=verdict.outcome,
            exit_code=verdict.exit_code,
            signal=verdict.signal,
            oom=verdict.oom,
            stdout=streams[0].capture(),
            stderr=streams[1].capture(),
            epoch=self._epoch,
            usage=Usage(
                wall_s=time.monotonic() - began,
                user_s=run.message.get("user", 0.0),
                system_s=run.message.get("system", 0.0),
                peak_memory=run.message.get("peak"),
            ),
        )

    async def put(self, archive: Path | bytes, to: str = "", *, user: User = "agent") -> None:
        """As declared. Raises UsageError, too, for a directory that nobody may write here:
        writable are the working directory, /tmp and /dev/shm."""
        del user
        self._check()
        await self._ready()
        if isinstance(archive, bytes):
            source = stdin_file(archive)
        else:
            try:
                source = os.open(archive, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise UsageError(
                    f"cannot read the archive: {error.strerror}", where=str(archive)
                ) from error
        await self._work(["put", self._inside(to)], source)

    async def put_file(self, path: str, data: bytes, *, user: User = "agent") -> None:
        del user
        self._check()
        await self._ready()
        await self._work(["put_file", self._inside(path)], stdin_file(data))

    async def get(self, path: str, into: Path, *, limit_mb: int = 1024) -> None:
        self._check()
        await self._ready()
        try:
            with into.open("wb") as sink:
                await self._work(["get", self._inside(path)], _nothing(), sink, limit_mb)
        except BaseException:
            into.unlink(missing_ok=True)
            raise

    async def get_file(self, path: str, *, limit_mb: int = 16) -> bytes:
        self._check()
        await self._ready()
        sink = io.BytesIO()
        await self._work(["get_file", self._inside(path)], _nothing(), sink, limit_mb)
        return sink.getvalue()

    async def snapshot(self) -> SnapshotRef:
        """An archive of the tree on the host: costs as much as the tree is large."""
        self._check()
        ref = SnapshotRef(uuid.uuid4().hex, self._depth + 1)
        path = self._home.snapshot_path(ref)
        await self._alone()
        try:
            with path.open("wb") as sink:
                await self._work(["save", *self._roots()], _nothing(), sink)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        self._depth = ref.depth
        self._start_init()
        return ref

    async def restore(self, ref: SnapshotRef) -> None:
        self._check()
        await self._alone()
        await self._load(ref)
        self._start_init()

    async def fork(self, count: int, *, ids: Sequence[str] | None = None) -> list[Sandbox]:
        names = list(ids) if ids is not None else [uuid.uuid4().hex for _ in range(count)]
        if len(names) != count:
            raise UsageError(f"{count} children need as many ids, not {len(names)}")
        ref = await self.snapshot()
        children: list[Sandbox] = []
        try:
            for name in names:
                children.append(await self._home.begin(self._spec, name, tree=ref))  # noqa: PERF401
        except BaseException:
            for child in children:
                await child.close()
            raise
        return children

    async def health(self, *, timeout_s: float = 5.0) -> None:
        self._check()
        await self._ready()
        await self._box.ping(timeout_s)

    async def close(self) -> None:
        self._closed = True
        await self._home.end(self, self._box)

    # --- for the backend -------------------------------------------------------------------

    async def open(self, tree: SnapshotRef | None) -> None:
        """Make the box and fill its tree."""
        await self._box.enter()
        await self._alone()
        if tree is not None:
            await self._load(tree)
        self._start_init()

    async def renewed(self, epoch: int) -> SandlockSandbox:
        """The same box, emptied, as another sandbox; this one is stale from here on."""
        self._closed = True
        await self._alone()
        await self._work(["load", *self._roots()], _nothing())
        fresh = SandlockSandbox(self._home, self._spec, self._id, epoch=epoch, box=self._box)
        fresh._start_init()
        return fresh

    # --- within ----------------------------------------------------------------------------

    def _check(self) -> None:
        if self._closed or not self._box.alive:
            raise SandboxGone("the sandbox was closed or lost", where=self._id)

    def _roots(self) -> list[str]:
        return [self._spec.workdir, *SHARED]

    def _inside(self, path: str) -> str:
        if "\0" in path:
            raise UsageError("not a path: it has a null byte", where=repr(path))
        return str(PurePosixPath(self._spec.workdir, path))

    async def _ready(self) -> None:
        """Start what was ended from inside the box."""
        async with self._starting:
            if not self._box.running:
                await self._box.launch()
                self._start_init()

    async def _alone(self) -> None:
        """End everything that runs."""
        async with self._starting:
            await self._box.launch()

    def _start_init(self) -> None:
        if self._spec.init:
            null = [os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC) for _ in range(3)]
            self._start(self._request(self._spec.init, {}, "", _LIMITS), null)

    def _start(self, request: Mapping[str, Any], fds: list[int]) -> Run:
        """Start a command with these streams, which are closed here."""
        try:
            return self._box.run(request, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _request(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str, limits: ExecLimits
    ) -> dict[str, Any]:
        return {
            "argv": list(argv),
            "env": {
                "PATH": _PATH,
                "LANG": "C.UTF-8",
                "HOME": self._spec.workdir,
                **dict(self._spec.env),
                **env,
                "HEADRACE_SANDBOX": self._id,
            },
            "cwd": self._inside(cwd),
            "cpu_s": limits.cpu_s,
            "file_mb": limits.file_mb,
        }

    async def _judge(self, why: Why, run: Run, limits: ExecLimits) -> _Verdict:
        """Whose doing the end of a command was."""
        if why != "ended":
            outcome = Outcome.TIMEOUT if why == "timeout" else Outcome.OUTPUT
            return _Verdict(outcome=outcome, signal=_KILL)
        message = run.message
        code = message.get("code")
        if code is None:
            # Its supervisor is dead, too. The runner is out of the box's reach: if it saw the
            # box end, then something inside did that.
            if message or await self._box.survived():
                return _Verdict(outcome=Outcome.RESULT, signal=_KILL)
            return _Verdict(outcome=Outcome.CRASH)
        if code == 0:
            return _Verdict(outcome=Outcome.RESULT, exit_code=0)
        seen = await self._box.why(run)
        used = message.get("user", 0.0) + message.get("system", 0.0)
        in_time = limits.cpu_s is None or used < limits.cpu_s
        oom = code == -_KILL and in_time and not seen.get("killed", False)
        if oom:
            outcome = Outcome.MEMORY
        elif message.get("free", _FULL_BLOCKS) < _FULL_BLOCKS:
            outcome = Outcome.DISK
        elif seen.get("refused", False):
            outcome = Outcome.PROCESSES
        else:
            outcome = Outcome.RESULT
        if code < 0:
            return _Verdict(outcome=outcome, signal=-code, oom=oom)
        return _Verdict(outcome=outcome, exit_code=code)

    async def _load(self, ref: SnapshotRef) -> None:
        path = self._home.snapshot_path(ref)
        try:
            source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise UsageError("no such snapshot", where=ref.id) from None
        await self._work(["load", *self._roots()], source)
        self._depth = ref.depth

    async def _work(
        self, work: list[str], source: int, sink: IO[bytes] | None = None, limit_mb: int = 2**20
    ) -> None:
        """Let the box do file work, its output going to `sink`.

        Raises UsageError for what it says cannot be, SandboxFailure if it did not end.
        """
        reader, writer = os.pipe2(os.O_CLOEXEC)
        copying = asyncio.ensure_future(in_thread(lambda: _copy(reader, sink, limit_mb)))
        watch = Watch(_MEGA)
        request = self._request([*self._box.python, *work], {}, "/", _LIMITS)
        try:
            with _pipes(4096, watch) as (streams, (unused, errors)):
                os.close(unused)
                run = self._start(request, [source, writer, errors])
                try:
                    async with asyncio.timeout(_FILE_S):
                        await asyncio.shield(run.ended)
                except BaseException:
                    await self._box.kill(run)
                    raise
        except TimeoutError:
            raise SandboxFailure(
                f"no end of {work[0]} in {_FILE_S:.0f} s", where=self._id
            ) from None
        finally:
            await asyncio.wait({copying}, timeout=_PIPE_S)
            if not copying.done():
                await self._box.stop()
                await asyncio.wait({copying})
        if copying.result():
            raise UsageError(f"larger than {limit_mb} MiB", where=work[-1])
        code = run.message.get("code")
        said = streams[1].capture().text.strip()
        if code in _UNFIT:
            raise UsageError(said or "not possible", where=work[-1])
        if code != 0:
            raise SandboxFailure(f"{work[0]} did not end well ({code}): {said}", where=work[-1])


@contextlib.contextmanager
def _pipes(keep: int, watch: Watch) -> Generator[tuple[list[Collector], list[int]]]:
    """The readers of two pipes and the ends to write to; the latter are the caller's."""
    pairs = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
    streams = [Collector(reader, keep=keep, on_bytes=watch.count) for reader, _ in pairs]
    try:
        yield streams, [writer for _, writer in pairs]
    finally:
        for stream in streams:
            stream.drain()
            stream.close()


def _nothing() -> int:
    return stdin_file(b"")


def _copy(reader: int, sink: IO[bytes] | None, limit_mb: int) -> bool:
    """Copy a pipe until it ends or more came than the limit; whether that was so."""
    left = limit_mb * _MEGA
    with open(reader, "rb", buffering=0) as pipe:
        while piece := pipe.read(_CHUNK):
            left -= len(piece)
            if left < 0:
                return True
            if sink is not None:
                sink.write(piece)
    return False
