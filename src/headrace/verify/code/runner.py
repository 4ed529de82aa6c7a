"""What runs in the sandbox: a candidate's function, called once for each case.

Its source is handed to a bare Python (3.9 or later) there, so it imports the standard library
only. It gets the candidate and the arguments, and tells what came out; what should have come
out is nowhere in the sandbox. Each case is a forked process with limits of its own, and gives
one line of JSON by a pipe; stdin, stdout and stderr of a candidate are the null device.

The runner shares its user with the candidate: it is trusted to be convenient, not to be
honest. What it tells is a claim about values, and a forged claim is worth what a true one is.
Most of its time is Python's start, so it does without the modules that are slow to import.
May be known by what reads its lines, for `encode`, the one spelling of values.
"""

from __future__ import annotations

import gc
import marshal
import os
import resource
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import OrderedDict, defaultdict
    from json.encoder import encode_basestring_ascii as quoted
    from typing import Any
else:
    from _collections import OrderedDict, defaultdict
    from _json import encode_basestring_ascii as quoted

DEPTH, NODES, CHARACTERS, BITS = 32, 50_000, 200_000, 13_000
"""Bounds on one value: levels, parts, characters in all, and bits of an integer."""

FRAME_BYTES = 4 * 2**20
READY = b"ready\n"

_SIGKILL, _SIGXCPU = 9, 24
_DICTS = (dict, defaultdict, OrderedDict)
_TRIES, _TRY_S = 100, 0.01


class Unfit(ValueError):
    """A value that is not made of builtin types, or is too large."""


# --- values --------------------------------------------------------------------------------


def encode(value: object) -> Any:
    """A value of builtin types as JSON; Unfit for anything else.

    None, bool, int, str, finite floats, lists and dicts with string keys are themselves; else
    an object of one key tells the type: `$tuple`, `$set`, `$frozenset`, `$dict` (pairs),
    `$bytes` (hexadecimal), `$float` (nan, inf, -inf). The type is what `type()` says, so a
    subclass is refused; but the dicts of `collections` are dicts.

    >>> encode((1, {2}))
    {'$tuple': [1, {'$set': [2]}]}
    """
    return _encode(value, [NODES, CHARACTERS], DEPTH)


def _encode(value: Any, room: list[int], depth: int) -> Any:
    kind = type(value)
    room[0] -= 1
    if depth < 0 or room[0] < 0:
        raise Unfit("a value too deep or too large")
    if kind is str or kind is bytes:
        room[1] -= len(value)
    elif kind is int:
        room[1] -= value.bit_length() // 3
    if room[1] < 0 or (kind is int and value.bit_length() > BITS):
        raise Unfit("a value too large")
    if value is None or kind is bool or kind is int or kind is str:
        return value
    if kind is float:
        return value if value - value == 0 else {"$float": repr(value)}
    if kind is bytes:
        return {"$bytes": value.hex()}
    if kind is list:
        return [_encode(item, room, depth - 1) for item in value]
    for name, plain in (("$tuple", tuple), ("$set", set), ("$frozenset", frozenset)):
        if kind is plain:
            return {name: [_encode(item, room, depth - 1) for item in value]}
    counter = getattr(sys.modules.get("collections"), "Counter", dict)
    if any(kind is plain for plain in (*_DICTS, counter)) and isinstance(value, dict):
        return _encode_dict(value, room, depth)
    raise Unfit(f"not a builtin value: {kind.__name__}")


def _encode_dict(value: dict[Any, Any], room: list[int], depth: int) -> Any:
    pairs = [
        [_encode(key, room, depth - 1), _encode(item, room, depth - 1)]
        for key, item in dict.items(value)
    ]
    if all(type(key) is str and not key.startswith("$") for key, _ in pairs):
        return dict(pairs)
    return {"$dict": pairs}


def decode(tree: Any) -> Any:
    """The value that `encode` spelled so."""
    if type(tree) is list:
        return [decode(item) for item in tree]
    if type(tree) is not dict:
        return tree
    name = next(iter(tree), "")
    if not name.startswith("$"):
        return {key: decode(item) for key, item in tree.items()}
    inner = tree[name]
    if name == "$float":
        return float(inner)
    if name == "$bytes":
        return bytes.fromhex(inner)
    if name == "$dict":
        return {decode(key): decode(item) for key, item in inner}
    plain = {"$tuple": tuple, "$set": set, "$frozenset": frozenset}[name]
    return plain([decode(item) for item in inner])


def dumped(tree: Any) -> str:
    """JSON, in ASCII, of what `encode` makes; it saves the import of `json`."""
    kind = type(tree)
    if kind is str:
        return quoted(tree)
    if kind is list:
        return f"[{','.join([dumped(item) for item in tree])}]"
    if kind is dict:
        pairs = [f"{quoted(name)}:{dumped(item)}" for name, item in tree.items()]
        return f"{{{','.join(pairs)}}}"
    if tree is None:
        return "null"
    return repr(tree).lower() if kind is bool else repr(tree)


# --- one case, in a process of its own -----------------------------------------------------


