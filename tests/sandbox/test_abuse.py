"""Commands that take all they can get, and will not end: the oci backend survives them.

Each test ends with a sandbox that is well, or a new one where this one had to die; when the
module ends, no process, mount, control group or directory of it is left.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Coroutine, Generator
from pathlib import Path
from typing import Any

import pytest

from abuse_support import (
    LIMITS,
    Cell,
    Rig,
    eventually,
    groups,
    resident_mb,
    rig_with_nothing_left,
)
from headrace.errors import UsageError
from headrace.sandbox import (
    BoxLimits,
    ExecLimits,
    Outcome,
    Result,
    SandboxFailure,
    SandboxGone,
    SandboxSpec,
)
from headrace.sandbox.oci.backend import OciBackend

_UNAVAILABLE = OciBackend().available()
pytestmark = pytest.mark.skipif(_UNAVAILABLE is not None, reason=f"oci: {_UNAVAILABLE}")


@pytest.fixture(scope="module")
def rig() -> Generator[Rig]:
    with rig_with_nothing_left(None) as rig:
        yield rig


@pytest.fixture
def cell(rig: Rig) -> Generator[Cell]:
    """A sandbox that must be well when the test is over."""
    cell = rig.cell()
    yield cell
    cell.assert_well()
    cell.close()


@pytest.fixture
def doomed(rig: Rig) -> Generator[Cell]:
    """A sandbox that may die of the test; a new one must be well then."""
    cell = rig.cell()
    yield cell
    cell.close()
    another = rig.cell()
    another.assert_well()
    another.close()


# --- bombs ---------------------------------------------------------------------------------


def test_a_fork_bomb_meets_its_limit_and_is_gone_with_its_time(cell: Cell) -> None:
    """NemoClaw #809, Clawith #636: the box has a limit of its own, and the machine has room."""
    bomb = "bomb() { bomb | bomb & bomb; }; bomb"
    result = cell.sh(bomb, timeout_s=1.5)
    assert result.outcome in (Outcome.TIMEOUT, Outcome.PROCESSES)
    assert len(cell.members()) <= LIMITS.processes + 2
    assert subprocess.run(["true"], check=True).returncode == 0
    if result.outcome is not Outcome.TIMEOUT:
        cell.restore(cell.snapshot())
    assert cell.alone()


def test_a_fork_bomb_that_was_left_running_ends_with_the_next_restore(cell: Cell) -> None:
    """It holds every process of the box meanwhile: that is the candidate's outcome, not ours."""
    ref = cell.snapshot()
    started = cell.python(
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    while True:\n"
        "        try:\n"
        "            os.fork()\n"
        "        except OSError:\n"
        "            pass\n"
        "time.sleep(0.3)\n"
    )
    assert started.ok
    cell.rig.run(cell.box.health())
    starved = cell.exec("true", timeout_s=10)
    assert starved.outcome in (Outcome.PROCESSES, Outcome.RESULT)
    cell.restore(ref)
    assert cell.alone()


def test_a_bomb_of_threads_meets_the_same_limit(cell: Cell) -> None:
    result = cell.python(
        "import threading, time\n"
        "for _ in range(500):\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "print('had them all')\n",
        timeout_s=10,
    )
    assert result.outcome is Outcome.PROCESSES
    assert b"had them all" not in result.stdout.data


def test_a_bomb_of_memory_kills_its_command_and_nothing_else(cell: Cell) -> None:
    """sunwalker-box #10: memory, by one process and by many."""
    one = cell.python("held = b'x' * (1 << 30)")
    assert (one.outcome, one.signal, one.oom) == (Outcome.MEMORY, signal.SIGKILL, True)
    many = cell.python(
        "import os, signal, time\n"
        "for _ in range(20):\n"
        "    if os.fork() == 0:\n"
        "        held = bytearray(os.urandom(1 << 20)) * 100\n"
        "        time.sleep(60)\n"
        "        os._exit(0)\n"
        "killed = os.wait()[1]\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.killpg(0, signal.SIGTERM)\n"
        "raise SystemExit(killed)\n",
        timeout_s=20,
    )
    assert (many.outcome, many.oom) == (Outcome.MEMORY, True)


def test_a_candidate_that_survives_its_child_s_memory_is_told_apart(cell: Cell) -> None:
    result = cell.sh("python3 -c \"held = b'x' * (1 << 30)\"; exit 0")
    assert (result.outcome, result.exit_code, result.oom) == (Outcome.RESULT, 0, True)


