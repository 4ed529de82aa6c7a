"""Rules about which words a reply is made of, one by one or from one to the next."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from itertools import pairwise

from headrace.verify.instructions.lexicon import (
    CONJUNCTIONS,
    MINOR_WORDS,
    NAMES,
    PRONOUNS,
    STOP_WORDS,
    is_verb,
)
from headrace.verify.instructions.prose import Reply, tokens_of
from headrace.verify.instructions.rules import (
    COUNT,
    TEXT,
    Args,
    Example,
    Finding,
    Rule,
    always,
)
from headrace.verify.instructions.syllables import syllables

__all__ = ["RULES"]

_CLUSTER = re.compile(r"[bcdfghjklmnpqrstvwxyz]{2}")
_NUMBER = re.compile(r"\d+(?:[.,:/]\d+)*+")
_JAPANESE = re.compile("[\u3005\u3040-\u30ff\u3400-\u9fff\uff66-\uff9f]")
_PUNCTUATION = ".,!?;:"
_INTERROBANG = re.compile(r"\?!|!\?|‽")
_TOLERANCE = 2
_PERCENT = {"type": "number", "minimum": 0, "maximum": 100}
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def _letters(word: str) -> str:
    """The letters and digits of a word, without accents, in lower case."""
    plain = unicodedata.normalize("NFKD", word.casefold())
    return "".join(char for char in plain if char.isalnum())


def _conjunctions(reply: Reply, args: Args) -> Finding:
    used = sorted(CONJUNCTIONS.intersection(reply.lowered))
    return Finding(len(used) >= args["small_n"], {"used": used})


def _names(reply: Reply, args: Args) -> Finding:
    said = {word.removesuffix("'s").removesuffix("’s") for word in reply.words}
    used = [name for name in NAMES if name in said]
    return Finding(len(used) >= args["N"], {"names": used})


def _numbers(reply: Reply, args: Args) -> Finding:
    numbers = _NUMBER.findall(reply.text)
    return Finding(len(numbers) == args["N"], {"numbers": numbers})


def _pronouns(reply: Reply, args: Args) -> Finding:
    used = [word for word in reply.lowered if word.partition("'")[0] in PRONOUNS]
    return Finding(len(used) >= args["N"], f"{len(used)} pronouns")


def _punctuation(reply: Reply, args: Args) -> Finding:
    del args
    rest = _INTERROBANG.sub("", reply.text, count=1)
    missing = [mark for mark in _PUNCTUATION if mark not in rest]
    if rest == reply.text:
        missing.append("?!")
    return Finding(not missing and bool(reply.words), {"missing": missing})


def _japanese(reply: Reply, args: Args) -> Finding:
    every = tokens_of(reply.text)[args["N"] - 1 :: args["N"]]
    wrong = [
        token
        for token in every
        if not all(_JAPANESE.match(char) for char in token if char.isalnum())
    ]
    return Finding(bool(every) and not wrong, {"not Japanese": wrong, "of": len(every)})


def _stop_words(reply: Reply, args: Args) -> Finding:
    if not reply.words:
        return Finding(False, "no words")
    percent = 100 * sum(word in STOP_WORDS for word in reply.lowered) / len(reply.words)
    return Finding(percent <= args["percentage"], f"{percent:.1f} % of {len(reply.words)} words")


def _overlap(reply: Reply, args: Args) -> Finding:
    said, given = _trigrams(reply), _trigrams(Reply(args["reference_text"]))
    if not said:
        return Finding(False, "fewer than three words")
    percent = 100 * len(said & given) / len(said)
    return Finding(abs(percent - args["percentage"]) <= _TOLERANCE, f"{percent:.1f} %")


def _trigrams(reply: Reply) -> set[tuple[str, str, str]]:
    words = reply.lowered
    return set(zip(words, words[1:], words[2:], strict=False))


def _alphabet(reply: Reply, args: Args) -> Finding:
    del args
    first = [_letters(word)[:1] for word in reply.words]
    for here, then in pairwise(first):
        if here not in _ALPHABET or _ALPHABET[(_ALPHABET.index(here) + 1) % 26] != then:
            return Finding(False, f"{here!r} is followed by {then!r}")
    return Finding(len(first) > 1, f"{len(first)} words")


def _vowels(reply: Reply, args: Args) -> Finding:
    del args
    used = sorted(set("aeiou").intersection(_letters(reply.looks.text)))
    one = len([line for line in reply.lines if any(char.isalnum() for char in line)]) == 1
    return Finding(one and len(used) <= 3, {"vowels": used, "lines": len(reply.lines)})


def _clusters(reply: Reply, args: Args) -> Finding:
    del args
    without = [word for word in reply.words if not _CLUSTER.search(_letters(word))]
    return Finding(bool(reply.words) and not without, {"without": without})


def _palindromes(reply: Reply, args: Args) -> Finding:
    del args
    said = {_letters(word) for word in reply.words}
    found = sorted(
        word for word in said if len(word) >= 5 and word == word[::-1] and len(set(word)) > 1
    )
    return Finding(len(found) >= 10, {"palindromes": found})


def _prime_lengths(reply: Reply, args: Args) -> Finding:
    del args
    wrong = [word for word in reply.words if not _is_prime(len(_letters(word)))]
    return Finding(bool(reply.words) and not wrong, {"not prime": wrong})


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def _starts_with_verb(reply: Reply, args: Args) -> Finding:
    del args
    first = reply.lowered[0] if reply.words else ""
    return Finding(is_verb(first) and len(reply.words) > 1, f"the first word is {first!r}")


def _repeats(reply: Reply, args: Args) -> Finding:
    counts = Counter(reply.lowered)
    more = {word: count for word, count in counts.items() if count > args["small_n"]}
    return Finding(bool(counts) and not more, {"more often": more})


def _syllables(reply: Reply, args: Args) -> Finding:
    """Whether odd and even can alternate, where a word with two readings may take either."""
    del args
    parities = [{count % 2 for count in syllables(word)} for word in reply.words]
    for start in (0, 1):
        if all((start + place) % 2 in parity for place, parity in enumerate(parities)):
            return Finding(len(parities) > 1, f"{len(parities)} words")
    counts = [[word, sorted(syllables(word))] for word in reply.words]
    return Finding(False, {"syllables": counts})


def _no_shared_letter(reply: Reply, args: Args) -> Finding:
    del args
    pairs = [
        f"{one} {two}"
        for one, two in pairwise(reply.words)
        if _letters(one)[:1] == _letters(two)[:1]
    ]
    return Finding(len(reply.words) > 1 and not pairs, {"sharing": pairs})


def _title_case(reply: Reply, args: Args) -> Finding:
    del args
    words = [word for word in reply.words if word[0].isalpha()]
    ends = {0, len(words) - 1}
    low = [
        word
        for place, word in enumerate(words)
        if word[0].islower() and (place in ends or word not in MINOR_WORDS)
    ]
    loud = [word for word in words if len(word) > 3 and word.isupper()]
    ok = bool(words) and not low and 2 * len(loud) <= len(words)
    return Finding(ok, {"small": low, "all capitals": len(loud)})


_COUNTS = (
    Rule(
        id="count:conjunctions",
        says="Use at least {small_n} different coordinating conjunctions (and, but, or ...).",
        check=_conjunctions,
        schema={"small_n": {"type": "integer", "minimum": 1, "maximum": len(CONJUNCTIONS)}},
        example=Example({"small_n": 3}, "Rain and snow, but no sun, so we stay."),
    ),
    Rule(
        id="count:person_names",
        says="Mention at least {N} different names of this list: " + ", ".join(NAMES) + ".",
        check=_names,
        schema={"N": {"type": "integer", "minimum": 1, "maximum": len(NAMES)}},
        example=Example({"N": 2}, "Mia met Leo's aunt in Miami."),
    ),
    Rule(
        id="count:numbers",
        says="Use exactly {N} numbers, written in digits.",
        check=_numbers,
        schema={"N": {"type": "integer", "minimum": 0, "maximum": 100_000}},
        example=Example({"N": 3}, "It costs 1,299.50 for 2 days from 12:30."),
    ),
    Rule(
        id="count:pronouns",
        says="Use at least {N} pronouns.",
        check=_pronouns,
        schema={"N": COUNT},
        example=Example({"N": 4}, "She/her is fine; I'm told they are his."),
    ),
    Rule(
        id="count:punctuation",
        says="Use each of . , ! ? ; : and the interrobang ?! at least once.",
        check=_punctuation,
        example=Example({}, "Well, what?! Really? Yes! I saw it: twice; then it went."),
    ),
    Rule(
        id="count:words_japanese",
        says="Make every word number {N}, 2 x {N} and so on Japanese.",
        check=_japanese,
        schema={"N": COUNT},
        example=Example({"N": 2}, "the 川, is 長い。 42 です"),
    ),
    Rule(
        id="ratio:stop_words",
        says="Keep stop words to at most {percentage} % of all words.",
        check=_stop_words,
        schema={"percentage": _PERCENT},
        passive=always,
        example=Example({"percentage": 20}, "Rivers carve deep valleys across the plains."),
    ),
    Rule(
        id="ratio:overlap",
        says="Let {percentage} % (within 2) of your runs of three words be runs of this text:"
        " {reference_text}",
        check=_overlap,
        schema={"reference_text": TEXT, "percentage": _PERCENT},
        copies=True,
        example=Example(
            {"reference_text": "the old river runs slowly to the sea", "percentage": 50},
            "Now the old river runs fast.",
        ),
    ),
)

_CHOICES = (
    Rule(
        id="words:alphabet",
        says="Begin each word with the letter after that of the word before, with A after Z.",
        check=_alphabet,
        example=Example({}, "Xavier yells: zebras always bolt."),
    ),
    Rule(
        id="words:vowel",
        says="Write one paragraph that uses at most three different vowels.",
        check=_vowels,
        passive=always,
        example=Example({}, "We let Ann dance in Persia, it is a happening."),
    ),
    Rule(
        id="words:consonants",
        says="Use only words with two or more consonants side by side.",
        check=_clusters,
        passive=always,
        example=Example({}, "Strong storms struck northern coasts."),
    ),
    Rule(
        id="words:palindrome",
        says="Use at least 10 different one-word palindromes of 5 letters or more.",
        check=_palindromes,
        example=Example(
            {},
            "Level radar: a civic kayak, madam! Refer a rotor, tenet, sagas, solos, stats to it.",
        ),
    ),
    Rule(
        id="words:prime_lengths",
        says="Use only words whose number of letters is prime.",
        check=_prime_lengths,
        passive=always,
        example=Example({}, "It's not the river; we drown in water."),
    ),
    Rule(
        id="words:start_verb",
        says="Begin with a verb.",
        check=_starts_with_verb,
        passive=always,
        example=Example({}, "**Imagine** a long river."),
    ),
    Rule(
        id="words:repeats",
        says="Use no word more than {small_n} times.",
        check=_repeats,
        schema={"small_n": COUNT},
        passive=always,
        example=Example({"small_n": 2}, "The river met the sea."),
    ),
    Rule(
        id="words:odd_even_syllables",
        says="Alternate between words with an odd and an even number of syllables.",
        check=_syllables,
        passive=always,
        example=Example({}, "Water runs under stone bridges."),
    ),
    Rule(
        id="words:no_consecutive",
        says="Let no two words in a row begin with the same letter.",
        check=_no_shared_letter,
        passive=always,
        example=Example({}, "Rivers carve valleys, slowly."),
    ),
    Rule(
        id="format:title_case",
        says="Write Everything in Title Case.",
        check=_title_case,
        passive=always,
        example=Example({}, "The Life of a River and the Sea: What NASA Saw"),
    ),
)

RULES = _COUNTS + _CHOICES
