"""What was said to the person, kept beside the run: `logs/attempt_N/run.log`."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from headrace.observe.listener import Listener, StepLine

__all__ = ["LoggedListener"]


class LoggedListener:
    """Passes everything on to `inner` and writes it, but for progress, to a file.

    A log that cannot be written never stops a run: it says so once and goes on without.
    """

    def __init__(self, inner: Listener, path: Path) -> None:
        self._inner = inner
        self._file: TextIO | None = path.open("a", encoding="utf-8")

    def phase(self, label: str) -> None:
        self._write(f"-- {label}")
        self._inner.phase(label)

    def progress(self, label: str, done: int, total: int | None) -> None:
        self._inner.progress(label, done, total)

    def step(self, line: StepLine) -> None:
        self._write(repr(line))
        self._inner.step(line)

    def note(self, text: str) -> None:
        self._write(text)
        self._inner.note(text)

    def warning(self, text: str) -> None:
        self._write(f"warning: {text}")
        self._inner.warning(text)

    def close(self) -> None:
        self.__exit__()
        self._inner.close()

    def __enter__(self) -> LoggedListener:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file; `inner` belongs to whoever made it."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}\n")
            self._file.flush()
        except OSError as error:
            self.__exit__()
            self._inner.warning(f"the log file cannot be written any more: {error}")
