"""Files into a sandbox and out of it, done by a process that has become its user.

The keeper forks; the child enters the container's file tree, its control groups and its user,
and only then touches a path. Whatever links or races a candidate prepares, the child can do
nothing there that the candidate could not do itself.
"""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

from headrace.sandbox.oci import mounts

__all__ = ["become", "copy_in", "copy_out", "in_child"]

_CHUNK = 1 << 20
_LONGEST_ERROR = 500
"""Characters, of up to six bytes each: an answer is read at once, of at most 4096 bytes."""


class TooLarge(Exception):
    """More than the caller's limit."""


def become(namespace: int, root: str, group: Path, uid: int) -> None:
    """Enter the tree, the memory group and the user of a sandbox, for good.

    From then on no module can be imported: the interpreter would look for it in that tree.
    """
    sys.meta_path.clear()
    group.write_text("0")
    mounts.enter(namespace)
    os.chroot(root)
    os.chdir("/")
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.umask(0o022)
    mounts.no_new_privileges()


def in_child(work: Callable[[], None], answer: int, needs: list[int]) -> int:
    """Fork; the child does `work`, writes its error or {} to `answer` and ends. It keeps no
    descriptor of the keeper's but those that it `needs`."""
    child = os.fork()
    if child:
        return child
    try:
        _close_all_but({*needs, answer, 0, 1, 2})
        said: dict[str, str] = {}
        try:
            work()
        except TooLarge as error:
            said = {"refused": str(error)}
        except RecursionError:
            said = {"refused": "directories too deep"}
        except tarfile.TarError as error:
            said = {"refused": f"bad archive: {error}"}
        except (ValueError, ArithmeticError) as error:
            said = {"refused": f"what cannot be: {error}"}
        except OSError as error:
            kind = "full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "refused"
            said = {kind: f"{error.strerror}: {error.filename}"}
        short = {kind: text[:_LONGEST_ERROR] for kind, text in said.items()}
        os.write(answer, json.dumps(short).encode())
    finally:
        os._exit(0)


def _close_all_but(kept: set[int]) -> None:
    below = 0
    for fd in sorted(kept):
        if below < fd:  # an empty range from 0 would be taken for everything
            os.closerange(below, fd)
        below = fd + 1
    os.closerange(below, os.sysconf("SC_OPEN_MAX"))


def copy_in(archive: int, to: str) -> None:
    """Unpack the tar archive of the descriptor under `to`; nothing may leave it."""
    Path(to).mkdir(parents=True, exist_ok=True)
    with os.fdopen(archive, "rb") as file, tarfile.open(fileobj=file, mode="r|") as tar:
        tar.extractall(to, filter="data")


def copy_out(path: str, out: int, limit: int) -> None:
    """Write a tar archive of `path` to the descriptor: files, directories, links.

    Owners are left out: they are numbers of this sandbox alone, and to find their names the C
    library would load code from the sandbox's tree. Times are whole seconds.
    """
    bounded = cast(IO[bytes], _Bounded(out, limit))
    with tarfile.open(fileobj=bounded, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, path, Path(path).name or ".", {})


def _add(tar: tarfile.TarFile, path: str, name: str, seen: dict[tuple[int, int], str]) -> None:
    about = os.lstat(path)
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = stat.S_IMODE(about.st_mode), int(about.st_mtime)
    if stat.S_ISDIR(about.st_mode):
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
        for entry in sorted(os.listdir(path)):  # noqa: PTH208
            _add(tar, f"{path}/{entry}", f"{name}/{entry}", seen)
    elif stat.S_ISLNK(about.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)  # noqa: PTH115
        tar.addfile(info)
    elif stat.S_ISREG(about.st_mode):
        first = seen.setdefault((about.st_dev, about.st_ino), name)
        if about.st_nlink > 1 and first != name:
            info.type, info.linkname = tarfile.LNKTYPE, first
            tar.addfile(info)
        else:
            _add_file(tar, path, info)


def _add_file(tar: tarfile.TarFile, path: str, info: tarfile.TarInfo) -> None:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(file, "rb") as source:
        about = os.fstat(file)
        if stat.S_ISREG(about.st_mode):
            info.size = about.st_size
            tar.addfile(info, cast(IO[bytes], _Padded(source, info.size)))


class _Padded(io.RawIOBase):
    """Exactly `size` bytes of a file that may shrink or grow while it is read."""

    def __init__(self, source: IO[bytes], size: int) -> None:
        self._source, self._left = source, size

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        piece = self._source.read(wanted)
        piece += b"\0" * (wanted - len(piece))
        self._left -= wanted
        return piece


class _Bounded:
    """Writes to a descriptor, up to a limit."""

    def __init__(self, out: int, limit: int) -> None:
        self._out, self._left = out, limit

    def write(self, data: bytes) -> int:
        if len(data) > self._left:
            raise TooLarge("larger than the limit")
        self._left -= len(data)
        view = memoryview(data)
        while view:
            view = view[os.write(self._out, view) :]
        return len(data)
