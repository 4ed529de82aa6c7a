from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from answers_support import check_specimens, part, specimens_of, task_for, tricks, verdict
from headrace.types import Json
from headrace.verify.documents import (
    KIND,
    Citation,
    DocumentAnswer,
    anls,
    cite_score,
    exact_match,
    read_quantity,
    token_f1,
)
from headrace.verify.documents.quantities import Quantity, convert
from headrace.verify.documents.strings import distance
from headrace.verify.documents.verifier import read_list
from headrace.verify.kinds import find

VERIFIER = DocumentAnswer()
SHORT = st.text(alphabet="ab c", max_size=6)


def score(answer: Json, said: str) -> float | None:
    return verdict(VERIFIER, answer, f"<answer>{said}</answer>").score


# --- the kind ------------------------------------------------------------------------------


def test_specimens_prove_the_kind_and_no_trick_pays() -> None:
    check_specimens(specimens_of(KIND), "document")
    assert find("document-answer") is KIND
    assert len(tricks("document")) >= 6


# --- ANLS ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "references", "expected"),
    [
        ("kitten", ["sitting"], 1 - 3 / 7),
        ("completely unrelated text here", ["x"], 0),  # mistral-evals #19: threshold of 0
        ("ab", ["a"], 0),  # winml-cli #1096: a distance of exactly a half
        ("abcd", ["abxy"], 0),
        ("abc", ["abx"], 1 - 1 / 3),
        ("abcdef", ["abcd"], 1 - 2 / 6),  # over the longer, not the reference: evalscope #1649
        ("abcd", ["abcdef"], 1 - 2 / 6),
        ("Paris", ["London", "paris"], 1),  # the best reference, not their mean: lmms-eval #363
        ("pariz", ["london", "paris", "parize"], 1 - 1 / 6),
        ("  New   YORK ", ["new york"], 1),
        ("", ["a"], 0),
        ("a", [], 0),
    ],
)
def test_anls_is_as_defined(said: str, references: list[str], expected: float) -> None:
    assert anls(said, references) == pytest.approx(expected)


@given(SHORT, SHORT)
def test_the_distance_is_that_of_the_textbook_recursion(left: str, right: str) -> None:
    def slow(a: str, b: str) -> int:
        if not a or not b:
            return len(a) + len(b)
        return min(slow(a[1:], b) + 1, slow(a, b[1:]) + 1, slow(a[1:], b[1:]) + (a[0] != b[0]))

    assert distance(left[:5], right[:5]) == slow(left[:5], right[:5])


@given(SHORT, st.lists(SHORT, max_size=3))
def test_anls_is_never_in_the_lower_half(said: str, references: list[str]) -> None:
    value = anls(said, references)
    assert value == 0 or 0.5 < value <= 1


def test_digits_can_be_held_to_be_exact() -> None:
    answer = {"measure": "anls", "references": ["invoice 12345"]}
    assert score(answer, "invoice 12346") == pytest.approx(12 / 13)
    assert score({**answer, "exact_digits": True}, "invoice 12346") == 0
    assert score({**answer, "exact_digits": True}, "invoise 12345") == pytest.approx(12 / 13)


# --- SQuAD ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "reference", "f1", "exact"),
    [
        ("the red house", "A house, red!", 1, False),
        ("The  Red-House.", "redhouse", 1, True),
        ("Denver Broncos", "the Denver Broncos", 1, True),
        ("in Denver Colorado", "Denver", 1 / 2, False),
        ("red red red", "red", 1 / 2, False),
        ("blue", "red", 0, False),
        ("", "red", 0, False),
        ("the", "red", 0, False),
        ("", "The", 0, False),
        ("a", "A", 1, True),  # an answer that is an article: nothing is left of it in SQuAD
        ("the", "A", 0, False),
        ("%", "%", 1, True),
        ("", "%", 0, False),
        ("15", "1.5", 0, False),  # points dropped make these equal in SQuAD
        ("5", "-5", 0, False),
        ("23", "2-3", 0, False),
        ("1,500", "1500", 1, True),
        ("$1.50", "1.50", 1, True),
    ],
)
def test_token_f1_and_exact_match(said: str, reference: str, f1: float, exact: bool) -> None:
    assert token_f1(said, [reference]) == pytest.approx(f1)
    assert exact_match(said, [reference]) is exact


