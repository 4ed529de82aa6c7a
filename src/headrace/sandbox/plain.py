"""The backend `subprocess`: child processes in a directory of their own, for tests only.

It isolates nothing: a command runs as this user, sees the whole machine and may use all of it.
Only what is one's own belongs here (class `trusted`). The file tree is a directory, and
`/workspace/x` of a caller is `<directory>/workspace/x`; commands start with the working
directory inside it, but absolute paths in their arguments are the machine's.
"""

from __future__ import annotations

import io
import shutil
import tarfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeVar

from headrace.errors import UsageError
from headrace.sandbox.process import Command, in_thread, kill_tree, run_command, start_command
from headrace.sandbox.shelf import Shelf, box_directory, remove_tree, unpacking_lacks
from headrace.sandbox.spec import (
    Backend,
    Capabilities,
    ExecLimits,
    Isolation,
    Outcome,
    Result,
    Sandbox,
    SandboxFailure,
    SandboxGone,
    SandboxRefused,
    SandboxSpec,
    SnapshotRef,
    User,
)

__all__ = ["PlainBackend", "PlainSandbox"]

_NAME = "subprocess"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MEGA = 2**20
_LIMITS = ExecLimits()
_OUTCOMES = {"ended": Outcome.RESULT, "timeout": Outcome.TIMEOUT, "flood": Outcome.OUTPUT}
T = TypeVar("T")


class PlainBackend:
    """Sandboxes that are directories, and commands that are child processes. Trusted only."""

    def __init__(self) -> None:
        self._boxes: dict[str, PlainSandbox] = {}
        self._shelf = Shelf(_NAME)

    @property
    def name(self) -> str:
        return _NAME

    def available(self) -> str | None:
        """None: it works wherever Python does, where `/proc` can be read."""
        if not Path("/proc/self/stat").exists():
            return "it needs /proc (Linux)"
        return unpacking_lacks()

    def capabilities(self) -> Capabilities:
        """No limit is enforced, and every network is reached."""
        return Capabilities(
            isolation=Isolation.TRUSTED,
            limits=frozenset(),
            networks=frozenset({"full"}),
            snapshot="emulated",
            fork="emulated",
            images=("host",),
            recycle=True,
        )

    async def create(self, spec: SandboxSpec, *, id: str) -> Sandbox:
        """A new directory. Raises SandboxRefused for anything but a trusted host image with
        full network and no mounts."""
        lacks = self.capabilities().missing(spec) + (["mounts"] if spec.mounts else [])
        if lacks:
            raise SandboxRefused(
                f"the backend {_NAME} does not give {', '.join(lacks)}",
                hint="it is for tests: isolation trusted, network full",
            )
        return self.begin(spec, id, tree=None)

    async def recycle(self, sandbox: Sandbox, *, epoch: int) -> Sandbox | None:
        """An empty tree under the same id; the old handle is stale."""
        if not isinstance(sandbox, PlainSandbox) or self._boxes.get(sandbox.id) is not sandbox:
            return None
        await sandbox.close()
        return self.begin(sandbox.spec, sandbox.id, tree=None, epoch=epoch)

    def reap(self, ids: Sequence[str]) -> list[str]:
        """Kill what was started in these and remove their directories, and snapshots of dead
        processes."""
        gone: list[str] = []
        for id in ids:
            kill_tree(_tag(id))
            remove_tree(box_directory(_NAME, id))
            if not box_directory(_NAME, id).exists():
                gone.append(id)
        self._shelf.sweep()
        return gone

    async def aclose(self) -> None:
        """Close every sandbox and drop all snapshots; one that fails does not stop others."""
        failures: list[SandboxFailure] = []
        for box in list(self._boxes.values()):
            try:
                await box.close()
            except SandboxFailure as error:
                failures.append(error)
        self._shelf.close()
        if failures:
            raise failures[0]

    # --- for its sandboxes -----------------------------------------------------------------

    def begin(
        self, spec: SandboxSpec, id: str, *, tree: Path | None, epoch: int = 0
    ) -> PlainSandbox:
        if id in self._boxes:
            raise UsageError("there is a sandbox of that name", where=id)
        box = PlainSandbox(self, spec, id, epoch)
        self._boxes[id] = box
        try:
            box.fill(tree)
        except BaseException:
            self.end(box)
            raise
        return box

    def end(self, box: PlainSandbox) -> None:
        if self._boxes.get(box.id) is box:
            kill_tree(_tag(box.id))
            remove_tree(box_directory(_NAME, box.id))
            del self._boxes[box.id]

    def snapshot_path(self, ref: str) -> Path:
        return self._shelf.place(ref)


