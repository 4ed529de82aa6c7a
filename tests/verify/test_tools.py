from __future__ import annotations

import json
import warnings
from dataclasses import replace

import pytest

from answers_support import check_specimens, part, specimens_of, task_for, tricks, verdict
from headrace.errors import UsageError
from headrace.types import Json, ToolSpec
from headrace.verify.kinds import find
from headrace.verify.tools import KIND, ToolCalls, bfcl_answer, parse
from headrace.verify.tools.ask import Ask, Expected, Function
from headrace.verify.tools.judging import mismatch
from headrace.verify.tools.parsing import Call

VERIFIER = ToolCalls()


def function(properties: Json, required: list[str] | None = None, name: str = "f") -> Json:
    parameters = {"type": "dict", "properties": properties, "required": required or []}
    return {"name": name, "parameters": parameters}


def why(
    arguments: Json,
    allowed: Json,
    properties: Json,
    required: list[str] | None = None,
    **options: Json,
) -> str:
    """Why a call of f with `arguments` is not the one that is `allowed`; "" if it is."""
    offered = function(properties, required)
    ask = Ask.model_validate({"functions": [offered], "calls": [], **options})
    expected = Expected.model_validate({"name": "f", "arguments": allowed})
    return mismatch(Call("f", arguments), expected, Function.model_validate(offered), ask)


# --- the kind ------------------------------------------------------------------------------


def test_specimens_prove_the_kind_and_no_trick_pays() -> None:
    check_specimens(specimens_of(KIND), "tools")
    assert find("tool-calls") is KIND
    assert len(tricks("tools")) >= 7


# --- parsing -------------------------------------------------------------------------------

ADD = (Call("add", {"a": 1, "b": 2}),)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "add", "arguments": {"a": 1, "b": 2}}',
        '[{"name": "add", "parameters": {"b": 2, "a": 1}}]',
        '```json\n[{"name": "add", "arguments": {"a": 1, "b": 2}}]\n```',
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
        'I add.\n<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call> Done.',
        '<think>add(a=3)</think>{"name": "add", "arguments": {"a": 1, "b": 2}}',
        "add(a=1, b=2)",
        "[add(a=1, b=2)]",
        "```python\nadd(b=2, a=1)\n```",
        '{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}',
        '{"function_call": {"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}}',
        '{"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", '
        '"function": {"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}}]}',
    ],
)
def test_one_call_in_every_notation(text: str) -> None:
    parsed = parse(text, ["add"])
    assert parsed.outcome == "call"
    assert parsed.calls == ADD


def test_literals_of_python_become_json() -> None:
    parsed = parse("m.f(a=-1.5, b=(1, 'x'), c={'k': [None, True]}, d='a' 'b'), g()", ["m.f"])
    arguments = {"a": -1.5, "b": [1, "x"], "c": {"k": [None, True]}, "d": "ab"}
    assert parsed.calls == (Call("m.f", arguments), Call("g", {}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "<think>add(a=1)",
        "<tool_call>{broken",
        "<tool_call>{broken}</tool_call>",
        '<tool_call>\n<tool_call name="add" arguments={"a": 1}/>\n</tool_call>',  # gorilla #1362
        '<tool_call>{"name": "add", "arguments": {}}',
        '{"name": "add", "arguments": {}}</tool_call> and <tool_call>',
        '<tool_call>{"name": "add", "arguments": {}}</tool_call>{"name": "add", "arguments": {}}',
        '<tool_call>{"name": "add", "arguments": {}}</tool_call> or add(a=1)',
        '<tool_call>[{"name": "add", "arguments": {}}]</tool_call>',
        "</tool_call>" * 20_000 + "<tool_call>" * 20_000,
        '<function=add>{"a": 1}</function>',
        '{"name": "add"}',
        '{"name": "add", "arguments": [1]}',
        '{"name": "add", "arguments": null}',
        '{"name": "add", "arguments": {}, "confidence": 1}',
        '{"name": "add", "arguments": {"a": 1, "a": 2}}',
        '{"name": "add", "arguments": {"a": NaN}}',
        '{"name": "add", "arguments": "\\"{}\\""}',
        '{"name": 5, "arguments": {}}',
        '{"add": {"a": 1}}',
        "[1, 2]",
        'I would say {"name": "add", "arguments": {}}',
        "I would call add(a=1) here.",
        "add(1, 2)",
        "add(a=1, a=2)",
        "add(**{'a': 1})",
        "add(a=b)",
        "add(a=print('x'))",
        "add(a=1 + 1)",
        "add(a={1, 2})",
        "add(a=b'x')",
        "add(a=1j)",
        "add(a=1e999)",
        "add(a={'k': 1, 'k': 2})",
        "add(a={1: 2})",
        "add(a=f'{1}')",
        "add(a='\\d')",
        "add(a='\\ud800')",
        "add(a=1)(b=2)",
        "add(a=[" + "[" * 200 + "]" * 200 + "])",
        "add(a=" + "-" * 5000 + "1)",
        "add(a=" + "9" * 5000 + ")",
        "add(a='" + "x" * 30_000 + "')",
        "add" + ".b" * 8000 + "(a=1)",
        "add(a=1",
    ],
)
def test_what_is_no_call_and_no_prose_is_malformed(text: str) -> None:
    assert parse(text, ["add"]).outcome == "malformed"


