"""The socket between a sandbox's owner and its supervisor, as asyncio futures."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence

from headrace.sandbox.oci import wire
from headrace.sandbox.spec import SandboxFailure, SandboxGone

__all__ = ["Control", "Died"]


class Died(SandboxGone):
    """The supervisor's end of the socket is closed: its container is no more."""


class Control:
    """The owner's end. Replies find their request by tag."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[wire.Reply]] = {}
        self._sockets: list[int] = []
        self._tag = 0
        self.alive = True
        self._loop.add_reader(end.fileno(), self._receive)

    def next_tag(self) -> int:
        """A number no earlier message had."""
        self._tag += 1
        return self._tag

    def expect(self, tag: int) -> asyncio.Future[wire.Reply]:
        """What will be answered to `tag`."""
        future = self._waiting[tag] = self._loop.create_future()
        return future

    def forget(self, tag: int) -> None:
        """Nobody waits for that answer any more."""
        self._waiting.pop(tag, None)

    async def send(self, message: bytes, fds: Sequence[int]) -> None:
        """Send a message with descriptors (Died if nobody is there)."""
        while True:
            try:
                socket.send_fds(self._socket, [message], list(fds))
                return
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except OSError as error:
                self.close()
                raise Died(str(error)) from error

    async def ask(self, op: wire.Op, *, timeout_s: float, port: int = 0) -> wire.Reply:
        """RESET, PING or LISTEN, and its answer (SandboxFailure after the deadline)."""
        tag = self.next_tag()
        future = self.expect(tag)
        try:
            await self.send(wire.request(op, tag, port=port), ())
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise SandboxFailure(f"the supervisor did not {op.name} in {timeout_s:g} s") from None
        finally:
            self.forget(tag)

    async def listen(self, port: int, *, timeout_s: float = 5.0) -> socket.socket:
        """A listening socket on the sandbox's own loopback, served from outside."""
        reply = await self.ask(wire.Op.LISTEN, timeout_s=timeout_s, port=port)
        if reply.kind is not wire.Kind.SOCKET:
            raise SandboxFailure(f"cannot listen inside: {os.strerror(reply.value)}")
        return socket.socket(fileno=self._sockets.pop())

    def close(self) -> None:
        """Hang up, which ends the container. Idempotent."""
        if not self.alive:
            return
        self.alive = False
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Died("the container ended"))
                future.exception()

    def _receive(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, wire.REPLY_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if not data:
            self.close()
            return
        for fd in fds:
            os.set_inheritable(fd, False)
        self._sockets += fds
        reply = wire.Reply.read(data)
        future = self._waiting.get(reply.tag)
        if future is not None and not future.done():
            future.set_result(reply)
