"""Whether one call is one that is allowed. Pure functions, known by the verifier."""

from __future__ import annotations

import re

from headrace.types import Json
from headrace.verify.structured.comparing import exact_number, folded
from headrace.verify.tools.ask import OMITTED, Ask, Expected, Function, Strings
from headrace.verify.tools.parsing import Call

__all__ = ["mismatch"]

_LOOSE = re.compile(r"(?<!\d)[ ,./\-_*^]|[ ,./\-_*^](?!\d)")


def mismatch(call: Call, expected: Expected, function: Function, ask: Ask) -> str:
    """Why `call` is not the `expected` call of `function`, "" if it is.

    An argument that the schema gives a default may be left out or spelled out: both call the
    same. Anything that neither the expected call nor a default explains is wrong.
    """
    if call.name != expected.name:
        return f"{call.name} is called, not {expected.name}"
    judge = _Arguments(ask.strings, integral_floats=ask.integral_floats)
    return judge.fields(call.arguments, expected.arguments, function.parameters)


class _Arguments:
    def __init__(self, strings: Strings, *, integral_floats: bool) -> None:
        self._strings: Strings = strings
        self._integral_floats = integral_floats

    def fields(self, found: dict[str, Json], allowed: dict[str, list[Json]], schema: Json) -> str:
        """Why the fields of `found` are not those allowed; "" if they are."""
        properties: dict[str, Json] = schema.get("properties") or {}
        required: list[str] = schema.get("required") or []
        for name, value in found.items():
            inner = _schema(properties.get(name))
            is_default = "default" in inner and self._equal(value, inner["default"])
            if name not in allowed:
                if not is_default:
                    return f"{name} was not asked for"
            elif not self._typed(value, inner):
                return f"{name} is not of its type: {value!r:.200}"
            elif not self._any(value, allowed[name], inner) and not (
                is_default and OMITTED in allowed[name]
            ):
                return f"{name} is {value!r:.200}"
        for name in [*allowed, *(key for key in required if key not in allowed)]:
            if name not in found and not self._omittable(name, allowed, properties, required):
                return f"{name} is missing"
        return ""

    def _omittable(
        self,
        name: str,
        allowed: dict[str, list[Json]],
        properties: dict[str, Json],
        required: list[str],
    ) -> bool:
        values = allowed.get(name, [])
        if OMITTED in values:
            return True
        schema = _schema(properties.get(name))
        if name in required or "default" not in schema:
            return False
        return self._any(schema["default"], values, schema)

    def _any(self, value: Json, allowed: list[Json], schema: dict[str, Json]) -> bool:
        return any(self._matches(value, option, schema) for option in allowed if option != OMITTED)

    def _matches(self, value: Json, option: Json, schema: dict[str, Json]) -> bool:
        if isinstance(option, dict):
            return isinstance(value, dict) and not self.fields(value, option, schema)
        if isinstance(option, list):
            items = _schema(schema.get("items"))
            return (
                isinstance(value, list)
                and len(value) == len(option)
                and all(self._matches(v, o, items) for v, o in zip(value, option, strict=True))
            )
        return self._equal(value, option)

    def _equal(self, value: Json, other: Json) -> bool:
        """The same JSON value; a bool is no number, and strings are as alike as the task says."""
        if isinstance(value, bool) or isinstance(other, bool):
            return value is other
        if isinstance(value, (int, float)) and isinstance(other, (int, float)):
            return exact_number(value) == exact_number(other)
        if isinstance(value, str) and isinstance(other, str):
            return _spelled(value, self._strings) == _spelled(other, self._strings)
        if isinstance(value, list) and isinstance(other, list):
            return len(value) == len(other) and all(map(self._equal, value, other))
        if isinstance(value, dict) and isinstance(other, dict):
            return value.keys() == other.keys() and all(
                self._equal(value[key], other[key]) for key in value
            )
        return value is None and other is None

    def _typed(self, value: Json, schema: dict[str, Json]) -> bool:
        """Whether `value` is of the schema's type, inside too; types of BFCL are known."""
        kinds = schema.get("type")
        options = kinds if isinstance(kinds, list) else [kinds]
        if not any(self._is(value, kind) for kind in options):
            return False
        if isinstance(value, list):
            items = _schema(schema.get("items"))
            return all(self._typed(item, items) for item in value)
        if isinstance(value, dict):
            properties = schema.get("properties") or {}
            return all(
                self._typed(item, _schema(properties.get(key))) for key, item in value.items()
            )
        return True

    def _is(self, value: Json, kind: Json) -> bool:
        match kind:
            case "string":
                return isinstance(value, str)
            case "boolean":
                return isinstance(value, bool)
            case "integer":
                whole = isinstance(value, int) or (
                    self._integral_floats and isinstance(value, float) and value.is_integer()
                )
                return whole and not isinstance(value, bool)
            case "number" | "float" | "double":
                return isinstance(value, (int, float)) and not isinstance(value, bool)
            case "array" | "list" | "tuple":
                return isinstance(value, list)
            case "object" | "dict":
                return isinstance(value, dict)
            case "null":
                return value is None
            case _:
                return True


def _schema(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def _spelled(text: str, strings: Strings) -> str:
    if strings == "exact":
        return text
    text = folded(text)
    return _LOOSE.sub("", text).replace("'", '"') if strings == "loose" else text
