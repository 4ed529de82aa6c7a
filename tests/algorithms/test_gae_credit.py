"""Credit by a critic: rewards of a token, advantages and returns, and what the critic is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from algorithms_support import LAW, attempt, played, prompt, random_step, spoken
from headrace.algorithms import credit
from headrace.algorithms.credit import Credit, Lesson
from headrace.errors import NumericalError
from headrace.recipe import AlgorithmSpec, Recipe
from headrace.types import Floats, Trajectory

SPEC = AlgorithmSpec.model_validate(
    {"preset": "ppo", "critic": {"gae_lambda": 0.5}, "kl": {"measure": False}}
)


def expected(attempts: list[Trajectory], *values: float) -> dict[str, Floats]:
    """The same values at the sampled tokens of every attempt, NaN where nobody may look."""
    found: dict[str, Floats] = {}
    for told in attempts:
        wrote = np.concatenate([turn.sampled for turn in told.turns])
        row = np.full(len(wrote), np.nan, np.float32)
        row[wrote] = values[: wrote.sum()]
        found[told.id] = row
    return found


def lessons(found: Credit) -> list[Lesson]:
    return [lesson for batch in found.lessons for lesson in batch]


def test_returns_and_advantages_of_three_tokens_are_those_calculated_by_hand():
    """delta = 0.25 - 0.5, 0.75 - 0.25, 1 - 0.75; lambda 0.5 from behind: 0.25, 0.625, 0.0625."""
    one = attempt("a", 0, 1.0, tokens=3)
    found = credit([one], SPEC, max_new_tokens=8, values=expected([one], 0.5, 0.25, 0.75))
    (lesson,) = lessons(found)
    assert lesson.returns.tolist() == [0, 0, 0.5625, 0.875, 1.0]
    assert lesson.values.tolist() == [0, 0, 0.5, 0.25, 0.75]
    assert lesson.weight.tolist() == [0, 0, 1 / 3, 1 / 3, 1 / 3]
    ((sample,),) = found.batches
    raw = np.array([0.0625, 0.625, 0.25])
    white = (raw - raw.mean()) / (raw.std(ddof=1) + 1e-6)
    assert sample.advantage[2:] == pytest.approx(white, abs=1e-6)


def test_distance_is_paid_for_at_the_token_where_it_is_gone():
    """k1 = 0.5, -1; coefficient 0.1: rewards -0.05, 1 + 0.1; no value, so returns add up."""
    spec = AlgorithmSpec.model_validate(
        {
            "preset": "ppo",
            "critic": {"gae_lambda": 1.0},
            "kl": {"place": "reward", "estimator": "k1"},
        }
    )
    turns = (prompt(), spoken([3, 4], logps=[-1.0, -2.0]))
    one = attempt("a", 0, 1.0, turns=turns)
    reference = {one.id: np.array([9, 9, -1.5, -1.0], np.float32)}
    found = credit(
        [one],
        spec,
        max_new_tokens=8,
        reference=reference,
        values=expected([one], 0.0, 0.0),
        kl_coefficient=0.1,
    )
    (lesson,) = lessons(found)
    assert lesson.returns[2:] == pytest.approx([1.05, 1.1])


def test_what_a_tool_wrote_is_no_step_and_costs_no_discount():
    spec = AlgorithmSpec.model_validate(
        {"preset": "ppo", "gamma": 0.5, "critic": {"gae_lambda": 1.0}}
    )
    tool = prompt([5, 5, 5])
    one = attempt("a", 0, 1.0, turns=(prompt(), spoken([3]), tool, spoken([4])))
    found = credit([one], spec, max_new_tokens=8, values=expected([one], 0.0, 0.0))
    (lesson,) = lessons(found)
    assert lesson.returns.tolist() == [0, 0, 0.5, 0, 0, 0, 1.0]


def test_every_optimizer_batch_of_a_critic_has_one_denominator_and_all_samples():
    """Also those whose advantage is 0: there the policy learns nothing, and the critic does."""
    attempts = [attempt(g, 0, 1.0, tokens=n) for g, n in (("a", 1), ("b", 4), ("c", 2))]
    spec = SPEC.model_copy(update={"updates": 2})
    found = credit(attempts, spec, max_new_tokens=8, values=expected(attempts, *[1.0] * 4))
    assert found.batches == ()
    assert sorted(lesson.sample.trajectory for lesson in lessons(found)) == ["a/0", "b/0", "c/0"]
    assert [sum(lesson.weight.sum() for lesson in batch) for batch in found.lessons] == [1.0, 1.0]


@LAW
@given(seed=st.integers(0, 1000))
def test_the_order_of_arrival_changes_nothing_to_the_last_bit_with_a_critic(seed: int):
    attempts, _ = random_step(seed)
    values = expected(attempts, *np.random.default_rng(seed).normal(size=5).tolist())
    spec = SPEC.model_copy(update={"updates": 2})
    shuffled = list(attempts)
    np.random.default_rng(seed).shuffle(shuffled)  # pyright: ignore[reportArgumentType]
    one, other = (credit(a, spec, max_new_tokens=8, values=values) for a in (attempts, shuffled))
    assert [(s.trajectory, s.advantage.tobytes()) for b in one.batches for s in b] == [
        (s.trajectory, s.advantage.tobytes()) for b in other.batches for s in b
    ]
    assert [lesson.returns.tobytes() for lesson in lessons(one)] == [
        lesson.returns.tobytes() for lesson in lessons(other)
    ]


def test_an_attempt_that_could_not_be_judged_is_no_lesson_and_moves_nobody():
    attempts = played({"a": [1.0, None], "b": [0.0]})
    alone = [told for told in attempts if told.score is not None]
    values = expected(attempts, 0.5, 0.25)
    one, other = (credit(a, SPEC, max_new_tokens=8, values=values) for a in (attempts, alone))
    assert [s.advantage.tolist() for b in one.batches for s in b] == [
        s.advantage.tolist() for b in other.batches for s in b
    ]
    assert len(lessons(one)) == 2


def test_values_that_are_missing_or_not_finite_are_refused_by_name():
    one = attempt("a", 0, 1.0)
    with pytest.raises(ValueError, match="no critic's values for a/0"):
        credit([one], SPEC, max_new_tokens=8)
    with pytest.raises(NumericalError, match="value is not finite"):
        credit([one], SPEC, max_new_tokens=8, values=expected([one], 0.5, np.inf))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"advantage": "gae"}, "belong together"),
        ({"advantage": "grpo", "critic": {}}, "belong together"),
        ({"preset": "ppo", "dynamic_sampling": True}, "no groups"),
        ({"preset": "ppo", "critic": {"clip": 0.0}}, "greater than 0"),
    ],
)
def test_a_critic_where_it_means_nothing_is_refused(values: dict[str, Any], reason: str):
    with pytest.raises(ValidationError, match=reason):
        AlgorithmSpec.model_validate(values)


def test_with_a_critic_an_attempt_may_be_alone():
    alone = {"algorithm": {"preset": "ppo"}, "play": {"group_size": 1}}
    assert Recipe.model_validate(alone).critic is not None
    assert Recipe.model_validate({**alone, "method": "play"}).critic is None
