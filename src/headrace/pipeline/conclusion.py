"""What a plan came to as a whole: its last model against its first, on the same items.

The first and the last evaluation are copied from their stages, and what was watched against
forgetting is compared over all stages, so that the plan's own record says it.
"""

from __future__ import annotations

from pathlib import Path

from headrace.evaluate.heldout import Evaluation, comparison_payload
from headrace.observe.listener import Listener
from headrace.pipeline.guard import GUARDED, compare_looks
from headrace.pipeline.prepare import STAGES
from headrace.recipe import Plan, Recipe, Stage
from headrace.store.events import EventLog
from headrace.store.files import read_json, write_json_atomic
from headrace.store.runs import RunDirectory

__all__ = ["conclude"]

SUITE = "heldout"


def conclude(directory: RunDirectory, plan: Plan, listener: Listener) -> None:
    """Write it into the plan's event log; nothing where the suites of the stages differ."""
    policies = [stage for stage in plan.stages if stage.recipe.method != "reward"]
    with EventLog(directory.events_path) as events:
        events.rewind(0)
        _heldout(directory, policies, events, listener)
        _guarded(directory, policies, events, listener)


def _heldout(
    directory: RunDirectory, stages: list[Stage], events: EventLog, listener: Listener
) -> None:
    suited = [stage for stage in stages if _evaluations(directory, stage, SUITE)]
    if len(suited) < 2:
        return
    recipe = suited[-1].recipe
    first, last = _ends(directory, suited[0], suited[-1], SUITE)
    before, after = (Evaluation.from_json(read_json(path)) for path in (first, last))
    if [item.task for item in before.items] != [item.task for item in after.items]:
        return
    confidence = recipe.evaluate.confidence
    for step, evaluation in ((0, before), (len(stages), after)):
        path = directory.evals_path / SUITE / f"step_{step:06d}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomic(path, {**evaluation.to_json(), "step": step})
        events.append("evaluation", step, evaluation.payload(confidence))
    told = comparison_payload(before, after, confidence)
    events.append("comparison", len(stages), told)
    listener.note(
        f"held-out from the first model to the last: {told['value']:+.3f} "
        f"[{told['low']:+.3f}, {told['high']:+.3f}] on {told['n']} tasks"
    )


def _guarded(
    directory: RunDirectory, stages: list[Stage], events: EventLog, listener: Listener
) -> None:
    watched = [stage for stage in stages if _evaluations(directory, stage, GUARDED)]
    suites = {_suites(stage.recipe) for stage in watched}
    if not watched or len(suites) > 1:
        return
    first, last = _ends(directory, watched[0], watched[-1], GUARDED)
    found = compare_looks(watched[-1].recipe, first, last, step=len(stages))
    findings = [finding.payload() for finding in found.findings]
    events.append("regression", len(stages), {"findings": findings})
    for finding in found.findings:
        listener.note(finding.sentence())


def _suites(recipe: Recipe) -> tuple[tuple[str, int], ...]:
    return tuple((watched.suite, watched.items) for watched in recipe.guard.suites)


def _ends(directory: RunDirectory, first: Stage, last: Stage, suite: str) -> tuple[Path, Path]:
    return (
        _evaluations(directory, first, suite)[0],
        _evaluations(directory, last, suite)[-1],
    )


def _evaluations(directory: RunDirectory, stage: Stage, suite: str) -> list[Path]:
    """What a stage measured of a suite, oldest first."""
    return sorted((directory.path / STAGES / stage.name / "evals" / suite).glob("step_*.json"))
