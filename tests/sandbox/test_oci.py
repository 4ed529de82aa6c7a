"""The oci backend where things go wrong around it: killed owners, bad runtimes, lost keepers."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from abuse_support import groups
from headrace.errors import UsageError
from headrace.sandbox import (
    BoxLimits,
    Isolation,
    Mount,
    Network,
    Outcome,
    SandboxFailure,
    SandboxGone,
    SandboxRefused,
    SandboxSpec,
)
from headrace.sandbox.oci.backend import OciBackend
from headrace.sandbox.pool import Pool, PoolOptions
from headrace.sandbox.pool.leases import Leases

pytestmark = pytest.mark.skipif(
    OciBackend().available() is not None, reason=f"oci: {OciBackend().available()}"
)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory of the test's own; every run shares the compiled supervisor."""
    monkeypatch.setenv("HEADRACE_SANDBOX_STATE", str(tmp_path / "s"))
    return tmp_path / "s"


def traces(state: Path, marker: str) -> list[str]:
    """What is left of sandboxes whose id starts with `marker`: groups, homes, processes."""
    homes = [str(path) for path in (state / "oci").glob("*")]
    return groups(f"{marker}*") + homes + processes(marker)


def processes(marker: str) -> list[str]:
    found: list[str] = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                if marker in (path / "cgroup").read_text():
                    found.append((path / "cmdline").read_text())
            except OSError:
                continue
    return found


