"""The hidden answer of a task: what is right, and what its author lets pass.

`Reference.of` checks `Task.answer`; a mistake in it is the task's fault, never a score.
Known by the verifier, `compare` and the worker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, cast, get_args

from headrace.types import Json
from headrace.verify.math.reading import Manner
from headrace.verify.math.units import Unit, parse_unit

__all__ = ["BadReference", "Reference", "Tolerance"]

MAX_TEXT = 4000
Form = Literal["auto", "interval", "list", "text"]
_OPTIONS = {
    "answer",
    "convert",
    "kind",
    "labels",
    "ordered",
    "percent",
    "tolerance",
    "unit",
    "unit_optional",
    "worked_out",
}


class BadReference(ValueError):
    """A `Task.answer` that is no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """|said - reference| may be `absolute`, or `relative` times |reference|, if that is more."""

    absolute: Fraction = Fraction(0)
    relative: Fraction = Fraction(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A checked `Task.answer`; see `MathAnswer` for what each field means."""

    text: str
    tolerance: Tolerance | None = None
    unit: Unit | None = None
    unit_optional: bool = False
    convert: bool = False
    percent_optional: bool = False
    ordered: bool = False
    worked_out: bool = True
    kind: Form = "auto"
    labels: tuple[str, ...] = ()

    @classmethod
    def of(cls, answer: Json) -> Reference:
        """The reference that `answer` describes; BadReference says what is wrong with it."""
        if not isinstance(answer, Mapping):
            return cls(text=_text(answer))
        options = cast("Mapping[str, Any]", answer)
        if unknown := sorted(set(options) - _OPTIONS):
            raise BadReference(f"unknown keys {unknown}; known are {sorted(_OPTIONS)}")
        if "answer" not in options:
            raise BadReference("no key `answer`")
        unit = options.get("unit")
        if unit is not None and (not isinstance(unit, str) or parse_unit(unit) is None):
            raise BadReference(f"unknown unit {unit!r}")
        return cls(
            text=_text(options["answer"]),
            tolerance=_tolerance(options.get("tolerance")),
            unit=parse_unit(unit) if unit is not None else None,
            unit_optional=_switch(options, "unit_optional", False),
            convert=_switch(options, "convert", False),
            percent_optional=_choice(options, "percent", ("exact", "optional")) == "optional",
            ordered=_switch(options, "ordered", False),
            worked_out=_switch(options, "worked_out", True),
            kind=cast("Form", _choice(options, "kind", get_args(Form))),
            labels=_labels(options.get("labels", [])),
        )

    def manner(self, *, loose: bool = False) -> Manner:
        """How texts are read for this task; `loose` as in `Manner`."""
        return Manner(kind=self.kind, labels=self.labels, loose=loose or self.unit is not None)


def _text(value: Json) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise BadReference(f"an answer is a text or a number, not {type(value).__name__}")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadReference(f"{value} is no answer")
        return _decimal(value)
    if isinstance(value, int) and value.bit_length() > 3 * MAX_TEXT:
        raise BadReference("a number too long to write out; give it as an expression")
    text = str(value).strip()
    if not text:
        raise BadReference("an empty answer")
    if len(text) > MAX_TEXT:
        raise BadReference(f"an answer longer than {MAX_TEXT} characters")
    return text


def _decimal(value: float) -> str:
    return f"{int(value)}" if value.is_integer() and abs(value) < 2**53 else repr(value)


def _tolerance(value: Json) -> Tolerance | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or not value or set(value) - {"absolute", "relative"}:
        raise BadReference('a tolerance is {"absolute": number, "relative": number} or one of both')
    parts = {name: _small(name, part) for name, part in cast("Mapping[str, Any]", value).items()}
    if parts.get("relative", Fraction(0)) >= 1:
        raise BadReference("a relative tolerance of 1 or more accepts anything")
    return Tolerance(**parts)


def _small(name: str, part: Json) -> Fraction:
    try:
        value = None if isinstance(part, bool) else Fraction(str(part))
    except (ValueError, ZeroDivisionError):
        value = None
    if value is None or value < 0:
        raise BadReference(f"the {name} tolerance {part!r} is no number of 0 or more")
    return value


def _switch(options: Mapping[str, Any], name: str, default: bool) -> bool:
    value = options.get(name, default)
    if not isinstance(value, bool):
        raise BadReference(f"{name} is true or false, not {value!r}")
    return value


def _choice(options: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str:
    value = options.get(name, choices[0])
    if value not in choices:
        raise BadReference(f"{name} is one of {list(choices)}, not {value!r}")
    return value


def _labels(value: Json) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(v, str) and v.isalpha() for v in value):
        raise BadReference(f"labels are a list of single words, not {value!r}")
    return tuple(cast("list[str]", value))
