"""Who exists in a pool, who waits, and who gets what next. No I/O; known by the pool only.

One queue for two scarce things, room (`most` sandboxes in all) and leave to start (`starting` at
once), and for the idle sandboxes that save both.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import math
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.sandbox.pool.handle import PooledSandbox
from headrace.sandbox.pool.leases import Lease, State
from headrace.sandbox.pool.options import PoolOptions
from headrace.sandbox.spec import Backend, Sandbox, SandboxSpec

__all__ = ["Member", "Roster", "Ticket"]


@dataclass(slots=True, eq=False, kw_only=True)
class Member:
    """One sandbox of the pool, from the reservation of its room until it is gone.

    `raw` is the backend's, `handle` the borrower's. `used` counts the borrowers, `broken` says
    why there must not be another one, `once` that it was a fork, `renewing` that it is being
    made new and will soon idle. Times are epoch seconds.
    """

    spec: SandboxSpec
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    state: State = State.STARTING
    backend: Backend | None = None
    lease: Lease | None = None
    raw: Sandbox | None = None
    handle: PooledSandbox | None = None
    expires: float = 0.0
    idle_since: float = 0.0
    used: int = 0
    broken: str = ""
    once: bool = False
    renewing: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Ticket:
    """A place in the queue, kept over retries. `fresh` takes no idle sandbox; `held_until` (loop
    time) starts none before; `waits_for` is in words, "" while it is only queued.
    """

    number: int
    spec: SandboxSpec
    count: int = 1
    fresh: bool = False
    held_until: float = 0.0
    waits_for: str = ""
    granted: asyncio.Future[list[Member]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Roster:
    """The members and the queue. `evict` is called with an idle member to be closed for room;
    `clock` is that of `held_until`.

    `targets` are the kinds to be kept warm and how many of each; `used` says when a kind was
    last asked for (epoch seconds).
    """

    def __init__(
        self,
        options: PoolOptions,
        *,
        evict: Callable[[Member], None],
        clock: Callable[[], float],
    ) -> None:
        self.members: dict[str, Member] = {}
        self.idle: dict[SandboxSpec, list[Member]] = {}
        self.targets: dict[SandboxSpec, int] = {}
        self.used: dict[SandboxSpec, float] = {}
        self._options = options
        self._most = options.most
        self._may_start = options.starting
        self._evict = evict
        self._clock = clock
        self._queue: list[Ticket] = []
        self._counts: Counter[State] = Counter()
        self._numbers = itertools.count()
        self._empty = asyncio.Event()

    @property
    def waiting(self) -> int:
        """How many are in the queue."""
        return len(self._queue)

    @property
    def starting(self) -> int:
        """How many rooms are reserved for sandboxes that do not exist yet."""
        return self._counts[State.STARTING]

    @property
    def next_end(self) -> float:
        """When the next of the living expires (epoch seconds); infinite if none lives."""
        living = (State.WARM, State.LEASED)
        ends = (each.expires for each in self.members.values() if each.state in living)
        return min(ends, default=math.inf)

    def states(self, backend: Backend) -> list[str]:
        """What the members of that backend do now."""
        return [member.state for member in self.members.values() if member.backend is backend]

    def ticket(self, spec: SandboxSpec, *, count: int = 1, fresh: bool = False) -> Ticket:
        """The next ticket, not in the queue yet."""
        return Ticket(number=next(self._numbers), spec=spec, count=count, fresh=fresh)

    def join(self, ticket: Ticket) -> None:
        """Queue it where its number belongs, and serve."""
        ticket.granted = asyncio.get_running_loop().create_future()
        bisect.insort(self._queue, ticket, key=lambda each: each.number)
        self.serve()

    def leave(self, ticket: Ticket) -> None:
        """Out of the queue; what it was already granted goes back."""
        if ticket in self._queue:
            self._queue.remove(ticket)
        elif not ticket.granted.cancelled() and ticket.granted.exception() is None:
            for member in ticket.granted.result():
                if member.raw is None:
                    self._remove(member)
                elif member.state is State.WARM:
                    self.idle.setdefault(member.spec, []).append(member)
        self.serve()

    def refuse(self, error: Exception) -> None:
        """Nobody gets anything any more."""
        for ticket in self._queue:
            if not ticket.granted.done():
                ticket.granted.set_exception(error)
        self._queue.clear()

    def why(self, ticket: Ticket) -> str:
        """What the ticket waits for, in words."""
        if ticket.waits_for:
            return ticket.waits_for
        full = len(self.members) + ticket.count > self._most
        ahead = sum(each.number < ticket.number for each in self._queue)
        thing = (
            f"room: all {self._most} sandboxes are taken"
            if full
            else f"leave to start: {self.starting} are starting"
        )
        return f"{thing}, {ahead} wait ahead"

    def reserve(self, spec: SandboxSpec) -> Member:
        """Room for one that is about to start."""
        member = Member(spec=spec)
        self.members[member.id] = member
        self._counts[member.state] += 1
        return member

    def move(self, member: Member, state: State) -> None:
        """It does something else now. Whoever moves one that was starting serves afterwards."""
        self._counts[member.state] -= 1
        self._counts[state] += 1
        member.state = state

    def shelve(self, member: Member, now: float) -> None:
        """It is idle from `now` on (epoch seconds): the next who wants its kind gets it."""
        self.move(member, State.WARM)
        member.idle_since = now
        self.idle.setdefault(member.spec, []).append(member)
        self.serve()

    def unshelve(self, member: Member) -> None:
        """It is idle no more."""
        shelf = self.idle.get(member.spec, [])
        if member in shelf:
            shelf.remove(member)
        if not shelf:
            self.idle.pop(member.spec, None)

    def drop(self, member: Member) -> None:
        """It is gone, and its room is free."""
        self.unshelve(member)
        self._remove(member)
        self.serve()

    async def emptied(self) -> None:
        """Wait until none exists."""
        while self.members:
            self._empty.clear()
            await self._empty.wait()

    def stock(self, now: float) -> list[Member]:
        """Room reserved for what is lacking of the warm ones, if nobody waits for it."""
        room = min(self._most - len(self.members), self._may_start - self.starting)
        if room <= 0 or self._queue:
            return []
        coming = Counter(
            member.spec
            for member in self.members.values()
            if member.state is State.STARTING or member.renewing
        )
        lacking: list[SandboxSpec] = []
        for spec in {**self.targets, **self.used}:
            there = len(self.idle.get(spec, ())) + coming[spec]
            lacking += [spec] * (self._target(spec, now) - there)
        return [self.reserve(spec) for spec in lacking[:room]]

    def surplus(self, now: float) -> list[Member]:
        """Idle ones that nobody wanted for long, or whose life is too short to be lent."""
        self.used = {spec: at for spec, at in self.used.items() if now < at + self._options.idle_s}
        surplus: list[Member] = []
        for spec, shelf in self.idle.items():
            old = [each for each in shelf if each.expires - now < spec.lifetime_s / 2]
            good = [each for each in shelf if each not in old]
            beyond = good[: max(0, len(good) - self._target(spec, now))]
            surplus += old
            surplus += [each for each in beyond if now >= each.idle_since + self._options.idle_s]
        return surplus

    def _target(self, spec: SandboxSpec, now: float) -> int:
        recent = now < self.used.get(spec, -math.inf) + self._options.idle_s
        return max(self.targets.get(spec, 0), self._options.warm if recent else 0)

    def serve(self) -> None:
        """Grant what can be granted, in order.

        Nobody overtakes who waits for room. While leave to start is short, those whose kind
        idles get it nevertheless; that takes nothing from the others.
        """
        starting = self.starting
        for ticket in tuple(self._queue):
            if ticket.granted.done():
                continue  # cancelled, and about to leave
            if not ticket.fresh and (shelf := self.idle.get(ticket.spec)):
                member = shelf[-1]
                self.unshelve(member)
                self._grant(ticket, [member])
                continue
            if ticket.held_until > self._clock():
                continue
            if starting >= self._may_start:
                if not self.idle:
                    return
                continue
            room = self._most - len(self.members)
            if room < ticket.count:
                self._make_room(ticket.count - room)
                return
            self._grant(ticket, [self.reserve(ticket.spec) for _ in range(ticket.count)])
            starting += ticket.count

    def _grant(self, ticket: Ticket, members: list[Member]) -> None:
        self._queue.remove(ticket)
        ticket.granted.set_result(members)

    def _remove(self, member: Member) -> None:
        if self.members.pop(member.id, None) is not None:
            self._counts[member.state] -= 1
        if not self.members:
            self._empty.set()

    def _make_room(self, wanted: int) -> None:
        for _ in range(wanted - self._counts[State.CLOSING]):
            shelves = list(self.idle.values())
            if not shelves:
                return
            oldest = min((shelf[0] for shelf in shelves), key=lambda member: member.idle_since)
            self.unshelve(oldest)
            self._evict(oldest)
