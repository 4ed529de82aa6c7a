"""What a simulated run came to, as the world saw it.

Rates and shares are of the steady part: after the pipeline has filled (max_lag + 1 steps) and
before it runs dry (max_lag steps from the end), or of all steps where those are too few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise

from headrace.pipeline.simulation.record import Passage, Record, Snapshot
from headrace.pipeline.simulation.world import World, percentile
from headrace.recipe import PlaySpec
from headrace.types import Json

__all__ = ["Busy", "Queues", "Report", "Staleness", "title"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Shares of the time, 0..1.

    `sampler` and `learner` at work, `slots` of the engine in use, `verifiers` judging. The two
    `idle` tables say what the rest of the sampler's and the learner's time went to.
    """

    sampler: float
    slots: float
    learner: float
    verifiers: float
    sampler_idle: Mapping[str, float]
    learner_idle: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """How many versions older than the policy it trained a group's oldest token was.

    `counts` are groups by that; `admission` is the mean age since the group got its slot, which
    max_lag bounds.
    """

    mean: float
    most: int
    counts: Mapping[int, int]
    admission: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """Means over time: groups that wait to be played, are played, are ready for the learner;
    attempts that wait for a verifier, that have one."""

    queued: float
    playing: float
    to_judge: float
    judging: float
    ready: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Times in seconds; the steady part lasts from `since` to `until`.

    `passages` are all groups in the order of their admission.
    """

    title: str
    schedule: str
    max_lag: int
    steps: int
    seconds: float
    since: float
    until: float
    samples_per_second: float
    tokens_per_second: float
    step_mean: float
    step_p95: float
    busy: Busy
    staleness: Staleness
    queues: Queues
    admitted: int
    trained: int
    rejected: Mapping[str, int]
    held: int
    faults: int
    passages: tuple[Passage, ...] = field(repr=False)

    def to_json(self) -> dict[str, Json]:
        """Without the passages; shares and rates as numbers, keys as strings."""
        told = asdict(replace(self, passages=()))
        del told["passages"]
        told["staleness"]["counts"] = {str(k): n for k, n in self.staleness.counts.items()}
        return told


def title(play: PlaySpec) -> str:
    """
    >>> title(PlaySpec(max_lag=2, schedule="free")), title(PlaySpec())
    ('free, lag 2', 'synchronous')
    """
    synchronous = play.max_lag == 0 and play.schedule == "lockstep"
    return "synchronous" if synchronous else f"{play.schedule}, lag {play.max_lag}"


def report(record: Record, world: World, play: PlaySpec, ledger: Mapping[str, Json]) -> Report:
    first, last = _steady(record.snapshots, play.max_lag)
    begin, end = record.snapshots[first], record.snapshots[last]
    seconds = end.at - begin.at
    times = [s.at for s in record.snapshots[first : last + 1]]
    steps = [after - before for before, after in pairwise(times)]
    done = [p for p in record.passages.values() if p.trained_on is not None]
    steady = [p for p in done if p.trained is not None and begin.at < p.trained <= end.at]

    def rate(amount: float) -> float:
        return amount / seconds if seconds > 0 else 0.0

    def mean(name: str) -> float:
        return rate(end.levels[name] - begin.levels[name])

    return Report(
        title=title(play),
        schedule=play.schedule,
        max_lag=play.max_lag,
        steps=len(record.snapshots) - 1,
        seconds=record.snapshots[-1].at,
        since=begin.at,
        until=end.at,
        samples_per_second=rate(sum(len(p.lengths) for p in steady)),
        tokens_per_second=rate(sum(sum(p.lengths) for p in steady)),
        step_mean=seconds / len(steps) if steps else 0.0,
        step_p95=percentile(steps, 0.95),
        busy=_busy(begin, end, world),
        staleness=_staleness(steady),
        queues=Queues(
            queued=mean("queued"),
            playing=mean("playing"),
            to_judge=mean("to_judge"),
            judging=mean("judging"),
            ready=mean("ready"),
        ),
        admitted=ledger["admitted"],
        trained=ledger["trained"],
        rejected=ledger["rejected"],
        held=ledger["held"],
        faults=record.faults,
        passages=tuple(record.passages.values()),
    )


def _steady(snapshots: Sequence[Snapshot], max_lag: int) -> tuple[int, int]:
    """The numbers of the steps after which the steady part begins and ends."""
    last = len(snapshots) - 1
    first, end = max_lag + 1, last - max_lag
    return (first, end) if end - first > max_lag else (0, last)


def _busy(begin: Snapshot, end: Snapshot, world: World) -> Busy:
    seconds = end.at - begin.at

    def shares(of: Callable[[Snapshot], Mapping[str, float]]) -> dict[str, float]:
        spent = Counter(of(end))
        spent.subtract(of(begin))
        return {state: t / seconds for state, t in sorted(spent.items()) if t > 0 < seconds}

    sampler, learner = shares(lambda s: s.sampler), shares(lambda s: s.learner)
    rows = end.levels["rows"] - begin.levels["rows"]
    whole = seconds or 1.0
    return Busy(
        sampler=sampler.pop("sampling", 0.0),
        slots=rows / whole / world.engine.slots,
        learner=learner.pop("learning", 0.0),
        verifiers=(end.judged_s - begin.judged_s) / whole / world.verifiers,
        sampler_idle=sampler,
        learner_idle=learner,
    )


def _staleness(passages: Sequence[Passage]) -> Staleness:
    counts = Counter(passage.staleness for passage in passages)
    ages = [p.trained_on - p.version for p in passages if p.trained_on is not None]
    total = len(passages) or 1
    return Staleness(
        mean=sum(age * n for age, n in counts.items()) / total,
        most=max(counts, default=0),
        counts=dict(sorted(counts.items())),
        admission=sum(ages) / total,
    )
