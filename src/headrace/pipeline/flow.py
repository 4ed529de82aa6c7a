"""The flow of groups: admitted, played, judged, ready; each step of it a leased work item.

What is done to a group is `Stages`' business, who does it and when is decided here, on the
broker's word: an attempt is judged as soon as its group is played, verdicts come back late and
in any order, and sampling never waits for them. Runs on one event loop, in real or in virtual
time; every wait says what it waits for and has a deadline.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Protocol, Self

from headrace.environments.single_turn import Group
from headrace.errors import InfrastructureError
from headrace.pipeline.breaker import Breaker, BreakerOpen, BreakerPolicy, Permit
from headrace.pipeline.broker import Broker, Done, Lease, Work
from headrace.pipeline.clock import Clock
from headrace.pipeline.desk import Aside, Desk, at_once
from headrace.pipeline.waits import Waits
from headrace.types import Trajectory

__all__ = ["Flow", "FlowSpec", "Purpose", "Stages"]

Purpose = Literal["train", "evaluate"]

_PLAYS: dict[Purpose, str] = {"train": "play", "evaluate": "evaluate"}
_VERDICTS: dict[Purpose, str] = {"train": "verify", "evaluate": "score"}
_PLAY_KINDS, _VERDICT_KINDS = list(_PLAYS.values()), list(_VERDICTS.values())
_PRIORITY = {"score": 0, "verify": 0, "evaluate": 1, "play": 2}
_WORKER = "main"
_TICK_S = 0.5
_SHOWN = 3
_BREAKING = BreakerPolicy(failure_rate=0.9, minimum=20, pause_s=5.0, longest_pause_s=60.0)


class Stages(Protocol):
    """What is done to a group on its way; what was played is durable before it is returned."""

    def begin(
        self, groups: Sequence[Group], purpose: Purpose
    ) -> Sequence[Awaitable[list[Trajectory]]]:
        """Start playing all `groups` in this order; each yields its attempts, unjudged."""
        ...

    async def judge(self, attempt: Trajectory) -> Trajectory:
        """The attempt with a verdict, which may be that of the infrastructure."""
        ...

    async def keep(self, judged: Trajectory, purpose: Purpose) -> None:
        """Put the verdict that counts on disk."""
        ...

    def cost(self, group: Group) -> float:
        """What playing `group` is expected to cost, in sampled tokens."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSpec:
    """At most `inference` attempts are sampled and `verdicts` worked on at once, of which
    `verdicts_per_domain` (None: all) may be of one domain, so that a slow one leaves room.

    A lease holds for `lease_s` without a heartbeat. A wait during which nothing at all arrives
    for `patience_s` is given up.
    """

    inference: int
    verdicts: int
    verdicts_per_domain: int | None = None
    lease_s: float = 300.0
    patience_s: float = 3600.0


@dataclass(slots=True, eq=False)
class _Held:
    """A group on its way: its attempts once they are played, and those without a verdict."""

    group: Group
    purpose: Purpose
    batch: str | None = None
    before: bool = False
    attempts: list[Trajectory] = field(default_factory=list[Trajectory])
    open: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def ready(self) -> bool:
        return bool(self.attempts) and not self.open

    def played(self, attempts: Sequence[Trajectory]) -> None:
        self.attempts = list(attempts)
        self.open = {a.id: i for i, a in enumerate(attempts) if a.verdict is None}


