from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from headrace.errors import Exit, VerifierError
from headrace.evaluate.statistics import (
    mean_interval,
    paired_difference,
    pass_at_k,
    pass_every_k,
)

LAW = settings(derandomize=True, deadline=None, max_examples=50)
binary = st.sampled_from([0.0, 1.0])
graded = st.floats(0, 1).map(lambda x: round(x, 3))


def zeros_and_ones(ones: int, n: int) -> list[float]:
    return [1.0] * ones + [0.0] * (n - ones)


# --- one model -----------------------------------------------------------------------------


def test_the_standard_error_is_that_of_published_tables():
    # the stderr column for accuracies 40.9 % of 10,042 and 1.4 % of 1,319 items
    hellaswag = mean_interval(zeros_and_ones(4107, 10042))
    assert (hellaswag.score, hellaswag.stderr) == pytest.approx((0.409, 0.0049), abs=5e-5)
    arc = mean_interval(zeros_and_ones(325, 1172))
    assert arc.stderr == pytest.approx(0.0131, abs=5e-5)


@pytest.mark.parametrize(
    ("ones", "n", "confidence"), [(0, 200, 0.95), (7, 200, 0.95), (200, 200, 0.99), (1, 1, 0.9)]
)
def test_zeros_and_ones_get_wilsons_interval(ones: int, n: int, confidence: float):
    found = mean_interval(zeros_and_ones(ones, n), confidence)
    oracle = stats.binomtest(ones, n).proportion_ci(confidence, method="wilson")
    assert (found.low, found.high) == pytest.approx((oracle.low, oracle.high), abs=1e-12)


def test_graded_scores_get_students_interval():
    scores = [0.1, 0.5, 0.9, 0.4]
    found = mean_interval(scores, 0.9)
    oracle = stats.ttest_1samp(scores, 0.0).confidence_interval(0.9)
    assert (found.low, found.high) == pytest.approx((oracle.low, oracle.high), abs=1e-12)
    assert found.stderr == pytest.approx(stats.sem(scores), abs=1e-12)


@LAW
@given(scores=st.lists(st.none() | graded | binary, min_size=1, max_size=30))
def test_an_interval_holds_its_mean_and_stays_in_range(scores: list[float | None]):
    if all(score is None for score in scores):
        return
    found = mean_interval(scores)
    assert 0 <= found.low <= found.score + 1e-12
    assert found.score - 1e-12 <= found.high <= 1
    assert found.n + found.unscored == len(scores)


def test_what_could_not_be_judged_is_left_out_and_counted():
    found = mean_interval([1.0, None, 0.0, None])
    assert (found.score, found.n, found.unscored) == (0.5, 2, 2)


def test_scores_that_never_vary_still_leave_room_for_doubt():
    found = mean_interval([0.5] * 100)
    assert found.stderr == 0
    # the exact 95 % bound on an event that 100 trials did not show: 3.6 %
    bound = stats.binomtest(0, 100).proportion_ci(0.95, method="exact").high
    assert (found.low, found.high) == pytest.approx((0.5 - bound, 0.5 + bound), abs=1e-12)


def test_a_single_score_says_next_to_nothing():
    found = mean_interval([0.5])
    assert (found.stderr, found.low, found.high) == (0.5, 0.0, 1.0)


def test_nothing_judged_is_an_infrastructure_error_and_never_a_zero():
    with pytest.raises(VerifierError, match="none of 2") as caught:
        mean_interval([None, None])
    assert caught.value.exit_code is Exit.INFRASTRUCTURE
    with pytest.raises(VerifierError, match="none of 1"):
        paired_difference([None], [1.0])
    with pytest.raises(ValueError, match="no items"):
        mean_interval([])


# --- before and after ----------------------------------------------------------------------

BEFORE = [0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0]
AFTER = [1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0]


def test_a_difference_is_the_paired_t_interval():
    found = paired_difference(BEFORE, AFTER)
    oracle = stats.ttest_rel(AFTER, BEFORE).confidence_interval(0.95)
    assert found.value == 3 / 8
    assert found.stderr == pytest.approx(stats.sem(np.subtract(AFTER, BEFORE)), abs=1e-12)
    assert (found.low, found.high) == pytest.approx((oracle.low, oracle.high), abs=1e-12)
    assert (found.gained, found.lost, found.n, found.clusters) == (4, 1, 8, 8)