def test_a_bomb_of_shared_memory_ends_as_memory(doomed: Cell) -> None:
    """Segments belong to no process, so the kernel may have to kill all of the box."""
    result = doomed.python(
        "import ctypes\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.shmat.restype = ctypes.c_void_p\n"
        "libc.shmat.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)\n"
        "for _ in range(64):\n"
        "    id = libc.shmget(0, 8 << 20, 0o1600)\n"
        "    ctypes.memset(libc.shmat(id, None, 0), 1, 8 << 20)\n",
        timeout_s=20,
    )
    assert result.outcome is Outcome.MEMORY


def test_a_bomb_of_open_files_meets_its_limit(cell: Cell) -> None:
    result = cell.python(
        "import os, resource\n"
        "held = []\n"
        "try:\n"
        "    while True:\n"
        "        held += os.pipe()\n"
        "except OSError as error:\n"
        "    print(len(held), error.errno)\n"
        "try:\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (10_000, 10_000))\n"
        "except ValueError:\n"
        "    print('kept')\n"
    )
    held, error, kept = result.stdout.text.split()
    assert 200 < int(held) <= LIMITS.open_files
    assert (error, kept) == ("24", "kept")


def test_many_processes_with_many_files_each_do_not_exhaust_the_machine(cell: Cell) -> None:
    result = cell.python(
        "import os, time\n"
        "for _ in range(50):\n"
        "    if os.fork() == 0:\n"
        "        held = []\n"
        "        try:\n"
        "            while True:\n"
        "                held.append(os.open('/dev/null', 0))\n"
        "        except OSError:\n"
        "            time.sleep(60)\n"
        "time.sleep(0.5)\n",
        timeout_s=10,
    )
    assert result.ok
    Path("/dev/null").read_bytes()
    cell.restore(cell.snapshot())
    assert cell.alone()


def test_two_busy_loops_get_the_processor_they_were_given(rig: Rig) -> None:
    limits = BoxLimits(memory_mb=128, disk_mb=16, cpus=0.2)
    cell = rig.cell(limits)
    spin = (
        "import os, time\n"
        "end = time.monotonic() + 1.5\n"
        "os.fork()\n"
        "while time.monotonic() < end:\n"
        "    pass\n"
        "print(time.process_time())\n"
    )
    used = [float(word) for word in cell.says(spin).split()]
    assert sum(used) < 0.2 * 1.5 * 1.3 + 0.2
    cell.close()


# --- output --------------------------------------------------------------------------------


def test_output_without_end_is_bounded_and_host_memory_stays_flat(cell: Cell) -> None:
    """inspect_ai #781, sandcastle #698, agent-fleet #197: `yes`, for as long as it may."""
    before = resident_mb()
    result = cell.exec("yes", timeout_s=3, limits=ExecLimits(output_bytes=2**16, flood_bytes=2**50))
    assert result.outcome is Outcome.TIMEOUT
    assert result.stdout.total > 50 * 2**20
    assert result.stdout.truncated
    assert len(result.stdout.data) < 2**16 + 100
    assert result.stdout.data.startswith(b"y\ny\n")
    assert result.stdout.data.endswith(b"y\n")
    assert resident_mb() - before < 24


def test_a_flood_on_both_streams_from_many_processes_is_killed(cell: Cell) -> None:
    script = "for i in 1 2 3 4 5 6; do (trap '' TERM; yes & yes >&2) & done; wait"
    result = cell.sh(script, limits=ExecLimits(output_bytes=4096, flood_bytes=2**23))
    assert result.outcome is Outcome.OUTPUT
    assert cell.alone()


def test_a_stream_that_nobody_ever_closes_is_not_waited_for(cell: Cell) -> None:
    began = time.monotonic()
    result = cell.sh("setsid sleep 600 & echo said", timeout_s=20)
    assert (result.outcome, result.stdout.data) == (Outcome.RESULT, b"said\n")
    assert time.monotonic() - began < 5


def test_output_of_any_bytes_is_only_output(cell: Cell) -> None:
    """A candidate can print what the supervisor would say; nobody reads it as that."""
    result = cell.python(
        "import os, struct\n"
        "reply = struct.pack('<IIiiQQ', 1, 1, 0, 0, 0, 0)\n"
        "for fd in (1, 2):\n"
        '    os.write(fd, reply * 3 + b\'\\0\\xff\\xfe{"tag": 1, "ok": null}\')\n'
        "for fd in range(3, 300):\n"
        "    try:\n"
        "        os.write(fd, reply)\n"
        "    except OSError:\n"
        "        continue\n"
        "    raise SystemExit(99)\n"
        "raise SystemExit(42)\n"
    )
    assert (result.outcome, result.exit_code) == (Outcome.RESULT, 42)
    assert result.stdout.data == result.stderr.data
    assert result.stdout.text.endswith('{"tag": 1, "ok": null}')


