r"""The verifier `math-answer`: what equals what, and what a hostile answer cannot do."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.types import Json, Task, Verdict
from headrace.verify.audit.corpus import shipped
from headrace.verify.child import ChildDied, ChildError, ChildGarbled, ChildSpent, ChildTimeout
from headrace.verify.kinds import Specimens, find
from headrace.verify.math import DIFFERENCES, Difference, MathAnswer
from headrace.verify.math.compare import Comparison, NoAlgebra
from headrace.verify.math.reference import Reference
from headrace.verify.math.verifier import CRASHED, EXPENSIVE
from math_support import ALIKE, DIFFERENT, OPTIONS, task_of

SAMPLE = (
    ("3\\sqrt{2}", "\\sqrt{18}"),
    ("3\\sqrt{2}", "4.2426"),
    ("\\{1, 2\\}", "2, 1"),
    ("50\\%", "50"),
    ("x < 3", "(-\\infty, 3)"),
)
ELSEWHERE = """
import json, sys
from math_support import task_of
from math_verify import parse, verify
from headrace.verify.math import MathAnswer

asked = json.load(sys.stdin)
judge = MathAnswer(size=1)
evidence = [judge.judge(task_of(g), f"<answer>{s}</answer>").evidence for g, s in asked["sample"]]
judge.close()
theirs = []
for pair in asked["pairs"]:
    parsed = [parse(f"${text}$", parsing_timeout=None) for text in pair]
    theirs.append(bool(verify(*parsed, timeout_seconds=None)))
print(json.dumps({"evidence": evidence, "math_verify": theirs}))
"""


class Elsewhere:
    """Another process, which asks our verifier and plain math-verify while the tests go on."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", ELSEWHERE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": "/usr/bin:/bin"},
        )
        self._asked = {"sample": SAMPLE, "pairs": [(c.gold, c.said) for c in DIFFERENCES]}
        self._result: Json = None

    def start(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(self._asked))
        self._process.stdin.close()
        self._process.stdin = None

    def result(self) -> Json:
        if self._result is None:
            self._result = json.loads(self._process.communicate(timeout=120)[0])
        return self._result

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module", autouse=True)
def elsewhere() -> Iterator[Elsewhere]:
    process = Elsewhere()
    process.start()
    yield process
    process.end()


@pytest.fixture(scope="module")
def verifier() -> Iterator[MathAnswer]:
    judge = MathAnswer(size=1, cpu=1.5)
    yield judge
    judge.close()


def said(verifier: MathAnswer, answer: Any, text: str, prompt: str = "Answer.") -> Verdict:
    return verifier.judge(task_of(answer, prompt), f"<answer>{text}</answer>")


def part(verdict: Verdict, name: str) -> float:
    return next(part.value for part in verdict.parts if part.name == name)


@pytest.mark.parametrize(("gold", "text"), ALIKE)
def test_answers_that_say_the_same(verifier: MathAnswer, gold: str, text: str) -> None:
    verdict = said(verifier, gold, text)
    assert verdict.score == 1.0, verdict.evidence


@pytest.mark.parametrize(("gold", "text"), DIFFERENT)
def test_answers_that_say_something_else(verifier: MathAnswer, gold: str, text: str) -> None:
    verdict = said(verifier, gold, text)
    assert verdict.score == 0.0, verdict.evidence


@pytest.mark.parametrize(("answer", "text", "right"), OPTIONS)
def test_options_let_pass_what_they_name(
    verifier: MathAnswer, answer: Any, text: str, right: bool
) -> None:
    verdict = said(verifier, answer, text)
    assert verdict.score == float(right), verdict.evidence


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("0<x<12.5", "(0, 12.5)"),
        ("(-\\infty, 3)", "x < 3"),
        ("[0, 1)", "0 \\le x < 1"),
        ("\\frac{1}{2004!}", "\\frac{1}{2006!}"),
        ("50\\%", "0.5"),
        ("x = 5", "5"),
        ("\\{1, 2\\}", "1, 2"),
        ("\\{1, 2\\}", "(1, 2)"),
    ],
)
def test_either_may_be_the_reference(verifier: MathAnswer, gold: str, text: str) -> None:
    assert said(verifier, gold, text).score == said(verifier, text, gold).score


