"""Messages between a sandbox's owner and its supervisor; the layout is that of supervisor.c."""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import UsageError

__all__ = ["LONGEST", "REPLY_BYTES", "Kind", "Mode", "Op", "Reply", "command", "request"]

LONGEST = 160 * 1024
"""Most bytes of a command with its arguments and environment."""

_REQUEST = struct.Struct("<12I")
_REPLY = struct.Struct("<IIiiQQ")
REPLY_BYTES = _REPLY.size


class Op(enum.IntEnum):
    """What the supervisor is asked to do."""

    EXEC = 1
    RESET = 2
    PING = 3
    LISTEN = 4
    PREPARE = 5


class Mode(enum.IntEnum):
    """What EXEC does as the user: run a program, or move one file to or from its streams."""

    COMMAND = 0
    WRITE_FILE = 1
    READ_FILE = 2


class Kind(enum.IntEnum):
    """What it answers."""

    ENDED = 1
    FAILED = 2
    DONE = 3
    SOCKET = 4


@dataclass(frozen=True, slots=True)
class Reply:
    """`value`: wait status, errno or flags; `extra`: the step that failed; times in seconds."""

    kind: Kind
    tag: int
    value: int
    extra: int
    user_s: float
    system_s: float

    @classmethod
    def read(cls, data: bytes) -> Reply:
        """From the socket (ValueError for anything else)."""
        try:
            kind, tag, value, extra, user, system = _REPLY.unpack(data)
        except struct.error as error:
            raise ValueError(f"a reply of {len(data)} bytes") from error
        return cls(Kind(kind), tag, value, extra, user / 1e6, system / 1e6)


def request(op: Op, tag: int, *, port: int = 0) -> bytes:
    """All but EXEC; LISTEN on a port of the sandbox's loopback."""
    return _REQUEST.pack(op, tag, 0, 0, 0, 0, 0, port, 0, 0, 0, 0)


def command(
    tag: int,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    *,
    uid: int,
    cpu_s: int,
    file_mb: int,
    open_files: int,
    root: int,
    mode: Mode = Mode.COMMAND,
    prepared: bool = False,
) -> bytes:
    """EXEC; `prepared` where the waiting child may take it. Raises UsageError for what no
    program could be given."""
    if not argv:
        raise UsageError("an empty command", hint="argv needs the program's name")
    strings = [cwd, *argv, *(f"{name}={value}" for name, value in env.items())]
    data = b"".join(text.encode("utf-8", "surrogateescape") + b"\0" for text in strings)
    if data.count(b"\0") != len(strings):
        raise UsageError("a command or its environment has a NUL byte", where=repr(argv[0]))
    if len(data) > LONGEST:
        raise UsageError(
            f"the command has {len(data)} bytes, more than {LONGEST}",
            where=repr(argv[0][:80]),
            hint="put long input into a file or on stdin",
        )
    counts = (len(argv), len(env), mode, prepared, root)
    return _REQUEST.pack(Op.EXEC, tag, uid, uid, cpu_s, file_mb, open_files, *counts) + data
