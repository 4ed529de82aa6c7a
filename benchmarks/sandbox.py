"""The sandbox layer against its bars, and against `podman run` in the same run.

    python benchmarks/sandbox.py --check               all of it; needs root, crun and podman
    python benchmarks/sandbox.py --quick --json FILE   fewer repetitions, 64 sandboxes at once

Every repetition is a real sandbox with its limits in force. Times are medians in milliseconds;
headrace and podman take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rows import Row, passed, processor, table

from headrace.errors import HeadraceError
from headrace.sandbox import BoxLimits, Sandbox, SandboxSpec
from headrace.sandbox.oci.backend import OciBackend
from headrace.sandbox.pool import Pool, PoolOptions
from headrace.sandbox.pool.leases import Leases

ONE_LINER = ("sh", "-c", "echo hello")
IMAGE = "localhost/headrace-benchmark"
TREE_MB = 200
WARM = 8


@dataclass(frozen=True, slots=True)
class Size:
    """How often and how many; `quick` is for a look, not for a verdict."""

    times: int
    peers: int
    cycles: int
    crowd: int


FULL = Size(times=100, peers=11, cycles=1500, crowd=512)
QUICK = Size(times=15, peers=3, cycles=150, crowd=64)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    console = Console(stderr=True)
    size = QUICK if options.quick else FULL
    try:
        rows = asyncio.run(_measure(size, options.runtime, console))
    except HeadraceError as error:
        console.print(f"error: {error}\nhint: {error.hint}", markup=False)
        return int(error.exit_code)
    Console().print(table(rows))
    if options.json:
        report = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{processor()}, kernel {platform.release()}",
            "runtime": options.runtime or "crun",
            "rows": [row.to_json() for row in rows],
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if options.check and not passed(rows) else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar falls short")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here")
    parser.add_argument("--runtime", help="the OCI runtime (crun, else runc)")
    return parser.parse_args(arguments)


async def _measure(size: Size, runtime: str | None, console: Console) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        leases = Leases(Path(scratch) / "leases.db")
        for part in (_cold, _warm, _live, _trees, _sustained, _crowd):
            console.print(f"{part.__name__.strip('_')} ...", markup=False)
            began = time.perf_counter()
            backend = OciBackend(runtime)
            try:
                rows += await part(backend, leases, size)
            finally:
                await backend.aclose()
            console.print(f"  {time.perf_counter() - began:.0f} s", markup=False)
    return rows


async def _clock(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1e3


async def _say_hello(sandbox: Sandbox) -> None:
    result = await sandbox.exec(ONE_LINER)
    if result.stdout.data != b"hello\n":
        raise RuntimeError(f"a sandbox answered {result}")


# --- the parts -----------------------------------------------------------------------------


async def _cold(backend: OciBackend, leases: Leases, size: Size) -> list[Row]:
    """create, exec and close without a pool, and podman doing the same, by turns."""

    async def once(number: int) -> None:
        sandbox = await backend.create(SandboxSpec(), id=f"cold{number}")
        await _say_hello(sandbox)
        await sandbox.close()

    await once(-1)
    ours = tuple([await _clock(once(number)) for number in range(size.times)])
    row = Row(what="create + exec + close, cold", peer="-", unit="ms", ours=ours, most=40)
    return [row, await _against_podman(lambda number: once(10_000 + number), size)]


async def _against_podman(once: Callable[[int], Awaitable[None]], size: Size) -> Row:
    what, peer = "runs of a one-liner, cold", "podman run"
    reason = _podman_image()
    if reason is not None:
        return Row(what=what, peer=peer, unit="per s", bar=10, unavailable=reason)
    command = ["podman", "run", "--rm", "--network", "none", "--memory", "512m"]
    command += ["--pids-limit", "128", "--ulimit", "nofile=1024:1024", "--ulimit"]
    command += ["nproc=1024:1024", IMAGE, *ONE_LINER]
    if (runc := shutil.which("runc")) is not None:
        command[1:1] = ["--runtime", runc]
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(size.peers):
        ours.append(1e3 / await _clock(once(number)))
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        theirs.append(1 / (time.perf_counter() - began))
    return Row(what=what, peer=peer, unit="per s", ours=tuple(ours), theirs=tuple(theirs), bar=10)


def _podman_image() -> str | None:
    """Have podman know an image with a shell, made here; else why it cannot be measured."""
    if shutil.which("podman") is None:
        return "apt-get install podman"
    busybox = shutil.which("busybox")
    if busybox is None:
        return "apt-get install busybox-static"
    with tempfile.TemporaryDirectory() as draft:
        root = Path(draft)
        (root / "bin").mkdir()
        shutil.copy(busybox, root / "bin" / "sh")
        archive = root.with_suffix(".tar")
        subprocess.run(["tar", "-C", draft, "-cf", str(archive), "."], check=True)
        made = subprocess.run(
            ["podman", "import", str(archive), IMAGE], capture_output=True, text=True, check=False
        )
        archive.unlink()
    return None if made.returncode == 0 else made.stderr.strip()[-300:]


async def _warm(backend: OciBackend, leases: Leases, size: Size) -> list[Row]:
    """take, exec and give back with a pool that had time to warm up."""
    spec = SandboxSpec()

    async def once(pool: Pool) -> None:
        async with pool.acquire(spec) as sandbox:
            await _say_hello(sandbox)

    ours: list[float] = []
    async with Pool([backend], leases, PoolOptions(warm=WARM)) as pool:
        await pool.warm(spec, WARM)
        for _ in range(size.times):
            ours.append(await _clock(once(pool)))
            await asyncio.sleep(0.02)
    return [Row(what="create + exec + close, warm", peer="-", unit="ms", ours=tuple(ours), most=5)]


async def _live(backend: OciBackend, leases: Leases, size: Size) -> list[Row]:
    """exec in one sandbox."""
    sandbox = await backend.create(SandboxSpec(), id="live")
    await _say_hello(sandbox)
    ours = tuple([await _clock(_say_hello(sandbox)) for _ in range(size.times)])
    return [Row(what="exec in a live sandbox", peer="-", unit="ms", ours=ours, most=3)]


async def _trees(backend: OciBackend, leases: Leases, size: Size) -> list[Row]:
    """Snapshot, rollback and fork, with a small tree and with one of 200 MB."""
    rows: list[Row] = []
    spec = SandboxSpec(limits=BoxLimits(memory_mb=1024, disk_mb=512))
    for megabytes in (1, TREE_MB):
        async with Pool([backend], leases, PoolOptions(warm=WARM)) as pool:
            await pool.warm(spec, WARM)
            async with pool.acquire(spec) as sandbox:
                rows += await _changes(pool, sandbox, megabytes, size)
    return rows


async def _changes(pool: Pool, sandbox: Sandbox, megabytes: int, size: Size) -> list[Row]:
    fill = "for i in $(seq $0); do head -c 1048576 /dev/urandom > f$i; done"
    result = await sandbox.exec(["sh", "-c", fill, str(megabytes)], timeout_s=120)
    if not result.ok:
        raise RuntimeError(f"cannot fill the tree: {result}")
    times: dict[str, list[float]] = {"snapshot": [], "rollback": [], "fork": []}
    for number in range(size.times // 2):
        await _step(sandbox, f"echo {number} > new")
        began = time.perf_counter()
        ref = await sandbox.snapshot()
        times["snapshot"].append((time.perf_counter() - began) * 1e3)
        await _step(sandbox, "rm f1")
        times["rollback"].append(await _clock(sandbox.restore(ref)))
        if number % 5 == 0:
            await _step(sandbox, f"echo {number} > forked")
            began = time.perf_counter()
            (child,) = await pool.fork(sandbox, 1)
            times["fork"].append((time.perf_counter() - began) * 1e3)
            listing = await child.exec(["sh", "-c", "ls | wc -l"])
            if listing.stdout.text.strip() != str(megabytes + 2):
                raise RuntimeError(f"a fork has another tree: {listing}")
            await pool.give_back(child)
            await asyncio.sleep(0.1)
    return [
        Row(what=f"{what}, {megabytes} MB tree", peer="-", unit="ms", ours=tuple(values), most=10)
        for what, values in times.items()
    ]


async def _step(sandbox: Sandbox, script: str) -> None:
    """What comes between changes of the tree: a command, and a policy that thinks."""
    result = await sandbox.exec(["sh", "-c", script])
    if not result.ok:
        raise RuntimeError(f"a command failed: {result}")
    await asyncio.sleep(0.02)


async def _sustained(backend: OciBackend, leases: Leases, size: Size) -> list[Row]:
    """take, exec and give back for a while, four at a time: recycled, and each one new."""
    rows: list[Row] = []
    for reuses, what, least in ((100, "recycled", 150.0), (0, "each one new", None)):
        cycles = size.cycles if reuses else size.cycles // 5
        async with Pool([backend], leases, PoolOptions(warm=WARM, reuses=reuses)) as pool:
            await pool.warm(SandboxSpec(), WARM)
            rates = [await _rate(pool, cycles // 5) for _ in range(5)]
        rows.append(
            Row(
                what=f"create-exec-close, sustained, {what}",
                peer="-",
                unit="per s",
                ours=tuple(rates),
                least=least,
            )
        )
    return rows


async def _rate(pool: Pool, cycles: int) -> float:
    left = cycles

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            async with pool.acquire(SandboxSpec()) as sandbox:
                await _say_hello(sandbox)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(4)))
    return cycles / (time.perf_counter() - began)


async def _crowd(backend: OciBackend, leases: Leases, size: Size) -> list[Row]:
    """Very many at once: all answer, and the host is afterwards as it was."""
    small = SandboxSpec(limits=BoxLimits(memory_mb=64, disk_mb=16, processes=16))
    first = await backend.create(small, id="first")
    await first.close()
    await asyncio.sleep(0.5)
    processes, memory = _processes(), _memory_mb()
    starting = asyncio.Semaphore(4)

    async def one(number: int) -> Sandbox:
        async with starting:
            return await backend.create(small, id=f"crowd{number}")

    began = time.perf_counter()
    crowd = await asyncio.gather(*(one(number) for number in range(size.crowd)))
    started = time.perf_counter() - began
    answers = await asyncio.gather(*(sandbox.exec(ONE_LINER, timeout_s=120) for sandbox in crowd))
    answered = sum(result.stdout.data == b"hello\n" for result in answers)
    at_most = _memory_mb()
    await asyncio.gather(*(sandbox.close() for sandbox in crowd))
    await asyncio.sleep(1)
    each = (at_most - memory) / size.crowd
    return [
        Row(
            what=f"{size.crowd} at once: answers",
            peer="-",
            unit="sandboxes",
            ours=(float(answered),),
            least=size.crowd,
        ),
        Row(what="  started", peer="-", unit="per s", ours=(size.crowd / started,)),
        Row(what="  memory of each", peer="-", unit="MiB", ours=(each,)),
        Row(
            what="  processes left",
            peer="-",
            unit="processes",
            ours=(float(max(0, _processes() - processes)),),
            most=0,
        ),
        Row(
            what="  memory left",
            peer="-",
            unit="MiB",
            ours=(float(max(0, _memory_mb() - memory)),),
            most=64,
        ),
    ]


def _processes() -> int:
    return sum(path.name.isdecimal() for path in Path("/proc").iterdir())


def _memory_mb() -> int:
    """Memory in use on this machine, without what the kernel would give back at once."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(fields[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    return (total - free) // 1024


if __name__ == "__main__":
    sys.exit(main())
