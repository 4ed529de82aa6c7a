"""Assertions of a test function as data: arguments, and the value that is right for them.

A test such as `def check(candidate): assert candidate(2, 3) == 5` runs in the candidate's
process and holds the answer there. Here its text is read, never run, and what has the form of
a case becomes one. A test that does anything else is refused whole, with the reason: a case
less would be another test. May be known by task packs.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.types import Json
from headrace.verify.code.values import Rule, encode

__all__ = ["Assertion", "Converted", "NotCases", "convert"]

_MOST_LENGTH = 10_000
_MOST_POWER = 64
_MOST_ROUNDS = 100

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "str": str,
    "tuple": tuple,
    "list": list,
    "set": set,
    "range": range,
}


class NotCases(ValueError):
    """A test that is not a list of cases, and which statement of it shows that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assertion:
    """Arguments, and what is right for them, both spelled as by `values.encode`. Where the test
    computes that in a way that is not evaluated here, `known` is False: ask a reference."""

    args: tuple[Json, ...]
    expected: Json = None
    known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """The cases of a test in their order, and the one rule that is right for all of them: as
    lenient as the most lenient assertion, about tolerance and about lists for tuples."""

    cases: tuple[Assertion, ...]
    rule: Rule


@dataclass(frozen=True, slots=True)
class _Read:
    case: Assertion
    tolerance: float | None = None
    loose: bool = False
    exact: bool = False


def convert(source: str) -> Converted:
    """The cases of the function `check(candidate)` that `source` defines; NotCases if that is
    not all that it tests.

    Read are `candidate(...) == value`, `is value`, `abs(candidate(...) - value) < value`, both
    sides in `tuple(...)`, and `candidate(...)` alone or after `not` (True and False), also in
    loops over ranges; where a value is a constant, or arithmetic on constants.

    >>> convert("def check(candidate):\\n    assert candidate(2) == 2 * 2").cases[0].expected
    4
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotCases(f"the test does not parse: {error}") from error
    found = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check"
    ]
    if len(found) != 1 or len(found[0].args.args) != 1:
        raise NotCases("there is no function check(candidate)")
    reads = list(_statements(found[0].body, found[0].args.args[0].arg, {}))
    if not reads:
        raise NotCases("it asserts nothing")
    tolerances = [read.tolerance for read in reads if read.tolerance is not None]
    if any(read.exact for read in reads) and any(read.loose for read in reads):
        raise NotCases("it is strict and lenient about types")
    types = "exact" if any(read.exact for read in reads) else "equal"
    return Converted(
        cases=tuple(read.case for read in reads),
        rule=Rule(
            types="loose" if any(read.loose for read in reads) else types,
            tolerance=max(tolerances) if tolerances else None,
        ),
    )


def _statements(body: list[ast.stmt], name: str, known: Mapping[str, Any]) -> Iterator[_Read]:
    """The cases that statements assert; `known` are the values of names."""
    values = dict(known)
    for statement in body:
        if isinstance(statement, ast.Assert):
            if not isinstance(statement.test, ast.Constant):
                yield _assertion(statement.test, name, values)
            elif not statement.test.value:
                raise NotCases("it asserts a false constant")
        elif isinstance(statement, ast.For) and isinstance(statement.target, ast.Name):
            items = _constant(statement.iter, values)
            if not isinstance(items, (list, tuple, range)) or len(items) > _MOST_ROUNDS:
                raise NotCases(f"a loop over {ast.unparse(statement.iter)[:80]}")
            for item in items:
                yield from _statements(statement.body, name, {**values, statement.target.id: item})
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            values[statement.targets[0].id] = _unless_computed(statement.value, values)
        elif not isinstance(statement, ast.Pass) and not _idle(statement):
            raise NotCases(f"it does more than assert: {ast.unparse(statement)[:80]}")


def _idle(statement: ast.stmt) -> bool:
    """A constant or a name, which does nothing."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, (ast.Constant, ast.Name))


