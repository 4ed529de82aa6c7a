"""Virtual time: asyncio code runs as it is, and the clock jumps to the next timer.

For simulation and tests. The loop never waits: when no callback is ready, time becomes that of
the next timer; when there is none either, nothing can ever happen again, which is an error that
names whoever waits. Nothing outside can wake it, so threads, sockets and child processes are
refused. Runs repeat exactly as long as the code does not depend on the order of a set (the
results of `asyncio.wait` come as sets).
"""

from __future__ import annotations

import asyncio
import inspect
import selectors
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, TypeVarTuple

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

__all__ = ["Deadlocked", "VirtualClock", "VirtualLoop", "run"]

LIMIT_S = 366 * 86_400.0
_MOST_NAMED = 20

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class Deadlocked(HeadraceError):
    """Every task waits and no timer runs, or virtual time ran past its limit; names the tasks."""


class VirtualClock:
    """Seconds since the epoch that pass only while a `VirtualLoop` on this clock has timers.

    `elapsed` starts at 0 and is the loop's own time; `now()` is `epoch` later. A second run on
    the same clock goes on where the first one ended, as a resumed run does.

    >>> clock = VirtualClock(epoch=1000.0)
    >>> run(asyncio.sleep(3600.0), clock=clock)
    >>> clock.now()
    4600.0
    """

    def __init__(self, *, epoch: float = 0.0) -> None:
        self.epoch = epoch
        self.elapsed = 0.0

    def now(self) -> float:
        return self.epoch + self.elapsed


def run(
    main: Coroutine[Any, Any, Result],
    *,
    clock: VirtualClock | None = None,
    limit_s: float = LIMIT_S,
) -> Result:
    """Run `main` to its end in virtual time and give its result; other tasks are cancelled then.

    Deadlocked if nothing can happen any more, or once more than `limit_s` virtual seconds have
    passed (a task that beats for ever keeps time going).
    """
    on = VirtualClock() if clock is None else clock
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(on, limit_s=limit_s)) as runner:
        return runner.run(main)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is `clock.elapsed`, for `limit_s` virtual seconds from now."""

    def __init__(self, clock: VirtualClock, *, limit_s: float = LIMIT_S) -> None:
        self._clock = clock
        self._ends = clock.elapsed + limit_s
        self._limit_s = limit_s
        self._thread = threading.get_ident()
        super().__init__(_Jumps(self._jump))

    def time(self) -> float:
        return self._clock.elapsed

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        if threading.get_ident() != self._thread:
            _refuse("a thread")
        return super().call_soon_threadsafe(callback, *args, context=context)

    def run_in_executor(self, executor: object, func: object, *args: object) -> NoReturn:
        del executor, args
        _refuse(f"a thread for {getattr(func, '__qualname__', func)!r}")

    def _jump(self, seconds: float | None) -> None:
        """Nothing is ready: let `seconds` pass until the next timer (None: there is none)."""
        if seconds is None:
            raise self._deadlocked("nothing can happen any more")
        if self._clock.elapsed + seconds > self._ends:
            raise self._deadlocked(f"virtual time ran past its limit of {self._limit_s:g} s")
        self._clock.elapsed += seconds

    def _deadlocked(self, what: str) -> Deadlocked:
        waiting = sorted(_waits(task) for task in asyncio.all_tasks(self))
        more = len(waiting) - _MOST_NAMED
        told = waiting[:_MOST_NAMED] + ([f"{more} more"] if more > 0 else [])
        return Deadlocked(
            f"{what}; waiting: {'; '.join(told)}",
            where=f"{self._clock.elapsed:g} s after the start",
            hint="give the wait a deadline, or find who should have ended it",
        )


class _Jumps(selectors.BaseSelector):
    """Where a loop would wait for the world it lets time pass; knows the loop's own pipe only."""

    def __init__(self, jump: Callable[[float | None], None]) -> None:
        self._passes = jump
        self._keys: dict[FileDescriptorLike, selectors.SelectorKey] = {}

    def register(
        self, fileobj: FileDescriptorLike, events: int, data: object = None
    ) -> selectors.SelectorKey:
        if self._keys:
            _refuse("a file, socket or process")
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._passes(timeout)
        return []

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        return self._keys

    def close(self) -> None:
        self._keys.clear()


def _refuse(what: str) -> NoReturn:
    raise RuntimeError(
        f"virtual time has no place for {what}: it would wait for the real world while the clock "
        "jumps ahead (use a coroutine that sleeps for the time the work would take)"
    )


def _waits(task: asyncio.Task[Any]) -> str:
    """The task's name and the chain of coroutines down to the one that waits."""
    chain: list[str] = []
    place = ""
    awaited: object = task.get_coro()
    while inspect.iscoroutine(awaited):
        chain.append(awaited.__qualname__)
        if awaited.cr_frame is not None:
            code = awaited.cr_frame.f_code
            place = f"{Path(code.co_filename).name}:{awaited.cr_frame.f_lineno}"
        awaited = awaited.cr_await
    return f"{task.get_name()} in {' > '.join(chain)} ({place})"
