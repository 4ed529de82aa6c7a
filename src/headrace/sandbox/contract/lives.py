"""Promises about a sandbox as a whole: its class, its users, its end."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import tempfile
from collections.abc import Awaitable
from pathlib import Path

from headrace.errors import HeadraceError, UsageError
from headrace.sandbox.contract.kit import (
    Broken,
    Lab,
    Unchecked,
    beats,
    expect,
    gone,
    heart,
    promise,
    raises,
    succeed,
    survivors,
)
from headrace.sandbox.spec import (
    Capabilities,
    Isolation,
    Mount,
    Sandbox,
    SandboxGone,
    SandboxRefused,
)

__all__ = ["PROMISES"]

_CANCEL_AFTER_S = (0.0, 0.001, 0.004, 0.012, 0.03, 0.08)


def _not_isolated(can: Capabilities) -> str:
    return "" if can.isolation > Isolation.TRUSTED else "it isolates nothing"


def _one_user(can: Capabilities) -> str:
    return "" if can.users else "one identity only"


@promise()
async def classes_above_are_refused(lab: Lab) -> None:
    """What is stronger than declared, or of an unknown image, is refused, not degraded."""
    for kind in Isolation:
        if kind > lab.capabilities.isolation:
            await lab.refuses(f"isolation {kind.label}", isolation=kind)
    if "*" not in lab.capabilities.images:
        await lab.refuses("an image nobody knows", image="no-such-kind:nothing")
    await lab.sandbox()


@promise(lacks=_not_isolated)
async def separate_sandboxes(lab: Lab) -> None:
    """One sandbox sees neither the files nor the processes of another or of this machine."""
    one, two = await lab.sandbox(), await lab.sandbox()
    mark = f"hr-{secrets.token_hex(6)}"
    await succeed(one, f"umask 0; echo secret > f; echo secret > /tmp/{mark}; {heart(mark)} &")
    expect(await beats(one, hoped=True), "what was left running has ended")
    await succeed(two, f"test ! -e f; test ! -e /tmp/{mark}")
    with tempfile.NamedTemporaryFile(prefix="headrace-") as file:
        file.write(b"secret of the machine")
        file.flush()
        Path(file.name).chmod(0o644)
        read = await two.exec(["cat", file.name])
        expect(b"secret" not in read.stdout.data, "a file of this machine can be read")
    search = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\000' ' ' | grep -c \"$1\" || true"
    seen = await succeed(two, search, f"[{mark[0]}]{mark[1:]}")
    expect(seen.stdout.text.strip() in ("0", ""), "another sandbox's processes can be seen")
    for pid in survivors(mark):
        await two.exec(["sh", "-c", f"kill -9 {pid}"])
    expect(await beats(one, hoped=False), "another sandbox's processes can be killed")


@promise(lacks=_one_user)
async def users(lab: Lab) -> None:
    """Agent and verifier cannot read each other's private files or signal each other."""
    box = await lab.sandbox()
    mark = f"hr-{secrets.token_hex(6)}"
    place = "d=$(mktemp -d); cd $d; echo key > f; chmod 600 f; echo $d"
    private = (await succeed(box, place, user="verifier")).stdout.text.strip()
    started = await succeed(
        box, f"cd {private}; {heart(mark)} & echo $!", user="verifier", timeout_s=10
    )
    pid = started.stdout.text.strip()
    for script in (f"cat {private}/f", f"echo x > {private}/f", f"rm -rf {private}/f"):
        done = await box.exec(["sh", "-c", script], user="agent")
        expect(done.exit_code != 0, f"the agent may `{script}` of the verifier")
    for script in (f"kill -9 {pid}", f"kill -STOP {pid}", f"cat /proc/{pid}/environ"):
        done = await box.exec(["sh", "-c", script], user="agent")
        expect(done.exit_code != 0, f"the agent may `{script}` of the verifier")
    await succeed(box, f"kill -0 {pid}", user="verifier")
    await succeed(box, "echo mine > agent; chmod 600 agent")
    read = await box.exec(["cat", "agent"], user="verifier")
    expect(read.exit_code != 0, "the verifier reads a private file of the agent")
    await box.put_file(f"{private}/put", b"x", user="verifier")
    await succeed(box, f"test -O {private}/put", user="verifier")


@promise()
async def mounts(lab: Lab) -> None:
    """A mounted directory is seen, and cannot be written to; or mounts are refused."""
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o755)
        (Path(scratch) / "file").write_text("shown\n")
        (Path(scratch) / "file").chmod(0o666)
        try:
            box = await lab.sandbox(mounts=(Mount(Path(scratch), "/mnt"),))
        except SandboxRefused as error:
            raise Unchecked(f"mounts are refused: {error}") from error
        seen = await box.exec(["cat", "/mnt/file"])
        expect(seen.stdout.data == b"shown\n", "a mounted file cannot be read")
        for user in ("agent", "verifier"):
            await box.exec(["sh", "-c", "echo evil > /mnt/file; echo evil > /mnt/new"], user=user)
        expect((Path(scratch) / "file").read_text() == "shown\n", "a mounted file was written")
        expect(not (Path(scratch) / "new").exists(), "a file was made on this machine")
        await box.close()
        expect((Path(scratch) / "file").exists(), "close removed what was mounted")


