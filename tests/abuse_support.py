"""What the abuse tests share: one oci backend with its event loop, and what it left behind."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from headrace.sandbox import BoxLimits, ExecLimits, Result, Sandbox, SandboxSpec, SnapshotRef, User
from headrace.sandbox.oci import rootless
from headrace.sandbox.oci.backend import OciBackend

T = TypeVar("T")

LIMITS = BoxLimits(memory_mb=192, disk_mb=64, cpus=1.0, processes=64, open_files=256)
OUTPUT = ExecLimits(output_bytes=2**18)
HIERARCHIES = Path("/sys/fs/cgroup")


class Cell:
    """A sandbox, asked from plain functions."""

    def __init__(self, rig: Rig, box: Sandbox) -> None:
        self.rig, self.box = rig, box

    def exec(
        self,
        *argv: str,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
        env: Mapping[str, str] | None = None,
        user: User = "agent",
        limits: ExecLimits = OUTPUT,
    ) -> Result:
        return self.rig.run(
            self.box.exec(argv, stdin=stdin, timeout_s=timeout_s, env=env, user=user, limits=limits)
        )

    def sh(self, script: str, *arguments: str, user: User = "agent", **rest: Any) -> Result:
        return self.exec("sh", "-c", script, "sh", *arguments, user=user, **rest)

    def python(self, source: str, *arguments: str, **rest: Any) -> Result:
        """Run a script that is given on standard input."""
        return self.exec("python3", "-", *arguments, stdin=source.encode(), **rest)

    def says(self, source: str, *arguments: str, **rest: Any) -> str:
        """What a script printed; it must end well."""
        result = self.python(source, *arguments, **rest)
        assert result.ok, (result.outcome, result.stderr.text)
        return result.stdout.text

    def put_file(self, path: str, data: bytes, *, user: User = "agent") -> None:
        self.rig.run(self.box.put_file(path, data, user=user))

    def put(self, archive: bytes, to: str = "") -> None:
        self.rig.run(self.box.put(archive, to))

    def get(self, path: str, into: Path, *, limit_mb: int = 64) -> None:
        self.rig.run(self.box.get(path, into, limit_mb=limit_mb))

    def get_file(self, path: str) -> bytes:
        return self.rig.run(self.box.get_file(path))

    def snapshot(self) -> SnapshotRef:
        return self.rig.run(self.box.snapshot())

    def restore(self, ref: SnapshotRef) -> None:
        self.rig.run(self.box.restore(ref))

    def fork(self, count: int) -> list[Cell]:
        return [Cell(self.rig, box) for box in self.rig.run(self.box.fork(count))]

    def close(self) -> None:
        self.rig.run(self.box.close())

    def members(self) -> list[int]:
        """Numbers, on this machine, of what runs inside."""
        places = groups(self.box.id)
        group = Path(next((path for path in places if "/pids/" in path), places[0]))
        # On v2, who is in a command's group is not listed above it.
        listings = [path.read_text() for path in group.rglob("cgroup.procs")]
        return [int(line) for text in listings for line in text.split()]

    def processes(self) -> list[int]:
        """Those of them that are a candidate's: the supervisor and its helpers are ours."""
        return [pid for pid in self.members() if owner(pid) not in (None, os.geteuid())]

    def supervisor(self) -> int:
        """The number of the first process inside."""
        return next(pid for pid in self.members() if _number_inside(pid) == 1)

    def alone(self) -> bool:
        """Whether, within two seconds, nothing of a candidate is left."""
        return eventually(lambda: not self.processes(), seconds=2.0)

    def assert_well(self) -> None:
        """It answers, and can run and write."""
        self.rig.run(self.box.health())
        result = self.sh("echo well > well && cat well && rm well")
        assert result.ok, (result.outcome, result.stderr.text)


class Rig:
    """A backend whose sandboxes can be found again by the first letters of their names."""

    def __init__(self, runtime: str | None) -> None:
        self.mark = f"abuse{secrets.token_hex(4)}"
        self._runner = asyncio.Runner()
        self.backend = OciBackend(runtime)
        self._numbers = iter(range(10_000))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def name(self) -> str:
        return f"{self.mark}-{next(self._numbers)}"

    def cell(self, limits: BoxLimits = LIMITS, **spec: Any) -> Cell:
        wanted = SandboxSpec(limits=limits, **spec)
        return Cell(self, self.run(self.backend.create(wanted, id=self.name())))

    def close(self) -> None:
        self.run(self.backend.aclose())
        self._runner.close()


@contextmanager
def rig_with_nothing_left(runtime: str | None) -> Generator[Rig]:
    """A rig with a state directory of its own; afterwards no trace of it may be left."""
    home = Path(tempfile.mkdtemp(prefix="hr", dir="/tmp"))
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HEADRACE_SANDBOX_STATE", str(home / "s"))
            rig = Rig(runtime)
            try:
                yield rig
            finally:
                rig.close()
            assert eventually(lambda: not traces(home, rig.mark)), traces(home, rig.mark)
            assert len(os.listdir("/proc/self/fd")) <= descriptors  # noqa: PTH208
    finally:
        shutil.rmtree(home)


def owner(pid: int) -> int | None:
    """The user of a process, by the machine's number; None for one that has just ended."""
    said = _status(pid, "Uid", "").split()
    return int(said[0]) if said else None


def _number_inside(pid: int) -> int:
    return int(_status(pid, "NSpid", "0").split()[-1])


def _status(pid: int, name: str, gone: str) -> str:
    """A line of what the kernel says of a process; `gone` for one that has just ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return gone
    return next(line.partition(":")[2] for line in lines if line.startswith(f"{name}:"))


def groups(pattern: str) -> list[str]:
    """Control groups of this user's sandboxes with such ids: in the hierarchy of v2, or in each of
    v1."""
    place = rootless.place()
    assert place is not None
    forms = (f"{place[1:]}/{pattern}", f"*{place}/{pattern}")
    return [str(path) for form in forms for path in HIERARCHIES.glob(form)]


def traces(home: Path, mark: str) -> list[str]:
    """Groups, keepers' directories, mounts and processes of sandboxes with that mark."""
    found = groups(f"{mark}*")
    homes = (home / "s" / "oci").glob("*")
    found += [f"{path}: {(path / 'log').read_text(errors='replace')}" for path in homes]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [line for line in mounts if str(home) in line or mark in line]
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                if mark in (path / "cgroup").read_text() or str(home) in (
                    path / "cmdline"
                ).read_text(errors="replace"):
                    found.append(f"process {path.name}")
            except OSError:
                continue
    return found


def eventually(condition: Callable[[], bool], *, seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def resident_mb() -> float:
    """Memory of this process that is in use, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
