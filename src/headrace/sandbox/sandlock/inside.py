"""What runs inside a sandlock box: a supervisor that starts commands, and work on files.

Its source is handed to a Python in the box, so it imports the standard library only, and
nothing of headrace imports it. Everything here is confined like the candidate's programs and
shares their user: it is trusted to be convenient, not to be honest.

The supervisor gets messages on the socket that is its standard input: JSON in a descriptor,
with the descriptors of the command's streams. Each command has a shepherd, the subreaper
under which all that the command starts stays, orphans too; so a command's tree is a subtree.
"""

import ctypes
import errno
import io
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import stat
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SUBREAPER = 36
_KILL_S = 2.0
_TRIES, _TRY_S = 100, 0.01
MISSING, SPECIAL, UNFIT = 3, 4, 5
"""Exit codes of file work."""


# --- commands ------------------------------------------------------------------------------


def supervise() -> None:
    """Serve the socket on descriptor 0 until it closes."""
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    libc = ctypes.CDLL(None)
    libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    # sandlock answers system calls that a signal may interrupt, and Python repeats not all.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    shepherds: dict[int, int] = {}
    tell(control, {"event": "ready"})
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    while True:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        ready = {key.fd for key, _ in selector.select()}
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        if woken in ready:
            os.read(woken, 4096)
        reap(control, shepherds)
        if control.fileno() in ready:
            message, fds, _, _ = socket.recv_fds(control, 64, 8, socket.MSG_CMSG_CLOEXEC)
            if not message:
                return
            request = json.loads(os.pread(fds[0], os.fstat(fds[0]).st_size, 0))
            if request["op"] == "run":
                run(control, libc, shepherds, request, fds[1:])
            elif request["op"] == "kill":
                kill(control, shepherds, request["n"])
            else:
                tell(control, {"event": "pong", "n": request["n"]})
            for fd in fds:
                os.close(fd)


def tell(control: socket.socket, message: dict[str, Any]) -> None:
    control.send(json.dumps(message).encode())


def reap(control: socket.socket, shepherds: dict[int, int]) -> None:
    """Collect ended children. A shepherd that was killed takes what it kept with it."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        number = shepherds.pop(pid, None)
        if number is not None and status != 0:
            tell(control, {"event": "lost", "n": number})
            for stray in children().get(os.getpid(), []):
                if stray not in shepherds:
                    end(stray)


def run(
    control: socket.socket,
    libc: ctypes.CDLL,
    shepherds: dict[int, int],
    request: dict[str, Any],
    streams: list[int],
) -> None:
    number = request["n"]
    try:
        pid = insist(os.fork)
    except OSError as error:
        os.write(streams[2], f"cannot start: {error.strerror}\n".encode())
        tell(control, {"event": "ended", "n": number, "code": 126})
        return
    if pid == 0:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            libc.prctl(_SUBREAPER, 1, 0, 0, 0)
            code = shepherd(control, request, streams)
        finally:
            os._exit(code)
    shepherds[pid] = number


def shepherd(control: socket.socket, request: dict[str, Any], streams: list[int]) -> int:
    """Start the command, tell how it ended, and stay until all that it started has ended."""
    try:
        main = insist(os.fork)
    except OSError as error:
        os.write(streams[2], f"cannot start: {error.strerror}\n".encode())
        tell(control, {"event": "ended", "n": request["n"], "code": 126})
        return 0
    if main == 0:
        start(request, streams)
    for fd in streams:
        os.close(fd)
    while True:
        try:
            pid, status, used = os.wait4(-1, 0)
        except ChildProcessError:
            return 0
        if pid == main:
            tell(
                control,
                {
                    "event": "ended",
                    "n": request["n"],
                    "code": os.waitstatus_to_exitcode(status),
                    "pid": main,
                    "by": os.getpid(),
                    "user": used.ru_utime,
                    "system": used.ru_stime,
                    "peak": used.ru_maxrss * 1024,
                    "free": os.statvfs("/tmp").f_bavail,
                },
            )


def start(request: dict[str, Any], streams: list[int]) -> None:
    """Become the command; exit code 126 or 127 if that cannot be."""
    code = 126
    try:
        os.setsid()
        for fd, target in zip(streams, (0, 1, 2), strict=True):
            os.dup2(fd, target)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.chdir(request["cwd"])
        if request["cpu_s"] is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (request["cpu_s"], request["cpu_s"] + 1))
        if request["file_mb"] is not None:
            size = request["file_mb"] * 2**20
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        argv = request["argv"]
        insist(lambda: os.execvpe(argv[0], argv, request["env"]))
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            code = 127
        os.write(2, f"cannot start {request['argv'][0][:256]!r}: {error}\n".encode()[:4096])
    finally:
        os._exit(code)


def insist(call: Callable[[], int]) -> int:
    """execve and fork, again where sandlock refuses them: it says EPERM when it could not stop
    the others of the box in time, on a busy machine (file permissions say EACCES)."""
    for again in range(_TRIES, -1, -1):
        try:
            return call()
        except PermissionError as error:
            if error.errno != errno.EPERM or not again:
                raise
            time.sleep(_TRY_S)
    raise AssertionError("the last try returns or raises")


def kill(control: socket.socket, shepherds: dict[int, int], number: int) -> None:
    """End all that command `number` started, and say whether that could be done in time."""
    found = [pid for pid, of in shepherds.items() if of == number]
    deadline = time.monotonic() + _KILL_S
    while found and (tree := below(found[0])):
        for pid in tree:
            end(pid)
        if time.monotonic() > deadline:
            tell(control, {"event": "stuck", "n": f"kill {number}"})
            return
        time.sleep(0.001)
    tell(control, {"event": "killed", "n": f"kill {number}"})


def below(root: int) -> list[int]:
    """The living descendants of a process."""
    family = children()
    found: list[int] = []
    layer = family.get(root, [])
    while layer:
        found += layer
        layer = [child for pid in layer for child in family.get(pid, [])]
    return found


def children() -> dict[int, list[int]]:
    family: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            state, parent, *_ = [*text.rpartition(")")[2].split(), "X", "0"]
            if state not in "ZX":
                family.setdefault(int(parent), []).append(int(entry.name))
    return family


def end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


# --- files ---------------------------------------------------------------------------------


class Unfit(Exception):
    """What was asked for cannot be; `code` is the exit code that says which way."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(what)
        self.code = code


