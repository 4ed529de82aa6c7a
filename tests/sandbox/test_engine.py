from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Coroutine, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from engine_support import REFERENCE, fake, make_image, podman
from headrace.errors import UsageError
from headrace.sandbox.conformance import check
from headrace.sandbox.engine.backend import EngineBackend
from headrace.sandbox.engine.box import EngineSandbox
from headrace.sandbox.engine.cli import DOCKER, PODMAN, Engine
from headrace.sandbox.engine.files import Snapshots, complete, only_of, without_top
from headrace.sandbox.engine.view import BoxView
from headrace.sandbox.spec import (
    BoxLimits,
    ExecLimits,
    Mount,
    Network,
    Outcome,
    SandboxFailure,
    SandboxGone,
    SandboxRefused,
    SandboxSpec,
)

T = TypeVar("T")
IMAGE = f"podman:{REFERENCE}"
LIMITS = BoxLimits(memory_mb=128, disk_mb=32, cpus=1.0, processes=40, open_files=128)
SPEC = SandboxSpec(image=IMAGE, limits=LIMITS, lifetime_s=300)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Generator[EngineBackend]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_SANDBOX_STATE", str(tmp_path_factory.mktemp("state")))
        make_image(tmp_path_factory.mktemp("image"), REFERENCE)
        made = EngineBackend(PODMAN)
        reason = made.available()
        if reason is not None:
            pytest.skip(f"podman does not work here: {reason}")
        yield made
        run(made.aclose())
        assert made.list() == []
        podman("rmi", "--force", REFERENCE)


@pytest.fixture(scope="module")
def box(backend: EngineBackend) -> EngineSandbox:
    """One sandbox for all tests that leave it usable."""
    made = run(backend.create(SPEC, id="shared"))
    assert isinstance(made, EngineSandbox)
    return made


def view_of(box: EngineSandbox) -> BoxView:
    assert box.container is not None
    about = PODMAN.inspect("container", [box.container])[0]
    return BoxView(int(about["State"]["Pid"]), box.container)


