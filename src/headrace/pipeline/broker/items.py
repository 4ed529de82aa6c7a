"""What goes into the broker and what comes out of it.

Rows hold references into the store, never payloads; `size` says how many bytes stand behind
one. All times are seconds of the broker's clock.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headrace.errors import InfrastructureError

__all__ = [
    "Backpressure",
    "Dead",
    "Done",
    "GroupState",
    "KindStats",
    "Lease",
    "Limits",
    "Retry",
    "ShareStats",
    "Stats",
    "Trouble",
    "Wait",
    "Work",
]

Trouble = Literal["infrastructure", "poison"]
"""Whose failure it is: the world's, or the item's own (it kills whoever touches it)."""


class Backpressure(InfrastructureError):
    """More bytes wait than may wait. Nothing of the call was enqueued; try again later."""


def _check(name: str, *texts: str | None) -> None:
    """ValueError for what one of the databases could not hold as text."""
    for text in texts:
        if text is not None and ("\0" in text or not _encodable(text)):
            raise ValueError(f"{name} holds characters that cannot be stored: {text!r:.60}")


def _encodable(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Something to be done once, known by (kind, key): enqueueing it again changes nothing.

    `payload` refers to what is to be done, `cost` is the estimate (> 0; tokens, seconds: one
    unit for all items of a kind) that fairness counts in, `priority` the class, 0 the most
    urgent. It is not handed out before `not_before`. `group` and `batch` name sets of items.

    >>> Work(kind="verify", key="000003:0.2/5", domain="code", payload="trajectory:...").priority
    1
    """

    kind: str
    key: str
    domain: str
    payload: str
    cost: float = 1.0
    priority: int = 1
    group: str | None = None
    batch: str | None = None
    not_before: float = 0.0
    size: int = 0

    def __post_init__(self) -> None:
        _check("a work item", self.kind, self.key, self.domain, self.payload)
        _check("a work item", self.group, self.batch)
        if not (self.kind and self.key and self.domain):
            raise ValueError("kind, key and domain of a work item must not be empty")
        if not (math.isfinite(self.cost) and self.cost > 0):
            raise ValueError(f"the cost of {self.kind} {self.key} is {self.cost}, not above 0")
        if self.priority < 0 or self.size < 0 or not math.isfinite(self.not_before):
            raise ValueError(f"{self.kind} {self.key} has a negative class or size, or no time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """An item that is a worker's until `expires`, unless a heartbeat makes it longer.

    `token` fences: whatever comes back under a token that is no longer the item's changes
    nothing. `attempt` counts from 1; `cost` is the estimate.
    """

    id: int
    kind: str
    key: str
    domain: str
    payload: str
    group: str | None
    batch: str | None
    cost: float
    token: int
    attempt: int
    worker: str
    expires: float


@dataclass(frozen=True, slots=True)
class Done:
    """A result that is in the store as `result`, what it really cost, and the work that follows."""

    lease: Lease
    result: str
    cost: float
    then: tuple[Work, ...] = ()

    def __post_init__(self) -> None:
        _check("a result", self.result)
        if not (math.isfinite(self.cost) and self.cost >= 0):
            raise ValueError(f"{self.lease.kind} {self.lease.key} cannot have cost {self.cost}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """How far a group is; total = done + dead + cancelled + open."""

    group: str
    total: int
    done: int
    dead: int
    cancelled: int
    open: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead:
    """An item that is not tried again, with what each failure left as evidence, oldest first."""

    kind: str
    key: str
    attempts: int
    evidence: tuple[str, ...]
    domain: str
    group: str | None
    batch: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """`what` waits, `on` whom, `since` when and `until` when at most (None: no end is set)."""

    what: str
    on: str
    since: float
    until: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KindStats:
    """Items of a kind by state; `size` bytes stand behind those not ended; `oldest` ready since."""

    kind: str
    ready: int
    waiting: int
    leased: int
    done: int
    dead: int
    cancelled: int
    size: int
    oldest: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareStats:
    """A domain's standing in a class, as of the last claim of its kind."""

    kind: str
    priority: int
    domain: str
    weight: float
    limit: int | None
    virtual: float
    ready: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    kinds: tuple[KindStats, ...]
    shares: tuple[ShareStats, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """`queued_bytes` may wait of each kind, or as many as `by_kind` says.

    An item that waited `aging_s` seconds counts as one class more urgent, and again after as
    long, so that nothing starves.
    """

    queued_bytes: int = 1 << 30
    by_kind: Mapping[str, int] = field(default_factory=dict[str, int])
    aging_s: float = 600.0

    def bound(self, kind: str) -> int:
        return self.by_kind.get(kind, self.queued_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often an item is tried and how long it pauses after a failure.

    It is dead after `attempts` attempts, `poison_attempts` poison failures, or once `deaths`
    leases on it ran out.

    >>> retry = Retry(base_s=2.0, factor=3.0, jitter=0.0)
    >>> [retry.pause("any", attempt) for attempt in (1, 2, 3)]
    [2.0, 6.0, 18.0]
    """

    attempts: int = 5
    poison_attempts: int = 2
    deaths: int = 3
    base_s: float = 1.0
    factor: float = 2.0
    most_s: float = 120.0
    jitter: float = 0.25

    def pause(self, key: str, attempt: int) -> float:
        """Seconds after failure number `attempt`: exponential, to within a share of `jitter`.

        The jitter is a function of key and attempt, so a repeated run pauses alike.
        """
        pause = min(self.most_s, self.base_s * self.factor ** (attempt - 1))
        digest = hashlib.sha256(f"{attempt} {key}".encode()).digest()
        return pause * (1 + self.jitter * (int.from_bytes(digest[:8], "big") / 2**63 - 1))
