"""Lines of the Berkeley Function Calling Leaderboard as answers of tasks.

Pure functions over the two records of a line: the question with its functions, and what is
allowed. Reads no file; may be known by whoever imports task sets.
"""

from __future__ import annotations

from pydantic import ValidationError

from headrace.errors import UsageError
from headrace.types import Json
from headrace.verify.tools.ask import Ask

__all__ = ["bfcl_answer"]


def bfcl_answer(entry: Json, possible: Json | None = None) -> Json:
    """The `Task.answer` of a line `{"id", "question", "function": [...]}`.

    `possible` is the line of the same id from the possible answers, `{"id", "ground_truth":
    [{function: {argument: [allowed, ...]}}, ...]}`; without one (irrelevance), no call is right.
    Strings are compared loosely, as that benchmark does. UsageError for lines of another shape.

    >>> function = {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}
    >>> line = {"id": "simple_0", "question": [[]], "function": [function]}
    >>> bfcl_answer(line, {"id": "simple_0", "ground_truth": [{"f": {"a": [1]}}]})["calls"]
    [{'name': 'f', 'arguments': {'a': [1]}}]
    """
    where = f"BFCL line {entry.get('id')!r}" if isinstance(entry, dict) else "BFCL line"
    try:
        if possible is not None and possible["id"] != entry["id"]:
            raise UsageError(f"the possible answer is of {possible['id']!r}", where=where)
        functions = entry["function"]
        calls = [
            {"name": name, "arguments": arguments}
            for call in (possible["ground_truth"] if possible is not None else [])
            for name, arguments in call.items()
        ]
        answer = {
            "functions": [
                {
                    "name": function["name"],
                    "description": function.get("description", ""),
                    "parameters": function.get("parameters", {}),
                }
                for function in (functions if isinstance(functions, list) else [functions])
            ],
            "calls": calls,
            "strings": "loose",
        }
        Ask.model_validate(answer)
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        raise UsageError(
            f"not a line of BFCL: {type(error).__name__}: {error}",
            where=where,
            hint="expected {id, question, function} and {id, ground_truth}",
        ) from error
    return answer
