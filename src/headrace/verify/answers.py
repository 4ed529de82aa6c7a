"""Finding the answer in what a policy wrote: tags, fences, boxes. The last one counts.

Betting on several answers must not pay, so every function here reads one place only. A thinking
block is never an answer. May be known by every verifier; knows none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Fence", "boxed", "fences", "last_fence", "tagged", "without_thinking"]

_FENCE = re.compile(
    r"^[ ]{0,3}(?P<mark>`{3,}|~{3,})[ \t]*(?P<info>[^\n`]*)\n(?P<body>.*?)"
    r"(?:(?P<end>^[ ]{0,3}(?P=mark)[`~]*[ \t]*$)|\Z)",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced block: its language in lower case ("" without one) and its text.

    `closed` is False where the text ended before the fence did.
    """

    language: str
    body: str
    closed: bool


def without_thinking(text: str) -> str:
    """What follows the last `</think>`; all of it where there is none; "" if it is unclosed.

    >>> without_thinking("<think>4?</think> 5")
    ' 5'
    >>> without_thinking("<think>4?")
    ''
    """
    head, closed, tail = text.rpartition("</think>")
    if closed:
        return "" if "<think>" in tail else tail
    return "" if "<think>" in head or "<think>" in tail else tail


def fences(text: str) -> list[Fence]:
    """All fenced blocks in order (CommonMark: backticks or tildes, at least three)."""
    return [
        Fence(
            language=(match["info"].split() or [""])[0].lower(),
            body=match["body"],
            closed=match["end"] is not None,
        )
        for match in _FENCE.finditer(text)
    ]


def last_fence(text: str, *languages: str) -> str | None:
    """The body of the last closed block in one of `languages` ("" is a block without a name).

    Without `languages`, of the last closed block whatever its language.

    >>> last_fence("```python\\nx = 1\\n```\\n```\\nout\\n```", "python", "py")
    'x = 1\\n'
    """
    for fence in reversed(fences(text)):
        if fence.closed and (not languages or fence.language in languages):
            return fence.body
    return None


def tagged(text: str, tag: str = "answer") -> str | None:
    """What stands in the last complete pair of `<tag>` and `</tag>`, stripped; None without one.

    >>> tagged("<answer>3</answer> no, <answer> 4 </answer>")
    '4'
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    end = text.rfind(closing)
    start = text.rfind(opening, 0, max(end, 0))
    return None if start < 0 else text[start + len(opening) : end].strip()


def boxed(text: str) -> str | None:
    """What stands in the last `\\boxed{...}` with balanced braces; None without one.

    >>> boxed(r"so \\boxed{\\frac{1}{2}}.")
    '\\\\frac{1}{2}'
    """
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for position in range(start + len("\\boxed"), len(text)):
        if text[position] in "{}" and text[position - 1] != "\\":
            depth += 1 if text[position] == "{" else -1
            if depth == 0:
                return text[start + len("\\boxed{") : position].strip()
    return None
