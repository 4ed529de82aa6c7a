"""Laws of composed verifiers: bounds, monotony, order, identity, and who is at fault."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.protocols import Verifier
from headrace.types import Fault, Json, Task, Verdict, VerdictPart, VerifierRef
from headrace.verify.compose import AllOf, Fusion, Gate, Member, Weighted
from headrace.verify.disagreement import DisagreementRate
from headrace.verify.kinds import Auditable, Surface
from headrace.verify.penalties import FormatPenalty, LengthPenalty, StepBudget
from headrace.verify.verdicts import hack, scored, unjudged
from judge_support import judged_task

LAW = settings(derandomize=True, deadline=None, max_examples=20)
TASK = judged_task(None)
FAULTS: tuple[Fault, ...] = ("infrastructure", "task", "verifier", "policy")


@dataclass
class Fixed:
    """Says `score`, or that it is `fault`'s fault that it cannot."""

    score: float | None
    fault: Fault = "verifier"
    version: str = "1"
    lowest: float = 0.0
    surfaces: tuple[Surface, ...] = ("text", "number")
    tricked: bool = False
    asked: list[Json] = field(default_factory=list[Json])

    @property
    def ref(self) -> VerifierRef:
        return VerifierRef("fixed", self.version)

    def judge(self, task: Task, text: str) -> Verdict:
        self.asked.append(task.answer)
        if self.score is None:
            return unjudged(self.ref, self.fault, "out of order")
        return scored(self.ref, (VerdictPart("own", self.score), hack(self.tricked)))

    def floor(self, task: Task) -> float:
        return self.lowest

    def hints(self, task: Task) -> Mapping[str, str]:
        return {"version": self.version}

    def near(self, task: Task, reference: str) -> Sequence[str]:
        return [self.version]


def members(scores: Sequence[float | None], weights: Sequence[float] | None = None) -> list[Member]:
    weights = weights or [1.0] * len(scores)
    return [
        Member(name=f"m{index}", verifier=Fixed(score), weight=weight)
        for index, (score, weight) in enumerate(zip(scores, weights, strict=True))
    ]


def score(verifier: Verifier, text: str = "one two three") -> float | None:
    return verifier.judge(TASK, text).score


def part(verdict: Verdict, name: str) -> float:
    return next(p.value for p in verdict.parts if p.name == name)


Combine = Callable[[list[Member]], Verifier]
COMBINE: dict[str, Combine] = {
    "weighted": Weighted,
    "all-of": AllOf,
    "mean": lambda several: Fusion(several, "mean"),
    "min": lambda several: Fusion(several, "min"),
    "majority": lambda several: Fusion(several, "majority"),
    "agree": lambda several: Fusion(several, "agree"),
}
SHARES = st.floats(0, 1)
SEVERAL = st.lists(SHARES, min_size=2, max_size=6)
combined = pytest.mark.parametrize("combine", COMBINE.values(), ids=COMBINE.keys())


@combined
@LAW
@given(scores=SEVERAL)
def test_scores_stay_between_the_lowest_and_the_highest_member(
    combine: Combine, scores: list[float]
) -> None:
    found = score(combine(members(scores)))
    if found is not None and found not in (0.0, 1.0):
        assert min(scores) - 1e-12 <= found <= max(scores) + 1e-12


@combined
@LAW
@given(scores=SEVERAL, index=st.integers(0, 5), more=SHARES)
def test_a_better_member_never_makes_the_whole_worse(
    combine: Combine, scores: list[float], index: int, more: float
) -> None:
    better = list(scores)
    better[index % len(scores)] = max(better[index % len(scores)], more)
    before, after = score(combine(members(scores))), score(combine(members(better)))
    if before is not None and after is not None:
        assert before <= after + 1e-12


@combined
@LAW
@given(scores=SEVERAL, order=st.randoms(use_true_random=False))
def test_the_order_of_members_changes_no_bit(
    combine: Combine, scores: list[float], order: random.Random
) -> None:
    several = members(scores)
    shuffled = list(several)
    order.shuffle(shuffled)
    one, other = combine(several), combine(shuffled)
    assert one.ref == other.ref
    assert one.judge(TASK, "x") == other.judge(TASK, "x")


@combined
@LAW
@given(share=SHARES)
def test_members_of_one_mind_are_one_member(combine: Combine, share: float) -> None:
    found = score(combine(members([share, share, share])))
    if combine in (COMBINE["all-of"], COMBINE["majority"]):
        assert found == float(share >= 0.999)
    else:
        assert found == pytest.approx(share, abs=1e-12)


