from __future__ import annotations

import unicodedata
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.verify.audit import texts


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        ("7", "7"),
        (" 7\n", "7"),
        ("so <answer>a</answer> no <answer> b c </answer>!", "b c"),
        (r"It is \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("Here:\n```python\nx = 1\n```\nand\n```sql\nSELECT 1\n```\n", "SELECT 1\n"),
        ("<answer></answer>", "<answer></answer>"),
    ],
)
def test_the_core_of_a_reference_is_what_it_answers(reference: str, answer: str) -> None:
    before, core, after = texts.core(reference)
    assert core == answer
    assert before + core + after == reference


@given(st.text())
def test_the_parts_of_any_reference_make_it_again(reference: str) -> None:
    assert "".join(texts.core(reference)) == reference


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("7", "7.0", True),
        ("1,234", "1234", True),
        (" Yes ", "yes", True),
        ("a  b", "A b", True),
        ("7", "70", False),
        ("", "0", False),
        ("nan", "NaN", True),
        ("nan", "0", False),
    ],
)
def test_answers_are_compared_as_words_or_numbers(one: str, other: str, equal: bool) -> None:
    assert texts.same(one, other) is equal


def test_a_text_says_an_answer_by_chance_if_it_is_it_or_ends_in_it() -> None:
    assert texts.coincides("I don't know", "know")
    assert texts.coincides("0 1 2 3", "3")
    assert texts.coincides("{}", "{}")
    assert not texts.coincides("0 1 2 3", "2")
    assert not texts.coincides("", "0")


@given(st.integers(-(10**12), 10**12) | st.decimals(-1000, 1000, places=2))
def test_a_perturbed_number_is_another_number(number: int | Decimal) -> None:
    reference = f"<answer>{number}</answer>"
    versions = texts.perturbed(reference)
    assert versions
    for version in versions:
        said = texts.core(version)[1]
        assert Decimal(said) != Decimal(number)


@given(st.text("abcXYZ", min_size=3, max_size=20))
def test_a_perturbed_word_has_other_letters(word: str) -> None:
    assert len(texts.perturbed(word)) == 2
    assert word not in texts.perturbed(word)


def test_only_what_surely_changes_is_changed() -> None:
    assert texts.perturbed("```python\nreturn 1 + 1\n```") == ()
    assert texts.perturbed("A") == ()
    assert texts.perturbed("two words") == ()
    assert texts.perturbed("[1, 20]") == ("[2, 31]",)


def test_bets_are_on_short_answers() -> None:
    assert texts.bets("7", ["8", "x"]) == ("7\n8\nx",)
    assert texts.bets("7", []) == ()
    assert texts.bets("a" * 101, ["b"]) == ()
    assert texts.bets("a\nb", ["c"]) == ()
    program = "```python\n1\n```"
    assert texts.bets(program, [program]) == (f"{program}\n{program}",)
    assert len(texts.bets("\\boxed{7}", ["\\boxed{8}"])) == 3


def test_confusables_look_like_the_reference_and_are_not() -> None:
    for version in texts.confusables("It is <answer>Box 42</answer>."):
        assert version != "It is <answer>Box 42</answer>."
        assert version.startswith("It is <answer>")
        assert version.endswith("</answer>.")
        assert not version.isascii()
    homoglyphs, wide, *_ = texts.confusables("<answer>42</answer>")
    for version in (homoglyphs, wide):
        assert unicodedata.normalize("NFKC", version) == "<answer>42</answer>"


def test_fixed_texts_are_what_they_are_called() -> None:
    assert all(not text.strip(" \n\t\u00a0\u3000\u2003\u200b\u2060\ufeff") for text in texts.BLANKS)
    assert all(190_000 <= len(text) <= 210_000 for text in texts.LONG)
    assert len({*texts.BLANKS, *texts.CONSTANTS, *texts.FORMATS, *texts.LONG}) == sum(
        map(len, (texts.BLANKS, texts.CONSTANTS, texts.FORMATS, texts.LONG))
    )
    assert all("PROMPT"[:4] in echo for echo in texts.echoes("PROMPT"))
