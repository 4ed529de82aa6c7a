"""The most memory that this process ever had, as the kernel counted it. Standard library only."""

from __future__ import annotations

from pathlib import Path

__all__ = ["peak_bytes"]


def peak_bytes() -> int:
    """VmHWM: resident memory at its highest since the process began."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel does not count a process's peak memory")
