"""A run in progress: the parts that the loop's verbs act on, and the books that are kept.

What may be repeated after a kill is decided here: an event is written once; a checkpoint holds
everything that the next step depends on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headrace.algorithms.control import EntropyController, KlController
from headrace.algorithms.credit import Credit
from headrace.data.source import TaskSource
from headrace.errors import Interrupted
from headrace.evaluate.heldout import Evaluation, compare, comparison_payload, groups_of
from headrace.evaluate.statistics import Difference
from headrace.observe.listener import Listener, StepLine
from headrace.pipeline.critic import Critic, Fitted
from headrace.pipeline.flow import Flow
from headrace.pipeline.guard import Guard
from headrace.pipeline.rewarding import Rewards, objective_means
from headrace.pipeline.slots import Slots
from headrace.pipeline.stats import (
    Surplus,
    domain_payload,
    entropy_of,
    lag_payload,
    learning_payload,
    play_payload,
    study_payload,
)
from headrace.pipeline.study import Studied, Study, Trained
from headrace.pipeline.supply import Supply, Wave
from headrace.pipeline.vigil import Vigil
from headrace.pipeline.watch import Alert, Watch
from headrace.policy.engine import TorchPolicy
from headrace.policy.learner import TorchLearner
from headrace.policy.teacher import Teacher
from headrace.protocols import LearnerReport, UpdateReport
from headrace.recipe import Recipe
from headrace.store.checkpoints import Checkpoints
from headrace.store.events import EventLog
from headrace.store.files import read_json, write_json_atomic
from headrace.store.runs import RunDirectory
from headrace.store.trajectories import TrajectoryStore
from headrace.types import Json, Task, Trajectory

__all__ = ["CRITIC", "Books", "Learned", "Played", "Run"]


CRITIC = "critic"
"""Where the critic is in a checkpoint."""


@dataclass(frozen=True, slots=True)
class Books:
    """Where a run is written down."""

    directory: RunDirectory
    events: EventLog
    store: TrajectoryStore
    checkpoints: Checkpoints


@dataclass(frozen=True, slots=True)
class Played:
    """All attempts of a step as their verifiers judged them, those among them that are trained on
    as they are rewarded, and those at a honeypot."""

    everything: list[Trajectory]
    effective: list[Trajectory]
    baited: list[Trajectory]


@dataclass(frozen=True, slots=True)
class Learned:
    """What credit made of a step's attempts, the version learned from it, and the updates, of
    the policy and of its critic."""

    credit: Credit
    version: int
    reports: list[LearnerReport]
    updates: list[UpdateReport]
    fitted: Fitted | None = None


@dataclass(slots=True, kw_only=True)
class Run:
    """Everything the loop needs. `stop_requested` is asked between steps.

    `step` is the number of the step in progress or, between steps, of the last one done;
    `outcome` says why training is over, once it is.
    """

    recipe: Recipe
    books: Books
    listener: Listener
    policy: TorchPolicy
    learner: TorchLearner
    source: TaskSource
    supply: Supply
    flow: Flow
    heldout: Sequence[Task]
    slots: Slots
    kl: KlController
    entropy: EntropyController
    vigil: Vigil
    watch: Watch
    surplus: Surplus
    stop_requested: Callable[[], bool]
    study: Study | None = None
    teacher: Teacher | None = None
    guard: Guard | None = None
    critic: Critic | None = None
    rewards: Rewards | None = None
    step: int = 0
    outcome: str | None = None
    reference_moved: bool = False
    _ready: float = field(default_factory=time.perf_counter)
    _began: float = 0.0
    _played: float = 0.0
    _replayed: int = 0
    _score: float | None = None
    _best: tuple[int, float] | None = None

    @property
    def trained(self) -> Trained:
        """What checkpoints hold."""
        return self.learner if self.study is None else self.study.trained

    # --- a step --------------------------------------------------------------------------

    async def begin(self) -> None:
        """Take up what an earlier life of the run left, and start to play."""
        await self.supply.begin()

    def begin_step(self) -> None:
        """Start the next step, or stop here if that was asked for."""
        if self.stop_requested():
            if self.step:
                self.checkpoint()
            raise Interrupted(
                f"stopped after step {self.step}",
                where=str(self.books.directory.path),
                hint=f"headrace resume {self.books.directory.path}",
            )
        self.step += 1
        self._replayed = 0
        self._began = time.perf_counter()

    def rewarded(self, wave: Wave) -> Wave:
        """The wave with what is trained on rewarded for all objectives, where there are several."""
        return wave if self.rewards is None else self.rewards.of(wave)

    def _graded(self, played: Played) -> list[Trajectory]:
        """All attempts of a step with the scores that are trained on: with rewards, no group is
        left out."""
        return played.everything if self.rewards is None else played.effective

    def settle(self, wave: Wave) -> None:
        """Note what a step has taken and tell the curriculum what each group scored."""
        self._played = time.perf_counter() - self._began
        self._replayed += wave.replayed
        self.books.events.append(
            "wave",
            self.step,
            {
                "wave": wave.key,
                "groups": len(wave.groups),
                "trajectories": len(wave.attempts),
                "unscored": sum(t.score is None for t in wave.attempts),
            },
            {"since_ready": time.perf_counter() - self._ready},
        )
        for group in wave.groups:
            task = group[0].task
            for move in self.source.record(task.domain, task.tier, [t.score for t in group]):
                self.books.events.append(
                    "curriculum",
                    self.step,
                    {
                        "domain": move.domain,
                        "from_tier": move.before,
                        "to_tier": move.after,
                        "pass_rate": move.pass_rate,
                    },
                )
                self.listener.note(
                    f"{move.domain}: tier {move.before} -> {move.after} "
                    f"at a pass rate of {move.pass_rate:.2f}"
                )

    def _alert(self, alerts: Sequence[Alert]) -> None:
        for alert in alerts:
            self.books.events.append(
                "alert", self.step, {"alert": alert.kind, "message": alert.message}
            )
            self.listener.warning(f"alert ({alert.kind}): {alert.message}")

    def steer(self, attempts: Sequence[Trajectory], credit: Credit) -> None:
        """Move the KL and entropy coefficients, and the reference where it is due."""
        entropy = entropy_of(attempts)
        if entropy is not None:
            self.entropy.observe(entropy)
        if credit.reference_kl is None or not credit.tokens:
            return
        self.kl.observe(credit.reference_kl)
        if self.kl.reset_due:
            self.policy.freeze_reference()
            self.reference_moved = True
            self.kl.reference_was_reset()
            self.books.events.append("reference_reset", self.step, {})

    def record(self, played: Played, learned: Learned) -> None:
        """Write the finished step down and say it in one line."""
        attempts, graded = played.everything, self._graded(played)
        now = time.perf_counter()
        seconds, learn = now - self._began, now - self._began - self._played
        payload = {
            "version": self.policy.version,
            **play_payload(graded),
            **learning_payload(learned.credit, learned.reports, learned.updates),
            "signal": self.vigil.signal(graded),
            "kl_coefficient": self.kl.coefficient,
            "entropy_coefficient": self.entropy.coefficient,
            "domains": domain_payload(attempts, self.source.status()),
            "lag": lag_payload(played.effective, learned.version),
            "slots": self.slots.ledger(),
            "watch": self.watch.payload(attempts, played.baited),
        }
        if self.rewards is not None:
            payload["objectives"] = objective_means(graded)
        if learned.fitted is not None:
            payload["critic"] = learned.fitted.payload()
        tokens = sum(t.sampled_tokens for t in attempts)
        timing = {
            "play": self._played,
            "learn": learn,
            "seconds": seconds,
            "since_ready": now - self._ready,
            "samples_per_second": len(attempts) / seconds,
            "tokens_per_second": tokens / seconds,
            "replayed": float(self._replayed),
            **self.surplus.timing(attempts),
        }
        self._finish_step(payload, timing)

    def _line(self, payload: Mapping[str, Json], timing: Mapping[str, float]) -> StepLine:
        reward = payload.get("reward") or {}
        return StepLine(
            step=self.step,
            steps=self.recipe.steps,
            reward=reward.get("mean"),
            reward_stderr=reward.get("stderr"),
            loss=payload["loss"] if self.study is not None else None,
            accuracy=payload.get("accuracy"),
            margin=payload.get("margin"),
            heldout=self._score,
            length=payload.get("length", {}).get("mean"),
            truncated=payload.get("truncated"),
            kl=payload.get("kl_reference"),
            entropy=payload.get("entropy"),
            tricks=payload.get("watch", {}).get("tricks"),
            tokens_per_second=timing["tokens_per_second"],
            samples_per_second=timing["samples_per_second"],
            eta=(self.recipe.steps - self.step) * timing["seconds"],
        )

    def record_studied(self, studied: Studied) -> None:
        """Write a step on recorded data down and say it in one line; perhaps it was the last."""
        assert self.study is not None
        now = time.perf_counter()
        seconds = now - self._began
        payload = {
            "version": self.policy.version,
            **study_payload(studied),
            "sources": {name: asdict(s) for name, s in self.study.source.status().items()},
        }
        timing = {
            "learn": studied.seconds,
            "seconds": seconds,
            "since_ready": now - self._ready,
            "samples_per_second": len(studied.units) / seconds,
            "tokens_per_second": studied.tokens / seconds,
        }
        self._finish_step(payload, timing)
        if self.step == self.recipe.steps:
            self.outcome = "all steps done"

    def _finish_step(self, payload: Mapping[str, Json], timing: Mapping[str, float]) -> None:
        self.books.events.append("step", self.step, payload, timing)
        self.books.directory.set_status("running", step=self.step, steps=self.recipe.steps)
        self.listener.step(self._line(payload, timing))

    def conclude(self, played: Played) -> None:
        """Decide whether this was the last step; NoSignalError where going on is no use."""
        self._alert(self.watch.observe(played.everything, played.baited))
        mastered = self.vigil.observe(self._graded(played))
        if mastered is not None:
            self.outcome = mastered
        elif self.step == self.recipe.steps:
            self.outcome = "all steps done"

    # --- evaluation ----------------------------------------------------------------------

    async def evaluate_if_due(self) -> None:
        """Play the held-out suite before training, every so many steps, and at the end."""
        every = self.recipe.evaluate.every
        last = self.outcome is not None
        due = self.step == 0 or last or (every is not None and self.step % every == 0)
        if not due:
            return
        if self.study is not None:
            self._validate(self.study)
        if self.heldout:
            evaluation = await self._evaluation()
            self._score = evaluation.estimate(self.recipe.evaluate.confidence).score
            if last:
                self._compare(evaluation)
        if self.guard is not None:
            await self._look(self.guard)

    async def _look(self, guard: Guard) -> None:
        """Compare what must not be forgotten with the beginning; perhaps that ends the run."""
        checkpoint = self.outcome is not None or self.step % self.recipe.checkpoint.every == 0
        started = time.perf_counter()
        watched = await guard.look(
            self.step, self.policy.fingerprint(), target=self._score, checkpoint=checkpoint
        )
        if watched is None:
            return
        timing = {"seconds": time.perf_counter() - started}
        findings = [finding.payload() for finding in watched.findings]
        told = {"findings": findings, "action": watched.action, "back_to": watched.back_to}
        self.books.events.append("regression", self.step, told, timing)
        for finding in watched.findings:
            self.listener.note(finding.sentence())
        fell = ", ".join(finding.suite.name for finding in watched.fallen)
        if watched.action is not None:
            self._alert([Alert("forgetting", f"{fell} fell by more than its margin")])
        if watched.action == "rollback" and watched.back_to is not None:
            self.trained.load(self.books.checkpoints.directory / f"step_{watched.back_to:06d}")
            self.outcome = f"rolled back to step {watched.back_to}: {fell} fell"
        elif watched.action in ("stop", "rollback"):
            self.outcome = f"stopped: {fell} fell"
        self._pin(guard)

    def _pin(self, guard: Guard) -> None:
        """Keep the checkpoint that a rollback would go to."""
        best = guard.best
        self.books.checkpoints.pinned = None if best is None else f"step_{best:06d}"

    def _validate(self, study: Study) -> None:
        started = time.perf_counter()
        seen = study.validate()
        if seen is None:
            return
        timing = {"seconds": time.perf_counter() - started}
        self.books.events.append("evaluation", self.step, seen.payload(), timing)
        right = "" if seen.accuracy is None else f", {seen.accuracy:.1%} of the pairs right"
        self.listener.note(
            f"validation after step {self.step}: loss {seen.loss:.4f}{right} on {seen.units} units"
        )

    async def _evaluation(self) -> Evaluation:
        started = time.perf_counter()
        path = self.evaluation_path(self.step)
        evaluation = Evaluation.from_json(read_json(path)) if path.exists() else None
        weights = self.policy.fingerprint()
        if evaluation is None or evaluation.weights != weights:
            evaluation = await self._examine(weights)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json_atomic(path, evaluation.to_json())
        payload = evaluation.payload(self.recipe.evaluate.confidence)
        if self.rewards is not None:
            payload["objectives"] = read_json(self._objectives_path(self.step))
        timing = {"seconds": time.perf_counter() - started}
        self.books.events.append("evaluation", self.step, payload, timing)
        self.listener.note(
            f"held-out after step {self.step}: {payload['score']:.3f} "
            f"[{payload['low']:.3f}, {payload['high']:.3f}] on {payload['n']} tasks"
        )
        self._alert(self.watch.evaluated(self._against_best(evaluation)))
        return evaluation

    async def _examine(self, weights: int) -> Evaluation:
        """Play the held-out tasks, with one version of the weights and in no slot."""
        groups = groups_of(self.heldout)
        self.flow.admit(groups, purpose="evaluate", batch=f"heldout:{self.step:06d}")
        await self.flow.play(f"heldout:{self.step:06d}")
        names = [group.id for group in groups]
        await self.flow.ready(names)
        played = self.flow.take(names)
        if self.rewards is not None:
            means = objective_means(self.rewards.judge(played))
            path = self._objectives_path(self.step)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json_atomic(path, means)
        return Evaluation.of(played, step=self.step, version=self.policy.version, weights=weights)

    def _against_best(self, evaluation: Evaluation) -> Difference | None:
        """What changed since the best evaluation so far, which this one may become."""
        confidence = self.recipe.evaluate.confidence
        score = evaluation.estimate(confidence).score
        best, change = self._best, None
        if best is not None:
            before = Evaluation.from_json(read_json(self.evaluation_path(best[0])))
            change = compare(before, evaluation, confidence)
        if best is None or score > best[1]:
            self._best = (self.step, score)
        return change

    def evaluation_path(self, step: int) -> Path:
        return self.books.directory.evals_path / "heldout" / f"step_{step:06d}.json"

    def _objectives_path(self, step: int) -> Path:
        """What the suite is rewarded with, beside the evaluation and written before it."""
        return self.books.directory.evals_path / "objectives" / f"step_{step:06d}.json"

    def _compare(self, after: Evaluation) -> None:
        confidence = self.recipe.evaluate.confidence
        before = Evaluation.from_json(read_json(self.evaluation_path(0)))
        told = comparison_payload(before, after, confidence)
        self.books.events.append("comparison", self.step, told)

    # --- checkpoints ---------------------------------------------------------------------

    def checkpoint_if_due(self) -> None:
        if self.outcome is not None or self.step % self.recipe.checkpoint.every == 0:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Write everything that the next step depends on."""

        def fill(directory: Path) -> None:
            self.trained.save(directory)
            if self.critic is not None:
                self.critic.save(directory / CRITIC)
            if self.reference_moved:
                self.learner.save_reference(directory)

        self.books.checkpoints.write(f"step_{self.step:06d}", fill, self.state())
        self.flow.beside(asyncio.to_thread(self.books.store.seal, full_only=True))

    def state(self) -> dict[str, Json]:
        return {
            "step": self.step,
            "outcome": self.outcome,
            "events": self.books.events.seq,
            "source": self.source.state(),
            "supply": self.supply.state(),
            "kl": self.kl.state(),
            "entropy": self.entropy.state(),
            "vigil": self.vigil.state(),
            "reference_moved": self.reference_moved,
            "score": self._score,
            "watch": self.watch.state(),
            "study": None if self.study is None else self.study.source.state(),
            "guard": None if self.guard is None else self.guard.state(),
            "best": None if self._best is None else list(self._best),
        }

    def restore(self, state: Mapping[str, Json]) -> None:
        """Take over a checkpoint's state; the learner loads its own part."""
        self.step = int(state["step"])
        self.outcome = state["outcome"]
        self.books.events.rewind(int(state["events"]))
        self.source.restore(state["source"])
        self.supply.restore(state["supply"], self.step)
        self.kl.restore(state["kl"])
        self.entropy.restore(state["entropy"])
        self.vigil.restore(state["vigil"])
        self.reference_moved = bool(state["reference_moved"])
        self._score = state["score"]
        self.watch.restore(state["watch"])
        if self.study is not None:
            self.study.source.restore(state["study"])
        if self.guard is not None:
            self.guard.restore(state["guard"])
            self._pin(self.guard)
        self._best = None if state["best"] is None else (state["best"][0], state["best"][1])