@combined
@LAW
@given(scores=SEVERAL, index=st.integers(0, 5), fault=st.sampled_from(FAULTS))
def test_an_unjudged_member_leaves_the_whole_unjudged_by_its_fault(
    combine: Combine, scores: list[float], index: int, fault: Fault
) -> None:
    several = members(scores)
    at = index % len(scores)
    several[at] = Member(name=several[at].name, verifier=Fixed(None, fault))
    verdict = combine(several).judge(TASK, "x")
    assert (verdict.score, verdict.fault) == (None, fault)
    assert "out of order" in verdict.evidence


@combined
def test_an_unjudged_member_without_weight_only_informs(combine: Combine) -> None:
    silent = Member(name="silent", verifier=Fixed(None), weight=0.0)
    verdict = combine([*members([1.0, 1.0]), silent]).judge(TASK, "x")
    assert verdict.score == 1.0
    assert "out of order" in verdict.evidence


@LAW
@given(SEVERAL, st.lists(st.floats(0.01, 100), min_size=6, max_size=6))
def test_weighted_is_the_weighted_mean(scores: list[float], weights: list[float]) -> None:
    weights = weights[: len(scores)]
    expected = math.fsum(s * w for s, w in zip(scores, weights, strict=True)) / math.fsum(weights)
    assert score(Weighted(members(scores, weights))) == pytest.approx(expected)


def test_weighted_by_hand() -> None:
    verdict = Weighted(members([1.0, 0.5, 0.0], [2.0, 1.0, 0.0])).judge(TASK, "x")
    assert verdict.score == pytest.approx(2.5 / 3)
    assert (part(verdict, "m1"), part(verdict, "m1.own"), part(verdict, "m2")) == (0.5, 0.5, 0.0)
    assert Weighted(members([0.3])).judge(TASK, "x").score == 0.3


def test_whose_fault_it_is_does_not_depend_on_the_order() -> None:
    several = [Member(name=fault, verifier=Fixed(None, fault)) for fault in FAULTS]
    assert Weighted(several).judge(TASK, "x").fault == "infrastructure"
    assert Weighted(several[::-1]).judge(TASK, "x").fault == "infrastructure"
    assert Weighted(several[1:]).judge(TASK, "x").fault == "task"


@pytest.mark.parametrize("build", [Weighted, AllOf])
def test_a_trick_that_one_member_sees_is_seen(build: Callable[[list[Member]], Verifier]) -> None:
    seeing = Member(name="seeing", verifier=Fixed(0.0, tricked=True))
    assert part(build([*members([1.0]), seeing]).judge(TASK, "x"), "hack") == 1.0
    assert part(build(members([1.0])).judge(TASK, "x"), "hack") == 0.0


def test_all_of_needs_full_marks_of_all() -> None:
    assert score(AllOf(members([1.0, 1.0]))) == 1.0
    assert score(AllOf(members([1.0, 0.99]))) == 0.0
    assert score(AllOf(members([1.0, 0.0], [1.0, 0.0]))) == 1.0


# --- gates -------------------------------------------------------------------------------------


def test_a_gate_asks_the_second_only_behind_the_first() -> None:
    then = Fixed(0.5)
    shut = Gate(Fixed(0.9), then).judge(TASK, "x")
    assert (shut.score, then.asked) == (0.0, [])
    assert score(Gate(Fixed(1.0), then)) == 0.5
    assert score(Gate(Fixed(0.9), then, at=0.9)) == 0.5


@LAW
@given(SHARES, SHARES, st.floats(0, 0.99))
def test_passing_a_gate_never_pays_less_than_failing_it(
    gate: float, then: float, floor: float
) -> None:
    failed = score(Gate(Fixed(0.0), Fixed(then), floor=floor))
    passed = score(Gate(Fixed(1.0), Fixed(then), floor=floor))
    assert failed is not None
    assert passed is not None
    assert failed == pytest.approx(floor)
    assert passed == pytest.approx(floor + (1 - floor) * then)
    assert passed >= failed - 1e-12
    assert score(Gate(Fixed(1.0), Fixed(gate))) == gate


