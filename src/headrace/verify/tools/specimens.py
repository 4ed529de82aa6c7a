"""The kind `tool-calls` and the tasks that it is audited with.

Known by the package only; the audit finds the kind by its entry point.
"""

from __future__ import annotations

import json

from headrace.types import Json
from headrace.verify.kinds import Kind, Specimen, Specimens
from headrace.verify.tools.verifier import ToolCalls

__all__ = ["KIND", "specimens"]

_WEATHER: Json = {
    "name": "get_weather",
    "description": "The weather at a place.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "default": 1},
            "units": {"type": "string", "enum": ["metric", "imperial"], "default": "metric"},
        },
        "required": ["city"],
    },
}
_ROUTE: Json = {
    "name": "maps.route",
    "description": "A route between two places.",
    "parameters": {
        "type": "dict",
        "properties": {
            "stops": {"type": "array", "items": {"type": "string"}},
            "avoid": {
                "type": "dict",
                "properties": {"tolls": {"type": "boolean"}, "ferries": {"type": "boolean"}},
            },
            "max_km": {"type": "float"},
        },
        "required": ["stops"],
    },
}
_MAIL: Json = {
    "name": "send_mail",
    "description": "Send a mail.",
    "parameters": {
        "type": "object",
        "properties": {"to": {"type": "string"}, "subject": {"type": "string"}},
        "required": ["to", "subject"],
    },
}
_FUNCTIONS: list[Json] = [_WEATHER, _ROUTE, _MAIL]
_NO_CALL = "NO CALL"


def _prompt(request: str, how: str) -> str:
    return (
        f"You may call these functions:\n{json.dumps(_FUNCTIONS)}\n{how} If none of them fits, "
        f"answer {_NO_CALL} and nothing else.\nRequest: {request}"
    )


_JSON = 'Answer with a JSON list of {"name": ..., "arguments": {...}}.'
_TAGS = 'Write each call as <tool_call>{"name": ..., "arguments": {...}}</tool_call>.'
_PYTHON = "Answer with a list of calls as in Python, such as [f(a=1)]."
_ANY = "Answer with the calls, in JSON or as in Python."

_ONE = Specimen(
    prompt=_prompt("What will the weather in Turku be like?", _ANY),
    answer={
        "functions": _FUNCTIONS,
        "calls": [{"name": "get_weather", "arguments": {"city": ["Turku", "Turku, Finland"]}}],
    },
    reference='[{"name": "get_weather", "arguments": {"city": "Turku"}}]',
    right=(
        'get_weather(city="Turku")',
        '[get_weather(city="Turku, Finland", days=1, units="metric")]',
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Turku"}}\n</tool_call>',
        '{"function_call": {"name": "get_weather", "arguments": "{\\"city\\": \\"Turku\\"}"}}',
        '```json\n{"name": "get_weather", "parameters": {"city": "Turku", "days": 1}}\n```',
    ),
    wrong=(
        '{"name": "get_weather", "arguments": {"city": "Turku", "days": 3}}',
        '{"name": "get_weather", "arguments": {"city": "Turku", "country": "Finland"}}',
        '{"name": "get_weather", "arguments": {"city": ["Turku"]}}',
        '{"name": "get_weather", "arguments": {"city": "Turku", "days": true}}',
        '{"name": "get_weather", "arguments": {}}',
        'get_weather("Turku")',
        'get_weather(city="Turku"); get_weather(city="Turku, Finland")',
        "I would call get_weather for Turku.",
        _NO_CALL,
    ),
)

_PARALLEL = Specimen(
    prompt=_prompt("Compare the weather of Oulu and Kemi over the next 3 days.", _JSON),
    answer={
        "functions": _FUNCTIONS,
        "notations": ["json"],
        "calls": [
            {"name": "get_weather", "arguments": {"city": ["Oulu"], "days": [3]}},
            {"name": "get_weather", "arguments": {"city": ["Kemi"], "days": [3]}},
        ],
    },
    reference=(
        '[{"name": "get_weather", "arguments": {"city": "Oulu", "days": 3}}, '
        '{"name": "get_weather", "arguments": {"city": "Kemi", "days": 3}}]'
    ),
    right=(
        '[{"name": "get_weather", "arguments": {"days": 3, "city": "Kemi"}}, '
        '{"name": "get_weather", "arguments": {"city": "Oulu", "days": 3, "units": "metric"}}]',
    ),
    wrong=(
        '[{"name": "get_weather", "arguments": {"city": "Oulu", "days": 3}}]',
        '[{"name": "get_weather", "arguments": {"city": "Oulu", "days": 3}}, '
        '{"name": "get_weather", "arguments": {"city": "Oulu", "days": 3}}]',
        '[{"name": "get_weather", "arguments": {"city": "Oulu", "days": 3.0}}, '
        '{"name": "get_weather", "arguments": {"city": "Kemi", "days": 3.0}}]',
    ),
)

