"""Pipes of a command, read without blocking and within bounds.

`Collector` keeps the head and the tail of a stream and counts the rest, so that a command that
writes for ever costs a fixed amount of memory. May be known by backends; knows no sandbox.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from headrace.sandbox.spec import Capture

__all__ = ["Collector", "stdin_file"]

_CHUNK = 1 << 16
_TURN = 1 << 20
_PIPE = 1 << 16


class Collector:
    """Reads the pipe `fd`, which it owns, until its end; keeps about `keep` bytes of it.

    `on_bytes` is told of each piece's length as it comes: where floods are noticed.
    `ended` is set when every writer has closed.
    """

    def __init__(self, fd: int, *, keep: int, on_bytes: Callable[[int], None]) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._half = max(1, keep // 2)
        self._on_bytes = on_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0
        self._loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()
        self._loop.add_reader(fd, self._read)

    def drain(self) -> None:
        """Take what lies in the pipe now, without waiting for more."""
        if not self.ended.is_set():
            self._read()

    def close(self) -> None:
        """Stop reading. Idempotent."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self.ended.set()

    def capture(self) -> Capture:
        """What was kept so far."""
        room = 2 * self._half - len(self._head)
        tail = bytes(self._tail[max(0, len(self._tail) - room) :])
        omitted = self._total - len(self._head) - len(tail)
        if omitted == 0:
            return Capture(bytes(self._head) + tail, self._total)
        mark = f"\n[{omitted} bytes left out]\n".encode()
        return Capture(bytes(self._head) + mark + tail, self._total, omitted)

    def _read(self) -> None:
        taken = 0
        while taken < _TURN and self._fd >= 0:
            try:
                piece = os.read(self._fd, _CHUNK)
            except BlockingIOError:
                return
            if not piece:
                self.close()
                return
            taken += len(piece)
            self._keep(piece)
            self._on_bytes(len(piece))

    def _keep(self, piece: bytes) -> None:
        self._total += len(piece)
        room = self._half - len(self._head)
        if room > 0:
            self._head += piece[:room]
            piece = piece[room:]
        self._tail += piece
        if len(self._tail) > 2 * self._half + _CHUNK:
            del self._tail[: len(self._tail) - self._half]


def stdin_file(data: bytes) -> int:
    """A readable descriptor that yields `data` and ends, and never blocks who fills it."""
    if not data:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    if len(data) <= _PIPE:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.write(writer, data)
        os.close(writer)
        return reader
    memory = os.memfd_create("stdin", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(memory, view) :]
    os.lseek(memory, 0, os.SEEK_SET)
    return memory