# --- where math-verify is wrong ------------------------------------------------------------


@pytest.mark.parametrize("case", DIFFERENCES, ids=lambda case: f"{case.gold} ~ {case.said}")
def test_each_listed_difference_from_math_verify_is_one(
    verifier: MathAnswer, elsewhere: Elsewhere, case: Difference
) -> None:
    assert said(verifier, case.gold, case.said).score == float(case.ours)
    theirs = elsewhere.result()["math_verify"][DIFFERENCES.index(case)]
    assert theirs is case.theirs
    assert case.ours is not case.theirs


# --- finding the answer --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("<answer>5</answer>", True),
        ("<answer>\\boxed{5}</answer>", True),
        ("so \\boxed{5}.", True),
        ("The final answer is 5.", True),
        ("**Final answer:** 5", True),
        ("The answer is $x = 5$, as was asked.", True),
        ("work\n#### 5", True),
        ("Adding up, she has 5 eggs left.", True),
        ("that makes $5$", True),
        ("2 + 3 = 5", True),
        ("<think>\\boxed{4}</think>\\boxed{5}", True),
        ("\\boxed{4} no, \\boxed{5}", True),
        ("\\boxed{5} no, \\boxed{4}", False),
        ("<answer>4</answer> \\boxed{5}", False),
        ("<answer>5</answer> <answer>4</answer>", False),
        ("\\boxed{5} and \\boxed{4} and \\boxed{3}", False),
        ("<think>\\boxed{5}</think>", False),
        ("<think>\\boxed{5}", False),
        ("2 + 3", False),
        ("It is 5 or 6", False),
        ("The answer is 5 or 6.", False),
    ],
)
def test_one_place_holds_the_answer(verifier: MathAnswer, text: str, right: bool) -> None:
    assert verifier.judge(task_of(5), text).score == float(right)


@pytest.mark.parametrize("text", ["", "  ", "\\boxed{}", "<answer></answer>", "I do not know."])
def test_no_answer_is_wrong_and_counted_apart(verifier: MathAnswer, text: str) -> None:
    verdict = verifier.judge(task_of(5), text)
    assert (verdict.score, part(verdict, "extracted")) == (0.0, 0.0)
    assert part(said(verifier, 5, "six"), "extracted") == 1.0


@pytest.mark.parametrize(
    ("prompt", "gold", "text"),
    [
        ("What is $10/2$?", 5, "10/2"),
        ("Simplify $\\sqrt{50}$.", "5\\sqrt{2}", "\\sqrt{50}"),
        ("Reduce 6/8.", "\\frac{3}{4}", "6/8"),
        ("Expand $(x+1)^2$.", "x^2+2x+1", "(x + 1)^2"),
    ],
)
def test_work_copied_from_the_prompt_is_no_answer(
    verifier: MathAnswer, prompt: str, gold: Any, text: str
) -> None:
    verdict = said(verifier, gold, text, prompt)
    assert (verdict.score, part(verdict, "hack")) == (0.0, float("copied" in verdict.evidence))
    assert said(verifier, {"answer": gold, "worked_out": False}, text, prompt).score == 1.0


def test_a_choice_from_the_prompt_is_an_answer(verifier: MathAnswer) -> None:
    prompt = "Which is larger, $\\sqrt{50}$ or $\\sqrt{49}$?"
    assert said(verifier, "\\sqrt{50}", "\\sqrt{50}", prompt).score == 1.0
    assert said(verifier, 0.5, "1/2", "A coin shows heads with probability 1/2.").score == 1.0


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("18 eggs", True),
        ("18 fresh eggs in total", True),
        ("18\\text{ eggs}", True),
        ("$18 eggs", True),
        ("18 hens", False),
        ("18 dozen eggs", False),
        ("18 or more eggs", False),
        ("18 in", True),
        ("18 eggs or 19 eggs", False),
        ("eggs", False),
    ],
)
def test_nouns_of_the_question_may_stand_behind_a_number(
    verifier: MathAnswer, text: str, right: bool
) -> None:
    prompt = "How many dozen or more fresh eggs are there?"
    assert said(verifier, 18, text, prompt).score == float(right)


