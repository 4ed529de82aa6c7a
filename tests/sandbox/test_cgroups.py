"""Control groups of version 2: what their files say is read, and what is not in force is named.

Groups here are directories with files as the kernel's documentation describes them.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from headrace.sandbox import BoxLimits
from headrace.sandbox.oci import cgroups

LIMITS = BoxLimits(memory_mb=256, disk_mb=64, cpus=0.5, processes=32)


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
