"""A container with its layers: trees through the keeper, messages to its supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from headrace.sandbox.oci import cgroups, wire
from headrace.sandbox.oci.control import Control, Died
from headrace.sandbox.oci.layers import Stack
from headrace.sandbox.oci.trees import Layer
from headrace.sandbox.spec import (
    ExecLimits,
    SandboxSpec,
    SnapshotRef,
    User,
)

if TYPE_CHECKING:
    from headrace.sandbox.egress import EgressProxy
    from headrace.sandbox.images import Image
    from headrace.sandbox.oci.backend import OciBackend
    from headrace.sandbox.oci.client import Keeper

__all__ = ["PROXY_PORT", "Box"]

PROXY_PORT = 3128
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CHDIR, _EXEC, _FORK = 10, 11, 12
_DEFAULT = ExecLimits()
_KILL_S = 10.0
_AGAIN_S = 0.02
_RESET_S = 10.0
_SOON_S = 0.02


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
        self.root = 0
        self.running = 0
        self.left_over = bool(spec.init)
        self.snapshots: set[str] = set()
        self.counts = cgroups.Counts(0, 0, 0)
        self.proxy: EgressProxy | None = None
        self.proxying: asyncio.Task[None] | None = None
        self.changing = asyncio.Lock()
        self._ready: Path | None = None
        self._soon: asyncio.TimerHandle | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._groups = 0

    # --- trees -----------------------------------------------------------------------------

    async def fresh(self) -> None:
        """An untouched tree, of a user that never was, on scratch space of its own."""
        layers = self.backend.layers
        old, self.own_scratch = self.own_scratch, layers.new_scratch()
        below, self.frozen = self.frozen, ()
        self.uid = self.backend.identity()
        self.left_over = bool(self.spec.init)
        freed = layers.let_go(below) + (layers.release(old) if old else [])
        first = Layer(self.own_scratch, 0)
        await self._show(first, size_mb=self.spec.limits.disk_mb, drop=freed)

    async def freeze(self) -> SnapshotRef:
        """A snapshot of the tree; a new live layer is on top of it."""
        await self._end_all()
        assert self.live is not None
        stack = Stack((self.live, *self.frozen), self.uid)
        ref = self.backend.layers.remember(stack)
        self.snapshots.add(ref.id)
        await self._stand_on(stack)
        await self.begin()
        return ref

    async def restore(self, stack: Stack) -> None:
        """The tree of a snapshot, with nothing of what came after."""
        await self._end_all()
        old = self.live
        await self._stand_on(stack, without=old)
        await self.begin()

    async def _end_all(self) -> None:
        """End what runs, if anything does: a command whose group could be removed left nothing."""
        if self.running or self.left_over:
            await self.reset()
            self.left_over = bool(self.spec.init)

    async def reset(self) -> bool:
        """End every process; whether the kernel holds nothing else of them (shared memory)."""
        if self._soon is not None:
            self._soon.cancel()
        self._ready = None
        reply = await self.control.ask(wire.Op.RESET, timeout_s=_RESET_S)
        for group in self.groups.killing.iterdir():
            if group.is_dir():
                cgroups.remove(group)
        return reply.value == 0

    async def _stand_on(self, stack: Stack, *, without: Layer | None = None) -> None:
        """A new live layer on that stack; the layer `without` is deleted."""
        layers = self.backend.layers
        layers.hold(stack.layers)
        old, self.frozen, self.uid = self.frozen, stack.layers, stack.uid
        live = layers.next_of(self.own_scratch)
        await self._show(live, drop=layers.let_go(old), without=without)

    async def _show(
        self,
        live: Layer,
        *,
        size_mb: int = 0,
        drop: Sequence[int] = (),
        without: Layer | None = None,
    ) -> None:
        keeper = await self.backend.keeper()
        self.live = None
        try:
            await self._ask_to_show(keeper, live, size_mb, drop, without)
        except BaseException:
            self.control.close()
            raise
        self.live = live

    async def _ask_to_show(
        self,
        keeper: Keeper,
        live: Layer,
        size_mb: int,
        drop: Sequence[int],
        without: Layer | None,
    ) -> None:
        self.root = await keeper.ask(
            "show",
            id=self.id,
            live=[live.scratch, live.number],
            frozen=[[layer.scratch, layer.number] for layer in self.frozen],
            image=str(self.image.lower),
            programs=[[str(source), target] for source, target in self.programs()],
            workdir=self.spec.workdir,
            uid=self.uid,
            online=self.spec.network.kind == "full",
            size_mb=size_mb,
            drop=list(drop),
            without=None if without is None else [without.scratch, without.number],
        )

    def programs(self) -> list[tuple[Path, str]]:
        """Host directories laid over the tree."""
        mounts = [(mount.source, mount.target) for mount in self.spec.mounts]
        return [*self.image.programs, *mounts]

    async def begin(self) -> None:
        """What a new tree begins with: the specification's own process, which is left running,
        and soon a child that waits for the first command."""
        if self.spec.init:
            await self._start_init()
        self.prepare_soon()

    async def prepare(self) -> None:
        """Have a child wait in a control group for the next command: after a while without
        changes, joining a v1 group takes the kernel ten milliseconds and holds up every fork
        meanwhile, so it is done when nobody waits."""
        if self._ready is None:
            self._ready = self._new_group()
            fd = os.open(self._ready / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
            try:
                await self.control.send(wire.request(wire.Op.PREPARE, 0), [fd])
            finally:
                os.close(fd)

    def prepare_soon(self) -> None:
        """As `prepare`, if nothing else happens for a moment."""
        if self._soon is not None:
            self._soon.cancel()
        self._soon = asyncio.get_running_loop().call_later(_SOON_S, self._prepare_if_idle)

    def _prepare_if_idle(self) -> None:
        self._soon = None
        if self.control.alive and not self.changing.locked():
            self._preparing = asyncio.ensure_future(self._prepare_now())

    async def _prepare_now(self) -> None:
        # Who reaps a sandbox takes its groups first; the next call finds out that it is gone.
        with contextlib.suppress(Died, FileNotFoundError):
            async with self.changing:
                await self.prepare()

    def take_group(self) -> Path:
        """A control group for one command: the one in which a child waits, if there is one."""
        group, self._ready = self._ready, None
        return group or self._new_group()

    def _new_group(self) -> Path:
        self._groups += 1
        group = self.groups.killing / f"e{self._groups}"
        group.mkdir()
        return group

    async def _start_init(self) -> None:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            tag = self.control.next_tag()
            message = self.command(tag, self.spec.init, {}, None, "agent", ExecLimits())
            group = self.take_group()
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
            root=self.root,
            prepared=True,
        )

    def file_message(
        self, tag: int, mode: wire.Mode, path: str, user: User, limit_mb: int
    ) -> bytes:
        """The message that has one file written or read."""
        return wire.command(
            tag,
            [str(PurePosixPath(self.spec.workdir, path))],
            {},
            "/",
            uid=self.identity(user),
            cpu_s=0,
            file_mb=limit_mb,
            open_files=self.spec.limits.open_files,
            root=self.root,
            mode=mode,
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
        if self._soon is not None:
            self._soon.cancel()
        self.control.close()
        if self.proxy is not None:
            await self.proxy.aclose()
        if self.proxying is not None:
            self.proxying.cancel()
        await self.backend.dispose(self)
