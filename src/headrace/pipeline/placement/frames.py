"""How a worker process and its placement talk: frames of JSON over a socket.

A frame is its length in bytes (4 bytes, big-endian) and one JSON object in UTF-8 with a "kind".
To the worker: start (entry, arguments, path, beat_s), call (id, request), stop. From it: beat,
ready, refused (error), done (id, result), failed (id, error). Nothing else is ever decoded.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import TYPE_CHECKING, Any

from headrace.errors import InfrastructureError

if TYPE_CHECKING:
    from headrace.types import Json

__all__ = ["LONGEST", "Frame", "FrameError", "encode", "receive", "receive_async"]

LONGEST = 16 * 2**20
"""Bytes of a frame at most: requests and results are references, payloads stay in the store."""

_HEAD = struct.Struct(">I")

Frame = dict[str, Any]


class FrameError(InfrastructureError):
    """What came over the connection is not a frame, or what is to be sent is too long."""


def encode(kind: str, **fields: Json) -> bytes:
    """A frame's bytes; FrameError if it is too long, TypeError or ValueError if it is no JSON."""
    body = json.dumps({"kind": kind, **fields}, allow_nan=False).encode()
    _check(len(body))
    return _HEAD.pack(len(body)) + body


def receive(connection: socket.socket) -> Frame | None:
    """The next frame; None when the other side has closed."""
    head = _exactly(connection, _HEAD.size)
    body = None if head is None else _exactly(connection, _length(head))
    return None if body is None else _decode(body)


async def receive_async(reader: asyncio.StreamReader) -> Frame | None:
    """The next frame; None when the other side has closed or was cut off in a frame."""
    try:
        head = await reader.readexactly(_HEAD.size)
        return _decode(await reader.readexactly(_length(head)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def _length(head: bytes) -> int:
    (length,) = _HEAD.unpack(head)
    _check(length)
    return length


def _check(length: int) -> None:
    if length > LONGEST:
        raise FrameError(
            f"a frame of {length} bytes, {LONGEST} are allowed",
            where="worker connection",
            hint="put the payload into the store and send its reference",
        )


def _decode(body: bytes) -> Frame:
    try:
        frame = json.loads(body)
    except ValueError as error:
        raise FrameError(f"a frame is not JSON: {error}", where="worker connection") from None
    if not isinstance(frame, dict) or not isinstance(frame.get("kind"), str):
        raise FrameError("a frame is not an object with a kind", where="worker connection")
    return frame


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    """The next `count` bytes; None when the connection ends before them."""
    chunks: list[bytes] = []
    while count:
        chunk = connection.recv(min(count, 1 << 16))
        if not chunk:
            return None
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)
