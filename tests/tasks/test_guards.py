from __future__ import annotations

from typing import Any

import pytest

from headrace_reasoning_gym.guards import refusal

SYMPY = ["countdown", "intermediate_integration", "polynomial_multiplication", "simple_integration"]
EVAL = ["binary_matrix", "n_queens", "spiral_matrix", "string_insertion"]


def given(*numbers: int) -> dict[str, Any]:
    return {"metadata": {"numbers": list(numbers)}}


@pytest.mark.parametrize("generator", [*SYMPY, "puzzle24", *EVAL])
@pytest.mark.parametrize(
    "text",
    [
        '__import__("os").system("id")',
        "exec('import os')",
        "[print(1)]",
        "(lambda: 0)()",
        "[x for x in range(9)]",
        "open(chr(47))",
        "().__class__.__base__",
        "f'{exit()}'",
        "[1, 2][0]",
        "(y := 3)",
    ],
)
def test_text_that_would_run_as_code_never_reaches_a_scorer(generator: str, text: str) -> None:
    assert refusal(generator, text, given(1, 1, 1, 1)) is not None


@pytest.mark.parametrize("generator", SYMPY)
@pytest.mark.parametrize(
    "text",
    ["x**2/2 + C", "-3*x*exp(2*x) + sin(x)*cosh(x)", "(60 + 4) * 5 - 1.5", "sqrt(2)*log(abs(x))"],
)
def test_plain_expressions_may_be_judged(generator: str, text: str) -> None:
    assert refusal(generator, text, {}) is None


@pytest.mark.parametrize("generator", SYMPY)
@pytest.mark.parametrize(
    "text", ["", "quit()", "x.subs(x, 1)", "a_b", "'x'", "test()", "9²", "x;y"]
)
def test_anything_but_a_plain_expression_earns_the_floor(generator: str, text: str) -> None:
    assert refusal(generator, text, {}) is not None


@pytest.mark.parametrize("generator", EVAL)
@pytest.mark.parametrize(
    "text",
    ["", "ABCDE", "0 1 2\n1 0 1", "_ _ Q _\nQ _ _ _", "[[0, 1], [1, -1]]", "['A', 'B']", "1\x002"],
)
def test_plain_answers_and_literals_may_be_judged(generator: str, text: str) -> None:
    assert refusal(generator, text, {}) is None


@pytest.mark.parametrize("generator", EVAL)
def test_nesting_that_breaks_the_parser_is_refused_or_harmless(generator: str) -> None:
    assert refusal(generator, "-" * 15_000 + "1", {}) is not None
    assert refusal(generator, "[" * 15_000, {}) is None  # no Python, so `eval` does nothing


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("6*4*1*1", "other numbers"),  # 24, but with numbers of one's own
        ("4*7 - 4", "other numbers"),
        ("7*4 - 3 - 3", "not exactly 24"),
        ("4 * 3 * 7 / 3", "not exactly 24"),
        ("7 * 3 + 4 - 3 / 0", "other numbers"),
        ("(3 / (3 - 3)) + 74", "other numbers"),
        ("73 / 3 - 4", "other numbers"),
        ("3 ** 3 + 4 - 7", "not exactly 24"),  # a power is no offered operator
        ("7 + 4 / (3 - 3)", "not exactly 24"),
    ],
)
def test_puzzle24_must_make_exactly_24_of_the_given_numbers(text: str, reason: str) -> None:
    refused = refusal("puzzle24", text, given(7, 3, 4, 3))
    assert refused is not None
    assert reason in refused


def test_puzzle24_accepts_an_exact_solution() -> None:
    assert refusal("puzzle24", "4 * (7 - 3 / 3)", given(7, 3, 3, 4)) is None
    assert refusal("puzzle24", "8 / (3 - 8 / 3)", given(3, 3, 8, 8)) is None


def test_other_generators_take_any_text() -> None:
    assert refusal("chain_sum", '__import__("os")', {}) is None


