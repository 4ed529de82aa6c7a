"""The pack `chat`: questions without end, splits that hold, forms and instructions judged right."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random

import pytest

from answers_support import attempt, part, tricks
from headrace.data import TaskSource
from headrace.protocols import Domain, Pack, Tempting
from headrace.recipe import DomainSpec, TaskSpec
from headrace.types import Json, Message, Task, VerifierRef, canonical_json
from headrace.verify.instructions import RULES, Instructions
from headrace.verify.instructions.prose import words_of
from headrace.verify.kinds import Referenced
from headrace_chat import INSTRUCTED, OPEN, Chat, ChatForm, Form, pack
from headrace_chat.demands import FORBIDDEN, KEYWORDS, KINDS, PAIRS, Demand, DemandKind, draft
from headrace_chat.form import WEIGHTS
from headrace_chat.questions import SHAPES, Shape, wordings
from headrace_chat.replies import FURTHER, reply
from headrace_chat.topics import TOPICS

PAGE = (Path(__file__).parents[2] / "docs" / "domains.md").read_text("utf-8")
EVERY_TIER = [(domain, tier) for domain in (OPEN, INSTRUCTED) for tier in range(domain.tiers)]
RAIN = Form(topic=("rain", "rains"), least=4, most=30)
ASKED = "Hello! Why do people find rain interesting? Write a few sentences."


def asks(form: Form, prompt: str = ASKED) -> Task:
    return Task(
        domain="test",
        problem=prompt,
        tier=0,
        split="train",
        messages=(Message.of("user", prompt),),
        verifier=ChatForm.ref,
        answer=form.answer,
    )


def failed(text: str, form: Form = RAIN, prompt: str = ASKED) -> set[str]:
    """The parts that a reply lacks."""
    judged = ChatForm().judge(asks(form, prompt), text)
    return {one.name for one in judged.parts if one.name != "hack" and not one.value}


def prompts(shape: Shape) -> Iterator[str]:
    for topic in TOPICS:
        for every in wordings(shape, topic.kind).values():
            for wording in every:
                yield wording.format(one=topic.one, many=topic.many)


def test_the_pack_offers_two_domains() -> None:
    assert isinstance(pack, Pack)
    assert pack.names() == ["chat/open", "chat/instructed"]
    for name, tiers in (("chat/open", 3), ("chat/instructed", 2)):
        domain = pack.open(name)
        assert isinstance(domain, Domain)
        assert isinstance(domain, Referenced)
        assert isinstance(domain, Tempting)
        assert (domain.name, domain.tiers) == (name, tiers)
    with pytest.raises(KeyError):
        pack.open("chat/other")


def test_there_are_more_than_five_thousand_prompts_and_every_topic_has_its_own_words() -> None:
    assert len({prompt for shape in SHAPES for prompt in prompts(shape)}) > 5000
    owners = {word: topic.one for topic in TOPICS for word in topic.words}
    assert len(owners) == sum(len(set(topic.words)) for topic in TOPICS)
    for topic in TOPICS:
        assert topic.key in topic.words
        assert set(topic.words) & set(words_of(topic.many.lower()))


@pytest.mark.parametrize(("domain", "tier"), EVERY_TIER)
def test_a_tier_asks_many_things(domain: Chat, tier: int) -> None:
    made = [domain.task(tier, index) for index in range(300)]
    assert len({task.messages[0].text for task in made}) > 250
    assert len({task.problem for task in made}) > 180
    assert domain.task(tier, 2**63 - 1).id


def test_a_question_is_held_out_in_every_wording_shape_and_domain() -> None:
    sides: dict[str, set[str]] = {}
    asked: dict[str, set[str]] = {OPEN.name: set(), INSTRUCTED.name: set()}
    for (domain, tier), index in product(EVERY_TIER, range(300)):
        task = domain.task(tier, index)
        sides.setdefault(task.problem, set()).add(task.split)
        asked[domain.name].add(task.problem)
    assert len(asked[OPEN.name] & asked[INSTRUCTED.name]) > 100
    assert all(len(splits) == 1 for splits in sides.values())
    heldout = sum(splits == {"heldout"} for splits in sides.values())
    assert 0.15 < heldout / len(sides) < 0.25


def test_no_held_out_prompt_is_ever_trained_on() -> None:
    spec = TaskSpec(domains=(DomainSpec(name=OPEN.name), DomainSpec(name=INSTRUCTED.name)))
    domains: dict[str, Domain] = {OPEN.name: OPEN, INSTRUCTED.name: INSTRUCTED}
    source = TaskSource(spec, domains, seed=3)
    heldout = {task.problem for task in source.heldout(100)}
    trained = {source.next().problem for _ in range(300)}
    assert heldout
    assert heldout.isdisjoint(trained)


_DIGEST = """
import hashlib
from headrace.types import canonical_json
from headrace_chat import INSTRUCTED, OPEN
print(hashlib.sha256(canonical_json([
    [task.id, task.problem, task.split, domain.reference(task), list(domain.wrong(task))]
    for domain in (OPEN, INSTRUCTED) for tier in range(domain.tiers) for index in range(25)
    for task in [domain.task(tier, index)]
]).encode()).hexdigest())
"""


def test_another_process_with_another_hash_seed_makes_the_same_tasks() -> None:
    told: Json = [
        [task.id, task.problem, task.split, domain.reference(task), list(domain.wrong(task))]
        for (domain, tier), index in product(EVERY_TIER, range(25))
        for task in [domain.task(tier, index)]
    ]
    seed = "7" if os.environ.get("PYTHONHASHSEED") != "7" else "8"
    run = subprocess.run(
        [sys.executable, "-c", _DIGEST],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == hashlib.sha256(canonical_json(told).encode()).hexdigest()


@pytest.mark.parametrize(("domain", "tier"), EVERY_TIER)
def test_references_get_full_marks_and_nothing_careless_does(domain: Chat, tier: int) -> None:
    for index in range(30):
        task = domain.task(tier, index)
        judged = domain.verifier.judge(task, domain.reference(task))
        assert judged.solved, judged.evidence
        empty, echo, loop, elsewhere, *slips = domain.wrong(task)
        for text in (empty, echo, elsewhere, task.messages[0].text):
            judged = domain.verifier.judge(task, text)
            assert judged.score == 0, f"{text!r}: {judged.evidence}"
        assert len(slips) == (tier + 1 if domain is INSTRUCTED else 0)
        for text in (loop, *slips):
            judged = domain.verifier.judge(task, text)
            assert judged.score is not None
            assert not judged.solved, f"{text!r}: {judged.evidence}"


@pytest.mark.parametrize(("domain", "tier"), EVERY_TIER)
def test_no_trick_and_no_list_of_other_answers_pays(domain: Chat, tier: int) -> None:
    made = [domain.task(tier, index) for index in range(6)]
    verifier = ChatForm() if domain is OPEN else Instructions()
    surfaces = ("text",) if domain is OPEN else ("text", "instruction")
    for task in made:
        seen = task if domain is OPEN else replace(task, answer=task.answer["order"])
        for surface in surfaces:
            for name in tricks(surface):
                said = attempt(surface, name, seen, verifier)
                assert domain.verifier.judge(task, said).score == 0, name
        others = [other for other in made if topic_of(other) != topic_of(task)]
        listed = "\n".join(domain.reference(other) for other in others)
        assert domain.verifier.judge(task, listed).score == 0


def topic_of(task: Task) -> str:
    return task.problem.partition(":")[2]


def test_references_speak_of_no_other_topic() -> None:
    fixed = {word for said in FURTHER for word in words_of(said.lower())}
    words = {word: topic.one for topic in TOPICS for word in topic.words}
    assert fixed.isdisjoint(words)
    said = {topic: [reply(shape, topic) for shape in SHAPES] for topic in TOPICS}
    for topic, kind in zip(TOPICS, KINDS, strict=False):
        demand = kind.make(Random(kind.name), topic)
        said[topic] += [draft(topic, [demand]).text, draft(topic, [], [demand]).text]
    for topic, texts in said.items():
        for word in words_of(" ".join(texts).lower()):
            assert words.get(word, topic.one) == topic.one, word


# --- the form of a reply -------------------------------------------------------------------

GOOD = "People like rain because it smells good and makes the garden green."


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        (GOOD, set[str]()),
        ('"' + GOOD + '"', set()),
        ("**Rain** is what clouds make.", set()),
        ("3 drops of rain fall here.", set()),
        ("It is rain's smell that we like.", set()),
        ("It is a rain-soaked kind of day.", set()),
        ("RAIN IS WHAT CLOUDS MAKE.", set()),
        ("Well, why do people find rain interesting? Because rain makes things grow.", set()),
        ("<think>What is it?</think>" + GOOD, set()),
        ("", {"own", "topic", "start", "length"}),
        ("The way.", {"own", "topic", "length"}),
        ("I'm ready to help, buddy! I'll take care of that.", {"topic"}),
        ("A train is a useful thing, and so is terrain.", {"topic"}),
        ("<think>Rain, I think, is water", {"own", "topic", "start", "length"}),
        ("Rain fell.", {"own", "length"}),
        (". " + GOOD, {"start"}),
        ("<answer>" + GOOD + "</answer>", {"start"}),
        (GOOD + " \ufffd", {"plain"}),
        (GOOD + " " + "x" * 41, {"plain"}),
        ("Rain is what clouds make ={=}=(/)=%/&$§=}[;]{=}==(§$%=)=}{[]=}=.", {"plain"}),
        (" ".join(["Rain makes the whole garden green again."] * 3), {"loops"}),
        ("Rain is good.\nIt is wet.\nIt is wet.", {"loops"}),
        ("Rain " + "and ".join(f"word{number} " for number in range(30)), {"length"}),
        (GOOD.replace("rain", "r\u0430in"), {"own", "topic"}),
        (GOOD.replace("rain", "r\u200bain"), {"own"}),
    ],
)
def test_what_a_form_lacks(text: str, lacks: set[str]) -> None:
    assert failed(text) == lacks


@pytest.mark.parametrize(
    "text",
    [
        ASKED,
        f"You ask: {ASKED}\nI will answer that at once.",
        "Why do people find rain interesting",
        "Hello! Why do people find rain inte",
        f"{ASKED} {ASKED}",
        "Let me answer this. Why do people find rain interesting? Let me answer this for you.",
    ],
)
def test_the_request_given_back_is_worth_nothing(text: str) -> None:
    assert ChatForm().judge(asks(RAIN), text).score == 0


def test_a_request_broken_off_inside_a_word_is_worth_nothing() -> None:
    asked = "Hello! Describe rain in one sentence."
    assert failed(asked[:22], RAIN, asked) == {"own"}


def test_lists_are_asked_for_by_their_items() -> None:
    form = replace(RAIN, items=2)
    for text in ("Rain has\n- smell\n- sound", "1. Rain is wet.\n2. It is cold."):
        assert failed(text, form) == set()
    for text in (GOOD, "- Rain is wet and cold.", "Rain is wet.\n-\n-\nIt is so."):
        assert "list" in failed(text, form)


def test_a_score_is_the_mean_of_its_parts_by_their_weights() -> None:
    judged = ChatForm().judge(asks(RAIN), ". " + GOOD)
    whole = sum(weight for name, weight in WEIGHTS.items() if name != "list")
    assert judged.score == pytest.approx(1 - WEIGHTS["start"] / whole)
    assert part(judged, "start") == 0.0
    assert "begins with '.'" in judged.evidence
    assert part(ChatForm().judge(asks(RAIN), GOOD.replace("rain", "r\u200bain")), "hack") == 1.0
    assert ChatForm().judge(asks(RAIN), GOOD + " and rain" * 5000).score == 0


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "rain",
        {},
        {**RAIN.answer, "more": 1},
        {**RAIN.answer, "topic": []},
        {**RAIN.answer, "topic": "rain"},
        {**RAIN.answer, "least": -1},
        {**RAIN.answer, "most": "9"},
    ],
)
def test_a_task_that_is_no_form_is_the_tasks_fault(answer: Json) -> None:
    judged = ChatForm().judge(replace(asks(RAIN), answer=answer), GOOD)
    assert (judged.score, judged.fault) == (None, "task")


# --- instructions --------------------------------------------------------------------------


def follows(demand: Demand, text: str) -> bool:
    task = replace(
        asks(RAIN, "Say something."),
        answer={"instructions": [demand.answer]},
        verifier=VerifierRef("instructions", "1"),
    )
    judged = Instructions().judge(task, text)
    assert judged.score is not None, judged.evidence
    return judged.solved


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_draft_follows_a_demand_or_surely_does_not(kind: DemandKind) -> None:
    for index in range(12):
        rng = Random(f"{kind.name}/{index}")
        topic = rng.choice(TOPICS)
        demand = kind.make(rng, topic)
        assert demand.id in RULES
        assert follows(demand, draft(topic, [demand]).text)
        assert not follows(demand, draft(topic, [], [demand]).text)


def test_every_pair_can_be_followed_and_each_half_broken_alone() -> None:
    for one, other in PAIRS:
        rng = Random(f"{one.name}/{other.name}")
        topic = rng.choice(TOPICS)
        pair = (one.make(rng, topic), other.make(rng, topic))
        both = draft(topic, pair).text
        assert all(follows(demand, both) for demand in pair), (pair, both)
        for kept, slipped in (pair, pair[::-1]):
            text = draft(topic, [kept], [slipped]).text
            assert follows(kept, text), (kept, text)
            assert not follows(slipped, text), (slipped, text)


def test_demanded_and_forbidden_words_are_in_no_plain_reply() -> None:
    assert set(KEYWORDS).isdisjoint(FORBIDDEN)
    plain = draft(TOPICS[0], []).text + " ".join(FURTHER)
    assert {*KEYWORDS, *FORBIDDEN}.isdisjoint(words_of(plain.lower()))


def test_an_instruction_followed_about_something_else_is_worth_nothing() -> None:
    for index in range(20):
        task = INSTRUCTED.task(0, index)
        text = "a reply that is well made in lower case but speaks of nothing that was asked"
        judged = INSTRUCTED.verifier.judge(task, text)
        assert judged.score == 0
        assert part(judged, "gate.topic") == 0.0


def test_the_page_says_what_the_pack_is_and_is_not() -> None:
    assert "`chat/open`" in PAGE
    assert "`chat/instructed`" in PAGE
    assert "never judges whether a reply is true" in " ".join(PAGE.split())
    assert f"{len(TOPICS)} topics" in PAGE
    assert f"{len(KINDS)} kinds" in PAGE
