"""Judging many attempts at once: in order, with deadlines, never the same thing twice.

Threads wait for verifiers; what is fragile in a verifier runs in a child process or a sandbox
with limits of its own, so a thread comes back. One that does not is left behind and replaced: it
costs its own verdict, which has no score then, and nobody else's. Known by environments,
evaluation and pipeline; knows no verifier in particular.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from headrace.errors import UsageError, VerifierError
from headrace.protocols import Verifier
from headrace.types import Task, Trajectory, Verdict
from headrace.verify.cache import DiskCache, MemoryCache, verdict_key
from headrace.verify.verdicts import unjudged

__all__ = ["DEADLINE_S", "WORKERS", "PoolStats", "Seconds", "VerificationPool"]

WORKERS = 4
DEADLINE_S = 600.0
"""Above what verifiers allow themselves: a child that loads, a sandbox that is tried twice."""

_IDLE_S = 5.0
_CLOSE_S = 5.0
_MOST_STUCK = 32
_REMEMBERED = 4096

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """How long the last verdicts of a verifier took, in seconds; `count` is of all of them."""

    count: int
    p50: float
    p95: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """What a pool has done so far.

    `judged` attempts were put to a verifier, `cached` ones were not, `retried` ones twice.
    `unjudged` counts attempts without a score by fault, `stalled` the verdicts that were given
    up at the deadline by verifier id, `seconds` the time in verifiers by verifier id.
    """

    judged: int
    cached: int
    retried: int
    unjudged: Mapping[str, int]
    stalled: Mapping[str, int]
    seconds: Mapping[str, Seconds]


class _Handover:
    """Carries what a block raises to whoever waits for it; nothing is lost on the way."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> bool:
        self.error = error
        return True


