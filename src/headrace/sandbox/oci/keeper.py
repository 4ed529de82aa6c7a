"""The keeper: a process beside a manager that owns its containers, and outlives it just enough.

It starts containers through the OCI runtime, builds and exchanges their file trees, moves
archives, and removes everything. It is a process of its own because only one with a single
thread may visit mount namespaces, because its private mounts vanish with it, and because it
notices the manager's death: its socket ends, it ends every container, and leaves nothing.

Messages are JSON over a SOCK_SEQPACKET socket, `{"tag", "verb", ...}` down and `{"tag", "ok"}`
or `{"tag", "error", "kind"}` up; descriptors travel beside them. Run by `client.Keeper`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.sandbox.oci import archives, cgroups, mounts, rootless
from headrace.sandbox.oci.trees import Layer, Trees
from headrace.sandbox.spec import BoxLimits, SandboxFailure

__all__ = ["LONGEST_MESSAGE", "main"]

LONGEST_MESSAGE = 128 * 1024
_START_S = 60.0
_END_S = 20.0
_SPARE = 2
_CALM_S = 0.02
_MOST_CHORES = 48


@dataclass(slots=True)
class _Container:
    pid: int
    namespace: int
    groups: cgroups.Groups
    root: str | None = None


class _Keeper:
    def __init__(
        self, manager: socket.socket, home: Path, cgroup: str, runtime: list[str], root: Path
    ) -> None:
        self._manager = manager
        self._home = home
        self._cgroup = cgroup
        self._runtime = runtime
        self._root = root
        self._containers: dict[str, _Container] = {}
        self._ends: dict[int, asyncio.Future[int]] = {}
        self._early: dict[int, int] = {}
        self._children: dict[int, int] = {}
        self._starting: dict[str, asyncio.Task[Any]] = {}
        self._leaving: dict[str, asyncio.Task[Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._tidying: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()
        self._confined = rootless.confined()
        self._trees = Trees(home, userxattr=self._confined)
        if (v2 := cgroups.hybrid_v2()) and Path(runtime[0]).name == "crun":
            mounts.detach(str(v2))
        self._verbs: dict[str, Callable[[dict[str, Any], list[int]], Coroutine[Any, Any, Any]]] = {
            "start": self._start,
            "show": self._show,
            "drop": self._drop,
            "full": self._full,
            "copy": self._copy,
            "cancel": self._cancel,
            "stop": self._stop,
        }

    async def serve(self) -> None:
        """Until the manager is gone; then end everything."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._over.set)
        loop.add_reader(self._manager.fileno(), self._receive)
        await self._over.wait()
        loop.remove_reader(self._manager.fileno())
        self._manager.close()
        async with asyncio.timeout(_END_S):
            if self._starting:
                await asyncio.wait(list(self._starting.values()))
            await asyncio.gather(*(self._end(id) for id in list(self._containers)))
            if self._leaving:
                await asyncio.wait(list(self._leaving.values()))
        for task in self._tasks:
            task.cancel()
        self._trees.close()
        cgroups.remove_empty(self._cgroup)

    # --- messages --------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._manager, LONGEST_MESSAGE, 4)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if not data:
            self._over.set()
            return
        for fd in fds:
            os.set_inheritable(fd, False)
        self._background(self._handle(json.loads(data), fds))

    def _background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            traceback.print_exception(task.exception())
            self._over.set()

    async def _handle(self, message: dict[str, Any], fds: list[int]) -> None:
        answer: dict[str, Any] = {"tag": message["tag"]}
        try:
            answer["ok"] = await self._verbs[message["verb"]](message, fds)
        except HeadraceError as error:
            answer |= {"error": str(error), "kind": type(error).__name__}
        except OSError as error:
            text = f"{message['verb']}: {error.strerror} ({error.filename})"
            answer |= {"error": text, "kind": "SandboxFailure"}
        finally:
            for fd in fds:
                os.close(fd)
        with contextlib.suppress(BrokenPipeError):
            await asyncio.get_running_loop().sock_sendall(
                self._manager, json.dumps(answer).encode()
            )
        self._tidy_soon()

    def _tidy_soon(self) -> None:
        """Chores are for when nobody asks for anything, but they are not put off for ever."""
        if self._tidying is not None:
            self._tidying.cancel()
        self._trees.tidy(leave=_MOST_CHORES)
        if self._trees.untidy:
            loop = asyncio.get_running_loop()
            self._tidying = loop.call_later(_CALM_S, self._trees.tidy)

    # --- processes -------------------------------------------------------------------------

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            future = self._ends.pop(pid, None)
            if future is None:
                self._early[pid] = status
            elif not future.done():
                future.set_result(status)

    async def _ended(self, pid: int) -> int:
        """The wait status of a child, once it ended."""
        if pid in self._early:
            return self._early.pop(pid)
        future = self._ends.setdefault(pid, asyncio.get_running_loop().create_future())
        return await asyncio.shield(future)

    async def _run(self, argv: list[str], log: Path, *, control: int | None = None) -> None:
        """Run the runtime to its end (SandboxFailure with what it said)."""
        actions: list[tuple[Any, ...]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        if control is not None:
            actions.append((os.POSIX_SPAWN_DUP2, control, 3))
        pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=actions)
        try:
            async with asyncio.timeout(_START_S):
                status = await self._ended(pid)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise SandboxFailure(
                f"the runtime did not answer in {_START_S:.0f} s", where=" ".join(argv)
            ) from None
        if status:
            said = log.read_text(errors="replace").strip()[-2000:]
            raise SandboxFailure(f"the runtime failed: {said}", where=" ".join(argv))

    # --- containers ------------------------------------------------------------------------

    async def _start(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        id = str(message["id"])
        task = asyncio.current_task()
        assert task is not None
        self._starting[id] = task
        try:
            if id in self._leaving:
                await asyncio.wait([self._leaving[id]])
            return await self._start_now(id, message, fds[0])
        finally:
            del self._starting[id]

    async def _start_now(self, id: str, message: dict[str, Any], control: int) -> dict[str, Any]:
        limits = BoxLimits(**message["limits"])
        bundle = self._home / "b" / id
        bundle.mkdir(parents=True)
        (bundle / "config.json").write_text(json.dumps(message["config"]))
        pid_file = bundle / "pid"
        argv = [*self._runtime, "run", "--detach", "--preserve-fds", "1"]
        argv += ["--pid-file", str(pid_file), "--bundle", str(bundle), id]
        try:
            if self._confined:  # each time: another manager's keeper may have removed it
                cgroups.reserve(self._cgroup)
            await self._run(argv, bundle / "log", control=control)
            pid = int(pid_file.read_text())
            groups = cgroups.find(pid, f"{self._cgroup}/{id}")
            groups.forbid_swap()
            if wrong := groups.enforced(limits, spare=_SPARE):
                raise SandboxFailure(
                    f"the runtime does not enforce limits: {'; '.join(wrong)}",
                    where=" ".join(self._runtime),
                    hint="headrace sandbox doctor",
                )
            namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            await self._clean(id, pid_file)
            raise
        self._containers[id] = _Container(pid, namespace, groups)
        paths = {name: str(path) for name, path in groups.by_controller.items()}
        return {"pid": pid, "groups": paths, "v2": groups.v2}

    async def _stop(self, message: dict[str, Any], fds: list[int]) -> None:
        id = str(message["id"])
        if id in self._starting:
            await asyncio.wait([self._starting[id]])
        await self._end(id)

    async def _end(self, id: str) -> None:
        container = self._containers.pop(id, None)
        if container is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(container.pid, signal.SIGKILL)
        async with asyncio.timeout(_END_S):
            await self._ended(container.pid)
        os.close(container.namespace)
        container.groups.remove()
        self._leaving[id] = self._background(self._forget_later(id))

    async def _clean(self, id: str, pid_file: Path) -> None:
        """After a failed start: whatever part of the container exists."""
        if pid_file.exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid_file.read_text()), signal.SIGKILL)
        cgroups.sweep(self._cgroup, lambda name: name == id)
        await self._forget(id)

    async def _forget_later(self, id: str) -> None:
        """What a dead container leaves of the runtime's; a failure keeps it for the next sweep."""
        try:
            await self._forget(id)
        except (SandboxFailure, OSError) as error:
            print(f"{id}: {error}", file=sys.stderr, flush=True)
        finally:
            del self._leaving[id]

    async def _forget(self, id: str) -> None:
        """Have the runtime remove its own record of a container that is dead."""
        bundle = self._home / "b" / id
        record = self._root / id
        if record.exists():
            await self._run([*self._runtime, "delete", "--force", id], bundle / "log")
        shutil.rmtree(bundle)

    # --- trees -----------------------------------------------------------------------------

    async def _show(self, message: dict[str, Any], fds: list[int]) -> int:
        """Put a tree with a new live layer into a container; `size_mb` makes its scratch.

        Answers at which of the two places it is.
        """
        container = self._container(message)
        live, image = Layer(*message["live"]), Path(message["image"])
        if size := message["size_mb"]:
            self._trees.scratch(live.scratch, size)
        if message["frozen"]:
            self._trees.next_layer(live)
        else:
            points = [target for _, target in message["programs"]]
            self._trees.first_layer(
                live, image, message["workdir"], message["uid"], points, online=message["online"]
            )
        old, container.root = container.root, None
        new = "/box1" if old == "/box0" else "/box0"
        self._trees.show(
            container.namespace,
            live,
            [Layer(*pair) for pair in message["frozen"]],
            image,
            [(source, target) for source, target in message["programs"]],
            at=new,
            instead_of=old,
        )
        container.root = new
        for scratch in message["drop"]:
            self._trees.drop_scratch(int(scratch))
        if message["without"]:
            asyncio.get_running_loop().call_soon(self._delete, Layer(*message["without"]))
        return int(new == "/box1")

    def _delete(self, layer: Layer) -> None:
        self._background(self._ended(self._trees.delete_layer(layer)))

    async def _drop(self, message: dict[str, Any], fds: list[int]) -> None:
        for scratch in message["scratches"]:
            self._trees.drop_scratch(int(scratch))

    async def _full(self, message: dict[str, Any], fds: list[int]) -> bool:
        return self._trees.full(int(message["scratch"]))

    # --- archives --------------------------------------------------------------------------

    async def _copy(self, message: dict[str, Any], fds: list[int]) -> dict[str, str]:
        """One of the functions of `archives`, in a child that became the sandbox's user."""
        container = self._container(message)
        path, limit = str(message["path"]), int(message.get("limit", 0))
        moves: dict[str, Callable[[], None]] = {
            "copy_in": lambda: archives.copy_in(fds[0], path),
            "copy_out": lambda: archives.copy_out(path, fds[0], limit),
        }
        move = moves[message["move"]]
        root = container.root
        if root is None:
            raise SandboxFailure("the sandbox has no file tree", where=str(message["id"]))
        reader, writer = os.pipe2(os.O_CLOEXEC)

        def work() -> None:
            archives.become(
                container.namespace, root, container.groups.joining, int(message["uid"])
            )
            move()

        child = archives.in_child(work, writer, [*fds, container.namespace])
        os.close(writer)
        self._children[message["tag"]] = child
        try:
            status = await self._ended(child)
            said = os.read(reader, 4096)
        finally:
            del self._children[message["tag"]]
            os.close(reader)
        if not said:
            raise SandboxFailure(f"moving files ended with status {status}", where=path)
        answer: dict[str, str] = json.loads(said)
        return answer

    async def _cancel(self, message: dict[str, Any], fds: list[int]) -> None:
        child = self._children.get(message["of"])
        if child is not None:
            os.kill(child, signal.SIGKILL)

    def _container(self, message: dict[str, Any]) -> _Container:
        container = self._containers.get(str(message["id"]))
        if container is None:
            raise SandboxFailure("no such container", where=str(message["id"]))
        return container


async def _serve(
    manager: socket.socket, home: Path, cgroup: str, runtime: list[str], root: Path
) -> None:
    await _Keeper(manager, home, cgroup, runtime, root).serve()


def main() -> int:
    """`python -m headrace.sandbox.oci.keeper SOCKET HOME CGROUP RUNTIME`; serves until its end."""
    descriptor, home, cgroup = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    root = home / "r"
    runtime = [sys.argv[4], "--root", str(root)]
    lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    mounts.adopt_orphans()
    manager = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    manager.setblocking(False)
    asyncio.run(_serve(manager, home, cgroup, runtime, root))
    os.chdir("/")
    shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
