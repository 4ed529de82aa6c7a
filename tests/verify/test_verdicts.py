"""Scores are weighted means; evidence stays short whatever is put in."""

from __future__ import annotations

import json

import pytest

from headrace.types import VerdictPart, VerifierRef
from headrace.verify.verdicts import scored, shown, unjudged

REF = VerifierRef("v", "1")


def test_a_score_is_the_weighted_mean_of_its_parts() -> None:
    parts = (VerdictPart("a", 1.0, 2.0), VerdictPart("b", 0.25, 2.0), VerdictPart("c", 0.0, 0.0))
    assert scored(REF, parts).score == 0.625


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_a_part_outside_its_range_is_an_error(value: float) -> None:
    with pytest.raises(ValueError, match="part"):
        scored(REF, (VerdictPart("a", value),))


def test_parts_without_weight_are_no_score() -> None:
    with pytest.raises(ValueError, match="weight"):
        scored(REF, (VerdictPart("a", 1.0, 0.0),))


def test_evidence_is_cut_in_the_middle_of_what_is_long() -> None:
    text = shown({"said": "x" * 100_000, "list": list(range(1000)), "big": 10**100_000})
    assert len(text) < 7000
    assert json.loads(text)["list"][-1] == "… 988 more"


def test_no_score_needs_an_owner() -> None:
    verdict = unjudged(REF, "infrastructure", {"why": "the disk is full"})
    assert verdict.score is None
    assert verdict.fault == "infrastructure"
