"""Promises about files: what goes in comes out, and nothing goes where it must not."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import tarfile
import tempfile
from pathlib import Path

from headrace.errors import UsageError
from headrace.sandbox.contract.kit import Broken, Lab, expect, promise, raises, succeed
from headrace.sandbox.spec import Sandbox

__all__ = ["PROMISES"]

_LONG = "/".join(["a-directory-with-a-rather-long-name"] * 5)
_BIG = 6 * 2**20


def _entry(
    name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", mode: int = 0o644
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


def _archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


async def _taken(box: Sandbox, path: str, *, limit_mb: int = 64) -> dict[str, tarfile.TarInfo]:
    """The members of what `get` wrote, by name; regular ones are read to their end."""
    with tempfile.TemporaryDirectory() as scratch:
        into = Path(scratch) / "out.tar"
        await box.get(path, into, limit_mb=limit_mb)
        with tarfile.open(into, "r:") as tar:
            members = tar.getmembers()
            for info in members:
                if info.isreg():
                    file = tar.extractfile(info)
                    expect(file is not None and len(file.read()) == info.size, "a cut archive")
            return {info.name: info for info in members}


@promise()
async def single_files(lab: Lab) -> None:
    """One file goes in with its directories and comes out, byte for byte, also a big one."""
    box = await lab.sandbox()
    for path, data in (
        ("new/dir/file.bin", bytes(range(256))),
        (f"{lab.spec.workdir}/absolute", b"x"),
        ("empty", b""),
        ("\u00fcber \u96ea", b"name"),
        ("big", secrets.token_bytes(_BIG)),
    ):
        await box.put_file(path, data)
        expect(await box.get_file(path) == data, f"{path!r} is not what was put")
    await box.put_file("empty", b"again")
    expect(await box.get_file("empty") == b"again", "a file was not replaced")
    await succeed(box, "cmp big big; cat absolute; rm empty; echo mine >> new/dir/file.bin")


@promise()
async def files_that_are_none(lab: Lab) -> None:
    """Reading what is missing, no regular file, or too large is an error of the caller."""
    box = await lab.sandbox()
    await succeed(box, "mkdir d; mkfifo f; head -c 3000000 /dev/zero > big; ln -s /nowhere l")
    for path in ("missing", "d", "f", "l", "d/../missing"):
        await raises(UsageError, box.get_file(path), f"get_file({path!r})")
    await raises(UsageError, box.get_file("big", limit_mb=2), "get_file of 3 MB with limit 2")
    with tempfile.TemporaryDirectory() as scratch:
        into = Path(scratch) / "out"
        await raises(UsageError, box.get("missing", into), "get of what is missing")
        await raises(UsageError, box.get("big", into, limit_mb=2), "get of 3 MB with limit 2")
    await succeed(box, "true")


@promise()
async def archives(lab: Lab) -> None:
    """An archive goes in and comes out with its names, modes, links and large members."""
    box = await lab.sandbox()
    big = secrets.token_bytes(_BIG)
    await box.put(
        _archive(
            (_entry("tree", tarfile.DIRTYPE, mode=0o755), b""),
            (_entry("tree/run.sh", mode=0o755), b"#!/bin/sh\necho ran\n"),
            (_entry("tree/secret", mode=0o600), b"s"),
            (_entry("tree/void", tarfile.DIRTYPE, mode=0o700), b""),
            (_entry("tree/soft", tarfile.SYMTYPE, link="run.sh"), b""),
            (_entry("tree/hard", tarfile.LNKTYPE, link="tree/secret", mode=0o600), b""),
            (_entry(f"tree/{_LONG}/\u00fc"), b"deep"),
            (_entry("tree/big"), big),
        ),
        "to/here",
    )
    ran = await succeed(box, "cd to/here/tree && ./run.sh && test secret -ef hard && ls -a void")
    expect(ran.stdout.data.startswith(b"ran\n"), "a program lost its mode")
    expect(await box.get_file("to/here/tree/big") == big, "a big member is not what was put")
    found = await _taken(box, "to/here/tree")
    expect(found["tree/run.sh"].mode & 0o777 == 0o755, "a mode was lost on the way out")
    expect(found["tree/secret"].mode & 0o777 == 0o600, "a mode was lost on the way out")
    expect(found["tree/soft"].linkname == "run.sh", "a symbolic link was lost on the way out")
    expect(found["tree/void"].isdir(), "an empty directory was lost on the way out")
    expect(found[f"tree/{_LONG}/\u00fc"].size == 4, "a long name was lost on the way out")
    expect(found["tree/big"].size == _BIG, "a big file was cut on the way out")
    alone = await _taken(box, "to/here/tree/run.sh")
    expect(list(alone) == ["run.sh"], f"one file came out as {list(alone)}")


@promise()
async def archives_from_disk(lab: Lab) -> None:
    """An archive that is a file of the caller goes in as one in memory does."""
    box = await lab.sandbox()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "in.tar"
        path.write_bytes(_archive((_entry("one"), b"1"), (_entry("./two/three"), b"3")))
        await box.put(path)
    expect(await box.get_file("one") == b"1", "a member is missing")
    expect(await box.get_file("two/three") == b"3", "a member is missing")


@promise()
async def hostile_archives(lab: Lab) -> None:
    """No archive writes outside of where it is unpacked, makes devices, or is taken by half."""
    box = await lab.sandbox()
    await succeed(box, "mkdir in; echo kept > kept")
    await box.put_file("/tmp/kept", b"kept\n")
    here = lab.spec.workdir
    evil = {
        "a name with ..": [_entry("../evil")],
        "a name with .. inside": [_entry("a/../../evil")],
        "an absolute link and a file through it": [
            _entry("l", tarfile.SYMTYPE, link=here),
            _entry("l/evil"),
        ],
        "a link with .. and a file through it": [
            _entry("l", tarfile.SYMTYPE, link=".."),
            _entry("l/evil"),
        ],
        "links that climb by steps": [
            _entry("d", tarfile.DIRTYPE, mode=0o755),
            _entry("d/up", tarfile.SYMTYPE, link=".."),
            _entry("d/up/up2", tarfile.SYMTYPE, link=".."),
            _entry("up2/evil"),
        ],
        "a hard link to outside": [_entry("h", tarfile.LNKTYPE, link="../kept")],
        "an absolute hard link": [_entry("h", tarfile.LNKTYPE, link=f"{here}/kept")],
        "a device": [_entry("dev", tarfile.CHRTYPE)],
        "a FIFO": [_entry("fifo", tarfile.FIFOTYPE)],
    }
    for what, entries in evil.items():
        archive = _archive(*((info, b"evil" if info.isreg() else b"") for info in entries))
        await raises(UsageError, box.put(archive, "in"), f"an archive with {what}")
        await succeed(box, "rm -rf in; mkdir in")
    absolute = _archive((_entry("/tmp/kept"), b"evil"), (_entry(f"{here}/kept"), b"evil"))
    with contextlib.suppress(UsageError):
        await box.put(absolute, "in")
    for path in ("kept", "/tmp/kept"):
        expect(await box.get_file(path) == b"kept\n", f"{path} was written from an archive")
    left = await succeed(box, "ls; test ! -e ../evil && test ! -e /evil")
    expect(b"evil" not in left.stdout.data, "a file was written outside")


@promise()
async def broken_archives(lab: Lab) -> None:
    """What is no archive, or one that is cut off, is an error of the caller."""
    box = await lab.sandbox()
    whole = _archive((_entry("file"), bytes(20_000)))
    for what, data in (("noise", os.urandom(2048)), ("a cut archive", whole[:9000])):
        await raises(UsageError, box.put(data), what)
    await box.put(whole)
    expect(await box.get_file("file") == bytes(20_000), "a whole archive is not taken any more")


@promise()
async def archives_that_do_not_fit(lab: Lab) -> None:
    """More than the disk holds is an error of the caller, and the sandbox goes on."""
    box = await lab.sandbox()
    size = (lab.spec.limits.disk_mb + 16) * 2**20
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "in.tar"
        info = _entry("huge")
        info.size = size
        with path.open("wb") as file:
            file.write(info.tobuf())
            file.truncate(512 + size + 1024)
        await raises(UsageError, box.put(path), f"{size >> 20} MiB into {lab.spec.limits.disk_mb}")
    await box.health()
    await succeed(box, "rm -rf huge; echo ok > after")


@promise()
async def links_on_the_way_in(lab: Lab) -> None:
    """A link that a candidate left does not lead the caller's file out of the sandbox."""
    box = await lab.sandbox()
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o777)
        target = Path(scratch) / "host"
        target.write_bytes(b"host")
        target.chmod(0o666)
        await succeed(box, 'ln -s "$1" file; ln -s "$2" dir', str(target), scratch)
        for path in ("file", "dir/host", "dir/new"):
            try:
                await box.put_file(path, b"evil")
            except UsageError:
                continue
        with contextlib.suppress(UsageError):
            await box.put(_archive((_entry("host"), b"evil")), "dir")
        if target.read_bytes() != b"host" or (Path(scratch) / "new").exists():
            raise Broken("a file of this machine was written through a link")
        try:
            leaked = await box.get_file("dir/host")
        except UsageError:
            return
        expect(leaked != b"host", "a file of this machine was read through a link")


PROMISES = (
    *(single_files, files_that_are_none, archives, archives_from_disk, hostile_archives),
    *(broken_archives, archives_that_do_not_fit, links_on_the_way_in),
)
