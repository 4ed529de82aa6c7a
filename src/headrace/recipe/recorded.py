"""What stages that learn from recorded data are told: which data, and which loss on it.

The parts of a recipe beside reinforcement learning: supervised fine-tuning, preferences, reward
models, distillation. Only schema and laws; formulas are in `headrace.algorithms`.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from headrace.protocols import PreferenceLoss, RankingLoss
from headrace.recipe.parts import NonNegative, Part, Positive, Share

__all__ = [
    "DataSource",
    "DataSpec",
    "DistillSpec",
    "Method",
    "PreferenceSpec",
    "RewardSpec",
    "SftSpec",
]

Method = Literal["rl", "play", "sft", "preference", "reward", "distill"]


class DataSource(Part):
    """Where examples come from; exactly one of `path`, `run` and `domain`.

    `path`: a file of conversations or preferences (JSON, JSON lines, CSV, Parquet; .gz and .zst).
    `run`: attempts that another run played and judged (a run's directory, or "stage:NAME" for an
    earlier stage of the same recipe), of which those with a score of `min_score` or more are
    demonstrations, and of a group the best against the worst are pairs. `domain`: tasks of a pack
    with their reference answers, of `tiers` in turn (None: of all). At most `items` of each.
    `weight` is relative within the mix; `replay` marks what is there against forgetting.
    """

    path: str | None = None
    run: str | None = None
    domain: str | None = None
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    min_score: Share = 1.0
    tiers: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None
    items: Positive | None = None
    replay: bool = False

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(place is not None for place in (self.path, self.run, self.domain)) != 1:
            raise ValueError("a source of data is one of path, run and domain")
        if self.tiers is not None and self.domain is None:
            raise ValueError("only a domain has tiers")
        return self

    @property
    def name(self) -> str:
        return self.path or self.run or self.domain or ""


class DataSpec(Part):
    """Recorded data. `batch` units (conversations, or pairs) make an optimizer step.

    `train_on`: the tokens of all "assistant" messages, of the "last" one, or of "all" messages;
    a message's own flag counts more. `order` "curriculum" begins with the short and the easy.
    `validation` of the units are never trained on (chosen by content). A conversation of more
    than `max_tokens` is refused, never cut; a source of which more than `max_refused` are
    refused ends the run.
    """

    sources: Annotated[tuple[DataSource, ...], Field(min_length=1)]
    batch: Positive = 16
    train_on: Literal["assistant", "last", "all"] = "assistant"
    order: Literal["shuffled", "curriculum", "given"] = "shuffled"
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.05
    max_tokens: Positive | None = None
    max_refused: Share = 0.5


class SftSpec(Part):
    """Cross-entropy over the trainable tokens of a batch, one denominator for all of them.

    `label_smoothing` gives that share of each target to the whole vocabulary evenly (Szegedy et
    al. 2016). `neftune` is the alpha of uniform noise on the embeddings (Jain et al. 2023).
    """

    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    neftune: NonNegative = 0.0


class PreferenceSpec(Part):
    """A direct preference loss as axes; see `headrace.algorithms.preferences`.

    `beta` is the strength of the reference, `target_margin` SimPO's gamma. `sft_weight` adds
    cross-entropy on what is preferred (ORPO as published has 1).
    """

    loss: Literal["dpo", "ipo", "kto", "orpo", "simpo"] = "dpo"
    divergence: Literal["reverse_kl", "forward_kl"] = "reverse_kl"
    beta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    length_normalised: bool = False
    target_margin: NonNegative = 0.0
    sft_weight: NonNegative = 0.0
    desirable_weight: NonNegative = 1.0
    undesirable_weight: NonNegative = 1.0

    @model_validator(mode="after")
    def _compatible(self) -> Self:
        kto = self.loss == "kto"
        weighted = (self.desirable_weight, self.undesirable_weight) != (1.0, 1.0)
        refusals = {
            "forward_kl is a form of dpo and ipo": (
                self.divergence == "forward_kl" and self.loss not in ("dpo", "ipo")
            ),
            "kto judges samples alone: it has no label_smoothing": kto and self.label_smoothing > 0,
            "kto compares sums: it has no length_normalised form": kto and self.length_normalised,
            "target_margin is simpo's": self.target_margin > 0 and self.loss != "simpo",
            "desirable_weight and undesirable_weight are kto's": weighted and not kto,
            "orpo without sft_weight is not orpo: as published it is 1": (
                self.loss == "orpo" and self.sft_weight == 0
            ),
        }
        for reason, refused in refusals.items():
            if refused:
                raise ValueError(reason)
        return self

    def objective(self) -> PreferenceLoss:
        return PreferenceLoss(**self.model_dump())


class RewardSpec(Part):
    """How a reward model is fitted: Bradley-Terry, with what pairs say by how much (`margins`).

    `centre` weighs the squared sum of a pair's two scores (Eisenstein et al. 2023), so that they
    lie around 0. `process` judges every marked step instead of the whole.
    """

    margins: bool = False
    centre: NonNegative = 0.01
    process: bool = False

    def objective(self) -> RankingLoss:
        return RankingLoss(**self.model_dump())


class DistillSpec(Part):
    """On-policy distillation: the student plays, the teacher's log-probabilities are the reward.

    `teacher` is a model source, or the http(s) address of a server that scores token ids.
    """

    teacher: str
