"""Generalised advantages against their defining sum, and the critic's loss piece by piece."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorithms_support import LAW
from headrace.algorithms.advantages import Doubles, whiten
from headrace.algorithms.critic import ValueInputs, ValueSums, gae, value_loss


def defined(rewards: Doubles, values: Doubles, gamma: float, lam: float, bootstrap: float):
    """A_t = sum over l of (gamma lam)^l delta_(t+l), written out."""
    following = np.append(values[1:], bootstrap)
    delta = rewards + gamma * following - values
    n = len(rewards)
    return np.array(
        [sum((gamma * lam) ** (s - t) * delta[s] for s in range(t, n)) for t in range(n)]
    )


@LAW
@given(
    seed=st.integers(0, 10_000),
    gamma=st.sampled_from([1.0, 0.97, 0.5]),
    lam=st.sampled_from([0.0, 0.9, 1.0]),
    bootstrap=st.sampled_from([0.0, 0.7]),
)
def test_advantages_are_the_sum_that_defines_them_over_the_policys_own_tokens(
    seed: int, gamma: float, lam: float, bootstrap: float
):
    draw = np.random.default_rng(seed)
    n = int(draw.integers(1, 12))
    rewards, values = draw.normal(size=n), draw.normal(size=n)
    mask = draw.random(n) < 0.6
    expected = defined(rewards[mask], values[mask], gamma, lam, bootstrap)
    rewards[~mask] = math.nan
    values[~mask] = math.inf
    found = gae(rewards, values, mask, gamma=gamma, lam=lam, bootstrap=bootstrap)
    assert found.advantages[mask] == pytest.approx(expected)
    assert found.returns[mask] == pytest.approx(expected + values[mask])
    assert not found.advantages[~mask].any()
    assert not found.returns[~mask].any()


def test_tool_output_between_two_turns_costs_no_discount():
    mask = np.array([True, False, False, False, True])
    rewards, values = np.array([0, 0, 0, 0, 1.0]), np.zeros(5)
    found = gae(rewards, values, mask, gamma=0.5, lam=1.0)
    assert found.advantages.tolist() == [0.5, 0, 0, 0, 1.0]


def test_an_attempt_that_was_cut_off_continues_with_the_predicted_value():
    found = gae(np.zeros(2), np.array([0.2, 0.4]), np.ones(2, np.bool_), lam=0.0, bootstrap=0.9)
    assert found.advantages == pytest.approx([0.2, 0.5])


def test_a_perfect_critic_leaves_no_advantage():
    rewards = np.array([0.0, 0.0, 1.0])
    found = gae(rewards, np.ones(3), np.ones(3, np.bool_), lam=0.95)
    assert found.advantages == pytest.approx([0.0, 0.0, 0.0])
    assert found.returns == pytest.approx([1.0, 1.0, 1.0])


def test_advantages_are_whitened_after_the_returns_are_taken():
    mask = np.ones(2, np.bool_)
    rows = [gae(np.array([0.0, score]), np.zeros(2), mask) for score in (1.0, 0.0)]
    whitened = np.concatenate(whiten([row.advantages for row in rows]))
    assert whitened.mean() == pytest.approx(0.0, abs=1e-12)
    assert whitened.std(ddof=1) == pytest.approx(1.0, rel=1e-4)
    assert rows[0].returns.tolist() == [0.95, 1.0]


def test_lengths_that_differ_are_refused():
    with pytest.raises(ValueError, match="2 values"):
        gae(np.zeros(3), np.zeros(2), np.ones(3, np.bool_))


# --- the loss ------------------------------------------------------------------------------


def one(value: float, old: float, target: float) -> ValueInputs:
    return ValueInputs(
        value=torch.tensor([value], requires_grad=True),
        old=torch.tensor([old]),
        target=torch.tensor([target]),
        weight=torch.tensor([1.0]),
    )


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "pull", "clipped"),
    [
        (0.6, 0.5, 1.0, 0.08, -0.4, 0),  # inside the bounds: the plain error
        (0.9, 0.5, 1.0, 0.045, 0.0, 1),  # ran ahead to 0.7: no pull until it is measured again
        (0.1, 0.5, 1.0, 0.405, -0.9, 0),  # went the wrong way: the larger error counts
        (1.6, 0.5, 0.0, 1.28, 1.6, 0),
    ],
)
def test_the_value_loss_is_pessimistic(
    value: float, old: float, target: float, loss: float, pull: float, clipped: int
):
    given = one(value, old, target)
    terms = value_loss(given, clip=0.2)
    assert terms.loss.item() == pytest.approx(loss, abs=1e-6)
    assert torch.autograd.grad(terms.loss, given.value)[0].item() == pytest.approx(pull, abs=1e-6)
    assert terms.sums.clipped == clipped


def test_without_a_clip_it_is_half_the_squared_error():
    terms = value_loss(one(0.9, 0.5, 1.0), clip=None)
    assert terms.loss.item() == pytest.approx(0.005)
    assert terms.sums.clipped == 0


def batch(seed: int, n: int) -> ValueInputs:
    draw = torch.Generator().manual_seed(seed)
    return ValueInputs(
        value=torch.randn(n, generator=draw, requires_grad=True),
        old=torch.randn(n, generator=draw),
        target=torch.randn(n, generator=draw),
        weight=torch.full((n,), 1 / n),
    )


def test_any_split_of_tokens_gives_one_value_loss_and_report():
    whole = batch(0, 12)
    terms = value_loss(whole)
    sums = ValueSums()
    pulls: list[float] = []
    for part in (slice(0, 5), slice(5, 6), slice(6, 12)):
        leaf = whole.value.detach()[part].requires_grad_()
        given = ValueInputs(
            value=leaf,
            old=whole.old[part],
            target=whole.target[part],
            weight=whole.weight[part],
        )
        found = value_loss(given)
        pulls += torch.autograd.grad(found.loss, leaf)[0].tolist()
        sums = sums + found.sums
    assert pulls == pytest.approx(torch.autograd.grad(terms.loss, whole.value)[0].tolist())
    one_report, other = terms.sums.report(), sums.report()
    assert other.loss == pytest.approx(one_report.loss)
    assert other.clipped_share == one_report.clipped_share
    assert other.explained == pytest.approx(one_report.explained)


def test_junk_at_a_token_without_weight_changes_no_value_loss():
    clean = batch(1, 3)
    nan = torch.tensor([math.nan])
    leaf = torch.cat([clean.value.detach(), nan]).requires_grad_()
    dirty = ValueInputs(
        value=leaf,
        old=torch.cat([clean.old, nan]),
        target=torch.cat([clean.target, nan]),
        weight=torch.cat([clean.weight, torch.zeros(1)]),
    )
    terms = value_loss(dirty)
    assert terms.loss.item() == value_loss(clean).loss.item()
    pulls = torch.autograd.grad(terms.loss, leaf)[0].tolist()
    assert pulls[3] == 0
    assert pulls[:3] == torch.autograd.grad(value_loss(clean).loss, clean.value)[0].tolist()
    assert terms.sums == value_loss(clean).sums


def test_explained_variance_is_that_of_the_returns():
    target = torch.tensor([0.0, 1.0, 2.0, 3.0])
    zeros, weight = torch.zeros(4), torch.full((4,), 0.25)

    def explained(value: torch.Tensor) -> float:
        given = ValueInputs(value=value, old=zeros, target=target, weight=weight)
        return value_loss(given).sums.report().explained

    assert explained(target) == pytest.approx(1.0)
    assert explained(torch.full((4,), 1.5)) == pytest.approx(0.0)
    assert explained(torch.tensor([0.5, 0.5, 2.5, 2.5])) == pytest.approx(1 - 0.25 / 1.25)
    assert ValueSums().report().explained == 0.0


def test_credit_can_read_advantages_and_recorded_data_without_torch():
    code = (
        "import sys, headrace.algorithms.critic, headrace.algorithms.recorded;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