class _Batch:
    """The jobs of one call: how many attempts wait for them."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0


@dataclass(slots=True, eq=False, kw_only=True)
class _Job:
    """One verdict to be made, for `copies` attempts that have the same key."""

    batch: _Batch
    key: str
    verifier: Verifier
    task: Task
    text: str
    copies: int = 1
    started: float = 0.0
    verdict: Verdict | None = None
    error: BaseException | None = None

    @property
    def ended(self) -> bool:
        return self.verdict is not None or self.error is not None


class _Worker(threading.Thread):
    """A thread that takes one job after the other until it is told, or left, to go."""

    def __init__(self, pool: VerificationPool) -> None:
        super().__init__(name="headrace-verify", daemon=True)
        self.job: _Job | None = None
        self.retired = False
        self._pool = pool

    def run(self) -> None:
        while (job := self._pool.next_job(self)) is not None:
            self._pool.work(self, job)


class VerificationPool:
    """Verdicts for many attempts, `workers` of them being made at a time.

    `verifiers` by domain name. `deadline_s` bounds one try at one verdict from its own start,
    however long it waited for its turn; beyond it the attempt is unjudged, by the verifier's
    fault, and `warn` (if given) hears which verifier it was. A verdict missing by fault of the
    infrastructure is tried once more. Scores are kept in memory, and in `cache` if given; what
    has none is asked for again. For several threads at once.

    >>> with VerificationPool({"arithmetic": FinalInteger()}) as pool:  # doctest: +SKIP
    ...     judged = pool.judge(played)
    """

    def __init__(
        self,
        verifiers: Mapping[str, Verifier],
        *,
        workers: int = WORKERS,
        deadline_s: float = DEADLINE_S,
        cache: DiskCache | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        if workers < 1 or deadline_s <= 0:
            raise UsageError(
                f"a verification pool needs workers and time, not {workers} and {deadline_s} s",
                where="verify",
            )
        self._verifiers = dict(verifiers)
        self._size, self._deadline_s = workers, deadline_s
        self._memory, self._disk = MemoryCache(), cache
        self._warn = warn
        self._changed = threading.Condition()
        self._queue: deque[_Job] = deque()
        self._workers: list[_Worker] = []
        self._stuck: list[_Worker] = []
        self._counts: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._stalled: Counter[str] = Counter()
        self._tries: Counter[str] = Counter()
        self._seconds: dict[str, deque[float]] = {}

    def judge(
        self, trajectories: Sequence[Trajectory], on_progress: OnProgress | None = None
    ) -> list[Trajectory]:
        """Each attempt with its verdict, in order; `on_progress(done, total)` from this thread.

        A programming error in a verifier is raised here, the first in order, once all others
        have ended. VerifierError if so many verdicts hang that none can be expected any more.
        """
        batch = _Batch(len(trajectories))
        jobs = self._jobs(batch, trajectories)
        distinct = list(dict.fromkeys(jobs))
        self._run(batch, [job for job in distinct if not job.ended], on_progress)
        errors = [job.error for job in distinct if job.error is not None]
        if errors:
            if len(errors) > 1:
                errors[0].add_note(f"{len(errors) - 1} more attempts could not be judged either")
            raise errors[0]
        return [self._judged(t, job) for t, job in zip(trajectories, jobs, strict=True)]

    def stats(self) -> PoolStats:
        """The counts so far."""
        with self._changed:
            return PoolStats(
                judged=self._counts["judged"],
                cached=self._counts["cached"],
                retried=self._counts["retried"],
                unjudged=dict(self._faults),
                stalled=dict(self._stalled),
                seconds={
                    name: Seconds(
                        count=self._tries[name],
                        p50=float(np.percentile(times, 50)),
                        p95=float(np.percentile(times, 95)),
                    )
                    for name, times in self._seconds.items()
                },
            )

    def close(self) -> None:
        """Let the threads go; a later call starts new ones. One that hangs is not waited for."""
        with self._changed:
            leaving, self._workers = self._workers, []
            for worker in leaving:
                worker.retired = True
            self._changed.notify_all()
        until = time.monotonic() + _CLOSE_S
        for worker in leaving:
            worker.join(max(0.0, until - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- a call ----------------------------------------------------------------------------

    def _jobs(self, batch: _Batch, trajectories: Sequence[Trajectory]) -> list[_Job]:
        """The job of each attempt: one for all with the same key, ended if it is known."""
        by_key: dict[str, _Job] = {}
        jobs: list[_Job] = []
        for trajectory in trajectories:
            task, text = trajectory.task, trajectory.completion
            verifier = self._verifiers[task.domain]
            key = verdict_key(task, text, verifier.ref)
            if key in by_key:
                by_key[key].copies += 1
                self._count("cached")
            else:
                job = _Job(batch=batch, key=key, verifier=verifier, task=task, text=text)
                job.verdict = self._known(key)
                by_key[key] = job
                self._count("judged" if job.verdict is None else "cached")
            jobs.append(by_key[key])
        batch.done = sum(job.ended for job in jobs)
        return jobs

    def _known(self, key: str) -> Verdict | None:
        found = self._memory.get(key)
        if found is None and self._disk is not None:
            found = self._disk.get(key)
            if found is not None:
                self._memory.put(key, found)
        return found

    def _run(self, batch: _Batch, jobs: Sequence[_Job], on_progress: OnProgress | None) -> None:
        """Have the jobs done; returns when all have ended."""
        told = -1
        try:
            with self._changed:
                self._queue.extend(jobs)
                self._changed.notify_all()
            while True:
                with self._changed:
                    self._staff()
                    if batch.done == told and batch.done < batch.total:
                        self._changed.wait(self._until_next_deadline())
                    offenders = self._give_up_overdue()
                    done = batch.done
                self._report(offenders)
                if done != told and on_progress is not None:
                    on_progress(done, batch.total)
                told = done
                if done == batch.total:
                    return
        finally:
            with self._changed:
                self._queue = deque(job for job in self._queue if job.batch is not batch)

    def _judged(self, trajectory: Trajectory, job: _Job) -> Trajectory:
        assert job.verdict is not None
        if job.verdict.score is None:
            with self._changed:
                self._faults[job.verdict.fault or "verifier"] += 1
        return trajectory.judged(job.verdict)

    def _count(self, what: str) -> None:
        with self._changed:
            self._counts[what] += 1

    # --- deadlines (with the lock held) ----------------------------------------------------

    def _until_next_deadline(self) -> float | None:
        started = [job.started for _, job in self._running()]
        if not started:
            return None
        return max(0.0, min(started) + self._deadline_s - time.monotonic())

    def _running(self) -> list[tuple[_Worker, _Job]]:
        at_work = ((worker, worker.job) for worker in self._workers)
        return [(worker, job) for worker, job in at_work if job is not None and not job.ended]

    def _give_up_overdue(self) -> list[str]:
        """Take the verdicts that are overdue from their threads; the ids of their verifiers."""
        now = time.monotonic()
        offenders: list[str] = []
        for worker, job in self._running():
            if now < job.started + self._deadline_s:
                continue
            ref = job.verifier.ref
            why = {
                "why": f"the verifier gave no verdict within {self._deadline_s:g} s",
                "verifier": ref.id,
                "domain": job.task.domain,
            }
            worker.retired = True
            self._workers.remove(worker)
            self._stuck.append(worker)
            self._stalled[ref.id] += 1
            offenders.append(ref.id)
            self._end(job, unjudged(ref, "verifier", why), None)
        if offenders:
            self._stuck = [worker for worker in self._stuck if worker.is_alive()]
        return offenders

    def _report(self, offenders: Sequence[str]) -> None:
        for offender in offenders:
            if self._warn is not None:
                self._warn(
                    f"the verifier {offender} gave no verdict within {self._deadline_s:g} s: the "
                    "attempt is unjudged and a thread is left behind"
                )
        with self._changed:
            stuck = len(self._stuck)
            worst = self._stalled.most_common(1)
        if offenders and stuck >= _MOST_STUCK:
            raise VerifierError(
                f"{stuck} verdicts hang, most of the verifier {worst[0][0]}",
                where=f"{self._deadline_s:g} s each",
                hint="mend the verifier (its own limits must end what hangs), then resume",
            )

    def _staff(self) -> None:
        """As many threads as there is work for."""
        idle = sum(worker.job is None for worker in self._workers)
        wanted = min(len(self._queue) - idle, self._size - len(self._workers))
        for _ in range(wanted):
            worker = _Worker(self)
            worker.start()
            self._workers.append(worker)

    def _end(self, job: _Job, verdict: Verdict | None, error: BaseException | None) -> None:
        if not job.ended:
            job.verdict, job.error = verdict, error
            job.batch.done += job.copies
            self._changed.notify_all()

    # --- in a worker's thread --------------------------------------------------------------

    def next_job(self, worker: _Worker) -> _Job | None:
        """The worker's next job; None when it may go."""
        with self._changed:
            worker.job = None
            while worker.retired or not self._queue:
                if worker.retired or not (self._changed.wait(_IDLE_S) or self._queue):
                    if worker in self._workers:
                        self._workers.remove(worker)
                    return None
            worker.job = self._queue.popleft()
            worker.job.started = time.monotonic()
            self._changed.notify_all()
            return worker.job

    def work(self, worker: _Worker, job: _Job) -> None:
        """Make the verdict; whatever is raised goes to the caller who waits for it."""
        verdict: Verdict | None = None
        with _Handover() as handover:
            verdict = self._timed(job)
            if verdict.score is None and verdict.fault == "infrastructure":
                verdict = self._once_more(worker, job) or verdict
            if verdict.score is not None and not worker.retired:
                self._memory.put(job.key, verdict)
                if self._disk is not None:
                    self._disk.put(job.key, verdict)
        with self._changed:
            self._end(job, verdict if handover.error is None else None, handover.error)

    def _once_more(self, worker: _Worker, job: _Job) -> Verdict | None:
        with self._changed:
            if worker.retired:
                return None
            job.started = time.monotonic()
            self._counts["retried"] += 1
        return self._timed(job)

    def _timed(self, job: _Job) -> Verdict:
        started = time.perf_counter()
        verdict = job.verifier.judge(job.task, job.text)
        name, seconds = job.verifier.ref.id, time.perf_counter() - started
        with self._changed:
            self._tries[name] += 1
            self._seconds.setdefault(name, deque(maxlen=_REMEMBERED)).append(seconds)
        return verdict
