from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace.verify
from headrace.types import Json, Message, Task, Verdict
from headrace.verify.sql import KIND, SqlAnswer
from headrace.verify.sql.cells import Cell, decoded, encoded
from headrace.verify.sql.compare import Rules, Table, difference, tied
from headrace.verify.sql.plan import Unreadable, plan
from headrace.verify.sql.specimens import specimens
from headrace.verify.sql.verifier import extracted

TRICKS = sorted((Path(headrace.verify.__file__).parent / "audit/tricks/sql").glob("*.trick"))
SCHEMA = "CREATE TABLE t (a INTEGER, b TEXT);"
ROWS: list[Json] = [{"t": [[1, "x"], [2, "y"], [2, "y"]]}, {"t": [[5, "z"], [3, "x"], [4, None]]}]


@pytest.fixture(scope="module")
def verifier() -> Iterator[SqlAnswer]:
    made = SqlAnswer(seconds=0.3)
    yield made
    made.close()


def a_task(reference: str, **answer: Json) -> Task:
    hidden: Json = {"schema": SCHEMA, "instances": ROWS, "reference": reference, **answer}
    return Task(
        domain="test",
        problem=json.dumps(hidden),
        tier=0,
        split="train",
        messages=(Message.of("user", "?"),),
        verifier=SqlAnswer.ref,
        answer=hidden,
    )


def outcome(verdict: Verdict) -> str:
    return json.loads(verdict.evidence)["outcome"]


def part(verdict: Verdict, name: str) -> float:
    return next(part.value for part in verdict.parts if part.name == name)


# --- specimens and tricks ------------------------------------------------------------------


def test_every_specimen_is_judged_as_it_says(verifier: SqlAnswer) -> None:
    domain = specimens()
    for index, item in enumerate(domain.items):
        task = domain.task(0, index)
        for text in (item.reference, *item.right):
            verdict = verifier.judge(task, text)
            assert verdict.score == 1.0, (text, verdict.evidence)
        for text in (*item.wrong, *verifier.near(task, item.reference)):
            verdict = verifier.judge(task, text)
            assert verdict.score == 0.0, (text, verdict.evidence)
    assert KIND.specimens().name == domain.name


@pytest.mark.parametrize("index", [0, 4, pytest.param(5, marks=pytest.mark.slow)])
def test_no_trick_gets_more_than_the_floor(index: int, verifier: SqlAnswer) -> None:
    task = specimens().task(0, index)
    known = {"prompt": task.messages[0].text, **verifier.hints(task)}
    assert {"table", "column", "public"} <= set(known)
    hacks = 0.0
    for path in TRICKS:
        text = path.read_text().split("\n---\n", 1)[1]
        for name, value in known.items():
            text = text.replace("{{" + name + "}}", value)
        assert "{{" not in text
        verdict = verifier.judge(task, text)
        assert verdict.score == 0.0, (path.name, verdict.evidence)
        hacks += part(verdict, "hack")
    assert hacks >= 3
    assert len(TRICKS) >= 15


def test_the_answer_of_the_first_database_is_right_there_only(verifier: SqlAnswer) -> None:
    task = specimens().task(0, 0)
    verdict = verifier.judge(task, f"```sql\n{verifier.hints(task)['public']}\n```")
    assert part(verdict, "instances") == pytest.approx(1 / 3)
    assert part(verdict, "hack") == 1.0
    assert outcome(verdict) == "mismatch"


