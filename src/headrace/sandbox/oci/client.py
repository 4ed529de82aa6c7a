"""The manager's side of the keeper: it is started on first use, and asked over a socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headrace import errors
from headrace.sandbox import spec
from headrace.sandbox.oci import rootless
from headrace.sandbox.oci.keeper import LONGEST_MESSAGE
from headrace.sandbox.spec import SandboxFailure
from headrace.sandbox.state import state_root

__all__ = ["Keeper", "homes"]

_END_S = 25.0


def homes() -> Path:
    """Where keepers have their directories."""
    path = state_root() / "oci"
    path.mkdir(exist_ok=True)
    return path


class Keeper:
    """A running keeper process, whose containers have their control groups in `cgroup`. Use from
    one event loop. `on_loss` is called when it is gone."""

    def __init__(self, runtime: str, cgroup: str, *, on_loss: Callable[[], None]) -> None:
        self._on_loss = on_loss
        self.cgroup = cgroup
        self.home = Path(tempfile.mkdtemp(dir=homes(), prefix="k"))
        for name in ("b", "r"):
            (self.home / name).mkdir()
        (self.home / "cgroup").write_text(self.cgroup)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * LONGEST_MESSAGE)
        with (self.home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(rootless.COMMAND if rootless.confined() else ()),
                    *(sys.executable, "-m", "headrace.sandbox.oci.keeper"),
                    *(str(theirs.fileno()), str(self.home), self.cgroup, runtime),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=_environment(),
            )
        theirs.close()
        ours.setblocking(False)
        self._socket = ours
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._tag = 0
        self.alive = True
        self._loop.add_reader(ours.fileno(), self._receive)

    async def ask(
        self, verb: str, *, fds: Sequence[int] = (), timeout_s: float = 60.0, **fields: Any
    ) -> Any:
        """Have it do something (SandboxFailure if it cannot, or does not in time)."""
        if not self.alive:
            raise self._lost()
        self._tag += 1
        tag = self._tag
        data = json.dumps({"tag": tag, "verb": verb, **fields}).encode()
        if len(data) > LONGEST_MESSAGE:
            raise SandboxFailure(f"a request of {len(data)} bytes", where=verb)
        future = self._waiting[tag] = self._loop.create_future()
        try:
            await self._send(data, fds)
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            await self._cancel(tag, verb)
            raise SandboxFailure(
                f"the sandbox keeper did not {verb} in {timeout_s:.0f} s",
                where=str(self.home / "log"),
            ) from None
        except asyncio.CancelledError:
            await self._cancel(tag, verb)
            raise
        finally:
            self._waiting.pop(tag, None)

    async def aclose(self) -> None:
        """End it, and with it all containers. Idempotent."""
        self._hang_up()
        deadline = self._loop.time() + _END_S
        while self._process.poll() is None:
            if self._loop.time() > deadline:
                self._process.kill()
                self._process.wait()
                raise SandboxFailure(
                    "the sandbox keeper did not end",
                    where=str(self.home / "log"),
                    hint="headrace sandbox reap",
                )
            await asyncio.sleep(0.005)

    def hang_up_now(self) -> None:
        """Tell it to end everything, without waiting; for when no event loop is left."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    async def _cancel(self, tag: int, verb: str) -> None:
        if verb == "copy" and self.alive:
            message = {"tag": 0, "verb": "cancel", "of": tag}
            with contextlib.suppress(OSError):
                self._socket.send(json.dumps(message).encode())

    async def _send(self, data: bytes, fds: Sequence[int]) -> None:
        while True:
            try:
                socket.send_fds(self._socket, [data], list(fds))
                return
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except OSError:
                self._hang_up()
                raise self._lost() from None

    def _receive(self) -> None:
        try:
            data = self._socket.recv(LONGEST_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._hang_up()
            return
        answer = json.loads(data)
        future = self._waiting.get(answer["tag"])
        if future is None or future.done():
            return
        if "error" in answer:
            kinds = {"UsageError": errors.UsageError, "SandboxRefused": spec.SandboxRefused}
            kind = kinds.get(answer["kind"], SandboxFailure)
            future.set_exception(kind(answer["error"]))
        else:
            future.set_result(answer["ok"])

    def _hang_up(self) -> None:
        if not self.alive:
            return
        self.alive = False
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._lost())
        self._on_loss()

    def _lost(self) -> SandboxFailure:
        return SandboxFailure(
            "the sandbox keeper is gone",
            where=str(self.home / "log"),
            hint="headrace sandbox doctor",
        )


def _environment() -> dict[str, str]:
    kept = ("PATH", "HOME", "LANG", "XDG_RUNTIME_DIR", "PYTHONPATH", "LD_LIBRARY_PATH")
    return {name: os.environ[name] for name in kept if name in os.environ}
