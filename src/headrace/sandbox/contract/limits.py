"""Promises about limits: each that is declared is met by a command that goes past it."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Callable

from headrace.sandbox.contract.kit import (
    LIMITS,
    Lab,
    Unchecked,
    expect,
    promise,
    succeed,
)
from headrace.sandbox.spec import Capabilities, ExecLimits, Isolation, Outcome

__all__ = ["PROMISES"]

_XCPU, _KILL = 24, 9


def _limit(name: str) -> Callable[[Capabilities], str]:
    return lambda can: "" if name in can.limits else f"{name} is not enforced"


async def _refused(lab: Lab) -> None:
    """Who enforces too few limits makes no sandbox that claims to isolate."""
    await lab.refuses("unenforced limits", isolation=Isolation.PROCESS)


@promise(lacks=_limit("memory_mb"), refused=_refused)
async def memory_limit(lab: Lab) -> None:
    """Memory beyond the limit kills what took it, is told apart, and harms no later command."""
    box = await lab.sandbox(limits=dataclasses.replace(LIMITS, memory_mb=96, disk_mb=16))
    result = await box.exec(["dd", "if=/dev/zero", "of=/dev/null", "bs=256M", "count=1"])
    expect(not result.ok, "256 MiB were had of 96")
    if result.signal is not None:
        expect(result.outcome is Outcome.MEMORY, f"it ended as {result.outcome}")
        expect(result.oom, "the kernel killed, and the result does not say so")
    await succeed(box, "true")


@promise(lacks=_limit("processes"), refused=_refused)
async def process_limit(lab: Lab) -> None:
    """Processes beyond the limit are refused, and it is told apart."""
    box = await lab.sandbox(limits=dataclasses.replace(LIMITS, processes=24))
    script = "i=0; while [ $i -lt 60 ]; do sleep 30 & i=$((i+1)); done; echo all; kill $(jobs -p)"
    result = await box.exec(["sh", "-c", script], timeout_s=40)
    expect(b"all" not in result.stdout.data, "60 processes were had of 24")
    expect(result.outcome is Outcome.PROCESSES, f"it ended as {result.outcome}")


@promise(lacks=_limit("disk_mb"), refused=_refused)
async def disk_limit(lab: Lab) -> None:
    """Files beyond the limit are refused, it is told apart, and space that is freed is there."""
    box = await lab.sandbox(limits=dataclasses.replace(LIMITS, disk_mb=8))
    result = await box.exec(["dd", "if=/dev/zero", "of=fill", "bs=1M", "count=24"])
    expect(not result.ok, "24 MiB were written of 8")
    expect(result.outcome is Outcome.DISK, f"it ended as {result.outcome}")
    await succeed(box, "rm fill; dd if=/dev/zero of=again bs=1M count=4")


@promise(lacks=_limit("open_files"), refused=_refused)
async def open_files_limit(lab: Lab) -> None:
    """The number of open files is bounded, and a command cannot raise it."""
    box = await lab.sandbox()
    script = f"ulimit -n {8 * LIMITS.open_files} 2>/dev/null; ulimit -n; ulimit -Hn"
    result = await box.exec(["sh", "-c", script])
    allowed = [int(word) if word.isdigit() else -1 for word in result.stdout.text.split()]
    expect(
        len(allowed) == 2 and all(0 < number <= LIMITS.open_files for number in allowed),
        f"ulimit says {result.stdout.text.split()}, not {LIMITS.open_files}",
    )


@promise(lacks=_limit("cpus"), refused=_refused)
async def processor_limit(lab: Lab) -> None:
    """Two busy loops get no more of the processors than the limit says."""
    box = await lab.sandbox(limits=dataclasses.replace(LIMITS, cpus=0.25))
    script = (
        "(while :; do :; done) & one=$!; (while :; do :; done) & two=$!; sleep 1.5;"
        " kill $one $two; wait $one $two; times"
    )
    result = await box.exec(["sh", "-c", script], timeout_s=40)
    used = sum(
        60 * int(minutes) + float(seconds)
        for minutes, seconds in re.findall(r"(\d+)m([\d.]+)s", result.stdout.text)
    )
    if not result.stdout.data:
        raise Unchecked("this shell has no `times`")
    allowed = 0.25 * result.usage.wall_s * 1.3 + 0.2
    expect(used <= allowed, f"{used:.2f} processor seconds in {result.usage.wall_s:.2f} s at 0.25")


@promise()
async def processor_seconds(lab: Lab) -> None:
    """A command's own bound on processor time ends it."""
    box = await lab.sandbox()
    spin = ["sh", "-c", "while :; do :; done"]
    result = await box.exec(spin, timeout_s=30, limits=ExecLimits(cpu_s=1))
    expect(result.outcome is not Outcome.TIMEOUT, "a busy loop went on past its second")
    expect(
        result.signal in (_XCPU, _KILL),
        f"it ended as {result.outcome}, {result.exit_code}, {result.signal}",
    )


@promise()
async def file_size(lab: Lab) -> None:
    """A command's own bound on the size of a file holds."""
    box = await lab.sandbox()
    copy = ["dd", "if=/dev/zero", "of=big", "bs=1M", "count=6"]
    result = await box.exec(copy, limits=ExecLimits(file_mb=2))
    expect(not result.ok, "6 MiB were written to a file of 2")
    size = len(await box.get_file("big"))
    expect(size <= 2 * 2**20, f"the file has {size} bytes")


@promise()
async def recovery(lab: Lab) -> None:
    """After commands met their limits, ten at once, the sandbox answers."""
    box = await lab.sandbox()
    hard = ["sh", "-c", "while :; do :; done"]
    await asyncio.gather(*(box.exec(hard, timeout_s=0.5) for _ in range(10)))
    await box.health()
    await succeed(box, "true")


PROMISES = (
    *(memory_limit, process_limit, disk_limit, open_files_limit, processor_limit),
    *(processor_seconds, file_size, recovery),
)
