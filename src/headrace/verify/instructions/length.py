"""Rules about how many words, sentences and paragraphs a reply has."""

from __future__ import annotations

import re

from headrace.verify.instructions.keywords import says_word
from headrace.verify.instructions.prose import Reply
from headrace.verify.instructions.rules import (
    COUNT,
    RELATION,
    TEXT,
    WHOLE,
    Args,
    Example,
    Finding,
    Rule,
    counted,
    is_upper_bound,
)

__all__ = ["RULES"]

_DIVIDER = re.compile(r"(?<!\S)\*\*\*(?!\S)")


def _sentences(reply: Reply, args: Args) -> Finding:
    return counted(len(reply.sentences), args["num_sentences"], args["relation"], "sentences")


def _words(reply: Reply, args: Args) -> Finding:
    return counted(len(reply.words), args["num_words"], args["relation"], "words")


def _word_range(reply: Reply, args: Args) -> Finding:
    count = len(reply.words)
    return Finding(args["min_words"] <= count <= args["max_words"], f"{count} words")


def _unique_words(reply: Reply, args: Args) -> Finding:
    count = len(set(reply.lowered))
    return Finding(count >= args["N"], f"{count} different words")


def _divided(reply: Reply, args: Args) -> Finding:
    parts = [Reply(part).words for part in _DIVIDER.split(reply.text)]
    while parts and not parts[-1]:
        parts.pop()
    while parts and not parts[0]:
        parts.pop(0)
    ok = len(parts) == args["num_paragraphs"] and all(parts)
    return Finding(ok, f"{len(parts)} paragraphs, {sum(not part for part in parts)} of them empty")


def _nth_first_word(reply: Reply, args: Args) -> Finding:
    count, number = len(reply.paragraphs), args["nth_paragraph"]
    if count != args["num_paragraphs"] or number > count:
        return Finding(False, f"{count} paragraphs")
    words = Reply(reply.paragraphs[number - 1]).words
    first = words[0] if words else ""
    return Finding(says_word(first, args["first_word"]), f'paragraph {number} begins "{first}"')


RULES = (
    Rule(
        id="length_constraints:number_sentences",
        says="Write {relation} {num_sentences} sentences.",
        check=_sentences,
        schema={"num_sentences": COUNT, "relation": RELATION},
        passive=is_upper_bound,
        example=Example(
            {"num_sentences": 2, "relation": "at least"}, "Mr. Fox ran 2.5 miles. He slept."
        ),
    ),
    Rule(
        id="length_constraints:number_words",
        says="Write {relation} {num_words} words.",
        check=_words,
        schema={"num_words": COUNT, "relation": RELATION},
        passive=is_upper_bound,
        example=Example({"num_words": 5, "relation": "less than"}, "Don't stop well-known rivers."),
    ),
    Rule(
        id="length_constraints:number_paragraphs",
        says="Write {num_paragraphs} paragraphs with the divider *** between them.",
        check=_divided,
        schema={"num_paragraphs": COUNT},
        example=Example({"num_paragraphs": 2}, "A ***bold*** start.\n\n***\n\nThe end of it."),
    ),
    Rule(
        id="length_constraints:nth_paragraph_first_word",
        says="Write {num_paragraphs} paragraphs with blank lines between them. Begin paragraph"
        ' {nth_paragraph} with the word "{first_word}".',
        check=_nth_first_word,
        schema={"num_paragraphs": COUNT, "nth_paragraph": COUNT, "first_word": TEXT},
        example=Example(
            {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
            "\n\nFirst it rained.\n\n\n\n**Then** it stopped.",
        ),
    ),
    Rule(
        id="count:word_count_range",
        says="Write between {min_words} and {max_words} words.",
        check=_word_range,
        schema={"min_words": WHOLE, "max_words": COUNT},
        example=Example({"min_words": 4, "max_words": 5}, "Four words, no more."),
    ),
    Rule(
        id="count:unique_word_count",
        says="Use at least {N} different words.",
        check=_unique_words,
        schema={"N": COUNT},
        example=Example({"N": 4}, "The cat saw the other cat."),
    ),
)
