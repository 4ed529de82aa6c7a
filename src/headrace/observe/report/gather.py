"""What a report is made of: everything a run directory says, read leniently.

A piece that is missing or damaged becomes a sentence in `problems`; it never stops the rest.
Knows the store and the layout of evaluation files; nothing of how a page looks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from headrace.errors import HeadraceError
from headrace.store.events import Event, read_events
from headrace.store.files import read_json
from headrace.store.lenient import integer, mapping, number, text
from headrace.store.runs import RunDirectory, RunStatus, recipe_title
from headrace.store.summary import rate_of, seconds_of
from headrace.store.trajectories import TrajectoryStore
from headrace.types import Json, Trajectory

__all__ = ["Comparison", "Evaluation", "Item", "Material", "Move", "Pace", "StepAttempts", "gather"]

SUITE = "heldout"
_LAST_STEP = 10**12

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One held-out task as one evaluation saw it; `score` None was not judged."""

    task: str
    domain: str
    tier: int | None
    prompt: str
    answer: Json
    completion: str
    score: float | None
    tokens: int | None
    truncated: bool
    evidence: str

    @property
    def solved(self) -> bool:
        return self.score is not None and self.score >= 0.999


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """An evaluation event: mean score in [0, 1] with its interval over `n` judged tasks."""

    step: int
    score: float | None
    low: float | None
    high: float | None
    n: int | None
    unscored: int | None
    truncated: float | None
    by_domain: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The paired difference after - before, as the run recorded it."""

    value: float | None
    low: float | None
    high: float | None
    n: int | None
    gained: int | None
    lost: int | None
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A domain climbed or descended its ladder during a step."""

    step: int
    domain: str
    from_tier: int | None
    to_tier: int | None
    pass_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds from the model being ready to the first reward, and of training; tokens a second
    over all steps."""

    first_reward: float | None
    training: float | None
    tokens_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAttempts:
    """All attempts of one step, by group."""

    step: int
    groups: list[list[Trajectory]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """A run as far as it could be read.

    `before` and `after` are the items of the first and the last evaluation; `after` is None
    while there is only one. `played` holds the first and the last step's attempts.
    """

    path: Path
    name: str
    recipe_name: str
    model: str
    status: RunStatus | None
    recipe: Json
    env: Mapping[str, Json]
    events: list[Event]
    steps: list[Event]
    evaluations: list[Evaluation]
    comparison: Comparison | None
    moves: list[Move]
    before: list[Item] | None
    after: list[Item] | None
    played: list[StepAttempts]
    pace: Pace
    problems: list[str]

    @property
    def confidence(self) -> float:
        return number(self.recipe, "evaluate", "confidence") or 0.95


def gather(path: Path) -> Material:
    """Read a run directory. Raises RunError if `path` is none; nothing else that is damaged."""
    run = RunDirectory.open(path)
    problems: list[str] = []
    recipe = _attempt(run.recipe, problems, "The recipe")
    env = _attempt(run.env, problems, "The environment")
    status = _attempt(run.status, problems, "The status")
    recorded = _attempt(lambda: read_events(run.events_path), problems, "The event log") or []
    events = [event for event in recorded if 0 <= event.step <= _LAST_STEP]
    evaluations = [
        _evaluation(event)
        for event in events
        if event.kind == "evaluation" and event.payload.get("suite") == SUITE
    ]
    first, last = _ends(run, evaluations)
    title = recipe_title(recipe)
    return Material(
        path=path,
        name=run.name,
        recipe_name=title.name or run.name,
        model=title.model or "unknown model",
        status=status,
        recipe=recipe,
        env=mapping(env),
        events=events,
        steps=[event for event in events if event.kind == "step"],
        evaluations=evaluations,
        comparison=_comparison(events),
        moves=[_move(event) for event in events if event.kind == "curriculum"],
        before=_items(run, first, problems),
        after=_items(run, last, problems),
        played=_attempt(lambda: _played(run, events), problems, "The attempts") or [],
        pace=_pace(events),
        problems=problems,
    )


def _attempt(read: Callable[[], _T], problems: list[str], what: str) -> _T | None:
    """What `read` gives, or None and a sentence."""
    try:
        return read()
    except HeadraceError as error:
        problems.append(f"{what} could not be read: {error}.")
        return None


# --- events --------------------------------------------------------------------------------


def _evaluation(event: Event) -> Evaluation:
    said = event.payload
    return Evaluation(
        step=event.step,
        score=number(said, "score"),
        low=number(said, "low"),
        high=number(said, "high"),
        n=integer(said, "n"),
        unscored=integer(said, "unscored"),
        truncated=number(said, "truncated"),
        by_domain=mapping(said, "by_domain"),
    )


def _comparison(events: Sequence[Event]) -> Comparison | None:
    found = [e.payload for e in events if e.kind == "comparison"]
    if not found or number(found[-1], "value") is None:
        return None
    said = found[-1]
    return Comparison(
        value=number(said, "value"),
        low=number(said, "low"),
        high=number(said, "high"),
        n=integer(said, "n"),
        gained=integer(said, "gained"),
        lost=integer(said, "lost"),
        confidence=number(said, "confidence") or 0.95,
    )


def _move(event: Event) -> Move:
    said = event.payload
    return Move(
        step=event.step,
        domain=text(said, "domain"),
        from_tier=integer(said, "from_tier"),
        to_tier=integer(said, "to_tier"),
        pass_rate=number(said, "pass_rate"),
    )


def _pace(events: Sequence[Event]) -> Pace:
    seconds = seconds_of(events)
    steps = [event for event in events if event.kind == "step"]
    return Pace(
        first_reward=seconds.first_reward,
        training=seconds.training,
        tokens_per_second=rate_of(steps, "tokens_per_second"),
    )


# --- evaluations ---------------------------------------------------------------------------


def _ends(run: RunDirectory, evaluations: Sequence[Evaluation]) -> tuple[Path | None, Path | None]:
    """The files of the first and the last evaluation; the last is None if it is the first."""
    folder = run.evals_path / SUITE
    steps = sorted({evaluation.step for evaluation in evaluations})
    if not steps:
        return None, None
    files = [folder / f"step_{step:06d}.json" for step in (steps[0], steps[-1])]
    return files[0], files[1] if len(steps) > 1 else None


def _items(run: RunDirectory, path: Path | None, problems: list[str]) -> list[Item] | None:
    if path is None:
        return None
    where = path.relative_to(run.path)
    value = _attempt(lambda: read_json(path), problems, f"The evaluation {where}")
    listed = value.get("items") if isinstance(value, dict) else None
    if value is not None and not isinstance(listed, list):
        problems.append(f"The evaluation {where} does not hold a list of items.")
    if not isinstance(listed, list):
        return None
    return [_item(entry) for entry in listed if isinstance(entry, dict)]


def _item(entry: Mapping[str, Json]) -> Item:
    return Item(
        task=text(entry, "task"),
        domain=text(entry, "domain"),
        tier=integer(entry, "tier"),
        prompt=text(entry, "prompt"),
        answer=entry.get("answer"),
        completion=text(entry, "completion"),
        score=number(entry, "score"),
        tokens=integer(entry, "tokens"),
        truncated=entry.get("truncated") is True,
        evidence=text(entry, "evidence"),
    )


# --- attempts ------------------------------------------------------------------------------


def _played(run: RunDirectory, events: Sequence[Event]) -> list[StepAttempts]:
    """The first and the last step that has attempts in the history."""
    settled = [event for event in events if event.kind == "wave"]
    with TrajectoryStore(run.trajectories_path, read_only=True) as store:
        by_step = _by_ledger(store, settled) or _by_wave(store, settled)
        return [
            StepAttempts(step=step, groups=by_step[step]())
            for step in dict.fromkeys([*sorted(by_step)[:1], *sorted(by_step)[-1:]])
        ]


_Groups = Callable[[], list[list[Trajectory]]]


def _by_ledger(store: TrajectoryStore, settled: Sequence[Event]) -> dict[int, _Groups]:
    """What each step took, trained on or not."""
    steps = {event.step for event in settled}
    names: dict[int, list[str]] = {}
    for entry in store.ledger():
        if not entry.void and entry.consumed.step in steps:
            names.setdefault(entry.consumed.step, []).extend(entry.consumed.groups)

    def read(step: int) -> list[list[Trajectory]]:
        return [store.group(name) for name in names[step]]

    return {step: partial(read, step) for step in names}


def _by_wave(store: TrajectoryStore, settled: Sequence[Event]) -> dict[int, _Groups]:
    """The same of runs that kept no ledger: they named their waves by the step."""
    known = {text(event.payload, "wave") for event in settled}
    keys: dict[int, list[str]] = {}
    for key in list(store.keys()):
        head = key.partition(":")[0]
        if head.isdecimal() and len(head) < 16 and (key in known or not known):
            keys.setdefault(int(head), []).append(key)

    def read(step: int) -> list[list[Trajectory]]:
        groups: dict[str, list[Trajectory]] = {}
        for wave in store.iterate(keys[step]):
            for trajectory in wave.trajectories:
                groups.setdefault(trajectory.group, []).append(trajectory)
        return list(groups.values())

    return {step: partial(read, step) for step in keys}
