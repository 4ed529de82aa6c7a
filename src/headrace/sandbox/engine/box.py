"""One container as a sandbox: commands by `exec`, files by `tar` inside, snapshots as copies.

Files are read and written by programs of the image, as the user in whose name it is done: the
engine's own `cp` would follow with its own rights the links that a candidate laid. May be known
by the engine backend only.
"""

from __future__ import annotations

import asyncio
import posixpath
import tempfile
import time
import uuid
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.errors import UsageError
from headrace.sandbox.egress.proxy import EgressProxy, listen_in_namespace
from headrace.sandbox.engine.files import complete, only_of, without_top
from headrace.sandbox.engine.home import Home, Started
from headrace.sandbox.engine.scripts import (
    NEEDED,
    PACK,
    PACK_ALL,
    PROBE,
    READ,
    UNPACK,
    UNPACK_ALL,
    WRITE,
    limited,
    redirected,
)
from headrace.sandbox.engine.view import BoxView, Counters, Process
from headrace.sandbox.process import Command, Ended, in_thread, run_command
from headrace.sandbox.spec import (
    ExecLimits,
    Outcome,
    Result,
    Sandbox,
    SandboxFailure,
    SandboxGone,
    SandboxRefused,
    SandboxSpec,
    SnapshotRef,
    Usage,
    User,
)

__all__ = ["EngineSandbox"]

_FIRST_UID = 20000
_UIDS = 13000
_GRACE_S = 10.0
_AGAIN_S = 0.2
_FILES_S = 600.0
_MEGA = 2**20
_KILLED = 9
_SIGNALS = 64
_RECORDS = 5
_LIMITS = ExecLimits()
_USERS: tuple[User, ...] = ("agent", "verifier")


@dataclass(frozen=True, slots=True)
class _Before:
    """The container when a command began."""

    processes: frozenset[Process]
    counters: Counters
    time: float


