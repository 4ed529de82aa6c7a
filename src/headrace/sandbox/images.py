"""Root filesystems: from the name in a specification to directories on this machine.

"host" is a small skeleton over which the machine's own programs are laid read-only; "dir:PATH"
is a whole root filesystem that somebody unpacked. May be known by backends that build file
trees themselves.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import UsageError
from headrace.sandbox.spec import Mount
from headrace.sandbox.state import state_root

__all__ = ["Image", "resolve"]

_PROGRAMS = ("usr", "opt")
_LINKED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_CONFIGURATION = (
    *("etc/alternatives", "etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.conf.d"),
    *("etc/localtime", "etc/mime.types", "etc/protocols", "etc/services", "etc/ssl/certs"),
    *("etc/ssl/openssl.cnf", "etc/debian_version", "etc/os-release", "etc/python3.11"),
    *("etc/ca-certificates.conf", "etc/java-17-openjdk", "etc/perl", "etc/bash.bashrc"),
)
_EMPTY = ("proc", "dev", "tmp", "run", "var/tmp", "home", "workspace", "root", "sys", "mnt")
_HOSTS = "127.0.0.1 localhost box\n::1 localhost\n"
_NAMES = "passwd: files\ngroup: files\nhosts: files dns\n"
_ROOT_LINE = "root:x:0:0:root:/root:/usr/sbin/nologin\n"


@dataclass(frozen=True, slots=True)
class Image:
    """`lower`: a directory that becomes the bottom of the tree, never written to; `programs`:
    host directories laid over it read-only, by their path inside; `digest` names the content.
    """

    digest: str
    lower: Path
    programs: tuple[tuple[Path, str], ...] = ()

    def check(self, mounts: Sequence[Mount]) -> None:
        """UsageError for a mount whose place is missing in what is laid over it read-only."""
        for mount in mounts:
            for source, top in self.programs:
                inside = mount.target.startswith(f"{top}/")
                if inside and not Path(f"{source}{mount.target[len(top) :]}").is_dir():
                    raise UsageError(
                        f"there is no such directory to mount over, and none can be made in {top}",
                        where=mount.target,
                        hint=f"mount it at /mnt/{Path(mount.target).name} instead",
                    )


def resolve(name: str) -> Image:
    """The image of a specification. UsageError if there is none of that name."""
    kind, _, rest = name.partition(":")
    if kind == "host" and not rest:
        return _host()
    if kind == "dir":
        return _directory(Path(rest))
    raise UsageError(f"no image {name!r}", hint='"host", or "dir:" and the path of a root')


def _directory(path: Path) -> Image:
    root = path.expanduser().resolve()
    if not (root / "usr").is_dir() and not (root / "bin").exists():
        raise UsageError(
            f"{path} is no root filesystem: it has neither usr nor bin",
            where=f"dir:{path}",
            hint="for example: debootstrap stable DIR, or podman export NAME | tar -x -C DIR",
        )
    if any(mark in str(root) for mark in ":,\\"):
        raise UsageError(
            "the path of an image may hold no colon, comma or backslash", where=name_of(root)
        )
    about = root.stat()
    text = f"{root}\0{about.st_dev}\0{about.st_ino}\0{about.st_mtime_ns}"
    return Image(hashlib.sha256(text.encode()).hexdigest()[:16], root)


def name_of(root: Path) -> str:
    """As a specification writes it."""
    return f"dir:{root}"


def _host() -> Image:
    programs = tuple((Path("/") / top, f"/{top}") for top in _PROGRAMS if Path("/", top).is_dir())
    about = [Path(source).stat().st_mtime_ns for source, _ in programs]
    digest = hashlib.sha256(repr((programs, about, _EMPTY)).encode()).hexdigest()[:16]
    home = state_root() / "images" / f"host-{digest}"
    if not home.is_dir():
        home.parent.mkdir(exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=home.parent, prefix="draft-"))
        _skeleton(draft)
        draft.chmod(0o755)
        try:
            draft.rename(home)
        except OSError:
            shutil.rmtree(draft)
            if not home.is_dir():
                raise
    return Image(digest, home, programs)


def _skeleton(root: Path) -> None:
    for name in (*_EMPTY, *_PROGRAMS, "etc"):
        (root / name).mkdir(parents=True, mode=0o755)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    for name in _LINKED:
        host = Path("/") / name
        if host.is_symlink():
            (root / name).symlink_to(host.readlink())
    for name in _CONFIGURATION:
        source, target = Path("/") / name, root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=name == "etc/alternatives")
        elif source.exists():
            shutil.copyfile(source, target)
    (root / "etc/hosts").write_text(_HOSTS)
    (root / "etc/nsswitch.conf").write_text(_NAMES)
    (root / "etc/passwd").write_text(_ROOT_LINE)
    (root / "etc/group").write_text("root:x:0:\n")
