"""How verdicts become a loss: an algorithm as orthogonal axes, and named points among them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from headrace.protocols import LossSpec
from headrace.recipe.parts import NonNegative, Part, Positive, Share

__all__ = [
    "PRESETS",
    "Advantage",
    "Aggregation",
    "AlgorithmSpec",
    "CriticSpec",
    "EntropySpec",
    "KlSpec",
    "OverlongSpec",
]


class KlSpec(Part):
    """Distance to the frozen reference, and how it is paid for.

    `place` "reward" subtracts coefficient x k1 per token from the advantage's return; "loss"
    adds the estimator to the loss (k2: gradient of the reverse KL; k3: of the forward KL;
    k1 is refused there, its expected gradient is zero on-policy). With `budget` (nats per
    token) the coefficient follows Ziegler et al. 2019: beta <- beta (1 + clip(kl / budget - 1,
    +-0.2) x rate). `measure` keeps a reference and reports the distance even where nothing is
    paid for it. `reset_every` steps, or with `reset_at` nats, the reference becomes the
    current policy.
    """

    place: Literal["none", "reward", "loss"] = "none"
    measure: bool = True
    estimator: Literal["k1", "k2", "k3"] = "k2"
    coefficient: NonNegative = 0.01
    budget: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    rate: Annotated[float, Field(gt=0, le=1)] = 0.5
    reset_every: Positive | None = None
    reset_at: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _meaningful(self) -> Self:
        if self.place == "loss" and self.estimator == "k1":
            raise ValueError(
                "k1 in the loss has zero expected gradient on-policy; use k2 or k3 there, "
                "or place k1 in the reward"
            )
        if self.place == "reward" and self.estimator != "k1":
            raise ValueError("only k1 is an unbiased KL penalty in the reward")
        if self.place == "none" and (self.budget or self.reset_every or self.reset_at):
            raise ValueError("a budget or reset needs place = 'reward' or 'loss'")
        if self.budget is not None and self.coefficient == 0:
            raise ValueError("a budget scales the coefficient, and 0 stays 0: start above it")
        return self


class EntropySpec(Part):
    """An entropy bonus; with `target` (nats) its coefficient steps by `delta` towards it."""

    coefficient: NonNegative = 0.0
    target: Annotated[float, Field(gt=0)] | None = None
    delta: Annotated[float, Field(gt=0)] = 0.0005
    max_coefficient: NonNegative = 0.02


class OverlongSpec(Part):
    """Soft length penalty (DAPO): from `limit - cache` tokens on, linearly down to -1."""

    cache: Positive
    penalty: NonNegative = 1.0


class CriticSpec(Part):
    """A critic beside the policy: what it expects of every token, for advantage "gae".

    It takes one optimizer step for each of the policy's, with the learner's settings but its own
    `learning_rate`. `gae_lambda` 1 trusts what was earned alone, 0 the critic's next value.
    `clip` bounds how far a value moves in an update (in units of the score); None does not.
    `start`: the reward model (or critic) it begins as, an artifact, a directory or "stage:NAME";
    None is the policy's own body under a new head.
    """

    learning_rate: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    gae_lambda: Share = 0.95
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 0.2
    start: str | None = None


Advantage = Literal["grpo", "dr_grpo", "rloo", "reinforce++", "reinforce++_baseline", "gae"]
Aggregation = Literal[
    "token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant", "prompt_mean"
]

PRESETS: dict[str, dict[str, object]] = {
    "grpo": {"advantage": "grpo", "aggregation": "sequence_mean_token_mean"},
    "dr_grpo": {"advantage": "dr_grpo", "aggregation": "constant"},
    "rloo": {"advantage": "rloo", "aggregation": "sequence_mean_token_sum", "clip": "none"},
    "reinforce++": {"advantage": "reinforce++", "aggregation": "token_mean"},
    "reinforce++_baseline": {"advantage": "reinforce++_baseline", "aggregation": "token_mean"},
    "ppo": {"advantage": "gae", "aggregation": "token_mean", "critic": {}},
    "dapo": {
        "advantage": "grpo",
        "aggregation": "token_mean",
        "clip_high": 0.28,
        "dynamic_sampling": True,
    },
    "gspo": {
        "advantage": "grpo",
        "aggregation": "sequence_mean_token_mean",
        "ratio": "sequence",
        "clip_low": 3e-4,
        "clip_high": 4e-4,
    },
    "cispo": {
        "advantage": "grpo",
        "aggregation": "token_mean",
        "clip": "cispo",
        "clip_low": 1.0,
        "clip_high": 4.0,
    },
    "decoupled_ppo": {
        "advantage": "grpo",
        "aggregation": "token_mean",
        "anchor": "proximal",
        "correction": "token_tis",
        "correction_high": 5.0,
    },
    "icepop": {
        "advantage": "grpo",
        "aggregation": "token_mean",
        "anchor": "proximal",
        "correction": "token_mask",
        "correction_low": 0.5,
        "correction_high": 5.0,
    },
}
"""Named points in the space of axes; any key set beside `preset` overrides the preset's."""