# --- what does not end ---------------------------------------------------------------------

_CLINGING = """
import os, signal, sys, time

def cling(depth):
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    os.setsid()
    if depth and os.fork() == 0:
        cling(depth - 1)
    if depth == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        time.sleep(1)

for depth in (0, 1, 2, 3):
    if os.fork() == 0:
        os.environ.clear()
        cling(depth)
print("begun", flush=True)
while True:
    pass
"""


def test_nothing_survives_its_deadline(cell: Cell) -> None:
    """inspect_ai #1357 and #2779, brepjs #1380: sessions, orphans, deaf and stopped ones."""
    result = cell.python(_CLINGING, timeout_s=1.0)
    assert (result.outcome, result.stdout.data) == (Outcome.TIMEOUT, b"begun\n")
    assert result.usage.wall_s < 5
    assert cell.processes() == []


def test_what_other_commands_started_survives_a_deadline(cell: Cell) -> None:
    assert cell.sh("setsid sleep 600 & echo $! > pid").ok
    assert cell.exec("sleep", "60", timeout_s=0.2).outcome is Outcome.TIMEOUT
    assert cell.sh("kill -0 $(cat pid) && kill $(cat pid)").ok


def test_orphans_are_reaped(cell: Cell) -> None:
    """agenta #5172: thousands of dead processes that nobody waited for."""
    result = cell.python(
        "import os\n"
        "for _ in range(300):\n"
        "    if os.fork() == 0:\n"
        "        os._exit(os.fork() and 0)\n"
        "    os.wait()\n"
    )
    assert result.ok
    assert cell.alone()


def test_a_sandbox_that_died_is_gone_for_good(doomed: Cell) -> None:
    """mini-swe-agent #803: the death is told at once, and nothing goes on as if nothing were."""

    async def die() -> Result:
        running = asyncio.ensure_future(doomed.box.exec(["sleep", "60"]))
        await asyncio.sleep(0.1)
        os.kill(doomed.supervisor(), signal.SIGKILL)
        return await running

    result = doomed.rig.run(die())
    assert result.outcome is Outcome.CRASH
    assert not result.outcome.by_candidate
    assert (result.exit_code, result.signal) == (None, None)
    calls: list[Coroutine[Any, Any, Any]] = [
        doomed.box.exec(["true"]),
        doomed.box.health(),
        doomed.box.snapshot(),
        doomed.box.get_file("x"),
    ]
    for call in calls:
        with pytest.raises(SandboxGone):
            doomed.rig.run(call)


def test_the_supervisor_outlives_all_that_it_can_be_sent(cell: Cell) -> None:
    supervisor = cell.supervisor()
    for number in ("KILL", "STOP", "TERM", "INT", "SEGV", "USR1", "CHLD"):
        assert not cell.sh(f"kill -{number} 1").ok
    assert cell.sh("sleep 60 & kill -9 -1; wait $!; exit $?").exit_code == 128 + signal.SIGKILL
    assert cell.processes() == []
    assert cell.supervisor() == supervisor
    assert Path(f"/proc/{supervisor}/stat").read_text().split()[2] in "SR"


def test_twenty_commands_at_once_in_one_sandbox(cell: Cell) -> None:
    async def all_of_them() -> list[Result]:
        return await asyncio.gather(
            *(cell.box.exec(["sh", "-c", f"cat; exit {n}"], stdin=b"%d" % n) for n in range(20))
        )

    results = cell.rig.run(all_of_them())
    assert [result.exit_code for result in results] == list(range(20))
    assert [result.stdout.data for result in results] == [b"%d" % n for n in range(20)]


def test_more_than_the_control_socket_holds_is_still_answered(rig: Rig) -> None:
    limits = BoxLimits(memory_mb=512, disk_mb=16, processes=256, cpus=2.0)
    cell = rig.cell(limits)
    large = {"LARGE": "x" * 120_000}

    async def all_of_them() -> list[Result]:
        work = (cell.box.exec(["sh", "-c", "echo ${#LARGE}"], env=large) for _ in range(100))
        return await asyncio.gather(*work)

    assert {result.stdout.data for result in rig.run(all_of_them())} == {b"120000\n"}
    cell.assert_well()
    cell.close()


