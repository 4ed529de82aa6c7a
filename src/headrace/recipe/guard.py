"""What a run must not forget: suites that are measured while it trains, and what a fall means."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from headrace.recipe.parts import Part, Positive

__all__ = ["GENERAL", "GuardSpec", "WatchedSpec"]

GENERAL = "general"
"""The suite of plain texts whose perplexity is measured; every other name is a domain's."""


class WatchedSpec(Part):
    """A suite and by how much it may become worse: "general" in nats per token of plain text, a
    domain in its share of `items` held-out tasks (0..1).

    `action` says what a fall beyond `margin` means, once it is beyond doubt: "alert" says so,
    "stop" ends the training, "rollback" ends it with the best weights from before.
    """

    suite: str
    margin: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    action: Literal["alert", "stop", "rollback"] = "alert"
    items: Positive = 60


class GuardSpec(Part):
    """Suites watched against forgetting, whenever the held-out suite is played.

    `level` bounds the chance that a run calls any fall that is none (Bonferroni over its looks).
    """

    suites: tuple[WatchedSpec, ...] = ()
    level: Annotated[float, Field(gt=0, lt=1)] = 0.05

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [watched.suite for watched in self.suites]
        if len(set(names)) < len(names):
            raise ValueError("a suite is watched twice")
        return self
