"""The verifier `final-integer`: the last number in the text is the answer.

One rule, so that a text can bet on one number only: listing every candidate ends in one of
them. The last number must be a plain integer that is said as a result. A number that is part
of something else (`9/3`, `7%`, `1e3`, `12:30`, `7th`), digits outside ASCII, and the last
operand of an expression that was left standing (`0 + 4`) are no answer, and nor is the number
before them.

The answer may stand in the question (`2 + 0`), so repeating the question must not pay: what is
quoted of it is skipped, and one of its numbers is read only where it is the only number said,
or is said as a result (`= 2`, `is 2`), not as an operand (`the sum of 0 and 2`).
"""

from __future__ import annotations

import re
from collections import deque

from headrace.types import Task, Verdict, VerdictPart, VerifierRef
from headrace.verify.base import BaseVerifier
from headrace.verify.verdicts import scored

__all__ = ["FinalInteger", "read_final_integer"]

MAX_DIGITS = 18

_TOKEN = re.compile(r"(?<![^\W_])\.?\d[\w.,/:]*(?:\s?\\?%)?")
_INTEGER = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.0{1,18})?", re.ASCII)
_OPERAND = re.compile(r"[\d)][ \t]*(?:[-+*/×÷·^]|\\times|\\cdot|\\div|\bx)[ \t(*$-]*$")
_RESULT = re.compile(
    r"(?:[=:→⇒\n]|\\boxed|\b(?:is|are|was|be|equals?|makes?|gives?|leaves?|leaving|have|has|left|"
    r"becomes?|still|now|total|answer|result|so|thus|therefore))\W*(?:[^\W\d]+\W+){0,2}$",
    re.IGNORECASE,
)
_ASKED = re.compile(r"\d+", re.ASCII)
_MINUS = re.compile(r"(?<!\w)-$")
_MINUS_SIGNS = str.maketrans("−–﹣－", "----")
_LOOK_BACK = 64


def read_final_integer(text: str, question: str = "") -> int | None:
    """The integer that ends `text`, or None if its last number is not a plain integer.

    >>> read_final_integer("3 + 4 = 7, so the answer is **7**.")
    7
    >>> read_final_integer("It is \\boxed{-1,234.0}")
    -1234
    >>> read_final_integer("3 + 4") is None
    True
    >>> said = ("the sum of 0 and 2", "0 + 2 = 2", "2")
    >>> [read_final_integer(text, "What is the sum of 0 and 2?") for text in said]
    [None, 2, 2]
    """
    if question:
        text = _unquoted(text, question)
    text = text.translate(_MINUS_SIGNS).replace("{,}", ",").replace("\\,", ",")
    tokens = deque(_TOKEN.finditer(text), maxlen=2)
    if not tokens:
        return None
    token = tokens.pop()
    digits = token.group().rstrip(".,:/_")
    before = text[max(0, token.start() - _LOOK_BACK) : token.start()]
    if not _INTEGER.fullmatch(digits) or _OPERAND.search(before):
        return None
    digits = digits.partition(".")[0].replace(",", "")
    if len(digits) > MAX_DIGITS:
        return None
    if tokens and digits in _ASKED.findall(question):
        between = text[max(tokens[0].end(), token.start() - _LOOK_BACK) : token.start()]
        if not _RESULT.search(between):
            return None
    return -int(digits) if _MINUS.search(before) else int(digits)


def _unquoted(text: str, question: str) -> str:
    """`text` without the question; nothing of it if it breaks off inside the question."""
    said = text.strip()
    if question.startswith(said) and not said.isdigit():
        return ""
    return text.replace(question, "\n")


class FinalInteger(BaseVerifier):
    """1 if the text ends in the task's integer (`Task.answer`), else 0; never without a score."""

    ref = VerifierRef("final-integer", "2")
    surfaces = ("text", "number")

    def judge(self, task: Task, text: str) -> Verdict:
        """Parts: `answer` 0 or 1, and `extracted` 0 or 1, which weighs nothing."""
        question = task.messages[-1].text if task.messages else ""
        said = read_final_integer(text, question)
        right = float(said is not None and said == task.answer)
        parts = (
            VerdictPart("answer", right),
            VerdictPart("extracted", float(said is not None), 0.0),
        )
        read = "no final integer" if said is None else f"read {said}"
        return scored(self.ref, parts, evidence=f"{read}, expected {task.answer}")
