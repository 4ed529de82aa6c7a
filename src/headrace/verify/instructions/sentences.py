"""Rules about sentences and paragraphs as they follow each other."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from headrace.verify.instructions.prose import Reply, closing
from headrace.verify.instructions.rules import COUNT, Args, Example, Finding, Rule

__all__ = ["RULES"]


def _kinds(reply: Reply) -> Counter[str]:
    return Counter(closing(sentence) for sentence in reply.sentences)


def _two_to_one(reply: Reply, args: Args) -> Finding:
    del args
    kinds = _kinds(reply)
    ok = kinds["?"] > 0 and kinds["."] == 2 * kinds["?"]
    return Finding(ok, {"declarative": kinds["."], "interrogative": kinds["?"]})


def _balanced(reply: Reply, args: Args) -> Finding:
    del args
    kinds = _kinds(reply)
    ok = kinds["."] == kinds["?"] == kinds["!"] > 0
    return Finding(ok, {mark: kinds[mark] for mark in ".?!"})


def _three_alike(reply: Reply, args: Args) -> Finding:
    del args
    lengths = [len(sentence) for sentence in reply.sentences]
    again = sorted(word for word, count in Counter(reply.lowered).items() if count > 1)
    ok = len(lengths) == 3 and len(set(lengths)) == 1 and not again
    return Finding(ok, {"characters": lengths, "repeated": again})


def _alliterating(reply: Reply, args: Args) -> Finding:
    del args
    runs = [_longest_run(Reply(sentence).lowered) for sentence in reply.sentences]
    ok = len(runs) > 1 and all(one < two for one, two in pairwise(runs))
    return Finding(ok, {"longest runs": runs})


def _longest_run(words: list[str]) -> int:
    longest = run = 0
    before = ""
    for word in words:
        run = run + 1 if word[0] == before else 1
        before = word[0]
        longest = max(longest, run)
    return longest


def _growing(reply: Reply, args: Args) -> Finding:
    counts = [len(Reply(sentence).words) for sentence in reply.sentences]
    step = args["small_n"]
    ok = len(counts) > 1 and all(b - a == step for a, b in pairwise(counts))
    return Finding(ok, {"words": counts})


def _chained(reply: Reply, args: Args) -> Finding:
    del args
    words = [Reply(sentence).lowered for sentence in reply.sentences]
    broken = [f"{one[-1]} / {two[0]}" for one, two in pairwise(words) if one[-1] != two[0]]
    return Finding(len(words) > 1 and not broken, {"broken": broken, "sentences": len(words)})


def _framed(reply: Reply, args: Args) -> Finding:
    del args
    parts = [words for line in reply.lines if (words := Reply(line).lowered)]
    broken = [
        f"{words[0]} ... {words[-1]}" for words in parts if len(words) < 3 or words[0] != words[-1]
    ]
    return Finding(bool(parts) and not broken, {"broken": broken, "paragraphs": len(parts)})


RULES = (
    Rule(
        id="ratio:sentence_type",
        says="Write twice as many statements as questions.",
        check=_two_to_one,
        example=Example({}, '"It rains." We stay. Do we read?'),
    ),
    Rule(
        id="ratio:sentence_balance",
        says="Write equally many statements, questions and exclamations.",
        check=_balanced,
        example=Example({}, "It rains. Do we stay? We do!"),
    ),
    Rule(
        id="ratio:sentence_words",
        says="Write three sentences of the same number of characters, and use no word twice.",
        check=_three_alike,
        example=Example({}, "Cats nap. Dogs run. Fish eat."),
    ),
    Rule(
        id="sentence:alliteration_increment",
        says="Let each sentence have a longer run of words with one first letter than the one"
        " before.",
        check=_alliterating,
        example=Example({}, "Rivers meet. Big boats sail. Six silver seals sang."),
    ),
    Rule(
        id="sentence:increment",
        says="Let each sentence have exactly {small_n} more words than the one before.",
        check=_growing,
        schema={"small_n": COUNT},
        example=Example({"small_n": 1}, "It's late. We don't mind. Mr. Fox sleeps well."),
    ),
    Rule(
        id="words:last_first",
        says="Begin each sentence with the last word of the one before.",
        check=_chained,
        example=Example({}, 'We saw the sea. "Sea" means water. Water is life.'),
    ),
    Rule(
        id="words:paragraph_last_first",
        says="End each paragraph with the word it begins with; put each on a new line.",
        check=_framed,
        example=Example({}, "Rain follows rain.\n\nSun brings more sun!"),
    ),
)
