"""Control groups: which part of the hierarchy is a user's, what the files of v2 say, who is whose.

Hierarchies here are directories with files as the kernel's documentation describes them.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.sandbox import BoxLimits, SandboxFailure
from headrace.sandbox.oci import backend, build, cgroups, rootless
from headrace.sandbox.oci.backend import OciBackend

ALL = "cpuset cpu io memory pids"
LIMITS = BoxLimits(memory_mb=256, disk_mb=64, cpus=0.5, processes=32)


def group(
    path: Path, *, controllers: str = ALL, below: str = "", processes: Iterable[int] = ()
) -> Path:
    """A group of v2; `below` are the controllers that it gives to groups in it."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.controllers").write_text(f"{controllers}\n")
    (path / "cgroup.subtree_control").write_text(f"{below}\n")
    (path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in processes))
    return path


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hierarchy in which `user` and what is below it is ours; the path of that."""
    group(tmp_path, below="cpu memory pids")
    ours = group(tmp_path / "user", below="cpu memory pids")
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path).is_relative_to(ours) and Path(path).exists()
    )
    return ours


# --- which group is delegated --------------------------------------------------------------


def test_a_group_with_processes_has_its_sandboxes_beside_it(user: Path, tmp_path: Path) -> None:
    group(user / "shell", processes=[os.getpid()])
    assert cgroups.delegated("/user/shell", root=tmp_path) == user


def test_the_nearest_group_that_can_have_limited_groups_is_taken(
    user: Path, tmp_path: Path
) -> None:
    scope = group(user / "run.scope")
    group(scope / "caller", processes=[os.getpid()])
    assert cgroups.delegated("/user/run.scope/caller", root=tmp_path) == scope


def test_a_group_that_gives_its_controllers_on_may_have_processes(
    user: Path, tmp_path: Path
) -> None:
    """The kernel allows that to the root of a namespace of control groups."""
    own = group(user / "root", below="cpu memory pids", processes=[1])
    assert cgroups.delegated("/user/root", root=tmp_path) == own


def test_a_group_of_somebody_else_ends_the_search(user: Path, tmp_path: Path) -> None:
    group(tmp_path / "session-3.scope", below="cpu memory pids", processes=[os.getpid()])
    assert cgroups.delegated("/session-3.scope", root=tmp_path) is None


@pytest.mark.parametrize("missing", ["cpu", "memory", "pids"])
def test_a_group_without_one_of_the_controllers_is_not_taken(
    user: Path, tmp_path: Path, missing: str
) -> None:
    given = " ".join(name for name in ALL.split() if name != missing)
    group(user, controllers=given, below=given)
    group(user / "shell", controllers=given, processes=[os.getpid()])
    assert cgroups.delegated("/user/shell", root=tmp_path) is None


def test_a_named_group_is_taken_and_no_other(user: Path, tmp_path: Path) -> None:
    group(user / "shell", processes=[os.getpid()])
    mine = group(user / "mine")
    for name in ("/user/mine", "user/mine/", str(mine)):
        assert cgroups.delegated("/user/shell", root=tmp_path, named=name) == mine
    assert cgroups.delegated("/user/shell", root=tmp_path, named="/user/none") is None
    assert cgroups.delegated("/user/shell", root=tmp_path, named="/user/shell") is None


def test_a_named_group_must_be_reachable_from_the_caller_s(user: Path, tmp_path: Path) -> None:
    """The kernel moves a process only for who may write to the nearest group above both."""
    group(user / "mine")
    group(tmp_path / "session", processes=[os.getpid()])
    assert cgroups.delegated("/session", root=tmp_path, named="/user/mine") is None


def test_what_is_reserved_has_the_controllers_and_keeps_those_it_had(
    user: Path, tmp_path: Path
) -> None:
    home = group(user / "run.scope", below="cpuset")
    group(home / "headrace", controllers="cpuset cpu memory pids")
    cgroups.reserve("/user/run.scope/headrace", root=tmp_path)
    for each in (home, home / "headrace"):
        asked = (each / "cgroup.subtree_control").read_text()
        assert set(asked.split()) == {"+cpu", "+memory", "+pids"}, "only what is not there yet"
    group(home, below="cpuset cpu memory pids")
    cgroups.reserve("/user/run.scope/headrace", root=tmp_path)
    assert "+" not in (home / "cgroup.subtree_control").read_text()


# --- what v2 says --------------------------------------------------------------------------


@pytest.fixture
def box(tmp_path: Path) -> cgroups.Groups:
    """The groups of a sandbox with LIMITS in force."""
    home = tmp_path / "box"
    home.mkdir()
    (home / "memory.max").write_text(f"{256 * 2**20}\n")
    (home / "memory.swap.max").write_text("max\n")
    (home / "pids.max").write_text("34\n")
    (home / "cpu.max").write_text("50000 100000\n")
    (home / "memory.events").write_text("low 0\nhigh 0\nmax 17\noom 3\noom_kill 2\n")
    (home / "pids.events").write_text("max 5\n")
    (home / "memory.peak").write_text("1048576\n")
    return cgroups.Groups(dict.fromkeys(("memory", "pids", "cpu", "freezer"), home), v2=True)


def test_limits_in_force_are_no_complaint(box: cgroups.Groups) -> None:
    assert box.enforced(LIMITS, spare=2) == []


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("memory.max", "max", "memory is unlimited"),
        ("memory.max", f"{512 * 2**20}", "memory is 536870912"),
        ("pids.max", "max", "pids is unlimited"),
        ("pids.max", "31", "pids is 31"),
        ("cpu.max", "max 100000", "cpu is unlimited"),
        ("cpu.max", "200000 100000", "cpu is 2.0"),
    ],
)
def test_a_limit_that_is_not_in_force_is_named(
    box: cgroups.Groups, file: str, text: str, said: str
) -> None:
    (box.by_controller["memory"] / file).write_text(f"{text}\n")
    assert box.enforced(LIMITS, spare=2) == [said]


def test_limits_count_by_the_sandbox_s_own_group_not_by_a_smaller_one(
    box: cgroups.Groups,
) -> None:
    smaller = dataclasses.replace(LIMITS, memory_mb=128)
    assert box.enforced(smaller, spare=2) == ["memory is 268435456"]


def test_what_the_kernel_counted_is_read(box: cgroups.Groups) -> None:
    assert box.counts() == cgroups.Counts(oom_kills=2, refused_forks=5, peak_memory=2**20)


def test_a_kernel_without_peaks_has_none(box: cgroups.Groups) -> None:
    """memory.peak came with Linux 5.19."""
    (box.by_controller["memory"] / "memory.peak").unlink()
    assert box.counts().peak_memory == 0


def test_memory_that_is_swapped_out_is_not_outside_the_limit(box: cgroups.Groups) -> None:
    box.forbid_swap()
    assert (box.by_controller["memory"] / "memory.swap.max").read_text() == "0"


# --- whose hierarchy it is -----------------------------------------------------------------


def test_on_v2_a_user_s_group_of_the_same_name_is_not_swept_with_root_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "ROOT", group(tmp_path))
    ours, theirs = (group(tmp_path / place) / "x" for place in ("headrace", "user/headrace"))
    ours.mkdir()
    theirs.mkdir()
    assert cgroups.sweep("/headrace", lambda name: name == "x") == ["x"]
    assert not ours.exists()
    assert theirs.exists()


# --- users ---------------------------------------------------------------------------------

WHOLE = "         0          0 4294967295\n"
RANGE = "0 1000 1\n1 100000 65535\n"


@pytest.fixture
def as_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An ordinary user of a machine that has all that is needed."""
    (tmp_path / "map").write_text(WHOLE)
    monkeypatch.setattr(rootless, "_UID_MAP", tmp_path / "map")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(cgroups, "only_v2", lambda: True)
    monkeypatch.setattr(rootless.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(rootless, "place", lambda: "/user/headrace")
    monkeypatch.delenv("HEADRACE_CGROUP", raising=False)
    probed(monkeypatch, f"{RANGE}\n{RANGE}")
    return monkeypatch


def probed(monkeypatch: pytest.MonkeyPatch, out: str, *, code: int = 0, error: str = "") -> None:
    """What the probe of a user namespace says from now on."""
    rootless._namespace.cache_clear()  # pyright: ignore[reportPrivateUsage]
    ended = subprocess.CompletedProcess([], code, out, error)
    monkeypatch.setattr(rootless.subprocess, "run", lambda *_, **__: ended)


def test_an_ordinary_user_may_have_sandboxes(as_user: pytest.MonkeyPatch) -> None:
    assert rootless.lacks() is None
    assert rootless.confined()
    assert not OciBackend("true").capabilities().renames_frozen


def test_root_of_the_machine_lacks_nothing(as_user: pytest.MonkeyPatch) -> None:
    as_user.setattr(os, "geteuid", lambda: 0)
    as_user.setattr(cgroups, "only_v2", lambda: False)
    assert rootless.lacks() is None
    assert not rootless.confined()
    assert OciBackend("true").capabilities().renames_frozen


def test_root_of_a_user_namespace_is_not_taken_for_root(
    as_user: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    as_user.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "map").write_text("0 100000 2000000000\n")
    lacks = rootless.lacks()
    assert lacks is not None
    assert "not root of a user namespace" in lacks


def test_a_machine_with_groups_of_v1_is_refused(as_user: pytest.MonkeyPatch) -> None:
    as_user.setattr(cgroups, "only_v2", lambda: False)
    lacks = rootless.lacks()
    assert lacks is not None
    assert "version 2 only" in lacks


def test_a_missing_program_is_named_with_its_package(as_user: pytest.MonkeyPatch) -> None:
    as_user.setattr(rootless.shutil, "which", lambda name: None if name == "newuidmap" else "/x")
    assert rootless.lacks() == "without root it needs newuidmap: apt-get install uidmap"


def test_what_the_kernel_refuses_in_a_namespace_is_told(as_user: pytest.MonkeyPatch) -> None:
    """Of Linux before 6.6, of a container whose /proc is covered, of AppArmor: by trying it."""
    probed(as_user, "", code=1, error="mkdir: cannot create directory 'tree/d': Not supported\n")
    lacks = rootless.lacks()
    assert lacks is not None
    assert "'tree/d': Not supported" in lacks
    probed(as_user, f"{RANGE}\n{RANGE}")
    assert rootless.lacks() is None, "a failure is not remembered"


@pytest.mark.parametrize("short", ["0 1000 1\n", "0 1000 1\n1 100000 1000\n"])
def test_both_users_and_groups_must_be_many(as_user: pytest.MonkeyPatch, short: str) -> None:
    for said in (f"{RANGE}\n{short}", f"{short}\n{RANGE}"):
        probed(as_user, said)
        lacks = rootless.lacks()
        assert lacks is not None
        assert "usermod --add-subuids" in lacks


def test_a_user_without_a_group_of_its_own_is_told_how_to_get_one(
    as_user: pytest.MonkeyPatch,
) -> None:
    as_user.setattr(rootless, "place", lambda: None)
    undelegated = rootless.lacks()
    assert undelegated is not None
    assert re.search(r"systemd-run --user .*Delegate=yes", undelegated)
    as_user.setenv("HEADRACE_CGROUP", "/somebody/else")
    named = rootless.lacks()
    assert named is not None
    assert "/somebody/else" in named


def test_users_of_sandboxes_are_neither_the_user_nor_the_machine_s(
    as_user: pytest.MonkeyPatch,
) -> None:
    inside = rootless.users()
    assert inside[0] >= 10_000, "an image's own"
    assert 65534 not in inside, "whom the kernel shows for all that have no number here"
    as_user.setattr(os, "geteuid", lambda: 0)
    assert rootless.users()[0] >= 700_000_000


def test_an_ordinary_user_s_reasons_are_the_backend_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_has_overlayfs", lambda: True)
    monkeypatch.setattr(build, "compiler", lambda: "cc")
    monkeypatch.setattr(rootless, "lacks", lambda: "the moon is not full")
    assert OciBackend("true").available() == "the moon is not full"


def test_numbers_are_given_to_one_sandbox_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rootless, "users", lambda: range(10_000, 10_006))
    oci = OciBackend("true")
    boxes = oci._boxes  # pyright: ignore[reportPrivateUsage]
    for n in range(3):
        boxes[str(n)] = cast(Any, SimpleNamespace(uid=oci.identity()))
    assert sorted(box.uid for box in boxes.values()) == [10_000, 10_002, 10_004]
    with pytest.raises(SandboxFailure, match="all 3 pairs"):
        oci.identity()