@promise()
async def closing(lab: Lab) -> None:
    """Close ends everything, may be repeated, and every later call says that it is gone."""
    box, other = await lab.sandbox(), await lab.sandbox()
    mark = f"hr-{secrets.token_hex(6)}"
    await succeed(box, f"{heart(mark)} & ({heart(mark)} &)")
    await asyncio.gather(box.close(), box.close())
    await box.close()
    await gone([mark], "after close")
    calls: dict[str, Awaitable[object]] = {
        "exec": box.exec(["true"]),
        "put_file": box.put_file("x", b""),
        "get_file": box.get_file("x"),
        "put": box.put(b""),
        "health": box.health(),
    }
    if lab.capabilities.snapshot:
        calls["snapshot"] = box.snapshot()
    if lab.capabilities.fork:
        calls["fork"] = box.fork(1)
    for name, call in calls.items():
        await raises(SandboxGone, call, f"{name} after close")
    await succeed(other, "true")


@promise()
async def closing_under_a_command(lab: Lab) -> None:
    """Closed while a command runs, a sandbox ends, and so does the wait for the command."""
    box = await lab.sandbox()
    mark = f"hr-{secrets.token_hex(6)}"
    running = asyncio.ensure_future(box.exec(["sh", "-c", heart(mark), mark], timeout_s=60))
    expect(await beats(box, hoped=True), "a command did not begin")
    await box.close()
    done, _ = await asyncio.wait([running], timeout=20)
    expect(bool(done), "a command of a closed sandbox is waited for")
    await gone([mark], "after close under a command")
    if running.exception() is None:
        expect(not running.result().ok, "a command that was cut off is said to have ended well")
    elif not isinstance(running.exception(), SandboxGone):
        raise Broken(f"the wait ended with {running.exception()!r}")


@promise()
async def names_in_use(lab: Lab) -> None:
    """A second sandbox of a name is refused, and the first one is not hurt; then it is free."""
    box = await lab.sandbox()
    mark = f"hr-{secrets.token_hex(6)}"
    await succeed(box, f"echo first > file; {heart(mark)} &")
    try:
        lab.keep(await lab.backend.create(lab.spec, id=box.id))
    except HeadraceError:
        pass
    else:
        raise Broken("two sandboxes have one name")
    await box.health()
    expect(await box.get_file("file") == b"first\n", "the first one lost its files")
    expect(await beats(box, hoped=True), "the first one lost its processes")
    await box.close()
    lab.keep(await lab.backend.create(lab.spec, id=box.id))


@promise()
async def cancelled_creation(lab: Lab) -> None:
    """Creation that is cancelled at any moment leaves nothing: its name can be used again."""
    mark = f"hr-{secrets.token_hex(6)}"
    spec = dataclasses.replace(lab.spec, init=("sh", "-c", f"exec {heart(mark)}"))
    for after_s in _CANCEL_AFTER_S:
        id = lab.new_id()
        making = asyncio.ensure_future(lab.backend.create(spec, id=id))
        await asyncio.sleep(after_s)
        making.cancel()
        await asyncio.wait([making], timeout=30)
        expect(making.done(), f"cancelled after {after_s} s, it is not done in 30")
        if not making.cancelled():
            if (error := making.exception()) is not None:
                raise Broken(f"cancelled after {after_s} s, it raised {error!r}")
            await making.result().close()
        await gone([mark], f"after creation was cancelled at {after_s} s")
        again = await lab.backend.create(lab.spec, id=id)
        await again.close()


@promise()
async def reaping(lab: Lab) -> None:
    """From outside a sandbox is removed with all its processes; one that is gone is no error."""
    box, other = await lab.sandbox(), await lab.sandbox()
    mark = f"hr-{secrets.token_hex(6)}"
    await succeed(box, f"{heart(mark)} & (setsid {heart(mark)} &)")
    gone_already = lab.new_id()
    removed = await asyncio.to_thread(lab.backend.reap, [box.id, gone_already])
    expect(set(removed) == {box.id, gone_already}, f"of two it says that {removed} are gone")
    await gone([mark], "after reaping")
    await _is_dead(box)
    await succeed(other, "true")


async def _is_dead(box: Sandbox) -> None:
    try:
        result = await box.exec(["true"], timeout_s=10)
    except (SandboxGone, UsageError):
        return
    expect(not result.ok, "a sandbox that was reaped goes on")


PROMISES = (
    *(classes_above_are_refused, separate_sandboxes, users, mounts, closing),
    *(closing_under_a_command, names_in_use, cancelled_creation, reaping),
)
