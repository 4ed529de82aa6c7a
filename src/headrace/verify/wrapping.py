"""Where in a policy's text its document stands: alone, in a fence, or after other words.

How strict a task is about that is its own choice. One place is read, never the best of several.
May be known by every verifier; knows none.
"""

from __future__ import annotations

from typing import Literal

from headrace.verify.answers import fences, last_fence, without_thinking
from headrace.verify.strict_json import last_json

__all__ = ["Wrapping", "unwrapped"]

Wrapping = Literal["raw", "fence", "anywhere"]
"""`raw`: the document and nothing else. `fence`: the same, or one fenced block around all of it.
`anywhere`: the last fenced block of the format, or what `raw` allows."""


def unwrapped(text: str, languages: tuple[str, ...], wrapping: Wrapping) -> str | None:
    """The document in `text` without its thinking, or None where it is not as `wrapping` asks.

    `languages` are the names that a fence may have ("" is none). Under "anywhere", JSON (first
    of `languages`) may also stand bare between other words: the last object or array counts.
    Other words are not told from a document here: whoever reads it will see.

    >>> unwrapped("```json\\n{}\\n```", ("json", ""), "fence")
    '{}\\n'
    >>> unwrapped("```json\\n{}\\n```\\nDone.", ("json", ""), "fence") is None
    True
    """
    text = without_thinking(text).strip()
    if not text:
        return None
    if wrapping == "raw":
        return None if _starts_fence(text) else text
    if not _starts_fence(text):
        return text if wrapping == "fence" else _somewhere(text, languages)
    if wrapping == "anywhere":
        return _fenced(text, languages)
    blocks = fences(text)
    if not blocks or not blocks[0].closed or blocks[0].language not in languages:
        return None
    after = text.partition("\n")[2][len(blocks[0].body) :].strip()
    return blocks[0].body if not after.strip(text[0]) else None


def _somewhere(text: str, languages: tuple[str, ...]) -> str | None:
    if text[0] in "{[<" and text[-1] in "}]>":
        return last_json(text) if languages[0] == "json" else text
    return _fenced(text, languages)


def _fenced(text: str, languages: tuple[str, ...]) -> str | None:
    body = last_fence(text, *languages)
    if body is None and languages[0] == "json":
        return last_json(text)
    return text if body is None and not fences(text) else body


def _starts_fence(text: str) -> bool:
    return text.startswith(("```", "~~~")) and "\n" in text