class _Computed:
    """Stands for a value that is computed in a way that is not followed."""


def _unless_computed(node: ast.expr, values: Mapping[str, Any]) -> Any:
    try:
        return _constant(node, values)
    except NotCases:
        return _Computed()


def _assertion(test: ast.expr, name: str, values: Mapping[str, Any]) -> _Read:
    if _is_call(test, name):
        return _Read(_case(test, True, name, values))
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _Read(_case(test.operand, False, name, values))
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        raise NotCases(f"not a case: {ast.unparse(test)[:80]}")
    left, comparison, right = test.left, test.ops[0], test.comparators[0]
    if isinstance(comparison, ast.Is):
        return _Read(_case(left, _constant(right, values), name, values), exact=True)
    if isinstance(comparison, ast.Eq):
        if _is_call(left, "tuple") and _is_call(right, "tuple"):
            case = _case(_only(left), _unless_computed(_only(right), values), name, values)
            return _Read(case, loose=True)
        return _Read(_case(left, _unless_computed(right, values), name, values))
    if isinstance(comparison, ast.Lt) and _is_call(left, "abs"):
        inner = _only(left)
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub):
            case = _case(inner.left, _constant(inner.right, values), name, values)
            return _Read(case, tolerance=float(_constant(right, values)))
    raise NotCases(f"not a case: {ast.unparse(test)[:80]}")


def _case(call: ast.expr, expected: Any, name: str, values: Mapping[str, Any]) -> Assertion:
    if not isinstance(call, ast.Call) or not _is_call(call, name) or call.keywords:
        raise NotCases(f"not a call of the candidate: {ast.unparse(call)[:80]}")
    args = tuple(_made(encode, _constant(argument, values)) for argument in call.args)
    if isinstance(expected, _Computed):
        return Assertion(args=args, known=False)
    return Assertion(args=args, expected=_made(encode, expected))


def _is_call(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _only(node: ast.expr) -> ast.expr:
    """The one argument of a call."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        raise NotCases(f"not one argument: {ast.unparse(node)[:80]}")
    return node.args[0]


def _constant(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """The value of constants, names that are known, and arithmetic on them; else NotCases."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in values:
        value = values[node.id]
        if not isinstance(value, _Computed):
            return value
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        plain = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
        return _made(plain, [_constant(item, values) for item in node.elts])
    if isinstance(node, ast.Dict) and None not in node.keys:
        names = [_constant(name, values) for name in node.keys if name is not None]
        items = [_constant(item, values) for item in node.values]
        return _made(dict, zip(names, items, strict=True))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_constant(node.operand, values))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _constant(node.left, values), _constant(node.right, values)
        return _bounded(_BINARY[type(node.op)], left, right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        function = _FUNCTIONS.get(node.func.id)
        if function is not None:
            return _made(function, *[_constant(argument, values) for argument in node.args])
    raise NotCases(f"not a constant: {ast.unparse(node)[:80]}")


def _made(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (TypeError, ValueError) as error:
        raise NotCases(f"no value: {error}") from error


def _bounded(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """An operation on values whose result is not too large."""
    sizes = [len(x) if isinstance(x, (str, bytes, list, tuple)) else x for x in (left, right)]
    numbers = [size for size in sizes if isinstance(size, (int, float))]
    if len(numbers) < len(sizes) or any(abs(size) > _MOST_LENGTH**4 for size in numbers):
        raise NotCases("arithmetic on large values")
    if operation is operator.pow and abs(right) > _MOST_POWER:
        raise NotCases("a large power")
    sequences = [x for x in (left, right) if isinstance(x, (str, bytes, list, tuple))]
    if sequences and operation is operator.mul and numbers[0] * numbers[1] > _MOST_LENGTH:
        raise NotCases("a long sequence")
    try:
        return operation(left, right)
    except (TypeError, ArithmeticError) as error:
        raise NotCases(f"arithmetic that fails: {error}") from error
