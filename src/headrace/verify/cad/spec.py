"""What a CAD task hides: the right solid, and how near to it a part must come. Parsed strictly.

May be known by the verifier.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from headrace.types import Json

__all__ = ["CadSpec", "Dimension", "Reference"]

_STRICT = ConfigDict(extra="forbid", frozen=True, strict=True)
_Share = Annotated[float, Field(gt=0.0, lt=0.5)]


class Dimension(BaseModel):
    """A named measure with its tolerance, both in the unit of the task (mm, mm², mm³).

    `measure`: "extent", "minimum" or "maximum" along `axis`; "section", the area of the cut at
    `at` across `axis`; "volume"; "area" of the surface. Without `value` it is the reference's.
    """

    model_config = _STRICT

    name: str
    measure: Literal["extent", "minimum", "maximum", "section", "volume", "area"]
    tolerance: Annotated[float, Field(gt=0.0)]
    axis: Literal["x", "y", "z"] = "z"
    at: float = 0.0
    value: float | None = None


class Reference(BaseModel):
    """The right solid: a description as `sandboxed` writes it, or an ASCII STL file."""

    model_config = _STRICT

    tree: Json = None
    stl: str | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Reference:
        if (self.tree is None) == (self.stl is None):
            raise ValueError("either a tree or an STL file")
        return self


class CadSpec(BaseModel):
    """The hidden answer of a CAD task, as JSON (unknown keys are an error).

    - `reference`: the right solid.
    - `language`: what the attempt is written in, "python" or "openscad".
    - `align`: "none" compares where the part is; "position" moves it first, centroid on
      centroid; "pose" also turns it by quarter turns about the axes, as fits best.
    - `bodies`: how many separate solids there must be; None for as many as the reference has.
    - `slack`: the share of volume that may differ for full marks (IoU >= 1 - slack), which pays
      for the facets of round surfaces. Areas may differ by twice that share.
    - `distance`: how far the surfaces may be apart for full marks, as a share of the diagonal of
      the reference's bounding box.
    - `dimensions`: named measures.
    """

    model_config = _STRICT

    reference: Reference
    language: Literal["python", "openscad"] = "python"
    align: Literal["none", "position", "pose"] = "none"
    bodies: Annotated[int, Field(ge=1, le=100)] | None = None
    slack: _Share = 0.005
    distance: _Share = 0.01
    dimensions: list[Dimension] = Field(default=[], max_length=50)
