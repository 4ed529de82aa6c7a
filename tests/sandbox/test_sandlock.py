"""The sandlock backend: its limits hold for whole boxes, and hostile programs stay inside."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.sandbox.sandlock.backend import SandlockBackend
from headrace.sandbox.spec import (
    BoxLimits,
    ExecLimits,
    Isolation,
    Mount,
    Network,
    Outcome,
    Result,
    Sandbox,
    SandboxFailure,
    SandboxGone,
    SandboxRefused,
    SandboxSpec,
)
from headrace.sandbox.state import state_root

LACKS = SandlockBackend().available()
pytestmark = pytest.mark.skipif(LACKS is not None, reason=f"sandlock: {LACKS}")

SMALL = BoxLimits(memory_mb=160, disk_mb=32, processes=24, open_files=64)
SPEC = SandboxSpec(isolation=Isolation.PROCESS, limits=SMALL)


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SANDBOX_STATE", str(tmp_path / "state"))


def with_box(
    use: Callable[[SandlockBackend, Sandbox], Awaitable[None]], spec: SandboxSpec = SPEC
) -> None:
    async def run() -> None:
        backend = SandlockBackend()
        try:
            await use(backend, await backend.create(spec, id="box"))
        finally:
            await backend.aclose()

    asyncio.run(run())
    assert list((state_root() / "sandlock").iterdir()) == []


async def python(box: Sandbox, code: str, timeout_s: float = 20.0) -> Result:
    return await box.exec(["python3", "-I", "-S", "-c", code], timeout_s=timeout_s)


async def shell(box: Sandbox, code: str, timeout_s: float = 20.0) -> Result:
    return await box.exec(["sh", "-c", code], timeout_s=timeout_s)


def alive(mark: str) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if mark.encode() in line:
                found.append(int(entry.name))
    return found


def running(mark: str, count: int = 1) -> list[int]:
    """As `alive`, once there are `count`: a shell goes on before what it starts has begun."""
    deadline = time.monotonic() + 20
    while len(found := alive(mark)) != count:
        assert time.monotonic() < deadline, f"{len(found)} of {mark}"
        time.sleep(0.01)
    return found


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


# --- commands ------------------------------------------------------------------------------


def test_a_command_gives_its_streams_and_how_it_ended() -> None:
    async def use(_: SandlockBackend, box: Sandbox) -> None:
        result = await box.exec(
            ["sh", "-c", 'cat; echo "$A" >&2; pwd; exit 7'], stdin=b"in\n", env={"A": "b"}
        )
        assert (result.exit_code, result.outcome) == (7, Outcome.RESULT)
        assert (result.stdout.data, result.stderr.data) == (b"in\n/workspace\n", b"b\n")
        assert (await shell(box, "kill -TERM $$")).signal == 15
        for suicide in ("kill -9 $$", "sleep 9 & kill -9 0"):
            killed = await shell(box, suicide)
            assert (killed.outcome, killed.signal, killed.oom) == (Outcome.RESULT, 9, False)
        for program, cwd, code in (
            ("no-such-program", "", 127),
            ("/etc/passwd", "", 126),
            ("true", "missing", 127),
        ):
            unstarted = await box.exec([program], cwd=cwd)
            assert unstarted.exit_code == code, unstarted.stderr.text
        big = await box.exec(["wc", "-c"], stdin=b"x" * (5 * 2**20))
        assert big.stdout.data.strip() == str(5 * 2**20).encode()
        assert (await box.exec(["echo", "x" * 100_000])).stdout.total == 100_001

    with_box(use)


def test_after_a_timeout_nothing_it_started_lives_and_the_rest_does() -> None:
    mark = "27.1828001"
    tree = f"sleep {mark} & (setsid sleep {mark} &); setsid env -i sleep {mark} & sleep {mark}"

    async def use(_: SandlockBackend, box: Sandbox) -> None:
        await shell(box, "sleep 27.1828002 &")
        running("sleep\x0027.1828002")
        result = await shell(box, f"echo begun; {tree}", timeout_s=0.5)
        assert (result.outcome, result.signal) == (Outcome.TIMEOUT, 9)
        assert result.stdout.data == b"begun\n"
        assert alive(mark) == []
        assert len(alive("27.1828002")) == 1

    with_box(use)
    assert alive("27.1828002") == []


def test_a_flood_is_killed_and_bounded() -> None:
    async def use(_: SandlockBackend, box: Sandbox) -> None:
        limits = ExecLimits(output_bytes=1000, flood_bytes=8 * 2**20)
        result = await box.exec(["yes"], limits=limits)
        assert result.outcome is Outcome.OUTPUT
        assert len(result.stdout.data) < 1100
        assert result.stdout.truncated

    with_box(use)


def test_a_cancelled_command_leaves_nothing_running() -> None:
    mark = "27.1828003"

    async def use(_: SandlockBackend, box: Sandbox) -> None:
        call = asyncio.ensure_future(shell(box, f"setsid sleep {mark} & sleep {mark}"))
        while len(alive(f"sleep\0{mark}")) < 2:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert alive(mark) == []
        assert (await shell(box, "true")).ok

    with_box(use)


def test_many_commands_at_once_answer_each_their_own() -> None:
    async def use(_: SandlockBackend, box: Sandbox) -> None:
        results = await asyncio.gather(*(shell(box, f"echo {n}; exit {n}") for n in range(6)))
        assert [result.exit_code for result in results] == list(range(6))
        assert [int(result.stdout.data) for result in results] == list(range(6))

    with_box(use)


def test_killing_everything_from_inside_is_a_result_and_the_files_stay() -> None:
    async def use(_: SandlockBackend, box: Sandbox) -> None:
        await box.put_file("kept", b"1")
        for attack in ("kill -9 -1; sleep 5", "kill -9 $PPID; sleep 5"):
            result = await shell(box, attack)
            assert (result.outcome, result.signal) == (Outcome.RESULT, 9)
            assert await box.get_file("kept") == b"1"
        await box.health()

    with_box(use)


def test_the_death_of_the_runner_is_a_crash_and_then_the_sandbox_is_gone() -> None:
    async def use(_: SandlockBackend, box: Sandbox) -> None:
        call = asyncio.ensure_future(shell(box, "sleep 27.1828004"))
        while not alive("sleep\x0027.1828004"):
            await asyncio.sleep(0.01)
        [runner] = alive("sandlock/runner.py")
        os.kill(runner, signal.SIGKILL)
        result = await call
        assert (result.outcome, result.exit_code, result.signal) == (Outcome.CRASH, None, None)
        assert not result.outcome.by_candidate
        for after in (box.exec(["true"]), box.health()):
            with pytest.raises(SandboxGone):
                await after

    with_box(use)
    assert alive("27.1828004") == []


# --- limits --------------------------------------------------------------------------------


def test_memory_is_limited_for_one_process_and_for_all_together() -> None:
    together = """
