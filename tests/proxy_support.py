from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from headrace.sandbox.egress.proxy import EgressProxy, ProxyLimits

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    head: bytes
    body: bytes


@asynccontextmanager
async def origin(serve: Serve) -> AsyncGenerator[int]:
    """A server on the loopback that handles each connection with `serve`; its port."""
    tasks: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            tasks.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for _ in range(200):
            if not tasks:
                break
            await asyncio.sleep(0.01)


@asynccontextmanager
async def proxy(
    allow: Sequence[str],
    *,
    limits: ProxyLimits | None = None,
    names: dict[str, list[str]] | None = None,
) -> AsyncGenerator[tuple[EgressProxy, int]]:
    """A proxy that listens on the loopback and resolves `names` only; and its port."""

    async def resolve(host: str, port: int) -> list[str]:
        if names is None or host not in names:
            raise OSError("no such name")
        return names[host]

    made = EgressProxy(allow, limits=limits or ProxyLimits(), resolve=resolve)
    sock = socket.create_server(("127.0.0.1", 0))
    await made.serve(sock)
    try:
        yield made, sock.getsockname()[1]
    finally:
        await made.aclose()


async def send(port: int, raw: bytes, *, end: bool = False) -> Reply:
    """Send `raw` and read until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw)
        if end:
            writer.write_eof()
        async with asyncio.timeout(10):
            answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return Reply(int(head[9:12] or b"0"), head, body)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65536):
        writer.write(piece)
        await writer.drain()


def recorder(seen: list[bytes], answer: bytes) -> Serve:
    """A host that keeps what it was sent, until a pause or the end, and gives `answer`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got = b""
        try:
            while piece := await asyncio.wait_for(reader.read(65536), 0.2):
                got += piece
        except TimeoutError:
            pass
        seen.append(got)
        writer.write(answer)
        await writer.drain()

    return serve