class AlgorithmSpec(Part):
    """Credit and loss as orthogonal axes; see `headrace.algorithms` for the formulas.

    `updates` is how many optimizer steps each played batch is split into. `dynamic_sampling`
    plays on until `groups` groups have a spread of scores, at most `refill_limit` times the
    step's groups in all. `critic` belongs to advantage "gae".
    """

    preset: str | None = None
    advantage: Advantage = "grpo"
    ratio: Literal["token", "sequence"] = "token"
    clip: Literal["ppo", "cispo", "none"] = "ppo"
    clip_low: NonNegative = 0.2
    clip_high: NonNegative = 0.2
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    anchor: Literal["behaviour", "proximal"] = "behaviour"
    correction: Literal["none", "token_tis", "sequence_tis", "token_mask", "sequence_mask"] = "none"
    correction_low: NonNegative = 0.0
    correction_high: NonNegative = 2.0
    aggregation: Aggregation = "token_mean"
    gamma: Share = 1.0
    updates: Positive = 1
    dynamic_sampling: bool = False
    refill_limit: Annotated[float, Field(ge=1)] = 3.0
    overlong: OverlongSpec | None = None
    critic: CriticSpec | None = None
    kl: KlSpec = KlSpec()
    entropy: EntropySpec = EntropySpec()

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, values: object) -> object:
        if not isinstance(values, dict) or values.get("preset") is None:
            return values
        preset = values["preset"]
        if preset not in PRESETS:
            raise ValueError(f"unknown preset {preset!r}; known: {', '.join(sorted(PRESETS))}")
        return {**PRESETS[preset], **values}

    @model_validator(mode="after")
    def _compatible(self) -> Self:
        refusals = {
            "a correction needs anchor = 'proximal': against the behaviour policy the ratio "
            "already is the correction, and weighing again would count it twice": (
                self.correction != "none" and self.anchor == "behaviour"
            ),
            "cispo weighs tokens; it has no sequence-level form": (
                self.clip == "cispo" and self.ratio == "sequence"
            ),
            "cispo's clipped weight is its correction; do not stack another on it": (
                self.clip == "cispo" and self.correction != "none"
            ),
            "dual_clip bounds the pessimistic ppo loss only": (
                self.dual_clip is not None and self.clip != "ppo"
            ),
            "a sequence-level ratio with a token-level correction mixes two units; use "
            "sequence_tis or sequence_mask": (
                self.ratio == "sequence" and self.correction in ("token_tis", "token_mask")
            ),
            "clip_low above 1 would allow negative ratios": self.clip_low > 1,
            "correction_low must be below correction_high": (
                self.correction_low >= self.correction_high
            ),
            f"dynamic sampling compares siblings; {self.advantage} has no groups": (
                self.dynamic_sampling and self.batch_wide
            ),
            "gamma discounts returns of reinforce++ and gae only": (
                self.gamma != 1.0 and not self.batch_wide
            ),
            "advantage = 'gae' and algorithm.critic belong together": (
                (self.advantage == "gae") != (self.critic is not None)
            ),
        }
        for reason, refused in refusals.items():
            if refused:
                raise ValueError(reason)
        return self

    @property
    def batch_wide(self) -> bool:
        """Whether all attempts of an optimizer batch are compared, not those of a group."""
        return self.advantage in ("reinforce++", "gae")

    def loss(self) -> LossSpec:
        """The part of the algorithm that the learner applies."""
        in_loss = self.kl.place == "loss" and self.kl.estimator != "k1"
        return LossSpec(
            ratio=self.ratio,
            clip=self.clip,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            dual_clip=self.dual_clip,
            anchor=self.anchor,
            correction=self.correction,
            correction_low=self.correction_low,
            correction_high=self.correction_high,
            kl=self.kl.estimator if in_loss and self.kl.estimator != "k1" else "none",
        )
