"""A run put together: policy, learner, sampler, queue, judges, flow and books, in one place.

What is made here lives as long as the run is in flow; which parts there are was settled before
(`headrace.pipeline.prepare`), what is done with them is the loop's business.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from headrace.algorithms.control import EntropyController, KlController
from headrace.environments.single_turn import SingleTurn
from headrace.environments.streaming import Stream
from headrace.evaluate.perplexity import general_samples, general_texts
from headrace.observe.listener import Listener
from headrace.pipeline.broker import Broker, open_broker
from headrace.pipeline.clock import Clock, SystemClock
from headrace.pipeline.desk import in_thread
from headrace.pipeline.flow import Flow, FlowSpec
from headrace.pipeline.guard import GUARDED, Guard
from headrace.pipeline.judging import Judges, ThreadJudges, processes
from headrace.pipeline.lengths import Lengths
from headrace.pipeline.prepare import Parts
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
from headrace.policy.learner import TorchLearner
from headrace.policy.sampler import TorchSampler
from headrace.policy.scalar import ScalarModel
from headrace.recipe import Recipe
from headrace.store.runs import RunDirectory
from headrace.verify.pool import VerificationPool

__all__ = ["assembled"]

_IN_HAND = 2
"""Verdicts in hand for each worker, so that none is idle while a learning step takes the loop."""


@contextlib.asynccontextmanager
async def assembled(
    parts: Parts,
    books: Books,
    judges: VerificationPool,
    listener: Listener,
    stop_requested: Callable[[], bool],
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
        judging = await stack.enter_async_context(_judging(parts, books, judges, threads, clock))
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


@contextlib.asynccontextmanager
async def _judging(
    parts: Parts,
    books: Books,
    judges: VerificationPool,
    threads: ThreadPoolExecutor,
    clock: Clock,
) -> AsyncGenerator[Judges]:
    """Verdicts by threads or, where the recipe says so, by processes of their own."""
    spec = parts.recipe.verify
    if spec.placement == "threads":
        yield ThreadJudges(judges, threads)
        return
    logs = books.directory.logs_path / "latest"
    async with processes(spec, packs=parts.packs, clock=clock, logs=logs) as apart:
        yield apart


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
