"""Rules about words and letters that must, or must not, occur."""

from __future__ import annotations

import re
import unicodedata

from headrace.verify.instructions.prose import Reply, plain_word
from headrace.verify.instructions.rules import (
    COUNT,
    RELATION,
    TEXT,
    TEXTS,
    Args,
    Example,
    Finding,
    Rule,
    always,
    compared,
    counted,
    is_upper_bound,
)

__all__ = ["RULES", "occurrences", "says_word"]

_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")


def occurrences(text: str, keyword: str) -> int:
    """How often a word or phrase stands in `text` as whole words, in any case.

    Any space between its words is as good as another. Scripts that are written without spaces
    have no word edges.

    >>> occurrences("Art starts an ART, state of the  art.", "art")
    3
    """
    keyword = plain_word(unicodedata.normalize("NFC", keyword.strip()))
    inner = r"\s+".join(re.escape(part) for part in keyword.split())
    left = r"(?<!\w)" if keyword[0].isalnum() and not _UNSPACED.match(keyword[0]) else ""
    right = r"(?!\w)" if keyword[-1].isalnum() and not _UNSPACED.match(keyword[-1]) else ""
    return len(re.findall(f"{left}{inner}{right}", plain_word(text)))


def says_word(word: str, keyword: str) -> bool:
    """Whether a single word is the keyword, whatever its case."""
    return plain_word(word) == plain_word(keyword.strip())


def _existence(reply: Reply, args: Args) -> Finding:
    missing = [word for word in args["keywords"] if not occurrences(reply.text, word)]
    return Finding(not missing, {"missing": missing})


def _frequency(reply: Reply, args: Args) -> Finding:
    count = occurrences(reply.text, args["keyword"])
    if args["relation"] == "less than":
        count = max(count, occurrences(reply.looks.text, args["keyword"]))
    return counted(count, args["frequency"], args["relation"], "times")


def _forbidden(reply: Reply, args: Args) -> Finding:
    used = [
        word
        for word in args["forbidden_words"]
        if occurrences(reply.text, word) or occurrences(reply.looks.text, word)
    ]
    return Finding(not used, {"used": used})


def _letters(reply: Reply, args: Args) -> Finding:
    letter, relation = args["letter"].casefold(), args["let_relation"]
    count = reply.text.casefold().count(letter)
    if relation == "less than":
        count = max(count, reply.looks.text.casefold().count(letter))
    return counted(count, args["let_frequency"], relation, "times")


_TIMES = {"keyword1": 1, "keyword2": 2, "keyword3": 3, "keyword4": 5, "keyword5": 7}


def _multiple(reply: Reply, args: Args) -> Finding:
    counts = {args[name]: occurrences(reply.text, args[name]) for name in _TIMES}
    return Finding(all(counts[args[name]] == times for name, times in _TIMES.items()), counts)


def _in_sentence(reply: Reply, args: Args) -> Finding:
    number = args["N"]
    if len(reply.sentences) < number:
        return Finding(False, f"{len(reply.sentences)} sentences")
    sentence = reply.sentences[number - 1]
    return Finding(occurrences(sentence, args["word"]) > 0, sentence)


def _at_position(reply: Reply, args: Args) -> Finding:
    number, place = args["n"], args["m"]
    if len(reply.sentences) < number:
        return Finding(False, f"{len(reply.sentences)} sentences")
    words = Reply(reply.sentences[number - 1]).words
    if len(words) < place:
        return Finding(False, f"{len(words)} words in that sentence")
    return Finding(says_word(words[place - 1], args["keyword"]), words[place - 1])


def _second_and_penultimate(reply: Reply, args: Args) -> Finding:
    words = reply.words
    if len(words) < 4:
        return Finding(False, f"{len(words)} words")
    return Finding(
        all(says_word(words[place], args["keyword"]) for place in (1, -2)),
        {"second": words[1], "second to last": words[-2]},
    )


def _capitals(reply: Reply, args: Args) -> Finding:
    loud = [
        word for word in reply.words if word.isupper() and sum(char.isalpha() for char in word) > 1
    ]
    bound, relation = args["capital_frequency"], args["capital_relation"]
    return Finding(compared(len(loud), bound, relation), {"count": len(loud), "words": loud})


RULES = (
    Rule(
        id="keywords:existence",
        says="Use each of these words: {keywords}.",
        check=_existence,
        schema={"keywords": TEXTS},
        example=Example({"keywords": ["river", "stone bridge"]}, "A stone\nbridge over the River."),
    ),
    Rule(
        id="keywords:frequency",
        says='Use the word "{keyword}" {relation} {frequency} times.',
        check=_frequency,
        schema={"keyword": TEXT, "frequency": COUNT, "relation": RELATION},
        passive=is_upper_bound,
        example=Example(
            {"keyword": "tea", "frequency": 2, "relation": "at least"}, "Tea is tea, she said."
        ),
    ),
    Rule(
        id="keywords:forbidden_words",
        says="Do not use any of these words: {forbidden_words}.",
        check=_forbidden,
        schema={"forbidden_words": TEXTS},
        passive=always,
        example=Example({"forbidden_words": ["art"]}, "The start was smart and apart."),
    ),
    Rule(
        id="keywords:letter_frequency",
        says='Use the letter "{letter}" {let_relation} {let_frequency} times.',
        check=_letters,
        schema={
            "letter": {"type": "string", "pattern": r"^\S$"},
            "let_frequency": COUNT,
            "let_relation": RELATION,
        },
        passive=is_upper_bound,
        example=Example(
            {"letter": "z", "let_frequency": 3, "let_relation": "at least"}, "Zoe buzzes along."
        ),
    ),
    Rule(
        id="count:keywords_multiple",
        says='Use the word "{keyword1}" once, "{keyword2}" twice, "{keyword3}" three times,'
        ' "{keyword4}" five times, and "{keyword5}" seven times.',
        check=_multiple,
        schema=dict.fromkeys(_TIMES, TEXT),
        example=Example(
            dict(zip(_TIMES, ("art", "sea", "sky", "sun", "fog"), strict=True)),
            "Art! Sea sea. Sky sky sky. Sun sun sun sun sun. Fog fog fog fog fog fog fog starts.",
        ),
    ),
    Rule(
        id="sentence:keyword",
        says='Use the word "{word}" in sentence number {N}.',
        check=_in_sentence,
        schema={"word": TEXT, "N": COUNT},
        example=Example({"word": "eat", "N": 2}, "Dr. Lee sat down. We eat at noon."),
    ),
    Rule(
        id="words:keywords_specific_position",
        says='Make "{keyword}" word number {m} of sentence number {n}.',
        check=_at_position,
        schema={"keyword": TEXT, "n": COUNT, "m": COUNT},
        example=Example(
            {"keyword": "target", "n": 1, "m": 3}, "Alpha, (beta) target, gamma. And more."
        ),
    ),
    Rule(
        id="words:words_position",
        says='Make "{keyword}" both the second and the second to last word of the reply.',
        check=_second_and_penultimate,
        schema={"keyword": TEXT},
        example=Example({"keyword": "whisper"}, '"Please, whisper to me or whisper again!"'),
    ),
    Rule(
        id="change_case:capital_word_frequency",
        says="Write {capital_relation} {capital_frequency} words in capital letters throughout.",
        check=_capitals,
        schema={"capital_frequency": COUNT, "capital_relation": RELATION},
        passive=is_upper_bound,
        example=Example(
            {"capital_frequency": 2, "capital_relation": "at least"}, "This is VERY WELL-KNOWN."
        ),
    ),
)
