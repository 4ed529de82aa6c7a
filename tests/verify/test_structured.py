from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from answers_support import VALUES, check_specimens, part, specimens_of, tricks, verdict
from headrace.types import Json
from headrace.verify.children import Children
from headrace.verify.kinds import Specimens, find
from headrace.verify.matching import pairs
from headrace.verify.structured import KIND, Rule, StructuredOutput, compare
from headrace.verify.structured.verifier import WORKER
from headrace.verify.structured.worker import answer as work

BLOCK = '```json\n{"a": 1}\n```'
CHILDREN = Children(WORKER, memory_mb=1024)


@pytest.fixture(scope="module")
def verifier() -> Iterator[StructuredOutput]:
    yield StructuredOutput(CHILDREN)
    CHILDREN.close()


def conforms(schema: Json, value: Json, *, formats: bool = False) -> bool:
    reply = work({"op": "schema", "schema": schema, "formats": formats, "value": value})
    assert "broken" not in reply, reply
    return not reply["errors"]


def broken(schema: Json, *, formats: bool = False) -> str:
    return work({"op": "schema", "schema": schema, "formats": formats, "value": 1})["broken"]


# --- the kind ------------------------------------------------------------------------------


def test_specimens_prove_the_kind_and_no_trick_pays(verifier: StructuredOutput) -> None:
    domain = specimens_of(KIND)
    check_specimens(Specimens(domain.name, verifier, domain.items), "structured")
    assert find("structured-output") is KIND
    assert len(tricks("structured")) >= 8


# --- where the document stands -------------------------------------------------------------


def test_a_fence_and_prose_fail_where_they_are_not_allowed(verifier: StructuredOutput) -> None:
    answer = {"expected": {"a": 1}, "wrapping": "raw"}
    assert verdict(verifier, answer, BLOCK).score == 0
    assert verdict(verifier, {"expected": {"a": 1}}, BLOCK).score == 1
    assert verdict(verifier, {"expected": {"a": 1}}, f"Here: {BLOCK}").score == 0


def test_a_string_in_a_fence_is_no_structured_answer(verifier: StructuredOutput) -> None:
    # prime-rl #333: json.loads of a fenced string raises nothing
    judged = verdict(verifier, {"schema": True}, '```json\n"a string"\n```')
    assert judged.score == 0
    assert "no object or array" in judged.evidence
    assert verdict(verifier, {"schema": True, "scalar": True}, '"a string"').score == 1


# --- schemas -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, 5.0, True),
        ({"type": "number"}, 1, "1"),
        ({"multipleOf": 0.01}, 19.99, 19.999),  # a quotient of floats denies 19.99
        ({"multipleOf": 0.1}, 1e300, 0.25),
        ({"enum": [1, "a"]}, 1.0, True),
        ({"const": [0]}, [0], [False]),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["a"], ["a", 1]),
        ({"$defs": {"n": {"minimum": 3}}, "items": {"$ref": "#/$defs/n"}}, [3], [2]),
        ({"$id": "urn:x", "items": {"$ref": "urn:x"}, "type": "array"}, [[[]]], [[1]]),
        ({"dependentRequired": {"a": ["b"]}}, {"b": 1}, {"a": 1}),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, {"a": 1}, {"b": 1}),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"const": 1}]}, [1], [2]),
        ({"if": {"type": "string"}, "then": {"minLength": 2}}, "ab", "a"),
    ],
)
def test_json_schema_is_applied_in_full(schema: Json, good: Json, bad: Json) -> None:
    assert conforms(schema, good)
    assert not conforms(schema, bad)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", "2024-02-29", "2023-02-29"),
        ("date", "2024-01-05", "20240105"),
        ("date-time", "2024-02-29T23:59:60Z", "2024-02-29 10:00:00"),
        ("time", "10:00:00+01:00", "10:00"),
        ("duration", "P1DT2H", "P1H"),
        ("email", "a.b@example.org", "a@b@"),
        ("ipv4", "10.0.0.1", "10.0.0.256"),
        ("ipv6", "::1", ":::1"),
        ("hostname", "a.example", "-a.example"),
        ("uri", "https://example.org/a?b", "example.org"),
        ("uuid", "01234567-89ab-cdef-0123-456789abcdef", "0123456789abcdef0123456789abcdef"),
        ("regex", "a+", "("),
    ],
)
def test_formats_are_asserted_where_asked_for(name: str, good: str, bad: str) -> None:
    assert conforms({"format": name}, good, formats=True)
    assert not conforms({"format": name}, bad, formats=True)
    assert conforms({"format": name}, bad)
    assert conforms({"format": name}, 3, formats=True)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integr"},
        {"pattern": "("},
        {"$ref": "https://example.org/schema.json"},
        {"items": {"$ref": "file:///etc/passwd"}},
        {"$ref": "#/$defs/missing"},
        {"$ref": "#"},
        {"$schema": "https://example.org/draft"},
        {"$schema": 5},
    ],
)
def test_a_schema_that_cannot_stand_alone_is_the_tasks_fault(schema: Json) -> None:
    assert broken(schema)


