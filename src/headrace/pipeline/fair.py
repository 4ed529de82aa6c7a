"""Fair sharing by cost: which domain's item is dispatched next. Arithmetic only, no storage.

Start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queueing", SIGCOMM 1996, sections
2 and 3) over the domains of one priority class, with strict priority between classes:

- Each domain has a *virtual time*, the cost charged to it so far over its weight. Next comes the
  oldest item of the eligible domain whose virtual time is least (its *start tag*).
- An item's estimated cost is charged as it is claimed, so that a domain with much in flight does
  not look poor; actual minus estimated cost is charged as it ends.
- The class's clock is the largest start tag dispatched. A domain that becomes eligible, because
  work came or its limit allows more, starts at the clock if it was behind: it saves nothing up
  while it is away, and owes no more than it was charged.

What follows (their theorem 1, where estimates are right): over any interval in which domains f
and m are both eligible throughout, with W the cost dispatched, w the weights and l the largest
cost of one item, |W_f / w_f - W_m / w_m| <= l_f / w_f + l_m / w_m. Summed over m: W_f + l_f is at
least the share w_f / sum(w) of sum over m of (W_m - l_m). So each domain has its whole weighted
share of every window, to within one item of each domain at the window's edges. No order of
whole items does better than such an allowance: an item larger than its domain's share of a
window makes it too much inside and too little outside. Counted plainly, a window worth 21 of
the largest item for each domain holds at least 0.9 of every share (1 - 2 / 21). An error of the
estimates adds at most what is in flight.

Known by the broker, which loads the shares and writes them back.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

__all__ = ["Ask", "Change", "FairQueue", "Lane", "Pick", "Place", "Priced", "Share", "draw"]


class Place(NamedTuple):
    """A domain in a priority class (0 the most urgent)."""

    priority: int
    domain: str


@dataclass(slots=True)
class Change:
    """What happened in a place: items that became ready, leases, open bytes, cost charged."""

    ready: int = 0
    running: int = 0
    size: int = 0
    cost: float = 0.0

    def add(self, other: Change) -> None:
        self.ready += other.ready
        self.running += other.running
        self.size += other.size
        self.cost += other.cost


@dataclass(slots=True)
class Lane:
    """How many leases a domain has, over all classes, and how many it may have (None: any)."""

    running: int = 0
    limit: int | None = None

    @property
    def free(self) -> bool:
        return self.limit is None or self.running < self.limit


@dataclass(slots=True, eq=False)
class Share:
    """A domain's standing in a class. `virtual` is in units of cost over weight.

    >>> share = Share(Place(1, "code"), Lane(), weight=2.0, ready=1)
    >>> share.charge(10.0)
    >>> share.virtual, share.ready, share.running
    (5.0, 0, 1)
    """

    place: Place
    lane: Lane
    weight: float = 1.0
    virtual: float = 0.0
    ready: int = 0
    running: int = 0
    size: int = 0

    @property
    def eligible(self) -> bool:
        return self.ready > 0 and self.lane.free

    def charge(self, cost: float) -> None:
        """One ready item of estimated `cost` is leased."""
        self.ready -= 1
        self.running += 1
        self.lane.running += 1
        self.virtual += cost / self.weight

    def refund(self, cost: float) -> None:
        """Undo `charge`."""
        self.ready += 1
        self.running -= 1
        self.lane.running -= 1
        self.virtual -= cost / self.weight

    def post(self, change: Change) -> None:
        self.ready += change.ready
        self.running += change.running
        self.lane.running += change.running
        self.size += change.size
        self.virtual += change.cost / self.weight


class Priced(Protocol):
    """An item as the arithmetic sees it: its age (lower is older) and its estimated cost."""

    @property
    def id(self) -> int: ...
    @property
    def cost(self) -> float: ...


_I = TypeVar("_I", bound=Priced)


@dataclass(frozen=True, slots=True)
class Ask(Generic[_I]):
    """The next `count` items of a place, oldest first, after the item `after`."""

    place: Place
    count: int
    after: _I | None


@dataclass(frozen=True, slots=True)
class Pick(Generic[_I]):
    """An item that was dispatched, and the start tag it was dispatched at."""

    queue: FairQueue[_I]
    share: Share
    item: _I
    start: float

    def undo(self) -> None:
        """The item is not leased after all, and stays or is counted out by whoever took it."""
        self.share.refund(self.item.cost)


@dataclass(slots=True)
class _Heads(Generic[_I]):
    items: deque[_I] = field(default_factory=deque)
    last: _I | None = None


class FairQueue(Generic[_I]):
    """The shares of one kind of work: what changed is posted, then items are picked in order.

    It need not hold every share: the places that changes are posted to and, of the others, as
    many of the least served as items will be picked are enough to pick exactly, since each of
    those has an item and comes before the rest. `heads` fetches items; `wanted` is how many
    will be picked at most.
    """

    def __init__(
        self,
        shares: Iterable[Share],
        clocks: Mapping[int, float],
        heads: Callable[[Sequence[Ask[_I]]], Sequence[Sequence[_I]]],
        *,
        wanted: int,
    ) -> None:
        self.shares = {share.place: share for share in shares}
        self.clocks = dict(clocks)
        self.touched: set[Place] = set()
        self._fetch, self._wanted = heads, wanted
        self._heads: dict[Place, _Heads[_I]] = {}
        self._heap: list[tuple[int, float, str]] | None = None
        self._excluded: frozenset[str] = frozenset()

    def post(self, changes: Mapping[Place, Change]) -> None:
        """Apply changes, then let whoever became eligible start no earlier than the clock."""
        domains = {place.domain for place in changes}
        waiting = [
            share
            for share in self.shares.values()
            if share.place.domain in domains and not share.eligible
        ]
        for place, change in changes.items():
            self.shares[place].post(change)
            self.touched.add(place)
        for share in waiting:
            if share.eligible:
                self._start(share)

    def exclude(self, domains: Iterable[str]) -> None:
        """Pick nothing of these domains; they do not fall behind the clock meanwhile."""
        self._excluded = frozenset(domains)

    def peek(self) -> _I | None:
        """The item that comes next."""
        heap = self._candidates()
        while heap:
            place = self._place(heap[0])
            if self.shares[place].eligible and self._head(place) is not None:
                return self._head(place)
            heapq.heappop(heap)
        return None

    @property
    def priority(self) -> int:
        """The class of the item that comes next, which `peek` must have found."""
        return self._candidates()[0][0]

    def pick(self) -> Pick[_I]:
        """Take the item that comes next, which `peek` must have found, and charge for it."""
        heap = self._candidates()
        place = self._place(heapq.heappop(heap))
        share, item = self.shares[place], self._heads[place].items.popleft()
        pick = self.charge(place, item)
        if share.eligible:
            heapq.heappush(heap, _rank(share))
        self.clocks[place.priority] = max(self._clock(place), pick.start)
        return pick

    def charge(self, place: Place, item: _I) -> Pick[_I]:
        """Charge for an item that is taken out of turn: the clock stays."""
        share = self.shares[place]
        start = share.virtual
        share.charge(item.cost)
        self.touched.add(place)
        return Pick(self, share, item, start)

    def settle(self) -> None:
        """Bring what was excluded up to the clock."""
        for share in self.shares.values():
            if share.place.domain in self._excluded:
                self._start(share)

    def _start(self, share: Share) -> None:
        clock = self._clock(share.place)
        if share.virtual < clock:
            share.virtual = clock
            self.touched.add(share.place)

    def _clock(self, place: Place) -> float:
        return self.clocks.get(place.priority, 0.0)

    def _candidates(self) -> list[tuple[int, float, str]]:
        if self._heap is None:
            ranks = [
                _rank(share)
                for share in self.shares.values()
                if share.eligible and share.place.domain not in self._excluded
            ]
            self._heap = heapq.nsmallest(self._wanted, ranks)
            self._look_ahead([self._place(rank) for rank in self._heap])
        return self._heap

    def _look_ahead(self, places: Sequence[Place]) -> None:
        """Fetch for all places at once what they will mostly need."""
        if not places:
            return
        each = math.ceil(self._wanted / len(places)) + (len(places) > 1)
        asks: list[Ask[_I]] = [
            Ask(place, min(each, self.shares[place].ready), None) for place in places
        ]
        for place, items in zip(places, self._fetch(asks), strict=True):
            self._heads[place] = _Heads(deque(items), items[-1] if items else None)

    def _head(self, place: Place) -> _I | None:
        heads = self._heads[place]
        if not heads.items and heads.last is not None:
            items = self._fetch([Ask(place, self._wanted, heads.last)])[0]
            heads.items.extend(items)
            heads.last = items[-1] if items else None
        return heads.items[0] if heads.items else None

    @staticmethod
    def _place(rank: tuple[int, float, str]) -> Place:
        return Place(rank[0], rank[2])


def _rank(share: Share) -> tuple[int, float, str]:
    return share.place.priority, share.virtual, share.place.domain


def draw(queues: Sequence[FairQueue[_I]], count: int) -> list[Pick[_I]]:
    """Up to `count` items, the most urgent class first; between kinds the older item first.

    Virtual times of different kinds measure different things and are never compared.
    """
    picks: list[Pick[_I]] = []
    while len(picks) < count:
        heads = [(queue, queue.peek()) for queue in queues]
        ranked = [(q.priority, item.id, n) for n, (q, item) in enumerate(heads) if item is not None]
        if not ranked:
            break
        picks.append(heads[min(ranked)[2]][0].pick())
    return picks
