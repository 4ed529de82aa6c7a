"""File trees from stacked layers: what the keeper does with mounts, scratch space and archives.

A *scratch* is a sized tmpfs, mounted in the keeper's private namespace only, so that it is gone
when the keeper is. It holds layers: directories `u` (upper) and `w` (overlay's work space), and
`m`, which becomes /dev/shm. A tree is an overlay of one live layer over frozen ones over an
image. Paths are relative to the keeper's directory, to keep overlay's options short.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.sandbox.oci import mounts

__all__ = ["Layer", "Trees"]

_PASSWD = "{name}:x:{uid}:{uid}:{name}:/home/{name}:/bin/sh\n"
_GROUP = "{name}:x:{uid}:\n"
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

    def __init__(self, home: Path) -> None:
        mounts.private_namespace()
        mounts.forget_propagation()
        self._home = home
        self._enter_home()
        for name in ("s", "t"):
            Path(name).mkdir(exist_ok=True)
        self._own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

    def _enter_home(self) -> None:
        os.chdir(self._home)

    def scratch(self, number: int, size_mb: int) -> None:
        """Make scratch `number`."""
        path = Path("s") / str(number)
        path.mkdir()
        mounts.tmpfs(str(path), size_mb)

    def drop_scratch(self, number: int) -> None:
        """Let go of it; the kernel frees it when no tree shows it any more."""
        path = Path("s") / str(number)
        mounts.detach(str(path))
        path.rmdir()

    def close(self) -> None:
        """Let go of every scratch."""
        for path in Path("s").iterdir():
            mounts.detach(str(path))

    def full(self, number: int) -> bool:
        """Whether its space or its files are used up."""
        room = os.statvfs(Path("s") / str(number))
        return room.f_bfree * room.f_bsize < 2 * room.f_bsize or room.f_ffree < 2

    def first_layer(
        self, layer: Layer, image: Path, workdir: str, uid: int, points: list[str]
    ) -> None:
        """A live layer that has the users of a new sandbox, their directories, and `points` to
        mount on."""
        self.next_layer(layer)
        upper = layer.path / "u"
        users = {"agent": uid, "verifier": uid + 1}
        (upper / "etc").mkdir()
        for name, form in (("passwd", _PASSWD), ("group", _GROUP)):
            base = image / "etc" / name
            text = base.read_text() if base.is_file() and not base.is_symlink() else ""
            text += "".join(form.format(name=user, uid=number) for user, number in users.items())
            (upper / "etc" / name).write_text(text)
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
        replaces: bool,
    ) -> None:
        """Mount a tree at /box of a container, in the place of the one there, if any.

        `frozen` uppermost first. Nothing may run in the old tree.
        """
        if replaces:
            self._in(namespace, lambda: mounts.detach("/box"))
        lowers = [str(layer.path / "u") for layer in frozen] + [str(image)]
        if sum(len(path) + 1 for path in lowers) > _MOST_OPTIONS:
            raise OSError(7, "too many snapshots on top of each other", "/box")
        mounts.overlay("t", lowers, str(live.path / "u"), str(live.path / "w"), userxattr=False)
        try:
            for source, target in programs:
                _lay_over(source, target)
            tree = mounts.lift("t")
        finally:
            mounts.detach("t")
        memory = mounts.lift(str(live.path / "m"))
        try:
            self._in(namespace, lambda: _hang(tree, memory))
        finally:
            os.close(tree)
            os.close(memory)

    def _in(self, namespace: int, action: Callable[[], None]) -> None:
        """Do something in a container's mount namespace, and come back whatever happens."""
        mounts.enter(namespace)
        try:
            action()
        finally:
            mounts.enter(self._own)
            self._enter_home()


def _lay_over(source: str, target: str) -> None:
    """A host directory over the tree at `t`, whatever links a candidate put on the way."""
    point = mounts.within("t", target)
    try:
        mounts.bind(source, f"/proc/self/fd/{point}")
    finally:
        os.close(point)
    point = mounts.within("t", target)
    try:
        mounts.make_read_only(f"/proc/self/fd/{point}")
    finally:
        os.close(point)


def _hang(tree: int, memory: int) -> None:
    mounts.attach(tree, "/box")
    try:
        mounts.bind("/proc", "/box/proc")
        mounts.make_read_only("/box/proc")
        mounts.bind("/dev", "/box/dev")
        mounts.attach(memory, "/box/dev/shm")
    except OSError:
        mounts.detach("/box")
        raise
