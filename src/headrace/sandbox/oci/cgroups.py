"""Control groups of a sandbox on v1, v2 and hybrid hosts: limits read back, ends by group.

The runtime makes the groups; this finds them through /proc/PID/cgroup, checks that what was
asked for is in force, tells what the kernel counted, and kills whole groups. May be known by
this backend only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.sandbox.oci.bundle import CPU_PERIOD
from headrace.sandbox.spec import BoxLimits, SandboxFailure

__all__ = [
    "ROOT",
    "Counts",
    "Groups",
    "delegated",
    "find",
    "hybrid_v2",
    "only_v2",
    "remove_empty",
    "reserve",
    "sweep",
]

ROOT = Path("/sys/fs/cgroup")
_NEEDED = ("memory", "pids", "cpu")
_ENTRIES = ("", "cgroup.procs", "cgroup.subtree_control")
_GRACE_S = 5.0
_STEP_S = 0.0005
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Counts:
    """What the kernel counted since the sandbox began: out-of-memory kills, refused forks,
    and the peak of memory in bytes."""

    oom_kills: int
    refused_forks: int
    peak_memory: int


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of one sandbox: `v2` where the host has only v2, else one per v1 controller."""

    by_controller: dict[str, Path]
    v2: bool

    @property
    def killing(self) -> Path:
        """The group in whose hierarchy commands get groups of their own."""
        return self.by_controller["freezer" if not self.v2 else "memory"]

    @property
    def joining(self) -> Path:
        """Where a process from outside enrols, so that files it writes count as memory here."""
        return self.by_controller["memory"] / "cgroup.procs"

    def enforced(self, limits: BoxLimits, *, spare: int) -> list[str]:
        """The limits that are not in force, in words; reads them back from the kernel."""
        memory = limits.memory_mb * 2**20
        wanted = {
            "memory": (memory - _PAGE, memory + _PAGE),
            "pids": (limits.processes, limits.processes + spare),
            "cpu": (limits.cpus - 0.01, limits.cpus + 0.01),
        }
        wrong: list[str] = []
        for name, (least, most) in wanted.items():
            value = self._limit(name)
            if value is None or not least <= value <= most:
                wrong.append(f"{name} is {'unlimited' if value is None else value}")
        return wrong

    def counts(self) -> Counts:
        """Read from the kernel now."""
        memory, pids = self.by_controller["memory"], self.by_controller["pids"]
        if self.v2:
            kills = _field(memory / "memory.events", "oom_kill")
            peak = _number(memory / "memory.peak") or 0
        else:
            kills = _field(memory / "memory.oom_control", "oom_kill")
            peak = _number(memory / "memory.max_usage_in_bytes") or 0
        return Counts(kills, _field(pids / "pids.events", "max"), peak)

    def forbid_swap(self) -> None:
        """On v2 the limit of memory does not count what was swapped out: let nothing be."""
        swap = self.by_controller["memory"] / "memory.swap.max"
        if self.v2 and swap.exists():
            swap.write_text("0")

    def reset_peak(self) -> None:
        """Start the peak of memory anew, where the kernel can (v1)."""
        if not self.v2:
            (self.by_controller["memory"] / "memory.max_usage_in_bytes").write_text("0")

    def remove(self) -> None:
        """Kill what is left in the groups and remove them (SandboxFailure if it will not go)."""
        if self.killing.is_dir():
            kill(self.killing)
        for path in sorted(set(self.by_controller.values())):
            remove(path)

    def _limit(self, name: str) -> float | None:
        path = self.by_controller.get(name)
        if path is None:
            return None
        match name, self.v2:
            case "memory", True:
                return _number(path / "memory.max")
            case "memory", False:
                return _number(path / "memory.limit_in_bytes")
            case "pids", _:
                return _number(path / "pids.max")
            case _, True:
                quota, _, period = (path / "cpu.max").read_text().strip().partition(" ")
                return None if quota == "max" else int(quota) / int(period)
            case _:
                quota = _number(path / "cpu.cfs_quota_us")
                return None if quota is None or quota < 0 else quota / CPU_PERIOD


def find(pid: int, tail: str) -> Groups:
    """The groups of a process that end in `tail` (SandboxFailure where one is missing)."""
    found: dict[str, Path] = {}
    v2 = only_v2()
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if not path.endswith(tail):
            continue
        if v2 and number == "0":
            found = dict.fromkeys((*_NEEDED, "freezer"), ROOT / path.lstrip("/"))
        elif not v2 and controllers:
            for name in controllers.removeprefix("name=").split(","):
                found[name] = ROOT / name / path.lstrip("/")
    missing = [name for name in (*_NEEDED, "freezer") if name not in found]
    if missing:
        raise SandboxFailure(
            f"the runtime made no control group for {', '.join(missing)}",
            where=f"/proc/{pid}/cgroup",
            hint="headrace sandbox doctor",
        )
    return Groups(found, v2)


def only_v2() -> bool:
    """Whether this host has no v1 hierarchies."""
    return (ROOT / "cgroup.controllers").exists()


def hybrid_v2() -> Path | None:
    """The v2 mount beside v1 hierarchies, which confuses some runtimes; None elsewhere."""
    unified = ROOT / "unified"
    return unified if (unified / "cgroup.procs").exists() else None


# --- of an ordinary user -------------------------------------------------------------------