@given(SHORT, SHORT)
def test_f1_is_symmetric_and_1_only_for_the_same_words(left: str, right: str) -> None:
    left, right = left.replace("a", "x"), right.replace("a", "x")
    assert token_f1(left, [right]) == pytest.approx(token_f1(right, [left]))
    same = bool(left.split()) and sorted(left.split()) == sorted(right.split())
    assert (token_f1(left, [right]) == 1) is same


def test_what_is_not_above_the_least_is_not_paid() -> None:
    answer = {"measure": "f1", "references": ["red barn"]}
    assert score(answer, "red barn door") == pytest.approx(4 / 5)
    assert score(answer, "the barn") == pytest.approx(2 / 3)
    assert score(answer, "red house") == 0
    assert score({**answer, "least": 0.0}, "red house") == 0.5
    generous = {**answer, "least": 0.0}
    task = task_for(VERIFIER, generous, "The red barn burnt down in the night.")
    assert VERIFIER.floor(task) == pytest.approx(2 * 2 / (2 + 6))
    assert VERIFIER.judge(task, task.messages[0].text).score == VERIFIER.floor(task)


# --- numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("5", "5", ""),
        ("1,234.50", "1234.5", ""),
        ("about $1.2 million", "1200000", "USD"),
        ("US$ 3bn", "3000000000", "USD"),
        ("USD 4.1m", "4100000", "USD"),
        ("€ 5k", "5000", "EUR"),
        ("5 m", "5", "m"),
        ("5M", "5000000", ""),
        ("5 million dollars", "5000000", "USD"),
        ("2m euros", "2000000", "EUR"),
        ("$5 per share", "5", "USD"),
        ("(1,234)", "-1234", ""),
        ("$(4.1) million", "-4100000", "USD"),
        ("($4.1 million)", "-4100000", "USD"),
        ("(3.5)%", "-3.5", "%"),
        ("-$5", "-5", "USD"),
        ("$-5", "-5", "USD"),
        ("− 5", "-5", ""),
        ("+5", "5", ""),
        ("12 per cent", "12", "%"),
        ("25 basis points", "25", "bp"),
        ("2e3", "2000", ""),
        ("1.5 x 10^3 kg", "1500", "kg"),
        (".5 l", "0.5", "l"),
        ("90 km/h", "90", "km/h"),
        ("12 apples", "12", "apples"),
        ("12.", "12", ""),
        ("It is 12, I think", "12", ""),
        ("a total of 7 kg", "7", "kg"),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, value: str, unit: str) -> None:
    assert read_quantity(text) == Quantity(Fraction(value), unit)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none",
        "3 or 4",
        "3-4",
        "3–4",
        "1/2",
        "12:30",
        "2020-01-05",
        "1.2.3",
        "12,34",
        "COVID-19",
        "x5",
        "v.5",
        "5a6",
        "m²: 5²",
        "--5",
        "-(5)",
        "the loss was (5)",
        "(5",
        "$5 EUR",
        "5 or so",
        "5 kg or Edda",
        "5\nEdda",
        "٥",
        "1e300",
        "9" * 100,
    ],
)
def test_what_is_not_one_number_is_none(text: str) -> None:
    assert read_quantity(text) is None


def test_a_decimal_comma_is_an_option() -> None:
    assert read_quantity("1.234,5 kg", decimal_comma=True) == Quantity(Fraction("1234.5"), "kg")
    assert read_quantity("1.234,5 kg") is None