class Flow:
    """Groups on their way through play and verification; `async with` it.

    `arrived(group, attempts)` is called once the last verdict of a group is there; the group is
    ready then, and stays until it is `take`n. Leases left by an earlier life are void. The
    broker is spoken to by `aside`.
    """

    def __init__(
        self,
        spec: FlowSpec,
        stages: Stages,
        broker: Broker,
        clock: Clock,
        waits: Waits,
        *,
        arrived: Callable[[Group, Sequence[Trajectory]], None] = lambda group, attempts: None,
        aside: Aside = at_once,
    ) -> None:
        self._spec, self._stages, self._clock = spec, stages, clock
        self._desk = Desk(broker, _WORKER, spec.lease_s, aside)
        self._waits, self._arrived = waits, arrived
        self._held: dict[str, _Held] = {}
        self._leases: dict[int, Lease] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._breakers: dict[str, Breaker] = {}
        self._sampling = 0
        self._judging: Counter[str] = Counter()
        self._continuous = self._inherited = False
        self._signal, self._poked = asyncio.Event(), asyncio.Event()
        self._idle = True
        self._moved = clock.now()
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Self:
        self._inherited = await self._desk.open()
        self._spawn(self._dispatching())
        self._spawn(self._tick())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if error is None:
            await self._desk.deliver()
        self._waits.write(at_once=True)

    # --- what the pipeline asks for --------------------------------------------------------

    def play_continuously(self) -> None:
        """From now on play whatever is admitted as soon as there is room for it."""
        self._continuous = True
        self._poke()

    def admit(
        self, groups: Sequence[Group], *, purpose: Purpose = "train", batch: str | None = None
    ) -> None:
        """Take `groups` in: each is to be played, those of a batch by `play`."""
        for group in groups:
            self._held[group.id] = _Held(group, purpose, batch)
        self._void(groups)
        kind = _PLAYS[purpose]
        works = [
            Work(
                kind=kind,
                key=group.id,
                domain=group.task.domain,
                payload=f"task:{group.id}",
                cost=self._stages.cost(group),
                priority=_PRIORITY[kind],
                group=group.id,
                batch=batch,
            )
            for group in groups
        ]
        self._desk.enqueue(works)
        self._poke()

    def readmit(
        self, group: Group, attempts: Sequence[Trajectory], *, purpose: Purpose = "train"
    ) -> None:
        """Take in a group that was played in an earlier life; missing verdicts are to come."""
        held = self._held[group.id] = _Held(group, purpose, before=True)
        held.played(attempts)
        self._void([group])
        self._desk.enqueue(self._verdicts_of(held))
        if held.ready:
            self._arrived(group, held.attempts)
        self._poke()

    async def play(self, batch: str) -> None:
        """Play all groups of `batch`, together and in the order of their admission; where play
        is continuous, whenever there is room for them."""
        keys = [key for key, held in self._held.items() if held.batch == batch]
        if not self._continuous:
            await self._start_batch(batch, keys)
        await self._until(
            f"the attempts of batch {batch}",
            lambda: [key for key in keys if not self._held[key].attempts],
        )

    async def _start_batch(self, batch: str, keys: Sequence[str]) -> None:
        claimed = await self._desk.claim_batch(_PLAY_KINDS, batch, max(1, len(keys)))
        leases = self._wanted(claimed)
        if {lease.key for lease in leases} != set(keys):
            raise InfrastructureError(
                f"the queue gave {len(leases)} of the {len(keys)} groups of batch {batch}",
                where="pipeline",
                hint="does another process work on this queue? resume when it has ended",
            )
        self._start(sorted(leases, key=lambda lease: keys.index(lease.key)))

    async def ready(self, groups: Iterable[str]) -> None:
        """Wait until all verdicts on `groups` are there."""
        wanted = list(groups)
        await self._until("verdicts", lambda: [key for key in wanted if not self._held[key].ready])

    async def until(self, what: str, missing: Callable[[], Sequence[str]]) -> None:
        """Wait until nothing is missing any more; asked whenever something has moved."""
        await self._until(what, missing)

    def beside(self, work: Coroutine[object, object, object]) -> None:
        """Have something else done meanwhile; what it raises reaches whoever waits next."""
        self._spawn(work)

    def is_ready(self, group: str) -> bool:
        return self._held[group].ready

    def was_played_before(self, group: str) -> bool:
        """Whether an earlier life of the run played it."""
        return self._held[group].before

    def attempts(self, group: str) -> list[Trajectory]:
        """The attempts of a group, as far as they are there."""
        return self._held[group].attempts

    def take(self, groups: Iterable[str]) -> list[Trajectory]:
        """The attempts of ready groups, which leave."""
        leaving = [self._held.pop(key) for key in groups]
        self._forget([held.group for held in leaving])
        return [attempt for held in leaving for attempt in held.attempts]

    def _void(self, groups: Sequence[Group]) -> None:
        """Remove what an earlier life left of these groups in the queue, done or not."""
        if self._inherited:
            self._desk.void(_keys(groups))

    def _forget(self, groups: Sequence[Group]) -> None:
        """Remove what has ended of these groups from the queue: the store knows of it."""
        self._desk.forget(_keys(groups))

    # --- waiting ---------------------------------------------------------------------------

    async def _until(self, what: str, missing: Callable[[], Sequence[str]]) -> None:
        """Until nothing is missing, and all has been started for which there is room: whoever
        waited may now learn for minutes in the thread that everything else runs in."""
        self._moved = self._clock.now()

        def on() -> str:
            return self._describe(missing())

        with self._waits.waiting(what, on, seconds=self._spec.patience_s):
            while missing() or not self._idle:
                if self._failure is not None:
                    raise self._failure
                left = self._moved + self._spec.patience_s - self._clock.now()
                if left <= 0:
                    raise InfrastructureError(
                        f"waited {self._spec.patience_s:g} s for {what} and nothing came: {on()}",
                        where="pipeline",
                        hint="resume; if it comes again, look at headrace show latest --waits",
                    )
                self._signal.clear()
                self._waits.write()
                await self._signalled(left)

    async def _signalled(self, seconds: float) -> None:
        """Until something moves, or `seconds` have passed."""
        waiting = asyncio.ensure_future(self._signal.wait())
        await asyncio.wait([waiting], timeout=seconds)
        waiting.cancel()

    def _describe(self, groups: Sequence[str]) -> str:
        parts = [f"{key} ({self._stage(key)})" for key in groups[:_SHOWN]]
        more = f" and {len(groups) - _SHOWN} more" if len(groups) > _SHOWN else ""
        return ", ".join(parts) + more

    def _stage(self, key: str) -> str:
        held = self._held.get(key)
        if held is None:
            return "not admitted"
        if not held.attempts:
            return "being played"
        return f"{len(held.open)} of {len(held.attempts)} verdicts missing"

    def _notify(self) -> None:
        self._moved = self._clock.now()
        self._signal.set()

    # --- dispatching -----------------------------------------------------------------------

    def _poke(self) -> None:
        self._idle = False
        self._poked.set()

    async def _dispatching(self) -> None:
        """Whenever something has moved, tell the queue and start as much as there is room for."""
        while True:
            if not self._poked.is_set():
                self._idle = True
                self._signal.set()
            await self._poked.wait()
            self._poked.clear()
            await self._desk.deliver()
            while (room := self._spec.verdicts - self._judging.total()) > 0:
                leases = self._wanted(await self._desk.claim(_VERDICT_KINDS, room, self._shut()))
                started = [lease for lease in leases if self._start_verdict(lease)]
                if not started:
                    break
            if self._continuous:
                self._start(await self._affordable())
            await asyncio.sleep(0)  # what was started takes its first step

    def _start_verdict(self, lease: Lease) -> bool:
        """Ask for a verdict, unless its domain has enough or its verifier is only being probed."""
        now = self._clock.now()
        breaker = self._breakers.setdefault(
            lease.domain, Breaker(f"the verifier of {lease.domain}", _BREAKING, now=now)
        )
        permit = None if self._is_full(lease.domain) else _permit(breaker, now)
        if permit is None:
            self._leases.pop(lease.id)
            self._desk.release(lease)
            return False
        self._judging[lease.domain] += 1
        self._spawn(self._judge(lease, breaker, permit))
        return True

    def _is_full(self, domain: str) -> bool:
        most = self._spec.verdicts_per_domain
        return most is not None and self._judging[domain] >= most

    def _shut(self) -> list[str]:
        """Domains of which no verdict is begun now: they have enough at work, or their verifier
        failed all the time by no fault of the attempts and is left alone for a while."""
        now = self._clock.now()
        pauses = {name: b.state(now).probe_at for name, b in self._breakers.items()}
        return [
            name
            for name, probe_at in pauses.items()
            if self._is_full(name) or (probe_at is not None and probe_at > now)
        ]

    async def _affordable(self) -> list[Lease]:
        """Leases of groups to play, until those in flight are as many as may be."""
        leases: list[Lease] = []
        sampling = self._sampling
        largest = max((held.group.size for held in self._held.values()), default=1)
        while (room := self._spec.inference - sampling) > 0:
            claimed = self._wanted(await self._desk.claim(_PLAY_KINDS, -(-room // largest)))
            if not claimed:
                break
            leases += claimed
            sampling += sum(self._held[lease.key].group.size for lease in claimed)
        return leases

    def _wanted(self, leases: Sequence[Lease]) -> list[Lease]:
        """Those on work that is still to do; what nobody waits for any more is cancelled."""
        wanted = [lease for lease in leases if self._is_wanted(lease)]
        self._desk.void(lease.key for lease in leases if not self._is_wanted(lease))
        self._leases |= {lease.id: lease for lease in wanted}
        return wanted

    def _is_wanted(self, lease: Lease) -> bool:
        held = self._held.get(lease.group or "")
        if held is None:
            return False
        return lease.key in held.open or (lease.key == held.group.id and not held.attempts)

    def _start(self, leases: Sequence[Lease]) -> None:
        """Begin to play, all at once and in order."""
        by_purpose: dict[Purpose, list[Lease]] = {}
        for lease in leases:
            by_purpose.setdefault(self._held[lease.key].purpose, []).append(lease)
        for purpose, mine in by_purpose.items():
            groups = [self._held[lease.key].group for lease in mine]
            self._sampling += sum(group.size for group in groups)
            begun = self._stages.begin(groups, purpose)
            for lease, group, attempts in zip(mine, groups, begun, strict=True):
                self._spawn(self._play(lease, group, attempts))

    async def _play(self, lease: Lease, group: Group, begun: Awaitable[list[Trajectory]]) -> None:
        attempts = await begun
        self._sampling -= group.size
        self._leases.pop(lease.id, None)
        held = self._held.get(group.id)
        follow: list[Work] = []
        if held is not None and not held.attempts:
            held.played(attempts)
            follow = self._verdicts_of(held)
        tokens = sum(attempt.sampled_tokens for attempt in attempts)
        done = Done(lease, f"group:{group.id}", float(tokens), then=tuple(follow))
        self._desk.commit(done)
        if held is not None and held.ready:
            self._arrived(group, held.attempts)
        self._notify()
        self._poke()

    def _verdicts_of(self, held: _Held) -> list[Work]:
        kind = _VERDICTS[held.purpose]
        return [
            Work(
                kind=kind,
                key=attempt.id,
                domain=held.group.task.domain,
                payload=f"trajectory:{attempt.id}",
                priority=_PRIORITY[kind],
                group=held.group.id,
            )
            for attempt in held.attempts
            if attempt.verdict is None
        ]

    async def _judge(self, lease: Lease, breaker: Breaker, permit: Permit) -> None:
        held = self._held[lease.group or ""]
        attempt = held.attempts[held.open[lease.key]]
        started = self._clock.now()
        judged = await self._stages.judge(attempt)
        now = self._clock.now()
        self._judging[lease.domain] -= 1
        self._leases.pop(lease.id, None)
        prevented = _prevented(judged)
        if prevented is None:
            breaker.succeeded(permit, now)
        else:
            breaker.failed(permit, now, prevented)
        if prevented is None or not await self._desk.failed(lease, prevented):
            await self._settle(lease, held, judged, now - started)
        self._notify()
        self._poke()

    async def _settle(self, lease: Lease, held: _Held, judged: Trajectory, seconds: float) -> None:
        """A verdict counts: it is written down, and perhaps the group is ready with it."""
        await self._stages.keep(judged, held.purpose)
        self._desk.commit(Done(lease, f"verdict:{lease.key}", seconds))
        place = held.open.pop(lease.key, None)
        if place is not None:
            held.attempts[place] = judged
        if held.ready and held.group.id in self._held:
            self._arrived(held.group, held.attempts)

    # --- in the background -----------------------------------------------------------------

    def _spawn(self, work: Coroutine[object, object, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self._notify()

    async def _tick(self) -> None:
        """Keep leases alive, and look for work whose time has come."""
        beat = self._clock.now()
        while True:
            await asyncio.sleep(_TICK_S)
            if self._clock.now() - beat > self._spec.lease_s / 4:
                await self._desk.keep_alive(list(self._leases.values()))
                beat = self._clock.now()
            self._waits.write()
            self._poke()


def _permit(breaker: Breaker, now: float) -> Permit | None:
    try:
        return breaker.enter(now)
    except BreakerOpen:
        return None


def _prevented(judged: Trajectory) -> str | None:
    """Why there is no verdict, where the infrastructure prevented it."""
    verdict = judged.verdict
    if verdict is None or verdict.score is not None or verdict.fault != "infrastructure":
        return None
    return verdict.evidence or "the infrastructure failed"


def _keys(groups: Sequence[Group]) -> list[str]:
    """The keys of all work on `groups`: of playing them, and of the verdicts on their attempts."""
    attempts = [f"{g.id}/{n}" for g in groups for n in range(g.size + g.spare)]
    return [*(group.id for group in groups), *attempts]
