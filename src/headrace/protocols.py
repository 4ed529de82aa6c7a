"""The verbs: what samplers, learners, verifiers and task packs must be able to do.

Structural protocols over the vocabulary of `headrace.types`, with the requests they take and
the reports they give. An engine or a pack implements them and imports nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from headrace.types import (
    Floats,
    Ids,
    Json,
    Sample,
    StopReason,
    Support,
    Task,
    Verdict,
    VerifierRef,
    VersionSpan,
)

__all__ = [
    "Answer",
    "Completion",
    "Domain",
    "Learner",
    "LearnerReport",
    "LossSpec",
    "Pack",
    "PreferenceLoss",
    "PreferenceReport",
    "RankingLoss",
    "RankingReport",
    "Referenced",
    "SampleRequest",
    "Sampler",
    "SamplingParams",
    "Tempting",
    "UpdateReport",
    "Verifier",
    "reference_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to draw tokens. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off.

    Filters apply in this order to the tempered distribution: top_k, top_p, min_p.
    `stop_ids` end a sequence beside all of the model's own end tokens; the stop token is kept.
    `stop_strings` end it at the token that completes one of them, which is kept whole.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One prompt to be continued once for each seed (a group shares its prompt's prefill)."""

    ids: Ids
    seeds: tuple[int, ...]
    params: SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What the policy wrote: `ids` [k] with the stop token if one came, `logps` [k]."""

    ids: Ids
    logps: Floats
    versions: tuple[VersionSpan, ...]
    stop_reason: StopReason
    seed: int
    support: Support | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The sequences of a request in the order of their seeds; `surplus` are those that were cut
    short, or came too late, because enough others had ended."""

    completions: list[Completion]
    surplus: list[Completion]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpec:
    """The loss a learner applies to every sample; the fields are orthogonal axes.

    `ratio`: per token, or one per sequence (GSPO). `clip`: "ppo" (pessimistic min), "cispo"
    (detached clipped weight on the log-probability), "none" (plain policy gradient with the
    ratio). Bounds are distances from 1: the ratio is kept in [1 - clip_low, 1 + clip_high].
    `dual_clip` c > 1 bounds the loss of negative advantages by -c A. `correction` weighs the
    loss by the mismatch between sampler and learner, with bounds `correction_low/high`.
    `anchor`: which log-probabilities the ratio is against. `kl`: the in-loss estimator.
    `label_smoothing` (0..1) and `neftune` (alpha) are for cross-entropy, see `SftSpec`.
    """

    ratio: Literal["token", "sequence"] = "token"
    clip: Literal["ppo", "cispo", "none"] = "ppo"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    anchor: Literal["behaviour", "proximal"] = "behaviour"
    correction: Literal["none", "token_tis", "sequence_tis", "token_mask", "sequence_mask"] = "none"
    correction_low: float = 0.0
    correction_high: float = 2.0
    kl: Literal["none", "k2", "k3"] = "none"
    label_smoothing: float = 0.0
    neftune: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceLoss:
    """A direct preference loss over whole sequences; see `headrace.algorithms.preferences`.

    Pairs share a `group`, in which one sample has label 1 and the other -1; "kto" takes samples
    alone. `beta` is the strength of the reference (of the margin, where the loss has none).
    `target_margin` is SimPO's gamma. `sft_weight` adds cross-entropy on the preferred sample.
    """

    loss: Literal["dpo", "ipo", "kto", "orpo", "simpo"] = "dpo"
    divergence: Literal["reverse_kl", "forward_kl"] = "reverse_kl"
    beta: float = 0.1
    label_smoothing: float = 0.0
    length_normalised: bool = False
    target_margin: float = 0.0
    sft_weight: float = 0.0
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0

    @property
    def needs_reference(self) -> bool:
        return self.loss in ("dpo", "ipo", "kto")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingLoss:
    """Bradley-Terry over pairs of scores; see `headrace.algorithms.ranking`."""

    margins: bool = False
    centre: float = 0.0
    process: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceReport:
    """What one pass over pairs (or labelled samples) saw, over its whole batch.

    `accuracy`: share of pairs whose implicit reward is higher for the preferred (0..1, a tie is
    a half). `margin`: mean difference of the implicit rewards. `chosen_reward`,
    `rejected_reward`: their means; `chosen_logp`, `rejected_logp`: mean log-probability of a
    sequence, nats. Without a reference, rewards are beta times the mean log-probability that is
    compared; of "kto" `accuracy` is the share of samples on their own side of the baseline.
    """

    loss: float
    units: int
    tokens: int
    accuracy: float
    margin: float
    chosen_reward: float
    rejected_reward: float
    chosen_logp: float
    rejected_logp: float
    components: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingReport:
    """What one pass of a reward model saw: `accuracy` of its pairs (a tie is a half), mean
    `margin` and mean `score` of both sides."""

    loss: float
    units: int
    accuracy: float
    margin: float
    chosen_score: float
    rejected_score: float
    components: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LearnerReport:
    """What one forward_backward saw, over its whole batch.

    `loss` is the sum of the weighted `components`. Means run over the tokens that weigh
    anything: `clipped_share` (0..1), `corrected_share` (truncated or masked by the off-policy
    correction, 0..1), `effective_share` (effective sample size of the importance weights
    learner / sampler, 0..1; 1 where both agree), `ratio_mean` and `ratio_max` of current to anchor
    policy, `kl_behaviour` (k3 estimate of sampler against learner, nats per token).
    """

    loss: float
    tokens: int
    clipped_share: float
    corrected_share: float
    effective_share: float
    ratio_mean: float
    ratio_max: float
    kl_behaviour: float
    components: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """One optimizer step: gradient norm before clipping, learning rate, changed or not."""

    gradient_norm: float
    learning_rate: float
    optimizer_step: int


