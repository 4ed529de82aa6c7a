"""The verifier of instructions: scores, gates, faults of tasks, and bugs that others shipped."""

from __future__ import annotations

import time
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.types import Json, Message, Task, Verdict
from headrace.verify.audit.corpus import Trick, shipped
from headrace.verify.audit.texts import BLANKS, CONSTANTS, FORMATS, LONG, confusables, echoes
from headrace.verify.instructions import KIND, RULES, Instructions, from_row
from headrace.verify.kinds import Specimens, find

VERIFIER = Instructions()
DOMAIN = cast("Specimens", KIND.specimens())
COUNT = len(DOMAIN.items)


def task(answer: Json, prompt: str = "Tell me about the weather, please.") -> Task:
    return Task(
        domain="t",
        problem=prompt,
        tier=0,
        split="train",
        messages=(Message.of("user", prompt),),
        verifier=VERIFIER.ref,
        answer=answer,
    )


def asks(*pairs: tuple[str, dict[str, Json]], **options: Json) -> Json:
    return {"instructions": [{"id": id_, "kwargs": kwargs} for id_, kwargs in pairs], **options}


def judged(answer: Json, text: str, prompt: str = "Tell me about the weather, please.") -> Verdict:
    return VERIFIER.judge(task(answer, prompt), text)


def values(verdict: Verdict) -> dict[str, float]:
    return {part.name: part.value for part in verdict.parts}


NO_COMMA: tuple[str, dict[str, Json]] = ("punctuation:no_comma", {})
TEA: tuple[str, dict[str, Json]] = ("keywords:existence", {"keywords": ["tea"]})


def test_the_kind_is_found_by_its_entry_point() -> None:
    assert find("instructions") is KIND


@pytest.mark.parametrize("index", range(COUNT))
def test_specimens_are_judged_right(index: int) -> None:
    one = DOMAIN.task(0, index)
    item = DOMAIN.items[index]
    for text in (item.reference, *item.right):
        verdict = VERIFIER.judge(one, text)
        assert verdict.solved, (text, verdict.evidence)
    for text in item.wrong:
        assert not VERIFIER.judge(one, text).solved, text
    assert VERIFIER.floor(one) == 0.0


@pytest.mark.parametrize("index", range(COUNT))
def test_what_is_no_answer_gets_nothing(index: int) -> None:
    one, item = DOMAIN.task(0, index), DOMAIN.items[index]
    texts = ("", *BLANKS, *CONSTANTS, *FORMATS, *echoes(item.prompt), *confusables(item.reference))
    paid = [text for text in texts if VERIFIER.judge(one, text).score != 0.0]
    assert not paid


@pytest.mark.parametrize("index", [0, 7])
def test_very_long_replies_get_nothing_and_cost_little(index: int) -> None:
    started = time.process_time()
    assert [VERIFIER.judge(DOMAIN.task(0, index), text).score for text in LONG] == [0.0] * len(LONG)
    assert time.process_time() - started < 5


@pytest.mark.parametrize("trick", shipped().against(["instruction"]), ids=lambda trick: trick.name)
def test_no_trick_pays(trick: Trick) -> None:
    for index in range(COUNT) if trick.surface == "instruction" else (0, 4, 9):
        one = DOMAIN.task(0, index)
        text = trick.text_for({"prompt": DOMAIN.items[index].prompt, **VERIFIER.hints(one)})
        if text is None:
            assert trick.surface == "text"
            continue
        verdict = VERIFIER.judge(one, text)
        assert verdict.score == 0.0, (one.problem, verdict.evidence)


def test_all_is_the_default_and_mean_is_the_share() -> None:
    pairs = (TEA, ("detectable_format:title", {}))
    assert judged(asks(*pairs), "We drink tea at five.").score == 0.0
    assert judged(asks(*pairs, score="mean"), "We drink tea at five.").score == 0.5
    assert judged(asks(*pairs), "<<Tea>>\nWe drink tea at five.").score == 1.0


