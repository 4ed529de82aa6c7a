"""A plan run: its stages one after the other, each a run of its own in the plan's directory.

    runs/<plan>--<model>--<shortid>/
      recipe.json  env.json  status.json  stages/<name>/   (a run directory each)

A stage that is done is never run again; one that was interrupted is resumed. What starts from
"stage:NAME" finds the artifact beside it, so a directory can be moved as a whole.
"""

from __future__ import annotations

import gc
import platform
from collections.abc import Iterable
from importlib.metadata import EntryPoint
from pathlib import Path

from headrace import __version__
from headrace.errors import NoSignalError
from headrace.observe.listener import Listener
from headrace.observe.report import write_report
from headrace.pipeline.conclusion import conclude
from headrace.pipeline.prepare import STAGES
from headrace.pipeline.session import RunResult, resume, start, truthful
from headrace.recipe import Plan, Stage
from headrace.store.runs import RunDirectory
from headrace.store.summary import summarise

__all__ = ["resume_plan", "start_plan"]


def start_plan(
    plan: Plan,
    *,
    runs: Path,
    directory: Path | None = None,
    listener: Listener,
    packs: Iterable[EntryPoint] | None = None,
) -> RunResult:
    """Make a directory for `plan` under `runs` (or at `directory`) and run its stages.

    Raises what its stages raise; what is done stays done, and `resume_plan` goes on.
    """
    made = RunDirectory.create(
        runs,
        plan.model_dump(mode="json"),
        plan.name,
        plan.digest,
        {"headrace": __version__, "python": platform.python_version()},
        directory=directory,
    )
    return _drive(made, plan, listener, packs)


def resume_plan(
    directory: RunDirectory,
    plan: Plan,
    *,
    listener: Listener,
    packs: Iterable[EntryPoint] | None = None,
) -> RunResult:
    """Go on with a plan at the first stage that is not done."""
    status = directory.status()
    if status.state == "done":
        return RunResult(directory.path, "done", f"{status.reason}; nothing is left to do")
    return _drive(directory, plan, listener, packs)


def _drive(
    directory: RunDirectory,
    plan: Plan,
    listener: Listener,
    packs: Iterable[EntryPoint] | None,
) -> RunResult:
    points = None if packs is None else list(packs)
    with directory.lock():
        directory.new_attempt()
        done = 0
        with truthful(directory):
            for stage in plan.stages:
                listener.phase(f"stage {done + 1} of {len(plan.stages)}: {stage.name}")
                directory.set_status("running", stage=stage.name, step=done, steps=len(plan.stages))
                _run_stage(directory.path / STAGES / stage.name, stage, listener, points)
                done += 1
            conclude(directory, plan, listener)
        reason = f"all {done} stages done"
        directory.set_status("done", reason=reason, step=done)
        write_report(directory.path)
    return RunResult(directory.path, "done", reason)


def _run_stage(
    path: Path, stage: Stage, listener: Listener, packs: list[EntryPoint] | None
) -> None:
    """Run a stage to its end, from wherever it is."""
    if (path / "recipe.json").exists():
        resume(path, listener=listener, packs=packs)
    else:
        start(stage.recipe, runs=path.parent, directory=path, listener=listener, packs=packs)
    gc.collect()  # its model goes before the next stage loads one
    if stage.confirm:
        _confirm(path, stage.name)


def _confirm(path: Path, name: str) -> None:
    """NoSignalError unless the stage's held-out score rose beyond doubt."""
    difference = summarise(RunDirectory.open(path)).heldout.difference
    low = None if difference is None else difference.low
    if low is None or low <= 0:
        told = "was not measured" if low is None else f"may be as low as {low:+.3f}"
        raise NoSignalError(
            f"stage {name} does not confirm the signal: its held-out gain {told}",
            where=str(path),
            hint=f"headrace show {path}; what follows would train on noise",
        )
