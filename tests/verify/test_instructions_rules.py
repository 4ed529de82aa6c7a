"""Every instruction by example: one reply that follows it, two or more that do not."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.verify.instructions import RULES, arguments, describe, schema
from headrace.verify.instructions.disguise import seen
from headrace.verify.instructions.prose import Reply
from instructions_support import VIOLATING

IFEVAL = (
    "keywords:existence keywords:frequency keywords:forbidden_words"
    " keywords:letter_frequency language:response_language"
    " length_constraints:number_sentences length_constraints:number_paragraphs"
    " length_constraints:number_words length_constraints:nth_paragraph_first_word"
    " detectable_content:number_placeholders detectable_content:postscript"
    " detectable_format:number_bullet_lists detectable_format:constrained_response"
    " detectable_format:number_highlighted_sections detectable_format:multiple_sections"
    " detectable_format:json_format detectable_format:title combination:two_responses"
    " combination:repeat_prompt startend:end_checker startend:quotation"
    " change_case:capital_word_frequency change_case:english_capital"
    " change_case:english_lowercase punctuation:no_comma"
)
IFBENCH = (
    "count:word_count_range count:unique_word_count ratio:stop_words ratio:sentence_type"
    " ratio:sentence_balance count:conjunctions count:person_names ratio:overlap"
    " count:numbers words:alphabet words:vowel words:consonants"
    " sentence:alliteration_increment words:palindrome count:punctuation format:parentheses"
    " format:quotes words:prime_lengths format:options format:newline format:emoji"
    " ratio:sentence_words count:words_japanese words:start_verb words:repeats"
    " sentence:keyword count:pronouns words:odd_even_syllables words:last_first"
    " words:paragraph_last_first sentence:increment words:no_consecutive format:line_indent"
    " format:quote_unquote format:list format:thesis format:sub-bullets"
    " format:no_bullets_bullets custom:multiples custom:mcq_count_length"
    " custom:reverse_newline custom:word_reverse custom:character_reverse"
    " custom:sentence_alphabet custom:european_capitals_sort custom:csv_city"
    " custom:csv_special_character custom:csv_quotes custom:date_format_list"
    " count:keywords_multiple words:keywords_specific_position words:words_position"
    " repeat:repeat_change repeat:repeat_simple repeat:repeat_span format:title_case"
    " format:output_template format:no_whitespace"
)


def follows(id_: str, kwargs: object, reply: str) -> bool:
    """Whether a reply, as a reader sees it, follows an instruction."""
    return RULES[id_].check(Reply(seen(reply).text), arguments(id_, kwargs)).ok


def test_all_published_ids_are_known_and_no_others() -> None:
    ifeval, ifbench = IFEVAL.split(), IFBENCH.split()
    assert sorted(RULES) == sorted(ifeval + ifbench) == sorted(VIOLATING)
    assert (len(ifeval), len(ifbench)) == (25, 58)


@pytest.mark.parametrize("id_", sorted(RULES))
def test_the_example_follows_its_instruction(id_: str) -> None:
    example = RULES[id_].example
    assert follows(id_, example.kwargs, example.reply)


@pytest.mark.parametrize(
    ("id_", "reply"), [(id_, reply) for id_, replies in VIOLATING.items() for reply in replies]
)
def test_a_violation_is_seen(id_: str, reply: str) -> None:
    assert len(VIOLATING[id_]) >= 2
    assert not follows(id_, RULES[id_].example.kwargs, reply)


@pytest.mark.parametrize("id_", sorted(RULES))
def test_every_instruction_has_words_and_refuses_wrong_arguments(id_: str) -> None:
    kwargs = dict(RULES[id_].example.kwargs)
    said = describe(id_, kwargs)
    assert said == said.strip()
    assert "{" not in said or id_ == "format:parentheses"
    assert schema(id_)["additionalProperties"] is False


WORDS = st.sampled_from(
    [
        *("tea", "Tea", "*", "**", "\n", "\n\n", ". ", "? ", "! ", '"', "'", "(", ")", "[", "]"),
        *("<<", ">>", "1", "14", "- ", "* ", "P.S.", "川", "die", "art", "\U0001f600", "```", "\t"),
        *(", ", "eagle", "Question 1", "A) x", "#", "<i>", "</i>", "e.g.", "-", "…", "\u0301"),
        *("_", "²", "ß", "İ", "Day 1", "\u0e33", "‽", "My Answer:", "Zimbabwe"),
    ]
)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(id_=st.sampled_from(sorted(RULES)), pieces=st.lists(WORDS, max_size=40))
def test_no_reply_breaks_a_rule_and_the_same_reply_is_found_the_same(
    id_: str, pieces: list[str]
) -> None:
    rule = RULES[id_]
    args = arguments(id_, rule.example.kwargs)
    first = rule.check(Reply("".join(pieces)), args)
    assert first == rule.check(Reply("".join(pieces)), args)


@pytest.mark.parametrize("text", ["." * 20_000 + "x", "\n" * 20_000 + "x", "1." * 10_000 + "a"])
def test_hostile_repetition_costs_little(text: str) -> None:
    started = time.process_time()
    for id_, rule in RULES.items():
        rule.check(Reply(text), arguments(id_, rule.example.kwargs))
    assert time.process_time() - started < 10


@pytest.mark.parametrize("id_", sorted(RULES))
def test_nothing_follows_no_instruction_that_asks_for_something(id_: str) -> None:
    rule = RULES[id_]
    args = arguments(id_, rule.example.kwargs)
    if not rule.passive(args):
        assert not any(rule.check(Reply(text), args).ok for text in ("", " \n ", "Well then."))
