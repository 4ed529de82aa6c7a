"""Verifiable instructions: the 25 of IFEval and the 58 of IFBench, and the kind `instructions`.

    registry    ids, arguments, plain wording          orders      what a task asks
    rules       what a rule is                         answered    is it an answer at all
    prose       words, sentences, paragraphs           verifier    the verdict
    disguise    what a reader sees                     imports     rows of published data
    languages, syllables, lexicon, common_words        what is known of languages
    keywords, length, content, layout, words, sentences, customs   the rules, by family

Everything here is a pure function and deterministic: no model, no download, no chance. May be
known by task packs and the audit; knows the vocabulary and what verifiers share.
"""

from __future__ import annotations

from headrace.verify.instructions.imports import Imported, from_row
from headrace.verify.instructions.registry import RULES, arguments, describe, schema
from headrace.verify.instructions.rules import Finding, Rule
from headrace.verify.instructions.specimens import specimens
from headrace.verify.instructions.verifier import ID, VERSION, Instructions
from headrace.verify.kinds import Kind

__all__ = [
    "KIND",
    "RULES",
    "Finding",
    "Imported",
    "Instructions",
    "Rule",
    "arguments",
    "describe",
    "from_row",
    "schema",
]

KIND = Kind(
    id=ID,
    version=VERSION,
    title="Replies that must follow instructions a program can check (IFEval, IFBench)",
    limits="Says how a reply is made, never whether it is right or sensible: gate it with a"
    " verifier of the content. Verbs, stop words and syllables are those of English, by lists and"
    " rules; languages are told by script and common words and need a sentence; a list of required"
    " words is a use of them. Replies of more than 100,000 characters score 0.",
    surfaces=("instruction", "text"),
    specimens=specimens,
)
