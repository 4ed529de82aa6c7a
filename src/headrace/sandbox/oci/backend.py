"""The oci backend: containers by a well-kept runtime, file trees from layers, one keeper.

Needs a runtime (crun or runc), overlayfs, a C compiler for the supervisor on first use, and root
or what `rootless` says. Found by the name "oci"; see docs/sandboxes.md for what isolates what.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import fcntl
import os
import resource
import secrets
import shutil
import socket
import sys
import time
import weakref
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.sandbox import images
from headrace.sandbox.egress import EgressProxy
from headrace.sandbox.oci import build, bundle, cgroups, rootless
from headrace.sandbox.oci.box import PROXY_PORT, Box
from headrace.sandbox.oci.client import Keeper, homes
from headrace.sandbox.oci.control import Control
from headrace.sandbox.oci.handle import OciSandbox
from headrace.sandbox.oci.layers import Layers
from headrace.sandbox.spec import (
    Capabilities,
    Isolation,
    Sandbox,
    SandboxFailure,
    SandboxRefused,
    SandboxSpec,
    SnapshotRef,
)

__all__ = ["OciBackend"]

_RUNTIMES = ("crun", "runc")
_NEW_S = 60.0
_CAPABILITIES = Capabilities(
    isolation=Isolation.NAMESPACE,
    limits=frozenset({"memory_mb", "disk_mb", "cpus", "processes", "open_files"}),
    networks=frozenset({"none", "allow-list", "full"}),
    snapshot="native",
    fork="native",
    users=True,
    images=("host", "dir"),
    recycle=True,
)


class OciBackend:
    """See `headrace.sandbox.spec.Backend`. Use from one event loop."""

    name = "oci"

    def __init__(self, runtime: str | None = None) -> None:
        names = (runtime,) if runtime else _RUNTIMES
        self._runtime = next((path for name in names if (path := shutil.which(name))), None)
        self._keeper: Keeper | None = None
        self._boxes: dict[str, Box] = {}
        self.layers = Layers()

    @property
    def runtime(self) -> str | None:
        """The path of the OCI runtime in use."""
        return self._runtime

    def available(self) -> str | None:
        if sys.platform != "linux":
            return "it needs Linux"
        if self._runtime is None:
            return "no OCI runtime: apt-get install crun"
        if not _has_overlayfs():
            return "the kernel has no overlayfs"
        if build.compiler() is None:
            return "no C compiler for the supervisor: apt-get install gcc libc6-dev"
        return rootless.lacks()

    def capabilities(self) -> Capabilities:
        return replace(_CAPABILITIES, renames_frozen=not rootless.confined())

    async def keeper(self) -> Keeper:
        """The keeper, started on first use (SandboxFailure if it has died)."""
        if self._keeper is None:
            if reason := self.available():
                raise SandboxRefused(f"the oci backend cannot work here: {reason}")
            place = rootless.place()
            assert self._runtime is not None
            assert place is not None
            self._sweep()
            _allow_many_files()
            self._keeper = Keeper(self._runtime, place, on_loss=self._lose_all)
            atexit.register(_hang_up, weakref.ref(self._keeper))
        elif not self._keeper.alive and not self._boxes:
            await self._keeper.aclose()
            self._keeper = None
            return await self.keeper()
        return self._keeper

    def _lose_all(self) -> None:
        """Without its keeper no sandbox can be changed or removed: end them all."""
        for box in self._boxes.values():
            box.control.close()

    # --- making ----------------------------------------------------------------------------

    async def create(self, spec: SandboxSpec, *, id: str) -> Sandbox:
        box = await self._container(spec, id)
        return await self._or_close(box, self._furnish(box))

    async def children(
        self, spec: SandboxSpec, ref: SnapshotRef, ids: Sequence[str]
    ) -> list[Sandbox]:
        """New sandboxes with the tree of a snapshot, all or none."""
        made: list[Sandbox] = []
        try:
            for id in ids:
                sandbox = await self.create(spec, id=id)
                made.append(sandbox)
                await sandbox.restore(ref)
        except BaseException:
            await asyncio.gather(*(sandbox.close() for sandbox in made))
            raise
        return made

    def identity(self) -> int:
        """The first of two user numbers that no other sandbox of this manager has; which ones,
        cannot be foreseen."""
        taken = {box.uid for box in self._boxes.values()}
        users = rootless.users()[::2]
        if len(taken) >= len(users):
            raise SandboxFailure(f"all {len(users)} pairs of user numbers are taken")
        while (uid := users[secrets.randbelow(len(users))]) in taken:
            continue
        return uid

    async def _furnish(self, box: Box) -> Sandbox:
        await box.fresh()
        if box.spec.network.kind == "allow-list":
            box.proxy = EgressProxy(box.spec.network.allow)
            listening = await box.control.listen(PROXY_PORT)
            box.proxying = asyncio.ensure_future(box.proxy.serve(listening))
        await box.begin()
        return OciSandbox(box)

    async def _or_close(self, box: Box, work: Coroutine[Any, Any, Sandbox]) -> Sandbox:
        try:
            return await work
        except BaseException:
            await asyncio.shield(box.close())
            raise

    async def _container(self, spec: SandboxSpec, id: str) -> Box:
        if lacks := self.capabilities().missing(spec):
            raise SandboxRefused(f"the oci backend cannot give {'; '.join(lacks)}")
        if id in self._boxes:
            raise UsageError("there is a sandbox of that name", where=id)
        image = images.resolve(spec.image)
        image.check(spec.mounts)
        keeper = await self.keeper()
        root = str(build.container_root())
        config = bundle.config(spec, id=id, root=root, cgroup=f"{keeper.cgroup}/{id}")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        control = Control(ours)
        try:
            answer = await keeper.ask(
                "start", fds=[theirs.fileno()], id=id, config=config, limits=asdict(spec.limits)
            )
        except BaseException:
            control.close()
            if keeper.alive:
                with contextlib.suppress(SandboxFailure):
                    await asyncio.shield(keeper.ask("stop", id=id))
            raise
        finally:
            theirs.close()
        groups = {name: Path(path) for name, path in answer["groups"].items()}
        box = Box(self, id, spec, image, control, cgroups.Groups(groups, answer["v2"]))
        self._boxes[id] = box
        return box

    # --- ending ----------------------------------------------------------------------------

    async def recycle(self, sandbox: Sandbox, *, epoch: int) -> Sandbox | None:
        if not isinstance(sandbox, OciSandbox):
            raise SandboxFailure(f"{sandbox.id} is not of the oci backend")
        box = sandbox.box
        async with box.changing:
            box.epoch = epoch
            if not await box.reset():
                return None
            self.layers.forget(box.snapshots)
            box.snapshots.clear()
            await box.fresh()
            box.groups.reset_peak()
            await box.begin()
            await box.prepare()
        return OciSandbox(box)

    async def dispose(self, box: Box) -> None:
        """Everything of a box whose control is closed."""
        self._boxes.pop(box.id, None)
        self.layers.forget(box.snapshots)
        keeper = self._keeper
        if keeper is None or not keeper.alive:
            return
        await keeper.ask("stop", id=box.id)
        freed = self.layers.let_go(box.frozen)
        if box.own_scratch:
            freed += self.layers.release(box.own_scratch)
        if freed:
            await keeper.ask("drop", scratches=freed)

    def reap(self, ids: Sequence[str]) -> list[str]:
        self._sweep(set(ids))
        return list(ids)

    def _sweep(self, ids: Collection[str] = ()) -> None:
        """Remove what keepers left that are no more: their groups, then their directories; and
        the groups of `ids` in any case."""
        living: set[str] = set()
        dead: list[Path] = []
        for home in homes().iterdir():
            (dead.append(home) if _abandoned(home) else living.update(_ids(home)))
        stale = ({id for home in dead for id in _ids(home)} - living).union(ids)
        places = {_place(home) for home in homes().iterdir()} | {rootless.place()}
        for place in places:
            if place:
                cgroups.sweep(place, stale.__contains__)
        for home in dead:
            shutil.rmtree(home, ignore_errors=True)

    async def aclose(self) -> None:
        boxes = list(self._boxes.values())
        failures = await asyncio.gather(*(box.close() for box in boxes), return_exceptions=True)
        if self._keeper is not None:
            await self._keeper.aclose()
            self._keeper = None
        for failure in failures:
            if isinstance(failure, BaseException):
                raise failure


def _has_overlayfs() -> bool:
    """Loaded, or a module that the first mount loads."""
    if "overlay" in Path("/proc/filesystems").read_text():
        return True
    return any(Path("/lib/modules", os.uname().release).glob("kernel/fs/overlayfs/overlay.ko*"))


def _allow_many_files() -> None:
    """Each sandbox and each running command holds descriptors: take all that are allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _abandoned(home: Path) -> bool:
    """Whether no keeper holds its lock; one without a lock is new, or half removed for long."""
    try:
        lock = os.open(home / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return home.is_dir() and time.time() - home.stat().st_mtime > _NEW_S
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _ids(home: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return [path.name for path in (home / "b").iterdir()]
    return []


def _place(home: Path) -> str | None:
    """Where the groups of a keeper's sandboxes are; None for one that has just been made."""
    with contextlib.suppress(FileNotFoundError):
        return (home / "cgroup").read_text()
    return None


def _hang_up(keeper: weakref.ref[Keeper]) -> None:
    found = keeper()
    if found is not None and found.alive:
        found.hang_up_now()
