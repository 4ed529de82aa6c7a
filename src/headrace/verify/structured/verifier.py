"""The verifier `structured-output`: is there a document where it was asked for, and is it right?

May be known by task packs and the audit.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import ValidationError

from headrace.types import Json, Task, Verdict, VerdictPart, VerifierRef
from headrace.verify.answers import fences
from headrace.verify.base import BaseVerifier
from headrace.verify.child import ChildError, ChildSpent
from headrace.verify.children import Children
from headrace.verify.kinds import Surface
from headrace.verify.strict_json import Malformed, read_json
from headrace.verify.structured.ask import Ask, Format
from headrace.verify.structured.comparing import Comparison, compare
from headrace.verify.structured.reading import read_csv
from headrace.verify.verdicts import hack, scored, unjudged
from headrace.verify.wrapping import unwrapped

__all__ = ["LANGUAGES", "WORKER", "StructuredOutput"]

WORKER = "headrace.verify.structured.worker"
LANGUAGES: Mapping[Format, tuple[str, ...]] = {
    "json": ("json", ""),
    "yaml": ("yaml", "yml", ""),
    "xml": ("xml", ""),
    "csv": ("csv", ""),
}
"""The names that a fence around a document of each format may have."""

_DEADLINE = 60.0
_SHOWN = 8


class _Unsound(Exception):
    """The task's answer is at fault."""


@dataclass(slots=True, kw_only=True)
class _Findings:
    """What came to light about an attempt, in the order in which it is looked at."""

    extracted: bool = False
    parsed: bool = False
    conforms: bool = False
    comparison: Comparison | None = None
    problem: str = ""
    trick: bool = False