import os, time
reader, writer = os.pipe()
for _ in range(6):
    if os.fork() == 0:
        os.close(writer)
        held = bytearray(40 << 20)
        print("held", flush=True)
        os.read(reader, 1)
        os._exit(0)
time.sleep(1)
os.close(writer)
for _ in range(6):
    os.wait()
"""
    attempts = (
        "bytearray(200 << 20)",
        "import mmap; m = mmap.mmap(-1, 200 << 20); m[:] = bytes(200 << 20)",
    )

    async def use(_: SandlockBackend, box: Sandbox) -> None:
        for attempt in attempts:
            result = await python(box, attempt)
            assert (result.outcome, result.signal, result.oom) == (Outcome.MEMORY, 9, True)
        assert (await python(box, together)).stdout.data.count(b"held") < 4
        memfd = await python(box, "import os; os.memfd_create('x')")
        assert b"PermissionError" in memfd.stderr.data
        assert (await python(box, "bytearray(40 << 20)")).ok

    with_box(use)


def test_the_disk_is_limited_in_bytes_and_files_wherever_they_are_written() -> None:
    async def use(_: SandlockBackend, box: Sandbox) -> None:
        for place in ("/workspace/big", "/tmp/big", "/dev/shm/big"):
            result = await shell(box, f"dd if=/dev/zero of={place} bs=1M count=64")
            assert result.outcome is Outcome.DISK, result.stderr.text
            assert (await shell(box, f"rm {place}")).ok
        many = await python(box, "[open(f'f{n}', 'w') for n in range(9000)]")
        assert many.exit_code == 1
        files = "import os\nfor n in range(9000): os.close(os.open(f'g{n}', os.O_CREAT))"
        assert b"No space left" in (await python(box, files)).stderr.data

    with_box(use)


def test_a_fork_bomb_of_processes_or_threads_is_bounded_and_ended() -> None:
    bomb = "import os, time\nwhile True:\n  try: os.fork()\n  except OSError: time.sleep(0.01)"
    threads = """
