"""The kind `document-answer` and the tasks that it is audited with.

Known by the package only; the audit finds the kind by its entry point.
"""

from __future__ import annotations

import json

from headrace.verify.documents.verifier import DocumentAnswer
from headrace.verify.kinds import Kind, Specimen, Specimens

__all__ = ["KIND", "specimens"]

_REPORT = {
    "1": "Harbour Mills closed its books for the year with revenue of $1.2 million, down 3.5% on "
    "the year before. The loss for the year came to $48 thousand, after a gain of $15 thousand.",
    "2": "The board met at Karlskrona on 14 May. It was chaired by Edda Lindqvist, who has led "
    "the company since its founder, Osk Berg, retired. The next meeting is in Visby.",
    "3": "The mill runs three lines: flour, oat flakes and animal feed. The longest of them, "
    "flour, is 1.4 km from silo to ramp.",
}
_TEXT = "\n".join(f"[{name}] {passage}" for name, passage in _REPORT.items())


def _prompt(question: str, how: str = "as briefly as you can") -> str:
    return f"{_TEXT}\n\nAnswer {how}, between <answer> and </answer>.\nQuestion: {question}"


def _tagged(*answers: str) -> tuple[str, ...]:
    return tuple(f"<answer>{answer}</answer>" for answer in answers)


_CHAIR = Specimen(
    prompt=_prompt("Who chaired the meeting of the board?"),
    answer={"measure": "anls", "references": ["Edda Lindqvist", "E. Lindqvist"]},
    reference="<answer>Edda Lindqvist</answer>",
    right=(*_tagged("edda  lindqvist", "E. Lindqvist"), "Edda Lindqvist"),
    wrong=_tagged("Osk Berg", "Edda Lindqvst", "Edda Lindqvist and Osk Berg", "Lindqvist's"),
)

_PLACE = Specimen(
    prompt=_prompt("Where and when did the board meet?"),
    answer={"measure": "f1", "references": ["at Karlskrona on 14 May", "14 May in Karlskrona"]},
    reference="<answer>at Karlskrona on 14 May</answer>",
    right=_tagged("On 14 May at Karlskrona.", "14 May, in Karlskrona"),
    wrong=_tagged("in Visby", "Karlskrona", "at Karlskrona on 15 May", "14"),
)

_REVENUE = Specimen(
    prompt=_prompt("What was the revenue, in dollars?"),
    answer={"measure": "number", "value": 1_200_000, "unit": "USD"},
    reference="<answer>$1.2 million</answer>",
    right=_tagged("1,200,000", "USD 1.2m", "1200 thousand dollars", "about $1.2M"),
    wrong=_tagged("1.2", "€1.2 million", "$1.2 billion", "(1,200,000)", "$1.2 million or $48"),
)

_RESULT = Specimen(
    prompt=_prompt("What was the result of the year in thousands of dollars? A loss is negative."),
    answer={"measure": "number", "value": -48, "absolute": 0.5},
    reference="<answer>-48</answer>",
    right=_tagged("(48)", "−48.2", "-48"),
    wrong=_tagged("48", "-48%", "-49", "-33"),
)

_LENGTH = Specimen(
    prompt=_prompt("How long is the flour line, with its unit?"),
    answer={"measure": "number", "value": 1.4, "unit": "km", "unit_required": True},
    reference="<answer>1.4 km</answer>",
    right=_tagged("1400 m", "1,400 metres", "1.40 kilometres"),
    wrong=_tagged("1.4", "1.4 m", "1.4 miles", "1.4 kg", "14 km"),
)

_LINES = Specimen(
    prompt=_prompt("Which lines does the mill run?", "with a list"),
    answer={"measure": "list", "items": [["flour"], ["oat flakes", "oats"], ["animal feed"]]},
    reference="<answer>flour; oat flakes; animal feed</answer>",
    right=_tagged('["oats", "animal feed", "flour"]', "- Animal feed\n- Flour\n- Oat flakes"),
    wrong=_tagged("flour; oat flakes", "flour; flour; flour", "flour, oats, animal feed, bran"),
)

_FOUNDER = Specimen(
    prompt=_prompt(
        "Which passage says who founded the company?",
        'with a JSON list of {"passage": its number, "quote": its words}',
    ),
    answer={
        "measure": "citations",
        "passages": _REPORT,
        "evidence": [{"passage": "2", "quote": "its founder, Osk Berg, retired"}],
    },
    reference='<answer>[{"passage": "2", "quote": "its founder, Osk Berg, retired"}]</answer>',
    right=_tagged('```json\n[{"passage": 2, "quote": "its founder,\\nOsk Berg, retired"}]\n```'),
    wrong=_tagged(
        '[{"passage": "3", "quote": "its founder, Osk Berg, retired"}]',
        '[{"passage": "2", "quote": "its founder was Osk Berg"}]',
        json.dumps([{"passage": name, "quote": text} for name, text in _REPORT.items()]),
        '[{"passage": "2", "quote": "Berg"}]',
    ),
)

_UNKNOWN = Specimen(
    prompt=_prompt("Who audits the company? If the text does not say, answer: not stated"),
    answer={"measure": "exact", "unanswerable": "not stated"},
    reference="<answer>not stated</answer>",
    right=("Not stated.",),
    wrong=_tagged("Edda Lindqvist", "The text does not say who, so it is Osk Berg"),
)


def specimens() -> Specimens:
    """One task for each measure, more for numbers, and one without an answer."""
    items = (_CHAIR, _PLACE, _REVENUE, _RESULT, _LENGTH, _LINES, _FOUNDER, _UNKNOWN)
    return Specimens("verify/document-answer", DocumentAnswer(), items)


KIND = Kind(
    id=DocumentAnswer.ref.id,
    version=DocumentAnswer.ref.version,
    title="short answers about documents: ANLS, token F1, numbers with units, lists, citations",
    limits=(
        "ANLS pays for near misses, also of digits unless exact_digits is set; normalisation "
        "drops the articles of English; units are those of the table in quantities, without "
        "powers; a citation is judged by its words and place, not by whether it supports a claim."
    ),
    surfaces=DocumentAnswer.surfaces,
    specimens=specimens,
)