def delegated(own: str, *, named: str | None = None, root: Path = ROOT) -> Path | None:
    """Where a user may make groups with limits, of a process whose group is `own`; None: nowhere.

    That is the group `named` and no other if one is, else the nearest one at or above `own`
    that is the user's and has no processes, or has given its controllers to groups below
    already: those with processes of their own cannot.
    """
    home = root / own.strip("/")
    if named:
        group = root / named.removeprefix(str(root)).strip("/")
        # Who moves a process must be allowed to write in what both groups are below.
        above = Path(os.path.commonpath([home, group]))
        movable = os.access(above / "cgroup.procs", os.W_OK)
        return group if movable and _is_ours(group) and _can_limit(group) else None
    for group in (home, *home.parents):
        if group == root or not _is_ours(group):
            return None
        if _can_limit(group):
            return group
    return None


def reserve(place: str, *, root: Path = ROOT) -> None:
    """Make a group in a delegated one, with all controllers for what is made in it
    (SandboxFailure if the kernel refuses)."""
    group = root / place.strip("/")
    try:
        group.mkdir(exist_ok=True)
        for each in (group.parent, group):
            enabled = _words(each / "cgroup.subtree_control")
            if lacking := [f"+{name}" for name in _NEEDED if name not in enabled]:
                (each / "cgroup.subtree_control").write_text(" ".join(lacking))
    except OSError as error:
        raise SandboxFailure(
            f"a control group cannot have limited ones in it: {error.strerror}",
            where=str(group),
            hint="headrace sandbox doctor --backend oci",
        ) from error


def _is_ours(group: Path) -> bool:
    return all(os.access(group / name, os.W_OK) for name in _ENTRIES)


def _can_limit(group: Path) -> bool:
    if _words(group / "cgroup.subtree_control").issuperset(_NEEDED):
        return True
    given = _words(group / "cgroup.controllers").issuperset(_NEEDED)
    return given and not _words(group / "cgroup.procs")


def _words(path: Path) -> set[str]:
    return set(path.read_text().split())


# --- ending --------------------------------------------------------------------------------


def kill(group: Path) -> None:
    """End every process of the group and of those below it; returns when none is left.

    By group: on v2 the kernel does it at once; on v1 the group is frozen first, so that
    nothing can fork or exit, and a number read from it cannot have passed to another process.
    """
    deadline = time.monotonic() + _GRACE_S
    for step in kill_steps(group):
        if step:
            return
        if time.monotonic() > deadline:
            raise SandboxFailure("processes survive being killed", where=str(group))
        time.sleep(_STEP_S)


def kill_steps(group: Path) -> Iterator[bool]:
    """As `kill`, for callers with a clock of their own: yields whether the group is empty."""
    while True:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            _kill_once(group)
        yield not any(_members(group))


def _kill_once(group: Path) -> None:
    if (group / "cgroup.kill").exists():
        (group / "cgroup.kill").write_text("1")
        return
    state = group / "freezer.state"
    state.write_text("FROZEN")
    try:
        for pid in _members(group):
            os.kill(pid, signal.SIGKILL)
    finally:
        state.write_text("THAWED")


def _members(group: Path) -> Iterator[int]:
    for path in _tree(group):
        with contextlib.suppress(FileNotFoundError, OSError):
            for line in (path / "cgroup.procs").read_text().split():
                yield int(line)


def _tree(group: Path) -> list[Path]:
    try:
        below = [path for path in group.iterdir() if path.is_dir()]
    except FileNotFoundError:
        return []
    return [deeper for path in below for deeper in _tree(path)] + [group]


def remove(group: Path) -> None:
    """Remove an empty group and those below it; one that is gone already is no error."""
    deadline = time.monotonic() + _GRACE_S
    for path in _tree(group):
        while True:
            try:
                path.rmdir()
            except FileNotFoundError:
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise SandboxFailure(
                        f"a control group will not go: {error.strerror}", where=str(path)
                    ) from error
                time.sleep(_STEP_S)
            else:
                break


def sweep(parent: str, stale: Callable[[str], bool]) -> list[str]:
    """Kill and remove all groups `parent`/NAME in any hierarchy whose name is stale."""
    homes = [top / parent.strip("/") for top in _tops()]
    groups = [
        group
        for home in homes
        if (home / "cgroup.procs").exists()
        for group in home.iterdir()
        if group.is_dir() and stale(group.name)
    ]
    # Only one hierarchy of v1 can kill, and no group goes before its processes have.
    for group in groups:
        if _can_kill(group):
            kill(group)
    for group in groups:
        remove(group)
    return sorted({group.name for group in groups})


def remove_empty(parent: str) -> None:
    """Remove `parent` from every hierarchy in which it holds no group."""
    for top in _tops():
        with contextlib.suppress(OSError):
            (top / parent.strip("/")).rmdir()


def _tops() -> list[Path]:
    """Where hierarchies are mounted. On v2 what is below is no hierarchy, but may be a user's."""
    if only_v2():
        return [ROOT]
    return [path for path in ROOT.iterdir() if path.is_dir() and not path.is_symlink()]


def _can_kill(group: Path) -> bool:
    return (group / "cgroup.kill").exists() or (group / "freezer.state").exists()


def _field(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        return None
    return None if text == "max" else int(text)
