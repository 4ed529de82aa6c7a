"""Verdicts that need no second judging, in memory and in a file that outlives the process.

A verdict is a function of the task, the text and the verifier's version, so its key holds all
three and nothing else may share it. Known by the verification pool; knows no verifier.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Generator
from dataclasses import asdict
from pathlib import Path
from typing import Self

from headrace.errors import StorageError
from headrace.store.codec import verdict_from_json, verdict_to_json
from headrace.types import Task, Verdict, VerifierRef, content_hash

__all__ = ["DiskCache", "MemoryCache", "verdict_key"]

_BUSY_S = 10.0
_TABLE = """
CREATE TABLE IF NOT EXISTS verdicts_1 (
    key TEXT PRIMARY KEY NOT NULL,
    verdict TEXT NOT NULL,
    digest TEXT NOT NULL
) WITHOUT ROWID
"""


def verdict_key(task: Task, text: str, ref: VerifierRef) -> str:
    """What a verdict depends on, as 40 hex digits: the task and its answer, text, verifier."""
    need = task.sandbox
    return content_hash(
        [
            task.id,
            task.problem,
            content_hash(task.answer, length=64),
            None if need is None else asdict(need),
            hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
            ref.id,
            ref.version,
        ],
        length=40,
    )


class MemoryCache:
    """The verdicts used last, at most `most` of them; for several threads."""

    def __init__(self, most: int = 16_384) -> None:
        self._most = most
        self._kept: OrderedDict[str, Verdict] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> Verdict | None:
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key]

    def put(self, key: str, verdict: Verdict) -> None:
        with self._lock:
            self._kept[key] = verdict
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)


class DiskCache:
    """Verdicts in an SQLite file; for several threads, and processes where the disk is local.

    A row whose digest does not fit is dropped as if it had never been there. Raises
    StorageError where the file cannot be used at all.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        with self._guard():
            self._db = sqlite3.connect(
                path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
        try:
            with self._guard():
                for statement in (
                    "PRAGMA journal_mode = WAL",
                    "PRAGMA synchronous = NORMAL",
                    _TABLE,
                ):
                    self._db.execute(statement)
        except StorageError:
            self._db.close()
            raise

    def get(self, key: str) -> Verdict | None:
        """The verdict under `key`, None without an intact one."""
        with self._guard():
            row = self._db.execute(
                "SELECT verdict, digest FROM verdicts_1 WHERE key = ?", (key,)
            ).fetchone()
            if row is None:
                return None
            verdict = _intact(key, *row)
            if verdict is None:
                self._db.execute("DELETE FROM verdicts_1 WHERE key = ?", (key,))
            return verdict

    def put(self, key: str, verdict: Verdict) -> None:
        text = json.dumps(verdict_to_json(verdict), sort_keys=True)
        with self._guard():
            self._db.execute(
                "INSERT OR REPLACE INTO verdicts_1 VALUES (?, ?, ?)", (key, text, _seal(key, text))
            )

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _guard(self) -> Generator[None]:
        try:
            with self._lock:
                yield
        except sqlite3.Error as error:
            raise StorageError(
                f"the verdict cache cannot be used: {error}",
                where=str(self._path),
                hint=f"free space, or delete {self._path} and its -wal and -shm files: "
                "what is missing there is judged again",
            ) from error


def _seal(key: str, text: str) -> str:
    return hashlib.sha256(f"{key} {text}".encode()).hexdigest()


def _intact(key: str, text: object, digest: object) -> Verdict | None:
    if not isinstance(text, str) or digest != _seal(key, text):
        return None
    try:
        return verdict_from_json(json.loads(text))
    except (StorageError, ValueError):
        return None