@pytest.mark.parametrize(
    ("generator", "right", "malformed"),
    [
        ("prime_factorization", ["2 × 3", "7", "2×2×3 "], ["2 x 3", "two", "[2]", "2 ×", "1.5"]),
        ("game_of_life", ["[[0, 1], [1, 0]]", "[]"], ["{}", "[{}]", "[1]", "0 1", "[" * 9999]),
        ("boxnet", ['[{"Agent[0.5, 0.5]": "move(a, b)"}]', "[]"], ["1", "[[]]", '[{"a": 1}]']),
    ],
)
def test_a_malformed_answer_is_a_wrong_answer_and_not_a_broken_verifier(
    generator: str, right: list[str], malformed: list[str]
) -> None:
    assert [refusal(generator, text, {}) for text in right] == [None] * len(right)
    assert None not in [refusal(generator, text, {}) for text in malformed]


def test_game_of_life_halting_wants_the_reference_and_not_just_any_text() -> None:
    assert refusal("game_of_life_halting", " true", {"answer": "True"}) is None
    assert refusal("game_of_life_halting", "False", {"answer": "True"}) is not None
    assert refusal("game_of_life_halting", "True or False", {"answer": "True"}) is not None


@pytest.mark.parametrize(
    ("generator", "right", "wrong"),
    [
        (
            "fraction_simplification",
            ["1/2", " $1/2$ ", "\\frac{1}{2}"],
            ["1/2 3/4", "1/2\n2/3", "1"],
        ),
        ("sokoban", ["UDLR", "uld "], ["U D", "UD\nLR", "up", ""]),
        ("rush_hour", ["A+1", "B-2 A+10\nC+1"], ["A+1 or B+1", "", "A+1,B+1", "A1"]),
        ("polynomial_equations", ["1.5", "-1.0, 2"], ["1.5\n2", "x", "1,", "nan"]),
        (
            "knights_knaves",
            ["Zoey is a fool, and Riley is a sage.", "Zoey is fool, Riley is sage"],
            ["Zoey is a fool if Riley is a sage", "(Zoey is a fool)", "", "fool " * 4000],
        ),
    ],
)
def test_a_scorer_that_overlooks_the_rest_sees_one_answer_only(
    generator: str, right: list[str], wrong: list[str]
) -> None:
    assert [refusal(generator, text, {}) for text in right] == [None] * len(right)
    assert None not in [refusal(generator, text, {}) for text in wrong]


@pytest.mark.parametrize("generator", ["letter_jumble", "spell_backward", "time_intervals"])
def test_where_scorers_forgive_too_much_the_answer_is_the_reference(generator: str) -> None:
    entry = {"answer": "0 days"}
    assert refusal(generator, " 0 Days\n", entry) is None
    for text in ("0", "0 days, 03:00", "0 days\n1 days", "", "-1 days"):
        assert refusal(generator, text, entry) is not None


def test_a_number_is_the_only_one_and_has_its_sign() -> None:
    entry = {"answer": "42"}
    assert all(refusal("gsm_symbolic", t, entry) is None for t in ("42", "It is 42.", "42.0"))
    wrong = ("42 or 43", "-42", "", "none", "4")
    assert all(refusal("gsm_symbolic", text, entry) is not None for text in wrong)


def test_a_probability_is_close_and_no_mere_beginning() -> None:
    entry = {"answer": "0.3872070312"}
    right = ("0.3872070312", "0.3872", "0.38721", "793/2048")
    assert all(refusal("coin_flip", text, entry) is None for text in right)
    wrong = ("0", "0.3", "0.387", "1/0", "1e999999999", "", "-0.3872", "9" * 50)
    assert all(refusal("coin_flip", text, entry) is not None for text in wrong)


def test_a_colouring_is_of_the_nodes_and_of_no_others() -> None:
    entry = {"metadata": {"possible_answer": {0: 1, 1: 2}}}
    assert refusal("graph_color", '{"0": 2, "1": 1}', entry) is None
    for text in ('{"0": 1, "1": 2, "2": 1}', '{"0": 1}', "[]", "", "{}"):
        assert refusal("graph_color", text, entry) is not None
