"""What a run amounts to so far: a pure function of its status and its events.

`headrace show --json` prints it and the report draws it. A run may be at any point of its
life, so whatever is not known yet is None (null), never a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from headrace.store.events import Event, read_history
from headrace.store.lenient import integer, mapping, number
from headrace.store.runs import RunDirectory, recipe_title
from headrace.types import Json

__all__ = [
    "Difference",
    "Heldout",
    "RunSummary",
    "Score",
    "Seconds",
    "rate_of",
    "seconds_of",
    "summarise",
]


_LONGEST = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A held-out score in [0, 1] with its standard error, over `n` tasks."""

    score: float | None
    stderr: float | None
    n: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """After minus before on the same tasks: paired, with the interval [low, high]."""

    value: float | None
    stderr: float | None
    low: float | None
    high: float | None
    n: int | None
    confidence: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heldout:
    """The first evaluation of the held-out suite, the last after it, and the comparison."""

    before: Score | None
    after: Score | None
    difference: Difference | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Wall time: from the model being ready to the first reward, of all training steps, and of
    steps and evaluations together."""

    first_reward: float | None
    training: float | None
    total: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in numbers.

    `steps` were done of `planned`; `reward` is the mean reward of each (None where nothing
    could be judged); rates are over all steps; `domains` holds the latest of each domain;
    `rewinds` counts resumptions that went another way than the record.
    """

    run: str
    recipe: str
    model: str
    status: str
    reason: str
    steps: int
    planned: int | None
    seconds: Seconds
    heldout: Heldout
    reward: list[float | None]
    samples_per_second: float | None
    tokens_per_second: float | None
    domains: dict[str, dict[str, Json]]
    attempts: int
    rewinds: int

    def to_json(self) -> dict[str, Json]:
        """The same as a JSON object."""
        return asdict(self)


def summarise(run: RunDirectory) -> RunSummary:
    """The summary of a run. Raises StorageError when its files are damaged."""
    status = run.status()
    history = read_history(run.events_path)
    events = history.events
    steps = [event for event in events if event.kind == "step"]
    title = recipe_title(run.recipe())
    started = _last(events, "run_started")
    return RunSummary(
        run=run.name,
        recipe=title.name,
        model=title.model,
        status=status.state,
        reason=status.reason,
        steps=len(steps),
        planned=integer(started.payload, "steps") if started else None,
        seconds=seconds_of(events),
        heldout=_heldout(events),
        reward=[number(mapping(event.payload, "reward"), "mean") for event in steps],
        samples_per_second=rate_of(steps, "samples_per_second"),
        tokens_per_second=rate_of(steps, "tokens_per_second"),
        domains=_domains(events),
        attempts=status.attempts,
        rewinds=len(history.rewinds),
    )


def seconds_of(events: Sequence[Event]) -> Seconds:
    """Sums over what was recorded, so that they mean the same after any number of resumes."""
    rewarded = [_time(e, "since_ready") for e in events if e.kind in ("wave", "step")]
    first = [seconds for seconds in rewarded if seconds is not None]
    training, evaluating = _spent(events, "step"), _spent(events, "evaluation")
    return Seconds(
        first_reward=first[0] if first else None,
        training=training,
        total=None if training is None else training + (evaluating or 0.0),
    )


def _spent(events: Sequence[Event], kind: str) -> float | None:
    spent = [_time(event, "seconds") for event in events if event.kind == kind]
    known = [seconds for seconds in spent if seconds is not None]
    return sum(known) if known else None


def _time(event: Event, key: str) -> float | None:
    """A timing of an event; None where it is absent or no time that anything can take."""
    value = event.timing.get(key)
    return float(value) if value is not None and 0 <= value < _LONGEST else None


def _heldout(events: Sequence[Event]) -> Heldout:
    suite = [event for event in events if event.payload.get("suite") == "heldout"]
    evaluations = [event.payload for event in suite if event.kind == "evaluation"]
    comparison = _last(suite, "comparison")
    return Heldout(
        before=_score(evaluations[0]) if evaluations else None,
        after=_score(evaluations[-1]) if len(evaluations) > 1 else None,
        difference=_difference(comparison.payload) if comparison else None,
    )


def _score(payload: Mapping[str, Json]) -> Score:
    return Score(
        score=number(payload, "score"),
        stderr=number(payload, "stderr"),
        n=integer(payload, "n"),
    )


def _difference(payload: Mapping[str, Json]) -> Difference:
    return Difference(
        value=number(payload, "value"),
        stderr=number(payload, "stderr"),
        low=number(payload, "low"),
        high=number(payload, "high"),
        n=integer(payload, "n"),
        confidence=number(payload, "confidence"),
    )


def rate_of(steps: Sequence[Event], name: str) -> float | None:
    """A rate over all steps: the rates of the steps, each weighed by its seconds."""
    pairs = [(_time(event, name), _time(event, "seconds")) for event in steps]
    known = [(rate, seconds) for rate, seconds in pairs if rate is not None and seconds]
    seconds = sum(seconds for _, seconds in known)
    return sum(rate * s for rate, s in known) / seconds if seconds else None


def _domains(events: Sequence[Event]) -> dict[str, dict[str, Json]]:
    """The latest known state of each domain, in the order they were first seen."""
    domains: dict[str, dict[str, Json]] = {}
    for event in events:
        if event.kind == "step":
            domains.update(mapping(event.payload, "domains"))
        elif event.kind == "curriculum":
            name, tier = event.payload.get("domain"), integer(event.payload, "to_tier")
            if isinstance(name, str) and tier is not None:
                domains[name] = {**mapping(domains, name), "tier": tier}
    return domains


def _last(events: Iterable[Event], kind: str) -> Event | None:
    found = [event for event in events if event.kind == kind]
    return found[-1] if found else None