def test_an_odd_escape_is_malformed_whatever_the_warning_filters_say() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert parse("add(a='\\d')").outcome == "malformed"


@pytest.mark.parametrize(
    "text",
    ["No function fits.", "I cannot add (or subtract) that.", "[]", "add is no use, nor is sub."],
)
def test_words_without_a_call_abstain(text: str) -> None:
    assert parse(text, ["add"]).outcome == "abstain"


def test_only_the_notations_that_are_allowed_are_calls() -> None:
    tagged = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    bare = '{"name": "add", "arguments": {"a": 1, "b": 2}}'
    wired = '{"name": "add", "arguments": "{}"}'
    assert parse(bare, notations=["tags"]).outcome == "malformed"
    assert parse(tagged, notations=["json"]).outcome == "malformed"
    assert parse(wired, notations=["json"]).outcome == "malformed"
    assert parse(wired, notations=["wire"]).outcome == "call"
    assert parse("add(a=1, b=2)", notations=["json"], names=["add"]).outcome == "malformed"
    assert parse(f"So: {bare}", wrapping="anywhere").calls == ADD
    assert parse(f"```json\n{bare}\n```", wrapping="raw").outcome == "malformed"


# --- arguments -----------------------------------------------------------------------------

INTEGER = {"base": {"type": "integer"}}


@pytest.mark.parametrize(
    ("value", "allowed", "kind", "fits"),
    [
        (10, [10], "integer", True),
        (999, [10], "integer", False),  # AU-Harness #31: scalars were never compared
        (True, [1], "integer", False),
        (1, [True], "boolean", False),
        (True, [True], "boolean", True),
        (5.0, [5], "integer", False),
        (5, [5.0], "float", True),
        (5.0, [5], "number", True),
        ("5", [5], "integer", False),
        ("x", ["y", "x"], "string", True),
        ("X", ["x"], "string", False),
        ([1, 2], [[1, 2]], "array", True),
        ([2, 1], [[1, 2]], "array", False),
        ([1, 2, 3], [[1, 2]], "array", False),
        ([1], [1], "array", False),
        (None, [None], "any", True),
        (None, ["", 1], "any", False),
        (0, [False], "any", False),
        ("", ["", "x"], "string", False),
    ],
)
def test_a_value_is_one_of_those_allowed(value: Json, allowed: Json, kind: str, fits: bool) -> None:
    assert (why({"a": value}, {"a": allowed}, {"a": {"type": kind}}) == "") is fits


def test_integral_floats_are_an_option() -> None:
    assert why({"base": 5.0}, {"base": [5]}, INTEGER)
    assert not why({"base": 5.0}, {"base": [5]}, INTEGER, integral_floats=True)
    assert why({"base": 5.5}, {"base": [5.5]}, INTEGER, integral_floats=True)


def test_an_explicit_default_is_the_same_call_as_an_omission() -> None:
    # PostTrainBench #63: spelling out a default was marked wrong
    properties = {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}}
    plain, given = {"city": "x"}, {"city": "x", "days": 1}
    for allowed in (
        {"city": ["x"]},
        {"city": ["x"], "days": [1]},
        {"city": ["x"], "days": ["", 2]},
    ):
        assert not why(given, allowed, properties, ["city"]), allowed
        assert not why(plain, allowed, properties, ["city"]), allowed
    assert "days" in why({**plain, "days": 2}, {"city": ["x"]}, properties, ["city"])
    assert "days" in why(plain, {"city": ["x"], "days": [2]}, properties, ["city"])
    assert "days" in why({**plain, "days": True}, {"city": ["x"]}, properties, ["city"])


