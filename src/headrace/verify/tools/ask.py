"""What a task of tool calling asks for: the shape of its hidden answer.

May be known by the verifier and its parts.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from headrace.types import Json
from headrace.verify.tools.parsing import NOTATIONS, Notation
from headrace.verify.wrapping import Wrapping

__all__ = ["OMITTED", "Ask", "Expected", "Function", "Strings"]

OMITTED = ""
"""Among the allowed values of an argument: it may be left out."""

Strings = Literal["exact", "folded", "loose"]


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Function(_Shape):
    """A function on offer. `parameters` is a JSON Schema object (`type` may be BFCL's `dict`)."""

    name: str
    description: str = ""
    parameters: dict[str, Json] = Field(default_factory=dict[str, Json])

    @property
    def properties(self) -> dict[str, Json]:
        return self.parameters.get("properties") or {}

    @property
    def required(self) -> list[str]:
        return self.parameters.get("required") or []


class Expected(_Shape):
    """A call that must be made. For each argument, the values that are allowed; "" among them
    says that it may be left out. In a value that is an object, each field again has a list."""

    name: str
    arguments: dict[str, list[Json]] = Field(default_factory=dict[str, list[Json]])

    @field_validator("arguments")
    @classmethod
    def _allowed(cls, arguments: dict[str, list[Json]]) -> dict[str, list[Json]]:
        for name, values in arguments.items():
            if not values:
                raise ValueError(f"no value is allowed for {name!r}")
            for value in values:
                _check(value)
        return arguments


class Ask(_Shape):
    """A task's answer, as JSON.

    - `functions` on offer; without any, those of the task itself (`Task.tools`);
    - `calls` that must be made, in any order, each once; none means that no call is right;
    - `notations` in which calls may be written, and where (`wrapping`, see there);
    - `strings`: "exact"; "folded" (case and space do not count); "loose" (as BFCL: nor do
      `,./-_*^` and space, but here between two digits they do);
    - `integral_floats`: 5.0 will do where an integer is asked for;
    - `abstention`: what to say where no call is right, as the whole answer. Without it, any
      words that hold nothing like a call will do.
    """

    functions: list[Function] = Field(default_factory=list[Function])
    calls: list[Expected]
    notations: list[Notation] = Field(default_factory=lambda: list(NOTATIONS))
    wrapping: Wrapping = "fence"
    strings: Strings = "exact"
    integral_floats: bool = False
    abstention: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Ask:
        names = [function.name for function in self.functions]
        if len(set(names)) != len(names):
            raise ValueError("two functions of the same name")
        if not self.notations:
            raise ValueError("no notation is allowed")
        if self.abstention is not None and not self.abstention.strip():
            raise ValueError("saying nothing is no abstention")
        return self


def _check(value: Json) -> None:
    """ValueError unless every object in an allowed value has a list for each field."""
    if isinstance(value, dict):
        for key, values in value.items():
            if not isinstance(values, list) or not values:
                raise ValueError(f"the field {key!r} needs a list of allowed values")
            for inner in values:
                _check(inner)
    elif isinstance(value, list):
        for inner in value:
            _check(inner)
