"""Tables and numbers that programs wrote: what is equal, what is read, what a program gets."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifact_support import DyingBoxes, at_once, attempts_of, misjudged, needs_boxes, part, task_of
from headrace.types import Json
from headrace.verify.analysis import KIND, DataAnalysis, specimens
from headrace.verify.tables import (
    BadData,
    Cell,
    Rules,
    difference,
    equal,
    number,
    read_json,
    read_table,
)

PLAIN = Rules()


@pytest.mark.parametrize(
    ("found", "wanted", "rules"),
    [
        ("3", 3, PLAIN),
        ("3.0", 3, PLAIN),
        ("+3e0", 3, PLAIN),
        (3.0, 3, PLAIN),
        ("0.33333333", 1 / 3, PLAIN),
        (".5", 0.5, PLAIN),
        ("1,234.5", 1234.5, Rules(grouped=True)),
        ("12.5%", 0.125, Rules(percent=True)),
        ("12.5 %", 0.125, Rules(percent=True)),
        ("10.04", 10.0, Rules(relative=0.005)),
        ("0.0004", 0.0, Rules(absolute=0.0005)),
        ("-inf", -math.inf, PLAIN),
        ("", None, PLAIN),
        ("NaN", math.nan, PLAIN),
        (None, math.nan, PLAIN),
        (math.nan, None, PLAIN),
        (" north ", "north", PLAIN),
        ("TRUE", True, PLAIN),
        (False, False, PLAIN),
        ("9007199254740993", 9007199254740993, PLAIN),
    ],
)
def test_what_is_equal(found: Json, wanted: Cell, rules: Rules) -> None:
    assert equal(found, wanted, rules)


@pytest.mark.parametrize(
    ("found", "wanted", "rules"),
    [
        ("3.0000001", 3, PLAIN),
        (True, 1, PLAIN),
        (1, True, PLAIN),
        ("1", True, PLAIN),
        ("nan", 1.0, PLAIN),
        ("nan", 1.0, Rules(absolute=1e9)),
        ("inf", 1e308, Rules(relative=1e9)),
        ("1e999", 1.0, PLAIN),
        (10**400, 1.5, PLAIN),
        ("", 0, PLAIN),
        ("0", None, PLAIN),
        ("", None, Rules(missing="never")),
        ("nan", math.nan, Rules(missing="never")),
        ("1,234.5", 1234.5, PLAIN),
        ("12,34.5", 1234.5, Rules(grouped=True)),
        ("12.5%", 0.125, PLAIN),
        ("1_000", 1000, PLAIN),
        ("٣", 3, PLAIN),
        ("0x10", 16, PLAIN),
        ("3 apples", 3, PLAIN),
        (7, "7", PLAIN),
        ("North", "north", PLAIN),
        ([1], 1, PLAIN),
        ("9007199254740992", 9007199254740993, PLAIN),
        (9007199254740992.0, 9007199254740993, PLAIN),
    ],
)
def test_what_is_not_equal(found: Json, wanted: Cell, rules: Rules) -> None:
    assert not equal(found, wanted, rules)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_equals_its_own_spelling(value: float) -> None:
    assert equal(repr(value), value, PLAIN)
    assert equal(value, value, Rules(absolute=0.0, relative=0.0))


@given(st.text(max_size=12))
def test_no_text_is_a_number_that_python_does_not_read(text: str) -> None:
    value = number(text, PLAIN)
    assert value is None or value == float(text)


def differs(csv: str, columns: list[str], rows: list[list[Cell]], rules: Rules = PLAIN) -> str:
    return difference(read_table(csv.encode(), "csv"), columns, rows, rules)


ROWS: list[list[Cell]] = [["a", 1.5], ["b", 2.5], ["a", 1.5]]


@pytest.mark.parametrize(
    ("csv", "rules"),
    [
        ("k,v\na,1.5\nb,2.5\na,1.5\n", Rules(row_order=True, column_order=True)),
        ("k,v\nb,2.5\na,1.5\na,1.5\n", PLAIN),
        ('v,k\r\n1.5,"a"\r\n1.5,a\r\n2.5,b\r\n', PLAIN),
        ("\ufeffk, v\n\na,1.5\nb,2.5\na,1.50\n", PLAIN),
        ("k,x,v\na,9,1.5\nb,8,2.5\na,7,1.5\n", Rules(extra_columns=True)),
    ],
)
def test_tables_that_are_the_same(csv: str, rules: Rules) -> None:
    assert differs(csv, ["k", "v"], ROWS, rules) == ""


@pytest.mark.parametrize(
    ("csv", "rules"),
    [
        ("k,v\nb,2.5\na,1.5\na,1.5\n", Rules(row_order=True)),
        ("v,k\n1.5,a\n2.5,b\n1.5,a\n", Rules(column_order=True)),
        ("k,v\na,1.5\nb,2.5\n", PLAIN),
        ("k,v\na,1.5\nb,2.5\nb,2.5\n", PLAIN),
        ("k,v\na,1.5\nb,2.5\na,2.5\n", PLAIN),
        ("k,x,v\na,9,1.5\nb,8,2.5\na,7,1.5\n", PLAIN),
        ("k\na\nb\na\n", PLAIN),
        ("k,v\n", PLAIN),
        ("k,v\na,nan\nb,nan\na,nan\n", PLAIN),
    ],
)
def test_tables_that_differ(csv: str, rules: Rules) -> None:
    assert differs(csv, ["k", "v"], ROWS, rules) != ""


ROW = st.tuples(st.sampled_from("ab"), st.floats(-9, 9), st.floats(-9, 9))


@settings(max_examples=40)
@given(st.lists(ROW, max_size=8))
def test_a_bag_of_rows_is_itself_in_any_order_and_within_its_tolerance(
    rows: list[tuple[str, float, float]],
) -> None:
    shuffled = sorted(rows, key=lambda row: (row[2], row[0]))
    lines = [f"{k},{x + 0.0004!r},{y - 0.0004!r}" for k, x, y in shuffled]
    csv = "\n".join(["k,x,y", *lines]) + "\n"
    expected: list[list[Cell]] = [list(row) for row in rows]
    assert differs(csv, ["k", "x", "y"], expected, Rules(absolute=0.0005)) == ""
    if rows:
        moved = [*expected[:-1], [*expected[-1][:2], rows[-1][2] + 1000.0]]
        assert differs(csv, ["k", "x", "y"], moved, Rules(absolute=0.0005)) != ""


def test_rows_that_only_another_pairing_matches_are_matched() -> None:
    # Sorted, 1.000 pairs with 1.0 / 5 although only 1.0 / 7 fits it.
    csv = "x,y\n1.0004,5\n1.0000,7\n"
    expected: list[list[Cell]] = [[1.0, 5.0], [1.0003, 7.0]]
    assert differs(csv, ["x", "y"], expected, Rules(absolute=0.0005)) == ""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"a,a\n1,2\n",
        b"a,b\n1\n",
        b"a,b\n1,2,3\n",
        b'a,b\n"1,2\n',
        b"\xff\xfe",
        b"a\n" + b"x" * 200_000,
    ],
)
def test_what_is_no_csv_table(data: bytes) -> None:
    with pytest.raises(BadData):
        read_table(data, "csv")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[1]",
        b'[{"a": 1}, {"b": 1}]',
        b'[{"a": 1, "a": 2}]',
        b"[" * 100_000,
        b'[{"a": ' + b"9" * 5000 + b"}]",
    ],
)
def test_what_is_no_json_table(data: bytes) -> None:
    with pytest.raises(BadData):
        read_table(data, "json")


def test_json_tables_have_real_types() -> None:
    table = read_table(b'[{"k": "a", "n": 1, "x": NaN}, {"n": true, "k": null, "x": 2.5}]', "json")
    assert table.columns == ("k", "n", "x")
    assert table.rows[1] == (None, True, 2.5)
    rows: list[list[Cell]] = [["a", 1, None], [None, True, 2.5]]
    assert difference(table, ["k", "n", "x"], rows, PLAIN) == ""
    assert difference(table, ["k", "n", "x"], [["a", True, None], [None, 1, 2.5]], PLAIN) != ""
    assert read_json(b"[NaN, -Infinity]")[1] == -math.inf


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {"cases": []},
        {"cases": [{"files": {}, "outputs": {}}]},
        {
            "cases": [
                {
                    "files": {"../x": ""},
                    "outputs": {"n": {"kind": "number", "path": "n", "value": 1}},
                }
            ]
        },
        {"cases": [{"files": {}, "outputs": {"n": {"kind": "picture", "path": "n"}}}]},
    ],
)
def test_a_malformed_answer_is_the_tasks_fault(answer: Json) -> None:
    verdict = DataAnalysis().judge(task_of(DataAnalysis(), answer), "```python\nx\n```")
    assert (verdict.score, verdict.fault) == (None, "task")


def test_without_a_program_there_is_a_score_and_it_is_nothing() -> None:
    domain = specimens()
    verdict = domain.verifier.judge(domain.task(0, 0), "The sum of south is 12.25.")
    assert (verdict.score, part(verdict, "extracted")) == (0.0, 0.0)


PROGRAM = """\
import json, os
total = sum(json.load(open("in.json")))
print(total, flush=True)
with open("half.txt", "w") as file:
    file.write(str(total / 2))
