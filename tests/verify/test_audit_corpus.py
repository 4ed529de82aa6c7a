from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.verify.audit import load, shipped
from headrace.verify.audit.corpus import parse
from headrace.verify.kinds import SURFACES

GOOD = """title: An object that
  equals everything
story: It is equal to whatever
  it is compared with.
seen: by construction
---
```python
def {{name}}():  # {{prompt}} {not} {{Not}} {{ }}
    ---
```
"""


def test_a_trick_is_its_header_and_its_text_verbatim() -> None:
    trick = parse(GOOD, surface="python", name="always-equal")
    assert trick.title == "An object that equals everything"
    assert trick.story == "It is equal to whatever it is compared with."
    assert trick.seen == "by construction"
    assert trick.needs == {"name", "prompt"}
    assert trick.text.splitlines()[1:3] == [
        "def {{name}}():  # {{prompt}} {not} {{Not}} {{ }}",
        "    ---",
    ]
    assert trick.text_for({"prompt": "p"}) is None
    filled = trick.text_for({"prompt": "{{name}}", "name": "f"})
    assert filled is not None
    assert "def f():  # {{name}} {not}" in filled


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (GOOD.replace("\n---\n", "\n--\n"), "no line"),
        (GOOD.replace("seen: by construction\n", ""), "does not say: seen"),
        (GOOD.replace("seen: by", "where: by"), "is no title"),
        (GOOD.replace("story:", "title:"), "is no title"),
        (GOOD.replace("seen: by construction", "seen:"), "does not say: seen"),
        (GOOD.partition("\n---\n")[0] + "\n---\n \n", "empty attempt"),
        ("", "no line"),
    ],
)
def test_a_file_that_is_no_trick_is_refused(source: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        parse(source, surface="text", name="x", where="tricks/text/x.trick")
    assert caught.value.where == "tricks/text/x.trick"


def test_a_directory_of_tricks_is_loaded_in_order_and_its_digest_is_of_all_bytes(
    tmp_path: Path,
) -> None:
    for surface, name in (("text", "b"), ("python", "z"), ("text", "a")):
        (tmp_path / surface).mkdir(exist_ok=True)
        (tmp_path / surface / f"{name}.trick").write_text(GOOD)
    corpus = load(tmp_path)
    assert [(t.surface, t.name) for t in corpus.tricks] == [
        ("python", "z"),
        ("text", "a"),
        ("text", "b"),
    ]
    assert [t.name for t in corpus.against(["sql"])] == ["a", "b"]
    assert [t.name for t in corpus.against(["python"])] == ["z", "a", "b"]
    assert load(tmp_path).digest == corpus.digest
    (tmp_path / "text" / "a.trick").write_text(GOOD + "\n")
    assert load(tmp_path).digest != corpus.digest


def test_links_other_files_and_unknown_surfaces_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    (text / "x.trick").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match="not a trick"):
        load(tmp_path)
    (text / "x.trick").unlink()
    (text / "x.txt").write_text(GOOD)
    with pytest.raises(UsageError, match="not a trick"):
        load(tmp_path)
    (text / "x.txt").unlink()
    (text / "x.trick").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        load(tmp_path)
    (text / "x.trick").write_text(GOOD)
    (tmp_path / "magic").mkdir()
    with pytest.raises(UsageError, match="no surface 'magic'"):
        load(tmp_path)


# --- the shipped corpus ------------------------------------------------------------------------


def test_the_shipped_corpus_is_large_and_every_surface_has_some() -> None:
    corpus = shipped()
    assert len(corpus.tricks) > 60
    by_surface = Counter(trick.surface for trick in corpus.tricks)
    assert [surface for surface in SURFACES if not by_surface[surface]] == []
    assert by_surface.most_common(1)[0][0] == "python"


def test_shipped_tricks_are_named_told_and_different() -> None:
    tricks = shipped().tricks
    assert len({trick.id for trick in tricks}) == len(tricks)
    assert len({(trick.surface, trick.text) for trick in tricks}) == len(tricks)
    for trick in tricks:
        assert len(trick.title) <= 100, trick.id
        assert len(trick.story.split()) >= 4, trick.id
