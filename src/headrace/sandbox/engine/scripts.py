"""What is typed into shells: inside a container, by programs of its image, and around the
engine's client on the host.

May be known by the engine backend only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.sandbox.spec import ExecLimits

__all__ = [
    "NEEDED",
    "PACK",
    "PACK_ALL",
    "PROBE",
    "READ",
    "UNPACK",
    "UNPACK_ALL",
    "WRITE",
    "limited",
    "redirected",
]

NEEDED = "sh sleep tar mkdir cat"

_LIMITED = 'test -z "$1" || ulimit -t "$1"; test -z "$2" || ulimit -f "$2"; shift 2; exec "$@"'
PROBE = (
    f'for p in {NEEDED}; do command -v "$p" >/dev/null || echo "the program $p"; done; '
    'for d in "$@"; do test -w "$d" || echo "a $d that can be written"; done; '
    'test "$(ulimit -n)" = "$FILES" || echo "its limit of open files"'
)
UNPACK = 'mkdir -p -- "$1" && exec tar -xpf - -C "$1"'
UNPACK_ALL = "cd / && umask 0 && exec tar -xpf -"
WRITE = 'mkdir -p -- "$1" && exec cat > "$2"'
PACK = 'test -e "$2" || test -L "$2" || exit 3; exec tar -cf - -C "$1" -- "$3"'
READ = 'test -e "$1" || exit 3; test -f "$1" || exit 4; exec cat -- "$1"'
PACK_ALL = 'cd / && exec tar -cf - "$@"'
_FROM_FILE = 'file=$1; shift; exec "$@" < "$file"'
_TO_FILE = 'most=$1 file=$2; shift 2; "$@" | head -c "$most" > "$file"'


def redirected(stdin: bytes | Path, sink: tuple[Path, int] | None) -> list[str]:
    """A shell of the host around the engine's client that joins it to files."""
    if sink is not None:
        return ["/bin/sh", "-c", _TO_FILE, "sh", str(sink[1]), str(sink[0])]
    if isinstance(stdin, Path):
        return ["/bin/sh", "-c", _FROM_FILE, "sh", str(stdin)]
    return []


def limited(argv: Sequence[str], limits: ExecLimits) -> list[str]:
    """A command under limits of its own, which a shell inside sets."""
    if limits.cpu_s is None and limits.file_mb is None:
        return list(argv)
    seconds = "" if limits.cpu_s is None else str(limits.cpu_s)
    blocks = "" if limits.file_mb is None else str(limits.file_mb * 2048)
    return ["sh", "-c", _LIMITED, "sh", seconds, blocks, *argv]
