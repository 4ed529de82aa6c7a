"""The verifier `document-answer`: short answers about documents, numbers, lists and citations.

`ask` is the shape of a task's answer, `strings` holds ANLS and token F1, `quantities` reads
numbers with units, `citations` checks quotes, `verifier` judges. May be known by task packs and
the audit.
"""

from headrace.verify.documents.ask import Ask
from headrace.verify.documents.citations import Citation, CitationScore, cite_score
from headrace.verify.documents.quantities import Quantity, read_quantity
from headrace.verify.documents.specimens import KIND
from headrace.verify.documents.strings import anls, exact_match, token_f1
from headrace.verify.documents.verifier import DocumentAnswer

__all__ = [
    "KIND",
    "Ask",
    "Citation",
    "CitationScore",
    "DocumentAnswer",
    "Quantity",
    "anls",
    "cite_score",
    "exact_match",
    "read_quantity",
    "token_f1",
]
