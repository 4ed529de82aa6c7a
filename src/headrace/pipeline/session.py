"""Starting and resuming runs: from a recipe to a directory that holds everything it did.

All that can be refused is refused before anything is created: an unknown domain, a model that
is not there. Afterwards every end, good or bad, leaves a status that says what to do next.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from types import FrameType

from headrace.configure import parse_recipe
from headrace.data.packs import Catalogue
from headrace.errors import HeadraceError, Interrupted, RunError, StorageError
from headrace.observe.listener import Listener
from headrace.observe.logfile import LoggedListener
from headrace.observe.metrics import write_metrics
from headrace.observe.report import write_report
from headrace.pipeline.artifact import leave, linked
from headrace.pipeline.assembly import assembled
from headrace.pipeline.loop import train
from headrace.pipeline.prepare import STAGES, Parts, environment, prepare
from headrace.pipeline.run import Books, Run
from headrace.policy.files import write_model
from headrace.recipe import Recipe
from headrace.store.checkpoints import Checkpoints
from headrace.store.events import EventLog
from headrace.store.runs import RunDirectory
from headrace.store.trajectories import TrajectoryStore
from headrace.verify.cache import DiskCache
from headrace.verify.pool import VerificationPool

__all__ = ["RunResult", "resume", "start", "truthful"]


@dataclass(frozen=True, slots=True)
class RunResult:
    """Where a finished run is and why it ended."""

    path: Path
    status: str
    reason: str


def start(
    recipe: Recipe,
    *,
    runs: Path,
    directory: Path | None = None,
    listener: Listener,
    packs: Iterable[EntryPoint] | None = None,
) -> RunResult:
    """Make a new run of `recipe` under `runs` (or at `directory`) and train it to its end.

    `packs` replaces the installed task packs.

    Raises RecipeError, ModelError or RunError before anything is created; later errors leave
    a run that says "failed" and keeps everything it has acknowledged.
    """
    points = None if packs is None else list(packs)
    with Catalogue(points) as catalogue:
        if directory is not None and directory.exists() and any(directory.iterdir()):
            raise RunError(
                f"{directory} is not empty",
                where="--dir",
                hint=f"headrace resume {directory}, or name another directory",
            )
        beside = None if directory is None else _beside(directory)
        parts = prepare(recipe, catalogue, listener, points, beside=beside)
        run_directory = RunDirectory.create(
            runs,
            recipe.model_dump(mode="json"),
            recipe.name,
            recipe.digest,
            environment(recipe, parts.loaded) | {"audits": parts.audits},
            directory=directory,
        )
        with run_directory.lock():
            return _drive(run_directory, parts, listener)


def resume(
    path: Path, *, listener: Listener, packs: Iterable[EntryPoint] | None = None
) -> RunResult:
    """Go on with a run from its last good checkpoint; needs nothing but its directory."""
    directory = RunDirectory.open(path)
    status = directory.status()
    if status.state == "done":
        return RunResult(path, "done", f"{status.reason}; nothing is left to do")
    recipe = parse_recipe(directory.recipe(), where=str(path / "recipe.json"))
    points = None if packs is None else list(packs)
    with directory.lock(), Catalogue(points) as catalogue:
        parts = prepare(recipe, catalogue, listener, points, beside=_beside(path))
        return _drive(directory, parts, listener)


def _beside(path: Path) -> Path | None:
    """Where the other stages are, if the run at `path` is one of a plan."""
    parent = path.absolute().parent
    return parent if parent.name == STAGES else None


def _drive(directory: RunDirectory, parts: Parts, listener: Listener) -> RunResult:
    """Train, the run's lock being held; every way out leaves a truthful status."""
    attempt = directory.new_attempt()
    log = directory.logs_path / f"attempt_{attempt}" / "run.log"
    with LoggedListener(listener, log) as logged:
        directory.set_status("running")
        try:
            with truthful(directory):
                reason = _train(directory, parts, logged)
            directory.set_status("done", reason=reason)
        finally:
            _derive(directory, logged)
    return RunResult(directory.path, "done", reason)


