"""Verifiers made of verifiers: weighted parts, gates, all-of, fusion.

Each is a verifier itself; its version is a hash of its members' and of its options. Members are
kept in the order of their names, so that the order in which they are written down changes no bit
of a score. An unjudged member that counts leaves the whole unjudged, by that member's fault. May
be known by task packs, the audit and the command line.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headrace.errors import UsageError
from headrace.protocols import Verifier
from headrace.types import Fault, Json, Task, Verdict, VerdictPart, VerifierRef, content_hash
from headrace.verify.disagreement import DisagreementRate
from headrace.verify.kinds import SURFACES, Auditable, Surface
from headrace.verify.verdicts import HACK, hack, scored, unjudged

__all__ = ["AllOf", "Composed", "Fusion", "Gate", "Heard", "Member", "Weighted"]

_OWNERS: tuple[Fault, ...] = ("infrastructure", "task", "verifier", "policy")
"""Of several members that could not judge, whose fault it is: what may pass comes first."""


_FULL = 0.999


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A verifier inside another one. Weight 0: it informs and is not scored.

    `key`: which value of an object `task.answer` is this member's own hidden answer; None gives
    it all of it.
    """

    name: str
    verifier: Verifier
    weight: float = 1.0
    key: str | None = None

    def __post_init__(self) -> None:
        if not self.name or self.name == HACK:
            raise UsageError(f"{self.name!r} is no name for a member of a verifier")
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise UsageError(f"the weight of {self.name} is {self.weight}", hint="0 or more")

    @property
    def told(self) -> Json:
        """All of it that a score depends on."""
        ref = self.verifier.ref
        return [self.name, ref.id, ref.version, self.weight, self.key]

    def task(self, task: Task) -> Task | None:
        """The task as this member sees it; None where it has no answer for it."""
        if self.key is None:
            return task
        if not isinstance(task.answer, dict) or self.key not in task.answer:
            return None
        return replace(task, answer=task.answer[self.key])

    def judge(self, task: Task, text: str) -> Verdict:
        own = self.task(task)
        if own is None:
            why = {"answer": f"has no {self.key!r}, which is for {self.name}"}
            return unjudged(self.verifier.ref, "task", why)
        return self.verifier.judge(own, text)

    def floor(self, task: Task) -> float:
        own = self.task(task)
        if own is None or not isinstance(self.verifier, Auditable):
            return 0.0
        return self.verifier.floor(own)


class Composed(ABC):
    """What all of them share: an identity made of their members', and whose tricks apply."""

    ref: VerifierRef

    def __init__(self, id: str, members: Sequence[Member], options: Json) -> None:
        names = [member.name for member in members]
        if not names or len(set(names)) < len(names):
            raise UsageError(f"{id} needs members with names of their own, got {names}")
        self.members = tuple(sorted(members, key=lambda member: member.name))
        kind = type(self).__name__
        told = [kind, [member.told for member in self.members], options]
        self.ref = VerifierRef(id, content_hash(told))

    @abstractmethod
    def judge(self, task: Task, text: str) -> Verdict: ...

    @abstractmethod
    def floor(self, task: Task) -> float:
        """What an answer without merit may score at most, given the members' own floors."""

    @property
    def surfaces(self) -> tuple[Surface, ...]:
        """Those of all members."""
        found: set[Surface] = {"text"}
        for verifier in self._auditable():
            found.update(verifier.surfaces)
        return tuple(surface for surface in SURFACES if surface in found)

    def hints(self, task: Task) -> Mapping[str, str]:
        """Those of all members; of two for one name, the first member's."""
        found: dict[str, str] = {}
        for member, own in self._seeing(task):
            if isinstance(member.verifier, Auditable):
                found = {**member.verifier.hints(own), **found}
        return found

    def near(self, task: Task, reference: str) -> Sequence[str]:
        """Those of all members."""
        return [
            text
            for member, own in self._seeing(task)
            if isinstance(member.verifier, Auditable)
            for text in member.verifier.near(own, reference)
        ]

    def _auditable(self) -> list[Auditable]:
        return [m.verifier for m in self.members if isinstance(m.verifier, Auditable)]

    def _seeing(self, task: Task) -> list[tuple[Member, Task]]:
        seen = ((member, member.task(task)) for member in self.members)
        return [(member, own) for member, own in seen if own is not None]

    def heard(self, task: Task, text: str) -> Heard:
        """What all members say of an attempt."""
        return Heard(tuple((member, member.judge(task, text)) for member in self.members))


