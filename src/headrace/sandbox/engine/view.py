"""A container as the host sees it: its control groups, mounts and processes.

Where limits are checked and processes are killed without asking the engine, so that neither a
full process table inside nor an engine that lies can get in the way. Linux, cgroup v1, v2 and
both. May be known by the engine backend only.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.sandbox.spec import BoxLimits, SandboxFailure, SandboxRefused

__all__ = ["BoxView", "Counters", "Process"]

_KILL_S = 10.0
_STUBBORN = 3
_TICK = os.sysconf("SC_CLK_TCK")
_MEGA = 2**20


@dataclass(frozen=True, slots=True)
class Process:
    """A process that cannot be mistaken for a later one of the same number."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Processes killed for memory and refused at the limit, seconds of processor time, and the
    peak of memory in bytes, of the container so far."""

    oom_kills: int
    refused: int
    user_s: float
    system_s: float
    peak_memory: int | None


class BoxView:
    """The container `container` (its engine's long id), whose first process is `pid`.
    SandboxFailure if it is not on this machine."""

    def __init__(self, pid: int, container: str) -> None:
        stat = _stat(pid)
        if stat is None:
            raise SandboxFailure(
                "the container's first process is not to be seen from here",
                where=f"process {pid}",
                hint="the engine must run on this machine",
            )
        self.init = Process(pid, stat.started)
        self._groups = _groups_of(pid, container)

    def alive(self) -> bool:
        """Whether its first process still is."""
        stat = _stat(self.init.pid)
        return stat is not None and stat.started == self.init.started and not stat.dead

    def processes(self) -> dict[Process, int]:
        """The living processes inside, with the numbers of their parents."""
        top = self._groups.get("pids", self._groups.get(""))
        texts = [] if top is None else [_text(path) for path in top.rglob("cgroup.procs")]
        found: dict[Process, int] = {}
        for pid in {int(word) for text in texts for word in text.split()}:
            stat = _stat(pid)
            if stat is not None and not stat.dead:
                found[Process(pid, stat.started)] = stat.parent
        return found

    def counters(self) -> Counters:
        """All zero for a container that is gone."""
        if self._v2("memory"):
            kills = _field(self._text("memory", "memory.events"), "oom_kill")
            peak = self._text("memory", "memory.peak").strip()
        else:
            kills = _field(self._text("memory", "memory.oom_control"), "oom_kill")
            peak = self._text("memory", "memory.max_usage_in_bytes").strip()
        if self._v2("cpu"):
            used = self._text("cpu", "cpu.stat")
            user, system = _field(used, "user_usec") / 1e6, _field(used, "system_usec") / 1e6
        else:
            used = self._text("cpuacct", "cpuacct.stat")
            user, system = _field(used, "user") / _TICK, _field(used, "system") / _TICK
        return Counters(
            oom_kills=kills,
            refused=_field(self._text("pids", "pids.events"), "max"),
            user_s=user,
            system_s=system,
            peak_memory=int(peak) if peak else None,
        )

    # --- checking --------------------------------------------------------------------------

    def unenforced(self, limits: BoxLimits, mounts: dict[str, int]) -> list[str]:
        """What of the limits, and of being unprivileged, the kernel does not hold it to.
        `mounts`: the size in MiB of each writable mount."""
        wrong = [*self._memory(limits.memory_mb * _MEGA), *self._cpus(limits.cpus)]
        if self._text("pids", "pids.max").strip() != str(limits.processes):
            wrong.append("processes")
        status = Path(f"/proc/{self.init.pid}/status").read_text()
        files = Path(f"/proc/{self.init.pid}/limits").read_text()
        row = next(line for line in files.splitlines() if line.startswith("Max open files"))
        if row.split()[3:5] != [str(limits.open_files)] * 2:
            wrong.append("open_files")
        for name, wanted in (("CapBnd", 0), ("CapEff", 0), ("NoNewPrivs", 1), ("Seccomp", 2)):
            if int(_value(status, f"{name}:") or "-1", 16) != wanted:
                wrong.append(f"{name} {wanted}")
        for path, size_mb in mounts.items():
            with self.directory(path) as fd:
                room = os.fstatvfs(fd)
                if room.f_blocks * room.f_frsize != size_mb * _MEGA:
                    wrong.append(f"disk_mb (of {path})")
        return wrong

    def _memory(self, wanted: int) -> list[str]:
        if self._v2("memory"):
            most = self._text("memory", "memory.max").strip()
            swap = self._text("memory", "memory.swap.max").strip() or "0"
        else:
            most = self._text("memory", "memory.limit_in_bytes").strip()
            both = self._text("memory", "memory.memsw.limit_in_bytes").strip()
            swap = str(int(both) - wanted) if both else "0" if _no_swap() else "unlimited"
        wrong = [] if most == str(wanted) else [f"memory_mb (the kernel says {most or 'none'})"]
        return wrong if swap == "0" else [*wrong, "memory_mb (swap is not limited)"]

    def _cpus(self, wanted: float) -> list[str]:
        if self._v2("cpu"):
            quota, _, period = self._text("cpu", "cpu.max").strip().partition(" ")
        else:
            quota = self._text("cpu", "cpu.cfs_quota_us").strip()
            period = self._text("cpu", "cpu.cfs_period_us").strip()
        if not quota.isdigit() or not period.isdigit():
            return [f"cpus (the kernel says {quota or 'none'})"]
        rate = int(quota) / int(period)
        return [] if abs(rate - wanted) <= 0.01 * wanted else [f"cpus (the kernel says {rate:g})"]

    def shares_network_of_host(self) -> bool:
        """Whether it is in this process's network namespace."""
        own, its = Path("/proc/self/ns/net").stat(), Path(f"/proc/{self.init.pid}/ns/net").stat()
        return own.st_ino == its.st_ino

    # --- the file tree ---------------------------------------------------------------------

    @contextmanager
    def directory(self, path: str) -> Generator[int]:
        """A descriptor of a directory inside, by an absolute path without symbolic links (they
        would be the host's). SandboxRefused if it is anything else."""
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        fd = os.open(f"/proc/{self.init.pid}/root", flags)
        try:
            for part in path.strip("/").split("/"):
                further = os.open(part, flags | os.O_NOFOLLOW, dir_fd=fd)
                os.close(fd)
                fd = further
            yield fd
        except (NotADirectoryError, FileNotFoundError) as error:
            raise SandboxRefused(
                f"{path} of the image is no plain directory", hint="choose another workdir"
            ) from error
        finally:
            os.close(fd)

    def give(self, path: str, uid: int, mode: int) -> None:
        """Set owner (a number inside) and mode of a directory, where this user may."""
        if os.geteuid() == 0:
            with self.directory(path) as fd:
                held = f"/proc/self/fd/{fd}"
                os.chown(held, self._host_id("uid", uid), self._host_id("gid", uid))
                Path(held).chmod(mode)

    def room(self, path: str) -> tuple[int, int]:
        """Free bytes and free inodes of the mount at `path`."""
        with self.directory(path) as fd:
            found = os.fstatvfs(fd)
            return found.f_bavail * found.f_frsize, found.f_favail

    def _host_id(self, kind: str, inner: int) -> int:
        for line in Path(f"/proc/{self.init.pid}/{kind}_map").read_text().splitlines():
            first, outer, count = map(int, line.split())
            if first <= inner < first + count:
                return outer + inner - first
        raise SandboxFailure(f"{kind} {inner} has no place in the container's user namespace")

    # --- killing ---------------------------------------------------------------------------

    def kill(self, keep: Collection[Process], spared: Collection[str] = ()) -> int:
        """Kill what is inside, but for `keep`, what those have started since, and processes
        whose environment has one of the `spared` entries. Returns how many there were.

        While there are any such entries, processes of root are spared as well: only the engine
        has such, on their way to become a command.

        The first process adopts orphans, so its children count as nobody's. Processes that
        start others faster than they are killed are forbidden to start any. SandboxFailure if
        some do not die.
        """
        deadline = time.monotonic() + _KILL_S
        known: set[Process] = set()
        limit = ""
        try:
            for attempt in range(1_000_000):
                victims = self._victims(keep, spared)
                known |= victims
                if not victims or not self.alive():
                    break
                if attempt == _STUBBORN:
                    limit = self._text("pids", "pids.max").strip()
                    self._write("pids", "pids.max", "0")
                if time.monotonic() > deadline:
                    raise SandboxFailure(f"processes that do not die: {len(victims)}")
                for victim in victims:
                    _kill(victim)
                time.sleep(0.002)
        finally:
            if limit:
                self._write("pids", "pids.max", limit)
        return len(known)

    def _victims(self, keep: Collection[Process], spared: Collection[str]) -> set[Process]:
        found = self.processes()
        kept = {process for process in found if process in keep} | {self.init}
        parents = {process.pid for process in kept} - {self.init.pid}
        while more := {one for one, up in found.items() if up in parents and one not in kept}:
            kept |= more
            parents |= {one.pid for one in more}
        victims = {one for one in found if one not in kept}
        if not spared:
            return victims
        root = self._host_id("uid", 0)
        return {
            one
            for one in victims
            if not _has_entry(one.pid, spared) and _user(one.pid) not in (root, None)
        }

    # --- files of the control groups ---------------------------------------------------------

    def _v2(self, controller: str) -> bool:
        return controller not in self._groups

    def _text(self, controller: str, name: str) -> str:
        group = self._groups.get(controller, self._groups.get(""))
        return "" if group is None else _text(group / name)

    def _write(self, controller: str, name: str, text: str) -> None:
        group = self._groups.get(controller, self._groups.get(""))
        if group is not None and group.is_dir():
            (group / name).write_text(text)


@dataclass(frozen=True, slots=True)
class _Stat:
    parent: int
    started: int
    dead: bool


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rfind(b")") + 2 :].split()
    return _Stat(int(fields[1]), int(fields[19]), fields[0] in (b"Z", b"X"))


