"""Tasks that nobody awaits: none is lost to the garbage collector, nor is what one raised.

Known by the pool only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from headrace.errors import StorageError

__all__ = ["Background"]


class Background:
    """The tasks of one pool. `after` is called after the end of each.

    `bugs` are what they raised and should not have; what failed because something could not be
    written is no bug, and is counted in `storage_errors`, with the last as `storage_error`.
    """

    def __init__(self, after: Callable[[], None]) -> None:
        self.bugs: list[BaseException] = []
        self.storage_errors = 0
        self.storage_error = ""
        self._after = after
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(
        self, work: Coroutine[None, None, None], done: Callable[[], None] | None = None
    ) -> asyncio.Task[None]:
        """Run it. `done` is called at its end, even if it was cancelled before it began."""
        task = asyncio.create_task(work)
        self._tasks.add(task)

        def ended(_: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if isinstance(error, StorageError):
                self.not_written(error)
            elif error is not None:
                self.bugs.append(error)
            if done is not None:
                done()
            self._after()

        task.add_done_callback(ended)
        return task

    def not_written(self, error: StorageError) -> None:
        """One more thing that could not be written."""
        self.storage_errors += 1
        self.storage_error = str(error)

    async def end(self, *, within_s: float) -> None:
        """Cancel what is left, and wait for it so long."""
        left = [task for task in self._tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=within_s)