def test_the_p_value_of_flips_is_mcnemars_exact_one():
    for gained, lost in [(4, 1), (0, 0), (10, 0), (7, 7), (40, 20)]:
        before = [0.0] * gained + [1.0] * lost + [1.0] * 5
        after = [1.0] * gained + [0.0] * lost + [1.0] * 5
        found = paired_difference(before, after).p_value
        flips = gained + lost
        oracle = stats.binomtest(gained, flips).pvalue if flips else 1.0
        assert found == pytest.approx(oracle, abs=1e-12)


def test_the_p_value_of_graded_scores_is_the_paired_t_tests():
    before, after = [0.1, 0.4, 0.3, 0.9], [0.2, 0.7, 0.4, 0.8]
    oracle = stats.ttest_rel(after, before).pvalue
    assert paired_difference(before, after).p_value == pytest.approx(oracle, abs=1e-12)


def test_pairing_sees_what_two_separate_intervals_do_not():
    before = zeros_and_ones(100, 200)
    after = zeros_and_ones(112, 200)  # twelve flips, all for the better
    paired = paired_difference(before, after)
    first, second = mean_interval(before), mean_interval(after)
    unpaired_z = paired.value / math.hypot(first.stderr, second.stderr)
    assert unpaired_z < 1.96
    assert paired.low > 0
    assert paired.p_value == pytest.approx(2 / 2**12)
    # about sqrt(d / n), d the share of flips
    assert paired.stderr == pytest.approx(math.sqrt(0.06 / 200), rel=0.05)


def test_clusters_add_up_before_they_are_squared():
    # changes 1, 1 | 0, 0 | 0: mean 0.4; residual sums 1.2, -0.8, -0.4
    found = paired_difference(
        [0.0] * 5, [1.0, 1.0, 0.0, 0.0, 0.0], clusters=["a", "a", "b", "b", "c"]
    )
    by_hand = math.sqrt(3 / 2 * (1.2**2 + 0.8**2 + 0.4**2)) / 5
    assert found.stderr == pytest.approx(by_hand, abs=1e-12)
    assert (found.clusters, found.n) == (3, 5)
    t = stats.t.ppf(0.975, 2)
    assert (found.low, found.high) == pytest.approx((max(0.4 - t * by_hand, -1), 1.0), abs=1e-12)
    assert found.p_value == pytest.approx(2 * stats.t.sf(0.4 / by_hand, 2), abs=1e-12)


def test_copies_of_an_item_are_no_new_evidence():
    once = paired_difference(BEFORE, AFTER)
    copies = [str(i) for i in range(8)] * 3
    thrice = paired_difference(BEFORE * 3, AFTER * 3, clusters=copies)
    assert (thrice.value, thrice.stderr) == pytest.approx((once.value, once.stderr), abs=1e-12)
    assert (thrice.low, thrice.high) == pytest.approx((once.low, once.high), abs=1e-12)


def test_singleton_clusters_are_no_clusters():
    names = [f"item {i}" for i in range(8)]
    assert paired_difference(BEFORE, AFTER, clusters=names) == paired_difference(BEFORE, AFTER)


@LAW
@given(
    pairs=st.lists(st.tuples(st.none() | graded, st.none() | graded), min_size=1, max_size=20),
    seed=st.integers(0, 5),
)
def test_swapping_sides_turns_the_difference_around_and_order_means_nothing(
    pairs: list[tuple[float | None, float | None]], seed: int
):
    if not any(b is not None and a is not None for b, a in pairs):
        return
    clusters = [str(i % 3) for i in range(len(pairs))]
    before, after = [b for b, _ in pairs], [a for _, a in pairs]
    forward = paired_difference(before, after, clusters=clusters)
    backward = paired_difference(after, before, clusters=clusters)
    assert backward.value == pytest.approx(-forward.value, abs=1e-12)
    assert (backward.low, backward.high) == pytest.approx((-forward.high, -forward.low), abs=1e-9)
    assert (backward.gained, backward.lost) == (forward.lost, forward.gained)
    assert 0 <= forward.p_value <= 1
    order = np.random.default_rng(seed).permutation(len(pairs))
    shuffled = paired_difference(
        [before[i] for i in order],
        [after[i] for i in order],
        clusters=[clusters[i] for i in order],
    )
    assert shuffled.stderr == pytest.approx(forward.stderr, abs=1e-12)
    assert shuffled.value == pytest.approx(forward.value, abs=1e-12)


