"""Several killable children of one kind, so that one bad text stalls one of them only.

May be known by verifiers and task packs; knows nothing of tasks.
"""

from __future__ import annotations

import queue
import threading

from headrace.types import Json
from headrace.verify.child import Child, ChildDied

__all__ = ["Children"]


class Children:
    """Up to `size` processes `python -m MODULE`, each started when it is first needed.

    A call takes a free one or waits for it; a deadline counts the call's own turn only. A
    child that dies under a call is replaced, and the call made once more: somebody else may
    have killed it.
    """

    def __init__(
        self, module: str, *, size: int = 2, memory_mb: int = 4096, start_seconds: float = 120.0
    ) -> None:
        self._children = [
            Child(module, memory_mb=memory_mb, start_seconds=start_seconds) for _ in range(size)
        ]
        self._free: queue.LifoQueue[Child] = queue.LifoQueue()
        for child in self._children:
            self._free.put(child)
        self._lock = threading.Lock()

    def call(self, request: Json, *, deadline: float, cpu: float | None = None) -> Json:
        """The reply of one of them; see `Child.call` for units and errors."""
        child = self._free.get()
        try:
            try:
                return child.call(request, deadline=deadline, cpu=cpu)
            except ChildDied:
                return child.call(request, deadline=deadline, cpu=cpu)
        finally:
            self._free.put(child)

    def close(self) -> None:
        """End all of them; a later call starts new ones."""
        with self._lock:
            for child in self._children:
                child.close()
