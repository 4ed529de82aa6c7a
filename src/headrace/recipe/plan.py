"""A plan: stages that run one after the other, each a recipe of its own.

A stage's model may be "stage:NAME", and a source of its data "stage:NAME" too: what an earlier
stage left. How the table of a stage covers what all have in common is `headrace.configure`'s.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from headrace.recipe.parts import Part
from headrace.recipe.schema import Recipe
from headrace.types import content_hash

__all__ = ["STAGE", "Plan", "Stage", "stage_of"]

STAGE = "stage:"
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=64)]


def stage_of(source: str) -> str | None:
    """The stage that a source names, None where it names something else.

    >>> stage_of("stage:sft"), stage_of("hf:ORG/NAME")
    ('sft', None)
    """
    return source.removeprefix(STAGE) if source.startswith(STAGE) else None


class Stage(Part):
    """One stage. With `confirm` the plan stops after it (exit 4) unless its held-out score rose:
    the interval of the paired difference lies above zero."""

    name: Name
    recipe: Recipe
    confirm: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        """The stages that it starts from."""
        data = () if self.recipe.data is None else self.recipe.data.sources
        named = [self.recipe.model.source, *(source.run or "" for source in data)]
        named += [] if self.recipe.distill is None else [self.recipe.distill.teacher]
        named += [objective.source or "" for objective in self.recipe.objectives]
        named += [] if self.recipe.critic is None else [self.recipe.critic.start or ""]
        return tuple(dict.fromkeys(name for s in named if (name := stage_of(s)) is not None))


class Plan(Part):
    """Stages in the order in which they run."""

    name: Name
    description: str = ""
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        known: set[str] = set()
        for stage in self.stages:
            if stage.name in known:
                raise ValueError(f"two stages are called {stage.name}")
            missing = [name for name in stage.needs if name not in known]
            if missing:
                raise ValueError(
                    f"stage {stage.name} starts from {missing[0]}, which is no stage before it"
                )
            known.add(stage.name)
        return self

    @property
    def digest(self) -> str:
        """Content hash of all resolved recipes: 16 hex digits."""
        return content_hash(self.model_dump(mode="json"))