def _kill(process: Process) -> None:
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        stat = _stat(process.pid)
        if stat is not None and stat.started == process.started:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(fd)


def _has_entry(pid: int, entries: Collection[str]) -> bool:
    if not entries:
        return False
    try:
        found = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return any(entry.encode() in found for entry in entries)


def _text(path: Path) -> str:
    """A file of a control group; empty if the group or the file is not there (any more)."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except OSError as error:
        if error.errno == errno.ENODEV:
            return ""
        raise


def _user(pid: int) -> int | None:
    """The real user of a process; None if it ended."""
    words = (_value(_text(Path(f"/proc/{pid}/status")), "Uid:") or "").split()
    return int(words[0]) if words else None


def _groups_of(pid: int, container: str) -> dict[str, Path]:
    """The container's directory for each v1 controller, and under "" that of v2. The process
    may be in a group below it."""
    mounts: dict[str, tuple[str, str]] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        about, _, kind = line.partition(" - ")
        root, at = about.split()[3:5]
        if kind.startswith("cgroup2 "):
            mounts[""] = (root, at)
        elif kind.startswith("cgroup "):
            for controller in kind.split()[2].split(","):
                mounts[controller] = (root, at)
    groups: dict[str, Path] = {}
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        parts = path.split("/")
        own = next((place for place, part in enumerate(parts) if container in part), len(parts))
        path = "/".join(parts[: own + 1])
        for controller in controllers.split(","):
            if controller in mounts:
                root, at = mounts[controller]
                groups[controller] = Path(at) / path.removeprefix(root).lstrip("/")
    return groups


def _field(text: str, name: str) -> int:
    return int(_value(text, name) or 0)


def _value(text: str, name: str) -> str | None:
    for line in text.splitlines():
        key, _, value = line.partition("\t" if "\t" in line else " ")
        if key == name:
            return value.strip()
    return None


def _no_swap() -> bool:
    return len(Path("/proc/swaps").read_text().splitlines()) < 2
