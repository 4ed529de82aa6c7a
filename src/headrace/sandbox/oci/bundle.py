"""The OCI configuration of a sandbox: what the runtime is told to isolate, and how far.

A pure function from a specification to `config.json`. The container holds one program, the
supervisor, in an empty read-only root; the file tree in which commands run is mounted below it
at /box0 or /box1 by the keeper and can be exchanged while the container lives.
"""

from __future__ import annotations

from pathlib import Path

from headrace.sandbox.oci.seccomp import profile
from headrace.sandbox.spec import BoxLimits, SandboxSpec
from headrace.types import Json

__all__ = ["CPU_PERIOD", "config"]

CPU_PERIOD = 100_000
"""Microseconds over which the processor share is measured out."""

_CAPABILITIES: list[Json] = ["CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SYS_CHROOT"]
"""Of the supervisor alone: to become the user of a command, and to end what is left of it."""

_MASKED: list[Json] = [
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys"),
    *("/proc/latency_stats", "/proc/sched_debug", "/proc/scsi"),
    *("/proc/timer_list", "/proc/timer_stats"),
]
_READ_ONLY: list[Json] = [
    *("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"),
]
_SPARE_PROCESSES = 2


def config(spec: SandboxSpec, *, id: str, root: str, cgroup: str | None) -> dict[str, Json]:
    """`config.json` of one sandbox whose container root is the host directory `root`.

    `cgroup` is the path of its control group, or None where limits cannot be set.
    """
    namespaces: list[Json] = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
    if spec.network.kind != "full":
        namespaces.append({"type": "network"})
    linux: dict[str, Json] = {
        "namespaces": namespaces,
        "maskedPaths": _MASKED,
        "readonlyPaths": _READ_ONLY,
        "seccomp": profile(),
    }
    if cgroup is not None:
        linux["cgroupsPath"] = cgroup
        linux["resources"] = resources(spec.limits)
    sets: dict[str, Json] = dict.fromkeys(("bounding", "effective", "permitted"), _CAPABILITIES)
    return {
        "ociVersion": "1.0.2",
        "hostname": "box",
        "root": {"path": root, "readonly": True},
        "annotations": {"headrace.id": id},
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": ["/supervisor"],
            "env": ["PATH=/"],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": sets,
            "oomScoreAdj": _least_likely_killed(),
            "rlimits": [
                {"type": "RLIMIT_NOFILE", "hard": _files(spec), "soft": _files(spec)},
                {"type": "RLIMIT_CORE", "hard": 0, "soft": 0},
            ],
        },
        "mounts": _mounts(),
        "linux": linux,
    }


def resources(limits: BoxLimits) -> dict[str, Json]:
    """The limits of the whole container; the supervisor has processes of its own on top."""
    return {
        "memory": {"limit": limits.memory_mb * 2**20},
        "pids": {"limit": limits.processes + _SPARE_PROCESSES},
        "cpu": {"quota": int(limits.cpus * CPU_PERIOD), "period": CPU_PERIOD},
    }


def _least_likely_killed() -> int:
    """The lowest score this process may give: the supervisor outlives what it supervises."""
    return int(Path("/proc/self/oom_score_adj").read_text())


def _files(spec: SandboxSpec) -> int:
    return max(4096, spec.limits.open_files)


def _mounts() -> list[Json]:
    quiet: list[Json] = ["nosuid", "noexec"]
    return [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": [*quiet, "nodev"]},
        {
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": [*quiet, "mode=755", "size=64k"],
        },
        {
            "destination": "/dev/pts",
            "type": "devpts",
            "source": "devpts",
            "options": [*quiet, "newinstance", "ptmxmode=0666", "mode=0620"],
        },
        {
            "destination": "/dev/shm",
            "type": "tmpfs",
            "source": "shm",
            "options": [*quiet, "nodev", "mode=0755", "size=4k"],
        },
    ]
