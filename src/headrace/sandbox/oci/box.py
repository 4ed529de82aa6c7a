"""A sandbox of the oci backend: commands through its supervisor, trees through the keeper.

`Box` is the container with its layers; `OciSandbox` is what an owner holds: a box under one
epoch. When the box is recycled the old handle is stale, and every call on it raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from headrace.errors import UsageError
from headrace.sandbox.capture import Collector, stdin_file
from headrace.sandbox.oci import cgroups, wire
from headrace.sandbox.oci.control import Control, Died
from headrace.sandbox.oci.layers import Stack
from headrace.sandbox.oci.trees import Layer
from headrace.sandbox.spec import (
    Capture,
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

if TYPE_CHECKING:
    from headrace.sandbox.images import Image
    from headrace.sandbox.oci.backend import OciBackend
    from headrace.sandbox.oci.client import Keeper
    from headrace.sandbox.proxy import EgressProxy

__all__ = ["PROXY_PORT", "Box", "OciSandbox"]

PROXY_PORT = 3128
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CHDIR, _EXEC, _FORK = 10, 11, 12
_DEFAULT = ExecLimits()
_KILL_S = 10.0
_AGAIN_S = 0.02
_RESET_S = 10.0


class Box:
    """One container. All its state changes go through here, one at a time."""

    def __init__(
        self,
        backend: OciBackend,
        id: str,
        spec: SandboxSpec,
        image: Image,
        control: Control,
        groups: cgroups.Groups,
    ) -> None:
        self.backend, self.id, self.spec, self.image = backend, id, spec, image
        self.control, self.groups = control, groups
        self.epoch = 0
        self.closed = False
        self.uid = 0
        self.frozen: tuple[Layer, ...] = ()
        self.live: Layer | None = None
        self.own_scratch = 0
        self.snapshots: set[str] = set()
        self.counts = cgroups.Counts(0, 0, 0)
        self.proxy: EgressProxy | None = None
        self.proxying: asyncio.Task[None] | None = None
        self.changing = asyncio.Lock()

    # --- trees -----------------------------------------------------------------------------

    async def fresh(self) -> None:
        """An untouched tree, of a user that never was, on scratch space of its own."""
        layers = self.backend.layers
        old, self.own_scratch = self.own_scratch, layers.new_scratch()
        below, self.frozen = self.frozen, ()
        self.uid = 700_000_000 + 2 * secrets.randbelow(500_000_000)
        await self._show(Layer(self.own_scratch, 0), size_mb=self.spec.limits.disk_mb)
        await layers.let_go(below)
        if old:
            await layers.release(old)

    async def freeze(self) -> SnapshotRef:
        """A snapshot of the tree; a new live layer is on top of it."""
        await self.reset()
        assert self.live is not None
        stack = Stack((self.live, *self.frozen), self.uid)
        ref = self.backend.layers.remember(stack)
        self.snapshots.add(ref.id)
        await self._stand_on(stack)
        await self.start_init()
        return ref

    async def restore(self, stack: Stack) -> None:
        """The tree of a snapshot, with nothing of what came after."""
        await self.reset()
        old = self.live
        await self._stand_on(stack)
        if old is not None and old.scratch == self.own_scratch:
            await self.backend.layers.drop_layer(old)
        await self.start_init()

    async def reset(self) -> bool:
        """End every process; whether the kernel holds nothing else of them (shared memory)."""
        reply = await self.control.ask(wire.Op.RESET, timeout_s=_RESET_S)
        for group in self.groups.killing.iterdir():
            if group.is_dir():
                cgroups.remove(group)
        return reply.value == 0

    async def _stand_on(self, stack: Stack) -> None:
        layers = self.backend.layers
        layers.hold(stack.layers)
        old, self.frozen, self.uid = self.frozen, stack.layers, stack.uid
        await self._show(layers.next_of(self.own_scratch), size_mb=0)
        await layers.let_go(old)

    async def _show(self, live: Layer, *, size_mb: int) -> None:
        keeper = await self.backend.keeper()
        self.live = None
        try:
            await self._ask_to_show(keeper, live, size_mb)
        except BaseException:
            self.control.close()
            raise
        self.live = live

    async def _ask_to_show(self, keeper: Keeper, live: Layer, size_mb: int) -> None:
        await keeper.ask(
            "show",
            id=self.id,
            live=[live.scratch, live.number],
            frozen=[[layer.scratch, layer.number] for layer in self.frozen],
            image=str(self.image.lower),
            programs=[[str(source), target] for source, target in self.programs()],
            workdir=self.spec.workdir,
            uid=self.uid,
            size_mb=size_mb,
        )

    def programs(self) -> list[tuple[Path, str]]:
        """Host directories laid over the tree."""
        mounts = [(mount.source, mount.target) for mount in self.spec.mounts]
        return [*self.image.programs, *mounts]

    async def start_init(self) -> None:
        """Start the specification's own process in the new tree and leave it running."""
        if not self.spec.init:
            return
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            tag = self.control.next_tag()
            message = self.command(tag, self.spec.init, {}, None, "agent", ExecLimits())
            group = self.groups.killing / f"e{tag}"
            group.mkdir()
            fd = os.open(group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
            try:
                await self.control.send(message, [null, null, null, fd])
            finally:
                os.close(fd)
        finally:
            os.close(null)

    # --- commands --------------------------------------------------------------------------

    def command(
        self,
        tag: int,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        user: User,
        limits: ExecLimits,
    ) -> bytes:
        """The message that starts a command."""
        home = f"/home/{user}"
        base = {"PATH": _PATH, "HOME": home, "USER": user, "LANG": "C.UTF-8", "TMPDIR": "/tmp"}
        if self.proxy is not None:
            address = f"http://127.0.0.1:{PROXY_PORT}"
            names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
            base |= dict.fromkeys(names, address)
        return wire.command(
            tag,
            argv,
            {**base, **dict(self.spec.env), **env},
            str(PurePosixPath(self.spec.workdir, cwd or "")),
            uid=self.identity(user),
            cpu_s=limits.cpu_s or 0,
            file_mb=limits.file_mb or 0,
            open_files=self.spec.limits.open_files,
        )

    def identity(self, user: User) -> int:
        """The number of a user of this sandbox."""
        return self.uid + (1 if user == "verifier" else 0)

    async def full(self) -> bool:
        """Whether the writable disk is used up."""
        keeper = await self.backend.keeper()
        answer: bool = await keeper.ask("full", scratch=self.own_scratch)
        return answer

    async def close(self) -> None:
        """End the container and let go of its layers. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self.control.close()
        if self.proxy is not None:
            await self.proxy.aclose()
        if self.proxying is not None:
            self.proxying.cancel()
        await self.backend.dispose(self)


class _Command:
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
        message = box.command(tag, argv, env, cwd, user, self._limits)
        began = loop.time()
        timer = loop.call_later(timeout_s, self._end, Outcome.TIMEOUT)
        ending = box.control.expect(tag)
        group = box.groups.killing / f"e{tag}"
        try:
            async with box.changing:
                await self._start(message, group, stdin)
            reply = await self._wait(ending, group)
            return await self._result(reply, loop.time() - began)
        except Died:
            return await self._crashed(loop.time() - began)
        finally:
            timer.cancel()
            if not ending.done() and group.is_dir():
                await self._stop_all(ending, group)
            box.control.forget(tag)
            for stream in self._streams:
                stream.close()
            with contextlib.suppress(OSError):
                group.rmdir()

    async def _start(self, message: bytes, group: Path, stdin: bytes) -> None:
        group.mkdir()
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


async def _kill(group: Path) -> None:
    """End every process of a command's group, without blocking others."""
    async with asyncio.timeout(_KILL_S):
        for empty in cgroups.kill_steps(group):
            if empty:
                return
            await asyncio.sleep(0.0005)


class OciSandbox:
    """A box under one epoch; see `headrace.sandbox.spec.Sandbox`."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._epoch = box.epoch

    @property
    def id(self) -> str:
        return self._box.id

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def spec(self) -> SandboxSpec:
        return self._box.spec

    @property
    def box(self) -> Box:
        """The container behind this handle, while the handle is the current one."""
        return self._live()

    def _live(self) -> Box:
        box = self._box
        if box.closed or box.epoch != self._epoch or not box.control.alive:
            why = "closed" if box.closed else "lost" if box.epoch == self._epoch else "another's"
            raise SandboxGone(f"sandbox {box.id} is {why}", hint="take a new one")
        return box

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: User = "agent",
        limits: ExecLimits = _DEFAULT,
    ) -> Result:
        command = _Command(self._live(), limits)
        return await command.run(argv, stdin, timeout_s, env or {}, cwd, user)

    async def put(self, archive: Path | bytes, to: str = "", *, user: User = "agent") -> None:
        source = (
            stdin_file(archive)
            if isinstance(archive, bytes)
            else os.open(archive, os.O_RDONLY | os.O_CLOEXEC)
        )
        try:
            await self._move("copy_in", to or self.spec.workdir, source, user)
        finally:
            os.close(source)

    async def put_file(self, path: str, data: bytes, *, user: User = "agent") -> None:
        source = stdin_file(data)
        try:
            await self._move("write_file", path, source, user)
        finally:
            os.close(source)

    async def get(self, path: str, into: Path, *, limit_mb: int = 1024) -> None:
        with into.open("wb") as out:
            await self._move("copy_out", path, out.fileno(), "agent", limit_mb)

    async def get_file(self, path: str, *, limit_mb: int = 16) -> bytes:
        with tempfile.TemporaryFile() as out:
            await self._move("read_file", path, out.fileno(), "agent", limit_mb)
            return _content(out)

    async def _move(self, move: str, path: str, fd: int, user: User, limit_mb: int = 0) -> None:
        box = self._live()
        keeper = await box.backend.keeper()
        answer = await keeper.ask(
            "copy",
            fds=[fd],
            id=box.id,
            move=move,
            path=path if path.startswith("/") else f"{self.spec.workdir}/{path}",
            uid=box.identity(user),
            limit=limit_mb * 2**20,
        )
        if "refused" in answer:
            raise UsageError(f"{move.replace('_', ' ')}: {answer['refused']}", where=path)
        if "full" in answer:
            raise UsageError(
                f"{move.replace('_', ' ')}: the sandbox's disk is full",
                where=path,
                hint=f"limits.disk_mb is {self.spec.limits.disk_mb}",
            )

    async def snapshot(self) -> SnapshotRef:
        box = self._live()
        async with box.changing:
            return await box.freeze()

    async def restore(self, ref: SnapshotRef) -> None:
        box = self._live()
        async with box.changing:
            await box.restore(box.backend.layers.find(ref))

    async def fork(self, count: int, *, ids: Sequence[str] | None = None) -> list[Sandbox]:
        box = self._live()
        names = (
            ids if ids is not None else [f"{box.id}-{secrets.token_hex(4)}" for _ in range(count)]
        )
        if len(names) != count:
            raise UsageError(f"{len(names)} names for {count} forks", where=box.id)
        ref = await self.snapshot()
        return await box.backend.children(box.spec, ref, names)

    async def health(self, *, timeout_s: float = 5.0) -> None:
        try:
            await self._live().control.ask(wire.Op.PING, timeout_s=timeout_s)
        except (Died, SandboxFailure) as error:
            raise SandboxGone(f"sandbox {self.id} does not answer: {error}") from error

    async def close(self) -> None:
        if self._box.epoch == self._epoch:
            await self._box.close()


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()
