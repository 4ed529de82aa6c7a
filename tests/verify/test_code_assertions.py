from __future__ import annotations

from typing import Any

import pytest

from headrace.verify.code.assertions import Assertion, NotCases, convert
from headrace.verify.code.values import Rule, encode


def check(*lines: str) -> str:
    return "def check(candidate):\n" + "".join(f"    {line}\n" for line in lines)


def cases(*lines: str) -> list[tuple[Any, Any]]:
    return [(case.args, case.expected) for case in convert(check(*lines)).cases]


def test_assertions_become_arguments_and_values() -> None:
    assert cases(
        "assert candidate(1, 'a') == [2, 'b'], 'message'",
        "assert candidate((1, 2)) == {1: None}",
        "assert candidate(-2.5)==-3",
        "assert True, 'skipped'",
        "pass",
        "'a comment'",
        "assert candidate() is None",
    ) == [
        ((1, "a"), [2, "b"]),
        (({"$tuple": [1, 2]},), {"$dict": [[1, None]]}),
        ((-2.5,), -3),
        ((), None),
    ]


def test_arithmetic_on_constants_is_done_here() -> None:
    assert cases(
        "assert candidate(3 * 19 * 3) == 'a' * 3 + 'b'",
        "assert candidate([1, 0 ** 0]) == 6.0 / 5.0",
        "lst = list(range(-3, 4, 2))",
        "assert candidate(lst) == 7 // 2",
    ) == [((171,), "aaab"), (([1, 1],), 1.2), (([-3, -1, 1, 3],), 3)]


def test_loops_over_ranges_are_unrolled() -> None:
    assert cases("for x in range(2, 4):", "    assert candidate(x, x + 1) == str(x)") == [
        ((2, 3), "2"),
        ((3, 4), "3"),
    ]


def test_bare_calls_are_true_or_false() -> None:
    assert cases("assert candidate('<>')", "assert not candidate('>')") == [
        (("<>",), True),
        ((">",), False),
    ]


def test_the_rule_is_that_of_the_most_lenient_assertion() -> None:
    plain, near = "assert candidate(1) == 0.5", "assert abs(candidate(2) - 1 / 3) < 1e-6"
    assert convert(check(plain)).rule == Rule()
    assert convert(check(plain, near)).rule == Rule(tolerance=1e-6)
    assert convert(check("assert candidate(1) is True")).rule == Rule(types="exact")
    tuples = "assert tuple(candidate([2, 1])) == tuple([1, 2])"
    assert convert(check(tuples)).rule == Rule(types="loose")
    assert cases(tuples) == [(([2, 1],), [1, 2])]


def test_a_value_that_is_computed_otherwise_is_asked_of_a_reference() -> None:
    lines = ("total = sum([i for i in range(3)])", "assert candidate(3) == total")
    assert convert(check(*lines)).cases == (Assertion(args=(3,), known=False),)
    lines = ("assert tuple(candidate([1])) == tuple(solve([1]))",)
    assert convert(check(*lines)).cases == (Assertion(args=([1],), known=False),)


@pytest.mark.parametrize(
    "lines",
    [
        ("import random", "assert candidate(1) == 2"),
        ("assert candidate(random()) == 2",),
        ("assert candidate(x=1) == 2",),
        ("assert candidate(1) != 2",),
        ("assert candidate(1) < 2",),
        ("assert 1 < candidate(1) < 2",),
        ("assert other(1) == 2",),
        ("assert candidate(1) == 2 and candidate(2) == 3",),
        ("assert False",),
        ("while True:", "    pass"),
        ("for x in data:", "    assert candidate(x) == 1"),
        ("for x in range(10**9):", "    assert candidate(x) == 1"),
        ("assert candidate(9 ** 9 ** 9) == 1",),
        ("assert candidate('a' * 10 ** 9) == 1",),
        ("assert candidate(1 / 0) == 1",),
        ("assert candidate({[]: 1}) == 1",),
        ("assert candidate({**{1: 2}}) == 1",),
        ("assert candidate(__import__('os')) == 1",),
        ("assert candidate(...) == 1",),
        ("assert abs(candidate(1)) < 1",),
        ("assert candidate(1) is True", "assert tuple(candidate(1)) == tuple([1])"),
        ("pass",),
    ],
)
def test_a_test_that_is_more_than_a_list_of_cases_is_refused(lines: tuple[str, ...]) -> None:
    with pytest.raises(NotCases):
        convert(check(*lines))


@pytest.mark.parametrize("source", ["", "def check(:", "def check():\n    pass\n", "x" * 10 + "("])
def test_a_source_without_a_check_is_refused(source: str) -> None:
    with pytest.raises(NotCases):
        convert(source)


def test_arguments_are_spelled_as_values() -> None:
    assert convert(check("assert candidate({1, 2}) == 3")).cases[0].args == (encode({1, 2}),)
