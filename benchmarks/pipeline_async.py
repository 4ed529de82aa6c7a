"""How much asynchrony gains over slow verifiers, on the real model, and what was predicted of it.

The same recipe runs synchronously and ahead of its verdicts, which sleep for a half or the whole
of what sampling and learning take without them (ideal: 1.5x and 2x the samples/s). The simulator
is calibrated from the synchronous run alone and says what the other schedules will come to.
Only a quiet machine gives numbers that mean anything.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path

from rows import Row

from headrace.observe.listener import QuietListener
from headrace.pipeline.session import start
from headrace.pipeline.simulation import calibrate, scheduled, simulate
from headrace.recipe import DEFAULT_MODEL, Recipe
from headrace.store.events import read_events
from headrace.store.runs import RunDirectory
from headrace.types import Json, Message, Task, Verdict, VerifierRef, split_of

__all__ = ["pack", "rows"]

ROUNDS = 3
SHARES = ((0.5, 1.4), (1.0, 1.7))
"""Latencies over the seconds of a step without verdicts, and how much faster is enough."""
SCHEDULES = (("lockstep", 1), ("free", 1))
BARRED = "lockstep"
"""The schedule that must gain so much here. Running free is for machines of their own: where
sampling and learning share the cores it comes in bunches, as the simulator says too."""
WITHIN = 0.10


# --- tasks whose verdicts take their time --------------------------------------------------


@dataclass(slots=True)
class Sleeper:
    """Sleeps for `seconds`, then scores the share of vowels: whatever is written earns some."""

    seconds: float = 0.0
    ref: VerifierRef = field(default_factory=lambda: VerifierRef("sleeper", "1"))

    def judge(self, task: Task, text: str) -> Verdict:
        del task
        time.sleep(self.seconds)
        share = sum(letter in "aeiou" for letter in text) / max(len(text), 4)
        return Verdict(score=share, verifier=self.ref)


@dataclass(frozen=True, slots=True)
class Stories:
    """Tasks that are answered up to the limit, so that every step is the same work."""

    name: str
    verifier: Sleeper
    tiers: int = 1

    def task(self, tier: int, index: int) -> Task:
        problem = f"a story about {index % 100_000} mice"
        return Task(
            domain=self.name,
            problem=problem,
            tier=tier,
            split=split_of(self.name, problem),
            messages=(Message.of("user", f"Write {problem}, in one long paragraph."),),
            verifier=self.verifier.ref,
            answer=None,
        )


class Pack:
    def __init__(self) -> None:
        self.verifier = Sleeper()

    def names(self) -> Sequence[str]:
        return ["stories"]

    def open(self, name: str) -> Stories:
        return Stories(name, self.verifier)

    def close(self) -> None:
        """Nothing to release."""


pack = Pack()
PACKS = [EntryPoint("stories", f"{__name__}:pack", "headrace.packs")]


# --- runs ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large the runs are. The steady part of the steps (two are left out at either end of a
    lag of 1) is a multiple of lag + 1: free-running groups come in bunches of so many steps."""

    model: str
    steps: int
    groups: int
    tokens: int
    rounds: int
    threads: int | None