def eventually(condition: Callable[[], bool], *, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


OWNER = textwrap.dedent("""
    import asyncio, sys
    from headrace.sandbox import SandboxSpec
    from headrace.sandbox.oci.backend import OciBackend

    async def own():
        backend = OciBackend()
        boxes = [await backend.create(SandboxSpec(), id=f"killed{n}") for n in range(3)]
        busy = [box.exec(["sh", "-c", "setsid sleep 600 & sleep 600"]) for box in boxes]
        busy = [asyncio.ensure_future(work) for work in busy]
        await boxes[0].snapshot()
        print("ready", flush=True)
        await asyncio.gather(*busy[1:])

    asyncio.run(own())
""")


def test_a_killed_manager_leaves_nothing(state: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        assert processes("killed")
        owner.kill()
    assert eventually(lambda: not traces(state, "killed")), traces(state, "killed")


def test_a_killed_manager_and_keeper_leave_what_the_next_start_removes(state: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        for keeper in keepers(state):
            os.kill(keeper, signal.SIGKILL)
        owner.kill()
    assert eventually(lambda: not processes("killed")), processes("killed")
    OciBackend().reap([])
    assert not traces(state, "killed")


def test_what_is_left_of_a_half_removed_keeper_goes_and_a_new_one_stays(state: Path) -> None:
    OciBackend().reap([])
    old, new = state / "oci" / "kold", state / "oci" / "knew"
    for home in (old, new):
        (home / "s" / "1").mkdir(parents=True)
    os.utime(old, (0, 0))
    OciBackend().reap([])
    assert not old.exists()
    assert new.exists()


def keepers(state: Path) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                command = (path / "cmdline").read_bytes()
            except OSError:
                continue
            if b"sandbox.oci.keeper" in command and str(state).encode() in command:
                found.append(int(path.name))
    return found


def test_without_its_keeper_every_sandbox_is_gone_and_a_new_one_can_be_made(state: Path) -> None:
    async def lose() -> None:
        backend = OciBackend()
        box = await backend.create(SandboxSpec(), id="lost0")
        running = asyncio.ensure_future(box.exec(["sleep", "600"]))
        await asyncio.sleep(0.05)
        for keeper in keepers(state):
            os.kill(keeper, signal.SIGKILL)
        assert (await running).outcome is Outcome.CRASH
        with pytest.raises(SandboxGone):
            await box.exec(["true"])
        await box.close()
        again = await backend.create(SandboxSpec(), id="lost1")
        assert (await again.exec(["true"])).ok
        await backend.aclose()

    asyncio.run(lose())
    assert not traces(state, "lost")


@pytest.mark.parametrize("timeout", [0.0, 0.0005, 0.002])
def test_the_shortest_times_and_cancellation_at_once_leave_nothing_running(
    state: Path, timeout: float
) -> None:
    async def use() -> None:
        backend = OciBackend()
        box = await backend.create(SandboxSpec(), id="short")
        for _ in range(10):
            result = await box.exec(["sleep", "600"], timeout_s=timeout)
            assert result.outcome is Outcome.TIMEOUT
            running = asyncio.ensure_future(box.exec(["sleep", "600"]))
            await asyncio.sleep(timeout)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        mine = "for process in /proc/[0-9]*; do test -O $process && echo $process; done; true"
        listing = await box.exec(["sh", "-c", mine])
        assert len(listing.stdout.text.split()) == 1, "the shell itself"
        await backend.aclose()

    asyncio.run(use())


# --- bad runtimes --------------------------------------------------------------------------


def runtime(directory: Path, script: str) -> str:
    """A program that stands for a broken runtime; `$REAL` is a good one."""
    path = directory / "runc"
    real = shutil.which("runc") or shutil.which("crun")
    path.write_text(f"#!/bin/sh\nREAL={real}\n{script}\n")
    path.chmod(0o755)
    return str(path)


def failure_of(program: str) -> SandboxFailure:
    async def fail() -> SandboxFailure:
        backend = OciBackend(program)
        with pytest.raises(SandboxFailure) as caught:
            await backend.create(SandboxSpec(), id="broken")
        await backend.aclose()
        return caught.value

    return asyncio.run(fail())


def test_a_runtime_that_fails_is_quoted_and_leaves_nothing(state: Path, tmp_path: Path) -> None:
    error = failure_of(runtime(tmp_path, "echo 'no luck today' >&2; exit 3"))
    assert "no luck today" in str(error)
    assert not traces(state, "broken")


def test_limits_that_the_runtime_forgets_are_an_error(state: Path, tmp_path: Path) -> None:
    forget = r"""
    for last; do :; done
    bundle=$(echo "$@" | sed -n 's/.*--bundle \([^ ]*\).*/\1/p')
    if [ -n "$bundle" ]; then
      python3 - "$bundle/config.json" <<'END'
import json, sys
config = json.load(open(sys.argv[1]))
del config["linux"]["resources"]
json.dump(config, open(sys.argv[1], "w"))
END
    fi
    exec $REAL "$@"
    """
    error = failure_of(runtime(tmp_path, forget))
    assert "does not enforce limits" in str(error)
    assert not traces(state, "broken")


# --- refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        (SandboxSpec(isolation=Isolation.USER_KERNEL), "user-kernel"),
        (SandboxSpec(isolation=Isolation.VIRTUAL_MACHINE), "virtual-machine"),
        (SandboxSpec(image="docker:debian"), "docker:debian"),
    ],
)
def test_what_it_cannot_give_is_refused_by_name(state: Path, spec: SandboxSpec, word: str) -> None:
    async def ask() -> None:
        backend = OciBackend()
        with pytest.raises(SandboxRefused, match=word):
            await backend.create(spec, id="refused")
        await backend.aclose()

    asyncio.run(ask())


def test_a_directory_that_is_no_root_is_refused(state: Path, tmp_path: Path) -> None:
    async def ask() -> None:
        backend = OciBackend()
        with pytest.raises(UsageError, match="no root filesystem"):
            await backend.create(SandboxSpec(image=f"dir:{tmp_path}"), id="refused")
        await backend.aclose()

    asyncio.run(ask())


# --- trees ---------------------------------------------------------------------------------


def test_a_root_filesystem_is_never_written_to(state: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("bin", "etc", "proc", "dev", "tmp"):
        (root / name).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None, "apt-get install busybox-static"
    shutil.copy(busybox, root / "bin" / "busybox")
    (root / "etc" / "passwd").write_text("root:x:0:0::/:/bin/sh\n")
    before = sorted(str(path) for path in root.rglob("*"))

    async def use() -> None:
        backend = OciBackend()
        box = await backend.create(SandboxSpec(image=f"dir:{root}"), id="rooted")
        script = "busybox id -un; echo x > /workspace/x; busybox ls /etc"
        result = await box.exec(["/bin/busybox", "sh", "-c", script])
        assert result.stdout.text.split() == ["agent", "group", "passwd"], result
        await backend.aclose()

    asyncio.run(use())
    assert sorted(str(path) for path in root.rglob("*")) == before


def test_a_place_that_cannot_be_mounted_over_is_the_callers_error(
    state: Path, tmp_path: Path
) -> None:
    spec = SandboxSpec(mounts=(Mount(tmp_path, "/opt/there-is-none"),))

    async def attempt() -> None:
        backend = OciBackend()
        try:
            await backend.create(spec, id="nowhere")
        finally:
            await backend.aclose()

    with pytest.raises(UsageError, match="no such directory") as caught:
        asyncio.run(attempt())
    assert caught.value.hint == "mount it at /mnt/there-is-none instead"


def test_a_candidate_cannot_lead_a_mount_astray(state: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "secret").write_text("from the host")
    spec = SandboxSpec(mounts=(Mount(source, "/workspace/a/b"),))

    async def attack() -> None:
        backend = OciBackend()
        box = await backend.create(spec, id="astray")
        seen = await box.exec(["cat", "a/b/secret"])
        assert seen.stdout.text == "from the host"
        moved = await box.exec(["sh", "-c", "mv a c && ln -s /etc a && mkdir -p c/b"])
        if moved.ok:
            with pytest.raises(SandboxFailure):
                await box.snapshot()
            with pytest.raises(SandboxGone):
                await box.exec(["true"])
        await box.close()
        other = await backend.create(SandboxSpec(), id="astray2")
        assert (await other.exec(["true"])).ok
        await backend.aclose()

    asyncio.run(attack())
    assert not traces(state, "astray")


def test_snapshots_outlive_neither_their_sandbox_nor_their_forks_files(state: Path) -> None:
    async def use() -> None:
        backend = OciBackend()
        parent = await backend.create(SandboxSpec(), id="tree0")
        await parent.put_file("kept", b"1")
        ref = await parent.snapshot()
        (child,) = await parent.fork(1)
        await parent.close()
        assert await child.get_file("kept") == b"1"
        with pytest.raises(UsageError, match="snapshot is gone"):
            await child.restore(ref)
        again = await child.snapshot()
        await child.put_file("kept", b"2")
        await child.restore(again)
        assert await child.get_file("kept") == b"1"
        await backend.aclose()

    asyncio.run(use())
    assert not traces(state, "tree")


def test_a_chain_of_snapshots_stays_readable(state: Path) -> None:
    async def use() -> None:
        backend = OciBackend()
        box = await backend.create(SandboxSpec(), id="chain")
        refs = []
        for number in range(60):
            await box.put_file("n", str(number).encode())
            refs.append(await box.snapshot())
        for number in (0, 59, 30):
            await box.restore(refs[number])
            assert await box.get_file("n") == str(number).encode()
        await backend.aclose()

    asyncio.run(use())


def test_an_allow_list_reaches_one_port_of_this_machine_and_nothing_else(state: Path) -> None:
    async def use() -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        backend = OciBackend()
        network = Network(kind="allow-list", allow=(f"127.0.0.1:{port}",))
        box = await backend.create(SandboxSpec(network=network), id="web")
        fetch = (
            "import sys, urllib.request as u, urllib.error\n"
            "u.getproxies()\n"
            "opener = u.build_opener(u.ProxyHandler({'http': 'http://127.0.0.1:3128'}))\n"
            "try: print(opener.open(sys.argv[1], timeout=5).read().decode())\n"
            "except urllib.error.HTTPError as error: print(error.code)\n"
        )
        allowed = await box.exec(["python3", "-c", fetch, f"http://127.0.0.1:{port}/"])
        assert allowed.stdout.text == "hello\n", allowed
        refused = await box.exec(["python3", "-c", fetch, f"http://127.0.0.1:{port + 1}/"])
        assert refused.stdout.text == "403\n", refused
        direct = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        assert not (await box.exec(["python3", "-c", direct])).ok
        await box.close()
        await backend.aclose()
        server.close()

    asyncio.run(use())
    assert not traces(state, "web")


def test_only_a_sandbox_with_the_whole_network_knows_the_resolver(state: Path) -> None:
    async def use() -> None:
        backend = OciBackend()
        for kind, ends in (("full", True), ("none", False)):
            network = Network(kind="full") if kind == "full" else Network()
            box = await backend.create(SandboxSpec(network=network), id=f"names-{kind}")
            there = await box.exec(["test", "-e", "/etc/resolv.conf"])
            assert there.ok is (ends and Path("/etc/resolv.conf").exists())
        await backend.aclose()

    asyncio.run(use())
    assert not traces(state, "names")


def test_limits_must_make_sense() -> None:
    with pytest.raises(UsageError, match="disk_mb"):
        BoxLimits(memory_mb=64, disk_mb=64)


def test_a_pool_forks_into_warm_sandboxes_and_lends_them_again(state: Path) -> None:
    async def use() -> None:
        async with Pool([OciBackend()], Leases(), PoolOptions(warm=2)) as pool:
            await pool.warm(SandboxSpec(), 3)
            async with pool.acquire(SandboxSpec()) as parent:
                await parent.put_file("tree", b"1")
                began = pool.stats().backends["oci"].started
                children = await parent.fork(2)
                for number, child in enumerate(children):
                    assert await child.get_file("tree") == b"1"
                    await child.put_file("tree", str(number).encode())
                assert [await child.get_file("tree") for child in children] == [b"0", b"1"]
                assert await parent.get_file("tree") == b"1"
                assert pool.stats().backends["oci"].started - began <= 3, "only refills started"
                for child in children:
                    await pool.give_back(child)
            for _ in range(6):
                async with pool.acquire(SandboxSpec()) as later:
                    listing = await later.exec(["ls", "-A"])
                    assert listing.stdout.data == b"", "nothing of an earlier use"

    asyncio.run(use())
    assert not list((state / "oci").glob("*"))