def put(to: str) -> None:
    """Unpack the archive on standard input under `to`."""
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        Path(to).mkdir(parents=True, exist_ok=True)
        archive.extractall(to, filter="data")


def put_file(path: str) -> None:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)


def get(path: str) -> None:
    """Write an archive of `path` to standard output."""
    source = Path(path)
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        archive.add(source, arcname=source.name or ".")


def get_file(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise Unfit(SPECIAL, "not a regular file")
    with os.fdopen(fd, "rb") as file:
        shutil.copyfileobj(file, sys.stdout.buffer)


def save(*roots: str) -> None:
    """Write an archive of whole trees to standard output, unreadable parts too."""
    modes: dict[Path, int] = {}
    for root in roots:
        opened(Path(root), modes)

    def as_it_was(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mode = modes.get(Path("/", member.name), member.mode)
        return member

    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        for root in roots:
            archive.add(root, filter=as_it_was)
    for path, mode in reversed(modes.items()):
        path.chmod(mode)


def load(*roots: str) -> None:
    """Empty the trees and, if there is something on standard input, unpack that."""
    for root in roots:
        opened(Path(root), {})
        for path in Path(root).iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    source = io.BufferedReader(io.FileIO(0))
    if source.peek(1):
        with tarfile.open(fileobj=source, mode="r|") as archive:
            archive.extractall("/", filter="fully_trusted")


def opened(root: Path, modes: dict[Path, int]) -> None:
    """Make a tree readable by its owner; `modes` gets the permissions that were changed."""
    for directory, names, files in os.walk(root):
        for name in names + files:
            path = Path(directory, name)
            mode = path.lstat().st_mode
            need = 0o700 if stat.S_ISDIR(mode) else 0o400
            if not stat.S_ISLNK(mode) and mode & need != need:
                modes[path] = stat.S_IMODE(mode)
                path.chmod(modes[path] | need)


WORK = {"put": put, "put_file": put_file, "get": get, "get_file": get_file}
TREES = {"save": save, "load": load}


def main(arguments: list[str]) -> int:
    """The supervisor without arguments, else the file work of that name."""
    if not arguments:
        supervise()
        return 0
    name, *paths = arguments
    try:
        (WORK | TREES)[name](*paths)
        sys.stdout.flush()
    except Unfit as error:
        print(error, file=sys.stderr)
        return error.code
    except FileNotFoundError as error:
        print(f"there is no such file: {error.filename}", file=sys.stderr)
        return MISSING
    except (tarfile.TarError, OSError, ValueError, OverflowError) as error:
        print(error, file=sys.stderr)
        return UNFIT
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