def test_passive_instructions_earn_only_beside_one_that_asks_for_something() -> None:
    answer = asks(NO_COMMA, TEA, score="mean")
    assert judged(answer, "We drink coffee at five.").score == 0.0
    assert judged(answer, "We drink tea, at five.").score == 0.5
    assert VERIFIER.floor(task(answer)) == 0.0
    assert VERIFIER.floor(task(asks(NO_COMMA))) == 1.0


@pytest.mark.parametrize("text", ["", "   ", "Ok.", "<think>long thought here</think>", "?!"])
def test_an_empty_reply_does_not_follow_what_forbids(text: str) -> None:
    assert (
        judged(asks(NO_COMMA, ("keywords:forbidden_words", {"forbidden_words": ["x"]})), text).score
        == 0.0
    )


def test_the_least_number_of_words_is_an_option_and_brief_answers_need_one() -> None:
    assert judged(asks(NO_COMMA, min_words=1), "Rain.").score == 1.0
    assert judged(asks(NO_COMMA, min_words=6), "Rain comes and stays here.").score == 0.0
    assert judged(asks(("format:options", {"options": "yes/no/maybe"})), "Yes").score == 1.0


def test_repeated_ids_are_each_checked() -> None:
    """tinker-cookbook 893: repeated ids collapse into one."""
    answer = asks(
        ("keywords:frequency", {"keyword": "tea", "relation": "at least", "frequency": 1}),
        ("keywords:frequency", {"keyword": "milk", "relation": "at least", "frequency": 2}),
        score="mean",
    )
    verdict = judged(answer, "Tea without any milk.")
    assert verdict.score == 0.5
    assert values(verdict)["keywords:frequency"] == 1.0
    assert values(verdict)["keywords:frequency#2"] == 0.0


def test_the_official_shape_is_understood_with_its_nulls_and_floats() -> None:
    answer = {
        "instruction_id_list": ["count:word_count_range", "punctuation:no_comma"],
        "kwargs": [{"min_words": 3.0, "max_words": 4.0, "N": None}, {"num_highlights": None}],
    }
    assert judged(answer, "Rain comes and goes.").score == 1.0
    assert judged(answer, "Rain comes and goes again.").score == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        None,
        7,
        [],
        {},
        {"instructions": []},
        {"instructions": "punctuation:no_comma"},
        {"instructions": [{"id": "keywords:must_include", "kwargs": {}}]},
        {"instructions": [{"id": "punctuation:no_comma", "kwargs": {"N": 3}}]},
        {"instructions": [{"id": "punctuation:no_comma", "kwargs": []}]},
        {"instructions": [{"id": 3, "kwargs": {}}]},
        {"instructions": [{"id": "punctuation:no_comma", "args": {}}]},
        {"instructions": [{"id": "count:numbers", "kwargs": {}}]},
        {"instructions": [{"id": "count:numbers", "kwargs": {"N": "3"}}]},
        {"instructions": [{"id": "count:numbers", "kwargs": {"N": 2.5}}]},
        {"instructions": [{"id": "count:numbers", "kwargs": {"N": True}}]},
        {"instructions": [{"id": "keywords:letter_frequency", "kwargs": {"letter": "ab"}}]},
        {"instruction_id_list": ["punctuation:no_comma"], "kwargs": []},
        {"instruction_id_list": ["punctuation:no_comma"]},
        asks(NO_COMMA, mode="lenient"),
        asks(NO_COMMA, score="most"),
        asks(NO_COMMA, min_words=0),
        asks(NO_COMMA, min_words="3"),
        asks(NO_COMMA, echo=True),
        asks(NO_COMMA, extra=1),
        asks(("language:response_language", {"language": "xx"})),
        asks(("count:word_count_range", {"min_words": 9, "max_words": 3})),
        asks(("repeat:repeat_span", {"prompt_to_repeat": "a b", "n_start": 0, "n_end": 2})),
    ],
)
def test_a_task_that_cannot_be_understood_is_the_tasks_fault_and_never_true(answer: Json) -> None:
    """tinker-cookbook 893, deepeval 3063: unknown ids passed; olmo-eval 296: random arguments."""
    verdict = judged(answer, "Rain comes and goes, here and there.")
    assert (verdict.score, verdict.fault) == (None, "task")
    assert VERIFIER.floor(task(answer)) == 0.0
    assert VERIFIER.hints(task(answer)) == {}


