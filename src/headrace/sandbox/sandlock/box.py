"""The host's end of a sandlock box: its runner process, and commands sent to what is inside.

May be known by the sandlock backend; knows the two programs `runner` (beside the box)
and `inside` (in it), which it starts and talks to by sockets.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.sandbox.process import in_thread, kill_tree
from headrace.sandbox.spec import SandboxFailure, SandboxGone, SandboxRefused

__all__ = ["Box", "Run"]

_HERE = Path(__file__).parent
_START_S = 30.0
_STOP_S = 10.0
_KILL_S = 5.0


@dataclass(frozen=True, slots=True)
class Run:
    """A command that was started, and the message of its end to come."""

    number: int
    ended: asyncio.Future[Mapping[str, Any]]

    @property
    def message(self) -> Mapping[str, Any]:
        """How it ended; empty if nobody is left who could say."""
        return self.ended.result() if self.ended.done() else {}


class Channel:
    """A socket of whole messages: JSON, sent in a descriptor so that its size is no matter."""

    def __init__(self, end: socket.socket, on_close: Callable[[], None] | None = None) -> None:
        end.setblocking(False)
        self._on_close = on_close
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self.closed = False
        self._loop.add_reader(end, self._receive)

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Raises OSError where nobody listens any more."""
        body = os.memfd_create("message", os.MFD_CLOEXEC)
        try:
            os.write(body, json.dumps(message).encode())
            socket.send_fds(self._end, [b"+"], [body, *fds])
        finally:
            os.close(body)

    def expect(self, key: str) -> asyncio.Future[Mapping[str, Any]]:
        """The message of that key; an empty one if the channel closes before it comes."""
        future = self._loop.create_future()
        if self.closed:
            future.set_result({})
        else:
            self._waiting[key] = future
        return future

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._end)
            self._end.close()
            for future in self._waiting.values():
                if not future.done():
                    future.set_result({})
            if self._on_close is not None:
                self._on_close()

    def _receive(self) -> None:
        try:
            body = self._end.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionResetError:
            body = b""
        if not body:
            self.close()
            return
        message = json.loads(body)
        key = str(message.get("n", "state"))
        future = self._waiting.pop(key, None)
        if future is not None and not future.done():
            future.set_result(message)