def test_arguments_are_complete_and_no_more_than_asked_for() -> None:
    properties = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    assert "missing" in why({}, {"a": [1]}, properties)
    assert not why({}, {"a": [1, ""]}, properties)
    assert "missing" in why({"a": 1}, {"a": [1]}, properties, ["a", "b"])
    assert "not asked for" in why({"a": 1, "b": 2}, {"a": [1]}, properties)  # cookbook #937
    assert "not asked for" in why({"a": 1, "zzz": 2}, {"a": [1]}, properties)


def test_objects_and_lists_are_compared_inside() -> None:
    schema = {
        "q": {
            "type": "dict",
            "properties": {
                "min": {"type": "integer"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "deep": {"type": "dict", "properties": {"on": {"type": "boolean"}}},
            },
        },
        "rows": {"type": "array", "items": {"type": "dict"}},
    }
    allowed = {
        "q": [{"min": [1, 2], "tags": [["a"], ["b"]], "deep": [{"on": [True]}, ""]}],
        "rows": [[{"k": ["v"]}, {"k": ["w", "x"]}], ""],
    }
    good = {"q": {"min": 2, "tags": ["b"], "deep": {"on": True}}}
    assert not why(good, allowed, schema)
    assert not why({"q": {"min": 1, "tags": ["a"]}}, allowed, schema)
    assert not why({**good, "rows": [{"k": "v"}, {"k": "x"}]}, allowed, schema)
    for bad in (
        {"q": {"min": 3, "tags": ["b"]}},
        {"q": {"min": 2, "tags": ["a", "b"]}},
        {"q": {"min": 2}},
        {"q": {"min": 2, "tags": ["b"], "extra": 1}},
        {"q": {"min": 2, "tags": ["b"], "deep": {"on": 1}}},
        {"q": {"min": 2, "tags": [1]}},
        {"q": [["min", 2]]},
        {**good, "rows": [{"k": "x"}, {"k": "v"}]},
    ):
        assert why(bad, allowed, schema), bad


@pytest.mark.parametrize(
    ("said", "exact", "folded", "loose"),
    [
        ("New York, NY", True, True, True),
        ("new  york, ny", False, True, True),
        ("New-York NY", False, False, True),
        ("Newark, NY", False, False, False),
    ],
)
def test_strings_are_as_alike_as_the_task_asks(
    said: str, exact: bool, folded: bool, loose: bool
) -> None:
    for strings, fits in (("exact", exact), ("folded", folded), ("loose", loose)):
        reason = why({"a": said}, {"a": ["New York, NY"]}, {"a": {}}, strings=strings)
        assert (not reason) is fits


def test_loose_strings_keep_what_makes_another_number() -> None:
    # the benchmark's own standardisation makes 1.5 and 15 equal
    assert why({"a": "1.5"}, {"a": ["15"]}, {"a": {}}, strings="loose")
    assert not why({"a": "room 1.5"}, {"a": ["Room-1.5"]}, {"a": {}}, strings="loose")


# --- calls together ------------------------------------------------------------------------

PAIR: Json = {
    "functions": [function({"a": {"type": "integer"}}), function({}, name="g")],
    "calls": [
        {"name": "f", "arguments": {"a": [1, 2]}},
        {"name": "f", "arguments": {"a": [1]}},
    ],
}


def f_calls(*values: int) -> str:
    return json.dumps([{"name": "f", "arguments": {"a": value}} for value in values])


def test_parallel_calls_are_paired_as_well_as_possible() -> None:
    assert verdict(VERIFIER, PAIR, f_calls(1, 2)).score == 1
    assert verdict(VERIFIER, PAIR, f_calls(2, 1)).score == 1
    assert verdict(VERIFIER, PAIR, f_calls(1, 1)).score == 1
    for wrong in (f_calls(2, 2), f_calls(1), f_calls(1, 2, 1), f_calls(1, 2, 3), f_calls()):
        assert verdict(VERIFIER, PAIR, wrong).score == 0


def test_a_verdict_says_which_call_is_wrong_and_why() -> None:
    judged = verdict(VERIFIER, PAIR, f_calls(2, 3))
    assert (part(judged, "calls"), part(judged, "names"), part(judged, "called")) == (0.5, 1, 1)
    assert "f: a is 3" in judged.evidence


def test_calling_everything_is_seen() -> None:
    text = '[{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {"a": 2}}, %s]'
    judged = verdict(VERIFIER, PAIR, text % '{"name": "g", "arguments": {}}')
    assert judged.score == 0
    assert part(judged, "hack") == 1


def test_abstention_malformed_and_call_are_three_outcomes() -> None:
    answer = {"functions": [function(INTEGER, name="math.solve")], "calls": []}
    broken = '<tool_call>\n<tool_call name="math.solve" arguments={"a": 1}/>\n</tool_call>'
    for text, outcome, score in (
        ("None of these helps.", "abstained", 1),
        (broken, "malformed", 0),
        ("", "malformed", 0),
        ("math.solve(base=1", "malformed", 0),
        ('{"name": "math.solve", "arguments": {"base": 1}}', "called", 0),
    ):
        judged = verdict(VERIFIER, answer, text)
        assert judged.score == score, text
        assert [part(judged, name) for name in ("called", "abstained", "malformed")] == [
            float(name == outcome) for name in ("called", "abstained", "malformed")
        ]
    assert VERIFIER.floor(task_for(VERIFIER, answer)) == 1
    marked = {**answer, "abstention": "NONE"}
    assert VERIFIER.floor(task_for(VERIFIER, marked)) == 0
    assert verdict(VERIFIER, marked, "none.").score == 1
    assert verdict(VERIFIER, marked, "None of these helps.").score == 0


def test_functions_may_come_from_the_task() -> None:
    tool = ToolSpec("f", "", {"type": "object", "properties": INTEGER, "required": ["base"]})
    answer = {"calls": [{"name": "f", "arguments": {"base": [10]}}]}
    task = replace(task_for(VERIFIER, answer), tools=(tool,))
    assert VERIFIER.judge(task, "f(base=10)").score == 1
    assert VERIFIER.judge(task, "f(base=True)").score == 0


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {"calls": []},
        {"functions": [function({})], "calls": [{"name": "g"}]},
        {"functions": [function({})], "calls": [{"name": "f", "arguments": {"a": []}}]},
        {"functions": [function({})], "calls": [{"name": "f", "arguments": {"a": 1}}]},
        {"functions": [function({})], "calls": [{"name": "f", "arguments": {"a": [{"k": 1}]}}]},
        {"functions": [function({}), function({})], "calls": []},
        {"functions": [function({})], "calls": [], "notations": ["xml"]},
        {"functions": [function({})], "calls": [], "abstention": " "},
    ],
)
def test_a_malformed_answer_is_the_tasks_fault(answer: Json) -> None:
    judged = verdict(VERIFIER, answer, "f()")
    assert judged.score is None
    assert judged.fault == "task"