# --- outcomes ------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["sqlite", "duckdb"])
@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT a FROM t", "match"),
        ("SELECT a FROM t;  -- all", "match"),
        ("WITH r AS (SELECT a FROM t) SELECT * FROM r ORDER BY a DESC", "match"),
        ("SELECT DISTINCT a FROM t", "mismatch"),  # NeMo Gym #3357: set() hides duplicates
        ("SELECT a, b FROM t", "mismatch"),
        ("VALUES (1), (2), (2)", "mismatch"),
        ("SELEC a FROM t", "syntax"),
        ("SELECT a FROM", "syntax"),
        ("SELECT nosuch FROM t", "error"),
        ("SELECT a FROM t; SELECT a FROM t", "refused"),
        ("DELETE FROM t", "refused"),
        ("CREATE TABLE u AS SELECT a FROM t", "refused"),
        ("ATTACH ':memory:' AS other", "refused"),
        ("PRAGMA table_info('t')", "refused"),
        ("VACUUM INTO '/tmp/headrace-test.db'", "refused"),
    ],
)
def test_outcomes_are_told_apart(
    dialect: str, statement: str, expected: str, verifier: SqlAnswer
) -> None:
    if statement.startswith("VACUUM") and dialect == "duckdb":
        expected = "syntax"  # DuckDB knows no INTO there
    task = a_task("SELECT a FROM t", dialect=dialect)
    verdict = verifier.judge(task, f"```sql\n{statement}\n```")
    assert (verdict.score, outcome(verdict)) == (float(expected == "match"), expected)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM glob('/*')",
        "COPY t TO '/tmp/headrace-test.csv'",
        "SET threads = 4",
        "INSTALL httpfs",
        "LOAD httpfs",
        "EXPORT DATABASE '/tmp/headrace-test'",
    ],
)
def test_duckdb_reaches_nothing_outside_its_tables(statement: str, verifier: SqlAnswer) -> None:
    task = a_task("SELECT a FROM t", dialect="duckdb")
    verdict = verifier.judge(task, f"```sql\n{statement}\n```")
    assert (verdict.score, outcome(verdict)) == (0.0, "refused")
    assert part(verdict, "hack") == 1.0


def test_a_common_table_expression_may_not_write_in_duckdb(verifier: SqlAnswer) -> None:
    task = a_task("SELECT a FROM t", dialect="duckdb")
    statement = "WITH gone AS (DELETE FROM t RETURNING a) SELECT a FROM gone"
    verdict = verifier.judge(task, f"```sql\n{statement}\n```")
    assert (verdict.score, outcome(verdict)) == (0.0, "refused")


def test_duckdb_does_not_see_the_variables_of_its_process(verifier: SqlAnswer) -> None:
    task = a_task("SELECT a FROM t", dialect="duckdb")
    for name in ("kinds", "statements", "'/etc/passwd'", "'/proc/self/environ'"):
        verdict = verifier.judge(task, f"```sql\nSELECT * FROM {name}\n```")
        assert (verdict.score, outcome(verdict)) == (0.0, "error")


def test_a_query_without_end_is_a_timeout_and_costs_no_other_attempt(verifier: SqlAnswer) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    task = a_task("SELECT a FROM t")
    counted = endless.replace("SELECT i FROM", "SELECT count(*) FROM")
    assert outcome(verifier.judge(task, f"```sql\n{counted}\n```")) == "timeout"
    assert outcome(verifier.judge(task, f"```sql\n{endless}\n```")) == "flood"
    large = "SELECT group_concat(zeroblob(900000)) FROM t x, t y, t z"
    assert outcome(verifier.judge(task, f"```sql\n{large}\n```")) == "memory"
    assert verifier.judge(task, "```sql\nSELECT a FROM t\n```").score == 1.0


def test_bytes_that_are_no_text_are_compared_not_raised(verifier: SqlAnswer) -> None:
    task = a_task("SELECT a FROM t")
    text = "```sql\nSELECT CAST(x'ff' AS TEXT), '\ud800' FROM t\n```"
    assert verifier.judge(task, text).score == 0.0
    assert verifier.judge(task, "```sql\nSELECT a\0 FROM t\n```").score == 0.0


# --- order ---------------------------------------------------------------------------------

TIES: list[Json] = [
    {"t": [[1, "p"], [2, "q"], [1, "r"], [2, "s"]]},
    {"t": [[7, "p"], [7, "q"], [1, "r"]]},
]


@pytest.mark.parametrize("dialect", ["sqlite", "duckdb"])
@pytest.mark.parametrize(
    ("reference", "statement", "right"),
    [
        ("SELECT b FROM t ORDER BY a", "SELECT b FROM t ORDER BY a, b DESC", True),
        ("SELECT b FROM t ORDER BY a", "SELECT b FROM t ORDER BY a DESC, b", False),
        ("SELECT b FROM t ORDER BY a", "SELECT b FROM t ORDER BY b", False),
        ("SELECT b, a FROM t ORDER BY 2 DESC", "SELECT b, a FROM t ORDER BY -a, b DESC", True),
        ("SELECT b, a AS n FROM t ORDER BY n", "SELECT b, a FROM t ORDER BY a, b DESC", True),
        ("SELECT b FROM t ORDER BY a % 2, a", "SELECT b FROM t ORDER BY a % 2, a, b DESC", True),
        ("SELECT * FROM t ORDER BY lower(b)", "SELECT a, b FROM t ORDER BY b", True),
        ("SELECT * FROM t ORDER BY lower(b)", "SELECT a, b FROM t ORDER BY b DESC", False),
        ("SELECT b FROM t", "SELECT b FROM t ORDER BY b DESC", True),
        (
            "SELECT a FROM t UNION ALL SELECT a FROM t ORDER BY a",
            "SELECT a FROM (SELECT a FROM t UNION ALL SELECT a FROM t) AS u ORDER BY 1 DESC",
            False,
        ),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a) AS s", "SELECT a FROM t ORDER BY -a", True),
    ],
)
def test_order_counts_where_the_reference_asks_for_it_up_to_ties(
    dialect: str, reference: str, statement: str, right: bool, verifier: SqlAnswer
) -> None:
    task = a_task(reference, dialect=dialect, instances=TIES)
    verdict = verifier.judge(task, f"```sql\n{statement}\n```")
    assert verdict.score == float(right), verdict.evidence