# --- faults --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        None,
        True,
        "",
        [1, 2],
        float("inf"),
        {"answers": 5},
        {"answer": 5, "tolerence": 1},
        {"answer": 5, "tolerance": 0.1},
        {"answer": 5, "tolerance": {"relative": 1}},
        {"answer": 5, "tolerance": {"absolute": -1}},
        {"answer": 5, "unit": "furlong"},
        {"answer": 5, "ordered": "yes"},
        {"answer": 5, "kind": "number"},
        {"answer": 5, "labels": "eggs"},
        "\\frac{1}{",
        "3 4",
        "9^{9^{9^{9}}}",
        "\\frac{0}{0}",
        "A \\cup B",
    ],
)
def test_a_bad_reference_is_the_tasks_fault(verifier: MathAnswer, answer: Any) -> None:
    for text in ("5", "\\sqrt{5}"):
        verdict = said(verifier, answer, text)
        assert (verdict.score, verdict.fault) == (None, "task")


BOMBS = (
    "9^{9^{9^{9}}}",
    "9**9**9**9",
    "((99!)!)!",
    "(10^9)!",
    "2^{10^{12}} \\pi",
    "(x+y+z)^{100000}",
    "(" * 400 + "1" + ")" * 400,
    "{" * 300 + "\\sqrt{2}" + "}" * 300,
    "\\sqrt{" * 150 + "2" + "}" * 150,
    "10^{99999999}",
)


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_known_bomb_is_wrong_and_costs_no_child(verifier: MathAnswer, bomb: str) -> None:
    verdict = said(verifier, "\\sqrt{2}", bomb)
    assert verdict.score == 0.0
    assert not any(f'"{end}"' in verdict.evidence for end in (EXPENSIVE, CRASHED))


def test_a_bomb_that_no_guard_knows_dies_with_its_child_and_the_pool_goes_on(
    verifier: MathAnswer,
) -> None:
    verdict = said(verifier, "\\sqrt{2}", "\\binom{300000000}{150000000}")
    assert (verdict.score, part(verdict, "hack")) == (0.0, 1.0)
    assert f'"{EXPENSIVE}"' in verdict.evidence
    assert said(verifier, "\\sqrt{2}", "\\frac{2}{\\sqrt{2}}").score == 1.0


class Broken(MathAnswer):
    """Its child fails in one way for an answer, in another for the reference alone."""

    def __init__(self, failure: ChildError, alone: ChildError | None) -> None:
        super().__init__()
        self.failure, self.alone = failure, alone

    def _call(self, task: Task, said: str | None) -> Json:
        if said is not None:
            raise self.failure
        if self.alone is not None:
            raise self.alone
        return {"same": None, "notes": []}


@pytest.mark.parametrize(
    ("failure", "alone", "fault"),
    [
        (ChildSpent("slow"), None, None),
        (ChildDied("gone"), None, None),
        (ChildSpent("slow"), ChildSpent("slow"), "task"),
        (ChildDied("gone"), ChildDied("gone"), "verifier"),
        (ChildSpent("slow"), ChildTimeout("busy"), "infrastructure"),
        (ChildTimeout("busy"), None, "infrastructure"),
        (ChildGarbled("what"), None, "verifier"),
    ],
)
def test_a_failed_comparison_is_the_answers_fault_only_if_the_reference_alone_is_well(
    failure: ChildError, alone: ChildError | None, fault: str | None
) -> None:
    verdict = said(Broken(failure, alone), "\\sqrt{2}", "\\sqrt{3}")
    assert (verdict.score, verdict.fault) == ((0.0, None) if fault is None else (None, fault))


