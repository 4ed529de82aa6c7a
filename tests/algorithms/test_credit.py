from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms_support import (
    LAW,
    VERIFIER,
    attempt,
    played,
    prompt,
    random_step,
    spoken,
)
from headrace.algorithms import Credit, assemble, credit
from headrace.errors import NumericalError
from headrace.recipe import Advantage, AlgorithmSpec, KlSpec, OverlongSpec
from headrace.types import (
    Floats,
    ImagePart,
    Limits,
    Message,
    Sample,
    Support,
    Trajectory,
    Turn,
    Verdict,
)

ADVANTAGES: tuple[Advantage, ...] = tuple(a for a in get_args(Advantage) if a != "gae")
"""Those that compare attempts with each other, not with what a critic expects."""


def weigh(trajectories: list[Trajectory], spec: AlgorithmSpec | None = None) -> Credit:
    return credit(trajectories, spec or AlgorithmSpec(), max_new_tokens=10)


def by_id(result: Credit) -> dict[str, Sample]:
    return {sample.trajectory: sample for batch in result.batches for sample in batch}


def token_advantages(result: Credit) -> dict[str, list[float]]:
    return {name: s.advantage[s.trainable].tolist() for name, s in by_id(result).items()}


def reference_like(trajectory: Trajectory, k1: list[float]) -> Floats:
    """Reference log-probabilities that lie `k1` below the sampled ones."""
    sample = assemble(trajectory)
    logps = np.full(len(sample.ids), np.nan, np.float32)
    logps[sample.trainable] = sample.behaviour[sample.trainable] - np.array(k1, np.float32)
    return logps


# --- assembling ----------------------------------------------------------------------------


def test_turns_join_with_their_masks_and_log_probabilities_in_place():
    turns = [
        prompt([1, 2]),
        spoken([5, 6], logps=[-0.1, -0.2], versions=[3, 4]),
        prompt([9]),
        spoken([7], logps=[-0.3], versions=[2]),
    ]
    sample = assemble(attempt("g", 0, 1.0, turns=turns))
    assert sample.ids.tolist() == [1, 2, 5, 6, 9, 7]
    assert sample.trainable.tolist() == [False, False, True, True, False, True]
    assert sample.behaviour.tolist() == pytest.approx([0, 0, -0.1, -0.2, 0, -0.3], abs=1e-7)
    assert (sample.version, sample.trajectory, sample.group) == (2, "g/0", "g")
    assert not sample.policy_weight.any()


def test_a_turn_may_be_written_in_part():
    turn = Turn(
        role="assistant",
        text="",
        ids=np.array([4, 5, 6], np.int32),
        sampled=np.array([False, True, True]),
        logps=np.array([-1, -2], np.float32),
        versions=spoken([5, 6]).versions,
    )
    sample = assemble(attempt("g", 0, 1.0, turns=[prompt(), turn]))
    assert sample.behaviour.tolist() == [0, 0, 0, -1, -2]


def test_the_supports_of_the_turns_join():
    first = Support(offsets=np.array([0, 2, 3]), ids=np.array([5, 9, 6], np.int32))
    second = Support(offsets=np.array([0, 2]), ids=np.array([7, 8], np.int32))
    turns = [prompt(), spoken([5, 6], support=first), prompt(), spoken([7], support=second)]
    support = assemble(attempt("g", 0, 1.0, turns=turns)).support
    assert support is not None
    assert [support.row(i).tolist() for i in range(3)] == [[5, 9], [6], [7, 8]]


def test_turns_that_were_played_in_different_ways_are_refused():
    support = Support(offsets=np.array([0, 1]), ids=np.array([5], np.int32))
    with pytest.raises(ValueError, match="support of some"):
        assemble(attempt("g", 0, 1.0, turns=[prompt(), spoken([5], support=support), spoken([6])]))
    with pytest.raises(ValueError, match="temperatures"):
        assemble(attempt("g", 0, 1.0, turns=[prompt(), spoken([5]), spoken([6], temperature=0.5)]))


