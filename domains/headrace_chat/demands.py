"""Instructions that a program can check, in plain words, each with how a reply follows it.

A `Demand` changes the draft of a reply so that it follows the instruction, or slips so that it
does not. Kinds of one family, and the pairs of `_APART`, are never asked for together. May be
known by the domain `chat/instructed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from random import Random

from headrace.types import Json
from headrace.verify.instructions.prose import words_of
from headrace_chat.replies import FURTHER, opening
from headrace_chat.topics import Topic

__all__ = ["FORBIDDEN", "KEYWORDS", "KINDS", "PAIRS", "Demand", "DemandKind", "Draft", "draft"]


@dataclass(slots=True)
class Draft:
    """A reply about `topic` in the making: sentences, bullet points below, an ending, its dress."""

    topic: Topic
    sentences: list[str]
    bullets: int = 0
    ending: str = ""
    quoted: bool = False
    commas: bool = True
    case: Callable[[str], str] = str

    def lengthen(self, words: int) -> None:
        """Add sentences until there are so many words."""
        further = iter(FURTHER)
        while len(words_of(self.text)) < words:
            self.sentences.append(next(further))

    @property
    def text(self) -> str:
        """The reply."""
        text = " ".join(self.sentences)
        text += "".join(f"\n* {said}" for said in FURTHER[: self.bullets])
        if self.ending:
            text += ("\n\n" if self.bullets else " ") + self.ending
        if not self.commas:
            text = text.replace(",", "")
        return self.case(f'"{text}"' if self.quoted else text)


Change = Callable[[Draft], None]


def _nothing(reply: Draft) -> None:
    del reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """An instruction: its id and arguments in `verify.instructions`, its words, and what a reply
    that follows it, or surely does not, has more than a plain one."""

    id: str
    says: str
    follow: Change
    slip: Change = _nothing
    kwargs: Mapping[str, Json] = field(default_factory=dict[str, Json])

    @property
    def answer(self) -> Json:
        """It as the verifier `instructions` reads it."""
        return {"id": self.id, "kwargs": dict(self.kwargs)}


@dataclass(frozen=True, slots=True)
class DemandKind:
    """A kind of demand: `make` draws its arguments and wording."""

    name: str
    family: str
    make: Callable[[Random, Topic], Demand]


def draft(topic: Topic, followed: Iterable[Demand], slipped: Iterable[Demand] = ()) -> Draft:
    """A reply about a topic that follows some demands and breaks others."""
    reply = Draft(
        topic,
        [
            f"{opening(topic)} worth a second look.",
            "There is more to see than meets the eye, as most of us find out in the end.",
        ],
    )
    for demand in followed:
        demand.follow(reply)
    for demand in slipped:
        demand.slip(reply)
    return reply


# --- letters and marks ---------------------------------------------------------------------


def _case(
    id_: str, case: Callable[[str], str], *wordings: str
) -> Callable[[Random, Topic], Demand]:
    def make(rng: Random, topic: Topic) -> Demand:
        del topic

        def follow(reply: Draft) -> None:
            reply.case = case

        return Demand(id=id_, says=rng.choice(wordings), follow=follow)

    return make


def _no_comma(rng: Random, topic: Topic) -> Demand:
    del topic

    def follow(reply: Draft) -> None:
        reply.commas = False

    says = rng.choice(("Do not use any commas.", "Use no commas in your reply."))
    return Demand(id="punctuation:no_comma", says=says, follow=follow)


def _quotation(rng: Random, topic: Topic) -> Demand:
    del topic

    def follow(reply: Draft) -> None:
        reply.quoted = True

    says = rng.choice(
        (
            "Put your whole reply in double quotation marks.",
            "Wrap the entire answer in double quotes.",
        )
    )
    return Demand(id="startend:quotation", says=says, follow=follow)


def _highlights(rng: Random, topic: Topic) -> Demand:
    del topic
    count = rng.choice((1, 2))

    def follow(reply: Draft) -> None:
        reply.sentences.append("Both the *first sight* and the *second thought* count.")

    parts = "one word" if count == 1 else "two words"
    says = rng.choice(
        (
            f"Highlight at least {parts} of your answer with asterisks, like *this*.",
            f"Put asterisks around at least {parts}, like *this*.",
        )
    )
    return Demand(
        id="detectable_format:number_highlighted_sections",
        kwargs={"num_highlights": count},
        says=says,
        follow=follow,
    )


# --- words ---------------------------------------------------------------------------------

KEYWORDS = ("because", "example", "useful", "simple", "today", "together", "everyone", "remember")
FORBIDDEN = ("very", "also", "many", "important", "often", "can", "however", "different")


def _listed(words: Iterable[str]) -> str:
    return " and ".join(f'"{word}"' for word in words)


def _existence(rng: Random, topic: Topic) -> Demand:
    del topic
    words = rng.sample(KEYWORDS, rng.choice((1, 1, 2)))
    plural = "s" if len(words) > 1 else ""

    def follow(reply: Draft) -> None:
        said = " and ".join(words)
        reply.sentences[1] = (
            f"At this point we say {said}, and leave all of the rest to the reader."
        )

    says = rng.choice(
        (
            f"Use the word{plural} {_listed(words)} in your answer.",
            f"Include the word{plural} {_listed(words)}.",
        )
    )
    return Demand(id="keywords:existence", kwargs={"keywords": words}, says=says, follow=follow)


def _forbidden(rng: Random, topic: Topic) -> Demand:
    del topic
    words = rng.sample(FORBIDDEN, rng.choice((1, 1, 2)))
    plural = "s" if len(words) > 1 else ""

    def slip(reply: Draft) -> None:
        reply.sentences[0] = reply.sentences[0].replace(" worth", f" {words[-1]} worth")

    says = rng.choice(
        (
            f"Do not use the word{plural} {_listed(words)}.",
            f"Avoid the word{plural} {_listed(words)}.",
        )
    )
    return Demand(
        id="keywords:forbidden_words",
        kwargs={"forbidden_words": words},
        says=says,
        follow=_nothing,
        slip=slip,
    )


def _frequency(rng: Random, topic: Topic) -> Demand:
    count = rng.choice((3, 4))

    def follow(reply: Draft) -> None:
        key = reply.topic.key
        reply.sentences += [
            f"Say {key} once, and {key} again.",
            f"Say {key} at night.",
            f"That is the word {key} for you.",
        ]

    times = {3: "three", 4: "four"}[count]
    says = rng.choice(
        (
            f'Use the word "{topic.key}" at least {times} times.',
            f'Let the word "{topic.key}" occur at least {times} times.',
        )
    )
    return Demand(
        id="keywords:frequency",
        kwargs={"keyword": topic.key, "frequency": count, "relation": "at least"},
        says=says,
        follow=follow,
    )


# --- length --------------------------------------------------------------------------------


def _sentences(rng: Random, topic: Topic) -> Demand:
    del topic
    more = rng.random() < 0.5
    count = rng.choice((3, 4, 5) if more else (3, 4))
    number = {3: "three", 4: "four", 5: "five"}[count]

    def extend(reply: Draft) -> None:
        reply.sentences.extend(FURTHER[: count - len(reply.sentences)])

    says = rng.choice(
        (f"Write at least {number} sentences.", f"Use {number} sentences or more.")
        if more
        else (f"Write fewer than {number} sentences.", f"Use fewer than {number} sentences.")
    )
    return Demand(
        id="length_constraints:number_sentences",
        kwargs={"num_sentences": count, "relation": "at least" if more else "less than"},
        says=says,
        follow=extend if more else _nothing,
        slip=_nothing if more else extend,
    )


def _words(rng: Random, topic: Topic) -> Demand:
    del topic
    more = rng.random() < 0.5
    count = rng.choice((30, 40, 50) if more else (30, 35, 40))

    def extend(reply: Draft) -> None:
        reply.lengthen(count)

    says = rng.choice(
        (f"Write at least {count} words.", f"Use {count} words or more.")
        if more
        else (f"Write fewer than {count} words.", f"Keep it below {count} words.")
    )
    return Demand(
        id="length_constraints:number_words",
        kwargs={"num_words": count, "relation": "at least" if more else "less than"},
        says=says,
        follow=extend if more else _nothing,
        slip=_nothing if more else extend,
    )


def _range(rng: Random, topic: Topic) -> Demand:
    del topic
    least, most = rng.choice(((10, 60), (20, 80), (30, 100)))
    says = rng.choice((f"Write between {least} and {most} words.", f"Use {least} to {most} words."))
    return Demand(
        id="count:word_count_range",
        kwargs={"min_words": least, "max_words": most},
        says=says,
        follow=lambda reply: reply.lengthen(least),
        slip=lambda reply: reply.lengthen(most + 1),
    )


# --- parts ---------------------------------------------------------------------------------


def _bullets(rng: Random, topic: Topic) -> Demand:
    del topic
    count = rng.choice((2, 3, 4))
    number = {2: "two", 3: "three", 4: "four"}[count]

    def follow(reply: Draft) -> None:
        reply.bullets = count

    def slip(reply: Draft) -> None:
        reply.bullets = count - 1

    says = rng.choice(
        (
            f"Use exactly {number} bullet points that begin with *.",
            f"Answer with exactly {number} bullet points, such as * this one.",
        )
    )
    return Demand(
        id="detectable_format:number_bullet_lists",
        kwargs={"num_bullets": count},
        says=says,
        follow=follow,
        slip=slip,
    )


_ENDINGS = ("That is all for now.", "Have a nice day!", "I hope this helps.", "Now you know it.")


def _end(rng: Random, topic: Topic) -> Demand:
    del topic
    phrase = rng.choice(_ENDINGS)

    def follow(reply: Draft) -> None:
        reply.ending = phrase

    says = rng.choice(
        (
            f'End your answer with exactly "{phrase}"',
            f'Finish with the phrase "{phrase}" and write nothing after it.',
        )
    )
    return Demand(
        id="startend:end_checker", kwargs={"end_phrase": phrase}, says=says, follow=follow
    )


def _postscript(rng: Random, topic: Topic) -> Demand:
    del topic

    def follow(reply: Draft) -> None:
        reply.ending = "\n\nP.S. Come back for more."

    says = rng.choice(
        (
            "Add a postscript at the end that begins with P.S.",
            'Close with a postscript, starting with "P.S."',
        )
    )
    return Demand(
        id="detectable_content:postscript",
        kwargs={"postscript_marker": "P.S."},
        says=says,
        follow=follow,
    )


KINDS: tuple[DemandKind, ...] = (
    DemandKind(
        "lowercase",
        "case",
        _case(
            "change_case:english_lowercase",
            str.lower,
            "Use only lowercase letters.",
            "Write everything in lower case, without any capital letters.",
        ),
    ),
    DemandKind(
        "capitals",
        "case",
        _case(
            "change_case:english_capital",
            str.upper,
            "Use only capital letters.",
            "Write everything in capital letters.",
        ),
    ),
    DemandKind("no commas", "commas", _no_comma),
    DemandKind("quotation", "frame", _quotation),
    DemandKind("highlights", "highlights", _highlights),
    DemandKind("keywords", "keywords", _existence),
    DemandKind("forbidden words", "forbidden", _forbidden),
    DemandKind("frequency", "frequency", _frequency),
    DemandKind("sentences", "length", _sentences),
    DemandKind("words", "length", _words),
    DemandKind("word range", "length", _range),
    DemandKind("bullets", "list", _bullets),
    DemandKind("end phrase", "end", _end),
    DemandKind("postscript", "end", _postscript),
)
"""All kinds, in a fixed order."""

_APART = {frozenset(("length", other)) for other in ("list", "end", "highlights", "frequency")}
"""Families that a short reply cannot always serve together."""


def _together(one: DemandKind, other: DemandKind) -> bool:
    """Whether two kinds may be asked for at once."""
    families = frozenset((one.family, other.family))
    return len(families) == 2 and families not in _APART


PAIRS: tuple[tuple[DemandKind, DemandKind], ...] = tuple(
    (one, other) for one, other in combinations(KINDS, 2) if _together(one, other)
)
"""All pairs that may be."""
