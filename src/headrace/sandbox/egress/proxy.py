"""The only way out of a sandbox with an allow-list: an HTTP proxy that runs on the host.

It serves a socket that listens inside the sandbox's network namespace, which has no other
route. Whatever arrives there is hostile: heads are bounded and parsed strictly, names are
checked before they are resolved, and the address that was checked is the one connected to, so
that a name that changes its address (DNS rebinding) gains nothing. What a host that is allowed
does with the bytes is not looked at: who may reach one host of a shared front may reach all.

May be known by backends; knows no sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import ipaddress
import os
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType

from headrace.sandbox.egress.allowlist import Address, AllowList, Endpoint
from headrace.sandbox.egress.http import (
    BadMessage,
    Request,
    parse_request,
    parse_response,
    send_body,
)
from headrace.sandbox.spec import SandboxFailure

__all__ = ["EgressProxy", "ProxyLimits", "ProxyStats", "listen_in_namespace"]

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host, as text; OSError where there are none."""

_PIECE = 1 << 16
_NAMES_KEPT = 128
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimits:
    """What a client inside may take: bytes of one head, connections at a time, and seconds for
    its head to arrive, for a host to be found and connected to, without a byte in either
    direction, and for one direction after the other has ended."""

    head_bytes: int = 16384
    connections: int = 64
    head_s: float = 10.0
    connect_s: float = 10.0
    idle_s: float = 60.0
    linger_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyStats:
    """Bytes of bodies and tunnels to hosts and back, connections so far and now, and refused
    `host:port` with how often (of the first 128 that differ)."""

    sent: int
    received: int
    connections: int
    active: int
    refused: Mapping[str, int] = field(default_factory=dict[str, int])