def attempt(job: dict[str, Any], arguments: Any) -> dict[str, Any]:
    """Load the candidate and call its function; without `arguments`, only see if it compiles."""
    module = type(sys)("candidate")
    sys.modules["candidate"] = module
    space = module.__dict__
    stage = "syntax"
    try:
        if arguments is None:
            compiled(job)
            return {"status": "value", "value": None}
        stage = "raised"
        for code in job["codes"]:
            exec(code, space)  # noqa: S102 this process exists to run it
        function = space.get(job["entry"])
        if function is None:
            return {"status": "missing", "note": f"it defines no {job['entry']}"}
        value = function(*[decode(item) for item in arguments])
        stage = "unfit"
        return {"status": "value", "value": encode(value)}
    except BaseException as error:  # noqa: BLE001 a candidate may raise anything, and it is told
        return {"status": stage, "note": f"{type(error).__name__}: {error}"[-300:]}


def compiled(job: dict[str, Any]) -> list[Any]:
    """The code of prelude and candidate, without the flags of this file."""
    return [
        compile(job[name], f"{name}.py", "exec", dont_inherit=True)
        for name in ("prelude", "source")
    ]


def child(job: dict[str, Any], arguments: Any, pipe: int, private: list[int]) -> None:
    """Become the process of a case, and end."""
    try:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        for fd in [*private, null]:
            os.close(fd)
        memory, seconds = job["memory_mb"] * 2**20, job["cpu_s"]
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        send(pipe, dumped(attempt(job, arguments)).encode() + b"\n")
    finally:
        os._exit(0)


def send(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


# --- the cases, one after the other --------------------------------------------------------


class Case:
    """A case that runs: its process, which leads a group, and the pipe it tells its end by."""

    def __init__(self, job: dict[str, Any], arguments: Any, private: list[int]) -> None:
        self.reader, writer = os.pipe()
        self.pid = forked()
        if self.pid == 0:
            child(job, arguments, writer, [*private, self.reader])
        os.close(writer)
        os.set_blocking(self.reader, False)
        self.ended = os.pidfd_open(self.pid)
        self.text = b""

    def end(self, until: float) -> dict[str, str]:
        """Wait for its end until then, kill it with its group, and say what it told: one line,
        the only one that it ever wrote."""
        in_time = self._wait(until)
        try:
            os.killpg(self.pid, _SIGKILL)
        except ProcessLookupError:
            os.kill(self.pid, _SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        os.close(self.ended)
        os.close(self.reader)
        line, newline, rest = self.text.partition(b"\n")
        if rest or len(self.text) > FRAME_BYTES:
            how = "garbled"
        elif newline and in_time:
            return {"how": "told", "text": line.decode("ascii", "replace")}
        else:
            spent = os.WIFSIGNALED(status) and os.WTERMSIG(status) == _SIGXCPU
            how = "timeout" if spent or not in_time else "ended"
        return {"how": how, "text": ""}

    def _wait(self, until: float) -> bool:
        """Read until the process has ended; False if it has not until then."""
        poll = select.poll()
        for fd in (self.ended, self.reader):
            poll.register(fd, select.POLLIN)
        while len(self.text) <= FRAME_BYTES:
            ready = [fd for fd, _ in poll.poll(max(0.0, until - time.monotonic()) * 1000)]
            if self.reader in ready:
                piece = os.read(self.reader, 65536)
                self.text += piece
                if not piece:
                    poll.unregister(self.reader)
            else:
                return bool(ready)
        return True


def forked() -> int:
    """fork, again where a sandbox refuses it because the machine is busy (EPERM)."""
    for again in range(_TRIES, -1, -1):
        try:
            return os.fork()
        except PermissionError:
            if not again:
                raise
            time.sleep(_TRY_S)
    raise AssertionError("the last try returns or raises")


def exactly(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(fd, size - len(data))
        if not piece:
            raise EOFError("the work ends before its end")
        data += piece
    return data


def main() -> None:
    """Read the work, do it, then read the nonce and tell.

    The nonce is read last, so that no process of the candidate holds it.
    """
    source, out = os.dup(0), os.dup(1)
    job = marshal.loads(exactly(source, int(exactly(source, 16))))
    for name in job["modules"]:
        __import__(name)
    gc.freeze()
    private = [source, out]
    until = time.monotonic() + job["total_s"]
    case = Case(job, None, private)
    send(out, READY)
    ends = [case.end(min(until, time.monotonic() + job["wall_s"]))]
    if '"status":"value"' in ends[0]["text"]:
        job["codes"] = compiled(job)
    for arguments in job["cases"] if "codes" in job else []:
        now = time.monotonic()
        if now > until or (job["stop"] and ends[-1]["how"] == "timeout"):
            break
        ends.append(Case(job, arguments, private).end(min(until, now + job["wall_s"])))
    nonce = exactly(source, 32).decode()
    for number, end in enumerate(ends, -1):
        send(out, dumped({"nonce": nonce, "case": number, **end}).encode() + b"\n")


if __name__ == "__main__":
    main()
