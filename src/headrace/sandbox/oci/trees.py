"""File trees from stacked layers: what the keeper does with mounts, scratch space and archives.

A *scratch* is a sized tmpfs, mounted in the keeper's private namespace only, so that it is gone
when the keeper is. It holds layers: directories `u` (upper) and `w` (overlay's work space), and
`m`, which becomes /dev/shm. A tree is an overlay of one live layer over frozen ones over an
image. Paths are relative to the keeper's directory, to keep overlay's options short.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headrace.sandbox.oci import mounts

__all__ = ["Layer", "Trees"]

_PASSWD = "{name}:x:{uid}:{uid}:{name}:/home/{name}:/bin/sh\n"
_GROUP = "{name}:x:{uid}:\n"
_RESOLVER = Path("/etc/resolv.conf")
_MOST_OPTIONS = 4000


@dataclass(frozen=True, slots=True)
class Layer:
    """Layer `number` of scratch `scratch`."""

    scratch: int
    number: int

    @property
    def path(self) -> Path:
        return Path("s") / str(self.scratch) / str(self.number)


class Trees:
    """The scratches and trees of one keeper, which runs in `home` and in no other thread."""

    def __init__(self, home: Path, *, userxattr: bool) -> None:
        mounts.private_namespace()
        mounts.forget_propagation()
        self._home = home
        self._userxattr = userxattr
        self._enter_home()
        for name in ("s", "t"):
            Path(name).mkdir(exist_ok=True)
        self._old: dict[tuple[int, str], int] = {}
        self._numbers = itertools.count()
        self._chores: deque[Callable[[], None]] = deque()
        self._own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

    def _enter_home(self) -> None:
        os.chdir(self._home)

    def scratch(self, number: int, size_mb: int) -> None:
        """Make scratch `number`."""
        path = Path("s") / str(number)
        path.mkdir()
        mounts.tmpfs(str(path), size_mb)

    def drop_scratch(self, number: int) -> None:
        """Let go of it, by and by; the kernel frees it when no tree shows it any more."""
        self._chores.append(lambda: _unmount(Path("s") / str(number)))

    @property
    def untidy(self) -> int:
        """How many chores wait."""
        return len(self._chores)

    def tidy(self, *, leave: int = 0) -> None:
        """Do what could wait, unmounting above all, for which the kernel waits for everybody
        who might still look; `leave` the youngest chores for later."""
        while len(self._chores) > leave:
            self._chores.popleft()()

    def close(self) -> None:
        """Let go of every scratch."""
        self.tidy()
        for path in Path("s").iterdir():
            mounts.detach(str(path))

    def full(self, number: int) -> bool:
        """Whether its space or its files are used up."""
        room = os.statvfs(Path("s") / str(number))
        return room.f_bfree * room.f_bsize < 2 * room.f_bsize or room.f_ffree < 2

    def first_layer(
        self,
        layer: Layer,
        image: Path,
        workdir: str,
        uid: int,
        points: list[str],
        *,
        online: bool,
    ) -> None:
        """A live layer that has the users of a new sandbox, their directories, `points` to
        mount on, and if it is `online` the host's resolver."""
        self.next_layer(layer)
        upper = layer.path / "u"
        users = {"agent": uid, "verifier": uid + 1}
        (upper / "etc").mkdir()
        for name, form in (("passwd", _PASSWD), ("group", _GROUP)):
            base = image / "etc" / name
            text = base.read_text() if base.is_file() and not base.is_symlink() else ""
            text += "".join(form.format(name=user, uid=number) for user, number in users.items())
            (upper / "etc" / name).write_text(text)
        if online and _RESOLVER.exists():
            (upper / _RESOLVER.relative_to("/")).write_text(_RESOLVER.read_text())
        (upper / "home").mkdir()
        for user, number in users.items():
            home = upper / "home" / user
            home.mkdir(mode=0o700)
            os.chown(home, number, number)
        work = upper / workdir.lstrip("/")
        work.mkdir(parents=True, exist_ok=True)
        os.chown(work, uid, uid)
        for point in points:
            (upper / point.lstrip("/")).mkdir(parents=True, exist_ok=True)
        (upper / "tmp").mkdir(exist_ok=True)
        (upper / "tmp").chmod(0o1777)

    def next_layer(self, layer: Layer) -> None:
        """An empty live layer."""
        layer.path.mkdir()
        for name in ("u", "w"):
            (layer.path / name).mkdir()
        (layer.path / "m").mkdir()
        (layer.path / "m").chmod(0o1777)

    def delete_layer(self, layer: Layer) -> int:
        """Remove a layer that no tree shows, in a child process whose number is returned."""
        gone = layer.path.with_name(f"{layer.number}-gone")
        layer.path.rename(gone)
        child = os.fork()
        if child == 0:
            shutil.rmtree(gone, ignore_errors=True)
            os._exit(0)
        return child

    def show(
        self,
        namespace: int,
        live: Layer,
        frozen: list[Layer],
        image: Path,
        programs: list[tuple[str, str]],
        *,
        at: str,
        instead_of: str | None,
    ) -> None:
        """Mount a tree at `at` in a container; the one at `instead_of` goes.

        `frozen` uppermost first. Nothing may run in the old tree.
        """
        lowers = [str(layer.path / "u") for layer in frozen] + [str(image)]
        if sum(len(path) + 1 for path in lowers) > _MOST_OPTIONS:
            raise OSError(errno.E2BIG, "too many snapshots on top of each other", at)
        self._take_away(namespace, at)
        place = Path("t") / str(next(self._numbers))
        place.mkdir()
        upper, work = str(live.path / "u"), str(live.path / "w")
        mounts.overlay(str(place), lowers, upper, work, userxattr=self._userxattr)
        self._chores.append(lambda: _unmount(place))
        tree = mounts.lift(str(place))
        hung = [(mounts.lift(source), target) for source, target in programs]
        for program, _ in hung:
            mounts.protect(program)
        hung.append((mounts.lift(str(live.path / "m")), "/dev/shm"))
        try:
            self._in(namespace, lambda: _hang(tree, hung, at))
        finally:
            for fd in (tree, *(program for program, _ in hung)):
                os.close(fd)
        if instead_of is not None:
            self._old[namespace, instead_of] = os.dup(namespace)
            self._chores.append(partial(self._take_away, namespace, instead_of))

    def _take_away(self, namespace: int, at: str) -> None:
        """Unmount the tree that was replaced there, if that was not done yet."""
        kept = self._old.pop((namespace, at), None)
        if kept is not None:
            try:
                self._in(kept, lambda: mounts.detach(at))
            finally:
                os.close(kept)

    def _in(self, namespace: int, action: Callable[[], None]) -> None:
        """Do something in a container's mount namespace, and come back whatever happens."""
        mounts.enter(namespace)
        try:
            action()
        finally:
            mounts.enter(self._own)
            self._enter_home()


def _unmount(path: Path) -> None:
    mounts.detach(str(path))
    path.rmdir()


def _hang(tree: int, hung: list[tuple[int, str]], at: str) -> None:
    """A tree at `at`, and in it devices, processes and what is hung over it, whatever links a
    candidate put on the way to its place."""
    _attach(tree, "/", at)
    try:
        mounts.bind("/proc", f"{at}/proc")
        mounts.make_read_only(f"{at}/proc")
        mounts.bind("/dev", f"{at}/dev")
        for program, target in hung:
            _attach(program, at, target)
    except OSError:
        mounts.detach(at)
        raise


def _attach(tree: int, root: str, target: str) -> None:
    point = mounts.within(root, target)
    try:
        mounts.attach(tree, point)
    finally:
        os.close(point)
