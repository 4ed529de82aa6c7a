"""What a task of document answers asks for: the shape of its hidden answer.

May be known by the verifier and its parts.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["Ask", "Evidence", "Measure"]

Measure = Literal["anls", "f1", "exact", "number", "list", "citations"]


class Evidence(BaseModel):
    """A passage by its name, and the words in it that answer."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    passage: str
    quote: str = Field(min_length=1)


class Ask(BaseModel):
    """A task's answer, as JSON. `measure` says which of the other fields count.

    - "anls", "f1", "exact": `references`, of which the best counts; none means that the document
      has no answer, which must be said in the words of `unanswerable`. `exact_digits`: an answer
      whose digits are not those of the reference gets nothing, though ANLS would pay for it;
    - "number": `value` in `unit` (see `quantities`), right within `absolute`, or `relative`
      times the value. A unit may be left out unless `unit_required`; another one is wrong.
      `decimal_comma`: 1.234,5 is written for 1,234.5;
    - "list": `items`, each with its spellings; scored by F1, in any order unless `ordered`;
    - "citations": `passages` by name and the `evidence` in them; the answer is a JSON list of
      `{"passage", "quote"}`, scored by the F1 of the quoted places.

    `least` (0..1) for f1, list and citations: a score that is not above it is 0, so that
    quoting everything does not pay. ANLS has its own threshold of a half.

    >>> Ask.model_validate({"measure": "anls", "references": ["3 May"]}).least
    0.5
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    measure: Measure
    references: list[str] = Field(default_factory=list[str])
    unanswerable: str = "unanswerable"
    exact_digits: bool = False
    value: float | None = None
    unit: str = ""
    unit_required: bool = False
    absolute: float = Field(default=0.0, ge=0)
    relative: float = Field(default=0.0, ge=0)
    decimal_comma: bool = False
    items: list[list[str]] = Field(default_factory=list[list[str]])
    ordered: bool = False
    passages: dict[str, str] = Field(default_factory=dict[str, str])
    evidence: list[Evidence] = Field(default_factory=list[Evidence])
    least: float = Field(default=0.5, ge=0, lt=1)

    @model_validator(mode="after")
    def _consistent(self) -> Ask:
        if any(not reference.strip() for reference in self.references):
            raise ValueError("an empty reference: leave it out to say that there is no answer")
        if any(len(reference) > 1000 for reference in self.references):
            raise ValueError("a reference of more than 1000 characters is no short answer")
        if not self.unanswerable.strip():
            raise ValueError("saying nothing is no way to say that there is no answer")
        if (self.measure == "number") != (self.value is not None):
            raise ValueError("a value is for numbers, and numbers need one")
        if self.measure == "list" and not all(
            spellings and all(spelling.strip() for spelling in spellings)
            for spellings in self.items or [[]]
        ):
            raise ValueError("a list needs items, and each item a spelling")
        if self.measure == "citations" and not self.evidence:
            raise ValueError("citations need evidence")
        return self
