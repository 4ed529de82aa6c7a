"""Where sandboxes keep what must be found again after their manager died.

One private directory per user, with one directory per backend and sandbox:
`state_root()/<backend>/<id>/`. May be known by everything in the sandbox layer; knows no backend.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from headrace.errors import StorageError, UsageError

__all__ = ["state_root"]

_VARIABLE = "HEADRACE_SANDBOX_STATE"
_HINT = f"set {_VARIABLE} to a directory that only you can write"


def state_root() -> Path:
    """The state directory of this user, which is created with mode 0700 where it is missing.

    `$HEADRACE_SANDBOX_STATE`, else `/run/headrace` for root, else `$XDG_RUNTIME_DIR/headrace`,
    else `headrace-<uid>` in the temporary directory. Raises UsageError for one that is a
    symbolic link, no directory, or somebody else's (whoever owns it could swap what is
    removed as root), StorageError where it cannot be made.
    """
    root = _chosen()
    try:
        with contextlib.suppress(FileExistsError):
            root.mkdir(mode=0o700, parents=True)
        found = root.lstat()
        _check(root, found)
        if stat.S_IMODE(found.st_mode) != 0o700:
            root.chmod(0o700)
    except OSError as error:
        raise StorageError(
            f"cannot make the sandbox state directory: {error.strerror}",
            where=str(root),
            hint=_HINT,
        ) from error
    return root


def _chosen() -> Path:
    if named := os.environ.get(_VARIABLE):
        return Path(named).absolute()
    if os.geteuid() == 0 and os.access("/run", os.W_OK):
        return Path("/run/headrace")
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "headrace"
    return Path(tempfile.gettempdir()) / f"headrace-{os.geteuid()}"


def _check(root: Path, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        problem = "the sandbox state directory is a symbolic link"
    elif not stat.S_ISDIR(found.st_mode):
        problem = "the sandbox state directory is not a directory"
    elif found.st_uid != os.geteuid():
        problem = f"the sandbox state directory belongs to user {found.st_uid}"
    else:
        return
    raise UsageError(problem, where=str(root), hint=_HINT)
