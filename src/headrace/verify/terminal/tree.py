"""A file tree as it was left in a sandbox: read once, held in memory, never followed.

What is in it is hostile: links are kept as text, nothing is written to this machine but one
archive that is read and removed. May be known by verifiers and agent environments.
"""

from __future__ import annotations

import asyncio
import hashlib
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from headrace.errors import UsageError
from headrace.sandbox.spec import Sandbox

__all__ = ["Entry", "Tree", "digest", "escaping_links", "read_tree"]

_LIMIT_MB = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file with its `data`, a directory, or a link with its `target`; `mode` holds the
    permissions (0..0o7777; of links 0)."""

    kind: Literal["file", "directory", "link"]
    mode: int = 0
    data: bytes = b""
    target: str = ""


Tree = Mapping[str, Entry]
"""Entries by absolute path inside the sandbox."""


async def read_tree(box: Sandbox, root: str, *, limit_mb: int = _LIMIT_MB) -> Tree:
    """What is at and below the absolute path `root`, as the agent can read it.

    Call it when no process of the agent's is left. Raises UsageError if something there cannot
    be read, or it is larger than `limit_mb`: both of the agent's making. Pipes, sockets and
    devices are left out.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-tree-") as directory:
        archive = Path(directory) / "tree.tar"
        await box.get(root, archive, limit_mb=limit_mb)
        return await asyncio.to_thread(_entries, archive, root)


def _entries(archive: Path, root: str) -> Tree:
    found: dict[str, Entry] = {}
    try:
        with tarfile.open(archive, mode="r:") as tar:
            for member in tar:
                below = PurePosixPath(*PurePosixPath(member.name).parts[1:])
                found[str(PurePosixPath(root) / below)] = _entry(tar, member, found, root)
    except (tarfile.TarError, ValueError, KeyError) as error:
        raise UsageError(f"the tree cannot be read: {error}", where=root) from error
    return found


def _entry(
    tar: tarfile.TarFile, member: tarfile.TarInfo, found: Mapping[str, Entry], root: str
) -> Entry:
    mode = member.mode & 0o7777
    if member.isdir():
        return Entry(kind="directory", mode=mode)
    if member.issym():
        return Entry(kind="link", target=member.linkname)
    if member.islnk():  # a further name of a file that came before
        first = PurePosixPath(*PurePosixPath(member.linkname).parts[1:])
        return found[str(PurePosixPath(root) / first)]
    file = tar.extractfile(member) if member.isreg() else None
    return Entry(kind="file", mode=mode, data=b"" if file is None else file.read())


def digest(tree: Tree) -> str:
    """The SHA-256 (hex) of all paths, kinds, modes, contents and link targets, times left out.

    >>> digest({})[:8]
    'e3b0c442'
    """
    sums = hashlib.sha256()
    for path in sorted(tree):
        entry = tree[path]
        content = hashlib.sha256(entry.data).hexdigest()
        for field in (path, entry.kind, f"{entry.mode:o}", content, entry.target):
            data = field.encode("utf-8", "surrogateescape")
            sums.update(len(data).to_bytes(8, "big") + data)
    return sums.hexdigest()


def escaping_links(tree: Tree, roots: tuple[str, ...]) -> list[str]:
    """Links that lead out of `roots`, or may: any with `..` behind another name counts."""
    escaping: list[str] = []
    for path, entry in sorted(tree.items()):
        if entry.kind == "link" and not _stays(path, entry.target, roots):
            escaping.append(path)
    return escaping


def _stays(path: str, target: str, roots: tuple[str, ...]) -> bool:
    parts = list(PurePosixPath(path).parent.parts)
    named = target.startswith("/")
    if named:
        parts = ["/"]
    for part in PurePosixPath(target).parts:
        if part == "..":
            if named or len(parts) < 2:
                return False
            parts.pop()
        elif part != "/":
            named = True
            parts.append(part)
    place = PurePosixPath(*parts)
    return any(place.is_relative_to(root) for root in roots)
