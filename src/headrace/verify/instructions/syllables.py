"""How many syllables an English word may have: from its letters, with the common exceptions.

English spelling does not settle this. The answer is a set: two numbers where speakers differ or
where thes cannot tell. Numbers in digits have no syllables that could be agreed on: {1, 2}.
"""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["syllables"]

_KNOWN: dict[str, tuple[int, ...]] = {
    word: counts
    for counts, words in {
        (1,): "one once the whole moved used lived loved asked walked help world girl"
        " eye eyes you your yours where there here were are have gone done come some",
        (2,): "people something someone sometimes being going doing seeing every business"
        " evening quiet science lion riot dial trial giant create reveal react client"
        " cruel fluid ruin truant chaos neon video's often iron island careful lovely lonely"
        " safely surely merely widely homework baseball anyone wednesday really",
        (3,): "idea area video radio piano another beautiful however together animal energy"
        " happiness everyone everything usually created museum violin violet positive"
        " examine imagine determine medicine favorite different chocolate family camera memory"
        " history mystery victory several hereafter period lineage serious"
        " various obvious previous curious recipe karate deliver",
        (4,): "reality society variety anxiety economy January February community ability"
        " technology experience material ingredient especially originally apostrophe intuition",
    }.items()
    for word in words.casefold().split()
}
_EITHER: dict[str, tuple[int, ...]] = {
    word: counts
    for counts, words in {
        (1, 2): "fire hour our flower power tower shower hire tire wire real poem trial dial"
        " oil boil soil child wild mild file while smile mile our ours quite"
        " vial flour sour tired fired hired wired prayer layer player jewel cruel"
        " fuel duel vowel towel",
        (2, 3): "every different family chocolate camera several favorite average evening"
        " interest restaurant vegetable comfortable memory history mystery victory business"
        " desire require entire empire inspire admire retire acquire separate general natural"
        " federal liberal mineral opera mercury really diamond violet poetry being theatre area"
        " listening opening happening traveler reference preference difference conference"
        " temperate desperate corporate",
        (3, 4): "interesting comfortable vegetable naturally generally temperature literature"
        " usually actually gradually visually casually basically practically typically logically"
        " critically physically specifically library secretary primary",
    }.items()
    for word in words.casefold().split()
}
_VOWELS = re.compile(r"[aeiouy]+")
_SPLIT = re.compile(
    r"i(?:a|o(?!us|n)|u(?=m))|eo(?!us)|ua(?=l)|uou|(?<=[aeo])ing\b|(?<![gq])ui(?=t[iy])|ea(?=t(?:e|i)\w)"
)


@lru_cache(maxsize=8192)
def syllables(word: str) -> frozenset[int]:
    """The numbers of syllables a word may be said to have; compounds are the sum of their parts.

    >>> sorted(syllables("water")), sorted(syllables("strength")), sorted(syllables("every"))
    ([2], [1], [2, 3])
    """
    word = word.casefold().replace("’", "'")
    parts = [part for part in re.split(r"[-\s]+", word) if part]
    if len(parts) > 1:
        sums = {0}
        for part in parts:
            sums = {total + count for total in sums for count in syllables(part)}
        return frozenset(sums)
    word = word.strip("'")
    if word in _EITHER or word in _KNOWN:
        return frozenset(_EITHER.get(word, _KNOWN.get(word, ())))
    if word.endswith("'s"):
        stem = word[:-2]
        extra = 1 if re.search(r"(?:s|x|z|ch|sh|ge|ce|se)\Z", stem) else 0
        return frozenset(count + extra for count in syllables(stem))
    if not re.search("[a-z]", word) or re.search(r"\d", word):
        return frozenset({1, 2})
    return frozenset({_count(word)})


def _count(word: str) -> int:
    contracted = re.search(r"(?:[^aeiouyr]n't|'re|'ve)\Z", word)
    word = re.sub(r"'.*|n't\Z", "", word) if "'" in word else word
    count = len(_VOWELS.findall(word)) + len(_SPLIT.findall(word)) + (1 if contracted else 0)
    if (
        (re.search(r"[^aeiouy]e\Z", word) and not re.search(r"[^aeiouylr]le\Z", word))
        or (re.search(r"[^aeiouytd]ed\Z", word) and not re.search(r"[^aeiouyl]led\Z", word))
        or (
            re.search(r"[^aeiouysxzcg]es\Z", word)
            and not re.search(r"(?:[cs]h|[^aeiouyl]l)es\Z", word)
        )
    ):
        count -= 1
    if re.search(r"[^aeiouy]e(?:ly|ful|less|ment|ness|some|where|thing|body|work)", word):
        count -= 1
    if re.search(r"(?:sm|thm)\Z", word):
        count += 1
    return max(1, count)
