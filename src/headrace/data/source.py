"""The source of tasks: many domains in one reproducible stream, and the held-out side of each.

What is drawn at a position is a pure function of (seed, position) and of the tiers that the
recorded scores have opened; no random state is carried. May be known by evaluate and
pipeline; knows domains only through their protocol.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from headrace.data.curriculum import Ladder, Move
from headrace.data.honeypots import honeypot
from headrace.errors import CheckpointError, RecipeError
from headrace.protocols import Domain
from headrace.recipe import DomainSpec, TaskSpec
from headrace.types import Json, Task, Verdict, VerifierRef, canonical_json

__all__ = ["DomainStatus", "TaskSource"]

_TRAIN_TRIES = 200
_HELDOUT_TRIES = 2000
_HONEYPOT_TRIES = 50
_INDICES = 2**63


def _draw(*key: str | int) -> int:
    """A uniform integer in 0..2**63 - 1 that depends on `key` alone, on every machine."""
    digest = hashlib.blake2b(canonical_json(list(key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _INDICES


def _unit(*key: str | int) -> float:
    """A uniform number in [0, 1) that depends on `key` alone."""
    return (_draw(*key) >> 10) / 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainStatus:
    """Where a domain stands.

    `weight` and `share` (of all tasks drawn so far) are in 0..1; `tier` is the highest open
    one of `tiers`; `attempts` were recorded, `scored` of them judged, `passed` solved;
    `pass_rate` is passed / scored, None before the first verdict.
    """

    weight: float
    tier: int
    tiers: int
    attempts: int
    scored: int
    passed: int
    pass_rate: float | None
    share: float


@dataclass(slots=True)
class _Tally:
    drawn: int = 0
    attempts: int = 0
    scored: int = 0
    passed: int = 0


class TaskSource:
    """Training tasks by position, and held-out tasks, of the domains that `spec` names.

    `spec.domains` are exact names (see `Catalogue.resolve`), all present in `domains`;
    a `last_tier` beyond a domain's ladder means its end. RecipeError where they do not fit.
    Training tasks all have split "train" and held-out tasks "heldout".
    """

    def __init__(self, spec: TaskSpec, domains: Mapping[str, Domain], seed: int) -> None:
        self._spec = spec
        self._seed = seed
        self._position = 0
        self._domains = {entry.name: _present(entry, domains) for entry in spec.domains}
        self._ladders = {
            entry.name: _ladder(spec, entry, self._domains[entry.name]) for entry in spec.domains
        }
        self._tallies = {name: _Tally() for name in self._domains}
        self._names = list(self._domains)
        total = sum(entry.weight for entry in spec.domains)
        self._weights = {entry.name: entry.weight / total for entry in spec.domains}
        self._cumulative = list(accumulate(self._weights.values()))

    @property
    def position(self) -> int:
        """How many training tasks have been drawn."""
        return self._position

    def next(self) -> Task:
        """The training task at `position`, which moves on by one.

        RecipeError if no candidate of the drawn domain and tier is on the training side.
        """
        at = self._position
        name = self._domain_at(at)
        tier = self._tier_at(at, self._ladders[name])
        for attempt in range(_TRAIN_TRIES):
            index = _draw(self._seed, "task", at, attempt)
            task = self._domains[name].task(tier, index)
            if task.split == "train":
                self._position += 1
                self._tallies[name].drawn += 1
                return task
        raise RecipeError(
            f"tier {tier} of {name} has no training problem among {_TRAIN_TRIES} candidates",
            where="tasks.domains",
            hint="start it at a higher first_tier, or leave it out",
        )

    def skip(self, task: Task) -> None:
        """Count `task` as the one at `position`: it was drawn in an earlier life."""
        self._position += 1
        self._tallies[task.domain].drawn += 1

    def honeypot(self, number: int) -> Task | None:
        """The honeypot of that number (a step, say), None where no domain has one to offer.

        A function of the seed, the number and the open tiers; no training task is used up.
        """
        for attempt in range(_HONEYPOT_TRIES):
            key = _draw(self._seed, "honeypot", number, attempt)
            name = self._domain_at(key)
            domain, tier = self._domains[name], self._tier_at(key, self._ladders[name])
            task = domain.task(tier, _draw(self._seed, "honeypot task", number, attempt))
            planted = honeypot(domain, task) if task.split == "train" else None
            if planted is not None:
                return planted
        return None

    def record(self, domain: str, tier: int, scores: Sequence[float | None]) -> list[Move]:
        """Count the scores of attempts at one tier of a domain; the moves they caused.

        A score passes as `Verdict.solved` says. None could not be judged, and moves nothing.
        """
        tally = self._tallies[domain]
        passed = [_solved(score) for score in scores if score is not None]
        tally.attempts += len(scores)
        tally.scored += len(passed)
        tally.passed += sum(passed)
        move = self._ladders[domain].record(tier, passed)
        return [] if move is None else [move]

    def heldout(self, items: int, tiers: tuple[int, ...] | None = None) -> list[Task]:
        """At most `items` held-out tasks with distinct prompts, spread evenly; seed-determined.

        One from each (domain, tier) in turn, over `tiers` (None: each domain's first tier);
        fewer where the domains have fewer. RecipeError if a domain has none of the tiers, or
        no held-out task exists at all.
        """
        cells = sorted(
            (_draw(self._seed, "cell", name, tier), name, tier)
            for name in self._names
            for tier in self._evaluated(name, tiers)
        )
        live = [self._heldout_of(name, tier) for _, name, tier in cells]
        found: list[Task] = []
        while live and len(found) < items:
            for cell in list(live):
                task = next(cell, None)
                if task is None:
                    live.remove(cell)
                elif len(found) < items:
                    found.append(task)
        if items > 0 and not found:
            raise RecipeError(
                "no held-out task exists", where="evaluate.tiers", hint="evaluate higher tiers"
            )
        return found

    def state(self) -> Json:
        """JSON from which `restore` goes on exactly: the position and what was recorded."""
        return {
            "seed": self._seed,
            "position": self._position,
            "domains": {
                name: {
                    "drawn": tally.drawn,
                    "attempts": tally.attempts,
                    "scored": tally.scored,
                    "passed": tally.passed,
                    "ladder": self._ladders[name].state(),
                }
                for name, tally in self._tallies.items()
            },
        }

    def restore(self, state: Json) -> None:
        """Take over a `state()` of the same seed and domains; CheckpointError otherwise."""
        if not isinstance(state, dict) or set(state) != {"seed", "position", "domains"}:
            raise CheckpointError("not the state of a task source", where="task source")
        if state["seed"] != self._seed:
            raise CheckpointError(
                f"seed {state['seed']!r} instead of {self._seed}", where="task source"
            )
        entries = state["domains"]
        if not isinstance(entries, dict) or set(entries) != set(self._names):
            raise CheckpointError("other domains than the recipe's", where="task source")
        position = _count(state, "position")
        tallies = {name: _tally(entries[name]) for name in self._names}
        for name in self._names:
            self._ladders[name].restore(entries[name]["ladder"])
        self._position = position
        self._tallies = tallies

    def status(self) -> dict[str, DomainStatus]:
        """Every domain's standing, in the order of the recipe."""
        return {
            name: DomainStatus(
                weight=self._weights[name],
                tier=self._ladders[name].top,
                tiers=self._domains[name].tiers,
                attempts=tally.attempts,
                scored=tally.scored,
                passed=tally.passed,
                pass_rate=tally.passed / tally.scored if tally.scored else None,
                share=tally.drawn / self._position if self._position else 0.0,
            )
            for name, tally in self._tallies.items()
        }

    def _domain_at(self, position: int) -> str:
        point = _unit(self._seed, "domain", position) * self._cumulative[-1]
        return self._names[bisect.bisect_right(self._cumulative, point, hi=len(self._names) - 1)]

    def _tier_at(self, position: int, ladder: Ladder) -> int:
        below = ladder.top - ladder.first
        if not self._spec.curriculum.enabled:
            return ladder.first + _draw(self._seed, "tier", position) % (below + 1)
        rehearses = _unit(self._seed, "rehearse", position) < self._spec.curriculum.rehearsal
        if below and rehearses:
            return ladder.first + _draw(self._seed, "tier", position) % below
        return ladder.top

    def _evaluated(self, name: str, tiers: tuple[int, ...] | None) -> list[int]:
        if tiers is None:
            return [self._ladders[name].first]
        count = self._domains[name].tiers
        chosen = sorted({tier for tier in tiers if tier < count})
        if not chosen:
            raise RecipeError(
                f"{name} has {count} tiers and none of {list(tiers)}",
                where="evaluate.tiers",
                hint="add a lower tier, or leave it empty for the first tier of each domain",
            )
        return chosen

    def _heldout_of(self, name: str, tier: int) -> Iterator[Task]:
        """Distinct held-out tasks of one tier, until none has come for a long while."""
        start = _draw(self._seed, "heldout", name, tier)
        seen: set[str] = set()
        misses = offset = 0
        while misses < _HELDOUT_TRIES:
            task = self._domains[name].task(tier, (start + offset) % _INDICES)
            offset += 1
            prompt = canonical_json([[m.role, m.text] for m in task.messages])
            if task.split == "heldout" and prompt not in seen:
                seen.add(prompt)
                misses = 0
                yield task
            else:
                misses += 1


def _present(entry: DomainSpec, domains: Mapping[str, Domain]) -> Domain:
    if entry.name not in domains:
        raise RecipeError(f"no domain {entry.name!r} is open", where="tasks.domains")
    return domains[entry.name]


def _ladder(spec: TaskSpec, entry: DomainSpec, domain: Domain) -> Ladder:
    end = domain.tiers - 1
    last = end if entry.last_tier is None else min(entry.last_tier, end)
    if entry.first_tier > last:
        raise RecipeError(
            f"{entry.name} has no tiers from {entry.first_tier} to {last}",
            where="tasks.domains",
            hint=f"its tiers are 0..{end}",
        )
    return Ladder(entry.name, spec.curriculum, first=entry.first_tier, last=last)


def _solved(score: float) -> bool:
    return Verdict(score=score, verifier=VerifierRef("", "")).solved


def _tally(entry: Json) -> _Tally:
    keys = {"drawn", "attempts", "scored", "passed", "ladder"}
    if not isinstance(entry, dict) or set(entry) != keys:
        raise CheckpointError("not the state of a domain", where="task source")
    return _Tally(**{key: _count(entry, key) for key in keys - {"ladder"}})


def _count(entry: Mapping[str, Json], key: str) -> int:
    value = entry[key]
    if type(value) is not int or value < 0:
        raise CheckpointError(f"{key} is {value!r}, not a count", where="task source")
    return value