_NESTED = Specimen(
    prompt=_prompt("Drive from Bern over Thun to Brig, at most 250 km, without tolls.", _PYTHON),
    answer={
        "functions": _FUNCTIONS,
        "notations": ["python"],
        "strings": "folded",
        "calls": [
            {
                "name": "maps.route",
                "arguments": {
                    "stops": [["Bern", "Thun", "Brig"]],
                    "avoid": [{"tolls": [True], "ferries": [False, ""]}],
                    "max_km": [250],
                },
            }
        ],
    },
    reference='[maps.route(stops=["Bern", "Thun", "Brig"], avoid={"tolls": True}, max_km=250)]',
    right=(
        'maps.route(stops=("bern", "thun", "brig"), avoid={"tolls": True, "ferries": False}, '
        "max_km=250.0)",
    ),
    wrong=(
        'maps.route(stops=["Bern", "Brig", "Thun"], avoid={"tolls": True}, max_km=250)',
        'maps.route(stops=["Bern", "Thun", "Brig"], avoid={"tolls": 1}, max_km=250)',
        'maps.route(stops=["Bern", "Thun", "Brig"], avoid={"tolls": True, "ferries": True}, '
        "max_km=250)",
        'maps.route(stops=["Bern", "Thun", "Brig"], avoid={"tolls": True}, max_km="250")',
        'maps.route(stops="Bern Thun Brig".split(), avoid={"tolls": True}, max_km=250)',
        'maps.route(**{"stops": ["Bern", "Thun", "Brig"]}, avoid={"tolls": True}, max_km=250)',
    ),
)

_TAGGED = Specimen(
    prompt=_prompt("Mail ops@example.org that the subject is Backup done.", _TAGS),
    answer={
        "functions": _FUNCTIONS,
        "notations": ["tags"],
        "calls": [
            {
                "name": "send_mail",
                "arguments": {"to": ["ops@example.org"], "subject": ["Backup done"]},
            }
        ],
    },
    reference=(
        '<tool_call>\n{"name": "send_mail", "arguments": {"to": "ops@example.org", "subject": '
        '"Backup done"}}\n</tool_call>'
    ),
    right=(
        '<think>send_mail it is</think>I will do that.\n<tool_call>{"name": "send_mail", '
        '"arguments": {"subject": "Backup done", "to": "ops@example.org"}}</tool_call>',
    ),
    wrong=(
        '<tool_call>\n{"name": "send_mail", "arguments": {"to": "ops@example.org", "subject": '
        '"Backup done"}}',
        '{"name": "send_mail", "arguments": {"to": "ops@example.org", "subject": "Backup done"}}',
        '<tool_call>{"name": "send_mail", "arguments": "{\\"to\\": \\"ops@example.org\\", '
        '\\"subject\\": \\"Backup done\\"}"}</tool_call>',
    ),
)

_NONE = Specimen(
    prompt=_prompt("Translate 'good night' into Finnish.", _TAGS),
    answer={"functions": _FUNCTIONS, "calls": [], "abstention": _NO_CALL},
    reference=_NO_CALL,
    right=("no call.", "<think>nothing fits</think>\n`NO CALL`"),
    wrong=(
        '<tool_call>\n<tool_call name="get_weather" arguments={"city": "x"}/>\n</tool_call>',
        "<tool_call>{broken",
        '{"name": "translate", "arguments": {"text": "good night"}}',
        "hyvää yötä",
    ),
)


def specimens() -> Specimens:
    """One task for each notation, parallel calls, nested values, and one without a call."""
    items = (_ONE, _PARALLEL, _NESTED, _TAGGED, _NONE)
    return Specimens("verify/tool-calls", ToolCalls(), items)


KIND = Kind(
    id=ToolCalls.ref.id,
    version=ToolCalls.ref.version,
    title="calls of functions with allowed values, in any order, or abstention",
    limits=(
        "All or nothing; calls are judged as text and never made, so different arguments of the "
        "same effect are different unless the task allows both; positional arguments, variables "
        "and expressions are malformed; defaults are known only from the schema, not from prose."
    ),
    surfaces=ToolCalls.surfaces,
    specimens=specimens,
)
