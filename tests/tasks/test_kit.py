"""The kit for authors: pure tasks, carried answers, scores within their range."""

from __future__ import annotations

from random import Random

import pytest

from headrace.kit import Asked, Domains, Question, Rule
from headrace.protocols import Domain, Pack, Verifier


def ask(tier: int, rng: Random) -> Question:
    number = rng.randrange(10 ** (tier + 1))
    return Question(
        prompt=rng.choice(("Say {}.", "{}, please")).format(number),
        answer=number,
        reference=str(number),
        wrong=(str(number + 1),),
        problem=str(number),
    )


def share(answer: int, text: str) -> float:
    return 1.0 if text == str(answer) else 0.5 if text.isdecimal() else 0.0


NUMBERS = Asked("numbers", tiers=3, ask=ask, verifier=Rule("numbers", "1", share))


def test_what_the_kit_makes_are_the_parts_that_a_run_asks_for() -> None:
    pack = Domains(NUMBERS)
    assert isinstance(pack, Pack)
    assert pack.names() == ["numbers"]
    domain = pack.open("numbers")
    assert isinstance(domain, Domain)
    assert isinstance(domain.verifier, Verifier)


def test_a_task_is_a_function_of_tier_and_index() -> None:
    assert NUMBERS.task(1, 7) == NUMBERS.task(1, 7)
    assert len({NUMBERS.task(2, index).id for index in range(50)}) > 40
    for index in range(20):
        task = NUMBERS.task(1, index)
        assert NUMBERS.reference(task) == str(task.answer) == task.problem
        assert NUMBERS.wrong(task) == (str(task.answer + 1),)


def test_phrasings_of_a_problem_share_their_split() -> None:
    tasks = [NUMBERS.task(0, index) for index in range(400)]
    assert len({task.messages[0].text for task in tasks}) == 20
    assert len({(task.problem, task.split) for task in tasks}) == 10


def test_a_rule_gives_its_number_with_what_was_expected_and_said() -> None:
    task = NUMBERS.task(0, 1)
    verdict = NUMBERS.verifier.judge(task, "77")
    assert verdict.score == 0.5
    assert '"said": "77"' in verdict.evidence
    assert f'"expected": {task.answer}' in verdict.evidence


@pytest.mark.parametrize("value", [2.0, -1.0, float("nan")])
def test_a_judge_that_gives_no_share_is_an_error(value: float) -> None:
    rule = Rule("bad", "1", lambda answer, text: value)
    with pytest.raises(ValueError, match="judge of bad"):
        rule.judge(NUMBERS.task(0, 0), "x")