def test_an_attempt_in_which_the_policy_never_spoke_still_assembles():
    sample = assemble(attempt("g", 0, None, tokens=0))
    assert sample.ids.tolist() == [1, 2]
    assert not sample.trainable.any()
    assert assemble(attempt("g", 0, None, turns=[])).ids.tolist() == []


def test_images_of_the_task_are_carried():
    trajectory = attempt("g", 0, 1.0)
    pictured = replace(trajectory.task, messages=(Message("user", (ImagePart("abc"),)),))
    assert assemble(replace(trajectory, task=pictured)).images == ("abc",)


# --- advantages ----------------------------------------------------------------------------


def test_a_step_by_hand():
    result = weigh(played({"a": [1.0, 0.0, 0.0, 1.0], "b": [1.0, 1.0], "c": [None, 0.0, 1.0]}))
    high, two = 0.5 / (math.sqrt(1 / 3) + 1e-6), 0.5 / (math.sqrt(1 / 2) + 1e-6)
    expected = {"a/0": high, "a/1": -high, "a/2": -high, "a/3": high, "c/1": -two, "c/2": two}
    assert token_advantages(result) == {
        name: pytest.approx([value] * 2, rel=1e-6) for name, value in expected.items()
    }
    # 16 tokens: a 8, b 4 (left out of the batch, not of the denominator), c 4 of the judged two
    for sample in by_id(result).values():
        assert sample.policy_weight[sample.trainable].tolist() == [np.float32(1 / 16)] * 2
        assert not sample.policy_weight[~sample.trainable].any()
        assert not sample.kl_weight.any()
        assert not sample.entropy_weight.any()
        assert not sample.cross_entropy_weight.any()
    assert (result.groups, result.groups_with_spread) == (3, 2)
    assert (result.attempts, result.unscored, result.empty, result.samples) == (9, 1, 0, 8)
    assert (result.trained, result.informative, result.tokens) == (6, 6, 16)
    assert result.advantage.mean == pytest.approx(0, abs=1e-7)
    assert (result.advantage.low, result.advantage.high) == pytest.approx((-high, high))
    assert result.reference_kl is None


def test_reinforce_plus_plus_whitens_returns_over_all_tokens():
    rows = [attempt("a", 0, 1.0, tokens=1), attempt("b", 0, 0.0, tokens=3)]
    result = weigh(rows, AlgorithmSpec(preset="reinforce++"))
    # tokens 1, 0, 0, 0: mean 1/4, unbiased deviation 1/2
    assert token_advantages(result) == {
        "a/0": pytest.approx([1.5], abs=1e-5),
        "b/0": pytest.approx([-0.5] * 3, abs=1e-5),
    }


def test_reinforce_plus_plus_carries_returns_unchanged_over_tool_tokens():
    spec = AlgorithmSpec(preset="reinforce++", gamma=0.5)
    other = attempt("b", 0, 0.0, tokens=2)
    plain = attempt("a", 0, 1.0, turns=[prompt(), spoken([4, 5, 6])])
    with_tool = attempt("a", 0, 1.0, turns=[prompt(), spoken([4]), prompt([3] * 9), spoken([5, 6])])
    values = token_advantages(weigh([plain, other], spec))
    assert token_advantages(weigh([with_tool, other], spec)) == values
    # returns 1/4, 1/2, 1 and 0, 0: mean 0.35, unbiased variance 0.175
    expected = [(r - 0.35) / math.sqrt(0.175) for r in (0.25, 0.5, 1.0)]
    assert values["a/0"] == pytest.approx(expected, abs=1e-5)


def test_reinforce_plus_plus_baseline_whitens_what_the_group_left():
    rows = [*played({"a": [1.0, 0.0]}, tokens=1), *played({"b": [1.0, 1.0]}, tokens=1)]
    result = weigh(rows, AlgorithmSpec(preset="reinforce++_baseline"))
    # 1/2, -1/2, 0, 0: mean 0, unbiased variance 1/6
    expected = 0.5 * math.sqrt(6)
    assert token_advantages(result) == {
        "a/0": pytest.approx([expected], abs=1e-5),
        "a/1": pytest.approx([-expected], abs=1e-5),
    }


