"""The system calls that build and move file trees, through ctypes.

Every function raises OSError with the path it failed on. The calling process must have a single
thread: a process that shares its root directory with others may not change mount namespaces.
May be known by the keeper only.
"""

from __future__ import annotations

import ctypes
import os
import struct

__all__ = [
    "adopt_orphans",
    "attach",
    "bind",
    "detach",
    "enter",
    "forget_propagation",
    "lift",
    "make_read_only",
    "mount",
    "no_new_privileges",
    "overlay",
    "private_namespace",
    "protect",
    "tmpfs",
    "within",
]

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT = 1, 2, 4, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_MNT_DETACH = 2
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _AT_EMPTY_PATH = 1, 2, 4, 0x1000
_RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 4, 8
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC, _AT_RECURSIVE = 1, os.O_CLOEXEC, 0x8000
_MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_EMPTY_PATH = 4, 0x40
_AT_FDCWD = -100
_PR_SET_NO_NEW_PRIVS, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 38, 4, 36

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (
    *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p),
    *(ctypes.c_ulong, ctypes.c_char_p),
)
_libc.syscall.restype = ctypes.c_long


def _check(result: int, path: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return result


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """mount(2)."""
    done = _libc.mount(
        source.encode(), target.encode(), kind and kind.encode(), flags, options.encode()
    )
    _check(done, target)


def tmpfs(target: str, size_mb: int) -> None:
    """A writable tmpfs of at most that size, and as many files as fit with 4 KiB each."""
    mount(
        "tmpfs",
        target,
        "tmpfs",
        _MS_NOSUID | _MS_NODEV,
        f"size={size_mb}m,nr_inodes={size_mb * 256},mode=0755",
    )


def overlay(target: str, lowers: list[str], upper: str, work: str, *, userxattr: bool) -> None:
    """overlayfs: `lowers` uppermost first; paths must have no colon or comma.

    Directories of lower layers can be renamed, but with `userxattr`: there rename(2) gives EXDEV.
    """
    options = f"lowerdir={':'.join(lowers)},upperdir={upper},workdir={work}"
    options += ",userxattr" if userxattr else ",redirect_dir=on"
    mount("overlay", target, "overlay", _MS_NOSUID | _MS_NODEV, options)


def bind(source: str, target: str) -> None:
    """A second view of `source` with all that is mounted below it."""
    mount(source, target, None, _MS_BIND | _MS_REC)


def make_read_only(target: str) -> None:
    """Nothing can be written through the mount at `target`, nor set-user-id programs gain."""
    mount("none", target, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)


def within(root: str, path: str) -> int:
    """A descriptor of `root`/`path`, reached without following any link (openat2)."""
    how = struct.pack("QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH)
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        relative = path.lstrip("/").encode()
        return _check(_libc.syscall(_OPENAT2, top, relative, how, len(how)), path)
    finally:
        os.close(top)


def protect(tree: int) -> None:
    """Nothing can be written through a lifted tree, nor set-user-id programs gain (5.12)."""
    attributes = struct.pack("QQQQ", _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV, 0, 0, 0)
    flags = _AT_EMPTY_PATH | _AT_RECURSIVE
    done = _libc.syscall(_MOUNT_SETATTR, tree, b"", flags, attributes, len(attributes))
    _check(done, "mount_setattr")


def lift(path: str) -> int:
    """A copy of the mounts at and below `path` that is mounted nowhere; a descriptor."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE
    return _check(_libc.syscall(_OPEN_TREE, _AT_FDCWD, path.encode(), flags), path)


def attach(tree: int, point: int) -> None:
    """Mount a lifted tree at the directory of a descriptor."""
    flags = _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH
    _check(_libc.syscall(_MOVE_MOUNT, tree, b"", point, b"", flags), "move_mount")


def detach(path: str) -> None:
    """Unmount what is at and below `path`, now for everybody and for good once unused."""
    _check(_libc.umount2(path.encode(), _MNT_DETACH), path)


def private_namespace() -> None:
    """Move this process into a mount namespace of its own."""
    _check(_libc.unshare(_CLONE_NEWNS), "mount namespace")


def forget_propagation() -> None:
    """Keep what this namespace mounts from the others, and theirs from it."""
    mount("none", "/", None, _MS_REC | _MS_PRIVATE)


def enter(namespace: int, *, user: bool = False) -> None:
    """Move this process into the mount (or user) namespace that the descriptor names."""
    kind = _CLONE_NEWUSER if user else _CLONE_NEWNS
    _check(_libc.setns(namespace, kind), "namespace")


def no_new_privileges() -> None:
    """Nothing this process starts gains rights, and nobody of its user may trace it."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "dumpable")


def adopt_orphans() -> None:
    """Become the parent of all descendants whose parent ends, so that none is left a zombie."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper")
