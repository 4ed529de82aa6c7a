"""A killable child process that answers JSON lines: where untrusted text meets fragile code.

Scorers that evaluate a model's text can hang inside C code, where no thread and no signal
handler of Python gets a turn; only the death of their process is a timeout that holds. The
parent's side is `Child`; a worker module calls `serve` and never sees the pipes. May be known
by task packs and verifiers; knows nothing of tasks.

Wire format, one JSON object a line: `{"id", "deadline", "cpu", "request"}` down, and up
`{"id", "reply", "last"}` (id 0 says that the child has loaded, `last` that it retires).
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import IO

from headrace.errors import VerifierError
from headrace.types import Json

__all__ = [
    "Child",
    "ChildDied",
    "ChildError",
    "ChildGarbled",
    "ChildSpent",
    "ChildTimeout",
    "serve",
]

_MEMORY_VARIABLE = "HEADRACE_CHILD_MEMORY_MB"
_SCRATCH_VARIABLE = "HEADRACE_CHILD_SCRATCH"
_TAIL_BYTES = 4096
_REPLY_BYTES = 16 * 2**20
_KILL_SECONDS = 10.0
_DYING_SECONDS = 2.0
_ORPHAN_GRACE = 2.0
_CHUNK = 65536
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH")


class ChildError(VerifierError):
    """A child process could not answer a request; the next call starts a new one."""


class ChildTimeout(ChildError):
    """No answer within the deadline; the child was killed."""


class ChildSpent(ChildTimeout):
    """No answer within the CPU seconds granted, however busy the machine was."""


class ChildDied(ChildError):
    """The child ended (crashed, was killed, ran out of memory) before it answered."""


class ChildGarbled(ChildError):
    """The child wrote something that is no answer to this request; it was killed."""


class _Life:
    """One process and its three pipes, from start to reaping."""

    def __init__(self, module: str, memory_mb: int) -> None:
        with contextlib.ExitStack() as undo:
            scratch = undo.enter_context(
                tempfile.TemporaryDirectory(prefix="headrace-child-", ignore_cleanup_errors=True)
            )
            self.process = subprocess.Popen(
                [sys.executable, "-m", module],
                cwd=scratch,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**_environment(memory_mb), _SCRATCH_VARIABLE: scratch},
                start_new_session=True,
                bufsize=0,
            )
            self.sweep = undo.pop_all().close
        self.tail = bytearray()
        self.replies = bytearray()
        for pipe in self._pipes():
            os.set_blocking(pipe.fileno(), False)

    def _pipes(self) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        return process.stdin, process.stdout, process.stderr

    def exchange(self, line: bytes, until: float) -> bytes | None:
        """Write `line`, then return the next line; None if the child closed its output.

        Raises TimeoutError at `until` (monotonic seconds) and ValueError for an endless line.
        """
        stdin, stdout, stderr = self._pipes()
        unsent = memoryview(line)
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            selector.register(stderr, selectors.EVENT_READ)
            if unsent:
                selector.register(stdin, selectors.EVENT_WRITE)
            while b"\n" not in self.replies:
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                for key, _ in selector.select(left):
                    if key.fileobj is stdin:
                        unsent = self._send(unsent)
                        if not unsent:
                            selector.unregister(stdin)
                        continue
                    chunk = os.read(key.fd, _CHUNK)
                    if key.fileobj is stderr:
                        self._remember(chunk)
                        if not chunk:
                            selector.unregister(stderr)
                    elif not chunk:
                        return None
                    elif len(self.replies) + len(chunk) > _REPLY_BYTES:
                        raise ValueError("endless reply")
                    else:
                        self.replies += chunk
        reply, _, rest = bytes(self.replies).partition(b"\n")
        self.replies = bytearray(rest)
        return reply

    def _send(self, unsent: memoryview) -> memoryview:
        try:
            return unsent[os.write(self._pipes()[0].fileno(), unsent[:_CHUNK]) :]
        except BrokenPipeError:
            return unsent[:0]  # its output has ended too, and says so to the reader

    def _remember(self, chunk: bytes) -> None:
        self.tail += chunk
        del self.tail[:-_TAIL_BYTES]

    def alive(self) -> bool:
        """Whether the process still runs; a dead one is left unreaped."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, flags) is None

    def settle(self) -> None:
        """Let a process that has closed its output finish dying in its own way."""
        until = time.monotonic() + _DYING_SECONDS
        while self.alive() and time.monotonic() < until:
            time.sleep(0.005)

    def end(self) -> None:
        """Kill the process group and reap; the dead leader's id stays ours until `wait`."""
        if self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        try:
            self.process.wait(timeout=_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            raise ChildError(
                "a child process survives SIGKILL", where=f"child process {self.process.pid}"
            ) from None
        self.sweep()
        stderr = self._pipes()[2]
        while chunk := stderr.read(_CHUNK):
            self._remember(chunk)
        for pipe in self._pipes():
            pipe.close()

    def obituary(self) -> str:
        """How the process ended and the last words it wrote, for an error message."""
        code = self.process.returncode
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        words = self.tail.decode(errors="replace").strip()
        return f"{how}: {words[-600:]}" if words else how


class Child:
    """The parent's handle on `python -m MODULE`: started lazily, restarted after any failure.

    `memory_mb` bounds the child's address space; `start_seconds` its loading. Calls from
    several threads take turns, and a deadline counts a call's own turn only. The child sees a
    bare environment, a fixed hash seed and an empty scratch directory, can write nothing into
    files, and ends with its parent.

    >>> child = Child("headrace_reasoning_gym.worker")  # doctest: +SKIP
    >>> child.call({"op": "make", ...}, deadline=20.0)  # doctest: +SKIP
    """

    def __init__(self, module: str, *, memory_mb: int = 4096, start_seconds: float = 120.0) -> None:
        self._module = module
        self._memory_mb = memory_mb
        self._start_seconds = start_seconds
        self._lock = threading.Lock()
        self._life: _Life | None = None
        self._finalizer: weakref.finalize[[], Child] | None = None
        self._calls = 0

    @property
    def pid(self) -> int | None:
        """The running process, or None before the first call and after a failure."""
        life = self._life
        return None if life is None else life.process.pid

    def call(self, request: Json, *, deadline: float, cpu: float | None = None) -> Json:
        """Send `request`, return the reply.

        `deadline` is in seconds and does not count the child's loading; `cpu`, in seconds of
        processor time, does not depend on what else the machine is doing. Raises ChildTimeout
        (ChildSpent for `cpu`), ChildDied or ChildGarbled; the process is gone by then.
        """
        with self._lock:
            if self._life is not None and not self._life.alive():
                self._end()
            life = self._life or self._start()
            self._calls += 1
            body = {"id": self._calls, "deadline": deadline, "cpu": cpu, "request": request}
            line = json.dumps(body, allow_nan=False).encode() + b"\n"
            return self._ask(life, line, self._calls, deadline)

    def close(self) -> None:
        """End the process if there is one; a later call starts a new one."""
        with self._lock:
            self._end()

    def _start(self) -> _Life:
        try:
            life = _Life(self._module, self._memory_mb)
        except OSError as error:
            raise ChildDied(
                f"cannot start {self._module}: {error.strerror}", where=sys.executable
            ) from error
        self._life = life
        self._finalizer = weakref.finalize(self, life.end)
        self._ask(life, b"", 0, self._start_seconds)
        return life

    def _ask(self, life: _Life, line: bytes, number: int, seconds: float) -> Json:
        goes_on = False
        try:
            raw = life.exchange(line, time.monotonic() + seconds)
            if raw is not None:
                message = _parse(raw, number)
                goes_on = message["last"] is False
                return message["reply"]
            life.settle()
        except TimeoutError:
            raise ChildTimeout(
                f"{self._module} gave no answer within {seconds:g} s", where=self._where(life)
            ) from None
        except ValueError as error:
            raise ChildGarbled(
                f"{self._module} gave no valid answer: {error}", where=self._where(life)
            ) from None
        finally:
            if not goes_on:
                self._end()
        if life.process.returncode == -signal.SIGPROF:
            raise ChildSpent(
                f"{self._module} gave no answer within its CPU seconds", where=self._where(life)
            )
        raise ChildDied(f"{self._module} died ({life.obituary()})", where=self._where(life))

    def _where(self, life: _Life) -> str:
        return f"child process {life.process.pid}"

    def _end(self) -> None:
        finalizer, self._finalizer, self._life = self._finalizer, None, None
        if finalizer is not None:
            finalizer()


def _environment(memory_mb: int) -> dict[str, str]:
    """All that a child sees of its parent's environment, and what keeps it reproducible."""
    environment = {key: os.environ[key] for key in _INHERITED if key in os.environ}
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    environment["PYTHONPATH"] = os.pathsep.join(str(Path(path).resolve()) for path in paths if path)
    return environment | {
        "PYTHONHASHSEED": "0",
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONIOENCODING": "utf-8",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        _MEMORY_VARIABLE: str(memory_mb),
    }


def _parse(raw: bytes, number: int) -> dict[str, Json]:
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {raw[:80]!r}") from error
    if not isinstance(message, dict) or set(message) != {"id", "reply", "last"}:
        raise ValueError(f"not a reply: {raw[:80]!r}")
    if message["id"] != number:
        raise ValueError(f"a reply to request {message['id']!r} instead of {number}")
    return message


def serve(load: Callable[[], Callable[[Json], Json]]) -> None:
    """A worker's main loop: `load()` gives the handler, which answers until the parent is gone.

    Whatever the library prints goes to stderr, and what it reads from stdin is empty. An
    exception of the handler ends the process: its parent reads the traceback from the tail.
    A process that has used half of its memory retires, before a library's own `except` could
    mistake the bound for a wrong answer.
    """
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    memory = int(os.environ.get(_MEMORY_VARIABLE, "4096")) * 2**20
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, memory)
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    handle = load()
    _limit(resource.RLIMIT_FSIZE, 0)
    _reply(replies, 0, None, last=False)
    for line in requests:
        message = json.loads(line)
        # The kernel ends a child that spends too much, and a hung one without a parent.
        signal.setitimer(signal.ITIMER_PROF, message["cpu"] or 0.0)
        signal.setitimer(signal.ITIMER_REAL, message["deadline"] + _ORPHAN_GRACE)
        reply = handle(message["request"])
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        retires = _peak_bytes() > memory / 2
        _reply(replies, message["id"], reply, last=retires)
    if _SCRATCH_VARIABLE in os.environ:  # the parent is gone and will not sweep it
        shutil.rmtree(os.environ[_SCRATCH_VARIABLE], ignore_errors=True)


def _peak_bytes() -> int:
    """The most memory that this process has held.

    `ru_maxrss` survives exec, so a child of a large process starts out large by that count;
    the kernel's own high-water mark (Linux) begins anew.
    """
    with contextlib.suppress(FileNotFoundError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _reply(replies: IO[bytes], number: int, reply: Json, *, last: bool) -> None:
    message = {"id": number, "reply": reply, "last": last}
    replies.write(json.dumps(message, allow_nan=False).encode() + b"\n")
    replies.flush()


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))