class EgressProxy:
    """Lets through what `allow` names (see `Network.allow`; UsageError if that is malformed).

    An address that is not public is reached only if it is listed itself with that port, or as
    `localhost:PORT`. Answers 403 with a reason to everything else.
    """

    def __init__(
        self,
        allow: Sequence[str],
        *,
        limits: ProxyLimits = ProxyLimits(),
        resolve: Resolver | None = None,
    ) -> None:
        self._allow = AllowList(allow)
        self._limits = limits
        self._resolve = resolve or self._system_resolve
        self._threads: ThreadPoolExecutor | None = None
        self._sockets: list[socket.socket] = []
        self._accepting: set[asyncio.Task[None]] = set()
        self._clients: set[asyncio.Task[None]] = set()
        self._closed = False
        self._sent = 0
        self._received = 0
        self._connections = 0
        self._refused: Counter[str] = Counter()

    async def serve(self, sock: socket.socket) -> None:
        """Serve what connects to `sock`, a listening TCP socket that is the proxy's from now
        on. Returns at once; may be called for several sockets."""
        if self._closed:
            sock.close()
            raise SandboxFailure("the egress proxy is closed")
        sock.setblocking(False)
        self._sockets.append(sock)
        self._spawn(self._accept(sock), self._accepting)

    def stats(self) -> ProxyStats:
        """The counters now."""
        return ProxyStats(
            sent=self._sent,
            received=self._received,
            connections=self._connections,
            active=len(self._clients),
            refused=MappingProxyType(dict(self._refused)),
        )

    async def aclose(self) -> None:
        """End all connections and stop listening. Idempotent; no task is left."""
        self._closed = True
        tasks = self._accepting | self._clients
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # aborted transports close their sockets in the next turn
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _spawn(
        self, work: Coroutine[None, None, None], into: set[asyncio.Task[None]]
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        into.add(task)
        task.add_done_callback(into.discard)
        return task

    async def _accept(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, _ = await loop.sock_accept(sock)
            except (ConnectionError, TimeoutError):
                continue
            except OSError:
                await asyncio.sleep(0.1)
                continue
            self._connections += 1
            if len(self._clients) >= self._limits.connections:
                _turn_away(peer)
            else:
                task = self._spawn(self._client(peer), self._clients)
                task.add_done_callback(lambda _, peer=peer: peer.close())

    async def _client(self, peer: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=peer, limit=self._limits.head_bytes)
        except OSError:
            return
        try:
            await self._answer(reader, writer)
        except BadMessage as bad:
            await self._say(reader, writer, bad)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = parse_request(await self._head(reader))
        host_reader, host_writer = await self._connect(request.end)
        try:
            if request.tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await self._tunnel(_Ends(reader, writer), _Ends(host_reader, host_writer))
            else:
                await self._exchange(
                    request, _Ends(reader, writer), _Ends(host_reader, host_writer)
                )
        finally:
            host_writer.transport.abort()

    async def _head(self, reader: asyncio.StreamReader) -> bytes:
        try:
            async with asyncio.timeout(self._limits.head_s):
                return await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise BadMessage("the head is too large", 431) from None
        except TimeoutError:
            raise BadMessage("the head did not arrive in time", 408) from None

    # --- to the host -----------------------------------------------------------------------

    async def _connect(self, end: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not self._allow.names(end) or end.port is None:
            raise self._refusal(end, f"{end} is not in this sandbox's allow-list")
        try:
            async with asyncio.timeout(self._limits.connect_s):
                found = await self._addresses(end, end.port)
                allowed = [one for one in found if self._allow.reaches(end, one)]
                if not allowed:
                    raise self._refusal(end, f"{end} has no public address")
                return await self._first(end, end.port, allowed)
        except TimeoutError:
            raise BadMessage(f"{end} did not answer in time", 504) from None

    async def _addresses(self, end: Endpoint, port: int) -> list[Address]:
        if end.address is not None:
            return [end.address]
        try:
            return [ipaddress.ip_address(text) for text in await self._resolve(end.host, port)]
        except (OSError, ValueError):
            raise BadMessage(f"{end.host} cannot be found", 502) from None

    async def _first(
        self, end: Endpoint, port: int, addresses: Sequence[Address]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for address in addresses:
            try:
                reader, writer = await asyncio.open_connection(
                    str(address), port, limit=4 * self._limits.head_bytes
                )
            except OSError:
                continue
            if self._is_this_machine(writer) and not self._may_be_local(end, address):
                writer.transport.abort()
                raise self._refusal(end, f"{end} is the machine of the sandbox itself")
            return reader, writer
        raise BadMessage(f"{end} cannot be connected to", 502)

    @staticmethod
    def _is_this_machine(writer: asyncio.StreamWriter) -> bool:
        own, other = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
        return own is not None and other is not None and own[0] == other[0]

    def _may_be_local(self, end: Endpoint, address: Address) -> bool:
        return self._allow.lists(address, end.port) or address.is_loopback

    def _refusal(self, end: Endpoint, why: str) -> BadMessage:
        if str(end) in self._refused or len(self._refused) < _NAMES_KEPT:
            self._refused[str(end)] += 1
        return BadMessage(why, 403)

    async def _system_resolve(self, host: str, port: int) -> Sequence[str]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(2, thread_name_prefix="egress-resolve")
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    # --- both ways -------------------------------------------------------------------------

    async def _tunnel(self, client: _Ends, host: _Ends) -> None:
        line = _Line()
        await self._until_idle(
            line,
            self._pump(client.reader, host.writer, line, self._count_sent),
            self._pump(host.reader, client.writer, line, self._count_received),
            linger_s=self._limits.linger_s,
        )

    async def _exchange(self, request: Request, client: _Ends, host: _Ends) -> None:
        line = _Line()
        if request.waits and request.length != 0:
            client.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        host.writer.write(request.forward)
        await self._until_idle(
            line,
            self._response(client, host, line),
            self._body(request, client, host, line),
            linger_s=self._limits.idle_s,
        )
        if not line.answered:
            raise BadMessage(f"{request.end} did not answer in time", 504)
        await _read_off(client.reader)

    async def _body(self, request: Request, client: _Ends, host: _Ends, line: _Line) -> None:
        def sent(count: int) -> None:
            line.touch()
            self._count_sent(count)

        with contextlib.suppress(OSError):  # a host may answer and close before it has read all
            await send_body(client.reader, host.writer, request.length, sent)

    async def _response(self, client: _Ends, host: _Ends, line: _Line) -> None:
        status = 100
        head = b""
        while status < 200:
            try:
                raw = await host.reader.readuntil(b"\r\n\r\n")
            except asyncio.LimitOverrunError:
                raise BadMessage("the head of the host's answer is too large", 502) from None
            except (asyncio.IncompleteReadError, OSError):
                raise BadMessage("the host closed before it answered", 502) from None
            status, head = parse_response(raw)
            if status == 101:
                raise BadMessage("the host changed the protocol without being asked", 502)
        line.answered = True
        client.writer.write(head)
        await self._pump(host.reader, client.writer, line, self._count_received)
        line.over = True

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        line: _Line,
        count: Callable[[int], None],
    ) -> None:
        while piece := await reader.read(_PIECE):
            line.touch()
            writer.write(piece)
            await writer.drain()
            line.touch()
            count(len(piece))
        writer.write_eof()
        await _flushed(writer)

    async def _until_idle(
        self, line: _Line, *ways: Coroutine[None, None, None], linger_s: float
    ) -> None:
        """Run both ways until they end, the answer is complete, one fails, or no byte has moved
        for the deadline, which is `linger_s` when only one way is left."""
        loop = asyncio.get_running_loop()
        left = {loop.create_task(way) for way in ways}
        tasks = tuple(left)
        try:
            while left and not line.over:
                both = len(left) == len(tasks)
                patience = self._limits.idle_s if both else min(self._limits.idle_s, linger_s)
                remaining = line.last + patience - loop.time()
                if remaining <= 0:
                    break
                done, left = await asyncio.wait(
                    left, timeout=remaining, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    _raise_of(task, line)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _count_sent(self, count: int) -> None:
        self._sent += count

    def _count_received(self, count: int) -> None:
        self._received += count

    # --- refusing --------------------------------------------------------------------------

    async def _say(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bad: BadMessage
    ) -> None:
        with contextlib.suppress(OSError):
            writer.write(_answer_of(bad))
            writer.write_eof()
            await _read_off(reader)


@dataclass(frozen=True, slots=True)
class _Ends:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class _Line:
    """When a byte moved last; for an exchange, whether its answer began and is over."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.last = self._loop.time()
        self.answered = False
        self.over = False

    def touch(self) -> None:
        self.last = self._loop.time()


def _raise_of(task: asyncio.Task[None], line: _Line) -> None:
    error = task.exception()
    if isinstance(error, BadMessage) and line.answered:
        raise ConnectionAbortedError(error.why)
    if error is not None:
        raise error


async def _read_off(reader: asyncio.StreamReader) -> None:
    """Read on for a moment: closing on unread bytes would reset the connection before the
    client has read its answer."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(1.0):
            for _ in range(16):
                if not await reader.read(_PIECE):
                    return


async def _flushed(writer: asyncio.StreamWriter) -> None:
    """Wait until what was written is with the kernel (drain alone leaves up to 64 KiB)."""
    writer.transport.set_write_buffer_limits(0)
    await writer.drain()


def _answer_of(bad: BadMessage) -> bytes:
    text = f"headrace: {bad.why}\n".encode("ascii", "replace")
    head = (
        f"HTTP/1.1 {bad.status} {HTTPStatus(bad.status).phrase}\r\n"
        "Content-Type: text/plain\r\n"
        f"Content-Length: {len(text)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + text


def _turn_away(peer: socket.socket) -> None:
    with contextlib.suppress(OSError):
        peer.setblocking(False)
        peer.send(_answer_of(BadMessage("too many connections at a time", 503)))
    peer.close()


def listen_in_namespace(pid: int) -> socket.socket:
    """A socket that listens on a free port of 127.0.0.1 in the network namespace of process
    `pid`. Needs the right to enter it; raises SandboxFailure without."""
    made: list[socket.socket | OSError] = []

    def enter() -> None:
        try:
            made.append(_listen_inside(pid))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=enter, name="egress-listen")
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise SandboxFailure(
            f"cannot listen in the sandbox's network namespace: {made[0].strerror}",
            where=f"/proc/{pid}/ns/net",
            hint="an allow-list needs root here",
        ) from made[0]
    return made[0]


def _listen_inside(pid: int) -> socket.socket:
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return socket.create_server(("127.0.0.1", 0), backlog=128)
    finally:
        os.close(namespace)