def test_an_unknown_format_is_refused_not_ignored() -> None:
    assert "'iri'" in broken({"format": "iri"}, formats=True)


def test_faults_of_the_task_give_no_score(verifier: StructuredOutput) -> None:
    for answer in (
        {},
        {"expected": 1, "surprise": 2},
        {"schema": {"$ref": "https://example.org/s"}},
        {"format": "xml", "schema": {}},
        {"format": "xml", "expected": "<a>"},
        {"format": "xml", "required": {"/a": None}},
        {"format": "csv", "expected": {"a": 1}},
        {"expected": 1, "fields": {"a": {}}},
        "text",
    ):
        judged = verdict(verifier, answer, "<a/>" if "xml" in str(answer) else "[1]")
        assert judged.score is None, answer
        assert judged.fault == "task"


def test_a_pattern_that_never_ends_costs_the_attempt_and_nothing_else(
    verifier: StructuredOutput,
) -> None:
    answer = {"schema": {"items": {"pattern": "^(a+)+$"}}}
    hasty = StructuredOutput(CHILDREN, cpu_s=0.3)
    judged = verdict(hasty, answer, json.dumps(["a" * 60 + "!"]))
    assert judged.score == 0
    assert "CPU" in judged.evidence
    assert verdict(verifier, answer, '["aaa"]').score == 1


# --- comparing -----------------------------------------------------------------------------


@given(VALUES)
def test_a_value_equals_itself_only_as_a_whole(value: Json) -> None:
    assert compare(value, value).same
    assert compare(value, value).share == 1
    assert not compare([value], [value, value]).same
    assert not compare([value], []).same


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.randoms())
def test_a_bag_has_no_order(items: list[int], rng: object) -> None:
    rules = {"": Rule(compare="bag")}
    mixed = sorted(items, key=lambda _: rng.random())  # pyright: ignore[reportAttributeAccessIssue]
    assert compare(items, mixed, rules).same
    assert not compare(items, mixed[1:], rules).same


@pytest.mark.parametrize(
    ("expected", "found", "share"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, 1 / 2),
        ({"a": 1, "b": 2}, {"a": 1}, 1 / 2),
        ({"a": 1}, {"a": 1, "b": 2}, 1 / 2),
        ({"a": 1}, {"a": 1, "b": {"c": 1, "d": [1, 2]}}, 1 / 4),
        ({"a": 1, "b": None}, {"a": 1, "b": None}, 1),
        ({"a": 1, "b": None}, {"a": 2, "b": None}, 0),
        ({"a": 1, "b": None}, {"a": 1}, 1 / 2),
        ({"a": 1, "b": []}, {"a": 1, "b": ["x"]}, 1 / 2),
        ([1, 2, 3], [1, 3], 1 / 3),
        ([1, 2], [1, 2, 3, 4], 1 / 2),
        ({"a": {"b": 1, "c": 2}}, {"a": [1, 2]}, 0),
        ({"a": 1}, [{"a": 1}], 0),
        (1, True, 0),
        (0, False, 0),
        ("1", 1, 0),
        (1, 1.0, 1),
        (None, None, 1),
        (None, 0, 0),
        ({}, {}, 1),
        ({}, {"a": 1}, 0),
        (10**400, 1e300, 0),
    ],
)
def test_the_share_is_that_of_right_fields(expected: Json, found: Json, share: float) -> None:
    assert compare(expected, found).share == pytest.approx(share)


def test_rules_say_how_a_field_is_compared_and_what_it_weighs() -> None:
    rules = {
        "/name": Rule(compare="text", weight=2),
        "/price": Rule(compare="number", absolute=0.005),
        "/mass": Rule(compare="number", relative=0.1),
        "/tags": Rule(compare="set"),
        "/note": Rule(weight=0),
        "/lines/*/qty": Rule(weight=3),
    }
    expected = {
        "name": "Caf\u00e9 Nord",
        "price": 1.005,
        "mass": 100,
        "tags": ["a", "b"],
        "note": "x",
        "lines": [{"qty": 1}, {"qty": 2}],
    }
    found = {
        "name": " cafe\u0301  NORD",
        "price": 1.01,
        "mass": 109.9,
        "tags": ["b", "a", "b"],
        "lines": [{"qty": 1}, {"qty": 2}],
    }
    assert compare(expected, found, rules).same
    assert compare(expected, {**found, "note": {"y": 1}}, rules).same
    assert compare(expected, found, rules).total == 2 + 1 + 1 + 2 + 6
    assert compare(expected, {**found, "name": "Café"}, rules).share == pytest.approx(10 / 12)
    assert compare(expected, {**found, "price": 1.0101}, rules).share == pytest.approx(11 / 12)
    assert compare(expected, {**found, "tags": ["a", "c"]}, rules).share == pytest.approx(11 / 12)
    assert compare(expected, {**found, "name": "Ｃafé Nord"}, rules).share < 1


