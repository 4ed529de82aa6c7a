"""Reading calls in the notations that models write, and telling no call from a broken one.

Nothing here is ever executed or looked up: a call is a name and JSON values. May be known by
the verifier and environments that need calls from text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from headrace.types import Json
from headrace.verify.answers import without_thinking
from headrace.verify.strict_json import Malformed, checked, read_json
from headrace.verify.wrapping import Wrapping, unwrapped

__all__ = ["NOTATIONS", "Call", "Notation", "Outcome", "Parsed", "parse"]

Notation = Literal["json", "tags", "python", "wire"]
"""`json`: an object `{"name", "arguments"}` (or "parameters"), or a list of them. `tags`: each
such object between `<tool_call>` and `</tool_call>` (Hermes, Qwen), prose allowed around them.
`python`: `f(a=1)` or `[f(a=1), g(b="x")]`, literals only. `wire`: as the OpenAI API has them,
`{"name", "arguments": "a JSON text"}`, alone, in `{"function_call": ...}`, `{"type":
"function", "function": ...}` or `{"tool_calls": [...]}`."""

NOTATIONS: tuple[Notation, ...] = get_args(Notation)

Outcome = Literal["call", "abstain", "malformed"]

_MAX_PYTHON = 20_000
_MAX_BRACKETS = 40
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_ANY_TAG = re.compile(r"</?\s*(?:tool_calls?|function_calls?|function|tool_code|invoke)\b[\s=>/]")
_KEYS = re.compile(r"[\"'](?:name|arguments|parameters|function_call|tool_calls)[\"']\s*:")
_ODD_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\(?:[^\n\\'\"abfnrtv0-7xNuU]|[4-7][0-7]{2})")
_STARTS_CALL = re.compile(r"\[?\s*[A-Za-z_][\w.]*\(")
_LANGUAGES: dict[Literal["json", "python"], tuple[str, ...]] = {
    "json": ("json", "", "tool_call"),
    "python": ("python", "py", "", "tool_code"),
}


@dataclass(frozen=True, slots=True)
class Call:
    """A function by name, and its arguments by name."""

    name: str
    arguments: dict[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """Exactly one of: `call` (one or more `calls`), `abstain` (words without anything like a
    call), `malformed` (anything else, also nothing at all); `why` says what is wrong."""

    outcome: Outcome
    calls: tuple[Call, ...] = ()
    why: str = ""
    trick: bool = False


def parse(
    text: str,
    names: Sequence[str] = (),
    *,
    notations: Sequence[Notation] = NOTATIONS,
    wrapping: Wrapping = "fence",
) -> Parsed:
    """What `text` without its thinking calls. `names` of offered functions help to see a call.

    >>> parse("[add(a=1, b=2)]").calls
    (Call(name='add', arguments={'a': 1, 'b': 2}),)
    >>> parse("<tool_call>{broken").outcome
    'malformed'
    """
    said = without_thinking(text).strip()
    if not said:
        return Parsed(outcome="malformed", why="nothing was said")
    if "tags" in notations and _OPEN in said:
        return _parsed(lambda: _tagged(said, names, wire="wire" in notations))
    reasons: list[str] = []
    if "json" in notations or "wire" in notations:
        value = (unwrapped(text, _LANGUAGES["json"], wrapping) or "").strip()
        if value.startswith(("{", "[")):
            found = _parsed(lambda: _objects(read_json(value), notations))
            if found.outcome != "malformed" or value.startswith("{"):
                return found
            reasons.append(found.why)
    if "python" in notations:
        source = (unwrapped(text, _LANGUAGES["python"], wrapping) or "").strip()
        if _looks_called(source, names):
            found = _parsed(lambda: _python(source))
            if found.outcome == "call":
                return found
            reasons.append(found.why)
    if reasons or _looks_like_a_call(said, names):
        why = "; ".join(reasons) or "something like a call, in no notation that is allowed"
        return Parsed(outcome="malformed", why=why)
    return Parsed(outcome="abstain")


def _parsed(read: Callable[[], list[Call]]) -> Parsed:
    try:
        calls = read()
    except Malformed as error:
        return Parsed(outcome="malformed", why=error.why, trick=error.trick)
    return Parsed(outcome="call" if calls else "abstain", calls=tuple(calls))


def _looks_called(source: str, names: Sequence[str]) -> bool:
    start = _STARTS_CALL.match(source)
    named = start is not None and start.group().strip("[( \n\t") in names
    return named or (start is not None and source[-1] in ")]")


def _looks_like_a_call(said: str, names: Sequence[str]) -> bool:
    return (
        said.startswith(("[", "{", "```", "~~~"))
        or _ANY_TAG.search(said) is not None
        or _KEYS.search(said) is not None
        or any(re.search(rf"(?<![\w.]){re.escape(name)}\(", said) for name in names)
    )


# --- JSON ----------------------------------------------------------------------------------


def _tagged(said: str, names: Sequence[str], *, wire: bool) -> list[Call]:
    first, *pieces = said.split(_OPEN)
    outside, bodies = [first], list[str]()
    for piece in pieces:
        body, closed, after = piece.partition(_CLOSE)
        if not closed:
            raise Malformed("tags that do not pair up")
        bodies.append(body)
        outside.append(after)
    if _looks_like_a_call(" ".join(outside).strip(), names):
        raise Malformed("something like a call outside the tags")
    return [_named(read_json(body), wire=wire) for body in bodies]


def _objects(value: Json, notations: Sequence[Notation]) -> list[Call]:
    wire = "wire" in notations
    items = value if isinstance(value, list) else [value]
    return [call for item in items for call in _object(item, wire=wire)]


def _object(item: Json, *, wire: bool) -> list[Call]:
    """The calls of one object, out of the envelopes of the API where those are allowed."""
    if wire and isinstance(item, dict):
        keys = item.keys() - {"role", "content", "id", "index", "type"}
        if keys == {"tool_calls"} and isinstance(item["tool_calls"], list):
            return [call for inner in item["tool_calls"] for call in _object(inner, wire=wire)]
        for envelope in ("function_call", "function"):
            if keys == {envelope} and isinstance(item[envelope], dict):
                return [_named(item[envelope], wire=wire)]
    return [_named(item, wire=wire)]


def _named(item: Json, *, wire: bool) -> Call:
    if not isinstance(item, dict):
        raise Malformed(f"a {type(item).__name__} is no call")
    key = "parameters" if "parameters" in item else "arguments"
    if item.keys() != {"name", key} or not isinstance(item["name"], str):
        raise Malformed(f"a call has a name and arguments, not {sorted(item)[:8]}")
    arguments = item[key]
    if wire and isinstance(arguments, str):
        arguments = read_json(arguments)
    if not isinstance(arguments, dict):
        raise Malformed(f"the arguments are a {type(arguments).__name__}, no object")
    return Call(item["name"], arguments)


# --- Python --------------------------------------------------------------------------------


def _python(source: str) -> list[Call]:
    if len(source) > _MAX_PYTHON or _depth(source) > _MAX_BRACKETS:
        raise Malformed("too long or too deep")
    if _ODD_ESCAPE.search(source):
        raise Malformed("an escape that Python does not know")
    try:
        tree = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise Malformed(f"no Python: {type(error).__name__}: {error}"[:200]) from None
    nodes = tree.elts if isinstance(tree, (ast.List, ast.Tuple)) else [tree]
    return [_python_call(node) for node in nodes]


def _python_call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call):
        raise Malformed("something that is no call", trick=True)
    if node.args:
        raise Malformed("an argument without its name")
    arguments: dict[str, Json] = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise Malformed("** or the same argument twice", trick=True)
        arguments[keyword.arg] = _literal(keyword.value)
    return Call(_dotted(node.func), checked(arguments))


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise Malformed("a function is called by its name", trick=True)
    return ".".join([node.id, *reversed(parts)])


def _literal(node: ast.expr) -> Json:
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str()):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            if isinstance(number, bool):
                raise Malformed("minus a bool")
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict():
            found: dict[str, Json] = {}
            for key, value in zip(node.keys, node.values, strict=True):
                if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                    raise Malformed("a key that is no text")
                if key.value in found:
                    raise Malformed(f"the key {key.value[:80]!r} comes twice", trick=True)
                found[key.value] = _literal(value)
            return found
        case _:
            raise Malformed(f"{type(node).__name__} is no literal", trick=True)


def _depth(source: str) -> int:
    """The deepest nesting of brackets, and the longest run of signs, before any parser sees it."""
    deepest = depth = 0
    for letter in source:
        if letter in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif letter in ")]}":
            depth -= 1
    signs = max((len(run) for run in re.findall(r"(?:[-+~]\s*|not\s+)+", source)), default=0)
    return max(deepest, signs)
