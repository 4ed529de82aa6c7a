"""Workers inside this process: coroutines on the event loop, blocking work in daemon threads.

The cheapest placement, and the only one that runs in virtual time (coroutines only there). Each
worker has one thread at most. A thread that hangs cannot be ended: it is left behind, counted, and
dies with the process. Implements `base`.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from headrace.errors import HeadraceError
from headrace.pipeline.needs import Needs
from headrace.pipeline.placement.base import (
    Caught,
    Entry,
    Handler,
    PlacementError,
    WorkerLost,
    WorkerSpec,
    WorkerState,
    WorkOverdue,
    is_async,
    rebuild_error,
    resolve,
    tell_error,
)
from headrace.pipeline.resources import Grant, Resources

if TYPE_CHECKING:
    from headrace.types import Json

__all__ = ["InProcess"]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class InProcess:
    """Places workers here. `entries` adds entries by name, for what no module can name.

    At most `threads` threads of its workers live at a time, those that hang among them.

    >>> async def double(request: int) -> int:
    ...     return 2 * request
    >>> async def main() -> int:
    ...     placement = InProcess(entries={"double": lambda _: double})
    ...     worker = await placement.place(WorkerSpec(name="d", entry="double"), Needs())
    ...     return await worker.call(21, deadline_s=1.0)
    >>> asyncio.run(main())
    42
    """

    def __init__(
        self,
        *,
        entries: Mapping[str, Entry] | None = None,
        resources: Resources | None = None,
        threads: int = 64,
    ) -> None:
        self._entries = dict(entries or {})
        self._resources, self._most = resources, threads
        self._numbers = itertools.count(1)
        self._workers: dict[str, _Worker] = {}
        self._threads: list[_Thread] = []

    async def place(self, spec: WorkerSpec, needs: Needs) -> _Worker:
        """A ready worker; see `Placement.place`."""
        name = f"{spec.name}-{next(self._numbers)}"
        self._threads = [t for t in self._threads if t.alive or not t.closed]
        alive = sum(thread.alive for thread in self._threads)
        if alive >= self._most:
            raise PlacementError(
                f"{name} cannot be placed: {alive} threads of workers live",
                where="in-process placement",
                hint="some of them may hang; place work that can hang in processes",
            )
        entry = self._entries.get(spec.entry) or resolve(spec.entry)
        grants: list[Grant] = []
        if self._resources is not None:
            grants = await self._resources.acquire_gang(
                [needs, spec.starting], domain=spec.domain, deadline_s=spec.place_s, who=name
            )
        thread = _Thread(name)
        worker = _Worker(name, thread, self._forget, grants[:1])
        self._workers[name] = worker
        self._threads.append(thread)
        try:
            await worker.start(entry, spec)
        finally:
            for grant in grants[1:]:
                grant.release()
        return worker

    async def close(self) -> None:
        """End every worker at once."""
        for worker in list(self._workers.values()):
            await worker.stop(grace_s=0.0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _forget(self, worker: _Worker) -> None:
        self._workers.pop(worker.id, None)


class _Worker:
    def __init__(
        self, name: str, thread: _Thread, on_end: Callable[[_Worker], None], grants: list[Grant]
    ) -> None:
        self._name, self._thread = name, thread
        self._on_end, self._grants = on_end, grants
        self._handler: Handler | None = None
        self._busy: asyncio.Task[Any] | None = None
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def id(self) -> str:
        return self._name

    @property
    def state(self) -> WorkerState:
        if self._ended.done():
            return "ended"
        return "idle" if self._busy is None else "busy"

    async def start(self, entry: Entry, spec: WorkerSpec) -> None:
        """Load what is heavy."""
        try:
            async with asyncio.timeout(spec.start_s):
                with Caught() as caught:
                    self._handler = await self._run(entry, spec.arguments)
        except TimeoutError:
            raise PlacementError(
                f"{self._name} was not ready within {spec.start_s:g} s",
                where=spec.entry,
                hint="give it more time or less to load",
            ) from None
        finally:
            if self._handler is None:
                self._end("it did not start")
        if isinstance(caught.error, HeadraceError):
            raise caught.error
        if caught.error is not None:
            told = tell_error(caught.error)
            raise PlacementError(
                f"{self._name} did not start: {told['what']}", where=told["where"]
            ) from caught.error

    async def call(self, request: Json, *, deadline_s: float) -> Json:
        """One piece of work; see `Placed.call`."""
        if self._ended.done() or self._handler is None:
            raise self._lost()
        if self._busy is not None:
            raise RuntimeError(f"{self._name} is at work already")
        work = asyncio.create_task(self._work(self._handler, request), name=f"work {self._name}")
        self._busy = work
        try:
            await asyncio.wait([work], timeout=deadline_s)
            if work.done() and not work.cancelled():
                return work.result()
            if self._ended.done():
                raise self._lost()
            raise WorkOverdue(
                f"{self._name} was ended: its work did not end within {deadline_s:g} s",
                where="in-process placement",
                hint="it is replaced; give the work more time if it needs it",
            )
        finally:
            self._busy = None
            if not work.done():
                work.cancel()
                self._end("its work was overdue or cancelled")

    async def ended(self) -> str:
        return await asyncio.shield(self._ended)

    async def stop(self, *, grace_s: float) -> None:
        """Let it finish, then leave it; a coroutine is cancelled."""
        work = self._busy
        if work is not None:
            await asyncio.wait([work], timeout=grace_s)
        self._end("it was stopped")
        if work is not None:
            work.cancel()

    async def _work(self, handler: Handler, request: Json) -> Json:
        with Caught() as caught:
            return await self._run(handler, request)
        error = caught.error
        assert error is not None
        if isinstance(error, HeadraceError):
            raise error
        raise rebuild_error(tell_error(error)) from error

    async def _run(self, function: Callable[[Json], Any], argument: Json) -> Any:
        if is_async(function):
            return await function(argument)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, argument)

    def _end(self, why: str) -> None:
        if self._ended.done():
            return
        self._ended.set_result(why)
        self._thread.shutdown(wait=False)
        for grant in self._grants:
            grant.release()
        self._on_end(self)

    def _lost(self) -> WorkerLost:
        return WorkerLost(
            f"{self._name} is gone: {self._ended.result()}",
            where="in-process placement",
            hint="its work is done again by another worker",
        )


class _Thread(Executor):
    """One daemon thread, started when it is first needed: one that hangs holds up no exit."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.closed = False

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def submit(
        self,
        fn: Callable[Arguments, Result],
        /,
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Future[Result]:
        future = Future[Result]()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                with Caught() as caught:
                    future.set_result(fn(*args, **kwargs))
                if caught.error is not None:
                    future.set_exception(caught.error)
            finally:
                if not future.done():
                    future.set_exception(WorkerLost(f"the thread {self._name} ended itself"))

        if not self.alive:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put(run)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the thread go once it is idle; it is never waited for."""
        del wait, cancel_futures
        self.closed = True
        self._calls.put(None)

    def _serve(self) -> None:
        while (run := self._calls.get()) is not None:
            run()
