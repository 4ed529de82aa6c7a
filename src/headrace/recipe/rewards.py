"""What attempts are rewarded for where it is more than their verifier's word: objectives."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from headrace.recipe.parts import NonNegative, Part, Positive

__all__ = ["ObjectiveSpec"]

Finite = Annotated[float, Field(allow_inf_nan=False)]
AboveZero = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ObjectiveSpec(Part):
    """One of several objectives; each gives an attempt a value in 0..1, more being better.

    "verifier": the score by the verifier of the task's domain. "reward_model": the model in
    `source` (an artifact, a directory, or "stage:NAME"), its score s brought into 0..1 by
    1 / (1 + exp(-(s - mean) / scale)); `mean` and `scale` None are those of its own validation
    scores, which are kept with it. "length": 1 up to `target` sampled tokens, `cost` less for
    each one more, at least 0. Weight 0 is measured and not rewarded.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$", max_length=32)]
    kind: Literal["verifier", "reward_model", "length"]
    weight: NonNegative = 1.0
    source: str | None = None
    mean: Finite | None = None
    scale: AboveZero | None = None
    target: Positive | None = None
    cost: AboveZero | None = None

    @model_validator(mode="after")
    def _belong(self) -> Self:
        of_model = {"source": self.source, "mean": self.mean, "scale": self.scale}
        of_length = {"target": self.target, "cost": self.cost}
        foreign = {
            "verifier": of_model | of_length,
            "reward_model": of_length,
            "length": of_model,
        }[self.kind]
        odd = [key for key, value in foreign.items() if value is not None]
        if odd:
            raise ValueError(f"{odd[0]} means nothing to an objective of kind {self.kind}")
        if self.kind == "reward_model" and self.source is None:
            raise ValueError(f"the reward model of {self.name} needs a source")
        if (self.mean is None) != (self.scale is None):
            raise ValueError("mean and scale belong together")
        if self.kind == "length" and None in (self.target, self.cost):
            raise ValueError(f"the length of {self.name} needs a target and a cost per token")
        return self
