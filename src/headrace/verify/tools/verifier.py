"""The verifier `tool-calls`: the right functions, called with the right arguments, or none.

May be known by task packs and the audit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import ClassVar

from pydantic import ValidationError

from headrace.types import Json, Task, Verdict, VerdictPart, VerifierRef
from headrace.verify.answers import without_thinking
from headrace.verify.base import BaseVerifier
from headrace.verify.kinds import Surface
from headrace.verify.matching import pairs
from headrace.verify.structured.comparing import folded
from headrace.verify.tools.ask import Ask, Expected, Function
from headrace.verify.tools.judging import mismatch
from headrace.verify.tools.parsing import Call, Outcome, Parsed, parse
from headrace.verify.verdicts import hack, scored, unjudged

__all__ = ["ToolCalls"]

_SHOWN = 6


class _Unsound(Exception):
    """The task's answer is at fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """An attempt compared with what is asked: `calls` and `names` are shares in 0..1."""

    right: bool
    outcome: Outcome
    calls: float = 0.0
    names: float = 0.0
    reasons: list[str] = field(default_factory=list[str])


class ToolCalls(BaseVerifier):
    """Judges calls against `Task.answer`, whose shape is `Ask`.

    An attempt has one of three outcomes: it calls, it abstains, or it is malformed, and
    malformed is never abstention. score = 1 if every expected call is made exactly once, in any
    order, and no other; or, where no call is right, if the attempt abstains as asked. Else 0.
    Parts: `answer` the score; `called`, `abstained`, `malformed` (one of them 1), `calls` and
    `names` (shares that match) and `hack` weigh nothing.
    """

    ref = VerifierRef("tool-calls", "1")
    surfaces: ClassVar[tuple[Surface, ...]] = ("text", "tools")

    def judge(self, task: Task, text: str) -> Verdict:
        """The verdict; without a score only if the task's answer is malformed."""
        try:
            ask, functions = self._asked(task)
        except (ValidationError, _Unsound) as error:
            return unjudged(self.ref, "task", f"the task's answer: {error}")
        names = list(functions)
        parsed = parse(text, names, notations=ask.notations, wrapping=ask.wrapping)
        judged = _abstention(ask, parsed, text) if not ask.calls else _calls(ask, parsed, functions)
        every = len(names) > 1 and {call.name for call in parsed.calls} >= set(names)
        greedy = every and len(parsed.calls) > len(ask.calls)
        parts = (
            VerdictPart("answer", float(judged.right), 1.0),
            VerdictPart("called", float(judged.outcome == "call"), 0.0),
            VerdictPart("abstained", float(judged.outcome == "abstain"), 0.0),
            VerdictPart("malformed", float(judged.outcome == "malformed"), 0.0),
            VerdictPart("calls", judged.calls, 0.0),
            VerdictPart("names", judged.names, 0.0),
            hack(parsed.trick or greedy),
        )
        facts: dict[str, Json] = {
            "expected": [_shown(call) for call in ask.calls] or "no call",
            "outcome": judged.outcome,
            "found": [asdict(call) for call in parsed.calls] or text[-600:],
        }
        if judged.reasons:
            facts["why"] = judged.reasons[:_SHOWN]
        return scored(self.ref, parts, evidence=facts)

    def floor(self, task: Task) -> float:
        """1 where no call is right and any words will do: whoever says anything else than a
        call is right there. Ask for an `abstention` to make that 0."""
        ask = Ask.model_validate(task.answer)
        return float(not ask.calls and ask.abstention is None)

    def hints(self, task: Task) -> Mapping[str, str]:
        """`function`: the first on offer; `all_calls`: every function called with empty values;
        `one_call` and `stuffed_call`: the first, also with what it does not have;
        `abstention`: what to say instead of a call."""
        ask, functions = self._asked(task)
        blank: list[dict[str, Json]] = [
            {"name": f.name, "arguments": {k: _blank(v) for k, v in f.properties.items()}}
            for f in functions.values()
        ]
        first = blank[0]
        more = {"name": first["name"], "arguments": {**first["arguments"], "stuffing": "x"}}
        return {
            "function": str(first["name"]),
            "all_calls": json.dumps(blank),
            "one_call": json.dumps(first),
            "stuffed_call": json.dumps(more),
            "abstention": ask.abstention or "No function fits.",
        }

    def near(self, task: Task, reference: str) -> Sequence[str]:
        """The calls of the reference once more each, and without the last."""
        ask, functions = self._asked(task)
        parsed = parse(reference, list(functions), notations=ask.notations, wrapping=ask.wrapping)
        if not parsed.calls or "json" not in ask.notations:
            return ()
        calls = [asdict(call) for call in parsed.calls]
        return [json.dumps(calls + calls[:1]), json.dumps(calls[:-1])]

    def _asked(self, task: Task) -> tuple[Ask, dict[str, Function]]:
        """The answer and the functions on offer; raises if they do not fit together."""
        ask = Ask.model_validate(task.answer)
        offered = ask.functions or [
            Function(name=tool.name, description=tool.description, parameters=dict(tool.parameters))
            for tool in task.tools
        ]
        functions = {function.name: function for function in offered}
        if not functions:
            raise _Unsound("no function is on offer")
        unknown = [call.name for call in ask.calls if call.name not in functions]
        if unknown:
            raise _Unsound(f"{unknown[0]!r} must be called and is not on offer")
        return ask, functions


