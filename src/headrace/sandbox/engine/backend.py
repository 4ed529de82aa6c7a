"""The backends `podman` and `docker`, through their command line: for images people have.

A container runs nothing but a sleeper under an init that reaps; commands come by `exec`. Its
root is read-only and everything that can be written is a sized tmpfs, so that files count as
memory: `/dev/shm` (1/16 of `disk_mb`), `/tmp` (1/8), and the working directory (the rest),
which starts with what the image has there. What the image must have: `sh`, `sleep`, `tar`,
`mkdir`, `cat`. Nothing is pulled.

Every limit is read back from the kernel before a sandbox is given out; where the engine's
default OCI runtime does not enforce one (crun on machines with both cgroup versions), the next
is tried, and if none does, that is an error. May be known by the registry only.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import resource
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.sandbox.engine.box import EngineSandbox
from headrace.sandbox.engine.cli import DOCKER, PODMAN, Engine, epoch_of
from headrace.sandbox.engine.files import Snapshots
from headrace.sandbox.engine.home import Started
from headrace.sandbox.engine.view import BoxView
from headrace.sandbox.spec import (
    Backend,
    Capabilities,
    Isolation,
    Mount,
    Owned,
    Sandbox,
    SandboxFailure,
    SandboxRefused,
    SandboxSpec,
)

__all__ = ["EngineBackend", "docker", "podman"]

_PREFIX = "headrace-"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LEAST_DISK = 4
_REAP_S = 20.0


@dataclass(frozen=True, slots=True)
class _Image:
    id: str
    volumes: tuple[str, ...]


class EngineBackend:
    """Sandboxes of one engine, `podman` or `docker`; images are `<engine>:REFERENCE`.

    Two users inside have numbers of the sandbox's own; a third one holds it open. Snapshots are
    copies of the files that can be written (not of extended attributes, sockets, and files that
    their owner may not read).
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._boxes: dict[str, EngineSandbox] = {}
        self._images: dict[str, _Image] = {}
        self._seeds: dict[tuple[str, str], Path | None] = {}
        self._proved: set[str] = set()
        self._runtimes = list(engine.runtimes)
        self._worked = False
        self._lock = threading.Lock()
        self._snapshots: Snapshots | None = None

    @property
    def name(self) -> str:
        return self._engine.name

    @property
    def engine(self) -> Engine:
        """Its command line."""
        return self._engine

    @property
    def runtime(self) -> str | None:
        """The OCI runtime that was found to enforce the limits; None for the default one."""
        return self._runtimes[0]

    @property
    def proved(self) -> set[str]:
        """Images whose programs were seen to be there."""
        return self._proved

    @property
    def snapshots(self) -> Path:
        """Where this process keeps file trees."""
        if self._snapshots is None:
            self._snapshots = Snapshots(self.name)
        return self._snapshots.path

    def available(self) -> str | None:
        """None, or that the program is missing, does not answer, or lacks rights."""
        try:
            answer = self._engine.call(*self._engine.asks, timeout_s=10.0)
        except SandboxFailure as error:
            return f"{error} (hint: {error.hint})"
        if answer.code != 0:
            return f"{self.name} does not answer: {answer.error}"
        if self._engine.root and os.geteuid() != 0:
            return f"{self.name} can be confined from outside by root only"
        return None

    def capabilities(self) -> Capabilities:
        """Everything, as long as the kernel confirms the limits; an allow-list as root."""
        networks = {"none", "full"} | ({"allow-list"} if os.geteuid() == 0 else set[str]())
        return Capabilities(
            isolation=Isolation.NAMESPACE,
            limits=frozenset({"memory_mb", "disk_mb", "cpus", "processes", "open_files"}),
            networks=frozenset(networks),
            snapshot="emulated",
            fork="emulated",
            users=True,
            images=(self.name,),
        )

    async def create(self, spec: SandboxSpec, *, id: str) -> Sandbox:
        """A new container. SandboxRefused for what the engine, the image or the kernel does not
        give; see the module for what an image must have."""
        self._refuse(spec)
        return await self.begin(spec, id, tree=None, depth=0)

    async def recycle(self, sandbox: Sandbox, *, epoch: int) -> Sandbox | None:
        """None: a container is as cheap to make as to clean."""
        del sandbox, epoch

    def reap(self, ids: Sequence[str]) -> list[str]:
        """Remove the containers of these, and snapshots of dead processes."""
        Snapshots.sweep(self.name)
        left = set(ids)
        deadline = time.monotonic() + _REAP_S
        while left and time.monotonic() < deadline:
            self._engine.remove([_named(id) for id in sorted(left)])
            left &= {owned.id for owned in self.list()}
            if left:
                time.sleep(0.1)
        return [id for id in ids if id not in left]

    def list(self) -> list[Owned]:
        """Every sandbox of this engine that exists, whoever made it."""
        found = self._engine.inspect("container", self._engine.labelled("headrace.id"))
        return [_owned(self.name, about) for about in found]

    async def aclose(self) -> None:
        """Close every sandbox; one that fails does not stop the others."""
        closed = await asyncio.gather(
            *(box.close() for box in list(self._boxes.values())), return_exceptions=True
        )
        if self._snapshots is not None:
            self._snapshots.close()
            self._snapshots = None
            self._seeds.clear()
        for failure in closed:
            if failure is not None:
                raise failure

    # --- for its sandboxes -----------------------------------------------------------------

    async def begin(
        self, spec: SandboxSpec, id: str, *, tree: Path | None, depth: int
    ) -> EngineSandbox:
        """A sandbox with a file tree (None: the image's). Leaves nothing behind if it fails."""
        name = _named(id)
        if id in self._boxes:
            raise SandboxFailure("there is a sandbox of that id", where=id)
        box = EngineSandbox(self, spec, id, name, depth=depth)
        self._boxes[id] = box
        try:
            await box.open(tree)
        except BaseException:
            await box.close()
            raise
        return box

    def forget(self, box: EngineSandbox) -> None:
        if self._boxes.get(box.id) is box:
            del self._boxes[box.id]

    def start(self, box: EngineSandbox) -> Started:
        """Make the container, read its limits back, start nothing in it. Blocks."""
        image = self._image(box.spec.image)
        reasons: list[str] = []
        while True:
            runtime = self._runtimes[0]
            try:
                started = self._start(box, image, runtime)
            except (SandboxFailure, SandboxRefused) as error:
                reasons.append(error.what)
                self.discard(box)
                if not self._another(runtime):
                    what = "; ".join(reasons)
                    raise type(error)(what, where=error.where, hint=error.hint) from error
            else:
                self._worked = True
                return started

    def discard(self, box: EngineSandbox) -> None:
        """Remove its container, whatever is known of it; never one that it did not make."""
        container, box.container = box.container, None
        made = [container] if container else self._engine.labelled(f"headrace.nonce={box.nonce}")
        self._engine.remove(made)

    def _another(self, tried: str | None) -> bool:
        """Whether there is another OCI runtime to try; none is once one has worked."""
        with self._lock:
            if self._runtimes[0] != tried:
                return True
            if self._worked or len(self._runtimes) == 1:
                return False
            self._runtimes.pop(0)
            return True

    # --- starting --------------------------------------------------------------------------

    def _refuse(self, spec: SandboxSpec) -> None:
        lacks = self.capabilities().missing(spec)
        if spec.limits.disk_mb < _LEAST_DISK:
            lacks.append(f"less than {_LEAST_DISK} MiB of disk")
        lacks += [f"a mount of {mount.source}" for mount in spec.mounts if _unspeakable(mount)]
        lacks += [f"a variable {key!r}" for key, _ in spec.env if not key or "=" in key]
        if not spec.workdir.startswith("/") or ".." in spec.workdir or ":" in spec.workdir:
            lacks.append(f"the working directory {spec.workdir!r}")
        if spec.workdir.rstrip("/") in ("", "/tmp", "/dev", "/dev/shm", "/proc", "/sys"):
            lacks.append(f"the working directory {spec.workdir!r}")
        if lacks:
            raise SandboxRefused(
                f"the backend {self.name} does not give {', '.join(lacks)}",
                hint="headrace sandbox doctor",
            )

    def _image(self, name: str) -> _Image:
        """The image, looked up once: a tag that moves later changes nothing."""
        if name not in self._images:
            reference = name.partition(":")[2]
            if not reference or reference.startswith("-"):
                raise SandboxRefused(f"no image {name!r}", hint=f"{self.name}:REFERENCE")
            found = self._engine.inspect("image", [reference])
            if not found:
                raise SandboxRefused(
                    f"{self.name} has no image {reference!r} here",
                    hint=f"{self.name} pull {reference}",
                )
            config = found[0].get("Config") or {}
            volumes = tuple(config.get("Volumes") or {})
            self._images[name] = _Image(str(found[0]["Id"]), volumes)
        return self._images[name]

    def _start(self, box: EngineSandbox, image: _Image, runtime: str | None) -> Started:
        spec, limits = box.spec, box.spec.limits
        if image.volumes and not self._engine.skips_volumes:
            raise SandboxRefused(
                f"the image declares volumes without a size: {', '.join(image.volumes)}",
                where=spec.image,
            )
        mounts = _sizes(spec)
        engine = self._engine
        scope: tuple[str, ...] = ("--runtime", runtime) if runtime else ()
        before, after = (scope, ()) if engine.global_runtime else ((), scope)
        box.container = engine.must(
            *before, "create", *after, *self._options(box, mounts), image.id, *_sleep(box)
        ).split()[-1]
        seed = self._seed(box, image)
        answer = engine.call(*before, "start", box.container)
        if answer.code != 0:
            raise SandboxFailure(f"{self.name} start failed: {answer.error}", where=spec.image)
        about = engine.inspect("container", [box.container])
        if not about or not about[0]["State"]["Running"]:
            raise SandboxRefused(
                "a container of the image ended at once: has it the program sleep?",
                where=spec.image,
            )
        view = BoxView(int(about[0]["State"]["Pid"]), str(about[0]["Id"]))
        wrong = view.unenforced(limits, mounts)
        if spec.network.kind != "full" and view.shares_network_of_host():
            wrong.append("network")
        if wrong:
            raise SandboxRefused(
                f"{self.name} with {runtime or 'its default runtime'} does not enforce "
                + ", ".join(wrong),
                hint="another OCI runtime may, for example runc",
            )
        view.give(spec.workdir, box.uid("agent"), 0o755)
        view.give("/tmp", 0, 0o1777)
        return Started(view=view, seed=seed, image=image.id)

    def _options(self, box: EngineSandbox, mounts: Mapping[str, int]) -> list[str]:
        spec, limits = box.spec, box.spec.limits
        holder = box.uid("holder")
        options = [
            *("--name", box.name, "--rm", "--init", "--pull", "never", "--read-only"),
            *("--network", "bridge" if spec.network.kind == "full" else "none"),
            *("--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m"),
            *("--cpus", f"{limits.cpus:g}", "--pids-limit", str(limits.processes)),
            *("--ulimit", f"nofile={limits.open_files}:{limits.open_files}"),
            *("--cap-drop", "all", "--security-opt", "no-new-privileges"),
            *("--user", f"{holder}:{holder}", "--log-driver", "none"),
            *("--stop-signal", "KILL", "--stop-timeout", "0"),
            *("--shm-size", f"{mounts['/dev/shm']}m", "--entrypoint", "sleep"),
            *self._engine.confines,
        ]
        most = _most_processes()
        options += ["--ulimit", f"nproc={most}:{most}"]
        for path, size in mounts.items():
            if path != "/dev/shm":
                how = f"rw,exec,nosuid,nodev,mode=1777,size={size}m{self._engine.tmpfs}"
                options += ["--tmpfs", f"{path}:{how}"]
        for mount in spec.mounts:
            options += [
                "--mount",
                f"type=bind,source={mount.source},target={mount.target},readonly",
            ]
        labels = {
            "id": box.id,
            "nonce": box.nonce,
            "owner": str(os.getpid()),
            "owner-started": str(_started(os.getpid())),
            "expires": f"{box.expires:.3f}",
        }
        for key, value in labels.items():
            options += ["--label", f"headrace.{key}={value}"]
        environment = {"HOME": spec.workdir, "TMPDIR": "/tmp", **dict(spec.env)}
        for key, value in environment.items():
            options += ["--env", f"{key}={value}"]
        return options

    def _seed(self, box: EngineSandbox, image: _Image) -> Path | None:
        """What the image has in the working directory, as an archive; None if nothing."""
        key = (image.id, box.spec.workdir)
        if key not in self._seeds:
            path = self.snapshots / f"seed-{uuid.uuid4().hex}.tar"
            with path.open("wb") as file:
                answer = self._engine.call(
                    "cp", f"{box.container}:{box.spec.workdir}/.", "-", timeout_s=600.0, into=file
                )
            missing = "could not be found" in answer.error or "no such" in answer.error.lower()
            if answer.code != 0 and not missing:
                raise SandboxFailure(f"{self.name} cp failed: {answer.error}", where=box.name)
            self._seeds[key] = path if answer.code == 0 else None
        return self._seeds[key]


