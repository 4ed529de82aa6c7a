"""The trusted backend: results, limits of one command, what survives and what does not."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.sandbox.plain import PlainBackend
from headrace.sandbox.spec import (
    ExecLimits,
    Isolation,
    Network,
    Outcome,
    Sandbox,
    SandboxGone,
    SandboxRefused,
    SandboxSpec,
)
from headrace.sandbox.state import state_root

TRUSTED = SandboxSpec(isolation=Isolation.TRUSTED, network=Network(kind="full"))


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SANDBOX_STATE", str(tmp_path / "state"))


def with_box(use: Callable[[PlainBackend, Sandbox], Awaitable[None]]) -> None:
    async def run() -> None:
        backend = PlainBackend()
        try:
            await use(backend, await backend.create(TRUSTED, id="box"))
        finally:
            await backend.aclose()

    asyncio.run(run())
    assert sorted(path.name for path in (state_root() / "subprocess").iterdir()) == []


def alive(mark: str) -> list[int]:
    """Process ids whose command line has `mark`, but not zombies."""
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


def test_a_command_gives_its_streams_and_exit_code() -> None:
    async def use(_: PlainBackend, box: Sandbox) -> None:
        result = await box.exec(["sh", "-c", "cat; echo err >&2; exit 7"], stdin=b"in")
        assert (result.exit_code, result.signal, result.outcome) == (7, None, Outcome.RESULT)
        assert (result.stdout.data, result.stderr.data) == (b"in", b"err\n")
        assert not result.ok
        assert result.usage.peak_memory is not None

    with_box(use)


def test_every_exit_code_and_a_signal_are_results() -> None:
    async def use(_: PlainBackend, box: Sandbox) -> None:
        for code in (0, 1, 2, 125, 126, 127, 128, 137, 255):
            assert (await box.exec(["sh", "-c", f"exit {code}"])).exit_code == code
        ended = await box.exec(["sh", "-c", "kill -TERM $$"])
        assert (ended.exit_code, ended.signal) == (None, 15)
        assert ended.outcome is Outcome.RESULT

    with_box(use)


def test_a_program_that_cannot_be_started_is_126_or_127() -> None:
    async def use(_: PlainBackend, box: Sandbox) -> None:
        await box.put_file("plain.txt", b"no program")
        for program, code in (("no-such-program", 127), ("./plain.txt", 126), ("a\0b", 126)):
            result = await box.exec([program])
            assert (result.exit_code, result.outcome) == (code, Outcome.RESULT)
            assert b"cannot start" in result.stderr.data

    with_box(use)


def test_stdin_of_many_megabytes_arrives_whole() -> None:
    async def use(_: PlainBackend, box: Sandbox) -> None:
        result = await box.exec(["wc", "-c"], stdin=b"x" * (9 * 2**20))
        assert result.stdout.data.strip() == str(9 * 2**20).encode()
        assert (await box.exec(["head", "-c", "1"], stdin=b"y" * 2**20)).stdout.data == b"y"

    with_box(use)


def test_after_a_timeout_no_descendant_lives() -> None:
    mark = "31.4159001"
    tree = f"sleep {mark} & (setsid sleep {mark} &); setsid sh -c 'sleep {mark}; :' & sleep {mark}"

    async def use(_: PlainBackend, box: Sandbox) -> None:
        result = await box.exec(["sh", "-c", f"echo begun; {tree}"], timeout_s=0.3)
        assert (result.outcome, result.signal) == (Outcome.TIMEOUT, 9)
        assert result.stdout.data == b"begun\n"
        assert alive(mark) == []

    with_box(use)


def test_what_a_command_leaves_running_goes_on_until_close_and_is_not_waited_for() -> None:
    mark = "31.4159002"

    async def use(_: PlainBackend, box: Sandbox) -> None:
        began = time.monotonic()
        result = await box.exec(["sh", "-c", f"setsid sleep {mark} & echo done"])
        assert result.stdout.data == b"done\n"
        assert time.monotonic() - began < 5
        assert len(running(f"sleep\0{mark}")) == 1
        await box.close()
        assert alive(mark) == []

    with_box(use)


def test_a_timeout_spares_what_earlier_commands_left() -> None:
    async def use(_: PlainBackend, box: Sandbox) -> None:
        await box.exec(["sh", "-c", "sleep 31.4159003 &"])
        running("sleep\x0031.4159003")
        await box.exec(["sleep", "31.4159004"], timeout_s=0.1)
        assert len(alive("31.4159003")) == 1
        assert alive("31.4159004") == []

    with_box(use)


def test_a_flood_is_killed_and_its_head_and_tail_are_kept() -> None:
    async def use(_: PlainBackend, box: Sandbox) -> None:
        limits = ExecLimits(output_bytes=1000, flood_bytes=8 * 2**20)
        result = await box.exec(["sh", "-c", "echo head; yes"], limits=limits)
        assert (result.outcome, result.signal) == (Outcome.OUTPUT, 9)
        assert result.stdout.truncated
        assert result.stdout.data.startswith(b"head\ny\n")
        assert len(result.stdout.data) < 1100
        assert result.stdout.total > 8 * 2**20

    with_box(use)


def test_a_cancelled_command_leaves_nothing_running() -> None:
    mark = "31.4159005"

    async def use(_: PlainBackend, box: Sandbox) -> None:
        call = asyncio.ensure_future(box.exec(["sh", "-c", f"sleep {mark} & sleep {mark}"]))
        while len(alive(f"sleep\0{mark}")) < 2:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert alive(mark) == []

    with_box(use)


def test_processor_time_and_file_size_of_a_command_are_limited() -> None:
    async def use(_: PlainBackend, box: Sandbox) -> None:
        busy = await box.exec(["sh", "-c", "while :; do :; done"], limits=ExecLimits(cpu_s=1))
        assert busy.signal in (9, 24)
        big = await box.exec(
            ["dd", "if=/dev/zero", "of=big", "bs=1M", "count=3"], limits=ExecLimits(file_mb=2)
        )
        assert big.signal == 25
        assert len(await box.get_file("big")) == 2 * 2**20

    with_box(use)


def test_paths_are_inside_the_tree_and_cannot_leave_it() -> None:
    async def use(_: PlainBackend, box: Sandbox) -> None:
        await box.put_file("/workspace/a/b.txt", b"1")
        assert await box.get_file("a/b.txt") == b"1"
        await box.exec(["ln", "-s", "/etc", "out"])
        for path in ("../../../etc/passwd", "out/passwd", "/workspace/out/passwd", "a/../../../x"):
            with pytest.raises(UsageError, match="leaves"):
                await box.get_file(path)
            with pytest.raises(UsageError, match="leaves"):
                await box.put_file(path, b"")
        with pytest.raises(UsageError, match="leaves"):
            await box.put(tar_of(), to="out")
        with pytest.raises(UsageError, match="leaves"):
            await box.exec(["true"], cwd="out")

    with_box(use)


def test_files_that_are_missing_large_or_special_are_refused() -> None:
    async def use(_: PlainBackend, box: Sandbox) -> None:
        await box.exec(["sh", "-c", "mkdir d; mkfifo p; dd if=/dev/zero of=big bs=1M count=2"])
        with pytest.raises(UsageError, match="no such file"):
            await box.get_file("nothing")
        for special in ("d", "p"):
            with pytest.raises(UsageError, match="regular"):
                await box.get_file(special)
        with pytest.raises(UsageError, match="larger"):
            await box.get_file("big", limit_mb=1)

    with_box(use)


def test_archives_go_in_and_come_out(tmp_path: Path) -> None:
    async def use(_: PlainBackend, box: Sandbox) -> None:
        await box.put(tar_of((tarfile.TarInfo("x/y"), b"data")), to="deep")
        packed = tmp_path / "in.tar"
        packed.write_bytes(tar_of((tarfile.TarInfo("z"), b"more")))
        await box.put(packed)
        assert await box.get_file("deep/x/y") == b"data"
        assert await box.get_file("z") == b"more"
        out = tmp_path / "out.tar"
        await box.get("deep", out)
        with tarfile.open(out) as archive:
            assert archive.getnames() == ["deep", "deep/x", "deep/x/y"]
        with pytest.raises(UsageError, match="larger"):
            await box.get("deep", tmp_path / "small.tar", limit_mb=0)
        assert not (tmp_path / "small.tar").exists()

    with_box(use)


def test_hostile_archives_are_refused() -> None:
    leaving = tarfile.TarInfo("../../../evil")
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    huge = tarfile.TarInfo("huge")
    huge.size = 10**12
    device = tarfile.TarInfo("device")
    device.type = tarfile.CHRTYPE

    async def use(_: PlainBackend, box: Sandbox) -> None:
        for archive in (
            tar_of((leaving, b"")),
            tar_of((link, b"")),
            tar_of((device, b"")),
            huge.tobuf() + b"\0" * 1024,
            b"no archive",
            tar_of((tarfile.TarInfo("cut"), b"x" * 4096))[:2000],
        ):
            with pytest.raises(UsageError):
                await box.put(archive)
        assert (await box.exec(["ls"])).stdout.data in (b"", b"cut\n")

    with_box(use)


def test_a_snapshot_brings_back_the_tree_and_ends_processes() -> None:
    mark = "31.4159006"

    async def use(_: PlainBackend, box: Sandbox) -> None:
        await box.exec(["sh", "-c", f"echo 1 > a; ln -s a l; mkfifo p; sleep {mark} &"])
        first = await box.snapshot()
        assert alive(mark) == []
        await box.exec(["sh", "-c", "echo 2 > a; echo new > b"])
        second = await box.snapshot()
        assert (first.depth, second.depth) == (1, 2)
        await box.restore(first)
        assert (await box.exec(["sh", "-c", "cat l; ls"])).stdout.data == b"1\na\nl\n"
        await box.restore(second)
        assert await box.get_file("b") == b"new\n"
        await box.close()
        with pytest.raises(SandboxGone):
            await box.restore(first)

    with_box(use)


def test_forks_share_the_past_and_not_the_future() -> None:
    async def use(_: PlainBackend, box: Sandbox) -> None:
        await box.put_file("a", b"past")
        one, two = await box.fork(2, ids=["one", "two"])
        assert (one.id, two.id) == ("one", "two")
        await one.put_file("a", b"future")
        assert await two.get_file("a") == b"past"
        assert await box.get_file("a") == b"past"

    with_box(use)


def test_a_fork_that_fails_leaves_no_child() -> None:
    async def use(backend: PlainBackend, box: Sandbox) -> None:
        await backend.create(TRUSTED, id="taken")
        with pytest.raises(Exception, match="there is a sandbox of that name"):
            await box.fork(2, ids=["fresh", "taken"])
        assert not (state_root() / "subprocess" / "fresh").exists()

    with_box(use)


def test_init_is_started_in_every_new_tree() -> None:
    spec = SandboxSpec(
        isolation=Isolation.TRUSTED,
        network=Network(kind="full"),
        init=("sh", "-c", "echo x >> /dev/null; echo up >> init.log; sleep 31.4159007"),
    )

    async def run() -> None:
        backend = PlainBackend()
        box = await backend.create(spec, id="box")

        async def lines(of: Sandbox, count: int) -> None:
            shown = b""
            while shown != b"up\n" * count:
                shown = (await of.exec(["sh", "-c", "cat init.log 2>&1"])).stdout.data

        await asyncio.wait_for(lines(box, 1), 10)
        ref = await box.snapshot()
        await asyncio.wait_for(lines(box, 2), 10)
        await box.restore(ref)
        await asyncio.wait_for(lines(box, 2), 10)
        running("sleep\x0031.4159007")
        await backend.aclose()
        assert alive("31.4159007") == []

    asyncio.run(run())


def test_a_recycled_sandbox_has_no_trace_and_its_old_handle_is_stale() -> None:
    mark = "31.4159008"

    async def use(backend: PlainBackend, box: Sandbox) -> None:
        await box.exec(["sh", "-c", f"echo secret > s; sleep {mark} &"])
        fresh = await backend.recycle(box, epoch=5)
        assert fresh is not None
        assert fresh.epoch == 5
        assert alive(mark) == []
        result = await fresh.exec(["ls"])
        assert (result.stdout.data, result.epoch) == (b"", 5)
        with pytest.raises(SandboxGone):
            await box.exec(["true"])
        await box.close()
        assert (await fresh.exec(["true"])).ok
        assert await backend.recycle(box, epoch=6) is None

    with_box(use)


def test_what_it_cannot_give_is_refused() -> None:
    async def run() -> None:
        for spec in (
            SandboxSpec(),
            SandboxSpec(isolation=Isolation.TRUSTED),
            SandboxSpec(isolation=Isolation.PROCESS, network=Network(kind="full")),
        ):
            with pytest.raises(SandboxRefused):
                await PlainBackend().create(spec, id="box")

    asyncio.run(run())


def test_another_process_reaps_what_a_killed_manager_left() -> None:
    mark = "31.4159009"
    manager = f"""
