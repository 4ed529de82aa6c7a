"""The verifier `document-answer`: short answers, numbers, lists and citations.

May be known by task packs and the audit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import ValidationError

from headrace.types import Json, Task, Verdict, VerdictPart, VerifierRef
from headrace.verify.answers import tagged, without_thinking
from headrace.verify.base import BaseVerifier
from headrace.verify.documents.ask import Ask
from headrace.verify.documents.citations import Citation, cite_score
from headrace.verify.documents.quantities import convert, read_quantity, unit_name
from headrace.verify.documents.strings import anls, disguised, exact_match, token_f1
from headrace.verify.kinds import Surface
from headrace.verify.matching import pairs
from headrace.verify.strict_json import Malformed, read_json
from headrace.verify.structured.comparing import exact_number, folded
from headrace.verify.verdicts import hack, scored, unjudged
from headrace.verify.wrapping import unwrapped

__all__ = ["DocumentAnswer", "read_list"]

_DIGITS = re.compile(r"\d+")
_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")
_STUFFED = 5
_MOST_CITATIONS = 50


class _Unsound(Exception):
    """The task's answer is at fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """A score before any threshold, what was understood, and whether everything was said."""

    value: float
    read: Json
    why: str = ""
    trick: bool = False


class DocumentAnswer(BaseVerifier):
    """Judges an answer about a document against `Task.answer`, whose shape is `Ask`.

    The answer stands in the last pair of `<answer>` tags, or is the whole text without its
    thinking. score = the measure's value (exact and number: 0 or 1; ANLS 0 or above a half; f1,
    list and citations 0 unless above `least`). Parts: `answer` the score; `raw` (before
    `least`), `extracted` (there were tags) and `hack` weigh nothing.
    """

    ref = VerifierRef("document-answer", "1")
    surfaces: ClassVar[tuple[Surface, ...]] = ("text", "document")

    def judge(self, task: Task, text: str) -> Verdict:
        """The verdict; without a score only if the task's answer is malformed."""
        try:
            ask = Ask.model_validate(task.answer)
            said = tagged(without_thinking(text))
            answer = without_thinking(text).strip() if said is None else said
            measured = _measure(ask, answer)
        except ValidationError as error:
            return unjudged(self.ref, "task", f"the task's answer: {error}")
        except _Unsound as error:
            return unjudged(self.ref, "task", str(error))
        score = measured.value if measured.value > _least(ask) else 0.0
        facts: dict[str, Json] = {
            "measure": ask.measure,
            "expected": _expected(ask),
            "said": answer,
            "read": measured.read,
        }
        if measured.why:
            facts["why"] = measured.why
        parts = (
            VerdictPart("answer", score, 1.0),
            VerdictPart("raw", measured.value, 0.0),
            VerdictPart("extracted", float(said is not None), 0.0),
            hack(measured.trick),
        )
        return scored(self.ref, parts, evidence=facts)

    def floor(self, task: Task) -> float:
        """What the whole prompt, quoted as the answer, is paid: 0 with the usual `least`."""
        ask = Ask.model_validate(task.answer)
        if ask.measure not in ("f1", "list"):
            return 0.0
        prompt = "\n".join(message.text for message in task.messages)
        value = _measure(ask, prompt).value
        return value if value > _least(ask) else 0.0

    def hints(self, task: Task) -> Mapping[str, str]:
        """`document`: all that the prompt says, on one line; `numbers`: every number in it."""
        prompt = "\n".join(message.text for message in task.messages)
        numbers = re.findall(r"\d[\d.,]*\d|\d", prompt)
        return {"document": " ".join(prompt.split()), "numbers": ", ".join(numbers) or "0"}

    def near(self, task: Task, reference: str) -> Sequence[str]:
        """For numbers: ten times as much, and the other sign."""
        del reference
        ask = Ask.model_validate(task.answer)
        if ask.value is None or ask.value == 0:
            return ()
        return [f"<answer>{ask.value * 10} {ask.unit}</answer>", f"<answer>{-ask.value}</answer>"]