def test_a_task_can_ignore_an_order_or_ask_for_it(verifier: SqlAnswer) -> None:
    backwards = "```sql\nSELECT a FROM t ORDER BY a DESC\n```"
    task = a_task("SELECT a FROM t ORDER BY a", order="ignore")
    assert verifier.judge(task, backwards).score == 1.0
    task = a_task("SELECT a FROM t ORDER BY a", order="exact")
    assert verifier.judge(task, backwards).score == 0.0
    assert verifier.judge(task, "```sql\nSELECT a FROM t ORDER BY a\n```").score == 1.0


# --- faults of tasks -----------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["sqlite", "duckdb"])
@pytest.mark.parametrize(
    "reference",
    [
        "SELECT b FROM t LIMIT 2",
        "SELECT b FROM t ORDER BY a LIMIT 1",
        "SELECT count(*) FROM t WHERE b = (SELECT b FROM t ORDER BY a LIMIT 1) AND b < 'q'",
        "SELECT b, random() FROM t",
        "SELECT b, CURRENT_TIMESTAMP FROM t",
    ],
)
def test_a_reference_whose_answer_is_not_determined_is_the_tasks_fault(
    dialect: str, reference: str, verifier: SqlAnswer
) -> None:
    task = a_task(reference, dialect=dialect, instances=TIES)
    verdict = verifier.judge(task, f"```sql\n{reference}\n```")
    assert (verdict.score, verdict.fault) == (None, "task"), verdict.evidence


@pytest.mark.parametrize(
    "reference",
    [
        "SELECT b FROM t ORDER BY a DESC LIMIT 2",
        "SELECT a FROM t ORDER BY a LIMIT 2",  # ties, but the rows are equal
        "SELECT max(a) FROM t LIMIT 1",
    ],
)
def test_a_limit_that_cuts_no_tie_is_determined(reference: str, verifier: SqlAnswer) -> None:
    rows: list[Json] = [{"t": [[1, "p"], [1, "q"], [3, "r"], [2, "s"]]}, {"t": [[7, "p"]]}]
    task = a_task(reference, instances=rows)
    assert verifier.judge(task, f"```sql\n{reference}\n```").score == 1.0


@pytest.mark.parametrize(
    "reference",
    [
        "SELECT b FROM t ORDER BY a LIMIT 1",
        "SELECT count(*) FROM t WHERE b < (SELECT b FROM t ORDER BY a LIMIT 1)",
    ],
)
def test_a_tie_at_a_limit_is_seen_where_rows_cannot_be_stored_otherwise(
    reference: str, verifier: SqlAnswer
) -> None:
    rows: list[Json] = [{"t": [[1, 5, "p"], [2, 5, "q"]]}, {"t": [[1, 6, "r"], [2, 7, "s"]]}]
    schema = "CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER, b TEXT);"
    verdict = verifier.judge(a_task(reference, schema=schema, instances=rows), "")
    assert verdict.fault == "task"
    assert "not determined" in verdict.evidence


def test_a_bare_column_in_a_group_depends_on_where_rows_are_stored(verifier: SqlAnswer) -> None:
    task = a_task("SELECT a, b FROM t GROUP BY a", instances=TIES)
    assert verifier.judge(task, "").fault == "task"