class PlainSandbox:
    """One directory. See `Sandbox` for the calls."""

    def __init__(self, backend: PlainBackend, spec: SandboxSpec, id: str, epoch: int) -> None:
        self._backend = backend
        self._spec = spec
        self._id = id
        self._epoch = epoch
        self._depth = 0
        self._tree = box_directory(_NAME, id) / "tree"
        self._closed = False

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
        command = Command(
            argv=argv,
            env={**self._environment(), **(env or {}), "HEADRACE_SANDBOX": self._id},
            cwd=self._inside(cwd or ""),
            tag=f"HEADRACE_EXEC={uuid.uuid4().hex}",
            limits=limits,
        )
        ended = await run_command(command, stdin=stdin, timeout_s=timeout_s)
        return Result(
            outcome=_OUTCOMES[ended.why],
            exit_code=ended.exit_code,
            signal=ended.signal,
            stdout=ended.stdout,
            stderr=ended.stderr,
            usage=ended.usage,
            oom=False,
            epoch=self._epoch,
        )

    async def put(self, archive: Path | bytes, to: str = "", *, user: User = "agent") -> None:
        del user
        self._check()
        target = self._inside(to)
        room = self._spec.limits.disk_mb * _MEGA

        def unpack() -> None:
            with io.BytesIO(archive) if isinstance(archive, bytes) else archive.open("rb") as file:
                _unpack(file, target, room)

        await self._guard(unpack, "put")

    async def put_file(self, path: str, data: bytes, *, user: User = "agent") -> None:
        del user
        self._check()
        target = self._inside(path)
        if len(data) > self._spec.limits.disk_mb * _MEGA:
            raise UsageError(f"{path} does not fit into disk_mb", where=self._id)

        def write() -> None:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

        await self._guard(write, path)

    async def get(self, path: str, into: Path, *, limit_mb: int = 1024) -> None:
        self._check()
        source = self._inside(path)
        await self._guard(lambda: _pack(source, into, limit_mb * _MEGA), path)

    async def get_file(self, path: str, *, limit_mb: int = 16) -> bytes:
        self._check()
        source = self._inside(path)
        return await self._guard(lambda: _contents(source, limit_mb * _MEGA), path)

    async def snapshot(self) -> SnapshotRef:
        """A copy of the tree: costs as much as the tree is large."""
        self._check()
        kill_tree(_tag(self._id))
        ref = SnapshotRef(uuid.uuid4().hex, self._depth + 1)
        frozen = self._backend.snapshot_path(ref.id)
        await self._guard(lambda: _copy(self._tree, frozen), "snapshot")
        self._depth = ref.depth
        self._start_init()
        return ref

    async def restore(self, ref: SnapshotRef) -> None:
        self._check()
        frozen = self._backend.snapshot_path(ref.id)
        if not frozen.is_dir():
            raise UsageError("no such snapshot", where=ref.id)
        kill_tree(_tag(self._id))

        def replace() -> None:
            remove_tree(self._tree)
            _copy(frozen, self._tree)

        await self._guard(replace, "restore")
        self._depth = ref.depth
        self._start_init()

    async def fork(self, count: int, *, ids: Sequence[str] | None = None) -> list[Sandbox]:
        names = list(ids) if ids is not None else [uuid.uuid4().hex for _ in range(count)]
        if len(names) != count:
            raise UsageError(f"{count} children need as many ids, not {len(names)}")
        ref = await self.snapshot()
        frozen = self._backend.snapshot_path(ref.id)
        children: list[Sandbox] = []
        try:
            children.extend(self._backend.begin(self._spec, name, tree=frozen) for name in names)
        except BaseException:
            for child in children:
                await child.close()
            raise
        return children

    async def health(self, *, timeout_s: float = 5.0) -> None:
        del timeout_s
        self._check()
        if not self._tree.is_dir():
            raise SandboxGone("its directory was removed", where=self._id)

    async def close(self) -> None:
        self._closed = True
        self._backend.end(self)

    def fill(self, tree: Path | None) -> None:
        """Make the tree: empty, or a copy of `tree`; and start `spec.init`."""
        try:
            self._tree.parent.mkdir(parents=True)
        except FileExistsError:
            raise SandboxFailure("there is a sandbox of that id", where=self._id) from None
        if tree is None:
            for inside in (self._spec.workdir, "/tmp"):
                (self._tree / inside.lstrip("/")).mkdir(parents=True, exist_ok=True)
        else:
            _copy(tree, self._tree)
        self._start_init()

    def _start_init(self) -> None:
        if self._spec.init:
            start_command(
                Command(
                    argv=self._spec.init,
                    env=self._environment(),
                    cwd=self._inside(""),
                    tag=_tag(self._id),
                )
            )

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": _PATH,
            "LANG": "C.UTF-8",
            "HOME": str(self._inside("")),
            "TMPDIR": str(self._inside("/tmp")),
            **dict(self._spec.env),
        }

    def _check(self) -> None:
        if self._closed:
            raise SandboxGone("the sandbox was closed", where=self._id)

    def _inside(self, path: str) -> Path:
        """The host's name of a path of the sandbox; UsageError if it leaves the tree."""
        workdir = self._tree / self._spec.workdir.lstrip("/")
        named = self._tree / path.lstrip("/") if path.startswith("/") else workdir / path
        try:
            real = named.resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise UsageError(f"not a path: {error}", where=path) from error
        if not real.is_relative_to(self._tree.resolve()):
            raise UsageError("the path leaves the sandbox", where=path)
        return real

    async def _guard(self, work: Callable[[], T], what: str) -> T:
        """Do file work in a thread; a failure of the machine is a SandboxFailure."""
        try:
            return await in_thread(work)
        except FileNotFoundError as error:
            raise UsageError("there is no such file", where=what) from error
        except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
            raise UsageError(f"not possible there: {error.strerror}", where=what) from error
        except OSError as error:
            raise SandboxFailure(f"file work failed: {error}", where=what) from error


