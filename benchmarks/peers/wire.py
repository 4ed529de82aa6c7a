"""How a benchmark's worker talks: one JSON object a line, requests in, replies out.

Standard library only: this file also runs inside the environments of the peers. Whatever the
libraries print goes to stderr, so that stdout carries replies and nothing else. A worker that
fails does not explain itself here: it dies with its traceback, which the other side reads.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Wire", "timed"]


class Wire:
    """The worker's end. The first thing to send is `ready`."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def reply(self, **values: Any) -> None:
        self._out.write(json.dumps(values) + "\n")
        self._out.flush()

    def receive(self) -> dict[str, Any] | None:
        """The next request; None when there are no more."""
        line = sys.stdin.readline()
        return json.loads(line) if line.strip() else None

    def requests(self) -> Iterator[dict[str, Any]]:
        while (request := self.receive()) is not None:
            yield request


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that `work` took, and what it gave."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result
