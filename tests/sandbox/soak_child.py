"""A manager for the soak: uses up sandboxes in every way there is until it is killed.

`python soak_child.py COUNT SEED` prints `done N` for each sandbox it has finished with.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

from headrace.sandbox import BoxLimits, ExecLimits, Outcome, Sandbox, SandboxSpec
from headrace.sandbox.oci.backend import OciBackend
from headrace.sandbox.pool import Pool, PoolOptions
from headrace.sandbox.pool.leases import Leases

SPEC = SandboxSpec(limits=BoxLimits(memory_mb=64, disk_mb=16, processes=24))
BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
HOG = "x = []\nwhile True: x.append(bytearray(1 << 20))\n"


async def answer(box: Sandbox) -> Outcome | None:
    result = await box.exec(["sh", "-c", "cat > file && cat file"], stdin=b"42")
    assert result.stdout.data == b"42", result
    return None


async def leave_a_daemon(box: Sandbox) -> Outcome | None:
    result = await box.exec(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo left"])
    assert result.stdout.data == b"left\n", result
    return None


async def sleep_too_long(box: Sandbox) -> Outcome | None:
    result = await box.exec(["sh", "-c", "setsid sleep 600 & sleep 600"], timeout_s=0.05)
    return expect(result.outcome, Outcome.TIMEOUT)


async def flood(box: Sandbox) -> Outcome | None:
    limits = ExecLimits(flood_bytes=1 << 20, output_bytes=1024)
    return expect((await box.exec(["yes"], limits=limits)).outcome, Outcome.OUTPUT)


async def fill(box: Sandbox) -> Outcome | None:
    result = await box.exec(["sh", "-c", "head -c 100000000 /dev/zero > f"])
    return expect(result.outcome, Outcome.DISK)


async def hog(box: Sandbox) -> Outcome | None:
    result = await box.exec(["python3", "-c", HOG], timeout_s=30)
    return expect(result.outcome, Outcome.MEMORY)


async def bomb(box: Sandbox) -> Outcome | None:
    result = await box.exec(["python3", "-c", BOMB], timeout_s=0.3)
    return expect(result.outcome, Outcome.TIMEOUT)


async def roll_back(box: Sandbox) -> Outcome | None:
    await box.put_file("kept", b"1")
    ref = await box.snapshot()
    await box.put_file("kept", b"2")
    await box.restore(ref)
    assert await box.get_file("kept") == b"1"
    return None


def expect(found: Outcome, wanted: Outcome) -> Outcome:
    assert found is wanted, f"{found} instead of {wanted}"
    return found


USES = (answer, answer, answer, leave_a_daemon, sleep_too_long, flood, fill, roll_back)
RARE = (hog, bomb)


async def main(count: int, seed: int) -> None:
    rng = random.Random(seed)
    left = count
    options = PoolOptions(warm=4, reuses=8)

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            use = rng.choice(RARE if rng.random() < 0.02 else USES)
            async with pool.acquire(SPEC) as box:
                clean = await box.exec(["sh", "-c", "ls -A; ls -A /tmp /dev/shm | grep -v :"])
                assert clean.stdout.data.strip() == b"", clean
                await use(box)
            os.write(1, f"done {use.__name__}\n".encode())  # whole or not at all

    async with Pool([OciBackend()], Leases(), options) as pool:
        await asyncio.gather(*(worker() for _ in range(4)))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
