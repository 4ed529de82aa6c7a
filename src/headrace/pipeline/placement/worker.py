"""A worker process: `python -m headrace.pipeline.placement.worker FD PARENT`.

The main thread does the work; a thread of its own beats, so a busy worker is heard of, and
another one listens. The process never outlives its parent: the kernel kills it then (Linux), and
a connection that closes makes it kill its process group, itself included. Started by `processes`.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from headrace.pipeline.placement.base import Caught, Handler, is_async, resolve, tell_error
from headrace.pipeline.placement.frames import Frame, encode, receive

if TYPE_CHECKING:
    from headrace.types import Json

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


class _Link:
    """The connection to the parent; sending is for all threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, kind: str, **fields: Json) -> None:
        frame = encode(kind, **fields)
        try:
            with self._sending:
                self._connection.sendall(frame)
        except OSError:
            _end_group()

    def receive(self) -> Frame:
        """The next frame; there is no life after the last one."""
        try:
            frame = receive(self._connection)
        except OSError:
            frame = None
        if frame is None:
            _end_group()
        return frame


def main(arguments: Sequence[str]) -> int:
    """Serve the parent on the socket with number FD until it says stop or is gone."""
    fd, parent = int(arguments[0]), int(arguments[1])
    _die_with(parent)
    link = _Link(socket.socket(fileno=fd))
    start = link.receive()
    sys.path[:] = start["path"]
    threading.Thread(target=_beat, args=(link, float(start["beat_s"])), daemon=True).start()
    with asyncio.Runner() as runner, Caught() as caught:
        entry = resolve(start["entry"])
        loaded = entry(start["arguments"])
        handler: Handler = runner.run(loaded) if is_async(entry) else loaded
        link.send("ready")
        _serve(link, handler, runner)
    if caught.error is not None:
        link.send("refused", error=tell_error(caught.error))
        return 1
    return 0


def _serve(link: _Link, handler: Handler, runner: asyncio.Runner) -> None:
    """Do one request after the other until told to stop."""
    calls: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(link, calls), daemon=True).start()
    while (call := calls.get()) is not None:
        with Caught() as caught:
            result = handler(call["request"])
            done = runner.run(result) if is_async(handler) else result
            link.send("done", id=call["id"], result=done)
        if caught.error is not None:
            link.send("failed", id=call["id"], error=tell_error(caught.error))


def _listen(link: _Link, calls: queue.SimpleQueue[Frame | None]) -> None:
    while True:
        frame = link.receive()
        if frame["kind"] == "call":
            calls.put(frame)
        elif frame["kind"] == "stop":
            calls.put(None)


def _beat(link: _Link, beat_s: float) -> None:
    pause = threading.Event()
    while not pause.wait(beat_s):
        link.send("beat")


def _die_with(parent: int) -> None:
    """Be killed when the parent dies, and now if it is dead already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _end_group() -> NoReturn:
    """End this process and what it has started, from whichever thread."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