@contextlib.contextmanager
def truthful(directory: RunDirectory) -> Generator[None]:
    """Whatever is raised inside is in the run's status, with what to do about it."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as error:
        directory.set_status("interrupted", reason=str(error) or "interrupted at once")
        raise
    except HeadraceError as error:
        directory.set_status("failed", reason=str(error), hint=error.hint)
        raise
    except BaseException as error:
        directory.set_status("failed", reason=f"{type(error).__name__}: {error}")
        raise


def _train(directory: RunDirectory, parts: Parts, listener: Listener) -> str:
    """Train to the end with the books open; the reason it ended."""
    recipe = parts.recipe
    with (
        _books(directory, recipe) as books,
        _judges(directory, parts, listener) as judges,
        _safe_stop(listener) as stop_requested,
    ):
        return asyncio.run(_flowing(parts, books, judges, listener, stop_requested))


async def _flowing(
    parts: Parts,
    books: Books,
    judges: VerificationPool,
    listener: Listener,
    stop_requested: StopRequested,
) -> str:
    recipe = parts.recipe
    async with assembled(parts, books, judges, listener, stop_requested) as run:
        if run.step == 0:
            told = {
                "recipe": recipe.name,
                "digest": recipe.digest,
                "model": recipe.model.source,
                "seed": recipe.seed,
                "steps": recipe.steps,
            }
            books.events.append("run_started", 0, told)
        listener.phase("training")
        reason = await train(run)
        books.events.append("run_finished", run.step, {"reason": reason, "steps": run.step})
        _seal(books.store, listener)
        listener.phase("leaving the model and its card")
        path = books.directory.path
        made = leave(
            books.directory,
            parts,
            lambda target: _export(run, target),
            stage=path.name if _beside(path) is not None else "",
        )
        listener.note(f"model {made.card.id}: {made.path}")
        return reason


def _export(run: Run, target: Path) -> None:
    """The run's model as one that can be loaded: the last checkpoint's, or an adapter's merged."""
    checkpoint = run.books.checkpoints.latest()
    if checkpoint is not None and (checkpoint.path / "model").is_dir():
        linked(checkpoint.path / "model", target)
    elif run.study is not None:
        run.study.export(target)
    else:
        write_model(run.policy, target)


@contextlib.contextmanager
def _books(directory: RunDirectory, recipe: Recipe) -> Generator[Books]:
    with (
        EventLog(directory.events_path, strict=recipe.deterministic) as events,
        TrajectoryStore(directory.trajectories_path) as store,
    ):
        checkpoints = Checkpoints(directory.checkpoints_path, recipe.checkpoint.keep)
        yield Books(directory, events, store, checkpoints)


@contextlib.contextmanager
def _judges(
    directory: RunDirectory, parts: Parts, listener: Listener
) -> Generator[VerificationPool]:
    """The run's one pool of verifiers; what it has judged it does not judge again when resumed."""
    spec = parts.recipe.verify
    with (
        DiskCache(directory.path / "verdicts.sqlite") as cache,
        VerificationPool(
            {name: d.verifier for name, d in {**parts.guarded, **parts.domains}.items()},
            workers=spec.workers,
            deadline_s=spec.deadline,
            cache=cache,
            warn=listener.warning,
        ) as pool,
    ):
        yield pool


def _seal(store: TrajectoryStore, listener: Listener) -> None:
    """Turn a finished run's attempts into Parquet; that this failed does not undo the run."""
    listener.phase("sealing the attempts")
    try:
        store.seal()
    except StorageError as error:
        listener.warning(f"the attempts stay in segments: {error}")


def _derive(directory: RunDirectory, listener: Listener) -> None:
    """Write what is only derived from the record: metrics and the report."""
    try:
        write_metrics(directory.events_path, directory.metrics_path)
        write_report(directory.path)
    except HeadraceError as error:
        listener.warning(f"the report could not be written: {error}")


class StopRequested:
    """Set by the first Ctrl-C or SIGTERM; asked by the loop between steps."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self) -> bool:
        return self.requested


@contextlib.contextmanager
def _safe_stop(listener: Listener) -> Generator[StopRequested]:
    """The first signal asks for a stop at the next safe point, a second one stops at once."""
    stop = StopRequested()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        if stop.requested:
            raise KeyboardInterrupt
        stop.requested = True
        listener.warning(
            "stopping after this step; press Ctrl-C again to stop now (nothing is lost either way)"
        )

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
