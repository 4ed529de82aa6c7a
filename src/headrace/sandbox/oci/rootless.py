"""Without root: the keeper is root of a user namespace, and an ordinary user outside of it.

There it mounts and starts containers as root does elsewhere; nothing it could do with that
reaches further than its user. Sandboxes get user numbers of the range that the machine has set
aside for that user. Limits need control groups of version 2, of which a part is the user's own.
May be known by this backend only.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

from headrace.sandbox.oci import cgroups
from headrace.sandbox.spec import SandboxFailure

__all__ = ["COMMAND", "confined", "lacks", "place", "users"]

COMMAND = ("unshare", "--user", "--map-root-user", "--map-auto", "--mount")
"""What runs a program as root of a user namespace of its own, with subordinate ids in it."""

_OF_ROOT = range(700_000_000, 1_700_000_000)
_OF_A_USER = range(10_000, 60_000)
_VARIABLE = "HEADRACE_CGROUP"
_UID_MAP = Path("/proc/self/uid_map")
_WHOLE_MACHINE = ["0", "0", "4294967295"]
_PROBE_S = 10.0

# All that the keeper and the runtime do there: a tree in which a directory was replaced, and the
# view of its processes that a container gets, which the kernel refuses where this one is covered.
_PROBE = """
set -e
mount -t tmpfs probe /tmp
cd /tmp
mkdir -p lower/d upper work tree
touch lower/d/f
mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work,userxattr probe tree
rm -r tree/d
mkdir tree/d
test -z "$(ls tree/d)"
mount -t proc probe /proc
cat /proc/self/uid_map
echo
cat /proc/self/gid_map
"""


def confined() -> bool:
    """Whether sandboxes are made in a user namespace: by whoever is not root of this machine."""
    return os.geteuid() != 0 or _UID_MAP.read_text().split() != _WHOLE_MACHINE


def users() -> range:
    """The user numbers that sandboxes get, as their keeper sees them: none that the machine, or
    an image, is likely to give to somebody."""
    return _OF_A_USER if confined() else _OF_ROOT


def place() -> str | None:
    """The control group in which those of sandboxes are made, as a runtime is told it; None
    where no part of the hierarchy is this user's."""
    if not confined():
        return "/headrace"
    if not cgroups.only_v2():
        return None
    own = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
    group = cgroups.delegated(own, named=os.environ.get(_VARIABLE))
    return group and f"/{group.relative_to(cgroups.ROOT)}/headrace"


def lacks() -> str | None:
    """None if this user can have sandboxes, else why not and what to do."""
    if not confined():
        return None
    if os.geteuid() == 0:
        return "it needs root of the machine or an ordinary user, not root of a user namespace"
    if not cgroups.only_v2():
        return "without root it needs a machine that has control groups of version 2 only"
    for name, package in (("unshare", "util-linux"), ("newuidmap", "uidmap")):
        if shutil.which(name) is None:
            return f"without root it needs {name}: apt-get install {package}"
    try:
        _namespace()
    except SandboxFailure as failure:
        return failure.what
    if place() is not None:
        return None
    if named := os.environ.get(_VARIABLE):
        return f"${_VARIABLE} is no group of this user that can give cpu, memory and pids: {named}"
    return (
        "no control group with cpu, memory and pids is delegated to this user: start it by"
        f" `systemd-run --user --scope -p Delegate=yes`, or name one in ${_VARIABLE}"
    )


@functools.cache
def _namespace() -> None:
    """SandboxFailure unless this user can have the namespace of a keeper, and do in it all that
    is done there. Success is remembered."""
    probe = [*COMMAND, "--pid", "--fork", "--kill-child", "sh", "-c", _PROBE]
    try:
        done = subprocess.run(probe, capture_output=True, text=True, timeout=_PROBE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise SandboxFailure(f"without root: unshare took more than {_PROBE_S:g} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise SandboxFailure(
            f"this user cannot have a user namespace that will do: {lines[-1]};"
            " it takes Linux 6.6, util-linux 2.38 and subordinate ids"
        )
    for numbers in done.stdout.split("\n\n"):
        if not _mapped(numbers):
            raise SandboxFailure(
                "this user has too few subordinate ids:"
                " usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER"
            )


def _mapped(numbers: str) -> bool:
    """Whether all of `users` have a number outside, by a `/proc/PID/uid_map`."""
    fields = (line.split() for line in numbers.splitlines())
    ranges = [range(int(first), int(first) + int(count)) for first, _, count in fields]
    return any(_OF_A_USER[0] in some and _OF_A_USER[-1] in some for some in ranges)
