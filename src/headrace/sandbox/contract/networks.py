"""Promises about networks: what is declared is given, and nothing more.

Judged with servers on this machine. A backend whose sandboxes are on another machine cannot be
told apart from one that gives no network: that is `Unchecked`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from headrace.sandbox.contract.kit import Broken, Check, Lab, Unchecked, expect, promise
from headrace.sandbox.spec import Capabilities, Network, Sandbox

__all__ = ["PROMISES"]

_PROBE = """
if command -v python3 >/dev/null; then
  python3 -c 'import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)
s.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
print(s.makefile().read())' "$1" "$2"
elif command -v bash >/dev/null; then
  bash -c 'exec 3<>/dev/tcp/$0/$1 && printf "GET / HTTP/1.0\\r\\n\\r\\n" >&3 && cat <&3' "$1" "$2"
elif command -v nc >/dev/null; then printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 3 "$1" "$2"
else exit 99; fi
"""
_FETCH = """
if command -v python3 >/dev/null; then
  python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read())' "$1"
elif command -v curl >/dev/null; then curl -s -m 5 "$1"
elif command -v wget >/dev/null; then wget -q -O - "$1"
else exit 99; fi
"""
_NO_PROGRAM = 99


@dataclass(frozen=True, slots=True)
class _Server:
    """A server of this machine that says `word`."""

    host: str
    port: int
    word: str

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/"


def _addresses() -> list[str]:
    """Of this machine: loopback, and the one that leads outside, if there is one."""
    found = ["127.0.0.1"]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        found.append(probe.getsockname()[0])
    return list(dict.fromkeys(found))


@contextlib.asynccontextmanager
async def _serving(host: str) -> AsyncGenerator[_Server]:
    word = secrets.token_hex(8)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await reader.readuntil(b"\r\n\r\n")
            head = f"HTTP/1.0 200 OK\r\nContent-Length: {len(word)}\r\n\r\n"
            writer.write((head + word).encode())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, host, 0)
    try:
        yield _Server(host, server.sockets[0].getsockname()[1], word)
    finally:
        server.close()
        await server.wait_closed()


async def _reaches(box: Sandbox, server: _Server) -> bool:
    result = await box.exec(["sh", "-c", _PROBE, "sh", server.host, str(server.port)], timeout_s=20)
    if result.exit_code == _NO_PROGRAM:
        raise Unchecked("the image has no python3, bash or nc to connect with")
    return server.word in result.stdout.text


async def _fetches(box: Sandbox, server: _Server) -> bool:
    result = await box.exec(["sh", "-c", _FETCH, "sh", server.url], timeout_s=30)
    if result.exit_code == _NO_PROGRAM:
        raise Unchecked("the image has no python3, curl or wget to fetch with")
    return server.word in result.stdout.text


def _no(kind: str) -> Callable[[Capabilities], str]:
    return lambda can: "" if kind in can.networks else f"no network of the kind {kind}"


def _refused(network: Network) -> Check:
    async def refused(lab: Lab) -> None:
        await lab.refuses(f"network {network.kind}", network=network)

    return refused


@promise(lacks=_no("none"), refused=_refused(Network()))
async def no_network(lab: Lab) -> None:
    """Without network nothing of this machine is reached, and no name is found."""
    box = await lab.sandbox(network=Network())
    for address in _addresses():
        async with _serving(address) as server:
            expect(not await _reaches(box, server), f"a server on {address} is reached")


@promise(lacks=_no("full"), refused=_refused(Network(kind="full")))
async def full_network(lab: Lab) -> None:
    """With full network a server of this machine is reached."""
    box = await lab.sandbox(network=Network(kind="full"))
    for address in reversed(_addresses()):
        async with _serving(address) as server:
            if await _reaches(box, server):
                return
    raise Unchecked("no server of this machine is reached: is the sandbox on another one?")


@promise(
    lacks=_no("allow-list"),
    refused=_refused(Network(kind="allow-list", allow=("example.org",))),
)
async def allowed_hosts(lab: Lab) -> None:
    """With an allow-list its hosts are reached through the proxy, and nothing else is at all."""
    host = _addresses()[-1]
    async with _serving(host) as allowed, _serving(host) as denied:
        network = Network(kind="allow-list", allow=(f"{allowed.host}:{allowed.port}",))
        box = await lab.sandbox(network=network)
        if await _fetches(box, denied) or await _reaches(box, denied):
            raise Broken("a host is reached that is not in the list")
        if not await _fetches(box, allowed):
            raise Unchecked("an allowed server of this machine is not reached")


PROMISES = (no_network, full_network, allowed_hosts)
