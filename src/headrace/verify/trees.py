"""Small trees of text files in memory: which paths are plain, and how they go into a sandbox.

May be known by verifiers and agent environments; knows no task.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterable, Mapping

from headrace.errors import UsageError

__all__ = ["TreeError", "archive", "check_path", "check_tree"]

_LONGEST_PATH = 240
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")


class TreeError(UsageError):
    """A path that is not plainly below its tree, or two that cannot both be."""


def check_path(path: str) -> str:
    """`path` if it is a plain relative path below the tree; TreeError if not.

    >>> check_path("src/a.py")
    'src/a.py'
    """
    parts = path.split("/")
    bad = (
        not path
        or len(path) > _LONGEST_PATH
        or _FORBIDDEN.search(path)
        or path.startswith('"')
        or any(part in ("", ".", "..") or part.lower() == ".git" for part in parts)
    )
    if bad:
        raise TreeError("no plain path below the tree", where=path[:_LONGEST_PATH])
    return path


def check_tree(paths: Iterable[str]) -> None:
    """TreeError where one name is both a file and a directory."""
    files = set(paths)
    for path in files:
        parts = path.split("/")
        for length in range(1, len(parts)):
            if "/".join(parts[:length]) in files:
                raise TreeError("a file below a file", where=path)


def archive(tree: Mapping[str, str], modes: Mapping[str, int] | None = None) -> bytes:
    """A tar archive of regular files; `modes` are permissions that are not 0644."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path in sorted(tree):
            data = tree[path].encode("utf-8", "replace")
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(data), (modes or {}).get(path, 0o644)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()
