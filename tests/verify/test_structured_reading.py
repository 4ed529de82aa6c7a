from __future__ import annotations

import json

import pytest
from hypothesis import given

from answers_support import VALUES
from headrace.types import Json
from headrace.verify.strict_json import MAX_CHARACTERS, Malformed, last_json, read_json
from headrace.verify.structured import CsvRules
from headrace.verify.structured.reading import element_value, read_csv, read_xml, read_yaml
from headrace.verify.structured.worker import answer as work
from headrace.verify.wrapping import unwrapped

JSON = ("json", "")
BLOCK = '```json\n{"a": 1}\n```'

# --- reading JSON --------------------------------------------------------------------------


@given(VALUES)
def test_what_json_writes_is_read_back(value: Json) -> None:
    assert read_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 1}',
        '{"b": {"a": 1, "a": 2}}',
        "NaN",
        "[Infinity]",
        "[-Infinity]",
        "[1e999]",
        '{"a": 1,}',
        "{'a': 1}",
        "[01]",
        "[1] [2]",
        '"\\ud800"',
        '{"\\udfff": 1}',
        '["a\nb"]',
        "\ufeff{}",
        "{a: {b: 1}}",  # braces in balance are no JSON: mlx-node #31
        "",
        "[" * 66 + "]" * 66,
        "[" * 50_000,
        "9" * 5000,
        " " * (MAX_CHARACTERS + 1),
    ],
)
def test_what_is_no_strict_json_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        read_json(text)


def test_the_last_value_of_a_text_counts() -> None:
    assert last_json('{"a": 1} then {"a": {"b": [2]}} end') == '{"a": {"b": [2]}}'
    assert last_json('say "{" and [1, 2], or { nothing') == "[1, 2]"
    assert last_json("[" * 1000) is None
    assert last_json("no value") is None


# --- where the document stands -------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "raw", "fence", "anywhere"),
    [
        ('{"a": 1}', '{"a": 1}', '{"a": 1}', '{"a": 1}'),
        (BLOCK, None, '{"a": 1}\n', '{"a": 1}\n'),  # refused by others: harness-evals #28
        (f"<think>{BLOCK}</think>{BLOCK}", None, '{"a": 1}\n', '{"a": 1}\n'),
        (f"Here:\n{BLOCK}", f"Here:\n{BLOCK}", f"Here:\n{BLOCK}", '{"a": 1}\n'),
        (f"{BLOCK}\nThat is it.", None, None, '{"a": 1}\n'),
        (f"{BLOCK}\n```\n[2]\n```", None, None, "[2]\n"),
        ("```python\n{}\n```", None, None, "{}"),
        ('```json\n{"a": 1}', None, None, '{"a": 1}'),
        ('{"a": "```json\\n1\\n```"}',) + ('{"a": "```json\\n1\\n```"}',) * 3,
        ("<think>{}", None, None, None),
        ("```a`b\n{}", None, None, "{}"),
    ],
)
def test_the_document_stands_where_the_task_wants_it(
    text: str, raw: str | None, fence: str | None, anywhere: str | None
) -> None:
    assert unwrapped(text, JSON, "raw") == raw
    assert unwrapped(text, JSON, "fence") == fence
    assert unwrapped(text, JSON, "anywhere") == anywhere


# --- YAML, XML, CSV ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "new", "old"),
    [
        ("a: no", {"a": "no"}, {"a": False}),
        ("a: on", {"a": "on"}, {"a": True}),
        ("a: True", {"a": True}, {"a": True}),
        ("a: 010", {"a": 10}, {"a": 8}),
        ("a: 0o10", {"a": 8}, {"a": "0o10"}),
        ("a: 1:30", {"a": "1:30"}, {"a": 90}),
        ("a: 1e3", {"a": 1000.0}, {"a": "1e3"}),
        ("a: 2024-01-05", {"a": "2024-01-05"}, {"a": "2024-01-05"}),
        ("a: ~\nb:", {"a": None, "b": None}, {"a": None, "b": None}),
        ("on: 1\n2: x", {"on": 1, "2": "x"}, {"on": 1, "2": "x"}),
        ("a: &x [1]\nb: *x", {"a": [1], "b": [1]}, {"a": [1], "b": [1]}),
        ('a: "5"', {"a": "5"}, {"a": "5"}),
    ],
)
def test_yaml_is_read_by_the_version_that_the_task_names(text: str, new: Json, old: Json) -> None:
    assert read_yaml(text, "1.2") == new
    assert read_yaml(text, "1.1") == old


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: 1\na: 2",
        "a: 1\n---\nb: 2",
        "!!python/object/apply:os.system ['true']",
        "!!binary aGk=",
        "!!set {a}",
        "a: .nan",
        "a: -.inf",
        "a: *missing",
        "a: &x [*x]",
        "[1, 2]: 3",
        "a: [1",
        "a: \x00",
        "!!int x",
        "a: &a [x, x, x]\n"
        + "\n".join(
            f"{k}: &{k} [{', '.join([f'*{j}'] * 30)}]" for j, k in ("ab", "bc", "cd", "de")
        ),
        "[" * 400,
        "a " * 20_000,
    ],
)
def test_what_is_no_plain_yaml_is_malformed(text: str) -> None:
    for version in ("1.1", "1.2"):
        reply = work({"op": "yaml", "text": text, "version": version})
        assert reply.keys() == {"malformed", "trick"}


def test_xml_becomes_a_value_by_names() -> None:
    text = '<a n="1">\n <b>x  y</b>\n <b><c/></b> tail <d xmlns="urn:q">z</d></a>'
    expected = {"@n": "1", "#text": "tail", "b": ["x y", {"c": ""}], "{urn:q}d": "z"}
    assert element_value(read_xml(text)) == {"a": expected}


@pytest.mark.parametrize(
    "text",
    [
        "<a>",
        "<a/><b/>",
        "words",
        "<a>&undefined;</a>",
        '<!DOCTYPE a [<!ENTITY e "x">]><a>&e;</a>',
        '<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
        "<a>" * 200 + "</a>" * 200,
        "<a b='1' b='2'/>",
        "<a>\x00</a>",
    ],
)
def test_what_is_no_plain_xml_is_malformed(text: str) -> None:
    assert "malformed" in work({"op": "xml", "text": text, "required": {}})


def test_csv_rows_are_read_strictly() -> None:
    rules = CsvRules()
    assert read_csv('a,b\n1,"x, ""y"""\n\n2,\n', rules) == [
        {"a": "1", "b": 'x, "y"'},
        {"a": "2", "b": ""},
    ]
    assert read_csv("1;2\n3;4", CsvRules(delimiter=";", header=False)) == [["1", "2"], ["3", "4"]]
    for text in ("", "a,b\n1", "a,b\n1,2,3", "a,a\n1,2", "a,\n1,2", 'a,b\n"1"x,2', 'a,b\n"1,2'):
        with pytest.raises(Malformed):
            read_csv(text, rules)
    with pytest.raises(Malformed, match="columns"):
        read_csv("b,a\n1,2", CsvRules(columns=["a", "b"]))