@pytest.mark.parametrize(
    ("value", "unit", "wanted", "converted"),
    [
        ("5", "km", "metres", "5000"),
        ("5", "km", "kg", None),
        ("50", "%", "bps", "5000"),
        ("50", "%", "", None),
        ("5", "s", "", None),
        ("5", "", "s", None),
        ("5", "USD", "EUR", None),
        ("5", "USD", "dollars", "5"),
        ("5", "apple", "apples", "5"),
        ("5", "pears", "apples", None),
        ("5", "apples", "", "5"),
        ("90", "km/h", "km", None),
        ("90", "km/h", "", None),
        ("1", "mi", "km", "1.609344"),
    ],
)
def test_units_are_converted_within_their_kind(
    value: str, unit: str, wanted: str, converted: str | None
) -> None:
    expected = None if converted is None else Fraction(converted)
    assert convert(Quantity(Fraction(value), unit), wanted) == expected


@pytest.mark.parametrize(
    ("options", "said", "right"),
    [
        ({"value": 12.0, "unit": "%"}, "12 percent", True),
        ({"value": 12.0, "unit": "%"}, "12", True),
        ({"value": 12.0, "unit": "%", "unit_required": True}, "12", False),
        ({"value": 12.0, "unit": "%"}, "0.12", False),
        ({"value": 0.5}, "50%", False),  # math-verify takes 50% for 0.5 and for 50
        ({"value": 5.0, "unit": "cm"}, "5 m", False),  # and 5 m for 5 cm
        ({"value": 0.1, "absolute": 0.02}, "0.12", True),
        ({"value": 0.1, "absolute": 0.02}, "0.1201", False),
        ({"value": 200, "relative": 0.01}, "202", True),
        ({"value": 200, "relative": 0.01}, "202.1", False),
        ({"value": -3}, "(3)", True),
        ({"value": -3}, "3", False),
        ({"value": 3}, "3; 4; 5", False),
        ({"value": 1e-20}, "1e-21", False),
    ],
)
def test_a_number_is_right_within_its_tolerance(options: Json, said: str, right: bool) -> None:
    assert score({"measure": "number", **options}, said) == float(right)


# --- lists ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ('["a, b", 2]', ["a, b", "2"]),
        ("- a\n* b\n3. c", ["a", "b", "c"]),
        ("a, b; c", ["a, b", "c"]),
        ("a, b,", ["a", "b"]),
        ("a", ["a"]),
        ("", []),
        ("[a, b", ["[a", "b"]),
    ],
)
def test_lists_are_read_as_they_are_written(text: str, items: list[str]) -> None:
    assert read_list(text) == items


def test_a_list_is_scored_by_f1_in_any_order_or_in_one() -> None:
    answer = {"measure": "list", "items": [["red"], ["blue", "azure"], ["green"]]}
    assert score(answer, "Azure, green, red") == 1
    assert score(answer, "red, blue") == pytest.approx(4 / 5)
    assert score(answer, "red, red, red") == 0  # a third
    assert score(answer, "red, blue, azure, green") == pytest.approx(6 / 7)
    assert score(answer, ", ".join(f"c{i}" for i in range(100)) + ", red") == 0
    assert score({**answer, "ordered": True}, "red, green, blue") == 0
    assert score({**answer, "ordered": True}, "red, blue, green") == 1


# --- citations -----------------------------------------------------------------------------

PASSAGES = {"a": "The red  barn\nburnt. The red barn was old.", "b": "Nobody saw the fire."}
GOLD = [Citation("a", "The red barn was old")]


@pytest.mark.parametrize(
    ("cited", "precision", "recall", "false"),
    [
        ([("a", "The red barn was old")], 1, 1, 0),
        ([("a", "The red\n barn  was old")], 1, 1, 0),
        ([("a", "red barn")], 1, 7 / 16, 0),  # of two places, the one in the evidence
        ([("a", "red barn"), ("a", "barn was")], 1, 10 / 16, 0),
        ([("b", "The red barn was old")], 0, 0, 1),
        ([("c", "The red barn was old")], 0, 0, 1),
        ([("a", "The red barn was new")], 0, 0, 1),
        ([("a", "The red barn was old"), ("a", "xxxx")], 16 / 20, 1, 1),
        ([("a", "the red barn was old")], 0, 0, 1),
        ([("a", "arn was ol")], 0, 0, 1),
        ([("a", "")], 0, 0, 1),
        ([("a", "The red  barn\nburnt. The red barn was old.")], 16 / 33, 1, 0),
        ([], 0, 0, 0),
    ],
)
def test_quotes_must_stand_where_they_are_claimed_to(
    cited: list[tuple[str, str]], precision: float, recall: float, false: int
) -> None:
    found = cite_score(PASSAGES, GOLD, [Citation(*citation) for citation in cited])
    assert found.precision == pytest.approx(precision)
    assert found.recall == pytest.approx(recall)
    assert len(found.false) == false