import threading, time
threading.stack_size(65536)
count = 0
try:
    while count < 500:
        threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
        count += 1
except RuntimeError:
    pass
print(count)
"""

    async def use(_: SandlockBackend, box: Sandbox) -> None:
        refused = await shell(box, "for n in $(seq 60); do sleep 1 & done; wait")
        assert refused.outcome is Outcome.PROCESSES, refused.stderr.text
        result = await python(box, bomb, timeout_s=1.5)
        assert result.outcome in (Outcome.TIMEOUT, Outcome.MEMORY)
        assert (await shell(box, "echo alive")).stdout.data == b"alive\n"
        assert int((await python(box, threads)).stdout.data) == 23

    with_box(use)


def test_open_files_are_limited() -> None:
    code = """
import os, resource
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print(len(held), error.errno)
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (999, 999))
except (ValueError, OSError):
    print("kept")
"""

    async def use(_: SandlockBackend, box: Sandbox) -> None:
        words = (await python(box, code)).stdout.data.split()
        assert int(words[0]) < 64
        assert words[1:] == [b"24", b"kept"]

    with_box(use)


@pytest.mark.parametrize("cpus", [0.25, 1.0])
def test_processor_time_is_limited_for_all_processes_together(cpus: float) -> None:
    busy = """
import os, time
children = []
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        try: os.sched_setaffinity(0, range(os.cpu_count()))
        except OSError: pass
        end = time.time() + 1.5
        while time.time() < end: pass
        os._exit(0)
for _ in range(3): os.wait()
used = os.times()
print(used.children_user + used.children_system)
"""

    async def use(_: SandlockBackend, box: Sandbox) -> None:
        result = await python(box, busy)
        # Less than one processor is given by stopping and continuing: coarse on a busy machine.
        slack = 1.1 if cpus == 1 else 2.0
        assert float(result.stdout.data) < result.usage.wall_s * cpus * slack + 0.1

    with_box(use, SandboxSpec(isolation=Isolation.PROCESS, limits=BoxLimits(cpus=cpus)))


# --- confinement ---------------------------------------------------------------------------


def test_the_host_cannot_be_read_written_or_signalled() -> None:
    secret = Path("/var/tmp") / f"headrace-secret-{os.getpid()}"
    secret.write_text("secret")
    secret.chmod(0o666)
    code = f"""
import os, signal
for path in ("{secret}", "/root", "/home", "/etc/shadow", "/run", "/proc/1/environ",
             "/proc/{os.getpid()}/cmdline", "/proc/{os.getpid()}/root", "{state_root()}"):
    try:
        open(path).read() if os.path.isfile(path) else os.listdir(path)
        print("read", path)
    except OSError:
        pass
for path in ("/usr/x", "/etc/x", "/x", "/opt/x", "{secret}", "/proc/self/oom_score_adj",
             "/proc/sys/kernel/hostname", "/proc/self/mem", "/proc/%d/mem" % os.getppid()):
    try:
        open(path, "w")
        print("written", path)
    except OSError:
        pass
for pid in (1, {os.getpid()}):
    try:
        os.kill(pid, 0)
        print("signalled", pid)
    except OSError:
        pass
print("tried")
"""

    async def use(_: SandlockBackend, box: Sandbox) -> None:
        assert (await python(box, code)).stdout.data == b"tried\n"

    try:
        with_box(use)
        assert secret.read_text() == "secret"
    finally:
        secret.unlink()


def test_system_calls_that_change_the_machine_are_refused() -> None:
    code = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
calls = {"ptrace": (101, 16, 1, 0, 0), "unshare": (272, 0x10000000), "mount": (165, 0, 0, 0, 0),
         "setns": (308, 0, 0), "bpf": (321, 0, 0, 0), "keyctl": (250, 0),
         "shmget": (29, 1, 4096, 896),
         "pidfd_getfd": (438, 0, 0, 0), "process_vm_writev": (311, 1, 0, 0, 0, 0),
         "perf_event_open": (298, 0, 0, 0, 0), "io_uring_setup": (425, 1, 0),
         "userfaultfd": (323, 0), "init_module": (175, 0, 0, 0), "reboot": (169, 0, 0, 0)}
for name, call in calls.items():
    ctypes.set_errno(0)
    if libc.syscall(*call) != -1 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
        print(name, ctypes.get_errno())
print("tried")
"""

    async def use(_: SandlockBackend, box: Sandbox) -> None:
        result = await python(box, code)
        assert result.stdout.data == b"tried\n", result.stderr.text
        status = (await shell(box, "cat /proc/self/status")).stdout.text
        assert "CapEff:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status
        assert "Seccomp:\t2" in status

    with_box(use)


