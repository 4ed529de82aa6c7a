"""What can be asked of a final state: checks as a task writes them, and their evaluation here.

A check is judged on this side from what was read out of the sandbox, or by a checker script that
ran there as another user when all processes of the agent were dead. May be known by the verifier
and by agent environments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from headrace.types import Json, canonical_json
from headrace.verify.child import ChildError
from headrace.verify.children import Children
from headrace.verify.terminal.tree import Entry, Tree

__all__ = [
    "Absent",
    "Check",
    "CheckResult",
    "Checker",
    "Equals",
    "Exists",
    "JsonAt",
    "Matches",
    "Mode",
    "Output",
    "Processes",
    "State",
    "evaluate",
]

_MATCH_S = 5.0
_MOST_TEXT = 2**20
Path_ = Annotated[str, Field(min_length=1, max_length=400)]
Seconds = Annotated[float, Field(gt=0.0, le=600.0)]


class _Check(BaseModel):
    """`name` is how the check is reported; without one it is made up of what it asks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""


class Exists(_Check):
    """Something of that type is at `path` (absolute, or below the first root)."""

    kind: Literal["exists"]
    path: Path_
    type: Literal["file", "directory", "link"] = "file"


class Absent(_Check):
    """Nothing is at `path`, not even a link that leads nowhere."""

    kind: Literal["absent"]
    path: Path_


class Equals(_Check):
    """The regular file at `path` holds `content`; trailing white space differs with `loose`."""

    kind: Literal["equals"]
    path: Path_
    content: str
    loose: bool = False


class Matches(_Check):
    """The regular file at `path` (UTF-8) holds a match of the regular expression `pattern`."""

    kind: Literal["matches"]
    path: Path_
    pattern: str


class Mode(_Check):
    """The file or directory at `path` has exactly the permissions `mode`, in octal digits."""

    kind: Literal["mode"]
    path: Path_
    mode: Annotated[str, Field(pattern=r"^[0-7]{3,4}$")]


class JsonAt(_Check):
    """The JSON file at `path` has `value` at the JSON pointer (RFC 6901); numbers are equal by
    value, true is not 1."""

    kind: Literal["json"]
    path: Path_
    pointer: Annotated[str, Field(pattern=r"^(/.*)?$")] = ""
    value: JsonValue


class Processes(_Check):
    """Whether processes of the agent's were left running whose command line has a match of
    `pattern`. A command line is what a process says of itself: `some` True can be feigned."""

    kind: Literal["processes"]
    pattern: str = ""
    some: bool = False


class Output(_Check):
    """`argv`, run by the agent's user in the final tree with `stdin`, prints `stdout` (trailing
    white space aside). What is expected stays on this side."""

    kind: Literal["output"]
    argv: Annotated[tuple[str, ...], Field(min_length=1)]
    stdin: str = ""
    stdout: str
    seconds: Seconds = 10.0


class Checker(_Check):
    """A script that looks at the final tree as the user "verifier" and prints one line: the value
    of the variable HEADRACE_NONCE, a space, and pass or fail. It must end with exit code 0.

    It reads files and must not run what the agent left (that is what `Output` is for), nor what
    runs code that files name, as git does of a repository's configuration.
    """

    kind: Literal["checker"]
    language: Literal["sh", "python"] = "sh"
    script: str
    seconds: Seconds = 20.0