class StructuredOutput(BaseVerifier):
    """Judges a document against `Task.answer`, whose shape is `Ask`.

    score = 0 unless the document stands where it may, can be read strictly, and conforms to the
    schema and the required paths; then the weighted share of right fields (see `compare`) if
    it is above `least`, or 1 without an expected value. Parts: `answer` the score; `extracted`,
    `parsed`, `conforms`, `fields` and `hack` weigh nothing.

    Schemas, YAML and XML meet the text in a child process with `cpu_s` seconds of CPU. A text that
    spends them scores 0, for it could have been shorter; a child that dies or is starved is the
    verifier's fault.
    """

    ref = VerifierRef("structured-output", "1")
    surfaces: ClassVar[tuple[Surface, ...]] = ("text", "structured")

    def __init__(self, children: Children | None = None, *, cpu_s: float = 3.0) -> None:
        self._children = children or Children(WORKER, memory_mb=1024)
        self._cpu_s = cpu_s

    def judge(self, task: Task, text: str) -> Verdict:
        """The verdict; without a score if the task's answer is malformed or the child failed."""
        try:
            ask = Ask.model_validate(task.answer)
        except ValidationError as error:
            return unjudged(self.ref, "task", f"the task's answer: {error}")
        findings = _Findings()
        try:
            self._look(ask, text, findings)
        except _Unsound as error:
            return unjudged(self.ref, "task", str(error))
        except Malformed as error:
            findings.problem, findings.trick = error.why, error.trick
        except ChildSpent:
            findings.problem = f"it could not be checked within {self._cpu_s:g} s of CPU"
        except ChildError as error:
            return unjudged(self.ref, "verifier", str(error))
        return self._verdict(ask, text, findings)

    def hints(self, task: Task) -> Mapping[str, str]:
        """`schema`: the schema, or one made from the expected value; `skeleton`: a document of
        that shape with empty values; `stuffed`: the same with keys that nobody asked for."""
        ask = Ask.model_validate(task.answer)
        shape = ask.rules_of_form
        if not isinstance(shape, dict):
            shape = _shape(ask.expected)
        blank = _blank(shape)
        stuffed = {"stuffing": "x", **blank} if isinstance(blank, dict) else [blank]
        return {
            "schema": json.dumps(shape),
            "skeleton": json.dumps(blank),
            "stuffed": json.dumps(stuffed),
        }

    def near(self, task: Task, reference: str) -> Sequence[str]:
        """For JSON: the expected value with one field changed, one lost, and one too many."""
        del reference
        ask = Ask.model_validate(task.answer)
        if ask.format != "json" or not ask.compares or not isinstance(ask.expected, dict):
            return ()
        return [
            json.dumps(other, ensure_ascii=False)
            for other in itertools.islice(_neighbours(ask.expected), _SHOWN)
            if not compare(ask.expected, other, ask.fields).same
        ]

    def _look(self, ask: Ask, text: str, findings: _Findings) -> None:
        """Fill in `findings` as far as the attempt gets; Malformed says where it does not."""
        document = unwrapped(text, LANGUAGES[ask.format], ask.wrapping)
        if document is None:
            findings.trick = len(fences(text)) > 1
            findings.problem = f"no {ask.format} document where wrapping {ask.wrapping!r} has it"
            return
        findings.extracted = True
        missing: list[str] = []
        match ask.format:
            case "json":
                value = read_json(document)
            case "csv":
                value = read_csv(document, ask.csv)
            case "yaml":
                request = {"op": "yaml", "text": document, "version": ask.yaml}
                value = self._ask(request)["value"]
            case "xml":
                request = {"op": "xml", "text": document, "required": ask.required}
                reply = self._ask(request)
                value, missing = reply["value"], reply["missing"]
        if not ask.scalar and not isinstance(value, (dict, list)):
            raise Malformed(f"a bare {type(value).__name__}, no object or array")
        findings.parsed = True
        if missing:
            findings.problem = f"not in the document: {', '.join(missing[:_SHOWN])}"
            return
        if ask.rules_of_form is not None:
            errors = self._schema_errors(ask, value)
            if errors:
                findings.problem = f"it does not conform: {'; '.join(errors)}"
                return
        findings.conforms = True
        if ask.compares:
            expected = self._expected(ask)
            findings.comparison = compare(
                expected, value, ask.fields, cells=ask.format in ("csv", "xml")
            )

    def _schema_errors(self, ask: Ask, value: Json) -> list[str]:
        request = {
            "op": "schema",
            "schema": ask.rules_of_form,
            "formats": ask.formats,
            "value": value,
        }
        return self._ask(request)["errors"]

    def _expected(self, ask: Ask) -> Json:
        if ask.format != "xml" or not isinstance(ask.expected, str):
            return ask.expected
        try:
            return self._ask({"op": "xml", "text": ask.expected, "required": {}})["value"]
        except Malformed as error:
            raise _Unsound(f"the expected XML: {error.why}") from None

    def _ask(self, request: Json) -> Json:
        reply = self._children.call(request, deadline=_DEADLINE, cpu=self._cpu_s)
        if "broken" in reply:
            raise _Unsound(reply["broken"])
        if "malformed" in reply:
            raise Malformed(reply["malformed"], trick=reply["trick"])
        return reply

    def _verdict(self, ask: Ask, text: str, findings: _Findings) -> Verdict:
        comparison = findings.comparison
        fields = 0.0 if comparison is None else comparison.share
        if comparison is None:
            answer = float(findings.conforms)
        else:
            pays = comparison.same or (ask.partial and fields > ask.least)
            answer = fields if pays else 0.0
        facts: dict[str, Json] = {"found": text[-2000:]}
        if ask.compares:
            facts = {"expected": ask.expected, **facts}
        if findings.problem:
            facts = {"problem": findings.problem, **facts}
        if comparison is not None and comparison.differences:
            facts["wrong"] = [
                {"path": d.path, "expected": d.expected, "found": d.found}
                for d in comparison.differences[:_SHOWN]
            ]
        parts = (
            VerdictPart("answer", answer, 1.0),
            VerdictPart("extracted", float(findings.extracted), 0.0),
            VerdictPart("parsed", float(findings.parsed), 0.0),
            VerdictPart("conforms", float(findings.conforms), 0.0),
            VerdictPart("fields", fields, 0.0),
            hack(findings.trick),
        )
        return scored(self.ref, parts, evidence=facts)


def _shape(value: Json) -> dict[str, Json]:
    """A schema that `value` conforms to."""
    match value:
        case dict():
            properties = {key: _shape(inner) for key, inner in value.items()}
            return {"type": "object", "properties": properties, "required": list(value)}
        case list():
            return {"type": "array", "items": _shape(value[0]) if value else {}}
        case bool():
            return {"type": "boolean"}
        case int() | float():
            return {"type": "number"}
        case None:
            return {"type": "null"}
        case _:
            return {"type": "string"}


def _blank(shape: Json) -> Json:
    """An empty value of a schema's plain shape: what costs no reading."""
    kind = shape.get("type") if isinstance(shape, dict) else None
    match kind:
        case "object":
            return {key: _blank(inner) for key, inner in shape.get("properties", {}).items()}
        case "array":
            return [_blank(shape["items"])] if "items" in shape else []
        case "boolean":
            return False
        case "integer" | "number":
            return 0
        case "string":
            return ""
        case _:
            return None


def _neighbours(value: dict[str, Json]) -> Iterator[Json]:
    for key, inner in value.items():
        yield {k: v for k, v in value.items() if k != key}
        if isinstance(inner, str):
            yield {**value, key: f"{inner}s"}
        elif isinstance(inner, (int, float)) and not isinstance(inner, bool):
            yield {**value, key: inner + 1}
            yield {**value, key: str(inner)}
    yield {**value, "extra": "value"}
