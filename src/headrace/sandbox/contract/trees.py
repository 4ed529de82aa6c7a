"""Promises about file trees: snapshot, restore, fork, and what a recycled sandbox remembers."""

from __future__ import annotations

import errno
import secrets

from headrace.errors import UsageError
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
)
from headrace.sandbox.spec import Capabilities, Sandbox, SandboxGone

__all__ = ["PROMISES"]


def _no_snapshot(can: Capabilities) -> str:
    return "" if can.snapshot else "no snapshots"


def _no_fork(can: Capabilities) -> str:
    return "" if can.fork else "no forks"


def _no_recycle(can: Capabilities) -> str:
    return "" if can.recycle else "no recycling"


async def _snapshot_refused(lab: Lab) -> None:
    box = await lab.sandbox()
    await raises(UsageError, box.snapshot(), "an undeclared snapshot")
    await succeed(box, "true")


async def _fork_refused(lab: Lab) -> None:
    box = await lab.sandbox()
    await raises(UsageError, box.fork(1), "an undeclared fork")
    await succeed(box, "true")


async def _recycle_refused(lab: Lab) -> None:
    box = await lab.sandbox()
    expect(await lab.backend.recycle(box, epoch=1) is None, "it recycles, undeclared")


async def _listing(box: Sandbox, away: str) -> str:
    script = f'for f in * {away}; do printf \'%s \' "$f"; cat "$f" 2>/dev/null; done; true'
    return (await succeed(box, script)).stdout.text


@promise(lacks=_no_snapshot, refused=_snapshot_refused)
async def snapshots(lab: Lab) -> None:
    """Restoring brings back what was changed, added and removed, again and again."""
    box = await lab.sandbox()
    away = "/tmp/t" if lab.isolated else "t"
    await succeed(box, f"echo 1 > a; echo 1 > b; ln -s a l; chmod 600 b; echo t > {away}")
    first, before = await box.snapshot(), await _listing(box, away)
    await succeed(box, f"echo 2 > a; rm b l; mkdir c; echo 2 > c/d; rm {away}; echo x > e")
    second, after = await box.snapshot(), await _listing(box, away)
    expect(first.id != second.id, "two snapshots have one name")
    for ref, wanted in ((first, before), (second, after), (first, before)):
        await succeed(box, "rm -rf a b l c e; echo junk > junk")
        await box.restore(ref)
        found = await _listing(box, away)
        expect(found == wanted, f"after restore there is {found!r}, not {wanted!r}")
    await succeed(box, "test -L l; ls -l b | grep -q '^-rw-------'; echo w >> a; echo n > new")


@promise(lacks=_no_snapshot, refused=_snapshot_refused)
async def snapshots_elsewhere(lab: Lab) -> None:
    """A snapshot can be restored in another sandbox, and neither then sees the other's work."""
    one, two = await lab.sandbox(), await lab.sandbox()
    await succeed(one, "echo one > mine")
    await succeed(two, "echo two > theirs")
    ref = await one.snapshot()
    await two.restore(ref)
    expect(await two.get_file("mine") == b"one\n", "the tree of the snapshot is not there")
    await raises(UsageError, two.get_file("theirs"), "a file that the snapshot does not have")
    await succeed(two, "echo changed > mine; echo x > new")
    expect(await one.get_file("mine") == b"one\n", "what one sandbox writes another one sees")
    await two.close()
    await one.restore(ref)
    expect(await one.get_file("mine") == b"one\n", "a snapshot changed after it was taken")


@promise(lacks=_no_snapshot, refused=_snapshot_refused)
async def work_after_a_snapshot(lab: Lab) -> None:
    """A tree behaves after a snapshot as before: what is in it can be renamed, linked, replaced."""
    box = await lab.sandbox()
    await succeed(
        box, "mkdir -p d/e; echo 1 > d/e/f; echo 2 > d/g; echo 3 > h; mkdir -p old r/s; ls > old/f"
    )
    ref = await box.snapshot()
    await succeed(
        box, "mv -T d moved 2>/dev/null || mv d moved; test $(cat moved/e/f) = 1; test ! -e d"
    )
    await succeed(box, "ln h h2; echo 4 > h2; test $(cat h) = 4; chmod 600 h; mv h h3")
    await succeed(box, 'rm -r old; mkdir old; test -z "$(ls old)"; mkdir d; echo new > d/g')
    renaming = "import os; os.rename('r', 'q'); os.rename('q/s', 't')"
    renamed = await box.exec(["python3", "-c", renaming])
    said = renamed.stderr.text[-100:]
    if lab.capabilities.renames_frozen:
        expect(renamed.exit_code in (0, 126, 127), f"rename(2): {said}")
    elif renamed.exit_code not in (126, 127):
        expect(f"[Errno {errno.EXDEV}]" in said, f"rename(2) does not answer EXDEV: {said}")
    await box.snapshot()
    await succeed(box, 'test $(cat moved/g) = 2; test $(cat d/g) = new; test -z "$(ls old)"')
    await box.restore(ref)
    await succeed(box, "test $(cat d/e/f)$(cat d/g)$(cat h) = 123; test -e old/f; test ! -e moved")