import asyncio, os, signal
from headrace.sandbox.plain import PlainBackend
from headrace.sandbox.spec import Isolation, Network, SandboxSpec
async def run():
    spec = SandboxSpec(isolation=Isolation.TRUSTED, network=Network(kind="full"))
    box = await PlainBackend().create(spec, id="orphan")
    await box.exec(["sh", "-c", "setsid sleep {mark} & echo x > file"])
    await box.snapshot()
    await box.exec(["sh", "-c", "setsid sleep {mark} &"])
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(run())
"""
    assert subprocess.run([sys.executable, "-c", manager], check=False).returncode == -9
    running(f"sleep\0{mark}")
    assert len(list((state_root() / "subprocess").iterdir())) == 2
    assert PlainBackend().reap(["orphan", "never-was"]) == ["orphan", "never-was"]
    assert alive(mark) == []
    assert list((state_root() / "subprocess").iterdir()) == []


def test_a_tree_without_permissions_is_removed_all_the_same() -> None:
    async def use(_: PlainBackend, box: Sandbox) -> None:
        made = await box.exec(["sh", "-c", "mkdir -p a/b/c; touch a/b/c/d; chmod 0 a/b/c a/b a"])
        assert made.ok

    with_box(use)


def test_ids_that_would_leave_the_state_directory_are_refused() -> None:
    for id in ("", "..", "a/b", ".hidden"):
        with pytest.raises(UsageError):
            PlainBackend().reap([id])