def test_loose_mode_forgives_an_introduction_and_asterisks() -> None:
    pairs = (("change_case:english_lowercase", {}), TEA)
    text = "Sure! Here it is:\nwe drink *tea* at five."
    assert judged(asks(*pairs), text).score == 0.0
    assert judged(asks(*pairs, mode="loose"), text).score == 1.0


def test_loose_mode_forgives_no_empty_reply() -> None:
    assert judged(asks(NO_COMMA, mode="loose"), "Rain, and again rain.").score == 0.0


PIECES = st.sampled_from(
    [
        *("Sure, here:\n", "\n", "**Rain**", "* one\n", "tea ", "The river runs. ", "Is it? "),
        *("Yes! ", ", ", "<<T>>", "[name] ", "\n\n", "P.S. x", '"', "a ", "LOUD ", "3 "),
        *("******", "Goodbye."),
    ]
)


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(
    id_=st.sampled_from(sorted(RULES)),
    pieces=st.lists(PIECES, min_size=1, max_size=14),
    follow=st.booleans(),
)
def test_what_is_followed_strictly_is_followed_loosely(
    id_: str, pieces: list[str], follow: bool
) -> None:
    """olmo-eval 296: loose below strict."""
    example = RULES[id_].example
    text = example.reply if follow else "".join(pieces)
    pairs = ((id_, dict(example.kwargs)), TEA)
    for score in ("all", "mean"):
        strict = judged(asks(*pairs, score=score, mode="strict"), text)
        loose = judged(asks(*pairs, score=score, mode="loose"), text)
        assert strict.score is not None
        assert loose.score is not None
        assert strict.score <= loose.score
        assert values(strict)[id_] <= values(loose)[id_]


def test_a_thinking_block_is_no_reply() -> None:
    """lm-evaluation-harness 3161: the thinking block was scored."""
    assert judged(asks(TEA), "<think>tea</think>We drink coffee at five.").score == 0.0
    assert judged(asks(NO_COMMA), "<think>first, second</think>We drink tea at five.").score == 1.0


def test_substrings_are_no_keywords() -> None:
    """evalscope 1755: art counted in start, Mia in Miami."""
    answer = asks(
        ("keywords:frequency", {"keyword": "art", "relation": "at least", "frequency": 1})
    )
    assert judged(answer, "A smart start, far apart.").score == 0.0
    names = asks(("count:person_names", {"N": 1}))
    assert judged(names, "Miami is available to Leonardo.").score == 0.0
    assert judged(names, "We met Mia in Miami.").score == 1.0


def test_a_keyword_is_a_text_and_no_pattern() -> None:
    answer = asks(("keywords:existence", {"keywords": ["c++", "a.b"]}))
    assert judged(answer, "We write C++ and a.b here.").score == 1.0
    assert judged(answer, "We write ccc and axb here.").score == 0.0


def test_english_capitals_are_all_capitals() -> None:
    """tinker-cookbook 898: title case was accepted."""
    answer = asks(("change_case:english_capital", {}))
    assert judged(answer, "The Weather Is Fine Today.").score == 0.0
    assert judged(answer, "THE WEATHER IS FINE TODAY.").score == 1.0


def test_a_letter_that_is_a_sign_is_counted_and_not_drawn_by_lot() -> None:
    """google-research 3427: a random letter took the place of "#"."""
    answer = asks(
        (
            "keywords:letter_frequency",
            {"letter": "#", "let_relation": "at least", "let_frequency": 2},
        )
    )
    assert {judged(answer, "We tag #rain and #sun here.").score for _ in range(5)} == {1.0}
    assert judged(answer, "We tag #rain and sun here.").score == 0.0


def test_a_request_to_be_repeated_is_no_answer_by_itself() -> None:
    """tinker-cookbook 897: repeat_prompt always passed."""
    request = "Name a river in Egypt."
    prompt = f"{request} First repeat the request word for word without change, then answer it."
    answer = asks(("combination:repeat_prompt", {"prompt_to_repeat": request}))
    assert judged(answer, f"{request} The Nile flows there.", prompt).score == 1.0
    assert judged(answer, "The Nile flows there.", prompt).score == 0.0
    assert judged(answer, request, prompt).score == 0.0
    assert judged(answer, prompt, prompt).score == 0.0


