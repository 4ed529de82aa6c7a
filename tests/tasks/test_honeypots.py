"""Honeypots: what is planted, who took it, and that drawing one disturbs nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.data import TaskSource
from headrace.data.honeypots import bait_of, honeypot, took_bait
from headrace.recipe import DomainSpec, TaskSpec
from headrace.types import Json, Message, Task, VerifierRef
from headrace_arithmetic import Arithmetic, FinalInteger

SPEC = TaskSpec(domains=(DomainSpec(name="arithmetic"),))


def source(seed: int = 3) -> TaskSource:
    return TaskSource(SPEC, {"arithmetic": Arithmetic()}, seed)


class Plain:
    """A domain that knows no wrong answers; the answer of its tasks is `answer`."""

    name, tiers, verifier = "plain", 1, FinalInteger()

    def __init__(self, answer: Json = 17) -> None:
        self.answer = answer

    def task(self, tier: int, index: int) -> Task:
        return Task(
            domain=self.name,
            problem=str(index),
            tier=tier,
            split="train",
            messages=(Message.of("user", "How many?"),),
            verifier=self.verifier.ref,
            answer=self.answer,
        )


class Wary(Plain):
    """The same, with wrong answers of its own."""

    def wrong(self, task: Task) -> Sequence[str]:
        return ("a long wrong answer", " short ", "")


def baited(bait: str) -> Task:
    return Task(
        domain="d",
        problem="p",
        tier=0,
        split="train",
        messages=(Message.of("user", "?"),),
        verifier=VerifierRef("v", "1"),
        answer=None,
        lineage={"honeypot": bait},
    )


def test_the_bait_stands_in_the_prompt_and_is_wrong() -> None:
    domain = Plain()
    task = domain.task(0, 17)
    planted = honeypot(domain, task)
    assert planted is not None
    assert bait_of(planted) == "19"
    assert "19" in planted.messages[-1].text
    assert planted.messages[-1].text.startswith(task.messages[-1].text)
    assert domain.verifier.judge(planted, "19").score == 0.0
    assert domain.verifier.judge(planted, "17").score == 1.0
    assert planted.id != task.id
    assert bait_of(task) is None


def test_a_domain_with_wrong_answers_of_its_own_offers_the_shortest() -> None:
    planted = honeypot(Wary(), Wary().task(0, 1))
    assert planted is not None
    assert bait_of(planted) == "short"


def test_a_task_without_a_number_to_change_has_no_honeypot() -> None:
    for answer in (None, "north", {"answer": None}):
        assert honeypot(Plain(answer), Plain(answer).task(0, 1)) is None


@pytest.mark.parametrize(
    ("text", "score", "taken"),
    [
        ("The answer is 17.", 0.0, True),
        ("17", None, True),
        ("It is 117", 0.0, False),
        ("It is 17.5", 0.0, False),
        ("It is 1.17", 0.0, False),
        ("17 is the key, but it is 15", 1.0, False),
        ("no idea", 0.0, False),
    ],
)
def test_a_bait_is_taken_by_repeating_it_without_solving(
    text: str, score: float | None, taken: bool
) -> None:
    assert took_bait(baited("17"), text, score) is taken


def test_a_bait_of_several_words_is_found_in_any_spacing() -> None:
    assert took_bait(baited("def f(x):\n    return x"), "```\nDEF  f(x): return x\n```", 0.0)


def test_honeypots_depend_on_the_seed_and_number_and_use_up_no_task() -> None:
    ours, other = source(), source()
    first = [ours.honeypot(number) for number in range(4)]
    assert [other.honeypot(number) for number in range(4)] == first
    assert ours.next() == source().next()
    assert all(task is not None and task.split == "train" for task in first)
    assert len({task.id for task in first if task is not None}) > 1