def podman() -> Backend:
    """The entry point of podman."""
    return EngineBackend(PODMAN)


def docker() -> Backend:
    """The entry point of docker."""
    return EngineBackend(DOCKER)


def _named(id: str) -> str:
    if not _ID.fullmatch(id):
        raise UsageError("not an id of a sandbox", where=id)
    return _PREFIX + id


def _sizes(spec: SandboxSpec) -> dict[str, int]:
    """MiB of each mount that can be written; together `disk_mb`."""
    disk = spec.limits.disk_mb
    shared, temporary = max(1, disk // 16), max(1, disk // 8)
    return {
        spec.workdir: disk - shared - temporary,
        "/tmp": temporary,
        "/dev/shm": shared,
    }


def _most_processes() -> int:
    """What may be asked for of this per-user limit, which is not the sandbox's: the engine's
    own default is more than it may set where it is not almighty."""
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    return most if hard == resource.RLIM_INFINITY else min(most, hard)


def _sleep(box: EngineSandbox) -> tuple[str, ...]:
    """What holds the container open: for its lifetime, whoever owns it."""
    return (str(max(1, math.ceil(box.expires - time.time()))),)


def _unspeakable(mount: Mount) -> bool:
    odd = any(mark in f"{mount.source}{mount.target}" for mark in ',"\n')
    return odd or not mount.target.startswith("/") or not mount.source.is_absolute()


def _started(pid: int) -> int | None:
    """When a process started, in the kernel's ticks; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(text[text.rfind(b")") + 2 :].split()[19])


def _owned(backend: str, about: Mapping[str, Any]) -> Owned:
    labels: Mapping[str, str] = about["Config"]["Labels"]
    owner = int(labels.get("headrace.owner", "0"))
    return Owned(
        id=labels["headrace.id"],
        backend=backend,
        owner_pid=owner,
        state=str(about["State"]["Status"]),
        created=epoch_of(str(about["Created"])),
        expires=float(labels.get("headrace.expires", "0")),
        orphan=str(_started(owner)) != labels.get("headrace.owner-started"),
        details={"container": str(about["Id"]), "image": str(about.get("Image", ""))},
    )