def test_a_gate_that_cannot_judge_leaves_the_whole_unjudged() -> None:
    verdict = Gate(Fixed(None, "infrastructure"), Fixed(1.0)).judge(TASK, "x")
    assert (verdict.score, verdict.fault) == (None, "infrastructure")
    verdict = Gate(Fixed(1.0), Fixed(None, "task")).judge(TASK, "x")
    assert (verdict.score, verdict.fault) == (None, "task")
    assert score(Gate(Fixed(0.0), Fixed(None))) == 0.0


# --- fusion ------------------------------------------------------------------------------------


def test_fusion_by_hand() -> None:
    assert score(Fusion(members([1.0, 0.5, 0.0]), "mean")) == 0.5
    assert score(Fusion(members([1.0, 0.5, 0.2]), "min")) == 0.2
    assert score(Fusion(members([1.0, 1.0, 0.9]), "majority")) == 1.0
    assert score(Fusion(members([1.0, 0.0, 0.9]), "majority")) == 0.0
    assert score(Fusion(members([0.6, 0.7, 0.65]), "agree")) == pytest.approx(0.65)


@pytest.mark.parametrize(("how", "scores"), [("majority", [1.0, 0.0]), ("agree", [1.0, 0.8])])
def test_voices_that_disagree_give_no_score(how: str, scores: list[float]) -> None:
    fusion = Fusion(members(scores), "majority" if how == "majority" else "agree")
    verdict = fusion.judge(TASK, "x")
    assert (verdict.score, verdict.fault) == (None, "verifier")
    assert part(verdict, "disagreement") == pytest.approx(scores[0] - scores[1])


def test_disagreement_is_a_part_and_is_counted() -> None:
    rate = DisagreementRate()
    assert rate.so_far().rate is None
    for scores in ([1.0, 1.0], [1.0, 0.95], [1.0, 0.5], [0.0, 1.0]):
        verdict = Fusion(members(scores), "mean", rate=rate).judge(TASK, "x")
        assert part(verdict, "disagreement") == pytest.approx(abs(scores[0] - scores[1]))
    assert (rate.so_far().compared, rate.so_far().disagreed) == (4, 2)
    assert rate.so_far().rate == 0.5


# --- penalties ---------------------------------------------------------------------------------


@LAW
@given(SHARES, st.integers(0, 60), st.floats(0.01, 1))
def test_length_takes_a_share_of_what_the_answer_is_worth(
    worth: float, words: int, weight: float
) -> None:
    penalty = LengthPenalty(Fixed(worth), free=10, most=30, weight=weight)
    found = score(penalty, "word " * words)
    over = min(1.0, max(0.0, (words - 10) / 20))
    assert found == pytest.approx(worth * (1 - weight * over))
    assert found is not None
    assert found <= worth + 1e-12


def test_being_short_and_wrong_pays_nothing() -> None:
    assert score(LengthPenalty(Fixed(0.0), free=10, most=30, weight=0.5), "") == 0.0
    assert score(FormatPenalty(Fixed(0.0), Fixed(1.0), weight=0.5)) == 0.0
    assert score(StepBudget(Fixed(0.0), free=1, most=2, weight=0.5), "") == 0.0


def test_penalties_are_named_weighted_parts() -> None:
    penalty = LengthPenalty(Fixed(0.8), free=2, most=6, weight=0.5, unit="characters")
    verdict = penalty.judge(TASK, "1234")
    assert verdict.score == pytest.approx(0.8 * 0.75)
    named = {p.name: (p.value, p.weight) for p in verdict.parts}
    assert named["worth"] == (0.8, 0.5)
    assert named["length"] == (pytest.approx(0.4), 0.5)
    assert named["length-penalty"] == (0.5, 0.0)
    assert named["answer"] == (0.8, 0.0)


@pytest.mark.parametrize(
    ("unit", "text", "steps"),
    [
        ("lines", "a\n\n b \n\t\nc", 3),
        ("numbered", "1. a\n2) b\nStep 3: c\n  step 4 d\nin 5. e\n6.5 kg", 4),
        ("fences", "```sh\nls\n```\nthen\n~~~\npwd\n~~~", 2),
    ],
)
def test_steps_are_counted(
    unit: Literal["lines", "numbered", "fences"], text: str, steps: int
) -> None:
    for free, penalty in ((steps, 0.0), (steps - 1, 1.0)):
        budget = StepBudget(Fixed(1.0), free=free, most=free + 1, weight=1.0, unit=unit)
        assert part(budget.judge(TASK, text), "steps-penalty") == penalty