@pytest.mark.parametrize("advantage", ADVANTAGES)
@pytest.mark.parametrize("score", [0.0, 0.1, 1.0])
def test_without_a_spread_there_is_nothing_to_train_on(advantage: Advantage, score: float):
    result = weigh(played({"a": [score] * 3, "b": [score] * 3}), AlgorithmSpec(advantage=advantage))
    assert result.batches == ()
    assert (result.trained, result.informative, result.groups_with_spread) == (0, 0, 0)
    assert (result.samples, result.tokens) == (6, 12)


@pytest.mark.parametrize("advantage", [a for a in ADVANTAGES if a != "reinforce++"])
def test_a_lone_survivor_of_its_group_gets_nothing(advantage: Advantage):
    rows = played({"a": [1.0, None, None], "b": [0.0, 1.0]})
    assert set(by_id(weigh(rows, AlgorithmSpec(advantage=advantage)))) == {"b/0", "b/1"}


def test_nothing_played_is_no_signal_and_no_crash():
    result = weigh([])
    assert result.batches == ()
    assert (result.attempts, result.tokens, result.penalty) == (0, 0, 0)
    assert weigh(played({"a": [None, None]})).unscored == 2


# --- siblings ------------------------------------------------------------------------------


def same_samples(one: Credit, other: Credit) -> bool:
    def key(result: Credit) -> list[tuple[object, ...]]:
        return [
            (
                s.trajectory,
                s.ids.tolist(),
                s.advantage.tolist(),
                s.policy_weight.tolist(),
                s.kl_weight.tolist(),
                s.entropy_weight.tolist(),
            )
            for batch in result.batches
            for s in batch
        ]

    return key(one) == key(other)


@pytest.mark.parametrize("advantage", ADVANTAGES)
@LAW
@given(seed=st.integers(0, 1000), extra=st.integers(1, 5), after=st.booleans())
def test_unjudged_and_empty_attempts_never_move_their_siblings(
    advantage: Advantage, seed: int, extra: int, after: bool
):
    spec = AlgorithmSpec(advantage=advantage, updates=2)
    rows, _ = random_step(seed)
    clean = [row for row in rows if row.score is not None]
    noise = [
        attempt(f"g{i % 4}", 100 + i if after else -1 - i, None if i % 2 else 1.0, tokens=i % 2)
        for i in range(extra)
    ]
    lost = [attempt("lost", 0, None), attempt("empty", 0, 0.0, tokens=0)]
    assert same_samples(weigh(clean, spec), weigh([*noise, *rows, *lost], spec))


@pytest.mark.parametrize("advantage", ADVANTAGES)
@LAW
@given(seed=st.integers(0, 1000))
def test_the_order_of_arrival_changes_nothing_to_the_last_bit(advantage: Advantage, seed: int):
    spec = AlgorithmSpec(advantage=advantage, updates=2)
    rows, _ = random_step(seed)
    order = np.random.default_rng(seed).permutation(len(rows))
    assert same_samples(weigh(rows, spec), weigh([rows[i] for i in order], spec))


def test_an_unverified_attempt_counts_as_unjudged():
    rows = [replace(attempt("a", 0, 1.0), verdict=None), *played({"b": [0.0, 1.0]})]
    result = weigh(rows)
    assert result.unscored == 1
    assert set(by_id(result)) == {"b/0", "b/1"}


def test_a_trajectory_given_twice_is_refused():
    with pytest.raises(ValueError, match="twice"):
        weigh([attempt("a", 0, 1.0), attempt("a", 0, 0.0)])


# --- denominators and batches --------------------------------------------------------------