class EngineSandbox:
    """One container. See `Sandbox` for the calls.

    An engine tells a death by signal n as exit code 128 + n. That is told as a signal here, so
    a program that exits with 129 to 192 by itself is told as one, too.
    """

    def __init__(self, home: Home, spec: SandboxSpec, id: str, name: str, *, depth: int) -> None:
        self._home = home
        self._spec = spec
        self._id = id
        self.name = name
        self.nonce = uuid.uuid4().hex
        self.container: str | None = None
        self.expires = time.time() + spec.lifetime_s
        self._depth = depth
        self._first_uid = _FIRST_UID + 3 * (zlib.crc32(id.encode()) % _UIDS)
        self._started: Started | None = None
        self._base: frozenset[Process] = frozenset()
        self._proxy: EgressProxy | None = None
        self._proxied: dict[str, str] = {}
        self._running: set[str] = set()
        self._closed = False

    @property
    def id(self) -> str:
        return self._id

    @property
    def epoch(self) -> int:
        return 0

    @property
    def spec(self) -> SandboxSpec:
        return self._spec

    def uid(self, user: User | Literal["holder"]) -> int:
        """The number of a user inside."""
        return self._first_uid + (*_USERS, "holder").index(user)

    # --- beginning and end -------------------------------------------------------------------

    async def open(self, tree: Path | None) -> None:
        """Start the container with a file tree, or with what its image has."""
        self._started = await in_thread(lambda: self._home.start(self))
        view = self._started.view
        self._base = frozenset(view.processes())
        if self._spec.network.kind == "allow-list":
            await self._open_proxy(view)
        if self._started.image not in self._home.proved:
            await self._prove()
            self._home.proved.add(self._started.image)
        if tree is not None:
            for user in _USERS:
                script = ["sh", "-c", UNPACK_ALL]
                kept = tree / f"{user}.tar"
                self._expect(await self._exec(script, stdin=kept, cwd="/", user=user), "/")
        elif self._started.seed is not None:
            await self.put(self._started.seed)
        await self._start_init()

    async def close(self) -> None:
        self._closed = True
        if self._proxy is not None:
            await self._proxy.aclose()
            self._proxy = None
        await in_thread(lambda: self._home.discard(self))
        self._home.forget(self)

    async def health(self, *, timeout_s: float = 5.0) -> None:
        self._view()
        result = await self.exec(["sh", "-c", ":"], timeout_s=timeout_s)
        if not result.ok:
            raise SandboxGone(f"the sandbox does not answer: {result.stderr.text}", where=self._id)

    def _view(self) -> BoxView:
        if self._closed or self._started is None:
            raise SandboxGone("the sandbox was closed", where=self._id)
        if not self._started.view.alive():
            over = time.time() >= self.expires
            why = "its lifetime is over" if over else "its container ended"
            raise SandboxGone(f"the sandbox is gone: {why}", where=self._id)
        return self._started.view

    async def _open_proxy(self, view: BoxView) -> None:
        if self._proxy is not None:
            await self._proxy.aclose()
        self._proxy = EgressProxy(self._spec.network.allow)
        sock = await in_thread(lambda: listen_in_namespace(view.init.pid))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        await self._proxy.serve(sock)
        self._proxied = {
            **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), url),
            **dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1"),
        }

    async def _prove(self) -> None:
        result = await self.exec(
            ["sh", "-c", PROBE, "sh", self._spec.workdir, "/tmp", "/dev/shm"],
            env={"FILES": str(self._spec.limits.open_files)},
        )
        lacks = result.stdout.text.split("\n")[:-1]
        if not result.ok:
            lacks.append(f"a shell that works ({result.stderr.text.strip()})")
        if lacks:
            raise SandboxRefused(
                f"the image lacks {', '.join(lacks)}",
                where=self._spec.image,
                hint=f"an image needs {NEEDED}",
            )

    async def _start_init(self) -> None:
        if self._spec.init:
            options = self._exec_options("agent", "", self._proxied)
            args = ("exec", "--detach", *options, self.container or self.name, *self._spec.init)
            await in_thread(lambda: self._home.engine.must(*args))

    # --- commands --------------------------------------------------------------------------

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
        return await self._exec(
            argv, stdin=stdin, timeout_s=timeout_s, env=env, cwd=cwd, user=user, limits=limits
        )

    async def _exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Path = b"",
        timeout_s: float = _FILES_S,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: User = "agent",
        limits: ExecLimits = _LIMITS,
        sink: tuple[Path, int] | None = None,
    ) -> Result:
        """`stdin` may be a host file; `sink` is one for stdout, and its largest size."""
        view = self._view()
        if not argv:
            raise UsageError("a command needs at least a program")
        token = f"HEADRACE_EXEC={uuid.uuid4().hex}"
        name, _, value = token.partition("=")
        variables = {**self._proxied, **(env or {}), name: value}
        command = Command(
            argv=[
                *redirected(stdin, sink),
                *(self._home.engine.program, "exec"),
                *(("--interactive",) if stdin else ()),
                *self._exec_options(user, cwd or "", variables),
                *(self.container or self.name, *limited(argv, limits)),
            ],
            env=self._home.engine.environment(),
            cwd=Path("/"),
            tag=f"HEADRACE_ENGINE={value}",
            limits=ExecLimits(output_bytes=limits.output_bytes, flood_bytes=limits.flood_bytes),
        )
        before = _Before(frozenset(view.processes()), view.counters(), time.time())
        self._running.add(token)
        try:
            data = stdin if isinstance(stdin, bytes) else b""
            ended, late = await self._to_end(command, data, timeout_s, before, token)
        finally:
            self._running.discard(token)
        return await self._result(ended, late, before)

    async def _to_end(
        self, command: Command, stdin: bytes, timeout_s: float, before: _Before, token: str
    ) -> tuple[Ended, bool]:
        """How the engine's client ended, and whether the command's time was over. The command
        is killed inside first, so that the client can end by itself."""
        work = asyncio.ensure_future(
            run_command(command, stdin=stdin, timeout_s=timeout_s + _GRACE_S)
        )
        try:
            done, _ = await asyncio.wait({work}, timeout=timeout_s)
            late, started = not done, bool(done)
            while not work.done():
                started = await self._kill(before.processes, token) > 0 or started
                await asyncio.wait({work}, timeout=_AGAIN_S)
            ended = await work
            if late or ended.why != "ended":
                started = await self._kill(before.processes, token) > 0 or started
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.wait({work})
            await self._kill(before.processes, token)
            raise
        if ended.why == "timeout" and not started:
            raise SandboxFailure(
                f"{self._home.engine.name} exec did not start a command within {timeout_s:g} s",
                where=self._id,
                hint=ended.stderr.text[-500:],
            )
        return ended, ended.why == "timeout" or (late and started)

    async def _kill(self, keep: Collection[Process], token: str = "") -> int:
        started = self._started
        if started is None or not started.view.alive():
            return 0
        spared = self._running - {token}
        return await in_thread(lambda: started.view.kill(keep, spared))

    async def _result(self, ended: Ended, late: bool, before: _Before) -> Result:
        assert self._started is not None
        view = self._started.view
        now = view.counters()
        oom = now.oom_kills > before.counters.oom_kills
        code = ended.exit_code
        outcome = await self._outcome(ended, late, before, oom)
        killed: int | None = None
        if outcome is Outcome.CRASH:
            code = None
        elif outcome in (Outcome.TIMEOUT, Outcome.OUTPUT) or code is None:
            code, killed = None, _KILLED
        elif 128 < code <= 128 + _SIGNALS:
            code, killed = None, code - 128
        return Result(
            outcome=outcome,
            exit_code=code,
            signal=killed,
            stdout=ended.stdout,
            stderr=ended.stderr,
            usage=Usage(
                wall_s=ended.usage.wall_s,
                user_s=max(0.0, now.user_s - before.counters.user_s),
                system_s=max(0.0, now.system_s - before.counters.system_s),
                peak_memory=now.peak_memory,
            ),
            oom=oom,
            epoch=self.epoch,
        )

    async def _outcome(self, ended: Ended, late: bool, before: _Before, oom: bool) -> Outcome:
        if late:
            return Outcome.TIMEOUT
        if ended.why == "flood":
            return Outcome.OUTPUT
        view = self._started.view if self._started else None
        if view is None or not view.alive():
            if self._closed or time.time() >= self.expires:
                raise SandboxGone("the sandbox ended under a command", where=self._id)
            return Outcome.CRASH
        if ended.exit_code == 0:
            return Outcome.RESULT
        if oom:
            return Outcome.MEMORY
        if view.counters().refused > before.counters.refused:
            return Outcome.PROCESSES
        if ended.exit_code in (125, 255):
            await self._confirm(ended, before)
        if any(min(view.room(path)) < 1 for path in (self._spec.workdir, "/tmp", "/dev/shm")):
            return Outcome.DISK
        return Outcome.RESULT

    async def _confirm(self, ended: Ended, before: _Before) -> None:
        """Codes with which the engine's client reports its own failures as well: the engine's
        record of the command decides, since a candidate can write what it likes."""
        engine = self._home.engine
        for _ in range(_RECORDS):
            codes = await in_thread(
                lambda: engine.exec_codes(self.container or self.name, before.time)
            )
            if ended.exit_code in codes:
                return
            await asyncio.sleep(0.1)
        raise SandboxFailure(
            f"{engine.name} exec failed: {ended.stderr.text[-500:].strip()}", where=self._id
        )

    def _exec_options(self, user: User, cwd: str, env: Mapping[str, str]) -> list[str]:
        uid = self.uid(user)
        options = ["--user", f"{uid}:{uid}", "--workdir", self._inside(cwd)]
        for key, value in env.items():
            options += ["--env", f"{key}={value}"]
        return options

    def _inside(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._spec.workdir, path))

    # --- files -----------------------------------------------------------------------------

    async def put(self, archive: Path | bytes, to: str = "", *, user: User = "agent") -> None:
        self._view()
        room = self._spec.limits.disk_mb * _MEGA
        with tempfile.TemporaryDirectory(dir=self._home.snapshots) as scratch:
            checked = Path(scratch, "put.tar")
            await in_thread(lambda: without_top(archive, room, checked))
            target = self._inside(to)
            script = ["sh", "-c", UNPACK, "sh", target]
            self._expect(await self._exec(script, stdin=checked, cwd="/", user=user), target)

    async def put_file(self, path: str, data: bytes, *, user: User = "agent") -> None:
        target = self._inside(path)
        script = ["sh", "-c", WRITE, "sh", posixpath.dirname(target), target]
        result = await self._exec(script, stdin=data, cwd="/", user=user)
        self._expect(result, path)

    async def get(self, path: str, into: Path, *, limit_mb: int = 1024) -> None:
        target = self._inside(path)
        parent, base = posixpath.split(target)
        script = ["sh", "-c", PACK, "sh", parent, target, base or "."]
        most = limit_mb * _MEGA
        try:
            result = await self._exec(script, cwd="/", sink=(into, most + 1))
            size = into.stat().st_size if into.exists() else 0
            if size > most:
                raise UsageError(f"{path} is larger than {limit_mb} MiB", where=self._id)
            if size == 0 or not complete(into):
                self._expect(result, path)
                why = result.stderr.text.strip() or "it is missing"
                raise UsageError(f"{path} cannot be read: {why}", where=self._id)
        except BaseException:
            into.unlink(missing_ok=True)
            raise

    async def get_file(self, path: str, *, limit_mb: int = 16) -> bytes:
        most = limit_mb * _MEGA
        script = ["sh", "-c", READ, "sh", self._inside(path)]
        limits = ExecLimits(output_bytes=2 * most + 2, flood_bytes=most + 65536)
        result = await self._exec(script, cwd="/", timeout_s=60.0, limits=limits)
        if result.outcome is Outcome.OUTPUT or result.stdout.total > most:
            raise UsageError(f"{path} is larger than {limit_mb} MiB", where=self._id)
        self._expect(result, path)
        return result.stdout.data

    def _expect(self, result: Result, path: str) -> None:
        """UsageError if a program of the image could not do what it should to a path."""
        if result.ok:
            return
        if result.outcome is Outcome.CRASH:
            raise SandboxGone("the sandbox ended while files were moved", where=self._id)
        known = {3: "there is no such file", 4: "it is no regular file"}
        text = result.stderr.text.strip()[-500:]
        why = known.get(result.exit_code or 0) or text or f"it ended with {result.outcome.value}"
        if result.outcome is Outcome.DISK:
            why = f"it does not fit ({text})"
        raise UsageError(f"{path}: {why}", where=self._id)

    # --- trees -----------------------------------------------------------------------------

    async def snapshot(self) -> SnapshotRef:
        """Costs as much as the tree is large. Keeps what each of the two users owns."""
        self._view()
        await self._kill(self._base)
        ref = SnapshotRef(uuid.uuid4().hex, self._depth + 1)
        draft = self._home.snapshots / f"{ref.id}.draft"
        draft.mkdir()
        tops = [self._spec.workdir.strip("/"), "tmp", "dev/shm"]
        most = 2 * self._spec.limits.disk_mb * _MEGA + 64 * _MEGA
        for user in _USERS:
            raw = draft / "raw.tar"
            script = ["sh", "-c", PACK_ALL, "sh", *tops]
            result = await self._exec(script, cwd="/", user=user, sink=(raw, most))
            if not complete(raw):
                raise SandboxFailure(
                    f"cannot copy the tree: {result.stderr.text[-500:]}", where=self._id
                )
            kept, uid = draft / f"{user}.tar", self.uid(user)
            await in_thread(lambda raw=raw, uid=uid, kept=kept: only_of(raw, uid, kept))
            raw.unlink()
        draft.rename(self._home.snapshots / ref.id)
        self._depth = ref.depth
        await self._start_init()
        return ref

    async def restore(self, ref: SnapshotRef) -> None:
        """A new container with those files; this sandbox is gone if that fails."""
        self._view()
        tree = self._tree(ref)
        try:
            await in_thread(lambda: self._home.discard(self))
            await self.open(tree)
        except BaseException:
            await self.close()
            raise
        self._depth = ref.depth

    async def fork(self, count: int, *, ids: Sequence[str] | None = None) -> list[Sandbox]:
        names = list(ids) if ids is not None else [uuid.uuid4().hex for _ in range(count)]
        if len(names) != count:
            raise UsageError(f"{count} children need as many ids, not {len(names)}")
        ref = await self.snapshot()
        children: list[Sandbox] = []
        try:
            for name in names:
                children.append(  # noqa: PERF401 - those made so far are closed on failure
                    await self._home.begin(self._spec, name, tree=self._tree(ref), depth=ref.depth)
                )
        except BaseException:
            for child in children:
                await child.close()
            raise
        return children

    def _tree(self, ref: SnapshotRef) -> Path:
        tree = self._home.snapshots / ref.id
        if len(ref.id) != 32 or not ref.id.isalnum() or not tree.is_dir():
            raise UsageError("no such snapshot", where=ref.id)
        return tree