def test_a_text_to_be_edited_may_come_back() -> None:
    prompt = "Remove the commas: The rain, the wind, the sea and all the ships that sail on it."
    reply = "The rain the wind the sea and all the ships that sail on it."
    assert judged(asks(NO_COMMA), reply, prompt).score == 0.0
    assert judged(asks(NO_COMMA, echo="allow"), reply, prompt).score == 1.0


def test_the_same_text_always_gets_the_same_verdict() -> None:
    """lm-evaluation-harness 4213: language checks differed from run to run."""
    answer = asks(("language:response_language", {"language": "en"}))
    assert len({judged(answer, "Hello world again, friends").evidence for _ in range(20)}) == 1


def test_evidence_says_what_was_asked_and_found() -> None:
    verdict = judged(asks(("count:numbers", {"N": 2})), "There are 7 days.")
    assert "Use exactly 2 numbers" in verdict.evidence
    assert '["7"]' in verdict.evidence
    assert "fewer than 3" in judged(asks(NO_COMMA), "Ok.").evidence


def test_hidden_text_is_reported() -> None:
    assert values(judged(asks(TEA), "We drink it.<!-- tea -->"))["hack"] == 1.0
    assert values(judged(asks(TEA), "We drink tea."))["hack"] == 0.0


# --- rows of data sets ---------------------------------------------------------------------


def row(prompt: str, *pairs: tuple[str, dict[str, Json]]) -> dict[str, Json]:
    ids, kwargs = [id_ for id_, _ in pairs], [kwargs for _, kwargs in pairs]
    return {"key": 1, "prompt": prompt, "instruction_id_list": ids, "kwargs": kwargs}


def test_a_row_becomes_an_answer_that_judges() -> None:
    got = from_row(
        row(
            "Write about tea. Use no commas.",
            NO_COMMA,
            ("keywords:existence", {"keywords": ["tea"], "N": None}),
        )
    )
    assert got.doubts == ()
    assert judged(got.answer, "We drink tea at five.", got.prompt).score == 1.0
    assert got.answer["instructions"][1] == {
        "id": "keywords:existence",
        "kwargs": {"keywords": ["tea"]},
    }


def test_a_row_that_contradicts_its_prompt_is_doubted() -> None:
    """google-research 3361: 336 words judged where the prompt says 400; a quotation asked twice."""
    words: tuple[str, dict[str, Json]] = (
        "length_constraints:number_words",
        {"relation": "at least", "num_words": 336},
    )
    assert len(from_row(row("Write at least 400 words about tea.", words)).doubts) == 1
    assert from_row(row("Write at least 336 words about tea.", words)).doubts == ()
    quote: tuple[str, dict[str, Json]] = ("startend:quotation", {})
    assert len(from_row(row("Wrap it in quotation marks.", quote, quote)).doubts) == 1
    assert len(from_row(row("Write about coffee.", TEA)).doubts) == 1


def test_a_row_that_asks_to_edit_may_be_echoed() -> None:
    assert from_row(row("Rewrite without commas: a, b, c.", NO_COMMA)).answer["echo"] == "allow"
    assert "echo" not in from_row(row("Write about tea without commas.", NO_COMMA)).answer


@pytest.mark.parametrize(
    "broken",
    [
        {"key": 3, "prompt": "x", "instruction_id_list": ["nope:nope"], "kwargs": [{}]},
        {"key": 3, "prompt": "", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
        {"key": 3, "prompt": "x", "instruction_id_list": ["punctuation:no_comma"]},
        {
            "key": 894000,
            "prompt": "The None-th paragraph must start with schedule.",
            "instruction_id_list": ["length_constraints:nth_paragraph_first_word"],
            "kwargs": [{"keyword": "schedule", "num_paragraphs": 3}],
        },
    ],
)
def test_a_row_that_cannot_be_judged_is_refused_with_its_key(broken: dict[str, Json]) -> None:
    with pytest.raises(UsageError, match=f"key {broken['key']}"):
        from_row(broken)