def test_samples_left_out_stay_in_their_denominator():
    spread, uniform = played({"a": [1.0, 0.0]}), played({"b": [1.0, 1.0]}, tokens=6)
    for aggregation, alone, beside in [
        ("token_mean", 1 / 4, 1 / 16),
        ("sequence_mean_token_mean", 1 / 4, 1 / 8),
        ("sequence_mean_token_sum", 1 / 2, 1 / 4),
        ("constant", 1 / 20, 1 / 40),
        ("prompt_mean", 1 / 4, 1 / 8),
    ]:
        spec = AlgorithmSpec.model_validate({"aggregation": aggregation})
        for rows, expected in ((spread, alone), (spread + uniform, beside)):
            result = weigh(rows, spec)
            assert set(by_id(result)) == {"a/0", "a/1"}
            weights = {float(s.policy_weight.max()) for s in by_id(result).values()}
            assert weights == {float(np.float32(expected))}


def test_each_update_gets_whole_groups_and_a_denominator_of_its_own():
    rows = [
        *played({"a": [1.0, 0.0], "b": [0.0, 1.0]}, tokens=1),
        *played({"c": [1.0, 0.0], "d": [1.0, 1.0]}, tokens=3),
    ]
    result = weigh(rows, AlgorithmSpec(updates=2))
    groups = [{sample.group for sample in batch} for batch in result.batches]
    assert groups == [{"a", "c"}, {"b"}]  # d is dealt to the second, and has no gradient
    for batch in result.batches:  # a and c, b and d: 2 + 6 tokens each
        weights = {float(w) for s in batch for w in s.policy_weight[s.trainable]}
        assert weights == {0.125}


def test_groups_with_a_spread_are_dealt_before_those_without():
    rows = played({"a": [1.0, 0.0], "b": [1.0, 1.0], "c": [0.0, 1.0], "d": [0.0, 0.0]})
    result = weigh(rows, AlgorithmSpec(updates=2))
    assert [{s.group for s in batch} for batch in result.batches] == [{"a"}, {"c"}]


def test_more_updates_than_groups_make_no_empty_batches():
    result = weigh(played({"a": [1.0, 0.0]}), AlgorithmSpec(updates=3))
    assert len(result.batches) == 1


def test_the_weights_of_kl_and_entropy_are_their_coefficients_of_the_same_share():
    rows = played({"a": [1.0, 0.0], "b": [1.0, 1.0]})
    spec = AlgorithmSpec(kl=KlSpec(place="loss"))
    result = credit(
        rows,
        spec,
        max_new_tokens=10,
        reference={row.id: reference_like(row, [0.0, 0.0]) for row in rows},
        kl_coefficient=0.5,
        entropy_coefficient=0.25,
    )
    assert set(by_id(result)) == {"a/0", "a/1", "b/0", "b/1"}  # the uniform pay KL too
    for sample in by_id(result).values():
        assert sample.kl_weight.tolist() == [0, 0, 1 / 16, 1 / 16]
        assert sample.entropy_weight.tolist() == [0, 0, 1 / 32, 1 / 32]
        assert sample.reference is not None
        assert np.isfinite(sample.reference).all()


# --- KL in the reward ----------------------------------------------------------------------

IN_REWARD = KlSpec(place="reward", estimator="k1")


def with_cost(advantage: Advantage, rows: list[Trajectory], k1: dict[str, list[float]]) -> Credit:
    return credit(
        rows,
        AlgorithmSpec(advantage=advantage, kl=IN_REWARD),
        max_new_tokens=10,
        reference={row.id: reference_like(row, k1[row.id]) for row in rows},
        kl_coefficient=0.1,
    )


@pytest.mark.parametrize(
    ("advantage", "score", "cost"),
    [("grpo", math.sqrt(0.5), 0.05), ("dr_grpo", 0.5, 0.05), ("rloo", 1.0, 0.1)],
)
def test_the_cost_of_an_attempt_is_centred_in_its_group(
    advantage: Advantage, score: float, cost: float
):
    # k1 sums 1.5 and 0.5: at 0.1 a token, 0.05 either side of the mean, 0.1 from the other's
    rows = played({"a": [1.0, 0.0]})
    result = with_cost(advantage, rows, {"a/0": [1.0, 0.5], "a/1": [0.25, 0.25]})
    expected = score - cost
    assert token_advantages(result) == {
        "a/0": pytest.approx([expected] * 2, rel=1e-4),
        "a/1": pytest.approx([-expected] * 2, rel=1e-4),
    }
    assert all(not sample.kl_weight.any() for sample in by_id(result).values())