@dataclass(frozen=True, slots=True)
class Heard:
    """What the members said, in the order of their names."""

    verdicts: tuple[tuple[Member, Verdict], ...]

    @property
    def scores(self) -> list[float]:
        """Of the members that count; all of them have one unless `fault` says otherwise."""
        counted = (verdict.score for member, verdict in self.verdicts if member.weight)
        return [score for score in counted if score is not None]

    def score(self, name: str) -> float:
        """That of one member; ValueError if it has none."""
        for member, verdict in self.verdicts:
            if member.name == name and verdict.score is not None:
                return verdict.score
        raise ValueError(f"{name} has no score")

    @property
    def fault(self) -> Fault | None:
        """Whose fault it is that a member that counts could not judge; None if all could."""
        faults = {v.fault for m, v in self.verdicts if m.weight and v.score is None}
        return next((owner for owner in _OWNERS if owner in faults), None)

    def parts(self, *, weighted: bool) -> list[VerdictPart]:
        """Each member's score, and below its name its own parts, which weigh nothing here.

        Whether a known trick was seen is one part for all.
        """
        found: list[VerdictPart] = []
        for member, verdict in self.verdicts:
            if verdict.score is not None:
                weight = member.weight if weighted else 0.0
                found.append(VerdictPart(member.name, verdict.score, weight))
            found += [
                VerdictPart(f"{member.name}.{part.name}", part.value, 0.0)
                for part in verdict.parts
                if part.name != HACK
            ]
        return [*found, *self.hack()]

    def hack(self) -> list[VerdictPart]:
        seen = [p.value > 0 for _, v in self.verdicts for p in v.parts if p.name == HACK]
        return [hack(any(seen))] if seen else []

    def evidence(self, **more: Json) -> dict[str, Json]:
        """What each said, by its name."""
        said = {
            member.name: {
                "score": verdict.score,
                **({"fault": verdict.fault} if verdict.score is None else {}),
                "evidence": verdict.evidence,
            }
            for member, verdict in self.verdicts
        }
        return {**more, "members": said}

    def unjudged(self, ref: VerifierRef, fault: Fault, **more: Json) -> Verdict:
        """No score, with whatever the members did say as parts."""
        silent = unjudged(ref, fault, self.evidence(**more))
        return replace(silent, parts=tuple(self.parts(weighted=False)))


class Weighted(Composed):
    """The mean of the members' scores, weighted: floors are weighted alike."""

    def __init__(self, members: Sequence[Member], *, id: str = "weighted") -> None:
        super().__init__(id, members, None)
        if not any(member.weight for member in members):
            raise UsageError(f"{id} has no member that weighs anything")

    def judge(self, task: Task, text: str) -> Verdict:
        heard = self.heard(task, text)
        if heard.fault is not None:
            return heard.unjudged(self.ref, heard.fault)
        return scored(self.ref, heard.parts(weighted=True), evidence=heard.evidence())

    def floor(self, task: Task) -> float:
        whole = sum(member.weight for member in self.members)
        return sum(member.weight * member.floor(task) for member in self.members) / whole


class AllOf(Composed):
    """1 if every member that weighs anything gives full marks, else 0. Part: `all`."""

    def __init__(self, members: Sequence[Member], *, id: str = "all-of") -> None:
        super().__init__(id, members, None)
        if not any(member.weight for member in members):
            raise UsageError(f"{id} has no member that weighs anything")

    def judge(self, task: Task, text: str) -> Verdict:
        heard = self.heard(task, text)
        if heard.fault is not None:
            return heard.unjudged(self.ref, heard.fault)
        solved = all(verdict.solved for member, verdict in heard.verdicts if member.weight)
        parts = [VerdictPart("all", float(solved)), *heard.parts(weighted=False)]
        return scored(self.ref, parts, evidence=heard.evidence())

    def floor(self, task: Task) -> float:
        return float(all(m.floor(task) >= _FULL for m in self.members if m.weight))


