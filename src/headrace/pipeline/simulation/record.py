"""What happened to every group of a simulated run, and how full everything was in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.pipeline.simulation.meters import Level, States
from headrace.pipeline.slots import Slots
from headrace.pipeline.virtual import VirtualClock

__all__ = ["ObservedSlots", "Passage", "Record", "Snapshot"]


@dataclass(slots=True, kw_only=True)
class Passage:
    """A group's way through the pipeline; times in seconds since the start, None: not yet.

    `version` is the policy it was admitted under, `first` the one that wrote its oldest token,
    `trained_on` the one it was trained under; `lengths` are tokens by attempt.
    """

    group: str
    admitted: float
    version: int
    domain: str = ""
    lengths: tuple[int, ...] = ()
    begun: float | None = None
    played: float | None = None
    ready: float | None = None
    trained: float | None = None
    first: int = 0
    trained_on: int | None = None
    rejected: str | None = None

    @property
    def staleness(self) -> int:
        """Versions between its oldest token and the policy that was trained on it."""
        assert self.trained_on is not None, f"{self.group} was not trained on"
        return self.trained_on - self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All meters at an instant: integrals of levels, seconds of states, counts so far."""

    at: float
    levels: Mapping[str, float]
    sampler: Mapping[str, float]
    learner: Mapping[str, float]
    judged_s: float
    groups: int


@dataclass(slots=True)
class Record:
    """The passages of all groups, and the meters.

    Levels: `queued` groups wait to be played and `playing` are; `to_judge` attempts wait for a
    verifier and `judging` have one; `ready` groups wait to be trained on.
    """

    clock: VirtualClock
    passages: dict[str, Passage] = field(default_factory=dict[str, Passage])
    snapshots: list[Snapshot] = field(default_factory=list[Snapshot])
    judged_s: float = 0.0
    trained: int = 0
    faults: int = 0
    levels: dict[str, Level] = field(init=False)
    sampler: States = field(init=False)
    learner: States = field(init=False)

    def __post_init__(self) -> None:
        names = ("queued", "playing", "to_judge", "judging", "ready", "rows")
        self.levels = {name: Level(self.clock) for name in names}
        self.sampler = States(self.clock, "verdicts")
        self.learner = States(self.clock, "sampling")

    def snapshot(self) -> None:
        taken = Snapshot(
            at=self.clock.elapsed,
            levels={name: level.integral for name, level in self.levels.items()},
            sampler=self.sampler.seconds(),
            learner=self.learner.seconds(),
            judged_s=self.judged_s,
            groups=self.trained,
        )
        self.snapshots.append(taken)

    # --- what happens to a group -----------------------------------------------------------

    def admitted(self, group: str, version: int) -> None:
        self.passages[group] = Passage(group=group, admitted=self.clock.elapsed, version=version)
        self.levels["queued"].add(1)

    def begun(self, group: str, domain: str) -> None:
        if (passage := self.passages.get(group)) is not None:
            passage.begun, passage.domain = self.clock.elapsed, domain
            self.levels["queued"].add(-1)
            self.levels["playing"].add(1)

    def played(self, group: str, lengths: tuple[int, ...], first: int) -> None:
        self.levels["to_judge"].add(len(lengths))
        if (passage := self.passages.get(group)) is not None:
            passage.played, passage.lengths, passage.first = self.clock.elapsed, lengths, first
            self.levels["playing"].add(-1)

    def ready(self, group: str) -> None:
        if (passage := self.passages.get(group)) is not None:
            passage.ready = self.clock.elapsed
            self.levels["ready"].add(1)

    def left(self, group: str, *, version: int | None, reason: str | None) -> None:
        """A group was trained on by `version`, or rejected for a `reason`."""
        passage = self.passages[group]
        passage.trained, passage.trained_on = self.clock.elapsed, version
        passage.rejected = reason
        self.levels["ready"].add(-1)
        self.trained += reason is None


class ObservedSlots(Slots):
    """The slots of a run, watched."""

    def __init__(self, record: Record, *, groups_per_step: int, max_lag: int) -> None:
        super().__init__(groups_per_step=groups_per_step, max_lag=max_lag)
        self._record = record

    def admit(self, group: str, version: int) -> None:
        super().admit(group, version)
        self._record.admitted(group, version)

    def trained(self, group: str, version: int) -> None:
        super().trained(group, version)
        self._record.left(group, version=version, reason=None)

    def rejected(self, group: str, reason: str) -> None:
        super().rejected(group, reason)
        self._record.left(group, version=None, reason=reason)