FULL = Scale(model=DEFAULT_MODEL, steps=7, groups=2, tokens=24, rounds=ROUNDS, threads=None)
QUICK = Scale(model="tiny:llama", steps=11, groups=4, tokens=32, rounds=1, threads=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A run: where it is, and its pace in the steps in which the pipeline is full."""

    path: Path
    samples_per_second: float
    step_s: float


def _recipe(scale: Scale) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "latency",
            "steps": scale.steps,
            "threads": scale.threads,
            "model": {"source": scale.model},
            "tasks": {"domains": [{"name": "stories"}], "curriculum": {"enabled": False}},
            "play": {"groups": scale.groups, "group_size": 8, "max_new_tokens": scale.tokens},
            "algorithm": {"kl": {"measure": False}},
            "evaluate": {"items": 0},
            "verify": {"audit": "off", "workers": 2 * 8 * scale.groups, "honeypot_every": None},
            "checkpoint": {"every": 1000},
            "stop": {"no_signal": 1000, "all_truncated": 1000, "unjudged": 1000},
        }
    )


def _run(folder: Path, recipe: Recipe, latency: float) -> Ran:
    pack.verifier.seconds = latency
    result = start(recipe, runs=folder, listener=QuietListener(), packs=PACKS)
    ends = {
        event.step: event.timing["since_ready"]
        for event in read_events(result.path / "events.jsonl")
        if event.kind == "step"
    }
    first, last = recipe.play.max_lag + 1, recipe.steps - recipe.play.max_lag
    step_s = (ends[last] - ends[first]) / (last - first)
    samples = recipe.play.groups * recipe.play.group_size
    return Ran(path=result.path, samples_per_second=samples / step_s, step_s=step_s)


# --- rows ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Pair:
    """Samples/s of one schedule and of the synchronous runs beside it, and what was predicted."""

    ours: list[float] = field(default_factory=list[float])
    theirs: list[float] = field(default_factory=list[float])
    predicted: list[float] = field(default_factory=list[float])


def rows(quick: bool, told: dict[str, Json]) -> list[Row]:
    """Samples/s of each schedule against synchronous, and how far the predictions were off."""
    scale = QUICK if quick else FULL
    recipe = _recipe(scale)
    pairs = {(share, *plan): _Pair() for share, _ in SHARES for plan in SCHEDULES}
    bases: list[float] = []
    with tempfile.TemporaryDirectory(prefix="headrace-async-") as folder:
        _run(Path(folder), recipe.model_copy(update={"steps": 3}), 0.0)
        for number in range(scale.rounds):
            bases.append(_run(Path(folder), recipe, 0.0).step_s)
            for share, _ in SHARES:
                _round(Path(folder), recipe, share, share * bases[-1], pairs, number)
    told["async_step_seconds_without_verdicts"] = bases
    told["async"] = [
        {
            "latency_share": share,
            "schedule": schedule,
            "max_lag": lag,
            "samples_per_second": pair.ours,
            "synchronous": pair.theirs,
            "predicted": pair.predicted,
        }
        for (share, schedule, lag), pair in pairs.items()
    ]
    return [row for key, pair in pairs.items() for row in _rows_of(*key, pair)]


def _round(
    folder: Path,
    recipe: Recipe,
    share: float,
    latency: float,
    pairs: dict[tuple[float, str, int], _Pair],
    number: int,
) -> None:
    """Every schedule once; who goes first changes from round to round."""
    synchronous = _run(folder, recipe, latency)
    world = calibrate(RunDirectory.open(synchronous.path)).world
    turn = number % len(SCHEDULES)
    for schedule, lag in (*SCHEDULES[turn:], *SCHEDULES[:turn]):
        plan = scheduled(recipe, schedule, lag)
        pair = pairs[share, schedule, lag]
        pair.ours.append(_run(folder, plan, latency).samples_per_second)
        pair.theirs.append(synchronous.samples_per_second)
        pair.predicted.append(simulate(plan, world).samples_per_second)


def _rows_of(share: float, schedule: str, lag: int, pair: _Pair) -> list[Row]:
    what = f"{schedule}, lag {lag}, verdicts of {share:g} steps"
    enough = dict(SHARES)[share]
    median = statistics.median(pair.ours)
    off = tuple(abs(predicted / median - 1) for predicted in pair.predicted)
    return [
        Row(
            what=what,
            peer="synchronous",
            unit="samples/s",
            ours=tuple(pair.ours),
            theirs=tuple(pair.theirs),
            bar=enough if schedule == BARRED else None,
        ),
        Row(
            what=f"the simulator's error: {what}",
            peer="the real run",
            unit="share",
            ours=off,
            most=WITHIN,
        ),
    ]
