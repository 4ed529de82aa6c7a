"""An event loop in a thread, for callers that are not asynchronous: verifiers, command line.

Knows nothing of sandboxes beyond the error that it raises.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from headrace.sandbox.spec import SandboxFailure

__all__ = ["Portal"]

_T = TypeVar("_T")
_GRACE_S = 10.0


class Portal:
    """Runs coroutines in a thread of its own until it is closed. Any thread may call.

    >>> with Portal() as portal:
    ...     portal.call(asyncio.sleep(0, "done"), timeout_s=5)
    'done'
    """

    def __init__(self, name: str = "sandboxes") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._lock = threading.Lock()
        self._closed = False
        self._thread.start()

    def __enter__(self) -> Portal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, coroutine: Coroutine[Any, Any, _T], *, timeout_s: float) -> _T:
        """The coroutine's result; its exceptions pass through.

        After `timeout_s` it is cancelled and SandboxFailure raised, as it is on a closed portal.
        An interrupt of the caller cancels it too.
        """
        with self._lock:
            if threading.current_thread() is self._thread:
                coroutine.close()
                raise RuntimeError("a portal cannot wait for itself: await instead")
            if self._closed or not self._thread.is_alive():
                coroutine.close()
                raise SandboxFailure("the portal to the sandboxes is closed")
            future = asyncio.run_coroutine_threadsafe(_within(coroutine, timeout_s), self._loop)
        try:
            return future.result(timeout_s + _GRACE_S)
        except concurrent.futures.CancelledError:
            raise SandboxFailure("the portal was closed during a call") from None
        except concurrent.futures.TimeoutError:
            if future.done():
                raise
            raise SandboxFailure(
                f"a sandbox call could not be cancelled {_GRACE_S:g} s after its {timeout_s:g} s"
            ) from None
        finally:
            future.cancel()

    def close(self, *, timeout_s: float = 30.0) -> None:
        """Cancel what runs, end the loop, join its thread. Idempotent.

        Raises SandboxFailure if something did not end in `timeout_s`.
        """
        with self._lock:
            first, self._closed = not self._closed, True
        if first:
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise SandboxFailure(
                f"the portal to the sandboxes did not end within {timeout_s:g} s",
                hint="something there does not let itself be cancelled",
            )

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.wait(tasks))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()


async def _within(coroutine: Coroutine[Any, Any, _T], seconds: float) -> _T:
    """Cancelled, and done with what it does then, before the failure is raised."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await coroutine
    except TimeoutError:
        if not limit.expired():
            raise
        raise SandboxFailure(f"a sandbox call was not done within {seconds:g} s") from None
