"""Log-probabilities under the frozen reference, computed once for each example and kept by content.

The key is the model's digest and the example's, so that what is found is never another model's;
a resumed run finds what the one before it computed.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from headrace.algorithms.recorded import demonstrations
from headrace.errors import StorageError
from headrace.types import Example, Floats, Sample

__all__ = ["References"]

Score = Callable[[Sequence[Sample]], Sequence[Floats]]


class References:
    """A file of log-probabilities [n] by example key; `score` computes those that are missing.

    Use it as a context manager. Raises StorageError where the file cannot be used.
    """

    def __init__(self, path: Path, model: str, score: Score) -> None:
        self._path, self._model, self._score = path, model, score
        with _guard(self._path):
            self._file = sqlite3.connect(path, isolation_level=None)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS reference "
                "(model TEXT, key TEXT, logps BLOB, PRIMARY KEY (model, key)) WITHOUT ROWID"
            )

    def of(self, units: Sequence[tuple[Example, ...]]) -> dict[str, Floats]:
        """Of every example of `units`, by its key; 0 where nothing is to be written."""
        examples = {example.key: example for unit in units for example in unit}
        found = {key: self._find(key, len(e.ids)) for key, e in examples.items()}
        missing = [examples[key] for key, logps in found.items() if logps is None]
        if missing:
            samples = demonstrations([(example,) for example in missing])
            scored = {s.trajectory: v for s, v in zip(samples, self._score(samples), strict=True)}
            with _guard(self._path), self._file:
                self._file.execute("BEGIN")
                self._file.executemany(
                    "INSERT OR REPLACE INTO reference VALUES (?, ?, ?)",
                    [(self._model, k, v.astype("<f4").tobytes()) for k, v in scored.items()],
                )
            found |= scored
        return {key: logps for key, logps in found.items() if logps is not None}

    def _find(self, key: str, length: int) -> Floats | None:
        with _guard(self._path):
            row = self._file.execute(
                "SELECT logps FROM reference WHERE model = ? AND key = ?", (self._model, key)
            ).fetchone()
        if row is None or len(row[0]) != 4 * length:
            return None
        return np.frombuffer(row[0], "<f4").astype(np.float32)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def _guard(path: Path) -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StorageError(
            f"reference log-probabilities cannot be kept: {error}",
            where=str(path),
            hint="free space on its disk, or move the file away; then resume",
        ) from error
