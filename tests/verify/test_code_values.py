from __future__ import annotations

import ast
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.verify.code.runner import BITS, DEPTH, NODES, Unfit, decode, dumped, encode
from headrace.verify.code.values import Rule, agree, key, literal

_KEYS = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.binary())
_ATOMS = st.one_of(_KEYS, st.floats(allow_nan=False))
_VALUES: st.SearchStrategy[Any] = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.sets(_KEYS, max_size=3),
        st.frozensets(_KEYS, max_size=3),
        st.dictionaries(_KEYS, inner, max_size=3),
    ),
    max_leaves=8,
)


def sent(value: object) -> Any:
    """As it comes out of a sandbox."""
    text = dumped(encode(value))
    assert text.isascii()
    return json.loads(text)


@given(_VALUES)
def test_a_value_is_the_same_on_the_other_side(value: Any) -> None:
    back = decode(sent(value))
    assert type(back) is type(value)
    assert back == value
    assert repr(back) == repr(value) or isinstance(value, (set, frozenset, dict, list, tuple))


@given(_VALUES, _VALUES)
def test_keys_are_equal_exactly_where_values_are(one: Any, other: Any) -> None:
    assert (key(sent(one)) == key(sent(other))) is (one == other)
    assert key(sent(one)) == key(sent(one))


@given(_VALUES)
def test_a_literal_is_python_for_the_value(value: Any) -> None:
    text = literal(sent(value))
    assert text.isascii()
    if "float(" not in text and "frozenset(" not in text and "set()" not in text:
        assert ast.literal_eval(text) == value


@pytest.mark.parametrize(
    ("expected", "found", "right"),
    [
        (1, 1.0, True),
        (True, 1, True),
        (0, False, True),
        (1, "1", False),
        ((1, 2), [1, 2], False),
        ([], (), False),
        ({1, 2}, frozenset({2, 1}), True),
        ({1: "a"}, {1.0: "a"}, True),
        ({"a": 1}, {"a": 2}, False),
        (b"x", "x", False),
        (None, False, False),
        (0.1 + 0.2, 0.3, False),
        (2**70, float(2**70), True),
        (2**70 + 1, float(2**70), False),
        (math.inf, -math.inf, False),
        (math.nan, math.nan, True),
        (0.0, -0.0, True),
        ("\ud800", "\ud800", True),
    ],
)
def test_equal_is_what_python_calls_equal(expected: Any, found: Any, right: bool) -> None:
    assert agree(Rule(), sent(expected), sent(found)) is right


@pytest.mark.parametrize(
    ("rule", "expected", "found", "right"),
    [
        (Rule(types="exact"), 1, 1.0, False),
        (Rule(types="exact"), 1, True, False),
        (Rule(types="exact"), {1}, frozenset({1}), False),
        (Rule(types="exact"), 0.0, -0.0, True),
        (Rule(types="exact"), [1.5, (2,)], [1.5, (2,)], True),
        (Rule(types="loose"), [(1, 2)], ([1, 2],), True),
        (Rule(types="loose"), [1, 2], [2, 1], False),
        (Rule(tolerance=1e-6), [1.0, {"a": 0.3}], [1.0, {"a": 0.1 + 0.2}], True),
        (Rule(tolerance=1e-6), 1e9, 1e9 + 1, True),
        (Rule(tolerance=1e-6), 1.0, 1.00001, False),
        (Rule(tolerance=1e-6), 0.0, 1e-7, True),
        (Rule(tolerance=1e-6), math.nan, 1.0, False),
        (Rule(tolerance=1e-6), 1.0, math.nan, False),
        (Rule(tolerance=1e-6), math.inf, 1e308, False),
        (Rule(tolerance=1e-6), [1.0], (1.0,), False),
        (Rule(tolerance=1e-6), "1.0", 1.0, False),
        (Rule(tolerance=1e-6), 2**2000, 2**2000 + 1, False),
        (Rule(tolerance=1e-6), [1.0, 2.0], [1.0], False),
        (Rule(tolerance=1e-6), {"list": 1.0}, {"list": 1.0 + 1e-9}, True),
        (Rule(any_order=True), [1, 2, 2], [2, 1, 2], True),
        (Rule(any_order=True), [1, 2, 2], [1, 1, 2], False),
        (Rule(any_order=True), [[1, 2]], [[2, 1]], False),
        (Rule(any_order=True), [1, 2], (2, 1), False),
        (Rule(any_order=True, types="loose"), [1, 2], (2, 1), True),
        (Rule(any_order=True), "ab", "ba", False),
    ],
)
def test_rules_bend_only_what_they_say(rule: Rule, expected: Any, found: Any, right: bool) -> None:
    assert agree(rule, sent(expected), sent(found)) is right


@pytest.mark.parametrize(
    "tree",
    [
        {"$set": [1, 1]},
        {"$set": [1, 1.0]},
        {"$dict": [[1, 2], [1, 3]]},
        {"$dict": [[1]]},
        {"$dict": 3},
        {"$tuple": "ab"},
        {"$float": "1e5"},
        {"$float": ["nan"]},
        {"$bytes": "xy"},
        {"$bytes": 7},
        {"$other": 1},
        {"$tuple": [], "x": 1},
        {"x": 1, "$tuple": []},
        math.nan,
        [0] * (NODES + 2),
    ],
)
def test_what_spells_no_value_is_refused(tree: Any) -> None:
    with pytest.raises(ValueError, match=r"value|fromhex"):
        key(tree)


def test_a_spelling_that_is_too_deep_is_refused() -> None:
    tree: Any = 1
    for _ in range(DEPTH + 2):
        tree = [tree]
    with pytest.raises(ValueError, match="deep"):
        key(tree)


class Always(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


class Everything(type):
    def __eq__(cls, other: object) -> bool:
        return True

    def __hash__(cls) -> int:
        return 0


class Chameleon(metaclass=Everything):
    pass


@pytest.mark.parametrize(
    "value",
    [
        Always(3),
        [Always(3)],
        {Always(3): 1},
        Chameleon(),
        object(),
        iter([1]),
        range(3),
        1j,
        bytearray(b"x"),
        2 ** (BITS + 1),
        [0] * (NODES + 1),
        "x" * 1_000_000,
        {"a": print},
    ],
)
def test_only_builtin_values_of_some_size_are_spelled(value: object) -> None:
    with pytest.raises(Unfit):
        encode(value)


def test_a_value_that_holds_itself_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(Unfit):
        encode(ring)


def test_a_rule_that_is_ambiguous_or_misspelled_is_refused() -> None:
    for rule in ({"tolerance": 1e-6, "any_order": True}, {"tolerence": 1}, {"tolerance": 2}):
        with pytest.raises(ValueError):
            Rule.model_validate(rule)