def test_form_costs_as_much_as_it_lacks() -> None:
    assert score(FormatPenalty(Fixed(1.0), Fixed(0.25), weight=0.4)) == pytest.approx(0.7)
    verdict = FormatPenalty(Fixed(1.0), Fixed(None, "task"), weight=0.4).judge(TASK, "x")
    assert (verdict.score, verdict.fault) == (None, "task")


# --- identity ----------------------------------------------------------------------------------


def test_a_version_follows_from_members_and_options() -> None:
    def of(verifier: Verifier) -> str:
        return verifier.ref.version

    one, two = Fixed(1.0), Fixed(1.0, version="2")
    versions = [
        of(Weighted([Member(name="a", verifier=one)])),
        of(Weighted([Member(name="a", verifier=two)])),
        of(Weighted([Member(name="b", verifier=one)])),
        of(Weighted([Member(name="a", verifier=one, weight=2.0)])),
        of(Weighted([Member(name="a", verifier=one, key="k")])),
        of(AllOf([Member(name="a", verifier=one)])),
        of(Gate(one, two)),
        of(Gate(two, one)),
        of(Gate(one, two, floor=0.1)),
        of(Fusion(members([1, 1]), "mean")),
        of(Fusion(members([1, 1]), "min")),
        of(LengthPenalty(one, free=1, most=2, weight=0.5)),
        of(LengthPenalty(one, free=1, most=3, weight=0.5)),
        of(LengthPenalty(one, free=1, most=2, weight=0.6)),
        of(StepBudget(one, free=1, most=2, weight=0.5)),
        of(FormatPenalty(one, two, weight=0.5)),
        of(FormatPenalty(two, one, weight=0.5)),
    ]
    assert len(set(versions)) == len(versions)
    assert of(Weighted([Member(name="a", verifier=Fixed(0.0))])) == versions[0]


def test_a_member_may_have_its_own_part_of_the_answer() -> None:
    whole, own = Fixed(1.0), Fixed(1.0)
    composed = Weighted(
        [Member(name="whole", verifier=whole), Member(name="own", verifier=own, key="number")]
    )
    composed.judge(judged_task({"number": 7}), "x")
    assert (whole.asked, own.asked) == ([{"number": 7}], [7])
    verdict = composed.judge(judged_task({"nubmer": 7}), "x")
    assert (verdict.score, verdict.fault) == (None, "task")


def test_compositions_are_attacked_as_their_members_are() -> None:
    one = Fixed(1.0, lowest=0.2, surfaces=("text", "sql"))
    two = Fixed(1.0, lowest=0.4, version="2", surfaces=("python",))
    both = [Member(name="a", verifier=one), Member(name="b", verifier=two, weight=3.0)]
    composed = Weighted(both)
    assert isinstance(composed, Auditable)
    assert composed.surfaces == ("text", "python", "sql")
    assert composed.hints(TASK) == {"version": "1"}
    assert composed.near(TASK, "x") == ["1", "2"]
    assert composed.floor(TASK) == pytest.approx(0.35)
    assert AllOf(both).floor(TASK) == 0.0
    assert Gate(one, two, floor=0.1).floor(TASK) == 0.1
    voices = [Member(name="a", verifier=one), Member(name="b", verifier=two)]
    assert Fusion(voices, "min").floor(TASK) == 0.2
    assert Fusion(voices, "mean").floor(TASK) == pytest.approx(0.3)
    assert LengthPenalty(two, free=1, most=2, weight=0.5).floor(TASK) == 0.4


@pytest.mark.parametrize(
    "build",
    [
        lambda: Weighted([]),
        lambda: Weighted(members([1.0], [0.0])),
        lambda: Weighted([*members([1.0]), *members([1.0])]),
        lambda: Member(name="hack", verifier=Fixed(1.0)),
        lambda: Member(name="a", verifier=Fixed(1.0), weight=-1.0),
        lambda: Fusion(members([1.0]), "mean"),
        lambda: Fusion(members([1.0, 1.0], [1.0, 0.5]), "mean"),
        lambda: Gate(Fixed(1.0), Fixed(1.0), at=0.0),
        lambda: Gate(Fixed(1.0), Fixed(1.0), floor=1.0),
        lambda: LengthPenalty(Fixed(1.0), free=3, most=3, weight=0.5),
        lambda: LengthPenalty(Fixed(1.0), free=1, most=3, weight=0.0),
    ],
)
def test_what_makes_no_sense_is_refused(build: Callable[[], object]) -> None:
    with pytest.raises(UsageError):
        build()