@promise(lacks=_no_snapshot, refused=_snapshot_refused)
async def processes_end_at_a_snapshot(lab: Lab) -> None:
    """Snapshot and restore end every process, and the sandbox's own is started anew."""
    mark, own = f"hr-{secrets.token_hex(6)}", f"hr-{secrets.token_hex(6)}"
    init = ("sh", "-c", f"echo begun >> begun; exec {heart(own, 'own')}")
    box = await lab.sandbox(init=init)
    if not await beats(box, "own", hoped=True):
        raise Broken("the specification's own process was not started")
    await succeed(box, f"{heart(mark)} &")
    expect(await beats(box, hoped=True), "what was left running has ended")
    ref = await box.snapshot()
    await gone([mark], "after a snapshot")
    expect(not await beats(box, hoped=False), "a process writes on after a snapshot")
    expect(await beats(box, "own", hoped=True), "the own process is gone after a snapshot")
    await succeed(box, f"{heart(mark)} &")
    await box.restore(ref)
    await gone([mark], "after a restore")
    expect(await beats(box, "own", hoped=True), "the own process is gone after a restore")
    begun = (await box.get_file("begun")).count(b"begun")
    expect(begun == 2, f"the own process has begun {begun} times in this tree, not twice")
    await box.close()
    await gone([own], "after close")


@promise(lacks=_no_fork, refused=_fork_refused)
async def forks(lab: Lab) -> None:
    """Forks have the tree, the names they were given, their own init, and nothing in common."""
    mark = f"hr-{secrets.token_hex(6)}"
    box = await lab.sandbox(init=("sh", "-c", f"exec {heart(mark, 'own')}"))
    await succeed(box, "echo tree > file; mkdir d; echo deep > d/e")
    ids = [lab.new_id() for _ in range(3)]
    children = [lab.keep(child) for child in await box.fork(3, ids=ids)]
    expect([child.id for child in children] == ids, "the children have other names")
    for number, child in enumerate(children):
        expect(child.spec == box.spec, "a child has another specification")
        await succeed(child, f"test $(cat d/e) = deep; echo {number} > file; echo x > n{number}")
    for number, child in enumerate(children):
        expect(await child.get_file("file") == f"{number}\n".encode(), "children share a file")
        expect(await beats(child, "own", hoped=True), "a child's own process was not started")
    expect(await box.get_file("file") == b"tree\n", "a child wrote into its parent")
    seeds = [(await succeed(one, "head -c 16 /dev/urandom")).stdout.data for one in children]
    expect(len(set(seeds)) == 3, "children repeat each other's random numbers")
    await box.close()
    expect(await children[0].get_file("d/e") == b"deep\n", "a child lost its tree")
    (grandchild,) = [lab.keep(child) for child in await children[0].fork(1)]
    await succeed(grandchild, "test $(cat file) = 0; test -e n0; test ! -e n1")
    await raises(UsageError, children[1].fork(2, ids=[lab.new_id()]), "two forks with one name")


def _places(lab: Lab) -> str:
    """Directories in which a command can leave a file of its own."""
    return '. "$HOME" /tmp /var/tmp /dev/shm' if lab.isolated else '. "$HOME"'


async def _clean(lab: Lab, box: Sandbox, mark: str) -> None:
    """Broken if a file with the mark in its name is found."""
    left = await succeed(box, f"for d in {_places(lab)}; do ls -A $d 2>/dev/null; done; true")
    found = [name for name in left.stdout.text.split() if mark in name]
    expect(not found, f"a recycled sandbox has {len(found)} files of its former owner")


@promise(lacks=_no_recycle, refused=_recycle_refused)
async def recycling(lab: Lab) -> None:
    """A recycled sandbox is as new under its new epoch, and the old handle is of no more use."""
    mark, own = f"hr-{secrets.token_hex(6)}", f"hr-{secrets.token_hex(6)}"
    box = await lab.sandbox(init=("sh", "-c", f"exec {heart(own, 'own')}"))
    mess = f"for d in {_places(lab)}; do echo left > $d/{mark} 2>/dev/null; done"
    await succeed(box, f"{mess}; mkdir -p a{mark}/b; mkfifo p{mark}; {heart(mark)} &")
    if lab.capabilities.snapshot:
        await box.snapshot()
        await succeed(box, f"echo x > later-{mark}")
    again = await lab.backend.recycle(box, epoch=7)
    if again is None:
        raise Broken("recycling is declared, and gives nothing")
    lab.keep(again)
    expect((again.id, again.epoch) == (box.id, 7), f"it is {again.id} in epoch {again.epoch}")
    await gone([mark], "after recycling")
    await _clean(lab, again, mark)
    expect((await succeed(again, "true")).epoch == 7, "results have the old epoch")
    expect(await beats(again, "own", hoped=True), "its own process was not started anew")
    await raises(SandboxGone, box.exec(["true"]), "the old handle after recycling")
    await raises(SandboxGone, box.get_file("beat"), "the old handle after recycling")
    await box.close()
    await again.health()


@promise(lacks=_no_recycle, refused=_recycle_refused)
async def recycling_shared_memory(lab: Lab) -> None:
    """Shared memory that outlives its process is not found by the next owner."""
    box = await lab.sandbox()
    made = await box.exec(["sh", "-c", "ipcmk -M 4096 && ipcmk -S 2 && ipcmk -Q"])
    if not made.ok or not lab.isolated:
        raise Unchecked("nothing in the image makes shared memory, or it is the machine's")
    again = await lab.backend.recycle(box, epoch=3)
    if again is None:
        return
    lab.keep(again)
    seen = await succeed(again, "for k in shm sem msg; do tail -n +2 /proc/sysvipc/$k; done")
    expect(not seen.stdout.data.strip(), f"the next owner finds {seen.stdout.text[:200]!r}")


PROMISES = (
    *(snapshots, snapshots_elsewhere, work_after_a_snapshot, processes_end_at_a_snapshot, forks),
    *(recycling, recycling_shared_memory),
)
