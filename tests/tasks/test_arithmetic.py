from __future__ import annotations

import operator
import re
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols import Domain, Pack
from headrace.types import Task, split_of
from headrace_arithmetic import TIERS, Arithmetic, pack

OPERATIONS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


def value_of(problem: str) -> float:
    """Left to right, which is right for the ladder: no tier mixes + and *."""
    first, *rest = re.findall(r"\d+|[-+*/]", problem)
    total = float(first)
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        total = OPERATIONS[sign](total, int(term))
    return total


@cache
def many_tasks(tier: int) -> tuple[Task, ...]:
    """All of a small tier, the first 3000 of a large one."""
    domain = Arithmetic()
    return tuple(domain.task(tier, index) for index in range(min(domain.size(tier), 3000)))


def test_the_pack_and_its_domain_are_what_they_claim() -> None:
    assert isinstance(pack, Pack)
    assert pack.names() == ["arithmetic"]
    domain = pack.open("arithmetic")
    assert isinstance(domain, Domain)
    assert (domain.name, domain.tiers) == ("arithmetic", 10)
    pack.close()


@pytest.mark.parametrize("tier", range(len(TIERS)))
def test_every_answer_is_the_value_of_the_problem_and_earns_full_marks(tier: int) -> None:
    verifier = Arithmetic().verifier
    for task in many_tasks(tier)[:1000]:
        assert task.answer == value_of(task.problem)
        assert verifier.judge(task, f"The answer is {task.answer}.").solved
        assert verifier.judge(task, "").score == 0.0
        assert not verifier.judge(task, f"It is {task.answer + 1}.").solved


@pytest.mark.parametrize("tier", range(len(TIERS)))
def test_the_prompt_names_the_operands_of_the_problem_and_no_other_number(tier: int) -> None:
    for task in many_tasks(tier):
        asked = sorted(re.findall(r"\d+", task.messages[0].text))
        assert asked == sorted(re.findall(r"\d+", task.problem))


def test_tier_zero_is_one_digit_addition_whole_and_each_candidate_once() -> None:
    tasks = many_tasks(0)
    assert len({task.id for task in tasks}) == len(tasks) == 1200
    assert {task.problem for task in tasks} == {f"{a}+{b}" for a in range(10) for b in range(a, 10)}
    heldout = [task for task in tasks if task.split == "heldout"]
    assert len(heldout) >= 200  # enough for an evaluation of 200 distinct items


def test_negative_results_come_on_the_tier_of_three_digits_only() -> None:
    negative = {tier for tier in range(10) for task in many_tasks(tier) if task.answer < 0}
    assert negative == {6}


def test_a_problem_has_one_key_in_both_orders_and_all_phrasings() -> None:
    phrasings: dict[str, set[str]] = {}
    for task in many_tasks(0):
        phrasings.setdefault(task.problem, set()).add(task.messages[0].text)
        assert task.split == split_of("arithmetic", task.problem)
    assert len(phrasings["3+4"]) == 24
    assert {"What is 3 + 4?", "What is 4 + 3?", "3+4=?", "Add 4 and 3."} <= phrasings["3+4"]
    assert len(phrasings["3+3"]) == 12


@given(st.integers(0, 9), st.integers(0, 2**63 - 1))
def test_a_candidate_is_a_pure_function_of_tier_and_index(tier: int, index: int) -> None:
    assert Arithmetic().task(tier, index) == Arithmetic().task(tier, index)
    period = Arithmetic().size(tier)
    assert Arithmetic().task(tier, index) == Arithmetic().task(tier, index % period)


def test_no_prompt_of_one_split_is_a_prompt_of_the_other() -> None:
    sides: dict[str, set[str]] = {}
    for tier in range(10):
        for task in many_tasks(tier):
            sides.setdefault(task.messages[0].text, set()).add(task.split)
    assert all(len(splits) == 1 for splits in sides.values())
