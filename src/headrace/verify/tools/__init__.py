"""The verifier `tool-calls`: did the policy call the right functions with the right arguments?

`parsing` reads calls in the notations that models write, `matching_calls` compares them with
what is allowed, `verifier` judges, `bfcl` turns lines of that benchmark into answers of tasks.
May be known by task packs and the audit.
"""

from headrace.verify.tools.ask import Ask, Expected, Function
from headrace.verify.tools.bfcl import bfcl_answer
from headrace.verify.tools.parsing import Call, Notation, Parsed, parse
from headrace.verify.tools.specimens import KIND
from headrace.verify.tools.verifier import ToolCalls

__all__ = [
    "KIND",
    "Ask",
    "Call",
    "Expected",
    "Function",
    "Notation",
    "Parsed",
    "ToolCalls",
    "bfcl_answer",
    "parse",
]
