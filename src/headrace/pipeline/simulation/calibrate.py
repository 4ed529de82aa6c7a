"""A world taken from a real run: its lengths, its seconds, its domains.

A batch that starts as one takes prefill x groups + pass_s x passes + row_s x tokens seconds,
where passes follow from the lengths and the number of rows; the three are fitted by
non-negative least squares (Lawson and Hanson 1974) over the steps of the run, as are the
learner's seconds a step and a token. What cannot be known from a run is said in the notes.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.configure import parse_recipe
from headrace.errors import RunError
from headrace.pipeline.simulation.world import (
    Distribution,
    DomainModel,
    EngineModel,
    Fixed,
    LearnerModel,
    Observed,
    World,
)
from headrace.recipe import Recipe
from headrace.store.events import Event, read_events
from headrace.store.runs import RunDirectory
from headrace.store.trajectories import TrajectoryStore
from headrace.types import Trajectory

__all__ = ["Calibration", "calibrate", "passes_of"]

_WARM = 4
"""With fewer steps than this the first one counts too, though it warms up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A run's world; `notes` say what each number comes from."""

    world: World
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Batch:
    """What was played for a step: attempts by group, and the seconds that sampling took."""

    groups: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    seconds: float = 0.0

    @property
    def lengths(self) -> list[int]:
        return [length for lengths in self.groups.values() for length in lengths]


def calibrate(directory: RunDirectory) -> Calibration:
    """The world that a run went through.

    Raises RunError for a run without a finished step, StorageError where its files are damaged.
    """
    recipe = parse_recipe(directory.recipe(), where=str(directory.path / "recipe.json"))
    events = read_events(directory.events_path)
    steps = {event.step: event for event in events if event.kind == "step"}
    played = _played(directory)
    if not steps or not played:
        raise RunError(
            "the run has no finished step to learn from",
            where=str(directory.path),
            hint="name a recipe instead, and say how long things take",
        )
    rows = recipe.sampler.max_rows
    batches = _batches(played, first=2 if len(steps) >= _WARM else 1)
    engine, sampling = _engine(batches, rows, recipe)
    learner, learning = _learner(events, steps)
    verdict, judging = _verdicts(played, steps, batches, recipe)
    domains = _domains(played, verdict)
    world = World(
        domains=domains,
        engine=engine,
        learner=learner,
        verifiers=recipe.verify.workers,
        deadline_s=recipe.verify.deadline,
    )
    notes = (
        f"{directory.name}: {len(steps)} steps, {len(played)} attempts, "
        f"{recipe.play.schedule} with a lag of {recipe.play.max_lag}",
        f"lengths: as they were, {_mean(t.sampled_tokens for t in played):.0f} tokens on average",
        sampling,
        judging,
        learning,
    )
    return Calibration(world=world, notes=notes)


def _played(directory: RunDirectory) -> list[Trajectory]:
    """The attempts of training, honeypots left out."""
    with TrajectoryStore(directory.trajectories_path, read_only=True) as store:
        return [t for t in store.trajectories() if "honeypot" not in t.group]


def _domains(
    played: Sequence[Trajectory], verdict: Mapping[str, Distribution]
) -> tuple[DomainModel, ...]:
    by_domain: dict[str, list[Trajectory]] = defaultdict(list)
    for attempt in played:
        by_domain[attempt.task.domain].append(attempt)
    made: list[DomainModel] = []
    for name, attempts in sorted(by_domain.items()):
        scores = [attempt.score for attempt in attempts if attempt.score is not None]
        made.append(
            DomainModel(
                name=name,
                weight=float(len({attempt.group for attempt in attempts})),
                tokens=Observed(tuple(float(attempt.sampled_tokens) for attempt in attempts)),
                verdict=verdict[name],
                solved=_mean(scores),
            )
        )
    return tuple(made)


# --- sampling ------------------------------------------------------------------------------


def passes_of(lengths: Iterable[int], slots: int) -> int:
    """Passes that an engine with so many slots makes for rows of these lengths, in this order.

    >>> passes_of([5, 3, 4], 2)
    7
    """
    ends: list[int] = []
    for length in lengths:
        start = heapq.heappop(ends) if len(ends) == slots else 0
        heapq.heappush(ends, start + length)
    return max(ends, default=0)