Check = Annotated[
    Exists | Absent | Equals | Matches | Mode | JsonAt | Processes | Output | Checker,
    Field(discriminator="kind"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What was read of a sandbox: the tree below `roots`, links that leave them, command lines of
    what was running, and what `Output` (printed, or None) and `Checker` (pass or fail, or why
    there is no word of it) came to, by the number of the check.

    `unreadable` says why there is no tree.
    """

    roots: tuple[str, ...]
    tree: Tree = field(default_factory=dict[str, Entry])
    unreadable: str = ""
    escaping: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    printed: Mapping[int, str | None] = field(default_factory=dict[int, str | None])
    said: Mapping[int, str] = field(default_factory=dict[int, str])

    def at(self, path: str) -> Entry | None:
        """What is at a path; None for nothing, and for what lies behind a link."""
        full = path if path.startswith("/") else f"{self.roots[0]}/{path}"
        return self.tree.get(full.rstrip("/") or "/")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Whether a check holds, and what was found instead."""

    name: str
    passed: bool
    found: str = ""


def evaluate(
    checks: tuple[Check, ...], state: State, patterns: Children
) -> tuple[CheckResult, ...]:
    """One result for each check, in order. `patterns` runs `headrace.verify.patterns`:
    an expression that takes too long on what the agent wrote does not match."""
    results: list[CheckResult] = []
    for number, check in enumerate(checks):
        found = _found(number, check, state, patterns)
        results.append(CheckResult(name=name_of(number, check), passed=not found, found=found))
    return tuple(results)


def name_of(number: int, check: Check) -> str:
    """How a check is reported."""
    about = getattr(check, "path", "") or " ".join(getattr(check, "argv", ()))
    return check.name or f"{number + 1} {check.kind} {about}".strip()


def _found(number: int, check: Check, state: State, patterns: Children) -> str:
    """Why the check does not hold; "" if it does."""
    if isinstance(check, Processes):
        return _running(check, state, patterns)
    if isinstance(check, Output):
        printed = state.printed.get(number)
        if printed is None:
            return "it did not run to its end"
        same = printed.rstrip() == check.stdout.rstrip()
        return "" if same else f"it printed {printed[:400]!r}"
    if isinstance(check, Checker):
        said = state.said.get(number, "it did not run")
        return "" if said == "pass" else said
    if state.unreadable:
        return f"the tree cannot be read: {state.unreadable}"
    entry = state.at(check.path)
    if isinstance(check, Absent):
        return "" if entry is None else f"there is a {entry.kind}"
    if entry is None:
        return "there is nothing"
    if isinstance(check, Exists):
        return "" if entry.kind == check.type else f"it is a {entry.kind}"
    if isinstance(check, Mode):
        mode = f"{entry.mode:o}"
        right = entry.kind != "link" and entry.mode == int(check.mode, 8)
        return "" if right else f"it is a {entry.kind} of mode {mode}"
    if entry.kind != "file":
        return f"it is a {entry.kind}"
    return _content(check, entry.data, patterns)


def _content(check: Equals | Matches | JsonAt, data: bytes, patterns: Children) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "it is no UTF-8"
    if isinstance(check, Equals):
        loose = check.loose and text.rstrip() == check.content.rstrip()
        return "" if loose or text == check.content else f"it holds {text[:400]!r}"
    if isinstance(check, Matches):
        matched = _matched(check.pattern, [text], patterns)
        return "" if matched else f"no match in {text[:400]!r}"
    try:
        value = _point(json.loads(text), check.pointer)
    except (ValueError, LookupError, RecursionError) as error:
        return f"no such JSON: {error}"
    return "" if _same(value, check.value) else f"it has {str(value)[:400]}"


def _running(check: Processes, state: State, patterns: Children) -> str:
    lines = list(state.processes)
    some = bool(lines) and (not check.pattern or _matched(check.pattern, lines, patterns))
    return "" if some == check.some else f"running: {', '.join(lines)[:400] or 'nothing'}"


def _matched(pattern: str, texts: list[str], patterns: Children) -> bool:
    if sum(len(text) for text in texts) > _MOST_TEXT:
        return False
    try:
        reply = patterns.call({"pattern": pattern, "texts": texts}, deadline=_MATCH_S)
    except ChildError:
        return False  # a pattern that explodes does so on what the agent wrote
    return bool(reply)


def _point(value: Json, pointer: str) -> Json:
    """What is at a JSON pointer; LookupError if nothing is."""
    for token in pointer.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list):
            if not (key.isascii() and key.isdecimal()):
                raise LookupError(f"no item {key!r}")
            value = value[int(key)]
        elif isinstance(value, dict):
            value = value[key]
        else:
            raise LookupError(f"nothing below {str(value)[:40]!r}")
    return value


def _same(found: Json, wanted: Json) -> bool:
    if isinstance(found, dict) and isinstance(wanted, dict):
        same_keys = found.keys() == wanted.keys()
        return same_keys and all(_same(found[key], wanted[key]) for key in wanted)
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_same, found, wanted))
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    if isinstance(found, (int, float)) and isinstance(wanted, (int, float)):
        return found == wanted
    return type(found) is type(wanted) and canonical_json(found) == canonical_json(wanted)
