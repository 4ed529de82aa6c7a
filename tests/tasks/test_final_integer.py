from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.types import Task, Verdict, VerifierRef
from headrace_arithmetic import Arithmetic, FinalInteger, read_final_integer


def judge(text: str, answer: int) -> Verdict:
    task = Task(
        domain="arithmetic",
        problem="",
        tier=0,
        split="train",
        messages=(),
        verifier=VerifierRef("final-integer", "1"),
        answer=answer,
    )
    return FinalInteger().judge(task, text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7),
        ("3 + 4 = 7", 7),
        ("The answer is 7.", 7),
        ("The answer is **7**.", 7),
        ("= 7.0", 7),
        ("It makes $7$", 7),
        ("So \\boxed{12} it is", 12),
        ("\\(\\boxed{-12}\\)", -12),
        ("7 apples", 7),
        ("You now have 7 apples!", 7),
        ("-7", -7),
        ("−7", -7),
        ("x=-7", -7),
        ("it is **-7**", -7),
        ("1,234", 1234),
        ("1{,}234 or 12\\,345", 12345),
        ("-1,234,567.00.", -1234567),
        ("first 3, then 4", 4),
        ("007", 7),
        ("12 - 5 = 7", 7),
        ("5 * 1 = 5", 5),
        ("Step 2: 5 pens", 5),
        ("_7_", 7),
        ("<answer>7</answer>", 7),
        ("10\n- 3", 3),
    ],
)
def test_the_last_integer_is_read_however_it_is_dressed(text: str, number: int) -> None:
    assert read_final_integer(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "4.5",
        ".5",
        "7%",
        "7 \\%",
        "9/3",
        "1e3",
        "12:30",
        "7th",
        "٧",
        "７",
        "4 or ７",
        "1７",
        "7²",
        "1,23",
        "9" * 19,
        "9" * 100_000,
        "7." + "0" * 5000,
    ],
)
def test_what_is_no_plain_integer_is_no_answer_and_nor_is_what_came_before(text: str) -> None:
    assert read_final_integer(text) is None
    assert read_final_integer(f"3 and {text}") is None


@pytest.mark.parametrize("text", ["", "seven", "H2", "x7y"])
def test_a_text_without_a_number_has_no_answer(text: str) -> None:
    assert read_final_integer(text) is None


@pytest.mark.parametrize(
    "text",
    ["0 + 4", "0+4", "9 - 2", "9–2", "1 * 7", "1 × 7", "1 \\times 7", "0 + (4", "1 x 7", "8 - -1"],
)
def test_an_expression_left_standing_is_no_answer(text: str) -> None:
    assert read_final_integer(text) is None


def test_listing_every_candidate_bets_on_the_last_one_only() -> None:
    everything = " ".join(str(number) for number in range(19))
    assert [judge(everything, answer).score for answer in range(19)] == [0.0] * 18 + [1.0]


def test_a_verdict_says_whether_a_number_was_found() -> None:
    right, wrong, silent = judge("= 7", 7), judge("= 8", 7), judge("no idea", 7)
    assert [verdict.score for verdict in (right, wrong, silent)] == [1.0, 0.0, 0.0]
    parts = {part.name: (part.value, part.weight) for part in silent.parts}
    assert parts == {"answer": (0.0, 1.0), "extracted": (0.0, 0.0)}
    assert {part.name: part.value for part in wrong.parts} == {"answer": 0.0, "extracted": 1.0}
    assert right.fault is None
    assert right.verifier == FinalInteger.ref


@given(st.integers(-(10**17), 10**17), st.sampled_from(["{}", "= {}.", "**{}**", "${}$ pens"]))
def test_every_integer_is_read_back_with_and_without_separators(value: int, dress: str) -> None:
    assert read_final_integer(dress.format(value)) == value
    assert read_final_integer(dress.format(f"{value:,}")) == value


@given(st.text(max_size=200))
def test_any_text_has_a_score(text: str) -> None:
    assert judge(text, 7).score in (0.0, 1.0)


@pytest.mark.parametrize("text", ["1" * 10**6, "1," * 5 * 10**5, "1-" * 5 * 10**5, "- " * 10**6])
def test_long_hostile_texts_are_read_in_linear_time(text: str) -> None:
    start = time.perf_counter()
    read_final_integer(text)
    assert time.perf_counter() - start < 2.0


def test_the_prompt_given_back_or_broken_off_earns_nothing() -> None:
    domain = Arithmetic()
    for tier in range(domain.tiers):
        for index in range(0, min(domain.size(tier), 1200), 1 + tier):
            task = domain.task(tier, index)
            text = task.messages[0].text
            for end in (len(text), len(text) * 2 // 3, len(text) // 2):
                verdict = domain.verifier.judge(task, text[:end])
                assert verdict.score == 0.0, text[:end]


QUESTIONS = {
    "What is the sum of 0 and 2?": 2,
    "If you have 2 apples and get 0 more, how many apples do you have?": 2,
    "2 + 0 =": 2,
    "Multiply 5 by 1.": 5,
    "4 pens are shared equally by 2 people. How many pens does each get?": 2,
    "8 - 4=?": 4,
}


@pytest.mark.parametrize(
    "form",
    [
        "{a}",
        "The answer is {a}.",
        "{q} {a}",
        "{q}\n\n{q} The answer is **{a}**",
        "{x} and {y}: that is {a}",
        "{x} with {y} makes {a} things",
        "{x} and {y} leaves you with {a}.",
        "{x}, then {y}, so \\boxed{{{a}}}",
        "{x} ? {y} = {a}",
        "{x} and {y}\n{a}",
    ],
)
@pytest.mark.parametrize(("question", "answer"), QUESTIONS.items())
def test_an_answer_that_stands_in_the_question_is_read_where_it_is_said_as_a_result(
    form: str, question: str, answer: int
) -> None:
    text = form.format(a=answer, q=question, x=0, y=2)
    assert read_final_integer(text, question) == answer


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("What is the sum of 0 and 2?", "the sum of 0 and 2"),
        ("What is the sum of 0 and 2?", "To find the sum of 0 and 2"),
        ("What is 5 * 1?", "What is 5"),
        ("Multiply 5 by 1.", "Multiply 5"),
        ("Add 0 and 2.", "I will add 0 and 2"),
        ("4 pens are shared equally by 2 people. How many pens does each get?", "4 shared by 2"),
        ("4 pens are shared equally by 2 people. How many?", "4 pens are shared equally by 2"),
        ("If you have 0 apples and get 2 more, how many?", "you have 0 apples and get 2 more"),
        ("2 + 0 =", "2 +"),
    ],
)
def test_an_operand_of_the_question_is_no_answer(question: str, text: str) -> None:
    assert read_final_integer(text, question) is None


@pytest.mark.parametrize("text", ["1 " * 10**5, "is " * 10**5 + "2", "2" + " a" * 10**5 + " 2"])
def test_a_question_does_not_make_reading_slow(text: str) -> None:
    start = time.perf_counter()
    read_final_integer(text, "What is 2 + 1?")
    assert time.perf_counter() - start < 2.0