def test_arguments_beyond_all_bounds_are_a_clear_error(cell: Cell) -> None:
    with pytest.raises(UsageError, match="bytes, more than"):
        cell.exec("true", "x" * 10_000_000)
    with pytest.raises(UsageError, match="bytes, more than"):
        cell.exec("true", env={"X": "x" * 10_000_000})
    single = cell.exec("true", "x" * 140_000)
    assert (single.exit_code, single.stderr.text) == (
        126,
        "cannot start the program: Argument list too long\n",
    )
    with pytest.raises(UsageError, match="NUL"):
        cell.exec("true", "a\0b")
    odd = cell.says("import sys, os; print(os.fsencode(sys.argv[1]))", os.fsdecode(b"\xff\xfe"))
    assert odd == "b'\\xff\\xfe'\n"


def test_every_exit_code_passes_through(cell: Cell) -> None:
    """NeMo Gym #1911: no code means anything to us, 2, 125 and 137 neither."""
    for code in (*range(0, 256, 17), 1, 2, 3, 124, 125, 126, 127, 128, 130, 137, 139, 143):
        result = cell.sh(f"exit {code}")
        assert (result.outcome, result.exit_code) == (Outcome.RESULT, code)


# --- from outside --------------------------------------------------------------------------


class _CancelAt:
    """Awaits `work` and cancels it at its `step`-th wait."""

    def __init__(self, work: Coroutine[Any, Any, Any], step: int) -> None:
        self._work, self._step = work, step

    def __await__(self) -> Generator[Any, Any, bool]:
        """Whether it ended before that."""
        waits = 0
        result: Any = None
        throw = False
        while True:
            try:
                if throw:
                    throw = False
                    waited = self._work.throw(asyncio.CancelledError())
                else:
                    waited = self._work.send(result)
            except StopIteration:
                return True
            except asyncio.CancelledError:
                return False
            waits += 1
            if waits == self._step:
                throw = True
                if waited is not None:
                    waited._asyncio_future_blocking = False
                    waited.add_done_callback(_forget)
                continue
            result = yield waited


def _forget(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def test_creation_cancelled_at_every_wait_leaves_nothing(rig: Rig) -> None:
    """verifiers #2067: between any two steps of the start."""

    async def create(step: int, id: str) -> bool:
        work = rig.backend.create(SandboxSpec(limits=LIMITS, init=("sleep", "60")), id=id)
        return await _CancelAt(work, step)

    for step in range(1, 60):
        id = rig.name()
        if rig.run(create(step, id)):
            break
        assert eventually(lambda id=id: not groups(id)), step
        again = rig.run(rig.backend.create(SandboxSpec(limits=LIMITS), id=id))
        rig.run(again.close())
    else:
        pytest.fail("creation waits more than 60 times")
    assert step > 2


def test_nothing_of_a_sandbox_is_found_by_the_next(rig: Rig) -> None:
    """smolvm #40: a stale layer given to somebody else."""
    places = '. /tmp /var/tmp /dev/shm "$HOME"'
    script = f"for d in {places}; do test ! -e $d/mine; echo x > $d/mine; done"
    name = rig.name()
    for epoch in range(4):
        box = rig.run(rig.backend.create(SandboxSpec(limits=LIMITS), id=name))
        cell = Cell(rig, box)
        assert cell.sh(f"set -e; {script}").ok
        ref = cell.snapshot()
        assert cell.sh("echo later > later").ok
        cell.restore(ref)
        recycled = rig.run(rig.backend.recycle(box, epoch=epoch + 1))
        assert recycled is not None
        assert Cell(rig, recycled).sh(f"set -e; test ! -e later; {script}").ok
        rig.run(recycled.close())


def test_forks_share_no_randomness_and_know_the_time(cell: Cell) -> None:
    source = (
        "import os, random, time, uuid\n"
        "print(os.urandom(8).hex(), random.random(), uuid.uuid4(), time.time())\n"
    )
    children = cell.fork(3)
    said = [each.says(source).split() for each in (*children, cell)]
    for column in range(3):
        assert len({line[column] for line in said}) == 4
    for line in said:
        assert abs(float(line[3]) - time.time()) < 5
    for child in children:
        child.close()


def test_a_runaway_sandbox_is_closed_quickly(rig: Rig) -> None:
    cell = rig.cell()
    assert cell.python(_CLINGING.replace("while True:\n    pass", "")).ok
    began = time.monotonic()
    cell.close()
    assert time.monotonic() - began < 5
    assert eventually(lambda: not groups(cell.box.id))


def test_a_sandbox_cannot_be_made_twice(cell: Cell) -> None:
    with pytest.raises((UsageError, SandboxFailure)):
        cell.rig.run(cell.rig.backend.create(SandboxSpec(limits=LIMITS), id=cell.box.id))