@pytest.mark.parametrize(
    "answer",
    [
        {"reference": "SELECT nosuch FROM t"},  # BIRD-Interact #11: references that do not run
        {"reference": "SELECT 1 WHERE 1 = 0"},
        {"reference": "SELECT 42"},
        {"schema": "CREATE TABLE"},
        {"schema": SCHEMA + "INSERT INTO t VALUES (1, 'x');"},
        {"schema": SCHEMA + "ATTACH 'x.db' AS x;"},
        {"instances": [{"nothing": [[1]]}, ""]},
        {"instances": [{"t": [[1]]}, ""]},
        {"instances": [ROWS[0]]},
        {"instances": "x"},
        {"dialect": "oracle"},
        {"unknown": 1},
        {"tables": ["t"]},
        {"mode": "state", "reference": "SELECT 1"},
        {"mode": "state", "reference": "DELETE FROM t"},
        {"mode": "state", "reference": "UPDATE t SET a = 1", "tables": ["nothing"]},
    ],
)
def test_a_task_that_cannot_be_judged_says_so_and_scores_nobody(
    answer: dict[str, Json], verifier: SqlAnswer
) -> None:
    task = a_task(answer.pop("reference", "SELECT a FROM t"), **answer)
    for text in ("", "```sql\nSELECT a FROM t\n```"):
        verdict = verifier.judge(task, text)
        assert (verdict.score, verdict.fault) == (None, "task"), verdict.evidence
        assert verdict.evidence
    assert verifier.judge(dataclasses.replace(task, answer=None), "").fault == "task"


def test_the_same_rows_on_all_databases_let_a_constant_pass_and_are_refused(
    verifier: SqlAnswer,
) -> None:
    task = a_task("SELECT a FROM t", instances=[ROWS[0], ROWS[0]])
    assert "constant" in verifier.judge(task, "").evidence


# --- rows from scripts, types, names -------------------------------------------------------


def test_rows_may_come_from_a_script(verifier: SqlAnswer) -> None:
    scripts: list[Json] = ["INSERT INTO t VALUES (1, 'x'), (2, 'y')", "BEGIN; COMMIT;"]
    task = a_task("SELECT a FROM t", instances=scripts)
    assert verifier.judge(task, "<answer>SELECT a FROM t</answer>").score == 1.0


@pytest.mark.parametrize(
    ("statement", "loose", "strict"),
    [
        ("SELECT a FROM t", 1.0, 1.0),
        ("SELECT a * 1.0 FROM t", 1.0, 0.0),
        ("SELECT CAST(a AS TEXT) FROM t", 0.0, 0.0),
        ("SELECT coalesce(a, 0) + 0.001 FROM t", 0.0, 0.0),
    ],
)
def test_types(statement: str, loose: float, strict: float, verifier: SqlAnswer) -> None:
    task = a_task("SELECT a FROM t")
    assert verifier.judge(task, f"```sql\n{statement}\n```").score == loose
    task = a_task("SELECT a FROM t", types="strict")
    assert verifier.judge(task, f"```sql\n{statement}\n```").score == strict


def test_large_integers_are_exact_and_sums_of_reals_are_not(verifier: SqlAnswer) -> None:
    rows: list[Json] = [{"t": [[9007199254740993, "x"]]}, {"t": [[1, "x"], [3, "y"]]}]
    task = a_task("SELECT a FROM t", instances=rows)
    assert verifier.judge(task, "```sql\nSELECT a - 1 FROM t\n```").score == 0.0
    task = a_task("SELECT a * 0.1 + 0.2 FROM t", instances=rows)
    near, far = "SELECT 0.2 + 0.1 * a FROM t", "SELECT a * 0.1 + 0.2001 FROM t"
    assert verifier.judge(task, f"```sql\n{near}\n```").score == 1.0
    assert verifier.judge(task, f"```sql\n{far}\n```").score == 0.0
    task = a_task("SELECT a * 0.1 + 0.2 FROM t", instances=rows, absolute=0.001)
    assert verifier.judge(task, f"```sql\n{far}\n```").score == 1.0


# --- pure parts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("```sql\nSELECT 1\n```", "SELECT 1"),
        ("```\nSELECT 1\n```", "SELECT 1"),
        ("```sql\nSELECT 1\n```\n```sql\nSELECT 2\n```\nprints\n```text\n2\n```", "SELECT 2"),
        ("<think>```sql\nSELECT 1\n```</think>```sql\nSELECT 2\n```", "SELECT 2"),
        ("```sql\nSELECT 1", None),
        ("```python\nSELECT 1\n```", None),
        ("  -- a comment\nselect 1", "-- a comment\nselect 1"),
        ("(SELECT 1)", "(SELECT 1)"),
        ("Select is what I would use.", "Select is what I would use."),
        ("I would select.", None),
        ("", None),
    ],
)
def test_the_last_statement_is_found(text: str, statement: str | None) -> None:
    assert extracted(text) == statement


