"""The process beside a sandlock box: it makes the box's view of the machine and confines it.

Run as a program, isolated, by `headrace.sandbox.sandlock.box`; it imports the standard library
and sandlock, and nothing of headrace imports it. sandlock's own supervisor (its answers to
seccomp notifications) is threads of this process, outside the box and out of its reach.

What the box sees is a private mount namespace: a `tmpfs` with a size, the machine's programs
bound read-only, and nothing else. That takes a user namespace, or root, who then gives up
everything for a user id that only this box has. Landlock, seccomp, memory and network are
sandlock's. The number of tasks is RLIMIT_NPROC, which counts threads too, unlike sandlock's.
"""

import ctypes
import errno
import json
import os
import resource
import selectors
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.extend(sys.argv[1:])

# Imported late by sandlock itself, when the files of the machine cannot be seen any more.
import sandlock._handler_ffi  # noqa: F401  # pyright: ignore[reportUnusedImport]
from sandlock import (
    ExceptionPolicy,
    Handler,
    HandlerCtx,
    NotifAction,
    Sandbox,
)

_NEWNS, _NEWIPC, _NEWUSER = 0x20000, 0x8000000, 0x10000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND = 1, 2, 4, 8, 32, 4096
_RECURSIVE, _PRIVATE, _DETACH = 16384, 1 << 18, 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41}
_DUMPABLE, _SUBREAPER = 4, 36
_PROGRAMS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "opt")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_NEW_ROOT = "/tmp"
_OWN_TASKS = 64
_REMEMBERED = 4096
_STARTS = ("clone", "clone3") + (("fork", "vfork") if os.uname().machine == "x86_64" else ())
_KILLS = {
    "kill": 1,
    "tkill": 1,
    "tgkill": 2,
    "rt_sigqueueinfo": 1,
    "rt_tgsigqueueinfo": 2,
}
_INODES_PER_MB = 128
_DENIED = ("sched_setaffinity", "pidfd_getfd", "memfd_create", "pidfd_send_signal")

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Serve the socket on descriptor 0: enter once, then start and stop boxes until it ends."""
    control = socket.socket(fileno=os.dup(0))
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    config, _ = receive(control)
    if config is None:
        return
    try:
        enter(config)
    except OSError as error:
        tell(control, {"event": "refused", "what": str(error)})
        return
    tell(control, {"event": "entered"})
    serve(control, config, null)


def serve(control: socket.socket, config: dict[str, Any], null: int) -> None:
    box: Confinement | None = None
    deadline = time.monotonic() + config["lifetime_s"]
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    while selector.select(max(0.0, deadline - time.monotonic())):
        request, fds = receive(control)
        if request is None:
            break
        if request["op"] == "start":
            os.dup2(fds[0], 0)
            for fd in fds:
                os.close(fd)
            box = Confinement(control, config, request["n"])
            box.started.wait()
            os.dup2(null, 0)
        elif request["op"] == "why":
            known = box.witness.why(request["pid"], request["by"]) if box is not None else {}
            tell(control, {"event": "why", "n": request["n"], **known})
        elif box is not None:
            box.kill()
    # After this nobody is told: what runs now does not end of itself.
    control.shutdown(socket.SHUT_RDWR)
    if box is not None:
        box.kill()
        box.thread.join()


def tell(control: socket.socket, message: dict[str, Any]) -> None:
    try:
        control.send(json.dumps(message).encode())
    except BrokenPipeError:
        return


def receive(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    message, fds, _, _ = socket.recv_fds(control, 64, 8, socket.MSG_CMSG_CLOEXEC)
    if not message:
        return None, []
    request = json.loads(os.pread(fds[0], os.fstat(fds[0]).st_size, 0))
    os.close(fds[0])
    return request, fds[1:]


# --- the view of the machine ---------------------------------------------------------------


def enter(config: dict[str, Any]) -> None:
    """Take on a private view of the machine, and the box's user. Raises OSError."""
    root = os.geteuid() == 0
    user, group = os.geteuid(), os.getegid()
    if root:
        user = group = config["user"]
        unshare(_NEWNS | _NEWIPC)
    else:
        unshare(_NEWUSER | _NEWNS | _NEWIPC)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    mount(None, "/", None, _RECURSIVE | _PRIVATE)
    bind_all(config, user, group)
    os.chdir(_NEW_ROOT)
    check(_libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    check(_libc.umount2(b".", _DETACH), "umount")
    os.chdir("/")
    tasks = config["processes"] + _OWN_TASKS
    resource.setrlimit(resource.RLIMIT_NPROC, (tasks, tasks))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if root:
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    _libc.prctl(_DUMPABLE, 1, 0, 0, 0)


def bind_all(config: dict[str, Any], user: int, group: int) -> None:
    sources = [(os.path.realpath(source), target) for source, target in config["mounts"]]
    held = [(os.open(source, os.O_PATH | os.O_DIRECTORY), target) for source, target in sources]
    programs = [Path("/", name) for name in _PROGRAMS if Path("/", name).exists()]
    links = {path: path.readlink() for path in programs if path.is_symlink()}
    opened = [(os.open(p, os.O_PATH), str(p)) for p in programs if p not in links]
    devices = [(os.open(f"/dev/{name}", os.O_PATH), f"/dev/{name}") for name in _DEVICES]
    process_fs = os.open("/proc", os.O_PATH)
    inodes = max(4096, config["disk_mb"] * _INODES_PER_MB)
    options = f"size={config['disk_mb']}m,mode=755,nr_inodes={inodes}"
    mount("tmpfs", _NEW_ROOT, "tmpfs", _NOSUID | _NODEV, options)
    for path, target in links.items():
        inside(str(path)).symlink_to(target)
    for fd, target in opened + held:
        inside(target).mkdir(parents=True, exist_ok=True)
        bind(fd, inside(target), read_only=True)
    inside("/dev").mkdir()
    for fd, target in devices:
        inside(target).touch()
        bind(fd, inside(target), read_only=False)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        inside(f"/dev/{name}").symlink_to(f"/proc/self/{target}")
    inside("/proc").mkdir()
    bind(process_fs, inside("/proc"), read_only=False)
    for path in config["writable"]:
        inside(path).mkdir(parents=True, exist_ok=True)
        inside(path).chmod(0o700)
        os.chown(inside(path), user, group)


def inside(path: str) -> Path:
    """The name of a path of the new root; OSError if a link there leads elsewhere."""
    named = f"{_NEW_ROOT}{os.path.normpath('/' + path.lstrip('/'))}"
    if os.path.realpath(named) != named:
        raise OSError(f"{path} is a link, or below one")
    return Path(named)


def bind(fd: int, target: Path, *, read_only: bool) -> None:
    mount(f"/proc/self/fd/{fd}", target, None, _BIND | _RECURSIVE)
    os.close(fd)
    if read_only:
        kept = os.statvfs(target).f_flag & (_RDONLY | _NOSUID | _NODEV | _NOEXEC)
        mount(None, target, None, _BIND | _REMOUNT | _RDONLY | _NOSUID | _NODEV | kept)


def mount(
    source: str | None, target: str | Path, kind: str | None, flags: int, data: str = ""
) -> None:
    done = _libc.mount(
        source.encode() if source else None,
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        data.encode() or None,
    )
    check(done, f"mount {target}")


def unshare(flags: int) -> None:
    check(_libc.unshare(flags), "unshare")


def check(done: int, what: str) -> None:
    if done != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


# --- the box -------------------------------------------------------------------------------


class Confinement:
    """The supervisor of the box, its socket on descriptor 0, with everything denied that the
    box does not need; in a thread until it ends, with all that it started."""

    def __init__(self, control: socket.socket, config: dict[str, Any], number: str) -> None:
        self._control = control
        self._config = config
        self._number = number
        self.started = threading.Event()
        self.witness = Witness(config["processes"])
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def kill(self) -> None:
        """End it. The one child of this process is the supervisor; sandlock ends the rest."""
        for child in children_of(os.getpid()):
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _run(self) -> None:
        config = self._config
        readable = [f"/{name}" for name in _PROGRAMS if Path("/", name).exists()]
        readable += ["/proc", "/dev/zero", "/dev/random", "/dev/urandom"]
        readable += [target for _, target in config["mounts"]]
        box = Sandbox(
            fs_readable=readable,
            fs_writable=[*config["writable"], "/dev/null", "/dev/full"],
            cwd="/",
            clean_env=True,
            env={"HEADRACE_SANDBOX": config["id"]},
            max_memory=config["memory_mb"] * 2**20,
            max_open_files=config["open_files"],
            max_cpu=config["cpu_percent"],
            cpu_cores=config["cores"],
            net_allow=config["allow"],
            extra_deny_syscalls=list(_DENIED),
            name="box",
        )
        on_start = OnStart(self.witness)
        handlers: list[tuple[str, Handler]] = [(name, on_start) for name in _STARTS]
        handlers += [(name, OnKill(self.witness, which)) for name, which in _KILLS.items()]
        handlers.append(("execve", OnExec(self.started)))
        try:
            result = box.run_with_handlers(config["supervisor"], handlers)
        except (RuntimeError, ValueError) as error:
            self._end("failed", str(error))
        else:
            sys.stderr.buffer.write(result.stderr)
            sys.stderr.flush()
            self._end("failed" if result.error else "stopped", result.error)

    def _end(self, event: str, what: str | None) -> None:
        self.started.set()
        reap()
        tell(self._control, {"event": event, "n": self._number, "what": what})


def reap() -> None:
    """Collect what the dead supervisor left, all of it killed: until then it counts as tasks."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


class Witness:
    """Sees who kills whom, and refuses tasks beyond the limit; else nobody could say later why
    a command ended as it did.

    Tasks are counted when it could matter: after a count of `n`, the next `limit - n` starts
    cannot be too many.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sure = 0
        self._lock = threading.Lock()
        self._killed: dict[int, None] = {}
        self._refused: dict[int, None] = {}

    def why(self, pid: int, shepherd: int) -> dict[str, bool]:
        """Whether that process was killed from inside the box, and whether a task was refused
        below that shepherd."""
        with self._lock:
            return {"killed": pid in self._killed, "refused": shepherd in self._refused}

    def kills(self, caller: int, target: int) -> None:
        with self._lock:
            note(self._killed, os.getpgid(caller) if target == 0 else abs(target))

    def may_start(self, caller: int) -> bool:
        with self._lock:
            self._sure -= 1
            return self._sure >= 0 or not self._is_one_too_many(caller)

    def _is_one_too_many(self, caller: int) -> bool:
        """Count the tasks below the shepherds, which are the children of the one child of this
        process; note the shepherd of a caller for whom there is none left."""
        count = 0
        blamed = 0
        for supervisor in children_of(os.getpid()):
            for shepherd in children_of(supervisor):
                below = tasks_below(shepherd)
                count += len(below)
                if caller in below:
                    blamed = shepherd
        self._sure = max(0, self._limit - count - 1)
        if count < self._limit or blamed == 0:
            return False
        note(self._refused, blamed)
        return True


class OnExec(Handler):
    """Tells that the box has begun: its first process exists, and has the descriptors."""

    on_exception = ExceptionPolicy.CONTINUE

    def __init__(self, started: threading.Event) -> None:
        self._started = started

    def handle(self, ctx: HandlerCtx) -> NotifAction:
        self._started.set()
        return NotifAction.continue_()


class OnStart(Handler):
    on_exception = ExceptionPolicy.CONTINUE

    def __init__(self, witness: Witness) -> None:
        self._witness = witness

    def handle(self, ctx: HandlerCtx) -> NotifAction:
        if self._witness.may_start(ctx.pid):
            return NotifAction.continue_()
        return NotifAction.errno(errno.EAGAIN)


class OnKill(Handler):
    """`which` argument of the system call is the signal."""

    on_exception = ExceptionPolicy.CONTINUE

    def __init__(self, witness: Witness, which: int) -> None:
        self._witness = witness
        self._which = which

    def handle(self, ctx: HandlerCtx) -> NotifAction:
        if ctx.args[self._which] == signal.SIGKILL:
            self._witness.kills(ctx.pid, ctypes.c_int(ctx.args[0] & 0xFFFFFFFF).value)
        return NotifAction.continue_()


def note(seen: dict[int, None], number: int) -> None:
    """Remember a process, and forget the oldest of many."""
    seen.pop(number, None)
    seen[number] = None
    if len(seen) > _REMEMBERED:
        del seen[next(iter(seen))]


def tasks_below(root: int) -> set[int]:
    """The threads of all descendants."""
    found: set[int] = set()
    layer = children_of(root)
    while layer:
        pid = layer.pop()
        found.update(threads_of(pid))
        layer += children_of(pid)
    return found


def threads_of(pid: int) -> list[int]:
    try:
        return [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for thread in threads_of(pid):
        try:
            text = Path(f"/proc/{pid}/task/{thread}/children").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += [int(word) for word in text.split()]
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
    sys.stdout.flush()
    os._exit(0)
