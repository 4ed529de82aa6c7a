"""Who waits for what, on whom, since when and until when: kept while waiting, for others to read.

A run writes its waits into `waits.json`; `headrace show RUN --waits` reads it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from dataclasses import asdict
from pathlib import Path

from headrace.errors import StorageError
from headrace.pipeline.broker import Wait
from headrace.pipeline.clock import Clock
from headrace.store.files import read_json, write_json_atomic
from headrace.types import Json

__all__ = ["Waits", "read_waits"]

_WRITE_EVERY_S = 1.0


class Waits:
    """The waits that are going on, oldest first; written to `path`, if given, once a second."""

    def __init__(self, clock: Clock, path: Path | None = None) -> None:
        self._clock, self._path = clock, path
        self._open: dict[int, tuple[Wait, Callable[[], str]]] = {}
        self._count = 0
        self._written: list[Json] | None = None
        self._wrote = float("-inf")

    @contextlib.contextmanager
    def waiting(self, what: str, on: Callable[[], str], *, seconds: float) -> Generator[None]:
        """Inside, `what` is waited for, on whatever `on()` says, for at most `seconds`."""
        key, self._count = self._count, self._count + 1
        now = self._clock.now()
        self._open[key] = (Wait(what=what, on="", since=now, until=now + seconds), on)
        try:
            yield
        finally:
            del self._open[key]

    def now(self) -> list[Wait]:
        return [
            Wait(what=wait.what, on=on(), since=wait.since, until=wait.until)
            for wait, on in self._open.values()
        ]

    def write(self, *, at_once: bool = False) -> None:
        """Put the waits into the file, if they changed and the last time was a while ago."""
        recent = self._clock.now() - self._wrote < _WRITE_EVERY_S
        if self._path is None or (recent and not at_once):
            return
        told = [asdict(wait) for wait in self.now()]
        if told != self._written:
            write_json_atomic(self._path, told)
            self._written, self._wrote = told, self._clock.now()


def read_waits(path: Path) -> list[Wait]:
    """What a run last wrote; nothing where it never waited. StorageError if it is damaged."""
    if not path.exists():
        return []
    try:
        return [Wait(**entry) for entry in read_json(path)]
    except TypeError as error:
        raise StorageError(f"not a list of waits: {error}", where=str(path)) from error