def archive(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


# --- what it is ----------------------------------------------------------------------------


def test_every_limit_is_read_back_from_the_kernel(box: EngineSandbox) -> None:
    view = view_of(box)
    sizes = {"/workspace": 26, "/tmp": 4, "/dev/shm": 2}
    assert view.unenforced(LIMITS, sizes) == []
    asked = BoxLimits(memory_mb=129, disk_mb=33, cpus=0.5, processes=41, open_files=129)
    wrong = view.unenforced(asked, {"/workspace": 27, "/tmp": 4, "/dev/shm": 2})
    for name in ("memory_mb", "disk_mb", "cpus", "processes", "open_files"):
        assert any(word.startswith(name) for word in wrong), (name, wrong)


def test_it_is_unprivileged_and_nothing_but_its_disk_can_be_written(box: EngineSandbox) -> None:
    script = (
        "grep -E '^(CapEff|CapPrm|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; id -u; ulimit -n;"
        "for d in / /etc /bin /dev /run /var/tmp /sys/fs/cgroup /proc/sys/kernel; do "
        "( : > $d/probe ) 2>/dev/null && echo wrote $d; done; ls /sys/class/net"
    )
    result = run(box.exec(["sh", "-c", script]))
    words = result.stdout.text.split()
    assert words[:10] == [
        *("CapPrm:", "0000000000000000", "CapEff:", "0000000000000000"),
        *("CapBnd:", "0000000000000000", "NoNewPrivs:", "1", "Seccomp:", "2"),
    ]
    assert words[10:] == [str(box.uid("agent")), "128", "lo"]


def test_the_two_users_cannot_touch_each_other_or_what_holds_the_sandbox(
    box: EngineSandbox,
) -> None:
    async def both() -> tuple[str, int | None]:
        put = "umask 077; echo secret > /tmp/mine; exec sleep 3"
        held = asyncio.create_task(box.exec(["sh", "-c", put], user="verifier"))
        script = (
            "until test -e /tmp/mine; do sleep 0.05; done; cat /tmp/mine; kill -9 -1; kill -9 1; "
            "ls -l /proc/*/cwd /proc/*/environ 2>/dev/null | grep -c verifier; echo end"
        )
        spied = await box.exec(["sh", "-c", f"trap '' KILL; {script}"])
        return spied.stdout.text, (await held).exit_code

    said, ended = run(both())
    assert "secret" not in said
    assert ended == 0


def test_what_the_image_has_in_its_working_directory_is_there_and_can_be_changed(
    box: EngineSandbox,
) -> None:
    result = run(box.exec(["sh", "-c", "echo more >> given/file; cat given/file; stat -c %u ."]))
    assert result.stdout.text == f"of the image\nmore\n{box.uid('agent')}\n"


# --- commands ------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 3, 125, 126, 127, 128, 255])
def test_an_exit_code_is_the_commands_own(box: EngineSandbox, code: int) -> None:
    script = f"echo 'Error: container state improper' >&2; exit {code}"
    result = run(box.exec(["sh", "-c", script]))
    assert (result.outcome, result.exit_code, result.signal) == (Outcome.RESULT, code, None)


def test_a_program_that_cannot_be_started_ends_as_in_a_shell(box: EngineSandbox) -> None:
    async def codes() -> list[int | None]:
        argvs = (["/no/such"], ["/etc/passwd"], ["echo", "x" * 200_000], ["echo", "a\0b"])
        return [(await box.exec(argv)).exit_code for argv in argvs]

    assert run(codes()) == [127, 126, 126, 126]


def test_streams_input_environment_directory_and_limits_reach_a_command(
    box: EngineSandbox,
) -> None:
    script = 'cat; printf "$A|$PWD|$HOME|"; ulimit -f; ulimit -t; echo e >&2; kill -TERM $$'
    result = run(
        box.exec(
            ["sh", "-c", script],
            stdin=b"in\0",
            env={"A": "a b=c"},
            cwd="given",
            limits=ExecLimits(cpu_s=7, file_mb=1),
        )
    )
    assert result.stdout.data == b"in\0a b=c|/workspace/given|/workspace|2048\n7\n"
    assert (result.stderr.data, result.exit_code, result.signal) == (b"e\n", None, 15)


def test_after_a_timeout_nothing_that_a_command_started_lives_but_what_was_there_does(
    box: EngineSandbox,
) -> None:
    before = run(box.exec(["sh", "-c", "setsid sleep 1001 > /dev/null 2>&1 & echo ok"]))
    assert before.ok
    escaping = (
        "trap '' TERM HUP INT; (env -i setsid sh -c 'sleep 1002 & sleep 1002' &); "
        "env -i sh -c '(sleep 1002 &)'; sleep 1002"
    )
    result = run(box.exec(["sh", "-c", f"echo said; {escaping}"], timeout_s=1.5))
    assert (result.outcome, result.signal) == (Outcome.TIMEOUT, signal.SIGKILL)
    assert result.stdout.text == "said\n"
    left = run(box.exec(["ps", "-o", "args"])).stdout.text
    assert "sleep 1002" not in left
    assert "sleep 1001" in left
    run(box.exec(["pkill", "-f", "sleep 1001"]))


def test_a_cancelled_command_leaves_nothing_running(box: EngineSandbox) -> None:
    async def cancel() -> str:
        task = asyncio.create_task(box.exec(["sh", "-c", "(setsid sleep 1003 &); sleep 1003"]))
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return (await box.exec(["ps", "-o", "args"])).stdout.text

    assert "sleep 1003" not in run(cancel())


def test_one_command_out_of_time_does_not_end_another(box: EngineSandbox) -> None:
    async def both() -> tuple[Outcome, bool]:
        late = asyncio.create_task(box.exec(["sleep", "1004"], timeout_s=1.5))
        other = asyncio.create_task(box.exec(["sh", "-c", "(sleep 3) & wait; echo done"]))
        return (await late).outcome, (await other).stdout.text == "done\n"

    assert run(both()) == (Outcome.TIMEOUT, True)


def test_a_fork_bomb_is_its_own_fault_and_is_cleared_away(box: EngineSandbox) -> None:
    bomb = "f() { f | f & }; f; while :; do :; done"
    result = run(box.exec(["sh", "-c", bomb], timeout_s=3, limits=ExecLimits(flood_bytes=2**30)))
    assert result.outcome in (Outcome.TIMEOUT, Outcome.PROCESSES)
    result = run(box.exec(["sh", "-c", "i=0; while test $i -lt 60; do sleep 1 & i=$((i+1)); done"]))
    assert result.outcome is Outcome.PROCESSES
    time.sleep(1.5)
    assert run(box.exec(["true"])).ok


def test_memory_disk_and_output_run_out_as_what_they_are(box: EngineSandbox) -> None:
    async def all_three() -> list[tuple[Outcome, bool]]:
        hog = "x=0123456789abcdef; while :; do x=$x$x$x; done"
        fill = "head -c 40000000 /dev/zero > big; code=$?; exit $code"
        few = ExecLimits(output_bytes=1000, flood_bytes=10**6)
        results = [
            await box.exec(["sh", "-c", hog], timeout_s=30),
            await box.exec(["sh", "-c", fill], timeout_s=30),
            await box.exec(["sh", "-c", "rm -f big; yes"], timeout_s=30, limits=few),
        ]
        return [(result.outcome, result.oom) for result in results]

    assert run(all_three()) == [
        (Outcome.MEMORY, True),
        (Outcome.DISK, False),
        (Outcome.OUTPUT, False),
    ]


# --- files ---------------------------------------------------------------------------------


def test_archives_and_files_go_in_and_come_out_as_a_user(
    box: EngineSandbox, tmp_path: Path
) -> None:
    async def there_and_back() -> bytes:
        await box.put(archive(("a/b", b"one"), ("./-c", b"two")), "some/where")
        path = tmp_path / "in.tar"
        path.write_bytes(archive(("d", bytes(3_000_000))))
        await box.put(path, "/tmp/v", user="verifier")
        await box.put_file("deep/er/f", b"\0x", user="agent")
        await box.get("some/where", tmp_path / "out.tar")
        owners = await box.exec(["stat", "-c", "%u", "some/where/a/b", "/tmp/v/d", "deep/er/f"])
        assert owners.stdout.text.split() == [
            str(box.uid(user)) for user in ("agent", "verifier", "agent")
        ]
        return await box.get_file("deep/er/f")

    assert run(there_and_back()) == b"\0x"
    with tarfile.open(tmp_path / "out.tar") as tar:
        assert sorted(tar.getnames()) == ["where", "where/-c", "where/a", "where/a/b"]


def test_a_link_laid_by_the_candidate_gives_no_rights_of_others(
    box: EngineSandbox, tmp_path: Path
) -> None:
    async def lead_astray() -> None:
        secret = "umask 077; mkdir -p /tmp/judge; echo secret > /tmp/judge/answer"
        assert (await box.exec(["sh", "-c", secret], user="verifier")).ok
        laid = "ln -sf /tmp/judge/answer answer; ln -sfn /tmp/judge judge; ln -sf /tmp/judge/x x"
        assert (await box.exec(["sh", "-c", laid])).ok
        with pytest.raises(UsageError):
            await box.get_file("answer")
        with pytest.raises(UsageError):
            await box.get_file("judge/answer")
        with pytest.raises(UsageError):
            await box.get("judge/answer", tmp_path / "out.tar")
        with pytest.raises(UsageError):
            await box.put_file("answer", b"mine")
        with pytest.raises(UsageError):
            await box.put(archive(("answer", b"mine")), "judge")
        kept = await box.exec(["cat", "/tmp/judge/answer"], user="verifier")
        assert kept.stdout.text == "secret\n"

    run(lead_astray())


def test_what_cannot_be_read_or_written_is_the_callers_error(
    box: EngineSandbox, tmp_path: Path
) -> None:
    async def ask() -> None:
        await box.exec(["sh", "-c", "rm -f big; mkfifo pipe; head -c 2000000 /dev/zero > two"])
        for path in ("missing", "pipe", "given", "two"):
            with pytest.raises(UsageError):
                await box.get_file(path, limit_mb=1)
        for path in ("missing", "two"):
            with pytest.raises(UsageError):
                await box.get(path, tmp_path / "out", limit_mb=1)
        assert not (tmp_path / "out").exists()
        with pytest.raises(UsageError, match="fit"):
            await box.put(archive(("huge", bytes(33 * 2**20))))
        with pytest.raises(UsageError):
            await box.put(b"no archive")
        with pytest.raises(UsageError):
            await box.put_file("/etc/passwd", b"x")
        with pytest.raises(UsageError):
            await box.put_file("too-large", bytes(31 * 2**20))
        assert (await box.exec(["rm", "too-large"])).ok

    run(ask())


@pytest.mark.parametrize("name", ["../evil", "a/../../evil"])
def test_an_archive_that_leaves_its_place_is_refused_before_anything_is_done(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(UsageError):
        without_top(archive((name, b"x")), 1000, tmp_path / "out")


def test_an_archive_is_told_from_one_that_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    whole = archive(("f", b"x" * 5000))
    path.write_bytes(whole)
    assert complete(path)
    path.write_bytes(whole[: 512 + 5120])
    assert not complete(path)
    path.write_bytes(whole[:4000])
    with pytest.raises(UsageError):
        only_of(path, 0, tmp_path / "out")


# --- trees and lives -----------------------------------------------------------------------


def test_a_snapshot_comes_back_with_owners_links_and_init_and_forks_are_apart(
    backend: EngineBackend,
) -> None:
    spec = replace(SPEC, init=("sh", "-c", "echo run >> /tmp/inits; exec sleep 1005"))

    async def lives() -> None:
        box = await backend.create(spec, id="trees")
        make = "umask 077; echo 1 > f; ln f g; ln -s f h; mkdir d; mkdir -m 1777 open; echo >d/x"
        assert (await box.exec(["sh", "-c", make])).ok
        judge = "umask 077; echo 2 > open/judged; ln -s f open/link"
        assert (await box.exec(["sh", "-c", judge], user="verifier")).ok
        await box.exec(["sh", "-c", "setsid sleep 1006 > /dev/null 2>&1 &"])
        ref = await box.snapshot()
        await box.exec(["sh", "-c", "rm -rf f g h d; echo new > later"])
        left = await box.exec(["ps", "-o", "args"])
        assert "sleep 1006" not in left.stdout.text
        assert "sleep 1005" in left.stdout.text
        await box.restore(ref)
        look = "cat f; test f -ef g && readlink h && ls d; test ! -e later && cat /tmp/inits"
        seen = await box.exec(["sh", "-c", look])
        assert seen.stdout.text == "1\nf\nx\nrun\nrun\n"
        assert (await box.exec(["cat", "open/judged"])).exit_code == 1
        assert (await box.exec(["cat", "open/judged"], user="verifier")).stdout.text == "2\n"
        (child,) = await box.fork(1, ids=["child"])
        assert (child.id, child.spec) == ("child", spec)
        await child.put_file("f", b"child")
        assert await box.get_file("f") == b"1\n"
        assert (await child.exec(["cat", "open/judged"], user="verifier")).stdout.text == "2\n"
        await asyncio.gather(box.close(), child.close())
        with pytest.raises(SandboxGone):
            await box.exec(["true"])
        await box.close()

    run(lives())


def test_a_sandbox_ends_at_its_lifetime_whatever_its_owner_does(backend: EngineBackend) -> None:
    async def wait() -> None:
        box = await backend.create(replace(SPEC, lifetime_s=2.0), id="short")
        deadline = time.monotonic() + 15
        while any(owned.id == "short" for owned in backend.list()):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.3)
        with pytest.raises(SandboxGone, match="lifetime"):
            await box.health()
        await box.close()

    run(wait())


def test_another_process_lists_and_reaps_what_a_dead_owner_left(
    backend: EngineBackend, tmp_path: Path
) -> None:
    program = (
        "import asyncio, os, sys\n"
        "from headrace.sandbox.engine.backend import podman\n"
        "from headrace.sandbox.spec import BoxLimits, SandboxSpec\n"
        f"spec = SandboxSpec(image={IMAGE!r}, limits=BoxLimits(memory_mb=64, disk_mb=16))\n"
        "async def main():\n"
        "    box = await podman().create(spec, id='orphan')\n"
        "    await box.exec(['sh', '-c', 'setsid sleep 1007 >/dev/null 2>&1 &'])\n"
        "    await box.snapshot()\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    died = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert died.returncode == -signal.SIGKILL, died.stderr
    (orphan,) = [owned for owned in backend.list() if owned.id == "orphan"]
    assert (orphan.backend, orphan.state, orphan.orphan) == ("podman", "running", True)
    assert orphan.created - 60 < time.time() < orphan.expires
    snapshots = Path(os.environ["HEADRACE_SANDBOX_STATE"]) / "podman"
    before = len(list(snapshots.iterdir()))
    assert EngineBackend(PODMAN).reap(["orphan", "never-was"]) == ["orphan", "never-was"]
    assert [owned for owned in backend.list() if owned.id == "orphan"] == []
    assert len(list(snapshots.iterdir())) == before - 1


def test_a_container_that_is_killed_under_a_command_is_a_crash(backend: EngineBackend) -> None:
    async def crash() -> None:
        box = await backend.create(SPEC, id="crash")
        assert isinstance(box, EngineSandbox)
        task = asyncio.create_task(box.exec(["sleep", "30"]))
        await asyncio.sleep(1.0)
        os.kill(view_of(box).init.pid, signal.SIGKILL)
        result = await task
        assert (result.outcome, result.exit_code, result.signal) == (Outcome.CRASH, None, None)
        with pytest.raises(SandboxGone):
            await box.exec(["true"])
        await box.close()

    run(crash())


def test_an_allow_list_is_the_only_way_out(backend: EngineBackend) -> None:
    async def fetch() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\nserved")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        network = Network(kind="allow-list", allow=(f"127.0.0.1:{port}",))
        box = await backend.create(replace(SPEC, network=network), id="net")
        url = f"http://127.0.0.1:{port}/"
        assert (await box.exec(["wget", "-q", "-O", "-", url])).stdout.text == "served"
        direct = await box.exec(["wget", "-q", "-Y", "off", "-O", "-", url])
        other = await box.exec(["wget", "-q", "-O", "-", "http://127.0.0.1:9/"])
        assert not direct.ok
        assert not other.ok
        await box.close()
        server.close()

    run(fetch())


# --- what is refused -----------------------------------------------------------------------


def test_what_cannot_be_given_is_refused_and_leaves_nothing(
    backend: EngineBackend, tmp_path: Path
) -> None:
    bare = "localhost/headrace-engine-test:bare"
    make_image(tmp_path, bare, without=("sleep",))
    refused: dict[str, SandboxSpec] = {
        "localhost/none": replace(SPEC, image="podman:localhost/none:1"),
        "knows podman": replace(SPEC, image="host"),
        "has it the program sleep": replace(SPEC, image=f"podman:{bare}"),
        "a mount": replace(SPEC, mounts=(Mount(Path("/tmp/a,b"), "/x"),)),
        "working directory": replace(SPEC, workdir="/"),
        "MiB of disk": replace(SPEC, limits=replace(LIMITS, disk_mb=2)),
    }
    try:
        for words, spec in refused.items():
            for _ in range(2):
                with pytest.raises(SandboxRefused, match=words):
                    run(backend.create(spec, id="refused"))
        assert [owned for owned in backend.list() if owned.id == "refused"] == []
    finally:
        podman("rmi", "--force", bare)


def test_a_name_in_use_is_an_error_that_leaves_the_other_alone(
    backend: EngineBackend, box: EngineSandbox
) -> None:
    with pytest.raises(SandboxFailure):
        run(EngineBackend(PODMAN).create(SPEC, id="shared"))
    assert run(box.exec(["true"])).ok
    with pytest.raises(UsageError):
        run(backend.create(SPEC, id="../x"))


def test_a_runtime_that_does_not_enforce_is_passed_over_and_without_another_is_an_error(
    backend: EngineBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = BoxView.unenforced
    asked: list[int] = []

    def lax(self: BoxView, limits: BoxLimits, mounts: dict[str, int]) -> list[str]:
        asked.append(1)
        return ["memory_mb"] if len(asked) == 1 else honest(self, limits, mounts)

    monkeypatch.setattr(BoxView, "unenforced", lax)
    working = backend.runtime
    two = EngineBackend(replace(PODMAN, runtimes=(working, "runc")))
    box = run(two.create(SPEC, id="second"))
    assert two.runtime == "runc"
    run(box.close())
    asked.clear()
    one = EngineBackend(replace(PODMAN, runtimes=(working,)))
    with pytest.raises(SandboxRefused, match="does not enforce memory_mb"):
        run(one.create(SPEC, id="second"))
    assert [owned for owned in backend.list() if owned.id == "second"] == []
    run(two.aclose())


# --- the engine's client -------------------------------------------------------------------

Faked = Callable[[str, str], None]


@pytest.fixture
def faked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faked:
    """Puts a program of that name before all others on the path."""
    directory = tmp_path / "fakes"
    directory.mkdir()
    monkeypatch.setenv("HEADRACE_SANDBOX_STATE", str(tmp_path / "state"))

    def put(name: str, body: str) -> None:
        fake(directory, name, body)
        monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")

    return put


@pytest.mark.parametrize("engine", [PODMAN, DOCKER], ids=["podman", "docker"])
def test_an_engine_that_hangs_is_a_failure_that_names_the_command(
    faked: Faked, engine: Engine
) -> None:
    faked(engine.name, "import time\ntime.sleep(60)")
    began = time.monotonic()
    with pytest.raises(SandboxFailure) as caught:
        engine.call("ps", "--all", timeout_s=0.3)
    assert time.monotonic() - began < 5
    assert f"{engine.name} did not answer within 0.3 s" in caught.value.what
    assert caught.value.where.endswith(f"{engine.name} ps --all")


def test_the_words_of_a_failing_engine_are_in_the_error(faked: Faked) -> None:
    faked("docker", "import sys\nsys.exit('no space left on device')")
    with pytest.raises(SandboxFailure, match="no space left on device"):
        DOCKER.must("ps")
    reason = EngineBackend(DOCKER).available()
    assert reason is not None
    assert "no space left on device" in reason


def test_what_an_engine_leaves_running_has_the_state_directory_for_its_files(
    faked: Faked, tmp_path: Path
) -> None:
    """podman's monitor writes a file `oom` where it was started when memory runs out."""
    faked("podman", "import os\nprint(os.getcwd())")
    assert PODMAN.must("ps") == f"{tmp_path / 'state'}\n"


def test_an_engine_that_is_not_there_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert EngineBackend(PODMAN).available() == ("podman is not installed (hint: install podman)")


def test_an_exec_that_the_engine_never_starts_is_not_the_candidates_fault(
    box: EngineSandbox, faked: Faked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.sandbox.engine.box._GRACE_S", 0.3)
    faked("podman", "import time\ntime.sleep(60)")
    with pytest.raises(SandboxFailure, match="did not start a command"):
        run(box.exec(["true"], timeout_s=0.5))


def test_an_exec_that_the_engine_fails_is_not_the_candidates_fault(
    box: EngineSandbox, faked: Faked
) -> None:
    real = shutil.which("podman")
    body = f"""
    import os, sys
    if sys.argv[1] == "exec":
        sys.exit(125)
    os.execv({real!r}, ["podman", *sys.argv[1:]])
    """
    faked("podman", body)
    with pytest.raises(SandboxFailure, match="exec failed"):
        run(box.exec(["true"]))


DOCKER_BODY = """
import json, os, sys
args = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(args) + "\\n")
if args[0] == "version":
    print("28.0")
    sys.exit()
if args[0] == "create":
    args = [f"{{arg}},notmpcopyup" if "mode=1777" in arg else arg for arg in args]
    args = ["--runtime", "runc", *args]
if args[0] == "events":
    args = [arg.replace("exec_die", "exec_died") for arg in args if arg not in ("--until", "0s")]
    args.append("--stream=false")
os.execv({real!r}, ["podman", *args])
"""


@pytest.mark.usefixtures("backend")
def test_docker_is_asked_for_the_same_in_its_own_words(faked: Faked, tmp_path: Path) -> None:
    log = tmp_path / "log"
    faked("docker", DOCKER_BODY.format(log=str(log), real=shutil.which("podman")))

    async def use() -> None:
        made = EngineBackend(DOCKER)
        assert made.available() is None
        with pytest.raises(SandboxRefused):
            await made.create(SPEC, id="d")
        box = await made.create(replace(SPEC, image=f"docker:{REFERENCE}"), id="d")
        assert (await box.exec(["sh", "-c", "cat given/file; exit 7"])).exit_code == 7
        assert (await box.exec(["sh", "-c", "exit 3"])).outcome is Outcome.RESULT
        await made.aclose()

    run(use())
    calls: list[list[str]] = [json.loads(line) for line in log.read_text().splitlines()]
    (create,) = [call for call in calls if call[0] == "create"]
    assert "--runtime" not in create
    assert not [word for word in create if "notmpcopyup" in word or "read-only-tmpfs" in word]
    text = " ".join(create)
    for words in (
        *("--name headrace-d", "--init", "--pull never", "--read-only", "--network none"),
        *("--memory 128m", "--memory-swap 128m", "--cpus 1", "--pids-limit 40"),
        *("--ulimit nofile=128:128", "--cap-drop all", "--security-opt no-new-privileges"),
        *("--log-driver none", "--shm-size 2m", "--label headrace.id=d"),
        "--tmpfs /workspace:rw,exec,nosuid,nodev,mode=1777,size=26m",
    ):
        assert words in text
    assert [call[:2] for call in calls if call[0] == "rm"] == [["rm", "--force"]]


def test_an_image_with_volumes_without_a_size_is_refused_where_they_are_made(
    faked: Faked,
) -> None:
    about = [{"Id": "sha256:0", "Config": {"Volumes": {"/data": {}}}}]
    faked("docker", f"print({json.dumps(about)!r})")
    with pytest.raises(SandboxRefused, match="/data"):
        run(EngineBackend(DOCKER).create(replace(SPEC, image="docker:x"), id="v"))


def test_snapshots_of_a_dead_process_are_swept_and_those_of_the_living_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_SANDBOX_STATE", str(tmp_path / "state"))
    kept = Snapshots("podman")
    dead = kept.path.parent / "snapshots-of-the-dead"
    dead.mkdir()
    Snapshots.sweep("podman")
    assert kept.path.is_dir()
    assert not dead.exists()
    kept.close()
    assert not kept.path.exists()


@pytest.mark.slow
def test_podman_keeps_every_promise_that_it_makes(backend: EngineBackend) -> None:
    report = run(check(backend, image=IMAGE))
    assert report.ok, report.failed