def test_citations_are_read_from_json_and_nothing_else() -> None:
    answer = {
        "measure": "citations",
        "passages": PASSAGES,
        "evidence": [{"passage": "a", "quote": "The red barn was old"}],
    }
    assert score(answer, '[{"passage": "a", "quote": "The red barn was old"}]') == 1
    for said in (
        '[{"passage": "a", "quote": "The red barn was old"}] or Edda',
        "The red barn was old",
        '{"passage": "a", "quote": "The red barn was old"}',
        '[{"passage": "a", "quote": "The red barn was old", "start": 5}]',
        '[["a", "The red barn was old"]]',
        '[{"passage": ["a", "b"], "quote": "The red barn was old"}]',
        "[" + ", ".join(['{"passage": "a", "quote": "The"}'] * 51) + "]",
    ):
        assert score(answer, said) == 0, said
    wrong = {**answer, "evidence": [{"passage": "b", "quote": "The red barn"}]}
    judged = verdict(VERIFIER, wrong, '[{"passage": "a", "quote": "The"}]')
    assert judged.score is None
    assert judged.fault == "task"


# --- the whole -----------------------------------------------------------------------------


def test_the_last_answer_counts_and_thinking_does_not() -> None:
    answer = {"measure": "exact", "references": ["red"]}
    for text, right in (
        ("<answer>blue</answer> no, <answer>red</answer>", 1),
        ("<answer>red</answer> no, <answer>blue</answer>", 0),
        ("<think><answer>blue</answer></think>Red.", 1),
        ("<think><answer>red</answer>", 0),
        ("it is red", 0),
    ):
        assert verdict(VERIFIER, answer, text).score == right, text


def test_no_answer_is_said_in_words_and_never_by_silence() -> None:
    answer = {"measure": "f1", "unanswerable": "not in the text"}
    assert score(answer, "Not in the text.") == 1
    for said in ("", " ", ".", "the", "unanswerable", "not in the text, maybe red"):
        assert score(answer, said) == 0


def test_characters_in_disguise_are_no_near_miss() -> None:
    answer = {"measure": "anls", "references": ["Edda Lindqvist"]}
    for said in ("Edd\u0430 Lindqvist", "\u202eEdda Lindqvist", "\uff25dda Lindqvist"):
        assert score(answer, said) == 0
    assert score({"measure": "anls", "references": ["Москва"]}, "Масква") == pytest.approx(5 / 6)
    assert score(answer, "Édda Lindqvist") == pytest.approx(13 / 14)


def test_quoting_everything_is_seen() -> None:
    answer = {"measure": "f1", "references": ["red barn"]}
    judged = verdict(VERIFIER, answer, "The red barn " + "and so on " * 30)
    assert judged.score == 0
    assert part(judged, "hack") == 1


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        {"measure": "anls", "references": [""]},
        {"measure": "anls", "references": ["x" * 1001]},
        {"measure": "anls", "references": ["x"], "value": 1},
        {"measure": "number"},
        {"measure": "number", "value": True},
        {"measure": "list"},
        {"measure": "list", "items": [[]]},
        {"measure": "citations", "passages": {"a": "x"}},
        {"measure": "f1", "references": ["x"], "least": 1},
        {"measure": "exact", "unanswerable": " "},
    ],
)
def test_a_malformed_answer_is_the_tasks_fault(answer: Json) -> None:
    judged = verdict(VERIFIER, answer, "x")
    assert judged.score is None
    assert judged.fault == "task"