@runtime_checkable
class Sampler(Protocol):
    """Tokens in, tokens out. Results are grouped as the requests: `out[i][j]` used seed j."""

    @property
    def version(self) -> int: ...

    def sample(self, requests: Sequence[SampleRequest]) -> list[list[Completion]]: ...


@runtime_checkable
class Learner(Protocol):
    """The training verbs. They are those of the Tinker API, so remote services fit behind."""

    def logprobs(
        self, samples: Sequence[Sample], *, which: Literal["current", "reference"]
    ) -> list[Floats]: ...

    def forward_backward(self, samples: Sequence[Sample], loss: LossSpec) -> LearnerReport: ...

    def optim_step(self) -> UpdateReport: ...

    def save(self, directory: Path) -> None: ...

    def load(self, directory: Path) -> None: ...

    def publish(self) -> int: ...


@runtime_checkable
class Verifier(Protocol):
    """Judges attempts. Must be a pure function of (task, text) up to infrastructure failures."""

    @property
    def ref(self) -> VerifierRef: ...

    def judge(self, task: Task, text: str) -> Verdict: ...


@runtime_checkable
class Domain(Protocol):
    """A generator of tasks on a ladder of difficulty, with its own verifier.

    `task(tier, index)` is a pure function: candidate `index` (any int in 0..2**63 - 1) of
    tier `tier` (0..tiers - 1), on whichever side of the split its content falls.
    """

    @property
    def name(self) -> str: ...

    @property
    def tiers(self) -> int: ...

    @property
    def verifier(self) -> Verifier: ...

    def task(self, tier: int, index: int) -> Task: ...


@runtime_checkable
class Pack(Protocol):
    """A family of domains, found through the entry-point group `headrace.packs`."""

    def names(self) -> Sequence[str]: ...

    def open(self, name: str) -> Domain: ...

    def close(self) -> None: ...


@runtime_checkable
class Referenced(Protocol):
    """A domain that can say the text of an attempt that deserves full marks."""

    def reference(self, task: Task) -> str | None: ...


@runtime_checkable
class Tempting(Protocol):
    """A domain that knows attempts which look right and must not get full marks."""

    def wrong(self, task: Task) -> Sequence[str]: ...


def reference_of(domain: Domain, task: Task) -> str | None:
    """The text of an attempt at `task` that deserves full marks, None where nobody knows one.

    The domain's own word where it has one; else the task's hidden answer (of an object, what
    stands under "answer") as it is written.
    """
    if isinstance(domain, Referenced):
        return domain.reference(task)
    answer: Json = task.answer
    if isinstance(answer, dict):
        answer = answer.get("answer")
    return None if answer is None else str(answer)
