"""What a task of structured output asks for: the shape of its hidden answer.

May be known by the verifier and its parts; knows no document.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from headrace.types import Json
from headrace.verify.wrapping import Wrapping

__all__ = ["Ask", "CsvRules", "Format", "Rule"]

Format = Literal["json", "yaml", "xml", "csv"]


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Rule(_Shape):
    """How one field is compared. `weight` 0 leaves out everything at and below its path.

    `exact`: the same JSON value (1 is 1.0, and no number is a bool). `text`: strings alike but
    for case, space and the composition of accents. `number`: within `absolute`, or `relative`
    times the expected, whichever is more. `bag`: a list in any order, its items right or wrong
    as wholes; `set`: the same, where repetition does not count.
    """

    compare: Literal["exact", "text", "number", "bag", "set"] = "exact"
    weight: float = Field(default=1.0, ge=0)
    absolute: float = Field(default=0.0, ge=0)
    relative: float = Field(default=0.0, ge=0)


class CsvRules(_Shape):
    """`columns`: what the header must be, in this order; without a `header`, rows are lists."""

    delimiter: str = Field(default=",", min_length=1, max_length=1)
    header: bool = True
    columns: list[str] | None = None


class Ask(_Shape):
    """A task's answer, as JSON. Something of `schema`, `expected` and `required` must be there.

    - `format`, and where the document must stand: `wrapping` ("raw", "fence" by default,
      "anywhere"; see `wrapping.Wrapping`); `scalar` allows a bare string or number as a whole;
    - `schema`: a JSON Schema (draft 2020-12 unless `$schema` says another; references within it
      only), for all formats but XML; `formats` makes `format` an assertion. It is a gate;
    - `expected`: the value, for XML and CSV in the form that `reading` gives them (an XML text
      will do too). `fields` maps the JSON pointers of fields, with `*` for any list index, to
      rules. `partial` pays the weighted share of right fields, if it is above
      `least` (what chance or constants could earn is not paid), else it is all or nothing;
    - `required`: paths (of ElementTree) that must be in the XML document, each with the text
      that it must have, or null. It is a gate too;
    - `yaml`: "1.2" (its core schema) or "1.1", where `no` is false, `010` is 8 and `1:30` is 90.

    >>> Ask.model_validate({"expected": {"name": "Ada"}}).wrapping
    'fence'
    """

    format: Format = "json"
    wrapping: Wrapping = "fence"
    scalar: bool = False
    rules_of_form: dict[str, Json] | bool | None = Field(default=None, alias="schema")
    formats: bool = False
    expected: Json = None
    fields: dict[str, Rule] = Field(default_factory=dict[str, Rule])
    partial: bool = True
    least: float = Field(default=0.5, ge=0, lt=1)
    required: dict[str, str | None] = Field(default_factory=dict[str, str | None])
    yaml: Literal["1.1", "1.2"] = "1.2"
    csv: CsvRules = CsvRules()

    @property
    def compares(self) -> bool:
        """Whether there is an expected value (which may be null)."""
        return "expected" in self.model_fields_set

    @model_validator(mode="after")
    def _consistent(self) -> Ask:
        if self.rules_of_form is None and not self.compares and not self.required:
            raise ValueError("it needs a schema, an expected value or required paths")
        if self.format == "xml" and self.rules_of_form is not None:
            raise ValueError("a JSON Schema says nothing of XML; use required or expected")
        if self.required and self.format != "xml":
            raise ValueError("required paths are for XML")
        if self.format == "csv" and self.compares and not isinstance(self.expected, list):
            raise ValueError("the expected value of CSV is a list of rows")
        if any(path and not path.startswith("/") for path in self.fields):
            raise ValueError("a field is named by a JSON pointer, which begins with /")
        return self
