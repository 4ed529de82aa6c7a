"""Making verdicts: the weighted mean of named parts, and evidence that fits on a page.

May be known by every verifier; knows none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from headrace.types import Fault, Json, Verdict, VerdictPart, VerifierRef

__all__ = ["HACK", "hack", "scored", "shown", "unjudged"]

HACK = "hack"
"""The name of the part that says that a known trick was seen: 1, or 0; it weighs nothing."""

_STRING, _ITEMS, _DEPTH, _WHOLE = 600, 12, 6, 6000


def hack(seen: bool) -> VerdictPart:
    """Whether the attempt tried a known trick. Counted and shown (the hack rate), not scored."""
    return VerdictPart(HACK, float(seen), 0.0)


def scored(
    ref: VerifierRef, parts: Sequence[VerdictPart], *, evidence: Mapping[str, Json] | str = ""
) -> Verdict:
    """The verdict whose score is the mean of `parts` (values in 0..1), weighted by their weights.

    Raises ValueError without any weight, or for a value that is no number in 0..1.

    >>> parts = (VerdictPart("answer", 1.0, 3.0), VerdictPart("format", 0.0, 1.0))
    >>> scored(VerifierRef("v", "1"), parts).score
    0.75
    """
    weight = sum(part.weight for part in parts)
    if weight <= 0 or any(part.weight < 0 for part in parts):
        raise ValueError(f"a score needs parts with positive weight: {parts}")
    for part in parts:
        if not (math.isfinite(part.value) and 0.0 <= part.value <= 1.0):
            raise ValueError(f"the part {part.name!r} is {part.value}, not in 0..1")
    score = sum(part.value * part.weight for part in parts) / weight
    return Verdict(
        score=min(1.0, score), verifier=ref, parts=tuple(parts), evidence=_text(evidence)
    )


def unjudged(ref: VerifierRef, fault: Fault, evidence: Mapping[str, Json] | str) -> Verdict:
    """No score: nobody can say how good the attempt was, and it is `fault`'s fault."""
    return Verdict(score=None, verifier=ref, fault=fault, evidence=_text(evidence))


def shown(facts: Mapping[str, Json]) -> str:
    """Facts as one JSON object a person can read: long strings and lists lose their middle.

    >>> shown({"expected": 3, "said": "4"})
    '{"expected": 3, "said": "4"}'
    """
    text = json.dumps(_short(dict(facts), _DEPTH), ensure_ascii=False, default=repr)
    return _cut(text, _WHOLE)


def _text(evidence: Mapping[str, Json] | str) -> str:
    return _cut(evidence, _WHOLE) if isinstance(evidence, str) else shown(evidence)


def _short(value: Json, depth: int) -> Json:
    if isinstance(value, str):
        return _cut(value, _STRING)
    if isinstance(value, int) and value.bit_length() > 4 * _STRING:
        return f"an integer of {value.bit_length()} bits"
    if depth == 0 and isinstance(value, (dict, list, tuple)):
        return "…"
    if isinstance(value, dict):
        items = list(value.items())
        kept = {_cut(str(k), _STRING): _short(v, depth - 1) for k, v in items[:_ITEMS]}
        return kept | ({"…": f"{len(items) - _ITEMS} more"} if len(items) > _ITEMS else {})
    if isinstance(value, (list, tuple)):
        kept_items = [_short(item, depth - 1) for item in value[:_ITEMS]]
        more = len(value) - _ITEMS
        return [*kept_items, f"… {more} more"] if more > 0 else kept_items
    return value


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = (most - 40) // 2
    return f"{text[:half]} …[{len(text) - 2 * half} characters]… {text[-half:]}"