def test_sandboxes_do_not_see_or_touch_each_other() -> None:
    async def use(backend: SandlockBackend, box: Sandbox) -> None:
        other = await backend.create(SPEC, id="other")
        await other.put_file("/tmp/mine", b"x")
        await shell(other, "sleep 27.1828005 &")
        [pid] = running("sleep\x0027.1828005")
        result = await shell(box, f"ls /tmp; cat /proc/{pid}/cmdline; kill -9 {pid} && echo killed")
        assert result.stdout.data == b""
        assert alive("27.1828005") == [pid]

    with_box(use)


def network_code(port: int) -> str:
    return f"""
import socket
for family, kind, to in (
    (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", {port})),
    (socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 80)),
    (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 9)),
    (socket.AF_INET6, socket.SOCK_STREAM, ("::1", {port})),
    (socket.AF_UNIX, socket.SOCK_STREAM, "\\0headrace-test-{port}"),
):
    try:
        with socket.socket(family, kind) as s:
            s.settimeout(3)
            s.connect(to)
            if kind == socket.SOCK_DGRAM: s.send(b"x")
            print("reached", to)
    except OSError:
        pass
try:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        print("bound")
except OSError:
    pass
print("tried")
"""


def listener() -> socket.socket:
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
    return server


def test_without_network_nothing_is_reached() -> None:
    async def use(_: SandlockBackend, box: Sandbox) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.socket(socket.AF_UNIX) as abstract:
                abstract.bind(f"\0headrace-test-{port}")
                abstract.listen()
                result = await python(box, network_code(port))
        assert result.stdout.data == b"tried\n"

    with_box(use)


def test_an_allow_list_reaches_its_hosts_and_no_other() -> None:
    with listener() as server, socket.create_server(("127.0.0.1", 0)) as other:
        allowed, refused = server.getsockname()[1], other.getsockname()[1]

        async def use(_: SandlockBackend, box: Sandbox) -> None:
            result = await python(box, network_code(allowed))
            reached = f"reached ('127.0.0.1', {allowed})\ntried\n"
            assert result.stdout.text == reached
            assert (await python(box, network_code(refused))).stdout.data == b"tried\n"

        network = Network(kind="allow-list", allow=(f"127.0.0.1:{allowed}",))
        with_box(use, SandboxSpec(isolation=Isolation.PROCESS, limits=SMALL, network=network))


def test_mounts_are_seen_and_read_only(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "data").write_text("data")
    for path in [shared, *shared.parents][:4]:
        path.chmod(path.stat().st_mode | 0o055)

    async def use(_: SandlockBackend, box: Sandbox) -> None:
        result = await shell(box, "cat /data/set/data; touch /data/set/new || echo refused")
        assert result.stdout.data == b"datarefused\n"

    spec = SandboxSpec(
        isolation=Isolation.PROCESS, limits=SMALL, mounts=(Mount(shared, "/data/set"),)
    )
    with_box(use, spec)
    assert [path.name for path in shared.iterdir()] == ["data"]


# --- files ---------------------------------------------------------------------------------


def test_files_and_archives_go_in_and_come_out(tmp_path: Path) -> None:
    async def use(_: SandlockBackend, box: Sandbox) -> None:
        await box.put_file("a/b", b"\x00" * 3)
        assert await box.get_file("/workspace/a/b") == b"\x00" * 3
        await box.put(tar_of((tarfile.TarInfo("x/y"), b"data")), to="deep")
        packed = tmp_path / "in.tar"
        packed.write_bytes(tar_of((tarfile.TarInfo("z"), b"more" * 10**6)))
        await box.put(packed)
        assert len(await box.get_file("z")) == 4 * 10**6
        await box.get("deep", tmp_path / "out.tar")
        with tarfile.open(tmp_path / "out.tar") as archive:
            assert archive.getnames() == ["deep", "deep/x", "deep/x/y"]
        with pytest.raises(UsageError, match="larger"):
            await box.get("z", tmp_path / "small.tar", limit_mb=1)
        assert not (tmp_path / "small.tar").exists()
        with pytest.raises(UsageError, match="larger"):
            await box.get_file("z", limit_mb=1)
        with pytest.raises(UsageError, match="no such file"):
            await box.get_file("nothing")
        await shell(box, "mkfifo p")
        for special in ("p", "deep", "/dev/null"):
            with pytest.raises(UsageError):
                await box.get_file(special)

    with_box(use)


