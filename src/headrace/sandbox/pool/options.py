"""The numbers of a pool: how many, how long, how often. No I/O."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from headrace.errors import UsageError
from headrace.sandbox.pool.breaker import BreakerPolicy

__all__ = ["PoolOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """`most` sandboxes in all, idle ones included, and at most `starting` at once.

    - `warm`: idle ones kept of each kind in use (`Pool.warm` sets more for one kind); those
      beyond are closed after `idle_s`;
    - `reuses`: how often one is made new instead of being replaced, where its backend can;
    - `wait_s`, `start_s`, `close_s`: how long a request, one start and one end may take;
    - `retries` of a failed start, `backoff_s` apart at first and `backoff_most_s` at last;
    - `fallback`: whether a backend that keeps failing is left for the next of its class or a
      stronger one;
    - `beat_s`, `reap_s`: between two signs of life, and two looks for what dead owners left;
    - `calm_s`: a refill begins that long after a loan, so that the borrower has the machine;
    - `check_after_s`: an idle sandbox is asked for its health after that long.
    """

    most: int = 256
    starting: int = field(default_factory=lambda: 2 * (os.cpu_count() or 1))
    warm: int = 0
    idle_s: float = 60.0
    reuses: int = 32
    wait_s: float = 120.0
    start_s: float = 30.0
    close_s: float = 15.0
    retries: int = 3
    backoff_s: float = 0.1
    backoff_most_s: float = 5.0
    fallback: bool = False
    beat_s: float = 5.0
    reap_s: float = 60.0
    calm_s: float = 0.02
    check_after_s: float = 5.0
    breaker: BreakerPolicy = field(default_factory=BreakerPolicy)

    def __post_init__(self) -> None:
        if min(self.most, self.starting) < 1 or min(self.warm, self.reuses, self.retries) < 0:
            raise UsageError("a pool holds and starts at least one sandbox", where=str(self))
        waits = (self.wait_s, self.start_s, self.close_s, self.backoff_s, self.backoff_most_s)
        if min(*waits, self.beat_s, self.reap_s) <= 0:
            raise UsageError("the times of a pool are positive", where=str(self))
        if self.warm > self.most:
            raise UsageError(f"{self.warm} warm sandboxes of {self.most} at most", where=str(self))