class Gate(Composed):
    """`then` is asked only where `gate` is passed (a score of `at` or more); else `floor`.

    Passing never pays less than failing: the score is floor + (1 - floor) * then. Parts:
    `entry` (passed or not) and `worth` (what `then` said); `gate` and `then` weigh nothing.
    """

    def __init__(
        self,
        gate: Verifier,
        then: Verifier,
        *,
        at: float = 0.999,
        floor: float = 0.0,
        gate_key: str | None = None,
        then_key: str | None = None,
        id: str = "gate",
    ) -> None:
        if not 0.0 < at <= 1.0 or not 0.0 <= floor < 1.0:
            raise UsageError(f"{id} needs 0 < at <= 1 and 0 <= floor < 1, got {at} and {floor}")
        self._gate = Member(name="gate", verifier=gate, key=gate_key)
        self._then = Member(name="then", verifier=then, key=then_key)
        self._at, self._floor = at, floor
        super().__init__(id, (self._gate, self._then), [at, floor])

    def judge(self, task: Task, text: str) -> Verdict:
        first = self._gate.judge(task, text)
        heard = Heard(((self._gate, first),))
        if first.score is None:
            return heard.unjudged(self.ref, first.fault or "verifier")
        if first.score < self._at:
            own = [VerdictPart("worth", self._floor), VerdictPart("entry", 0.0, 0.0)]
            evidence = heard.evidence(passed=False)
            return scored(self.ref, [*own, *heard.parts(weighted=False)], evidence=evidence)
        second = self._then.judge(task, text)
        heard = Heard(((self._gate, first), (self._then, second)))
        if second.score is None:
            return heard.unjudged(self.ref, second.fault or "verifier", passed=True)
        own = [
            VerdictPart("worth", second.score, 1.0 - self._floor),
            VerdictPart("entry", 1.0, self._floor),
        ]
        evidence = heard.evidence(passed=True)
        return scored(self.ref, [*own, *heard.parts(weighted=False)], evidence=evidence)

    def floor(self, task: Task) -> float:
        if self._gate.floor(task) < self._at:
            return self._floor
        return self._floor + (1.0 - self._floor) * self._then.floor(task)


class Fusion(Composed):
    """One score of several independent verifiers of the same thing.

    `how`: "mean"; "min"; "majority" (1 or 0 as more or fewer than half of them give full marks,
    no score in a tie); "agree" (the mean if no two are more than `tolerance` apart, else no
    score). Where they differ by more than `tolerance` they disagree, which `rate` counts if
    given. A missing score for want of agreement is the verifier's fault.

    Weights are 1, or 0 for one that only informs. Parts: `fused`, and of weight 0
    `disagreement` (the largest difference of two scores) and the members.
    """

    def __init__(
        self,
        members: Sequence[Member],
        how: Literal["mean", "min", "majority", "agree"],
        *,
        tolerance: float = 0.1,
        rate: DisagreementRate | None = None,
        id: str = "fusion",
    ) -> None:
        if any(member.weight not in (0.0, 1.0) for member in members):
            raise UsageError(f"{id}: the voices of a fusion weigh 1, or 0 to inform only")
        if sum(member.weight for member in members) < 2 or not 0.0 <= tolerance < 1.0:
            raise UsageError(f"{id} needs two voices or more, and a tolerance in 0..1")
        super().__init__(id, members, [how, tolerance])
        self._how, self._tolerance, self._rate = how, tolerance, rate

    def judge(self, task: Task, text: str) -> Verdict:
        heard = self.heard(task, text)
        if heard.fault is not None:
            return heard.unjudged(self.ref, heard.fault)
        scores = heard.scores
        spread = max(scores) - min(scores)
        if self._rate is not None:
            self._rate.note(disagreed=spread > self._tolerance)
        disagreement = VerdictPart("disagreement", spread, 0.0)
        fused = self._fused(scores)
        if fused is None:
            silent = heard.unjudged(self.ref, "verifier", why="the voices disagree")
            return replace(silent, parts=(disagreement, *silent.parts))
        parts = [VerdictPart("fused", fused), disagreement, *heard.parts(weighted=False)]
        return scored(self.ref, parts, evidence=heard.evidence())

    def _fused(self, scores: Sequence[float]) -> float | None:
        if self._how == "min":
            return min(scores)
        if self._how == "majority":
            twice = 2 * sum(score >= _FULL for score in scores)
            return None if twice == len(scores) else float(twice > len(scores))
        if self._how == "agree" and max(scores) - min(scores) > self._tolerance:
            return None
        return math.fsum(scores) / len(scores)

    def floor(self, task: Task) -> float:
        floors = [member.floor(task) for member in self.members if member.weight]
        if self._how == "majority":
            return float(2 * sum(floor >= _FULL for floor in floors) > len(floors))
        return min(floors) if self._how == "min" else math.fsum(floors) / len(floors)
