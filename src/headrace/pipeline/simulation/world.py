"""The world that is simulated: how long sampling, judging and learning take, and what fails.

Plain numbers and distributions; knows nothing of the pipeline. Every draw depends on the seed,
the task and the attempt alone, so that two schedules meet the same lengths, verdicts and faults
and differ in nothing but their decisions.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import NormalDist
from typing import Protocol

from headrace.errors import UsageError

__all__ = [
    "Distribution",
    "DomainModel",
    "EngineModel",
    "Fixed",
    "LearnerModel",
    "LogNormal",
    "Observed",
    "World",
    "percentile",
    "spread",
]

_Z99 = NormalDist().inv_cdf(0.99)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise UsageError(what, where="the simulated world", hint="headrace simulate --help")


class Distribution(Protocol):
    """Numbers from 0 on, seconds or tokens; `tail` is the 99th percentile over the median."""

    def draw(self, rng: Random) -> float: ...

    @property
    def median(self) -> float: ...

    @property
    def tail(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always `value` (at least 0)."""

    value: float

    def __post_init__(self) -> None:
        _require(self.value >= 0, f"a duration or length cannot be {self.value:g}")

    @property
    def median(self) -> float:
        return self.value

    @property
    def tail(self) -> float:
        return 1.0

    def draw(self, rng: Random) -> float:
        del rng
        return self.value


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A log-normal with the given median, whose 99th percentile is `tail` times as much.

    sigma = ln(tail) / 2.326 and the mean is median x exp(sigma^2 / 2).

    >>> round(LogNormal(100.0, 10.0).mean)
    163
    """

    median: float
    tail: float

    def __post_init__(self) -> None:
        _require(self.median > 0, f"a median of {self.median:g} is not above 0")
        _require(self.tail >= 1, f"a 99th percentile cannot be {self.tail:g} of the median")

    @property
    def sigma(self) -> float:
        return math.log(self.tail) / _Z99

    @property
    def mean(self) -> float:
        return self.median * math.exp(self.sigma**2 / 2)

    def draw(self, rng: Random) -> float:
        return self.median * math.exp(self.sigma * rng.gauss(0.0, 1.0))


@dataclass(frozen=True, slots=True)
class Observed:
    """Draws one of the numbers that were seen, all of them equally likely."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        _require(bool(self.values), "nothing was seen to draw from")

    @property
    def median(self) -> float:
        return percentile(self.values, 0.5)

    @property
    def tail(self) -> float:
        return max(1.0, percentile(self.values, 0.99) / self.median) if self.median else 1.0

    def draw(self, rng: Random) -> float:
        return rng.choice(self.values)


def spread(median: float, tail: float) -> Distribution:
    """A log-normal, or a fixed number where it has no width."""
    return Fixed(median) if tail == 1 or median == 0 else LogNormal(median, tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainModel:
    """A domain: how long answers to its tasks are, and how they are judged.

    `tokens` an attempt, `verdict` seconds a verdict, `solved` the share of attempts that are
    right. A share `faults` of the verdicts comes back as a failure of the infrastructure, which
    is tried again; a share `hangs` never comes back and is given up at the deadline. Between
    the two times of `down` (seconds since the start) the verifier fails at once, every time.
    """

    name: str = "simulated"
    weight: float = 1.0
    tokens: Distribution = LogNormal(200.0, 5.0)
    verdict: Distribution = Fixed(0.0)
    solved: float = 0.5
    faults: float = 0.0
    hangs: float = 0.0
    down: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        shares = (self.solved, self.faults, self.hangs)
        _require(all(0 <= share <= 1 for share in shares), f"shares are in 0..1, not {shares}")
        _require(self.weight > 0, f"a weight is above 0, not {self.weight:g}")
        _require(self.faults < 1, "a verifier that always fails lets nobody finish")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """An inference engine: one token for each of its rows in every pass.

    A pass over n rows takes pass_s + row_s x n seconds, the first pass of a group prefill_s
    more; at most `slots` rows are in flight, the others queue.
    """

    slots: int = 256
    pass_s: float = 0.02
    row_s: float = 0.0
    prefill_s: float = 0.0

    def __post_init__(self) -> None:
        _require(self.slots >= 1, f"an engine needs slots, not {self.slots}")
        _require(self.pass_s >= 0 and self.row_s >= 0, "a pass takes time, not less than none")
        _require(self.pass_s + self.row_s > 0, "a pass takes time: pass_s or row_s is above 0")
        _require(self.prefill_s >= 0, f"prefill cannot take {self.prefill_s:g} s")

    def pass_seconds(self, rows: int) -> float:
        return self.pass_s + self.row_s * rows


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerModel:
    """step_s + token_s x sampled tokens seconds a step; then the weights are handed over, for
    which sampling stands still for update_s. `books_s` pass between two steps with neither."""

    step_s: float = 1.0
    token_s: float = 0.0
    update_s: float = 0.0
    books_s: float = 0.0

    def __post_init__(self) -> None:
        times = (self.step_s, self.token_s, self.update_s, self.books_s)
        _require(min(times) >= 0, f"learning cannot take less than no time: {times}")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything outside of the pipeline's own decisions.

    `verifiers` verdicts are worked on at once, `deadline_s` seconds each at most. `shared`:
    sampling and learning take turns on the same hardware, in one thread, as in a run on one
    machine; else they run side by side.
    """

    domains: tuple[DomainModel, ...] = field(default_factory=lambda: (DomainModel(),))
    engine: EngineModel = EngineModel()
    learner: LearnerModel = LearnerModel()
    verifiers: int = 64
    deadline_s: float = 600.0
    shared: bool = True

    def __post_init__(self) -> None:
        _require(bool(self.domains), "a world needs a domain")
        _require(self.verifiers >= 1, f"somebody has to judge, not {self.verifiers}")
        _require(self.deadline_s > 0, f"a deadline of {self.deadline_s:g} s cannot be met")

    def domain(self, name: str) -> DomainModel:
        return next(domain for domain in self.domains if domain.name == name)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0..1) of all are not above; 0 of nothing.

    >>> percentile([3.0, 1.0, 2.0, 4.0], 0.5)
    2.0
    """
    ordered = sorted(values)
    if not ordered:
        return 0.0
    ranks = [(i + 1) / len(ordered) for i in range(len(ordered))]
    return ordered[min(bisect.bisect_left(ranks, share - 1e-12), len(ordered) - 1)]
