"""Code verifiers: functions called case by case, and programs that read and print.

`functions` and `programs` are the verifiers. `calls` runs a function in a sandbox, where
`runner` is what runs; `values` and `outputs` compare, here. `suites` says what a task's answer
holds, `extract` finds the attempt, `signs` looks for tricks, `places` hides installed answers,
`assertions` makes cases of assertions. May be known by task packs and the audit.
"""

from headrace.verify.code.functions import CodeFunctions
from headrace.verify.code.programs import CodePrograms
from headrace.verify.code.specimens import FUNCTIONS, PROGRAMS
from headrace.verify.code.suites import FunctionSuite, ProgramSuite

__all__ = [
    "FUNCTIONS",
    "PROGRAMS",
    "CodeFunctions",
    "CodePrograms",
    "FunctionSuite",
    "ProgramSuite",
]
