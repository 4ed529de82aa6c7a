"""The child process in which texts meet readers and schemas that they could keep busy.

Started as `python -m headrace.verify.structured.worker`. Requests and replies:

- `{"op": "schema", "schema", "formats", "value"}` -> `{"errors": [text, ...]}`, or
  `{"broken": why}` where the schema itself is at fault;
- `{"op": "yaml", "text", "version"}` -> `{"value"}` or `{"malformed": why, "trick"}`;
- `{"op": "xml", "text", "required": {path: text or null}}` -> `{"value", "missing": [path, ...]}`,
  `{"malformed", "trick"}` or `{"broken"}`.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator, SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from headrace.types import Json, canonical_json
from headrace.verify.child import serve
from headrace.verify.strict_json import Malformed
from headrace.verify.structured.comparing import exact_number
from headrace.verify.structured.formats import CHECKER, KNOWN
from headrace.verify.structured.reading import Element, element_value, read_xml, read_yaml

__all__ = ["answer", "main"]

_SHOWN = 5
_DATA = frozenset({"const", "enum", "default", "examples"})
_RECURSION = 6000


def answer(request: Json) -> Json:
    """The reply to a request (see the module)."""
    try:
        match request["op"]:
            case "schema":
                schema = canonical_json(request["schema"])
                return _conforms(_validator(schema, request["formats"]), request["value"])
            case "yaml":
                return {"value": read_yaml(request["text"], request["version"])}
            case "xml":
                root = read_xml(request["text"])
                missing = [p for p, t in request["required"].items() if not _has(root, p, t)]
                return {"value": element_value(root), "missing": missing}
            case other:
                raise ValueError(f"no operation {other!r}")
    except Malformed as error:
        return {"malformed": error.why, "trick": error.trick}
    except _Broken as error:
        return {"broken": str(error)}


class _Broken(Exception):
    """The task's own schema or path is at fault."""


def _conforms(validator: Validator, value: Json) -> Json:
    try:
        errors = list(itertools.islice(validator.iter_errors(value), _SHOWN))
    except (Unresolvable, RecursionError, re.error) as error:
        raise _Broken(f"the schema cannot be applied: {type(error).__name__}: {error}") from None
    return {"errors": [f"{error.json_path}: {error.message[:200]}" for error in errors]}


@lru_cache(maxsize=64)
def _validator(text: str, formats: bool) -> Validator:
    """The validator of a schema; _Broken unless it is sound and stands by itself."""
    schema = json.loads(text)
    kind: Any = Draft202012Validator
    if isinstance(schema, dict) and "$schema" in schema:
        named = schema["$schema"]
        look_up: Any = validator_for
        kind = look_up(schema, default=None) if isinstance(named, str) else None
        if kind is None:
            raise _Broken(f"the draft {named!r} is unknown")
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise _Broken(f"no JSON Schema: {error.json_path}: {error.message[:200]}") from None
    _stands_alone(schema, formats=formats)
    if isinstance(schema, dict):  # named again below, it would bring back the library's class
        schema = {key: value for key, value in schema.items() if key != "$schema"}
    exact = extend(kind, {"multipleOf": _multiple_of})
    return exact(schema, registry=Registry(), format_checker=CHECKER if formats else None)


def _stands_alone(schema: Json, *, formats: bool) -> None:
    parts = list(_subschemas(schema))
    names = {part["$id"] for part in parts if isinstance(part.get("$id"), str)}
    for part in parts:
        for key in ("$ref", "$dynamicRef"):
            ref = part.get(key)
            if isinstance(ref, str) and not ref.startswith("#") and ref not in names:
                raise _Broken(f"the reference {ref!r} leaves the schema")
        form = part.get("format")
        if formats and isinstance(form, str) and form not in KNOWN:
            raise _Broken(f"the format {form!r} is none of {', '.join(sorted(KNOWN))}")


def _subschemas(schema: Json) -> Iterator[dict[str, Json]]:
    """Every object in a schema that is not data."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += [value for key, value in part.items() if key not in _DATA]
        elif isinstance(part, list):
            waiting += part


def _multiple_of(
    validator: Any, divisor: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    """Exact in decimal: 19.99 is a multiple of 0.01, which a quotient of floats denies."""
    del schema
    if validator.is_type(instance, "number"):
        quotient: Fraction = exact_number(instance) / exact_number(divisor)
        if quotient.denominator != 1:
            yield ValidationError(f"{instance!r} is not a multiple of {divisor!r}")


def _has(root: Element, path: str, text: str | None) -> bool:
    try:
        found = root.findall(path)
    except (SyntaxError, KeyError) as error:
        raise _Broken(f"the path {path!r}: {error}") from None
    if text is None:
        return bool(found)
    return any(" ".join("".join(item.itertext()).split()) == text for item in found)


def main() -> None:
    """Serve requests until the parent is gone."""
    sys.setrecursionlimit(_RECURSION)
    serve(lambda: answer)


if __name__ == "__main__":
    main()