# --- the same from everywhere --------------------------------------------------------------


def test_thread_coroutine_and_another_process_judge_the_same(
    verifier: MathAnswer, elsewhere: Elsewhere
) -> None:
    expected = [said(verifier, gold, text) for gold, text in SAMPLE]
    from_threads: dict[int, Verdict] = {}

    def judge(number: int) -> None:
        from_threads[number] = said(verifier, *SAMPLE[number % len(SAMPLE)])

    threads = [threading.Thread(target=judge, args=(n,)) for n in range(2 * len(SAMPLE))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [from_threads[n] for n in range(2 * len(SAMPLE))] == expected * 2

    async def gather() -> list[Verdict]:
        return list(
            await asyncio.gather(*(asyncio.to_thread(said, verifier, g, s) for g, s in SAMPLE))
        )

    assert asyncio.run(gather()) == expected
    assert elsewhere.result()["evidence"] == [verdict.evidence for verdict in expected]


# --- laws ----------------------------------------------------------------------------------


def plain(gold: str, text: str) -> bool:
    return Comparison(Reference.of(gold), NoAlgebra()).run(text)


@settings(max_examples=40, deadline=None)
@given(st.fractions(), st.fractions())
def test_numerals_are_equal_exactly_if_their_values_are(one: Any, other: Any) -> None:
    gold, text = (f"\\frac{{{f.numerator}}}{{{f.denominator}}}" for f in (one, other))
    assert plain(gold, text) is (one == other)
    assert plain(gold, gold)


@settings(max_examples=40, deadline=None)
@given(st.integers(-(10**12), 10**12), st.integers(0, 12))
def test_a_decimal_is_its_digits_over_a_power_of_ten(digits: int, places: int) -> None:
    text = f"{digits}\\times 10^{{-{places}}}"
    sign, whole = ("-" if digits < 0 else ""), str(abs(digits)).rjust(places + 1, "0")
    point = f"{whole[:-places]}.{whole[-places:]}" if places else whole
    assert plain(sign + point, text)
    assert not plain(sign + point, f"{digits + 1}\\times 10^{{-{places}}}")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-99, 99), min_size=2, max_size=6), st.randoms())
def test_a_bare_list_has_no_order_and_a_tuple_has(items: list[int], random: Any) -> None:
    shuffled = random.sample(items, len(items))
    gold, text = (", ".join(map(str, order)) for order in (items, shuffled))
    assert plain(gold, text)
    assert plain(f"({gold})", f"({text})") is (items == shuffled)


# --- the kind proves itself ----------------------------------------------------------------


@pytest.fixture(scope="module")
def domain(verifier: MathAnswer) -> Specimens:
    kind = find("math-answer")
    specimens = kind.specimens()
    assert isinstance(specimens, Specimens)
    assert (kind.id, kind.version) == (verifier.ref.id, verifier.ref.version)
    return Specimens(specimens.name, verifier, specimens.items)


def test_specimens_are_judged_as_they_say(domain: Specimens) -> None:
    for index in range(len(domain.items)):
        task = domain.task(0, index)
        assert isinstance(domain.verifier, MathAnswer)
        reference = domain.reference(task)
        assert reference is not None
        for text in (reference, *domain.right(task)):
            assert domain.verifier.judge(task, text).score == 1.0, (task.problem, text)
        for text in (*domain.wrong(task), *domain.verifier.near(task, reference)):
            assert domain.verifier.judge(task, text).score == 0.0, (task.problem, text)


def test_no_trick_is_paid(domain: Specimens) -> None:
    tricks = shipped().against(("number",))
    assert len([t for t in tricks if t.surface == "number"]) >= 8
    assert len([t for t in tricks if t.surface == "text"]) >= 6
    for index in range(len(domain.items)):
        task = domain.task(0, index)
        for trick in tricks:
            text = trick.text_for({"prompt": task.problem})
            assert text is not None
            assert domain.verifier.judge(task, text).score == 0.0, (task.problem, trick.name)