def _batches(played: Sequence[Trajectory], *, first: int) -> dict[int, _Batch]:
    """Lockstep batches by step: groups are called "000003:0.2" there."""
    batches: dict[int, _Batch] = defaultdict(_Batch)
    for attempt in played:
        step, colon, rest = attempt.group.partition(":")
        if colon and rest.startswith("0.") and int(step) >= first:
            batch = batches[int(step)]
            batch.groups[attempt.group].append(attempt.sampled_tokens)
            batch.seconds = max(batch.seconds, attempt.timings.get("play", 0.0))
    return {step: batch for step, batch in sorted(batches.items()) if batch.seconds > 0}


def _engine(batches: Mapping[int, _Batch], slots: int, recipe: Recipe) -> tuple[EngineModel, str]:
    if not batches:
        raise RunError(
            "a free-running run does not say what a batch of its own takes",
            where=recipe.name,
            hint="calibrate from a run with play.schedule=lockstep",
        )
    columns = [
        [len(batch.groups), passes_of(batch.lengths, slots), sum(batch.lengths)]
        for batch in batches.values()
    ]
    seconds = [batch.seconds for batch in batches.values()]
    prefill_s, pass_s, row_s = _fit(columns, seconds)
    model = EngineModel(
        slots=slots, pass_s=pass_s, row_s=row_s if pass_s + row_s else 1e-9, prefill_s=prefill_s
    )
    note = (
        f"sampling: {_mean(seconds):.2f} s a batch = {prefill_s * 1e3:.3g} ms a group + "
        f"{pass_s * 1e3:.3g} ms a pass + {row_s * 1e3:.3g} ms a token, {slots} rows"
    )
    return model, note


def _fit(columns: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Seconds a unit of each column, none below 0."""
    from scipy.optimize import nnls

    matrix = np.asarray(columns, np.float64)
    scale = np.maximum(matrix.max(axis=0), 1.0)
    found, _ = nnls(matrix / scale, np.asarray(seconds, np.float64))
    return [float(value) for value in found / scale]


# --- judging and learning ------------------------------------------------------------------


def _verdicts(
    played: Sequence[Trajectory],
    steps: Mapping[int, Event],
    batches: Mapping[int, _Batch],
    recipe: Recipe,
) -> tuple[dict[str, Distribution], str]:
    """Seconds a verdict by domain: as they were timed, or else what a step waited for them."""
    names = {attempt.task.domain for attempt in played}
    timed: dict[str, list[float]] = defaultdict(list)
    for attempt in played:
        if (seconds := attempt.timings.get("verdict")) is not None:
            timed[attempt.task.domain].append(seconds)
    if names <= timed.keys():
        told: dict[str, Distribution] = {n: Observed(tuple(s)) for n, s in timed.items()}
        return told, f"verdicts: as they were, {_mean(s for v in timed.values() for s in v):.2f} s"
    waits = [
        max(0.0, steps[step].timing["play"] - batch.seconds)
        for step, batch in batches.items()
        if step in steps
    ]
    wait = statistics.median(waits) if waits else 0.0
    note = f"verdicts: {wait:.2f} s each, the median wait after sampling"
    if recipe.play.max_lag:
        note += "; what was hidden behind other work is not in it (calibrate with max_lag=0)"
    return {name: Fixed(wait) for name in names}, note


def _learner(events: Sequence[Event], steps: Mapping[int, Event]) -> tuple[LearnerModel, str]:
    counted = [event for event in steps.values() if event.step > 1 or len(steps) < _WARM]
    columns = [[1.0, float(event.payload["sampled_tokens"])] for event in counted]
    step_s, token_s = _fit(columns, [event.timing["learn"] for event in counted])
    books_s = _between(events, steps)
    note = (
        f"learning: {_mean(event.timing['learn'] for event in counted):.2f} s a step = "
        f"{step_s:.3g} s + {token_s * 1e3:.3g} ms a token; {books_s:.2f} s between steps"
    )
    return LearnerModel(step_s=step_s, token_s=token_s, books_s=books_s), note


def _between(events: Sequence[Event], steps: Mapping[int, Event]) -> float:
    """Mean seconds between two steps that belong to neither, evaluations left out."""
    evaluated: dict[int, float] = defaultdict(float)
    for event in events:
        if event.kind == "evaluation":
            evaluated[event.step] += event.timing.get("seconds", 0.0)
    gaps: list[float] = []
    for number, event in steps.items():
        if (before := steps.get(number - 1)) is not None:
            ends = event.timing["since_ready"] - before.timing["since_ready"]
            gap = ends - event.timing["seconds"] - evaluated[number - 1]
            if gap >= 0:  # another life of the run counts from its own beginning
                gaps.append(gap)
    return _mean(gaps)


def _mean(values: Iterable[float]) -> float:
    told = list(values)
    return math.fsum(told) / len(told) if told else 0.0
