"""Pools with quotas: inference slots, sandboxes by class and image, accelerators, memory.

Whoever runs something acquires what it needs first: everything at once or nothing, so nobody
holds a part while waiting for the rest and nothing can deadlock here. Used by placements and by
whoever dispatches work; knows neither. Belongs to one event loop.

The order of grants: by priority, then by age, and what does not fit yet is passed over. Each
time a younger request is served from a pool, the oldest one that still waits there counts it;
one that was overtaken `patience` times goes first, and its share of every pool is kept for it
from then on. A request that only its own domain's quota stops keeps nothing from other domains.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from headrace.errors import InfrastructureError, UsageError
from headrace.pipeline.clock import Clock
from headrace.pipeline.needs import Needs, Pool

__all__ = [
    "PATIENCE",
    "Grant",
    "InfeasibleNeeds",
    "PoolUse",
    "ResourceTimeout",
    "Resources",
    "Wait",
]

PATIENCE = 16

_Key = tuple[str, str | None]
"""A pool, or what one domain may hold of it."""
_Draws = tuple[tuple[_Key, int], ...]


class InfeasibleNeeds(UsageError):
    """More is asked for than there will ever be; waiting would not help."""


class ResourceTimeout(InfrastructureError):
    """What was asked for did not become free in time; says who has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Who waits for what, on whom, since when and until when (Clock seconds)."""

    who: str
    domain: str
    what: str
    on: str
    since: float
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """A pool as it is: units held in all and by domain, requests that wait for some of it."""

    name: str
    capacity: int
    used: int
    waiting: int
    by_domain: Mapping[str, int]


class Grant:
    """What was acquired, held until `release`; releasing it again does nothing.

    `with await resources.acquire(...):` holds it for a block.
    """

    __slots__ = ("_give_back", "domain", "draws", "needs", "since", "who")

    def __init__(
        self,
        *,
        needs: Needs,
        draws: _Draws,
        domain: str,
        who: str,
        since: float,
        give_back: Callable[[Grant], None],
    ) -> None:
        self.needs, self.draws = needs, draws
        self.domain, self.who, self.since = domain, who, since
        self._give_back = give_back

    def release(self) -> None:
        self._give_back(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(slots=True, eq=False, kw_only=True)
class _Waiter:
    """A request in the queue; `number` is its age, `due` once it was overtaken too often.

    `draws` is what it takes from `pools` and from its `own` domain's quotas.
    """

    number: int
    who: str
    domain: str
    priority: int
    gang: tuple[Needs, ...]
    draws: _Draws
    pools: _Draws
    own: _Draws
    since: float
    until: float
    granted: asyncio.Future[list[Grant]]
    overtaken: int = 0
    due: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        return self.priority, self.number


_Lanes = dict[tuple[int, str], deque[_Waiter]]
"""Requests for the same amounts, by priority and domain: who differs in nothing stands in line."""


class Resources:
    """Grants from `pools`; `patience`: how often the oldest request on a pool is overtaken."""

    def __init__(self, pools: Sequence[Pool], *, clock: Clock, patience: int = PATIENCE) -> None:
        self._pools = {pool.name: pool for pool in pools}
        if len(self._pools) != len(pools) or patience < 1:
            raise UsageError(f"pools need names of their own, and a patience >= 1: {patience}")
        self._capacity = {pool.name: pool.capacity for pool in pools}
        self._clock, self._patience = clock, patience
        self._used: Counter[_Key] = Counter()
        self._held: dict[Grant, None] = {}
        self._queue: dict[_Draws, _Lanes] = {}
        self._due: list[_Waiter] = []
        self._numbers = 0

    async def acquire(
        self, needs: Needs, *, domain: str, deadline_s: float, who: str, priority: int = 0
    ) -> Grant:
        """All of `needs`, or an error: InfeasibleNeeds at once, ResourceTimeout in time.

        `who` asks, told to whoever waits on it; `domain` is charged; priority 0 comes first.
        """
        grants = await self.acquire_gang(
            [needs], domain=domain, deadline_s=deadline_s, who=who, priority=priority
        )
        return grants[0]

    async def acquire_gang(
        self, gang: Sequence[Needs], *, domain: str, deadline_s: float, who: str, priority: int = 0
    ) -> list[Grant]:
        """A grant for each member, all of them at the same moment; each is released alone."""
        waiter = self._enter(gang, domain, deadline_s, who, priority)
        served = False
        try:
            async with asyncio.timeout(deadline_s):
                grants = await waiter.granted
            served = True
        except TimeoutError:
            if waiter.granted.cancelled():
                raise self._timed_out(waiter, deadline_s) from None
            grants = waiter.granted.result()
            served = True
        finally:
            if not served:
                self._withdraw(waiter)
        return grants

    def try_acquire(
        self, needs: Needs, *, domain: str, who: str, priority: int = 0
    ) -> Grant | None:
        """All of `needs` if it is this request's turn at once, else None; queues nothing."""
        waiter = self._enter([needs], domain, 0.0, who, priority)
        if waiter.granted.done():
            return waiter.granted.result()[0]
        waiter.granted.cancel()
        self._withdraw(waiter)
        return None

    def resize(self, pool: str, capacity: int) -> None:
        """Make an elastic pool larger or smaller; what is held beyond it is not taken away."""
        ceiling = self._pools[pool].ceiling
        if not 0 <= capacity <= ceiling:
            raise UsageError(f"a capacity of {capacity} is not in 0..{ceiling}", where=pool)
        self._capacity[pool] = capacity
        self._settle()

    def waits(self) -> list[Wait]:
        """Every request that waits, the oldest first."""
        return [
            Wait(
                who=waiter.who,
                domain=waiter.domain,
                what=str(_total(waiter.gang)),
                on=self._blockers(waiter),
                since=waiter.since,
                until=waiter.until,
            )
            for waiter in sorted(self._waiting(), key=lambda w: w.number)
        ]

    def usage(self) -> list[PoolUse]:
        """Every pool, in the order in which they were declared."""
        return [
            PoolUse(
                name=name,
                capacity=self._capacity[name],
                used=self._used[name, None],
                waiting=sum((name, None) in dict(w.draws) for w in self._waiting()),
                by_domain=dict(self._holders((name, None))),
            )
            for name in self._pools
        ]

    # --- the queue -------------------------------------------------------------------------

    def _enter(
        self, gang: Sequence[Needs], domain: str, deadline_s: float, who: str, priority: int
    ) -> _Waiter:
        """Queue a request and serve whoever can be served; InfeasibleNeeds if it never can."""
        draws = self._draws(_total(gang), domain, who)
        self._check_feasible(draws, who)
        self._numbers += 1
        now = self._clock.now()
        waiter = _Waiter(
            number=self._numbers,
            who=who,
            domain=domain,
            priority=priority,
            gang=tuple(gang),
            draws=draws,
            pools=tuple(draw for draw in draws if draw[0][1] is None),
            own=tuple(draw for draw in draws if draw[0][1] is not None),
            since=now,
            until=now + deadline_s,
            granted=asyncio.get_running_loop().create_future(),
        )
        lanes = self._queue.setdefault(waiter.pools, {})
        lanes.setdefault((priority, domain), deque()).append(waiter)
        self._settle()
        return waiter

    def _withdraw(self, waiter: _Waiter) -> None:
        """Forget a request that nobody waits for any more, and what it may have been granted."""
        if waiter.granted.done() and not waiter.granted.cancelled():
            for grant in waiter.granted.result():
                grant.release()
            return
        self._leave(waiter)
        if waiter.due:
            self._settle()

    def _settle(self) -> None:
        """Serve everybody whose turn it is."""
        while (waiter := self._next()) is not None:
            self._overtake(waiter)
            self._leave(waiter)
            waiter.granted.set_result([self._grant(waiter, needs) for needs in waiter.gang])

    def _next(self) -> _Waiter | None:
        """The first in order that fits into what is free and not kept for others."""
        kept: Counter[_Key] = Counter()
        for waiter in self._due:
            if not waiter.granted.done():
                if self._fits(waiter.draws, kept):
                    return waiter
                kept.update(dict(self._claims(waiter, kept)))
        first: _Waiter | None = None
        for pools, lanes in self._queue.items():
            if self._fits(pools, kept):
                for waiter in _heads(lanes):
                    earlier = first is None or waiter.rank < first.rank
                    if earlier and not waiter.due and self._fits(waiter.own, kept):
                        first = waiter
        return first

    def _fits(self, draws: _Draws, kept: Mapping[_Key, int]) -> bool:
        return all(self._room(key) - kept.get(key, 0) >= amount for key, amount in draws)

    def _claims(self, waiter: _Waiter, kept: Mapping[_Key, int]) -> _Draws:
        """What waits for its sake: in its own domain only, if that is what stops it."""
        return waiter.draws if self._fits(waiter.own, kept) else waiter.own

    def _overtake(self, served: _Waiter) -> None:
        """Count it to the oldest request that `served` overtakes on each pool."""
        taken = {key for key, _ in served.draws}
        oldest: dict[_Key, _Waiter] = {}
        for pools, lanes in self._queue.items():
            if taken.isdisjoint(key for key, _ in pools):
                continue
            for waiter in _heads(lanes):
                if waiter.number < served.number and not waiter.due:
                    for key, _ in self._claims(waiter, {}):
                        if key not in oldest or waiter.number < oldest[key].number:
                            oldest[key] = waiter
        passed = {oldest[key].number: oldest[key] for key in taken if key in oldest}
        for number in sorted(passed):
            passed[number].overtaken += 1
            if passed[number].overtaken >= self._patience:
                passed[number].due = True
                self._due.append(passed[number])

    def _leave(self, waiter: _Waiter) -> None:
        lanes = self._queue[waiter.pools]
        lane = lanes[waiter.priority, waiter.domain]
        lane.remove(waiter)
        if not lane:
            del lanes[waiter.priority, waiter.domain]
        if not lanes:
            del self._queue[waiter.pools]
        if waiter.due:
            self._due.remove(waiter)

    def _waiting(self) -> Iterator[_Waiter]:
        """Whoever has not been served or cancelled (a cancelled one leaves a little later)."""
        for lanes in self._queue.values():
            for lane in lanes.values():
                yield from (waiter for waiter in lane if not waiter.granted.done())

    # --- the books -------------------------------------------------------------------------

    def _grant(self, waiter: _Waiter, needs: Needs) -> Grant:
        alone = len(waiter.gang) == 1
        draws = waiter.draws if alone else self._draws(needs, waiter.domain, waiter.who)
        grant = Grant(
            needs=needs,
            draws=draws,
            domain=waiter.domain,
            who=waiter.who,
            since=self._clock.now(),
            give_back=self._give_back,
        )
        self._held[grant] = None
        self._used.update(dict(grant.draws))
        return grant

    def _give_back(self, grant: Grant) -> None:
        if grant in self._held:
            del self._held[grant]
            self._used.subtract(dict(grant.draws))
            self._settle()

    def _limit(self, key: _Key) -> int:
        name, domain = key
        if domain is None:
            return self._capacity[name]
        quota = self._pools[name].quota_of(domain)
        assert quota is not None, "only quotas are drawn from by domain"
        return quota

    def _room(self, key: _Key) -> int:
        return self._limit(key) - self._used[key]

    def _draws(self, needs: Needs, domain: str, who: str) -> _Draws:
        """What `needs` takes from each pool and quota; InfeasibleNeeds if there is no pool."""
        draws: Counter[_Key] = Counter()
        for name, amount in needs.amounts.items():
            pools = [self._pools[path] for path in _paths(name) if path in self._pools]
            if not pools:
                raise InfeasibleNeeds(
                    f"{who} needs {name}, of which there is no pool",
                    where=f"pools: {', '.join(self._pools) or 'none'}",
                    hint="declare the pool, or correct the name",
                )
            for pool in pools:
                draws[pool.name, None] += amount
                if pool.quota_of(domain) is not None:
                    draws[pool.name, domain] += amount
        return tuple(draws.items())

    def _check_feasible(self, draws: _Draws, who: str) -> None:
        for (name, domain), amount in draws:
            if domain is None:
                most, whose = self._pools[name].ceiling, "there will never be"
            else:
                most, whose = self._limit((name, domain)), f"domain {domain} may never hold"
            if amount > most:
                raise InfeasibleNeeds(
                    f"{who} needs {amount} of {name}, and {whose} more than {most}",
                    where=f"pool {name}",
                    hint="ask for less at a time, or raise the limit",
                )

    # --- who waits on whom -----------------------------------------------------------------

    def _timed_out(self, waiter: _Waiter, deadline_s: float) -> ResourceTimeout:
        return ResourceTimeout(
            f"{waiter.who} waited {deadline_s:g} s for {_total(waiter.gang)}",
            where=self._blockers(waiter),
            hint="free or add capacity, raise the domain's quota or the deadline, then resume",
        )

    def _blockers(self, waiter: _Waiter) -> str:
        """What stops a request: what its pools lack and who holds it, or who comes first."""
        lacking = [key for key, amount in waiter.draws if self._room(key) < amount]
        if lacking:
            return "; ".join(self._shortage(key) for key in lacking)
        keys = {key for key, _ in waiter.draws}
        ahead = [
            other.who
            for other in itertools.takewhile(lambda other: other is not waiter, self._due)
            if not keys.isdisjoint(key for key, _ in other.draws)
        ]
        return f"kept for {', '.join(ahead) or 'nobody'}"

    def _shortage(self, key: _Key) -> str:
        name, domain = key
        of = name if domain is None else f"{name} within the quota of {domain}"
        free = f"{max(0, self._room(key))} of {self._limit(key)} {of} free"
        holders = self._holders(key)
        if not holders:
            return free
        longest = next(grant for grant in self._held if key in dict(grant.draws))
        told = ", ".join(f"{who} {amount}" for who, amount in holders.most_common(5))
        since = self._clock.now() - longest.since
        return f"{free}, held by {told}; longest by {longest.who} for {since:.0f} s"

    def _holders(self, key: _Key) -> Counter[str]:
        """Units held by each domain."""
        held: Counter[str] = Counter()
        for grant in self._held:
            held[grant.domain] += dict(grant.draws).get(key, 0)
        return +held


def _heads(lanes: _Lanes) -> Iterator[_Waiter]:
    """The first of each lane: nobody behind it can be served before it."""
    for lane in lanes.values():
        first = lane[0]
        if not first.granted.done():
            yield first
        else:
            yield from itertools.islice((w for w in lane if not w.granted.done()), 1)


def _total(gang: Sequence[Needs]) -> Needs:
    return sum(gang, Needs())


def _paths(name: str) -> list[str]:
    """The name and everything above it: a, a/b, a/b/c.

    >>> _paths("a/b/c")
    ['a', 'a/b', 'a/b/c']
    """
    parts = name.split("/")
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]