def test_a_solved_group_pays_its_cost_and_no_more():
    # standardised together with the score, these would become -0.71 and 0.71
    rows = played({"a": [1.0, 1.0]})
    result = with_cost("grpo", rows, {"a/0": [0.02, 0.0], "a/1": [0.0, 0.0]})
    assert token_advantages(result) == {
        "a/0": pytest.approx([-0.001] * 2, rel=1e-4),
        "a/1": pytest.approx([0.001] * 2, rel=1e-4),
    }
    assert result.groups_with_spread == 0
    assert result.informative == 2


def test_reinforce_plus_plus_pays_for_the_tokens_to_come():
    rows = [attempt("a", 0, 1.0), attempt("b", 0, 1.0)]
    result = with_cost("reinforce++", rows, {"a/0": [1.0, 3.0], "b/0": [0.0, 0.0]})
    # costs to go 4, 3 and 0, 0: mean 1.75
    assert token_advantages(result) == {
        "a/0": pytest.approx([-0.225, -0.125], rel=1e-5),
        "b/0": pytest.approx([0.175, 0.175], rel=1e-5),
    }


def test_the_distance_to_the_reference_is_measured_over_all_judged_tokens():
    rows = played({"a": [1.0, 1.0, None]})
    result = credit(
        rows,
        AlgorithmSpec(),
        max_new_tokens=10,
        reference={row.id: reference_like(row, [0.5, 0.0]) for row in rows},
    )
    assert result.batches == ()
    assert result.reference_kl == pytest.approx((math.exp(-0.5) - 0.5) / 2, rel=1e-5)


def test_what_the_reference_must_hold():
    rows = played({"a": [1.0, 0.0]})
    spec = AlgorithmSpec(kl=IN_REWARD)
    with pytest.raises(ValueError, match="needs reference"):
        weigh(rows, spec)
    with pytest.raises(ValueError, match="a/1"):
        credit(
            rows,
            spec,
            max_new_tokens=10,
            reference={"a/0": reference_like(rows[0], [0.0, 0.0])},
        )
    broken = {row.id: reference_like(row, [0.0, math.nan]) for row in rows}
    with pytest.raises(NumericalError, match="reference"):
        credit(rows, spec, max_new_tokens=10, reference=broken)


def test_a_log_probability_that_is_not_finite_stops_the_run():
    turns = [prompt(), spoken([4], logps=[-math.inf])]
    with pytest.raises(NumericalError) as caught:
        weigh([attempt("a", 0, 1.0, turns=turns), attempt("a", 1, 0.0)])
    assert caught.value.where == "a/0"


# --- shaping -------------------------------------------------------------------------------


def test_the_overlong_pay_before_the_baseline():
    spec = AlgorithmSpec(advantage="dr_grpo", overlong=OverlongSpec(cache=4))
    rows = [attempt("a", 0, 1.0, tokens=8), attempt("a", 1, 1.0, tokens=2)]
    result = weigh(rows, spec)
    # 8 of 10 tokens with a cache of 4: half the penalty, scores 0.5 and 1
    assert token_advantages(result) == {"a/0": [-0.25] * 8, "a/1": [0.25] * 2}
    assert (result.penalty, result.groups_with_spread) == (0.25, 1)


def test_a_task_with_a_limit_of_its_own_is_overlong_by_that():
    spec = AlgorithmSpec(advantage="dr_grpo", overlong=OverlongSpec(cache=4))
    rows = [attempt("a", 0, 1.0, tokens=8), attempt("a", 1, 1.0, tokens=2)]
    roomy = [replace(row, task=replace(row.task, limits=Limits(new_tokens=50))) for row in rows]
    assert weigh(roomy, spec).penalty == 0


def test_a_verdict_of_zero_is_a_score():
    verdict = Verdict(score=0.0, verifier=VERIFIER)
    rows = [attempt("a", 0, 1.0), replace(attempt("a", 1, 1.0), verdict=verdict)]
    assert weigh(rows).informative == 2
