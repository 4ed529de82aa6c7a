"""The supervisor, compiled once for this machine: a static program that needs no library inside.

May be known by this backend only.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from headrace.sandbox.spec import SandboxFailure
from headrace.sandbox.state import state_root

__all__ = ["compiler", "container_root"]

_SOURCE = Path(__file__).with_name("supervisor.c")
_FLAGS = ("-O2", "-static", "-Wall", "-Wextra")
_HINT = "apt-get install gcc libc6-dev"
_COMPILE_S = 60
_EMPTY = ("box0", "box1", "proc", "dev", "sys")


def compiler() -> str | None:
    """A C compiler, if there is one."""
    return next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)


def container_root() -> Path:
    """The read-only root of every container: the supervisor and mount points."""
    source = _SOURCE.read_bytes()
    key = hashlib.sha256(source + " ".join(_FLAGS).encode() + platform.machine().encode())
    root = state_root() / "images" / f"container-{key.hexdigest()[:16]}"
    if root.is_dir():
        return root
    found = compiler()
    if found is None:
        raise SandboxFailure(
            "no C compiler for the supervisor", hint="apt-get install gcc libc6-dev"
        )
    root.parent.mkdir(exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=root.parent, prefix="draft-"))
    command = [found, *_FLAGS, "-o", str(draft / "supervisor"), str(_SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
    if done.returncode:
        shutil.rmtree(draft)
        raise SandboxFailure(
            f"the supervisor does not compile: {done.stderr[-1000:]}",
            where=" ".join(command),
            hint=_HINT,
        )
    for name in _EMPTY:
        (draft / name).mkdir()
    draft.chmod(0o755)
    (draft / "supervisor").chmod(0o755)
    try:
        draft.rename(root)
    except OSError:
        shutil.rmtree(draft)
        if not root.is_dir():
            raise
    return root