def _shown(call: Expected) -> Json:
    """An expected call as JSON, for evidence."""
    return {"name": call.name, "arguments": call.arguments}


def _abstention(ask: Ask, parsed: Parsed, text: str) -> _Judged:
    if ask.abstention is None:
        right = parsed.outcome == "abstain"
        return _Judged(right=right, outcome=parsed.outcome, reasons=[parsed.why] * bool(parsed.why))
    said = folded(without_thinking(text)).strip(" .!\"'`*")
    if said == folded(ask.abstention).strip(" .!\"'`*"):
        return _Judged(right=True, outcome="abstain")
    why = parsed.why or f"it does not say {ask.abstention!r} and nothing else"
    return _Judged(right=False, outcome=parsed.outcome, reasons=[why])


def _calls(ask: Ask, parsed: Parsed, functions: Mapping[str, Function]) -> _Judged:
    if parsed.outcome != "call":
        why = parsed.why or "no function was called"
        return _Judged(right=False, outcome=parsed.outcome, reasons=[why])

    def reason(expected: Expected, call: Call) -> str:
        return mismatch(call, expected, functions[expected.name], ask)

    matched = pairs(ask.calls, parsed.calls, lambda e, c: not reason(e, c))
    most = max(len(ask.calls), len(parsed.calls))
    met, used = {i for i, _ in matched}, {j for _, j in matched}
    reasons: list[str] = []
    for i, expected in enumerate(ask.calls):
        spare = (call for j, call in enumerate(parsed.calls) if j not in used)
        rivals = [call for call in spare if call.name == expected.name]
        if i not in met:
            why = reason(expected, rivals[0]) if rivals else "never called so"
            reasons.append(f"{expected.name}: {why}")
    if len(parsed.calls) > len(ask.calls):
        reasons.append(f"{len(parsed.calls)} calls, not {len(ask.calls)}")
    names = Counter(call.name for call in ask.calls) & Counter(call.name for call in parsed.calls)
    return _Judged(
        right=len(matched) == most,
        outcome="call",
        calls=len(matched) / most,
        names=names.total() / most,
        reasons=reasons,
    )


def _blank(schema: Json) -> Json:
    kind = schema.get("type") if isinstance(schema, dict) else None
    blanks: dict[Json, Json] = {
        "integer": 0,
        "number": 0,
        "float": 0.0,
        "boolean": False,
        "array": [],
        "tuple": [],
        "object": {},
        "dict": {},
    }
    return blanks.get(kind, "") if isinstance(kind, str) else ""
