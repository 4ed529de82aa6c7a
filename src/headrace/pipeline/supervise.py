"""Supervision: as many workers of a kind as there should be, each replaced when it dies.

Work goes to whichever worker is idle, first come, first served. What a worker had in hand when
it died is reported lost, so that its lease can be voided and the work done again; who asked for
it gets an error. A kind of worker that keeps dying is given up with an error that says why.
Knows placements by their protocol only; belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from headrace.errors import HeadraceError, InfrastructureError, UsageError
from headrace.pipeline.clock import Clock
from headrace.pipeline.needs import Needs
from headrace.pipeline.placement.base import (
    Placed,
    Placement,
    PlacementError,
    WorkerLost,
    WorkerSpec,
    WorkOverdue,
)
from headrace.pipeline.resources import Wait
from headrace.pipeline.scale import Scaler
from headrace.types import Json

__all__ = [
    "Loss",
    "SupervisionPolicy",
    "Supervisor",
    "SupervisorState",
    "WorkerTimeout",
    "WorkersKeepDying",
    "WorkersStopped",
]

SCALE_EVERY_S = 1.0
_END_S = 15.0
"""How long a worker that was killed may take to be gone."""


class WorkersKeepDying(InfrastructureError):
    """Too many workers of a kind died within a short time; no more are started."""


class WorkersStopped(InfrastructureError):
    """The workers were stopped; work that none of them had begun is not begun any more."""


class WorkerTimeout(InfrastructureError):
    """No worker became idle in time; says what all of them were doing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionPolicy:
    """How a dead worker is replaced.

    The first time after `pause_s`, then after twice as long each time, at most
    `longest_pause_s`; a worker that finished something, or lived for `settled_s`, begins anew.
    More than `deaths` within `within_s` seconds, over all workers of the kind, end it.
    """

    pause_s: float = 0.5
    longest_pause_s: float = 30.0
    settled_s: float = 60.0
    deaths: int = 10
    within_s: float = 60.0
    grace_s: float = 5.0

    def pause(self, streak: int) -> float:
        """Seconds to wait after the `streak`-th death in a row (1 is the first).

        >>> [SupervisionPolicy(pause_s=1.0, longest_pause_s=5.0).pause(n) for n in (1, 2, 3, 99)]
        [1.0, 2.0, 4.0, 5.0]
        """
        return min(self.longest_pause_s, self.pause_s * 2.0 ** min(streak - 1, 60))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Work that a worker had in hand when it was ended or died; `lease` as its caller named it."""

    lease: str
    worker: str
    why: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorState:
    """For display: workers `wanted`, `ready` ones, those at work; deaths ever, work that waits."""

    kind: str
    wanted: int
    ready: int
    busy: int
    deaths: int
    queued: int
    last_death: str


@dataclass(slots=True, eq=False, kw_only=True)
class _Job:
    """A call on its way: `begun` once a worker has it, `done` with what came of it."""

    request: Json
    deadline_s: float
    lease: str
    since: float
    until: float
    begun: asyncio.Future[None]
    done: asyncio.Future[Json]

    def fail(self, error: HeadraceError) -> None:
        for future in (self.begun, self.done):
            if not future.done():
                future.set_exception(error)
                future.exception()


@dataclass(slots=True, eq=False)
class _Seat:
    """A place for one worker at a time; a retired one is not filled again."""

    number: int
    retired: bool = False
    streak: int = 0
    placed: Placed | None = None
    job: _Job | None = None
    job_since: float = 0.0
    worked: bool = False
    since: float | None = None
    wake: asyncio.Future[None] | None = None
    task: asyncio.Task[None] | None = None

    def rouse(self) -> None:
        if self.wake is not None and not self.wake.done():
            self.wake.set_result(None)


class Supervisor:
    """Keeps `size` workers of `spec` alive while it is entered, and calls them.

    `on_loss` hears of every piece of work that was lost with its worker. With a `scaler`, what
    it decides from the calls it sees is carried out every `SCALE_EVERY_S` seconds.

    >>> async with Supervisor(
    ...     placement, spec, Needs({"sandbox/process": 1}), size=4, clock=clock, on_loss=void_lease
    ... ) as judges:  # doctest: +SKIP
    ...     verdict = await judges.call({"trajectory": "000003:0.2/1"}, deadline_s=60, wait_s=600)
    """

    def __init__(
        self,
        placement: Placement,
        spec: WorkerSpec,
        needs: Needs,
        *,
        size: int,
        clock: Clock,
        policy: SupervisionPolicy | None = None,
        on_loss: Callable[[Loss], None] = lambda loss: None,
        scaler: Scaler | None = None,
    ) -> None:
        self._placement, self._spec, self._needs = placement, spec, needs
        self._size, self._clock, self._on_loss = size, clock, on_loss
        self._policy, self._scaler = policy or SupervisionPolicy(), scaler
        self._scaling: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)
        self._seats: list[_Seat] = []
        self._idle: deque[_Seat] = deque()
        self._queue: deque[_Job] = deque()
        self._deaths: deque[float] = deque()
        self._died = 0
        self._last_death = ""
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Self:
        self.resize(self._size)
        if self._scaler is not None:
            self._scaling = asyncio.create_task(
                self._scale(self._scaler), name=f"{self._spec.name} scaling"
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(deadline_s=0.0 if kind is not None else self._policy.grace_s)

    def resize(self, size: int) -> None:
        """Have `size` workers: the missing are started, the surplus ends with its work at hand."""
        self.check()
        if size < 0:
            raise UsageError(f"there cannot be {size} workers", where=self._spec.name)
        self._size = size
        kept = [seat for seat in self._seats if not seat.retired]
        for seat in sorted(kept, key=_use)[: max(0, len(kept) - size)]:
            self._retire(seat)
        for _ in range(size - len(kept)):
            seat = _Seat(next(self._numbers))
            name = f"{self._spec.name} seat {seat.number}"
            seat.task = asyncio.get_running_loop().create_task(self._keep(seat), name=name)
            seat.task.add_done_callback(lambda task, seat=seat: self._left(seat, task))
            self._seats.append(seat)

    async def call(
        self, request: Json, *, deadline_s: float, wait_s: float, lease: str = ""
    ) -> Json:
        """Have a worker do `request` within `deadline_s` of its start.

        WorkerTimeout if none takes it within `wait_s`, WorkersKeepDying or WorkersStopped if there
        will be none; else as `Placed.call`. A call that is cancelled leaves the worker to finish
        unheard.
        """
        self.check()
        loop, now = asyncio.get_running_loop(), self._clock.now()
        job = _Job(
            request=request,
            deadline_s=deadline_s,
            lease=lease,
            since=now,
            until=now + wait_s,
            begun=loop.create_future(),
            done=loop.create_future(),
        )
        if self._scaler is not None:
            self._scaler.arrived(now)
        self._queue.append(job)
        self._rouse_idle()
        try:
            async with asyncio.timeout(wait_s):
                await job.begun
        except TimeoutError:
            if job.begun.cancelled():
                raise WorkerTimeout(
                    f"no {self._spec.name} worker took {lease or 'the work'} within {wait_s:g} s",
                    where=self._on(),
                    hint="have more workers, or wait longer; then resume",
                ) from None
        finally:
            if job in self._queue:
                self._queue.remove(job)
        return await job.done

    def check(self) -> None:
        """Raise what has ended the supervision, if anything has."""
        if self._failure is not None:
            raise self._failure

    def state(self) -> SupervisorState:
        ready = [seat for seat in self._seats if seat.placed is not None]
        return SupervisorState(
            kind=self._spec.name,
            wanted=self._size,
            ready=len(ready),
            busy=sum(seat.job is not None for seat in ready),
            deaths=self._died,
            queued=len(self._queue),
            last_death=self._last_death,
        )

    def waits(self) -> list[Wait]:
        """The calls that wait for a worker, the oldest first."""
        return [
            Wait(
                who=job.lease,
                domain=self._spec.domain,
                what=f"an idle {self._spec.name} worker",
                on=self._on(),
                since=job.since,
                until=job.until,
            )
            for job in self._queue
        ]

    async def close(self, *, deadline_s: float) -> None:
        """End all workers: what is at work may finish for `deadline_s` seconds; nothing stays."""
        self._give_up(WorkersStopped(f"the {self._spec.name} workers were stopped"))
        tasks = [seat.task for seat in self._seats if seat.task is not None]
        if self._scaling is not None:
            self._scaling.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=deadline_s)
        for task in tasks:
            task.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=_END_S)
            if left:
                names = ", ".join(sorted(task.get_name() for task in left))
                raise PlacementError(
                    f"workers do not end: {names}", where=f"{_END_S:g} s after the deadline"
                )

    async def _scale(self, scaler: Scaler) -> None:
        while self._failure is None:
            await asyncio.sleep(SCALE_EVERY_S)
            backlog, now = len(self._queue), self._clock.now()
            size = scaler.target(now, backlog=backlog, current=self._size)
            if size != self._size and self._failure is None:
                self.resize(size)

    # --- a seat and the lives of its workers -----------------------------------------------

    async def _keep(self, seat: _Seat) -> None:
        """Fill the seat again and again until it is retired."""
        while not seat.retired:
            if seat.streak:
                await asyncio.sleep(self._policy.pause(seat.streak))
            seat.worked, seat.since = False, None
            why = await self._live(seat)
            if not seat.retired:
                now = self._clock.now()
                lived = 0.0 if seat.since is None else now - seat.since
                fresh = seat.worked or lived >= self._policy.settled_s
                seat.streak = 1 if fresh else seat.streak + 1
                self._note_death(why)

    async def _live(self, seat: _Seat) -> str:
        """One worker from its start to its end; says why it ended."""
        try:
            placed = await self._placement.place(self._spec, self._needs)
        except InfrastructureError as error:
            return str(error)
        ended = asyncio.ensure_future(placed.ended())
        ended.add_done_callback(lambda _: seat.rouse())
        seat.placed, seat.since = placed, self._clock.now()
        try:
            alive = True
            while alive and (job := await self._next(seat, ended)) is not None:
                alive = await self._do(seat, placed, job)
        finally:
            seat.placed = None
            await self._stop(placed)
            ended.cancel()
        return await placed.ended()

    async def _stop(self, placed: Placed) -> None:
        """End a worker gently; if this is cancelled, at once."""
        try:
            await placed.stop(grace_s=self._policy.grace_s)
        except asyncio.CancelledError:
            await placed.stop(grace_s=0.0)
            raise

    async def _next(self, seat: _Seat, ended: asyncio.Future[str]) -> _Job | None:
        """The next piece of work; None once the worker is not to have any more."""
        try:
            while not (seat.retired or ended.done()):
                if self._queue:
                    return self._queue.popleft()
                seat.wake = asyncio.get_running_loop().create_future()
                self._idle.append(seat)
                await seat.wake
        finally:
            if seat in self._idle:
                self._idle.remove(seat)
        self._rouse_idle()
        return None

    async def _do(self, seat: _Seat, placed: Placed, job: _Job) -> bool:
        """Have the worker do it; what comes of it is the caller's. Whether the worker lives."""
        if not job.begun.done():
            job.begun.set_result(None)
        seat.job, seat.job_since = job, self._clock.now()
        lost: HeadraceError | None = WorkerLost(f"{placed.id} was stopped at its work")
        try:
            result = await placed.call(job.request, deadline_s=job.deadline_s)
            lost = None
            if not job.done.done():
                job.done.set_result(result)
        except (WorkerLost, WorkOverdue) as error:
            lost = error
        except HeadraceError as error:
            lost = None
            job.fail(error)
        finally:
            seat.job = None
            if lost is not None:
                self._lose(placed, job, lost)
        if lost is None:
            seat.worked = True
            if self._scaler is not None:
                now = self._clock.now()
                self._scaler.served(now, now - seat.job_since)
        return lost is None

    def _lose(self, placed: Placed, job: _Job, error: HeadraceError) -> None:
        self._on_loss(Loss(lease=job.lease, worker=placed.id, why=str(error), at=self._clock.now()))
        job.fail(error)

    def _note_death(self, why: str) -> None:
        """Count it; too many within a while end the supervision."""
        now, policy = self._clock.now(), self._policy
        self._died += 1
        self._last_death = why
        self._deaths.append(now)
        while self._deaths[0] <= now - policy.within_s:
            self._deaths.popleft()
        if len(self._deaths) > policy.deaths:
            self._give_up(
                WorkersKeepDying(
                    f"{len(self._deaths)} {self._spec.name} workers died within "
                    f"{policy.within_s:g} s, the last one because: {why}",
                    where=self._spec.entry,
                    hint="see to the cause, then resume; nothing of the work is lost",
                )
            )

    def _give_up(self, failure: BaseException) -> None:
        """Retire every seat, and tell whoever waits; the first failure is the one to be told."""
        if self._failure is None:
            self._failure = failure
        told = self._failure
        lost = WorkerLost(f"no {self._spec.name} worker will take it", where=str(told))
        for job in self._queue:
            job.fail(told if isinstance(told, HeadraceError) else lost)
        for seat in self._seats:
            self._retire(seat)

    def _retire(self, seat: _Seat) -> None:
        """Leave the seat empty: at once if its worker is not at work, else after that."""
        if not seat.retired:
            seat.retired = True
            if seat.placed is not None:
                seat.rouse()
            elif seat.task is not None and seat.task is not asyncio.current_task():
                seat.task.cancel()

    def _left(self, seat: _Seat, task: asyncio.Task[None]) -> None:
        """A seat's task is over: retired, or by an error that ends the supervision."""
        self._seats.remove(seat)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._give_up(error)

    def _rouse_idle(self) -> None:
        if self._queue and self._idle:
            self._idle.popleft().rouse()

    def _on(self) -> str:
        """What all the workers are doing."""
        return "; ".join(self._doings()) or "there are no workers"

    def _doings(self) -> Iterator[str]:
        now = self._clock.now()
        for seat in self._seats:
            if seat.placed is None:
                yield f"seat {seat.number} has no worker ({self._last_death or 'it is starting'})"
            elif seat.job is not None:
                at = seat.job.lease or "work"
                yield f"{seat.placed.id} is at {at} for {now - seat.job_since:.0f} s"
            else:
                yield f"{seat.placed.id} is {seat.placed.state}"


def _use(seat: _Seat) -> tuple[bool, bool, int]:
    """What is given up first when there are too many: the empty, then the idle, the newest."""
    return seat.job is not None, seat.placed is not None, -seat.number
