"""The words of the sandbox layer: what is asked for, what came out, and what a backend can do.

Nouns and protocols only, no I/O. Every backend, the pool, verifiers and environments speak in
these; nothing here knows a backend.

Whose fault an end was is part of the result (law 4): what a candidate can cause is a `Result`
with an `Outcome`; what it cannot cause is an exception, a `SandboxFailure`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from headrace.errors import InfrastructureError, UsageError

__all__ = [
    "Backend",
    "BoxLimits",
    "Capabilities",
    "Capture",
    "ExecLimits",
    "Isolation",
    "Mount",
    "Network",
    "Outcome",
    "Owned",
    "Result",
    "Sandbox",
    "SandboxFailure",
    "SandboxGone",
    "SandboxRefused",
    "SandboxSpec",
    "SnapshotRef",
    "Usage",
    "User",
]

User = Literal["agent", "verifier"]
"""Who runs a command: two unprivileged identities that cannot touch each other's processes."""


class Isolation(enum.IntEnum):
    """Strength classes, weakest first; a task states the least it accepts.

    >>> Isolation.of("user-kernel") > Isolation.NAMESPACE
    True
    """

    TRUSTED = 0
    PROCESS = 1
    NAMESPACE = 2
    USER_KERNEL = 3
    VIRTUAL_MACHINE = 4

    @property
    def label(self) -> str:
        """As task files write it: "user-kernel"."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def of(cls, label: str) -> Isolation:
        """The class of that label (UsageError if there is none)."""
        try:
            return cls[label.upper().replace("-", "_")]
        except KeyError:
            known = ", ".join(kind.label for kind in cls)
            raise UsageError(f"no isolation class {label!r}", hint=f"one of: {known}") from None


class Outcome(enum.StrEnum):
    """How a command ended. All but CRASH are of the candidate's own making and are results."""

    RESULT = "result"
    """It ended by itself: an exit code or a signal of its own."""
    TIMEOUT = "timeout"
    """Its time was over; it and everything it started were killed."""
    MEMORY = "memory"
    """The kernel killed one of its processes at the memory limit."""
    PROCESSES = "processes"
    """It failed after it was refused a process at the limit."""
    DISK = "disk"
    """It failed with its writable disk full."""
    OUTPUT = "output"
    """It wrote more than the flood limit and was killed."""
    CRASH = "crash"
    """The sandbox itself died under it; nobody can say why. Infrastructure: retry."""

    @property
    def by_candidate(self) -> bool:
        """Whether the candidate can cause this, so that it scores instead of being retried."""
        return self is not Outcome.CRASH


class SandboxFailure(InfrastructureError):
    """The sandbox layer failed, not the candidate: retry elsewhere, never a score."""


class SandboxGone(SandboxFailure):
    """The sandbox was closed, lost, expired, or handed to another owner (a stale epoch)."""


class SandboxRefused(UsageError):
    """No backend here can give what the specification asks for; nothing is degraded."""


