"""Starting and resuming runs: from a recipe to a directory that holds everything it did.

All that can be refused is refused before anything is created: an unknown domain, a model that
is not there. Afterwards every end, good or bad, leaves a status that says what to do next.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import AsyncGenerator, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import FrameType

from headrace.algorithms.control import EntropyController, KlController
from headrace.configure import parse_recipe
from headrace.data.packs import Catalogue
from headrace.environments.single_turn import SingleTurn
from headrace.environments.streaming import Stream
from headrace.errors import HeadraceError, Interrupted, RunError, StorageError
from headrace.evaluate.perplexity import general_samples, general_texts
from headrace.observe.listener import Listener
from headrace.observe.logfile import LoggedListener
from headrace.observe.metrics import write_metrics
from headrace.observe.report import write_report
from headrace.pipeline.artifact import leave, linked
from headrace.pipeline.broker import Broker, open_broker
from headrace.pipeline.clock import Clock, SystemClock
from headrace.pipeline.desk import in_thread
from headrace.pipeline.flow import Flow, FlowSpec
from headrace.pipeline.guard import GUARDED, Guard
from headrace.pipeline.judging import Judges, ThreadJudges, processes
from headrace.pipeline.lengths import Lengths
from headrace.pipeline.loop import train
from headrace.pipeline.prepare import STAGES, Parts, environment, prepare
from headrace.pipeline.references import References
from headrace.pipeline.run import CRITIC, Books, Run
from headrace.pipeline.slots import Slots
from headrace.pipeline.stages import LocalStages
from headrace.pipeline.stats import Surplus
from headrace.pipeline.study import PolicyStudy, RewardStudy, Study
from headrace.pipeline.supply import Supply
from headrace.pipeline.vigil import Vigil
from headrace.pipeline.waits import Waits
from headrace.pipeline.watch import Watch
from headrace.policy.engine import TorchPolicy
from headrace.policy.files import write_model
from headrace.policy.learner import TorchLearner
from headrace.policy.sampler import TorchSampler
from headrace.policy.scalar import ScalarModel
from headrace.recipe import Recipe
from headrace.store.checkpoints import Checkpoints
from headrace.store.events import EventLog
from headrace.store.runs import RunDirectory
from headrace.store.trajectories import TrajectoryStore
from headrace.verify.cache import DiskCache
from headrace.verify.pool import VerificationPool

__all__ = ["RunResult", "resume", "start"]

_IN_HAND = 2
"""Verdicts in hand for each worker, so that none is idle while a learning step takes the loop."""


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
            reason = _train(directory, parts, logged)
        except (Interrupted, KeyboardInterrupt) as error:
            directory.set_status("interrupted", reason=str(error) or "interrupted at once")
            raise
        except HeadraceError as error:
            directory.set_status("failed", reason=str(error), hint=error.hint)
            raise
        except BaseException as error:
            directory.set_status("failed", reason=f"{type(error).__name__}: {error}")
            raise
        else:
            directory.set_status("done", reason=reason)
        finally:
            _derive(directory, logged)
    return RunResult(directory.path, "done", reason)


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
    async with _assembled(parts, books, judges, listener, stop_requested) as run:
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


@contextlib.asynccontextmanager
async def _assembled(
    parts: Parts,
    books: Books,
    judges: VerificationPool,
    listener: Listener,
    stop_requested: StopRequested,
) -> AsyncGenerator[Run]:
    """The run with all its parts, after its last checkpoint, while it is in flow."""
    recipe = parts.recipe
    policy = TorchPolicy(parts.loaded, recipe.model)
    played = recipe.method in ("rl", "distill")
    if played and (recipe.algorithm.kl.place != "none" or recipe.algorithm.kl.measure):
        policy.freeze_reference()
    learner = TorchLearner(
        policy, recipe.learner, total_steps=recipe.steps * recipe.algorithm.updates
    )
    sampler = TorchSampler(policy, recipe.sampler)
    listener.note(f"sampling with the {sampler.engine} engine")
    clock, lengths = SystemClock(), Lengths(recipe.play.max_new_tokens)
    slots = Slots(groups_per_step=recipe.play.groups, max_lag=recipe.play.max_lag)
    async with contextlib.AsyncExitStack() as stack:
        broker = stack.enter_context(_broker(books.directory, parts, clock))
        queue_thread = stack.enter_context(ThreadPoolExecutor(1, "headrace-queue"))
        threads = stack.enter_context(_threads(recipe.verify.workers))
        judging: Judges = ThreadJudges(judges, threads)
        if recipe.verify.placement == "processes":
            logs = books.directory.logs_path / "latest"
            judging = await stack.enter_async_context(
                processes(recipe.verify, packs=parts.packs, clock=clock, logs=logs)
            )
        stages = _stages(parts, sampler, judging, books, lengths, threads, listener)
        surplus = Surplus()
        stages.stream.surplus = surplus.note
        flow = Flow(
            _flow_spec(recipe, sampler.capacity, len(parts.domains)),
            stages,
            broker,
            clock,
            Waits(clock, books.directory.path / "waits.json"),
            arrived=lambda group, attempts: supply.arrived(group, attempts),
            aside=in_thread(queue_thread),
        )
        supply = Supply(
            recipe=recipe,
            source=parts.source,
            slots=slots,
            flow=flow,
            store=books.store,
            lengths=lengths,
            version=lambda: policy.version,
        )
        run = Run(
            recipe=recipe,
            books=books,
            listener=listener,
            policy=policy,
            learner=learner,
            source=parts.source,
            supply=supply,
            flow=flow,
            heldout=[] if recipe.method == "reward" else parts.heldout,
            slots=slots,
            kl=KlController(recipe.algorithm.kl),
            entropy=EntropyController(recipe.algorithm.entropy),
            vigil=Vigil(
                recipe.stop,
                batch_wide=recipe.algorithm.batch_wide,
                taught=recipe.method != "rl",
            ),
            watch=Watch(recipe.verify),
            surplus=surplus,
            stop_requested=stop_requested,
            study=_study(parts, policy, learner, books, stack),
            teacher=parts.teacher,
            guard=_guard(parts, learner, flow, books),
            critic=parts.critic,
            rewards=parts.rewards(books.store),
        )
        _continue(run)
        await stack.enter_async_context(flow)
        yield run


def _guard(parts: Parts, learner: TorchLearner, flow: Flow, books: Books) -> Guard | None:
    """The watch against forgetting, where the recipe names suites (a reward model has none)."""
    recipe, renderer = parts.recipe, parts.renderer
    if not recipe.guard.suites or recipe.method == "reward":
        return None
    samples = general_samples(
        general_texts(), lambda messages: renderer.prompt(messages, system=None), parts.encode
    )
    return Guard(
        recipe,
        tasks=parts.guard_tasks,
        samples=samples,
        logprobs=lambda batch: learner.logprobs(batch, which="current"),
        flow=flow,
        folder=books.directory.evals_path / GUARDED,
    )


def _study(
    parts: Parts,
    policy: TorchPolicy,
    learner: TorchLearner,
    books: Books,
    stack: contextlib.AsyncExitStack,
) -> Study | None:
    """What reads the recorded data, where the method learns from some."""
    recipe = parts.recipe
    if parts.material is None:
        return None
    source = parts.material.stream
    if recipe.method == "reward":
        model = ScalarModel(
            policy,
            recipe.learner,
            kind="process" if recipe.reward.process else "reward",
            total_steps=recipe.steps,
            seed=recipe.seed,
            training={"recipe": recipe.name, "digest": recipe.digest},
        )
        return RewardStudy(recipe, source, model)
    if recipe.method == "preference":
        policy.freeze_reference()
    references = stack.enter_context(
        References(
            books.directory.path / "reference.sqlite",
            parts.loaded.digest,
            lambda samples: learner.logprobs(samples, which="reference"),
        )
    )
    return PolicyStudy(recipe, source, policy, learner, references)


def _flow_spec(recipe: Recipe, capacity: int, domains: int) -> FlowSpec:
    """The room in a run: of several domains, none takes all workers."""
    shared = None if domains == 1 else max(1, recipe.verify.workers - 1)
    return FlowSpec(
        inference=min(capacity, recipe.play.groups * recipe.play.group_size),
        verdicts=_IN_HAND * recipe.verify.workers,
        verdicts_per_domain=recipe.verify.per_domain or shared,
        patience_s=recipe.play.patience,
    )


def _stages(
    parts: Parts,
    sampler: TorchSampler,
    judges: Judges,
    books: Books,
    lengths: Lengths,
    threads: ThreadPoolExecutor,
    listener: Listener,
) -> LocalStages:
    recipe = parts.recipe
    player = SingleTurn(
        sampler=sampler,
        renderer=parts.renderer,
        params=recipe.play.params(),
        seed=recipe.seed,
        system_prompt=recipe.play.system_prompt,
    )
    return LocalStages(
        stream=Stream(sampler, lambda done, total: listener.progress("sampling", done, total)),
        player=player,
        examiner=replace(player, params=replace(player.params, temperature=0.0)),
        judges=judges,
        store=books.store,
        lengths=lengths,
        threads=threads,
    )


@contextlib.contextmanager
def _broker(directory: RunDirectory, parts: Parts, clock: Clock) -> Generator[Broker]:
    """The queue of this run's work; what it held is in the store too, should it be lost."""
    url = parts.recipe.queue.url or f"sqlite:///{directory.path / 'queue.sqlite'}"
    broker = open_broker(url, clock=clock)
    with contextlib.closing(broker):
        for domain in parts.recipe.tasks.domains:
            broker.set_share(domain.name, domain.weight)
        yield broker


@contextlib.contextmanager
def _threads(workers: int) -> Generator[ThreadPoolExecutor]:
    """Threads that wait for verifiers and the disk; one that hangs is not waited for."""
    threads = ThreadPoolExecutor(workers + 2, thread_name_prefix="headrace-stage")
    try:
        yield threads
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _continue(run: Run) -> None:
    """Take over the last good checkpoint, or the beginning."""
    checkpoint = run.books.checkpoints.latest()
    if checkpoint is None:
        run.books.events.rewind(0)
        run.supply.restore(run.supply.state(), 0)
        return
    for problem in checkpoint.problems:
        run.listener.warning(f"checkpoint passed over: {problem}")
    run.trained.load(checkpoint.path)
    if run.critic is not None:
        run.critic.load(checkpoint.path / CRITIC)
    run.restore(checkpoint.state)
    run.listener.note(f"resuming after step {run.step}")


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
