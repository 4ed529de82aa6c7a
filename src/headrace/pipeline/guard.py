"""The watch against forgetting in a run: measures the suites, compares, says what is to be done.

How suites are compared is `headrace.evaluate.regression`'s business; what follows from it, the
run's. Every look is in the event log.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from headrace.errors import StorageError
from headrace.evaluate.heldout import Evaluation, groups_of
from headrace.evaluate.perplexity import measure_losses
from headrace.evaluate.regression import (
    Mark,
    Watchdog,
    Watched,
    WatchedSuite,
    marks_of_evaluation,
    marks_of_losses,
)
from headrace.pipeline.flow import Flow
from headrace.recipe import GENERAL, Recipe
from headrace.store.files import read_json, write_json_atomic
from headrace.types import Floats, Json, Sample, Task

__all__ = ["GUARDED", "Guard", "compare_looks", "looks_of"]

GUARDED = "guard"
"""Where looks are, below a run's evaluations."""


def compare_looks(recipe: Recipe, before: Path, after: Path, *, step: int) -> Watched:
    """The suites of `recipe` between two looks that were written, perhaps of different runs.

    Raises StorageError where one cannot be read, ValueError where they are not of the same items.
    """
    dog = _watchdog(recipe, 1)
    dog.set_base(_read(before))
    return dog.observe(step, _read(after))


def _watchdog(recipe: Recipe, looks: int) -> Watchdog:
    suites = [
        WatchedSuite(
            name=watched.suite,
            margin=watched.margin,
            better="lower" if watched.suite == GENERAL else "higher",
            scale="nats" if watched.suite == GENERAL else "share",
            action=watched.action,
        )
        for watched in recipe.guard.suites
    ]
    return Watchdog(
        suites,
        looks=looks,
        level=recipe.guard.level,
        confidence=recipe.evaluate.confidence,
    )


def _write(path: Path, marks: Mapping[str, Sequence[Mark]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomic(path, {name: [asdict(mark) for mark in seen] for name, seen in marks.items()})


def _read(path: Path) -> dict[str, tuple[Mark, ...]]:
    try:
        return {
            name: tuple(Mark(**mark) for mark in seen) for name, seen in read_json(path).items()
        }
    except (TypeError, AttributeError) as error:
        raise StorageError(f"not a look at watched suites: {error}", where=str(path)) from error


def looks_of(recipe: Recipe) -> int:
    """How often a run of `recipe` compares with its beginning."""
    every = recipe.evaluate.every
    return 1 if every is None else math.ceil(recipe.steps / every)


class Guard:
    """Measures with `logprobs` (of the general texts, as `samples`) and by playing `tasks`; what
    was measured, item by item, is in `folder`."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        tasks: Mapping[str, Sequence[Task]],
        samples: Sequence[Sample],
        logprobs: Callable[[Sequence[Sample]], Sequence[Floats]],
        flow: Flow,
        folder: Path,
    ) -> None:
        self._tasks, self._samples = tasks, samples
        self._logprobs, self._flow, self._folder = logprobs, flow, folder
        self._dog = _watchdog(recipe, looks_of(recipe))
        self._names = [watched.suite for watched in recipe.guard.suites]

    async def look(
        self, step: int, weights: int, *, target: float | None, checkpoint: bool
    ) -> Watched | None:
        """Measure every suite; None at the first look, with which later ones are compared."""
        marks = {name: await self._measured(name, step, weights) for name in self._names}
        _write(self._folder / f"step_{step:06d}.json", marks)
        if not self._dog.based or step == 0:
            self._dog.set_base(marks)
            return None
        return self._dog.observe(step, marks, target=target, checkpoint=checkpoint)

    async def _measured(self, name: str, step: int, weights: int) -> tuple[Mark, ...]:
        if name == GENERAL:
            return marks_of_losses(measure_losses(self._samples, self._logprobs))
        groups = groups_of(self._tasks[name])
        batch = f"guard:{name}:{step:06d}"
        self._flow.admit(groups, purpose="evaluate", batch=batch)
        await self._flow.play(batch)
        keys = [group.id for group in groups]
        await self._flow.ready(keys)
        played = self._flow.take(keys)
        return marks_of_evaluation(Evaluation.of(played, step=step, version=0, weights=weights))

    @property
    def best(self) -> int | None:
        """The step whose checkpoint must be kept."""
        return self._dog.best

    def state(self) -> Json:
        return self._dog.state()

    def restore(self, state: Json) -> None:
        self._dog.restore(state)