# --- BFCL ----------------------------------------------------------------------------------

LINE: Json = {
    "id": "parallel_7",
    "question": [[{"role": "user", "content": "Take the logs of 8 and 9 in base 2."}]],
    "function": [
        {
            "name": "math.log",
            "description": "A logarithm.",
            "parameters": {
                "type": "dict",
                "properties": {
                    "value": {"type": "float"},
                    "base": {"type": "integer", "description": "Default is 10."},
                    "label": {"type": "string"},
                },
                "required": ["value"],
            },
        }
    ],
}
POSSIBLE: Json = {
    "id": "parallel_7",
    "ground_truth": [
        {"math.log": {"value": [8, 8.0], "base": [2], "label": ["", "log of eight"]}},
        {"math.log": {"value": [9, 9.0], "base": [2], "label": [""]}},
    ],
}


def test_a_line_of_bfcl_becomes_an_answer() -> None:
    answer = bfcl_answer(LINE, POSSIBLE)
    good = '[math.log(value=9, base=2), math.log(value=8.0, base=2, label="Log of Eight.")]'
    assert verdict(VERIFIER, answer, good).score == 1
    assert verdict(VERIFIER, answer, good.replace("base=2)", "base=999)")).score == 0
    assert verdict(VERIFIER, answer, good.replace("value=9", 'value=9, label="x"')).score == 0


def test_a_line_of_bfcl_without_an_answer_asks_for_none() -> None:
    answer = bfcl_answer(LINE)
    assert answer["calls"] == []
    assert verdict(VERIFIER, answer, "There is no such function.").score == 1
    assert verdict(VERIFIER, answer, "math.log(value=1)").score == 0


@pytest.mark.parametrize(
    ("line", "possible"),
    [
        (LINE, {**POSSIBLE, "id": "parallel_8"}),
        (LINE, {"id": "parallel_7"}),
        (LINE, {"id": "parallel_7", "ground_truth": [{"math.log": {"value": 8}}]}),
        (LINE, {"id": "parallel_7", "ground_truth": ["math.log(8)"]}),
        ({"id": "x"}, None),
        ("text", None),
    ],
)
def test_another_shape_than_bfcl_is_refused(line: Json, possible: Json) -> None:
    with pytest.raises(UsageError) as caught:
        bfcl_answer(line, possible)
    assert "BFCL" in str(caught.value)