def test_a_pair_with_an_unjudged_side_is_dropped_and_counted():
    found = paired_difference([0.0, None, 1.0, 0.0], [1.0, 1.0, None, 0.0])
    assert (found.n, found.unscored, found.gained, found.lost) == (2, 2, 1, 0)
    assert found.value == 0.5


def test_no_flips_at_all_still_leave_room_for_doubt():
    found = paired_difference([1.0] * 200, [1.0] * 200)
    assert (found.value, found.stderr, found.p_value) == (0, 0, 1)
    bound = stats.binomtest(0, 200).proportion_ci(0.95, method="exact").high
    assert (found.low, found.high) == pytest.approx((-bound, bound), abs=1e-12)


def test_all_flips_for_the_better_are_certain_only_so_far():
    found = paired_difference([0.25] * 10, [0.75] * 10)
    assert found.p_value == pytest.approx(2 / 2**10)
    assert found.low < 0.5 < found.high


def test_one_pair_or_one_cluster_proves_nothing():
    for clusters in (None, ["a"]):
        found = paired_difference([0.0], [1.0], clusters=clusters)
        assert (found.stderr, found.low, found.high, found.p_value) == (1.0, -1.0, 1.0, 1.0)
    assert paired_difference([0.0, 0.0], [1.0, 1.0], clusters=["a", "a"]).p_value == 1.0


def test_sides_of_different_length_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        paired_difference([0.0, 1.0], [1.0])
    with pytest.raises(ValueError, match="shorter"):
        paired_difference([0.0, 1.0], [1.0, 1.0], clusters=["a"])


def test_intervals_cover_as_often_as_they_say_only_with_clusters():
    """40 problems of 5 phrasings that rise or fall together; the truth is no change."""
    draw = np.random.default_rng(7)
    names = [str(i // 5) for i in range(200)]
    covered = {"clustered": 0, "ignored": 0}
    rounds = 300
    for _ in range(rounds):
        lean = np.repeat(draw.normal(0, 0.2, 40), 5)
        after = np.clip(0.5 + lean + draw.normal(0, 0.1, 200), 0, 1).tolist()
        before = [0.5] * 200
        with_clusters = paired_difference(before, after, clusters=names)
        without = paired_difference(before, after)
        covered["clustered"] += with_clusters.low <= 0 <= with_clusters.high
        covered["ignored"] += without.low <= 0 <= without.high
    assert 0.91 < covered["clustered"] / rounds < 0.99
    assert covered["ignored"] / rounds < 0.8


# --- pass@k --------------------------------------------------------------------------------


def test_pass_at_k_by_counting_the_draws():
    outcomes = [True, True, False, False, False]
    for k in range(1, 6):
        draws = list(combinations(outcomes, k))
        some, every = (sum(map(f, draws)) / len(draws) for f in (any, all))
        assert pass_at_k(5, 2, k) == pytest.approx(some, abs=1e-12)
        assert pass_every_k(5, 2, k) == pytest.approx(every, abs=1e-12)


def test_pass_at_k_takes_counts_that_overflow_a_float():
    assert pass_at_k(5000, 2500, 2000) == 1.0
    assert pass_every_k(5000, 4999, 2500) == pytest.approx(0.5)


@pytest.mark.parametrize(("attempts", "solved", "k"), [(3, 1, 4), (3, 4, 1), (3, -1, 1), (3, 1, 0)])
def test_what_cannot_be_drawn_is_refused(attempts: int, solved: int, k: int):
    with pytest.raises(ValueError, match="cannot draw"):
        pass_at_k(attempts, solved, k)
    with pytest.raises(ValueError, match="cannot draw"):
        pass_every_k(attempts, solved, k)
