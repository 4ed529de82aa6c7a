"""Recipes of algorithms: every preset builds and trains, every senseless combination is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from algorithms_support import played, step, with_proximal
from headrace.algorithms import credit
from headrace.recipe import PRESETS, AlgorithmSpec, Recipe


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_builds_and_trains(preset: str):
    spec = AlgorithmSpec(preset=preset)
    attempts = played({"a": [1.0, 0.0], "b": [0.0, 0.5]})
    values = {attempt.id: np.zeros(4, np.float32) for attempt in attempts}
    (batch,) = credit(attempts, spec, max_new_tokens=8, values=values).batches
    anchored = [with_proximal(sample, number) for number, sample in enumerate(batch)]
    assert step([anchored], spec.loss()).gradient.abs().sum() > 0


def test_presets_are_the_published_points():
    dapo = AlgorithmSpec(preset="dapo")
    assert (dapo.advantage, dapo.aggregation, dapo.dynamic_sampling) == ("grpo", "token_mean", True)
    assert (dapo.clip_low, dapo.clip_high) == (0.2, 0.28)
    gspo = AlgorithmSpec(preset="gspo")
    assert (gspo.ratio, gspo.aggregation) == ("sequence", "sequence_mean_token_mean")
    assert (gspo.clip_low, gspo.clip_high) == (3e-4, 4e-4)
    dr_grpo = AlgorithmSpec(preset="dr_grpo")
    assert (dr_grpo.advantage, dr_grpo.aggregation) == ("dr_grpo", "constant")
    cispo = AlgorithmSpec(preset="cispo")
    assert (cispo.clip, 1 - cispo.clip_low, 1 + cispo.clip_high) == ("cispo", 0.0, 5.0)


def test_a_key_beside_the_preset_wins():
    assert AlgorithmSpec.model_validate({"preset": "dapo", "clip_high": 0.4}).clip_high == 0.4


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"preset": "pgo"}, "unknown preset"),
        ({"correction": "token_tis"}, "needs anchor"),
        ({"clip": "cispo", "ratio": "sequence"}, "no sequence-level form"),
        ({"clip": "cispo", "anchor": "proximal", "correction": "token_tis"}, "stack"),
        ({"clip": "none", "dual_clip": 3.0}, "dual_clip"),
        ({"clip": "cispo", "dual_clip": 3.0}, "dual_clip"),
        ({"dual_clip": 1.0}, "greater than 1"),
        ({"ratio": "sequence", "anchor": "proximal", "correction": "token_tis"}, "two units"),
        ({"ratio": "sequence", "anchor": "proximal", "correction": "token_mask"}, "two units"),
        ({"clip_low": 1.5}, "negative ratios"),
        ({"clip_low": -0.1}, "greater than or equal to 0"),
        ({"clip_high": float("inf")}, "finite"),
        ({"correction_low": 2.0}, "below correction_high"),
        ({"preset": "reinforce++", "dynamic_sampling": True}, "no groups"),
        ({"gamma": 0.9}, "reinforce"),
        ({"preset": "reinforce++", "gamma": 1.1}, "less than or equal to 1"),
        ({"updates": 0}, "greater than or equal to 1"),
        ({"kl": {"place": "loss", "estimator": "k1"}}, "zero expected gradient"),
        ({"kl": {"place": "reward", "estimator": "k2"}}, "only k1"),
        ({"kl": {"budget": 0.1}}, "needs place"),
        ({"kl": {"place": "loss", "budget": 0.1, "coefficient": 0.0}}, "0 stays 0"),
        ({"learning": 1}, "Extra inputs"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_reason(values: dict[str, Any], reason: str):
    with pytest.raises(ValidationError, match=reason):
        AlgorithmSpec.model_validate(values)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"play": {"group_size": 1}}, "compares siblings"),
        ({"algorithm": {"overlong": {"cache": 64}}, "play": {"max_new_tokens": 64}}, "cache"),
        ({"algorithm": {"updates": 9}, "play": {"groups": 8}}, "cannot exceed"),
    ],
)
def test_an_algorithm_must_fit_how_attempts_are_played(values: dict[str, Any], reason: str):
    with pytest.raises(ValidationError, match=reason):
        Recipe.model_validate(values)


def test_the_algorithms_load_no_torch():
    code = "import sys, headrace.algorithms; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