def test_hostile_archives_and_links_stay_inside() -> None:
    leaving = tarfile.TarInfo("../../etc/evil")
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    device = tarfile.TarInfo("device")
    device.type = tarfile.CHRTYPE
    large = tar_of((tarfile.TarInfo("large"), bytes(40 * 2**20)))

    async def use(_: SandlockBackend, box: Sandbox) -> None:
        for archive in (
            tar_of((leaving, b"")),
            tar_of((link, b"")),
            tar_of((device, b"")),
            large,
            b"no archive",
            tar_of((tarfile.TarInfo("cut"), b"x" * 4096))[:2000],
        ):
            with pytest.raises(UsageError):
                await box.put(archive)
        await shell(box, "rm -rf *; ln -s /etc out; ln -s /root/secret deep")
        for path in ("out/passwd", "deep", "/usr/x", "/x"):
            with pytest.raises(UsageError):
                await box.put_file(path, b"evil")
        with pytest.raises(UsageError):
            await box.get_file("deep")

    with_box(use)


def test_links_that_change_during_file_work_lead_nowhere(tmp_path: Path) -> None:
    swap = "while :; do ln -sfn /root d; ln -sfn /var/tmp d; rm -f d; mkdir d; rmdir d; done"
    victim = Path("/var/tmp") / f"headrace-race-{os.getpid()}"

    async def use(_: SandlockBackend, box: Sandbox) -> None:
        await shell(box, f"({swap}) >/dev/null 2>&1 &")
        for attempt in range(5):
            try:
                await box.put_file(f"d/{victim.name}", b"%d" % attempt)
                await box.get("d", tmp_path / "out.tar")
            except UsageError:
                continue

    with_box(use)
    assert not victim.exists()


def test_snapshots_bring_back_trees_with_their_odd_parts() -> None:
    make = "echo 1 > a; ln -s a l; ln a h; mkdir -p d/e; echo x > d/e/f; chmod 0 d/e/f d/e d"

    async def use(_: SandlockBackend, box: Sandbox) -> None:
        await shell(box, f"{make}; sleep 27.1828006 & echo t > /tmp/t")
        ref = await box.snapshot()
        assert alive("27.1828006") == []
        after = await shell(box, "stat -c %a d; echo 2 > a; rm -f /tmp/t; touch new; ls")
        assert after.stdout.data == b"0\na\nd\nh\nl\nnew\n"
        await box.restore(ref)
        shown = await shell(box, "cat l /tmp/t; ls; stat -c '%a %h' d a; chmod -R 700 d; cat d/e/f")
        assert shown.stdout.data == b"1\nt\na\nd\nh\nl\n0 3\n644 2\nx\n"
        one, two = await box.fork(2, ids=["one", "two"])
        await shell(one, "echo other > a")
        assert await two.get_file("a") == b"1\n"
        assert await two.get_file("/tmp/t") == b"t\n"
        await one.restore(ref)
        assert await one.get_file("a") == b"1\n"

    with_box(use)


def test_a_recycled_sandbox_has_no_trace_and_its_old_handle_is_stale() -> None:
    async def use(backend: SandlockBackend, box: Sandbox) -> None:
        await shell(box, "echo s > s; echo s > /tmp/s; echo s > /dev/shm/s; sleep 27.1828007 &")
        fresh = await backend.recycle(box, epoch=5)
        assert fresh is not None
        assert alive("27.1828007") == []
        result = await shell(fresh, "find /workspace /tmp /dev/shm -mindepth 1; ps -e | wc -l")
        assert result.epoch == 5
        assert b"s" not in result.stdout.data
        with pytest.raises(SandboxGone):
            await box.exec(["true"])
        await box.close()
        assert (await shell(fresh, "true")).ok

    with_box(use)