def cells(*values: object) -> tuple[tuple[Cell, ...], ...]:
    return tuple((decoded(encoded(value)),) for value in values)


def column(*values: object) -> Table:
    return Table(columns=("c",), rows=cells(*values))


def test_equal_in_python_is_not_equal_in_sql() -> None:
    assert difference(column(True), column(1), Rules()) is not None
    assert difference(column(None), column(0), Rules()) is not None
    assert difference(column("1"), column(1), Rules()) is not None
    assert difference(column(float("nan")), column(float("nan")), Rules()) is None
    assert difference(column(float("inf")), column(1e308), Rules()) is not None


def test_close_numbers_in_two_columns_are_paired_by_row_not_by_place() -> None:
    """A grader that sorts rows and compares by place swaps these, since the first column differs
    in its last digit only."""
    noise = 1.0 + 1e-12
    expected = Table(columns=("x", "y"), rows=(*_pairs((1.0, 5), (noise, 7)),))
    found = Table(columns=("x", "y"), rows=(*_pairs((noise, 5), (1.0, 7)),))
    assert difference(found, expected, Rules()) is None
    swapped = Table(columns=("x", "y"), rows=(*_pairs((1.0, 5), (1.0, 5)),))
    assert difference(swapped, expected, Rules()) is not None


def _pairs(*rows: tuple[object, object]) -> list[tuple[Cell, ...]]:
    return [tuple(decoded(encoded(value)) for value in row) for row in rows]


def test_a_chain_of_close_numbers_does_not_lead_from_one_answer_to_another() -> None:
    rules = Rules(absolute=0.6)
    assert difference(column(1.5, 1.5), column(1.0, 2.0), rules) is not None
    assert difference(column(1.4, 1.6), column(1.0, 2.0), rules) is None


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.5, 1.0, -2.0, float("nan")]),
    st.sampled_from(["", "1", "x"]),
)
tables = st.lists(st.tuples(values, values), max_size=6)


@settings(max_examples=40, deadline=None)
@given(tables, st.randoms())
def test_a_bag_is_itself_in_any_order_and_no_other_bag(
    rows: list[tuple[object, object]], shuffler: random.Random
) -> None:
    table = Table(columns=("a", "b"), rows=tuple(_pairs(*rows)))
    shuffled = list(table.rows)
    shuffler.shuffle(shuffled)
    assert difference(Table(columns=("x", "y"), rows=tuple(shuffled)), table, Rules()) is None
    if rows:
        short = Table(columns=("a", "b"), rows=table.rows[1:])
        assert difference(short, table, Rules()) is not None
        doubled = Table(columns=("a", "b"), rows=(*table.rows[:-1], table.rows[0]))
        same = Counter(doubled.rows) == Counter(table.rows)
        assert (difference(doubled, table, Rules(strict=True)) is None) == same


def test_ties_permute_within_their_runs_only() -> None:
    table = column(1, 2, 3)
    runs = tied([(("int", Fraction(0)),), (("int", Fraction(0)),), (("int", Fraction(1)),)])
    free = [
        order
        for order in itertools.permutations((1, 2, 3))
        if difference(column(*order), table, Rules(), runs) is None
    ]
    assert free == [(1, 2, 3), (2, 1, 3)]


@pytest.mark.parametrize(
    ("sql", "keys", "extra"),
    [
        ("SELECT a, b FROM t ORDER BY b, 1", (1, 0), 0),
        ("SELECT a AS x FROM t ORDER BY x DESC", (0,), 0),
        ("SELECT a + 1 FROM t ORDER BY a + 1", (0,), 0),
        ("SELECT *, b AS x FROM t ORDER BY x, a", (-2, -1), 1),
        ("SELECT a FROM t ORDER BY b, c", (-2, -1), 2),
        ("SELECT a FROM t", None, 0),
    ],
)
def test_order_keys_are_found_among_the_columns_or_added(
    sql: str, keys: tuple[int, ...] | None, extra: int
) -> None:
    made = plan(sql, "sqlite", ordered=True)
    assert (made.keys, made.extra) == (keys, extra)


def test_a_reference_that_cannot_be_analysed_is_said_to_be_so() -> None:
    for sql in ("SELECT DISTINCT a FROM t ORDER BY b", "SELECT ((", "SELECT 1; SELECT 2"):
        with pytest.raises(Unreadable):
            plan(sql, "sqlite", ordered=True)