def test_a_bag_is_paired_as_well_as_possible() -> None:
    rules = {"": Rule(compare="bag"), "/*": Rule(compare="number", absolute=1)}
    assert compare([1, 2], [2, 3], rules).same  # 1 takes 2, so that 2 can take 3
    assert compare([5, 5], [5], rules).share == 1 / 2
    assert compare([5], [5] * 100, rules).share == 0


@given(
    st.lists(st.integers(0, 4), max_size=5),
    st.lists(st.integers(0, 4), max_size=5),
    st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4))),
)
def test_pairs_are_as_many_as_any_assignment_gives(
    left: list[int], right: list[int], edges: set[tuple[int, int]]
) -> None:
    def best(i: int, free: frozenset[int]) -> int:
        if i == len(left):
            return 0
        choices = [j for j in free if (left[i], right[j]) in edges]
        return max([best(i + 1, free), *(1 + best(i + 1, free - {j}) for j in choices)])

    found = pairs(left, right, lambda a, b: (a, b) in edges)
    assert len(found) == best(0, frozenset(range(len(right))))
    assert len({i for i, _ in found}) == len({j for _, j in found}) == len(found)
    assert all((left[i], right[j]) in edges for i, j in found)


def test_pointers_escape_slashes_and_tildes() -> None:
    assert compare({"a/b": 1, "c~d": 2}, {"a/b": 5, "c~d": 9}, {"/a~1b": Rule(weight=0)}).total == 1
    assert compare({"c~d": 2}, {"c~d": 9}, {"/c~0d": Rule(weight=0)}).same


def test_evidence_names_the_fields_that_are_wrong(verifier: StructuredOutput) -> None:
    judged = verdict(verifier, {"expected": {"a": {"b": [1, 2, 5]}}}, '{"a": {"b": [1, 3, 5]}}')
    assert judged.score == pytest.approx(2 / 3)
    assert '"path": "/a/b/1", "expected": 2, "found": 3' in judged.evidence
    assert part(judged, "fields") == pytest.approx(2 / 3)
    assert verdict(verifier, {"expected": [1, 2]}, "[1, 3]").score == 0  # not above a half
    whole = {"expected": {"a": {"b": [1, 2, 5]}}, "partial": False}
    assert verdict(verifier, whole, '{"a": {"b": [1, 3, 5]}}').score == 0


def test_a_schema_is_a_gate_for_the_expected_value(verifier: StructuredOutput) -> None:
    answer = {"expected": {"a": 1}, "schema": {"required": ["b"]}}
    judged = verdict(verifier, answer, '{"a": 1}')
    assert judged.score == 0
    assert "'b' is a required property" in judged.evidence


# --- YAML, XML, CSV ------------------------------------------------------------------------


def test_required_paths_are_a_gate_with_or_without_a_text(verifier: StructuredOutput) -> None:
    answer = {"format": "xml", "required": {"b/c": None, "d": "x y"}}
    assert verdict(verifier, answer, "<a><b><c/></b><d>x\n y</d></a>").score == 1
    assert verdict(verifier, answer, "<a><b><c/></b><d>x</d></a>").score == 0
    judged = verdict(verifier, answer, "<a><c/><d>x y</d></a>")
    assert judged.score == 0
    assert "b/c" in judged.evidence


def test_cells_mean_what_the_expected_value_says() -> None:
    expected = [{"n": 7.5, "ok": True, "none": None, "s": "07"}]
    assert compare(expected, [{"n": "7.50", "ok": "true", "none": "", "s": "07"}], cells=True).same
    for cell in ("7,5", "7.51", "nan", "", "7.5 kg", "1" * 5000):
        found = [{"n": cell, "ok": "true", "none": "", "s": "07"}]
        assert compare(expected, found, cells=True).share == pytest.approx(2 / 3)


def test_rows_in_order_or_as_a_bag(verifier: StructuredOutput) -> None:
    rows = [{"a": 1}, {"a": 2}]
    ordered = {"format": "csv", "expected": rows, "least": 0.0}
    bag = {**ordered, "fields": {"": {"compare": "bag"}}}
    assert verdict(verifier, ordered, "a\n1\n2").score == 1
    assert verdict(verifier, ordered, "a\n2\n1").score == 0
    assert verdict(verifier, bag, "a\n2\n1").score == 1
    assert verdict(verifier, bag, "a\n2\n2").score == 0.5


# --- under load ----------------------------------------------------------------------------


def test_threads_get_the_same_verdicts(verifier: StructuredOutput) -> None:
    answer = {"format": "yaml", "expected": {"a": 1, "b": "x"}, "least": 0.0}
    scores: list[float | None] = []

    def judge() -> None:
        for text in ("a: 1\nb: x", "a: 1\nb: y", "a: ["):
            scores.append(verdict(verifier, answer, text).score)  # noqa: PERF401

    threads = [threading.Thread(target=judge) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (
        sorted(score for score in scores if score is not None) == [0.0] * 4 + [0.5] * 4 + [1.0] * 4
    )
