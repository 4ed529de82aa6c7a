"""The backend `sandlock`: Landlock, seccomp and a sized private file tree, without root and
without an OCI runtime (class `process`).

It stands on the package sandlock (`pip install headrace[sandlock]`), and adds what that lacks
for whole machines with a file tree: see `runner` for the view of the machine, and
`inside` for what runs in a box. Every command of a sandbox is in one confinement, so
limits hold for all of them together.

What was found of sandlock 0.9.0, and what follows from it here:

- its copy-on-write directory checks its quota when a file is opened, not when it is written,
  and does not show new files to every system call (`ls -l` fails on them). It is not used:
  the disk is a `tmpfs` with a size, and snapshots are copies (archives).
- its process limit does not count threads. The runner counts all tasks when it is told of a
  start, and refuses; RLIMIT_NPROC stands behind that.
- its memory limit counts mapped writable memory (a thread counts with its whole stack), over
  all processes, but not memory files, so `memfd_create` is denied. A process over the limit
  gets SIGKILL and nothing says why: a command that ended by a SIGKILL which no process of the
  box sent is taken for it. That a process below the command had it, nobody sees.
- it answers many system calls itself, and those may be interrupted (EINTR) where the kernel's
  are not, when a program handles signals without SA_RESTART.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.sandbox.egress.allowlist import parse_endpoint
from headrace.sandbox.process import kill_tree
from headrace.sandbox.sandlock.box import Box
from headrace.sandbox.sandlock.handle import SHARED, SandlockSandbox
from headrace.sandbox.shelf import Shelf, box_directory, remove_tree, unpacking_lacks
from headrace.sandbox.spec import (
    Backend,
    Capabilities,
    Isolation,
    Network,
    Sandbox,
    SandboxFailure,
    SandboxRefused,
    SandboxSpec,
    SnapshotRef,
)

__all__ = ["SandlockBackend", "SandlockSandbox", "sandlock"]

_NAME = "sandlock"
_ABI = 6
_CREATE_RULESET = 444
_USERS, _USER_BITS = 0x60000000, 28
_PROBE = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare({flags}) != 0)"


class SandlockBackend:
    """Sandboxes confined by Landlock and seccomp. Needs Linux 6.7 with Landlock ABI 6, and user
    namespaces or root."""

    def __init__(self) -> None:
        self._boxes: dict[str, SandlockSandbox] = {}
        self._shelf = Shelf(_NAME)

    @property
    def name(self) -> str:
        return _NAME

    def available(self) -> str | None:
        """None, or which of the package, the kernel and the namespaces is missing."""
        if importlib.util.find_spec("sandlock") is None:
            return "the package sandlock is not installed: pip install 'headrace[sandlock]'"
        return unpacking_lacks() or _machine_lacks()

    def capabilities(self) -> Capabilities:
        """All five limits hold for the whole sandbox (tests/sandbox/test_sandlock.py)."""
        return Capabilities(
            isolation=Isolation.PROCESS,
            limits=frozenset({"memory_mb", "disk_mb", "cpus", "processes", "open_files"}),
            networks=frozenset({"none", "allow-list"}),
            snapshot="emulated",
            fork="emulated",
            users=False,
            images=("host",),
            recycle=True,
        )

    async def create(self, spec: SandboxSpec, *, id: str) -> Sandbox:
        return await self.begin(spec, id)

    async def recycle(self, sandbox: Sandbox, *, epoch: int) -> Sandbox | None:
        """The same confinement with an emptied tree; None if that cannot be done."""
        if not isinstance(sandbox, SandlockSandbox) or self._boxes.get(sandbox.id) is not sandbox:
            return None
        try:
            fresh = await sandbox.renewed(epoch)
        except SandboxFailure:
            return None
        self._boxes[sandbox.id] = fresh
        return fresh

    def reap(self, ids: Sequence[str]) -> list[str]:
        """Kill what runs in these (their runner, whose end is theirs) and forget them."""
        gone: list[str] = []
        for id in ids:
            home = box_directory(_NAME, id)
            kill_tree(_tag(id), user=_user(id))
            remove_tree(home)
            if not home.exists():
                gone.append(id)
        self._shelf.sweep()
        return gone

    async def aclose(self) -> None:
        """Close every sandbox and drop all snapshots; one that fails does not stop others."""
        boxes = list(self._boxes.values())
        ends = await asyncio.gather(*(box.close() for box in boxes), return_exceptions=True)
        self._shelf.close()
        for end in ends:
            if end is not None:
                raise end

    # --- for its sandboxes -----------------------------------------------------------------

    async def begin(
        self, spec: SandboxSpec, id: str, *, tree: SnapshotRef | None = None
    ) -> SandlockSandbox:
        """A new sandbox, with the tree of a snapshot or an empty one."""
        lacks = self.capabilities().missing(spec)
        if lacks:
            raise SandboxRefused(f"the backend {_NAME} does not give {', '.join(lacks)}")
        config = _config(spec, id)
        try:
            box_directory(_NAME, id).mkdir(parents=True)
        except FileExistsError:
            raise SandboxFailure("there is a sandbox of that id", where=id) from None
        try:
            box = Box(config, _tag(id), _user(id))
        except OSError as error:
            remove_tree(box_directory(_NAME, id))
            raise SandboxFailure(f"cannot start a runner: {error}", where=id) from error
        sandbox = SandlockSandbox(self, spec, id, epoch=0, box=box)
        self._boxes[id] = sandbox
        try:
            await sandbox.open(tree)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def end(self, sandbox: SandlockSandbox, box: Box) -> None:
        if self._boxes.get(sandbox.id) is sandbox:
            await box.close()
            remove_tree(box_directory(_NAME, sandbox.id))
            self._boxes.pop(sandbox.id, None)

    def snapshot_path(self, ref: SnapshotRef) -> Path:
        return self._shelf.place(ref.id)


def sandlock() -> Backend:
    """The entry point."""
    return SandlockBackend()


def _tag(id: str) -> str:
    return f"HEADRACE_SANDBOX={id}"


def _user(id: str) -> int:
    """The user id that only this sandbox has, where there are user ids to give; else -1."""
    if os.geteuid() != 0:
        return -1
    digest = hashlib.sha256(id.encode()).digest()
    return _USERS + int.from_bytes(digest[:4], "big") % (1 << _USER_BITS)


@functools.cache
def _machine_lacks() -> str | None:
    libc = ctypes.CDLL(None, use_errno=True)
    abi = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    if abi < _ABI:
        return f"the kernel has Landlock ABI {max(abi, 0)}, not {_ABI}: Linux 6.12 or later"
    flags = 0x20000 if os.geteuid() == 0 else 0x10020000
    probe = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _PROBE.format(flags=flags)], check=False
    )
    if probe.returncode != 0:
        return "no private mount namespace: allow user namespaces, or run as root"
    return None


def _config(spec: SandboxSpec, id: str) -> dict[str, Any]:
    """What the runner is told. Raises SandboxRefused for what it cannot give."""
    limits = spec.limits
    python = Path(sys.executable).resolve()
    mounts = [[str(mount.source), mount.target] for mount in spec.mounts]
    prefix = Path(sys.base_prefix).resolve()
    if not prefix.is_relative_to("/usr") and not prefix.is_relative_to("/opt"):
        mounts.append([str(prefix), str(prefix)])
    source = Path(__file__).with_name("inside.py").read_text()
    return {
        "id": id,
        "user": _user(id),
        "memory_mb": limits.memory_mb - limits.disk_mb,
        "disk_mb": limits.disk_mb,
        "processes": limits.processes,
        "open_files": limits.open_files,
        **_processors(limits.cpus, id),
        "allow": _rules(spec.network),
        "mounts": mounts,
        "writable": [spec.workdir, *SHARED],
        "lifetime_s": spec.lifetime_s,
        "supervisor": [str(python), "-I", "-S", "-c", source],
    }


def _processors(cpus: float, id: str) -> dict[str, Any]:
    """Whole processors by pinning, which the kernel enforces; a part of one by sandlock's
    stopping and continuing of the whole box."""
    if cpus < 1:
        return {"cores": None, "cpu_percent": max(1, int(cpus * 100))}
    if cpus != int(cpus):
        raise SandboxRefused(
            f"the backend {_NAME} gives whole processors or less than one, not {cpus}",
            hint=f"cpus = {int(cpus)}",
        )
    cores = sorted(os.sched_getaffinity(0))
    first = int.from_bytes(hashlib.sha256(id.encode()).digest()[:4], "big")
    count = min(int(cpus), len(cores))
    chosen = [cores[(first + number) % len(cores)] for number in range(count)]
    return {"cores": chosen, "cpu_percent": None}


def _rules(network: Network) -> list[str]:
    """Addresses as sandlock writes them: TCP only, names resolved once when a box starts."""
    rules: list[str] = []
    for entry in network.allow:
        if entry.startswith("*."):
            raise SandboxRefused(
                f"the backend {_NAME} cannot allow subdomains ({entry})", hint="name the hosts"
            )
        try:
            endpoint = parse_endpoint(entry)
        except ValueError as error:
            raise SandboxRefused(f"not a host: {error}", where=entry) from error
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        rules.append(f"tcp://{host}:{endpoint.port or '80,443'}")
    return rules