if total > 5:
    with open("late.txt", "w") as file:
        file.write("1")
else:
    os._exit(3)
"""


@needs_boxes
def test_each_output_is_a_part_and_a_case_that_crashes_keeps_what_it_wrote() -> None:
    def case(values: list[int], total: int) -> Json:
        return {
            "files": {"in.json": json.dumps(values)},
            "outputs": {
                "half": {"kind": "number", "path": "half.txt", "value": total / 2, "weight": 3.0},
                "late": {"kind": "number", "path": "late.txt", "value": 1},
                "total": {"kind": "number", "path": "stdout", "value": total},
                "gone": {"kind": "number", "path": "gone/x", "value": 1, "weight": 0.5},
            },
        }

    verifier = DataAnalysis()
    answer = {"cases": [case([4, 5], 9), case([1, 2], 3)]}
    verdict = verifier.judge(task_of(verifier, answer), f"```python\n{PROGRAM}```")
    values = {part.name: part.value for part in verdict.parts}
    assert values["half"] == 1.0
    assert (values["total"], values["cases"]) == (1.0, 5 / 8)
    assert (values["late"], values["gone"], values["finished"]) == (0.0, 0.0, 0.0)
    assert verdict.score == (3.0 + 1.0) / 5.5
    assert "exit code 3" in verdict.evidence


@needs_boxes
def test_specimens_are_judged_as_they_deserve() -> None:
    assert misjudged(specimens()) == {}
    assert KIND.id == DataAnalysis.ref.id


@needs_boxes
def test_no_trick_is_worth_anything() -> None:
    domain = specimens()
    found = attempts_of("table", domain)
    assert len(found) >= 4
    verdicts = at_once(lambda case: domain.verifier.judge(*case), found.values())
    paid = {name: v.evidence for name, v in zip(found, verdicts, strict=True) if v.score != 0.0}
    assert paid == {}


def test_a_machine_that_fails_gives_no_score() -> None:
    domain = specimens()
    verdict = DataAnalysis(DyingBoxes()).judge(domain.task(0, 0), domain.items[0].reference)
    assert (verdict.score, verdict.fault) == (None, "infrastructure")