def plain() -> Backend:
    """The entry point."""
    return PlainBackend()


def _tag(id: str) -> str:
    return f"HEADRACE_SANDBOX={id}"


def _copy(source: Path, target: Path) -> None:
    """A copy of a tree, links as links; what is neither file, link nor directory is left out."""

    def special(directory: str, names: list[str]) -> list[str]:
        return [
            name
            for name in names
            if not (path := Path(directory, name)).is_symlink()
            and not path.is_file()
            and not path.is_dir()
        ]

    try:
        shutil.copytree(source, target, symlinks=True, ignore=special)
    except shutil.Error as error:
        raise SandboxFailure(f"cannot copy a tree: {error.args[0][0][2]}") from error


def _unpack(source: IO[bytes], target: Path, room: int) -> None:
    try:
        with tarfile.open(fileobj=source, mode="r:") as archive:
            size = sum(max(member.size, 0) for member in archive)
            if size > room:
                raise UsageError(f"an archive of {size} bytes does not fit into {room}")
            target.mkdir(parents=True, exist_ok=True)
            archive.extractall(target, filter="data")
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise UsageError(f"not an archive that can be unpacked: {error}") from error


def _pack(source: Path, into: Path, limit: int) -> None:
    size = 0

    def count(member: tarfile.TarInfo) -> tarfile.TarInfo:
        nonlocal size
        size += member.size
        if size > limit:
            raise UsageError(f"larger than {limit} bytes", where=source.name)
        return member

    try:
        with tarfile.open(into, mode="w:") as archive:
            archive.add(source, arcname=source.name or ".", filter=count)
    except BaseException:
        into.unlink(missing_ok=True)
        raise


def _contents(source: Path, limit: int) -> bytes:
    if source.exists() and not source.is_file():
        raise UsageError("not a regular file", where=source.name)
    with source.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise UsageError(f"larger than {limit} bytes", where=source.name)
    return data
