from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms_support import LAW
from headrace.algorithms.shaping import k1, k3_mean, overlong_penalty
from headrace.recipe import OverlongSpec


@pytest.mark.parametrize(
    ("length", "expected"), [(0, 0), (16384, 0), (16385, 1 / 4096), (18432, 0.5), (20480, 1)]
)
def test_overlong_penalty_follows_the_paper(length: int, expected: float):
    # DAPO: limit 20,480 with a cache of 4,096; the reward term is minus this
    spec = OverlongSpec(cache=4096)
    assert overlong_penalty(length, 20480, spec) == pytest.approx(expected, abs=1e-12)


def test_overlong_penalty_scales_and_saturates():
    spec = OverlongSpec(cache=10, penalty=0.5)
    assert overlong_penalty(95, 100, spec) == 0.25
    assert overlong_penalty(500, 100, spec) == 0.5


@LAW
@given(length=st.integers(0, 300), cache=st.integers(1, 99))
def test_longer_is_never_cheaper(length: int, cache: int):
    spec = OverlongSpec(cache=cache)
    here, next_token = (overlong_penalty(n, 100, spec) for n in (length, length + 1))
    assert 0 <= here <= next_token <= 1


def test_k3_is_the_divergence_on_average_and_never_negative():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
    exact = float((p * np.log(p / q)).sum())
    # 1,000 tokens in the exact proportions of p
    counts = (p * 1000).astype(int)
    rows = [np.full(n, math.log(a / b)) for n, a, b in zip(counts, p, q, strict=True)]
    assert k3_mean(rows) == pytest.approx(exact, abs=1e-12)
    assert k3_mean([np.array([0.3])]) > 0
    assert k3_mean([np.array([-0.3])]) > 0
    assert k3_mean([]) == 0


def test_k1_is_policy_minus_reference():
    policy, reference = np.array([-1.0, -2.0], np.float32), np.array([-1.5, -1.0], np.float32)
    assert k1(policy, reference).tolist() == [0.5, -1.0]
