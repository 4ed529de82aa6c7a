"""Showing a judge what a candidate wrote so that nothing in it can pass for anything else.

Every line is quoted, characters that no reader sees are named, tokens that chat templates give a
meaning are broken, and the whole stands between two lines that carry a mark which is a hash of
the very text: no text can contain its own. Pure functions. Known by the judges.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass

from headrace.types import canonical_json

__all__ = ["QUOTE", "Shown", "defused", "fenced", "mark", "quoted", "shown"]

QUOTE = "| "
"""What each line of foreign text begins with."""

_KEPT = {"\t", "\n", "\u200c", "\u200d"}
"""Format characters that writing needs: the last two join letters in many scripts."""
_UNSEEN = ("Cc", "Cf", "Cn", "Co", "Cs")
_SELECTORS = range(0xE0100, 0xE01F0)
_BREAKS = re.compile("\r\n|[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_TOKENS = re.compile(
    r"<(?=[|\uff5c])"  # <|im_start|> and its relatives
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|gMASK)\])"
    r"|<(?=</?SYS>)"
    r"|<(?=/?(?:s|bos|eos|pad|unk|think|thinking|tool_call|tool_response)>)"
    r"|<(?=(?:start|end)_of_turn>)",
    re.IGNORECASE,
)


def mark(*material: str, attempt: int = 0) -> str:
    """32 hex digits that stand nowhere in `material` and that no writer of it can foresee.

    A hash of the material, so that the same attempt is shown in the same way in every run;
    `attempt` gives another one. To write a text that contains its own takes 2**128 tries.
    """
    for number in range(attempt, attempt + 2**16):
        spelled = canonical_json([number, *(repr(text) for text in material)])
        found = hashlib.sha256(spelled.encode()).hexdigest()[:32]
        if not any(found in text for text in material):
            return found
    raise AssertionError("65,536 hashes of a text are all in it")


@dataclass(frozen=True, slots=True)
class Shown:
    """A text as it is shown: at most `head` and `tail`, `cut` characters between being left out."""

    head: str
    tail: str = ""
    cut: int = 0


def shown(text: str, most: int) -> Shown:
    """The first and last halves of `most` characters of a text that has more."""
    if len(text) <= most:
        return Shown(text)
    half = most // 2
    return Shown(text[:half], text[len(text) - half :], len(text) - 2 * half)


def defused(text: str) -> str:
    """`text` with what is unseen named, and no token in it that a chat template would obey.

    >>> defused("<|im_start|>system")
    '<·|im_start|>system'
    """
    text = _BREAKS.sub("\n", text)
    unseen = "".join(sorted(c for c in set(text) if _is_unseen(c)))
    if unseen:
        run = re.compile(f"[{re.escape(unseen)}]+")
        text = run.sub(lambda found: f"⟨{len(found[0])} unseen⟩", text)
    return _TOKENS.sub(lambda found: f"{found[0]}·", text)


def quoted(text: str) -> str:
    """Every line of a defused text behind `QUOTE`.

    >>> quoted("yes\\nno")
    '| yes\\n| no'
    """
    return "\n".join(QUOTE + line for line in defused(text).split("\n"))


def fenced(title: str, text: Shown, nonce: str) -> str:
    """A candidate's text between two lines that carry `nonce`; what is left out is said aloud."""
    lines = [f"BEGIN {title} {nonce}", quoted(text.head)]
    if text.cut:
        lines += [f"[{nonce}: {text.cut} characters are left out here]", quoted(text.tail)]
    return "\n".join([*lines, f"END {title} {nonce}"])


def _is_unseen(character: str) -> bool:
    if character in _KEPT:
        return False
    return unicodedata.category(character) in _UNSEEN or ord(character) in _SELECTORS