class Box:
    """A runner and, while it has one, a confined supervisor with its processes.

    The file tree is the runner's: it outlives the processes, which `stop` ends all at once.
    """

    def __init__(self, config: Mapping[str, Any], tag: str, user: int) -> None:
        self._config = config
        self._tag = tag
        self._user = user
        self._number = 0
        self._inside: Channel | None = None
        self._over: asyncio.Future[Mapping[str, Any]] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._runner = subprocess.Popen(
                [sys.executable, "-I", str(_HERE / "runner.py"), *_packages()],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=dict([tag.split("=", 1)]),
                start_new_session=True,
            )
        self._control = Channel(ours, self._close_inside)

    @property
    def python(self) -> list[str]:
        """The program, and its first arguments, that does work on files inside."""
        return list(self._config["supervisor"])

    @property
    def alive(self) -> bool:
        """Whether the file tree is still there."""
        return not self._control.closed

    @property
    def running(self) -> bool:
        """Whether commands can be started now."""
        return self._inside is not None and not self._inside.closed

    async def enter(self) -> None:
        """Make the file tree. Raises SandboxRefused if this machine does not let us."""
        answer = await self._ask(self._config, "entering")
        if answer.get("event") != "entered":
            raise SandboxRefused(
                f"no private view of the machine: {answer.get('what') or self._last_words()}",
                where=self._tag,
                hint="sandlock boxes need user namespaces, or root",
            )

    async def launch(self) -> None:
        """Start the confined supervisor, after all that ran before has ended.

        Raises SandboxFailure.
        """
        await self.stop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        inside = Channel(ours)
        ready = inside.expect("state")
        self._number += 1
        name = f"start {self._number}"
        self._over = self._control.expect(name)
        try:
            with theirs:
                self._send({"op": "start", "n": name}, [theirs.fileno()])
            both = {ready, self._over}
            await asyncio.wait(both, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done() or not ready.result():
                what = self._over.result().get("what", "") if self._over.done() else "no answer"
                raise SandboxFailure(
                    f"a box did not start: {what} {self._last_words()}", where=self._tag
                )
        except BaseException:
            inside.close()
            raise
        self._inside = inside

    async def stop(self) -> None:
        """End every process in the box; the file tree stays. Raises SandboxGone if it is lost."""
        if self._over is not None:
            if not self._over.done():
                self._send({"op": "stop"})
            await self._within(self._over, _STOP_S, "stopping")
            self._over = None
        if self._inside is not None:
            self._inside.close()
            self._inside = None

    async def survived(self) -> bool:
        """Whether the runner saw its box end: then something inside ended it, not the machine."""
        if self._over is None:
            return self.alive
        return bool(await self._within(self._over, _STOP_S, "ending"))

    def run(self, request: Mapping[str, Any], fds: Sequence[int]) -> Run:
        """Start a command with these three streams, in a box that runs."""
        self._number += 1
        if self._inside is None:
            raise SandboxGone("the box was stopped", where=self._tag)
        run = Run(self._number, self._inside.expect(str(self._number)))
        try:
            self._inside.send({**request, "op": "run", "n": run.number}, fds)
        except OSError:
            self._inside.close()
        return run

    async def why(self, run: Run) -> Mapping[str, Any]:
        """What the runner saw of a command that failed: `killed` by a process of the box, and
        `refused` a task at the limit. Empty if nobody can say."""
        self._number += 1
        name = f"why {self._number}"
        answer = self._control.expect(name)
        of = {key: run.message[key] for key in ("pid", "by") if key in run.message}
        if not self.alive or len(of) < 2:
            return {}
        self._send({"op": "why", "n": name, **of})
        return await self._within(answer, _STOP_S, "asking")

    async def kill(self, run: Run) -> None:
        """End all that a command started; the whole box if that does not work."""
        if self._inside is None or self._inside.closed:
            return
        done = self._inside.expect(f"kill {run.number}")
        try:
            self._inside.send({"op": "kill", "n": run.number})
        except OSError:
            self._inside.close()
        await asyncio.wait({done}, timeout=_KILL_S)
        if not done.done() or done.result().get("event") == "stuck":
            await self.stop()
        else:
            await asyncio.wait({run.ended}, timeout=_KILL_S)

    async def ping(self, timeout_s: float) -> None:
        """Raises SandboxGone if the box does not answer in time."""
        if not self.alive:
            raise SandboxGone("its runner is gone", where=self._tag)
        if self._inside is None:
            raise SandboxGone("the box was stopped", where=self._tag)
        answer = self._inside.expect("ping")
        try:
            self._inside.send({"op": "ping", "n": "ping"})
            await asyncio.wait_for(answer, timeout_s)
        except (TimeoutError, OSError):
            raise SandboxGone("it does not answer", where=self._tag) from None

    async def close(self) -> None:
        """End everything. Idempotent."""
        self._control.close()
        try:
            await in_thread(lambda: self._runner.wait(_STOP_S))
        except subprocess.TimeoutExpired:
            self._runner.kill()
        finally:
            kill_tree(self._tag, user=self._user)
            self._runner.wait()
            self._errors.close()

    def _close_inside(self) -> None:
        """Without a runner nothing in the box can go on: it waits for answers for ever."""
        if self._inside is not None:
            self._inside.close()

    def _send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        try:
            self._control.send(message, fds)
        except OSError as error:
            raise SandboxGone(
                f"its runner is gone: {self._last_words()}", where=self._tag
            ) from error

    async def _ask(self, message: Mapping[str, Any], what: str) -> Mapping[str, Any]:
        answer = self._control.expect("state")
        self._send(message)
        return await self._within(answer, _START_S, what)

    async def _within(
        self, answer: asyncio.Future[Mapping[str, Any]], seconds: float, what: str
    ) -> Mapping[str, Any]:
        try:
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError:
            raise SandboxFailure(
                f"no answer in {seconds:.0f} s ({what})", where=self._tag
            ) from None

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-400:].decode("utf-8", "replace").strip()


def _packages() -> list[str]:
    """Where sandlock is, for a runner that is isolated from the environment."""
    found = importlib.util.find_spec("sandlock")
    return [] if found is None or found.origin is None else [str(Path(found.origin).parents[1])]