def read_list(text: str) -> list[str]:
    """The items of a JSON list of strings and numbers, or of lines (bullets and numbers are
    dropped), or else what stands between semicolons, or else between commas.

    >>> read_list("- red\\n- blue")
    ['red', 'blue']
    """
    text = text.strip()
    if text.startswith("["):
        try:
            value = read_json(text)
        except Malformed:
            value = None
        if isinstance(value, list):
            return [item if isinstance(item, str) else str(item) for item in value]
    lines = [_BULLET.sub("", line).strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1:
        return lines
    separator = ";" if ";" in text else ","
    pieces = (_BULLET.sub("", piece).strip() for piece in text.split(separator))
    return [piece for piece in pieces if piece]


def _least(ask: Ask) -> float:
    return ask.least if ask.measure in ("f1", "list", "citations") and _has_answer(ask) else 0.0


def _has_answer(ask: Ask) -> bool:
    return bool(ask.references) or ask.measure in ("number", "list", "citations")


def _expected(ask: Ask) -> Json:
    match ask.measure:
        case "number":
            return f"{ask.value} {ask.unit}".strip()
        case "list":
            return ask.items
        case "citations":
            return [item.model_dump() for item in ask.evidence]
        case _:
            return ask.references or ask.unanswerable


def _measure(ask: Ask, answer: str) -> _Measured:
    if not _has_answer(ask):
        right = folded(answer).strip(" .!") == folded(ask.unanswerable).strip(" .!")
        return _Measured(value=float(right), read=answer, why="the document has no answer")
    spellings = ask.references + [spelling for item in ask.items for spelling in item]
    if ask.measure not in ("number", "citations") and disguised(answer, spellings):
        return _Measured(value=0.0, read=answer, why="characters in disguise", trick=True)
    match ask.measure:
        case "number":
            return _number(ask, answer)
        case "list":
            return _list(ask, answer)
        case "citations":
            return _citations(ask, answer)
        case _:
            return _string(ask, answer)


def _string(ask: Ask, answer: str) -> _Measured:
    said = folded(answer)
    trick = any(
        folded(reference) in said and len(said) > _STUFFED * len(reference) + 40
        for reference in ask.references
    )
    match ask.measure:
        case "exact":
            value = float(exact_match(answer, ask.references))
        case "f1":
            value = token_f1(answer, ask.references)
        case _:
            digits = _DIGITS.findall(answer)
            references = [
                reference
                for reference in ask.references
                if not ask.exact_digits or _DIGITS.findall(reference) == digits
            ]
            value = anls(answer, references)
    return _Measured(value=value, read=answer, trick=trick)


def _number(ask: Ask, answer: str) -> _Measured:
    assert ask.value is not None
    quantity = read_quantity(answer, decimal_comma=ask.decimal_comma)
    if quantity is None:
        several = len(_DIGITS.findall(answer)) > _STUFFED
        return _Measured(value=0.0, read=None, why="not one number", trick=several)
    read = f"{float(quantity.value)} {quantity.unit}".strip()
    if not quantity.unit and not ask.unit_required:
        value = quantity.value
    else:
        found = convert(quantity, ask.unit)
        if found is None:
            why = f"it is in {quantity.unit or 'no unit'}, not {unit_name(ask.unit) or 'a number'}"
            return _Measured(value=0.0, read=read, why=why)
        value = found
    meant = exact_number(ask.value)
    allowed = max(exact_number(ask.absolute), exact_number(ask.relative) * abs(meant))
    return _Measured(value=float(abs(value - meant) <= allowed), read=read)


def _list(ask: Ask, answer: str) -> _Measured:
    said = read_list(answer)
    if len(said) > 4 * len(ask.items) + 20:
        return _Measured(value=0.0, read=said[:20], why=f"{len(said)} items", trick=True)
    if ask.ordered:
        both = zip(ask.items, said, strict=False)
        right = sum(exact_match(item, spellings) for spellings, item in both)
    else:
        matched = pairs(ask.items, said, lambda spellings, item: exact_match(item, spellings))
        right = len(matched)
    return _Measured(value=2 * right / (len(ask.items) + len(said)), read=said)


def _citations(ask: Ask, answer: str) -> _Measured:
    try:
        cited = _cited(answer)
    except Malformed as error:
        return _Measured(value=0.0, read=None, why=error.why, trick=error.trick)
    evidence = [Citation(item.passage, item.quote) for item in ask.evidence]
    try:
        score = cite_score(ask.passages, evidence, cited)
    except ValueError as error:
        raise _Unsound(str(error)) from None
    false = [f"{citation.passage}: {citation.quote}" for citation in score.false]
    read = {"precision": score.precision, "recall": score.recall, "false": false}
    return _Measured(value=score.f1, read=read)


def _cited(answer: str) -> list[Citation]:
    document = unwrapped(answer, ("json", ""), "fence")
    if document is None:
        raise Malformed("no JSON list of citations")
    value = read_json(document)
    if not isinstance(value, list) or len(value) > _MOST_CITATIONS:
        raise Malformed(f"no list of at most {_MOST_CITATIONS} citations")
    cited: list[Citation] = []
    for item in value:
        match item:
            case {"passage": str() | int() as passage, "quote": str() as quote} if len(item) == 2:
                cited.append(Citation(str(passage), quote))
            case _:
                raise Malformed("a citation is an object with passage and quote")
    return cited
