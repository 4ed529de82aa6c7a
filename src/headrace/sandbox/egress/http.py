"""HTTP/1.1 heads of requests and responses, read strictly and written anew.

Nothing that one reader could understand differently from another is passed on. Pure functions
on bytes and one on a stream; may be known by the proxy only.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

from headrace.sandbox.egress.allowlist import Endpoint, parse_endpoint

__all__ = ["BadMessage", "Request", "parse_request", "parse_response", "send_body"]

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TARGET = re.compile(rb"[\x21-\x7e]+")
_STATUS = re.compile(rb"HTTP/1\.[01] [1-5][0-9][0-9]( [\t\x20-\x7e\x80-\xff]*)?")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[\t ]*(;[\t\x20-\x7e]*)?\r\n")
_PIECE = 1 << 16
_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer "
    b"transfer-encoding upgrade http2-settings".split()
)

Header = tuple[bytes, bytes]


class BadMessage(Exception):
    """What is wrong with a message of either side, and the status that answers it."""

    def __init__(self, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.why = why
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`forward` is the head for the origin (empty for CONNECT). The body is `length` bytes, or
    chunks where that is None. `waits`: the client wants a 100 before it sends the body."""

    end: Endpoint
    tunnel: bool
    forward: bytes = b""
    length: int | None = 0
    waits: bool = False


def parse_request(head: bytes) -> Request:
    """A request head with its empty line. Raises BadMessage."""
    first, headers = _lines(head)
    parts = first.split(b" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]):
        raise BadMessage("not an HTTP request line")
    method, target, version = parts
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadMessage("only HTTP/1.0 and 1.1 are spoken here", 505)
    length = _framing(headers, version)
    if method == b"CONNECT":
        if length != 0:
            raise BadMessage("CONNECT has no body")
        return Request(end=_endpoint(target, None), tunnel=True)
    authority, path = _absolute(target)
    end = _endpoint(authority, 80)
    host = str(end).removesuffix(":80") if end.port == 80 else str(end)
    lines = [b"%s %s HTTP/1.1" % (method, path), b"Host: " + host.encode("ascii")]
    lines += [b"%s: %s" % header for header in _end_to_end(headers, {b"host", b"expect"})]
    if length is None:
        lines.append(b"Transfer-Encoding: chunked")
    elif length or any(name.lower() == b"content-length" for name, _ in headers):
        lines.append(b"Content-Length: %d" % length)
    lines.append(b"Connection: close\r\n\r\n")
    return Request(
        end=end,
        tunnel=False,
        forward=b"\r\n".join(lines),
        length=length,
        waits=any(name.lower() == b"expect" for name, _ in headers),
    )


def parse_response(head: bytes) -> tuple[int, bytes]:
    """Status and the head for the client, which is told that the connection ends."""
    first, headers = _lines(head)
    if not _STATUS.fullmatch(first):
        raise BadMessage("the host did not answer in HTTP/1", 502)
    framing = [b"%s: %s" % pair for pair in headers if pair[0].lower() == b"transfer-encoding"]
    if framing and any(name.lower() == b"content-length" for name, _ in headers):
        raise BadMessage("the host gave two lengths for its answer", 502)
    kept = [b"%s: %s" % header for header in _end_to_end(headers, set(), lengths=True)]
    return int(first[9:12]), b"\r\n".join([first, *kept, *framing, b"Connection: close\r\n\r\n"])


def _lines(head: bytes) -> tuple[bytes, list[Header]]:
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    headers: list[Header] = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise BadMessage("a header line is malformed")
        headers.append((name, value.strip(b"\t ")))
    return lines[0], headers


def _framing(headers: list[Header], version: bytes) -> int | None:
    lengths = [value for name, value in headers if name.lower() == b"content-length"]
    codings = [value for name, value in headers if name.lower() == b"transfer-encoding"]
    if lengths and codings:
        raise BadMessage("both Content-Length and Transfer-Encoding")
    if codings:
        if len(codings) > 1 or codings[0].lower() != b"chunked" or version == b"HTTP/1.0":
            raise BadMessage("the only transfer coding is one chunked of HTTP/1.1")
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not re.fullmatch(rb"[0-9]{1,15}", lengths[0]):
        raise BadMessage("Content-Length is not one number")
    return int(lengths[0])


def _absolute(target: bytes) -> tuple[bytes, bytes]:
    if target[:7].lower() != b"http://":
        raise BadMessage("a proxy is asked with http://HOST/PATH, or with CONNECT for the rest")
    found = re.fullmatch(rb"([^/?#@\\]+)(/[^#]*|\?[^#]*)?", target[7:])
    if found is None:
        raise BadMessage("the address has no host, or more than a host and a path")
    path = found[2] or b"/"
    return found[1], path if path.startswith(b"/") else b"/" + path


def _endpoint(authority: bytes, default: int | None) -> Endpoint:
    try:
        end = parse_endpoint(authority.decode("ascii"))
    except ValueError as error:
        raise BadMessage(f"no host to connect to: {error}") from error
    if end.port is None and default is None:
        raise BadMessage("CONNECT needs HOST:PORT")
    return end if end.port is not None else Endpoint(end.host, default, end.address)


def _end_to_end(headers: list[Header], drop: set[bytes], *, lengths: bool = False) -> list[Header]:
    dropped = _HOP | drop if lengths else _HOP | drop | {b"content-length"}
    named = {
        word.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for word in value.split(b",")
    }
    dropped = dropped | (named - {b"content-length"} if lengths else named)
    return [header for header in headers if header[0].lower() not in dropped]


async def send_body(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    length: int | None,
    on_bytes: Callable[[int], None],
) -> None:
    """Pass on exactly `length` bytes, or chunks (None), written anew without extensions and
    trailers. Raises BadMessage for broken chunks and IncompleteReadError for too few bytes."""
    if length is not None:
        await _exactly(reader, writer, length, on_bytes)
        return
    while True:
        found = _CHUNK.fullmatch(await _line(reader))
        if found is None:
            raise BadMessage("a chunk is malformed")
        size = int(found[1], 16)
        if size == 0:
            break
        writer.write(b"%x\r\n" % size)
        await _exactly(reader, writer, size, on_bytes)
        if await reader.readexactly(2) != b"\r\n":
            raise BadMessage("a chunk does not end where it said")
        writer.write(b"\r\n")
    await _skip_trailers(reader)
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n")
    except asyncio.LimitOverrunError:
        raise BadMessage("a line of the body is too long", 431) from None


async def _skip_trailers(reader: asyncio.StreamReader) -> None:
    for _ in range(64):
        if await _line(reader) == b"\r\n":
            return
    raise BadMessage("too many trailers", 431)


async def _exactly(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    length: int,
    on_bytes: Callable[[int], None],
) -> None:
    while length:
        piece = await reader.read(min(length, _PIECE))
        if not piece:
            raise asyncio.IncompleteReadError(b"", length)
        length -= len(piece)
        writer.write(piece)
        await writer.drain()
        on_bytes(len(piece))
