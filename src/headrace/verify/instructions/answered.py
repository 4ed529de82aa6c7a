"""Whether a reply is an answer at all, before anyone asks if it follows instructions.

Most instructions say nothing about the content, so a checker of instructions alone would pay for
text that says nothing. Here such text is told apart as far as that goes without understanding:
too short, the request given back, one thing over and over, or written to be misread. Pure
functions. May be known by the verifier; knows prose and orders.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from headrace.verify.instructions.disguise import Seen
from headrace.verify.instructions.orders import MIN_WORDS, Instruction, Order
from headrace.verify.instructions.prose import Reply, plain_word, words_of
from headrace.verify.instructions.rules import Args

__all__ = ["LONGEST", "own_words", "why_no_answer"]

LONGEST = 100_000
"""Characters beyond which a reply is no answer, without being looked at."""

_RUN, _RULE_RUN = 4, 5
_HALF = 0.5
_RULE_SHARE = 1 / 3
_WINDOW, _VARIETY = 200, 10


def own_words(text: str, order: Order) -> str:
    """What of a reply is its own: all but the request, where that has to be repeated first."""
    for instruction in order.instructions:
        if instruction.rule.answer is not None:
            text = instruction.rule.answer(text, instruction.args)
    return text


def why_no_answer(reply: Seen, order: Order, prompt: str) -> str | None:
    """Why a reply is no answer to `prompt`, in words; None if it may be one.

    - it holds characters or letters that read otherwise than they look;
    - it has fewer than `min_words` words;
    - mostly, its stretches of 200 words have fewer than 20 different ones;
    - unless it may echo: fewer than `min_words` of its words are not part of a run of 4 words of
      the request, or it holds the request from start to end and little else, or a third of it
      is the wording of the instructions.
    """
    if reply.disguises:
        return f"it holds {reply.disguises[0]}"
    own = [plain_word(word) for word in words_of(own_words(reply.text, order))]
    if len(own) < order.min_words:
        return f"it has {len(own)} words of its own, fewer than {order.min_words}"
    if _monotonous(own):
        return "it says the same over and over"
    return None if order.may_echo else _echo(own, order, Reply(prompt).lowered)


def _echo(own: Sequence[str], order: Order, asked: Sequence[str]) -> str | None:
    runs = list(_runs(asked, _RUN))
    given = set(runs)
    copied = _covered(own, given, _RUN)
    begins = bool(runs) and tuple(own[:_RUN]) == runs[0]
    if len(own) - copied < (order.min_words if not order.brief else MIN_WORDS * begins):
        return "it only gives the request back"
    if not order.brief and f" {' '.join(own)} " in f" {' '.join(asked)} ":
        return "it is a piece of the request"
    said = set(_runs(own, _RUN))
    whole = bool(runs) and {runs[0], runs[-1]} <= said
    if whole and len(given & said) >= _HALF * len(given) and copied >= _HALF * len(own):
        return "it gives the whole request back and adds little"
    rules = {run for piece in _wordings(order.instructions) for run in _runs(piece, _RULE_RUN)}
    if _covered(own, rules, _RULE_RUN) > _RULE_SHARE * len(own):
        return "it repeats the wording of the instructions"
    return None


def _wordings(instructions: Iterable[Instruction]) -> Iterable[list[str]]:
    """The wording of each instruction in pieces, without the texts that are its arguments."""
    for instruction in instructions:
        text = instruction.rule.describe(instruction.args)
        values = sorted(_texts(instruction.args), key=len, reverse=True)
        pieces = re.split("|".join(map(re.escape, values)), text) if values else [text]
        for piece in pieces:
            yield [plain_word(word) for word in words_of(piece)]


def _texts(args: Args) -> Iterable[str]:
    for value in args.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from (item for item in value if isinstance(item, str))


def _runs(words: Sequence[str], length: int) -> Iterable[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(length)), strict=False)


def _covered(words: Sequence[str], runs: set[tuple[str, ...]], length: int) -> int:
    """How many of `words` are part of one of `runs`."""
    covered = reached = 0
    for start, run in enumerate(_runs(words, length)):
        if run in runs:
            covered += start + length - max(start, reached)
            reached = start + length
    return covered


def _monotonous(words: Sequence[str]) -> bool:
    """Whether most full windows of words hold too few different ones."""
    windows = [words[start : start + _WINDOW] for start in range(0, len(words), _WINDOW)]
    full = [window for window in windows if len(window) == _WINDOW]
    dull = sum(len(set(window)) * _VARIETY < len(window) for window in full)
    return bool(full) and 2 * dull >= len(full)
