"""The verifier `structured-output`: JSON, YAML, XML or CSV against a schema and an expected value.

`ask` is the shape of a task's answer, `reading` and `worker` read documents (the fragile
readers and the schemas in a child process), `comparing` pays field by field, `verifier` judges,
`specimens` prove it. May be known by task packs and the audit.
"""

from headrace.verify.structured.ask import Ask, CsvRules, Rule
from headrace.verify.structured.comparing import Comparison, Difference, compare
from headrace.verify.structured.specimens import KIND
from headrace.verify.structured.verifier import StructuredOutput

__all__ = [
    "KIND",
    "Ask",
    "Comparison",
    "CsvRules",
    "Difference",
    "Rule",
    "StructuredOutput",
    "compare",
]