def test_init_runs_in_every_new_tree_and_comes_back_when_killed() -> None:
    spec = SandboxSpec(
        isolation=Isolation.PROCESS,
        limits=SMALL,
        init=("sh", "-c", "echo up >> log; exec sleep 27.1828008"),
    )

    async def use(_: SandlockBackend, box: Sandbox) -> None:
        async def started(times: int) -> None:
            while not alive("sleep\x0027.1828008"):
                await asyncio.sleep(0.01)
            assert await box.get_file("log") == b"up\n" * times

        await started(1)
        ref = await box.snapshot()
        await started(2)
        await box.restore(ref)
        await started(2)
        await shell(box, "kill -9 -1; sleep 5")
        await box.health()
        await started(3)

    with_box(use, spec)
    assert alive("27.1828008") == []


# --- ownership -----------------------------------------------------------------------------


def test_what_it_cannot_give_is_refused_and_leaves_nothing() -> None:
    async def run() -> None:
        backend = SandlockBackend()
        for spec in (
            SandboxSpec(),
            SandboxSpec(isolation=Isolation.PROCESS, image="dir:/"),
            SandboxSpec(isolation=Isolation.PROCESS, network=Network(kind="full")),
            SandboxSpec(isolation=Isolation.PROCESS, limits=BoxLimits(cpus=1.5)),
            SandboxSpec(
                isolation=Isolation.PROCESS,
                network=Network(kind="allow-list", allow=("*.example.com",)),
            ),
            SandboxSpec(isolation=Isolation.PROCESS, mounts=(Mount(Path("/etc"), "/usr/new"),)),
            SandboxSpec(isolation=Isolation.PROCESS, mounts=(Mount(Path("/missing"), "/m"),)),
        ):
            with pytest.raises(SandboxRefused):
                await backend.create(spec, id="box")
        await backend.create(SPEC, id="box")
        with pytest.raises(SandboxFailure, match="of that id"):
            await backend.create(SPEC, id="box")
        await backend.aclose()
        await backend.aclose()

    asyncio.run(run())
    assert list((state_root() / "sandlock").iterdir()) == []
    assert alive("sandlock/runner.py") == []


def test_a_create_that_is_cancelled_anywhere_leaves_nothing() -> None:
    async def run(after_s: float) -> None:
        backend = SandlockBackend()
        call = asyncio.ensure_future(backend.create(SPEC, id="box"))
        await asyncio.sleep(after_s)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert alive("sandlock/runner.py") == []
        await backend.aclose()

    for after_s in (0.0, 0.02, 0.06):
        asyncio.run(run(after_s))
        assert list((state_root() / "sandlock").iterdir()) == []


MANAGER = """
import asyncio, os, signal
from headrace.sandbox.sandlock.backend import SandlockBackend
from headrace.sandbox.spec import Isolation, SandboxSpec
async def run():
    box = await SandlockBackend().create(SandboxSpec(isolation=Isolation.PROCESS), id="orphan")
    await box.exec(["sh", "-c", "setsid env -i sleep {mark} & :"])
    await box.snapshot()
    await box.exec(["sh", "-c", "setsid env -i sleep {mark} & :"])
    print("ready", flush=True)
    {end}
asyncio.run(run())
"""


def test_a_killed_manager_takes_its_boxes_along_and_reap_removes_the_rest() -> None:
    mark = "27.1828009"
    code = MANAGER.format(mark=mark, end="os.kill(os.getpid(), signal.SIGKILL)")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    deadline = time.monotonic() + 10
    while alive(mark) or alive("sandlock/runner.py"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(list((state_root() / "sandlock").iterdir())) == 2
    assert SandlockBackend().reap(["orphan", "never-was"]) == ["orphan", "never-was"]
    assert list((state_root() / "sandlock").iterdir()) == []


def test_reap_ends_a_box_whose_runner_was_killed_before_its_manager() -> None:
    mark = "27.1828010"
    code = MANAGER.format(mark=mark, end="await asyncio.sleep(60)")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as manager:
        assert manager.stdout is not None
        assert manager.stdout.readline() == b"ready\n"
        [runner] = alive("sandlock/runner.py")
        os.kill(runner, signal.SIGKILL)
        manager.kill()
    assert SandlockBackend().reap(["orphan"]) == ["orphan"]
    assert alive(mark) == []


def test_a_sandbox_ends_with_its_lifetime() -> None:
    async def use(_: SandlockBackend, box: Sandbox) -> None:
        result = await shell(box, "sleep 27.1828011")
        assert result.outcome is Outcome.CRASH
        with pytest.raises(SandboxGone):
            await box.exec(["true"])

    with_box(use, SandboxSpec(isolation=Isolation.PROCESS, limits=SMALL, lifetime_s=1.0))