# --- what is asked for ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxLimits:
    """What a whole sandbox may use. All of it is enforced, or `create` refuses.

    `memory_mb` (MiB) bounds processes and the files they write together; `disk_mb` (MiB) of
    it, at most, may be files, so it must be smaller. `cpus` is a rate (1.0 is one core).
    """

    memory_mb: int = 512
    disk_mb: int = 256
    cpus: float = 1.0
    processes: int = 128
    open_files: int = 1024

    def __post_init__(self) -> None:
        if min(self.memory_mb, self.disk_mb, self.processes, self.open_files) < 1:
            raise UsageError("sandbox limits must be at least 1", where=str(self))
        if self.cpus < 0.01:
            raise UsageError("a sandbox needs at least 0.01 cpus", where=str(self))
        if self.disk_mb >= self.memory_mb:
            raise UsageError(
                "disk_mb must be smaller than memory_mb: files count as memory here",
                where=str(self),
                hint=f"memory_mb = {2 * self.disk_mb}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecLimits:
    """What one command may use. `output_bytes` of each stream are kept (its head and its
    tail); a command that writes more than `flood_bytes` in all is killed."""

    output_bytes: int = 2**20
    flood_bytes: int = 64 * 2**20
    cpu_s: int | None = None
    file_mb: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Which addresses a sandbox reaches: none, hosts of an allow-list through a proxy, or all.

    `allow` holds `host` or `host:port` with `*.` for subdomains; without a port, 80 and 443.
    """

    kind: Literal["none", "allow-list", "full"] = "none"
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.allow) != (self.kind == "allow-list"):
            raise UsageError("an allow-list names hosts, and nothing else does", where=str(self))


@dataclass(frozen=True, slots=True)
class Mount:
    """A host directory seen read-only at `target` (absolute) inside."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """One kind of sandbox. Equal specifications share a warm pool.

    `image`: "host" (the programs of this machine, read-only), "dir:PATH" (a root filesystem),
    or a reference that the backend knows. `init` is started in every new file tree: after
    create, snapshot, restore and fork, since those end all processes. `lifetime_s` is a hard
    end, whatever its owner does.

    >>> SandboxSpec(limits=BoxLimits(memory_mb=1024)).isolation.label
    'namespace'
    """

    image: str = "host"
    isolation: Isolation = Isolation.NAMESPACE
    limits: BoxLimits = BoxLimits()
    network: Network = Network()
    mounts: tuple[Mount, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    workdir: str = "/workspace"
    init: tuple[str, ...] = ()
    lifetime_s: float = 3600.0


# --- what came out -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Capture:
    """One stream of a command: `total` bytes, of which `omitted` in the middle were left out.

    Where something is missing, `data` has a line that says so.
    """

    data: bytes
    total: int
    omitted: int = 0

    @property
    def truncated(self) -> bool:
        """Whether the middle was left out."""
        return self.omitted > 0

    @property
    def text(self) -> str:
        """As UTF-8, with replacement characters for what is not."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Seconds of wall and processor time; peak memory of the sandbox in bytes where known."""

    wall_s: float
    user_s: float = 0.0
    system_s: float = 0.0
    peak_memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a command ended. Exactly one of `exit_code` (0..255) and `signal` is set, but for
    CRASH, which has neither. `oom` says that the kernel killed a process of it for memory,
    whatever the command then made of that. `epoch` is the sandbox's at that time.
    """

    outcome: Outcome
    exit_code: int | None
    signal: int | None
    stdout: Capture
    stderr: Capture
    usage: Usage
    oom: bool
    epoch: int

    @property
    def ok(self) -> bool:
        """It ended by itself with exit code 0. Never a verdict: candidates choose exit codes."""
        return self.outcome is Outcome.RESULT and self.exit_code == 0


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """A frozen file tree, `depth` layers deep. It can be restored in any sandbox of its backend
    and of the same image, for as long as the sandbox that took it is open."""

    id: str
    depth: int


# --- who gives it --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend gives, as declared; the conformance suite holds it to that.

    `limits` holds the names of `BoxLimits` fields that the kernel enforces. `snapshot` and
    `fork`: "native" (independent of the tree's size), "emulated" (a copy), or None. `users`
    says whether agent and verifier are different identities, `renames_frozen` whether rename(2)
    of a directory of a snapshot works: else it answers EXDEV, as between file systems.
    """

    isolation: Isolation
    limits: frozenset[str]
    networks: frozenset[str]
    snapshot: Literal["native", "emulated"] | None = None
    fork: Literal["native", "emulated"] | None = None
    users: bool = False
    images: tuple[str, ...] = ("host",)
    recycle: bool = False
    renames_frozen: bool = True

    def missing(self, spec: SandboxSpec) -> list[str]:
        """What `spec` needs and this cannot give, in words; empty if it can."""
        lacks: list[str] = []
        if self.isolation < spec.isolation:
            lacks.append(f"isolation {spec.isolation.label} (it is {self.isolation.label})")
        unenforced = {"memory_mb", "disk_mb", "cpus", "processes", "open_files"} - self.limits
        if unenforced and spec.isolation > Isolation.TRUSTED:
            lacks.append(f"enforced limits on {', '.join(sorted(unenforced))}")
        if spec.network.kind not in self.networks:
            lacks.append(f"network {spec.network.kind}")
        kind = spec.image.partition(":")[0]
        if kind not in self.images and "*" not in self.images:
            lacks.append(f"image {spec.image!r} (it knows {', '.join(self.images)})")
        return lacks


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """A sandbox that exists: its owner's process, state, and when it must be gone (epoch s)."""

    id: str
    backend: str
    owner_pid: int
    state: str
    created: float
    expires: float
    orphan: bool
    details: Mapping[str, str] = field(default_factory=dict[str, str])


@runtime_checkable
class Sandbox(Protocol):
    """One isolated machine with a file tree. Single owner; calls after `close` raise
    SandboxGone. Cancelling a call leaves nothing running.
    """

    @property
    def id(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    @property
    def spec(self) -> SandboxSpec: ...

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: User = "agent",
        limits: ExecLimits = ExecLimits(),
    ) -> Result:
        """Run a command to its end. A program that cannot be started is exit code 126 or 127,
        as in a shell. What it left running goes on, unless its time was over: then nothing
        that it started survives."""
        ...

    async def put(self, archive: Path | bytes, to: str = "", *, user: User = "agent") -> None:
        """Unpack an uncompressed tar archive under `to` (the working directory), as `user`.

        Raises UsageError for an archive that leaves `to` or does not fit.
        """
        ...

    async def put_file(self, path: str, data: bytes, *, user: User = "agent") -> None:
        """Write one file, with its directories."""
        ...

    async def get(self, path: str, into: Path, *, limit_mb: int = 1024) -> None:
        """Write a tar archive of `path` to the host file `into`, read as the agent would.

        Its content is hostile. Raises UsageError where `path` is missing or too large.
        """
        ...

    async def get_file(self, path: str, *, limit_mb: int = 16) -> bytes:
        """One regular file (UsageError if it is anything else, is missing, or is larger)."""
        ...

    async def snapshot(self) -> SnapshotRef:
        """Freeze the file tree. Ends all processes and starts `spec.init` anew."""
        ...

    async def restore(self, ref: SnapshotRef) -> None:
        """Put the file tree back. Ends all processes and starts `spec.init` anew."""
        ...

    async def fork(self, count: int, *, ids: Sequence[str] | None = None) -> list[Sandbox]:
        """`count` further sandboxes with this file tree (snapshots this one), all or none.

        `ids` are those of the children in their order, chosen by the caller and recorded
        before anything exists, as for `Backend.create`; without them it makes up its own.
        """
        ...

    async def health(self, *, timeout_s: float = 5.0) -> None:
        """Raises SandboxGone if this sandbox cannot answer."""
        ...

    async def close(self) -> None:
        """End it and remove what it used. Idempotent."""
        ...


@runtime_checkable
class Backend(Protocol):
    """A way to make sandboxes, found by the entry-point group `headrace.sandboxes`.

    An entry point is a callable without arguments that returns a Backend; it must be cheap.
    """

    @property
    def name(self) -> str: ...

    def available(self) -> str | None:
        """None if it works on this machine, else why not and what to install."""
        ...

    def capabilities(self) -> Capabilities: ...

    async def create(self, spec: SandboxSpec, *, id: str) -> Sandbox:
        """A new sandbox. `id` is chosen by the caller and recorded before anything exists.

        Raises SandboxRefused for what it cannot give, SandboxFailure if the machine fails;
        nothing is left behind then, nor when the call is cancelled.
        """
        ...

    async def recycle(self, sandbox: Sandbox, *, epoch: int) -> Sandbox | None:
        """The sandbox as new under a new epoch, all traces of its use gone; the old handle is
        stale. None if it must be closed instead; SandboxFailure if it does not answer."""
        ...

    def reap(self, ids: Sequence[str]) -> list[str]:
        """Remove everything of these sandboxes, whose owner is dead, from outside; returns
        those that are gone. Works in a process that created none of them."""
        ...

    async def aclose(self) -> None:
        """Close every sandbox and what serves them. Idempotent."""
        ...
