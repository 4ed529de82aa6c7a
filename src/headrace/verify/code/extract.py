"""Finding the program in what a policy wrote. One place only is read.

May be known by the code verifiers.
"""

from __future__ import annotations

import re

from headrace.verify.answers import fences, last_fence, without_thinking
from headrace.verify.code.suites import Language

__all__ = ["MOST_CHARACTERS", "function_source", "program_source"]

MOST_CHARACTERS = 100_000

_PYTHON = ("python", "py", "python3", "")
_LANGUAGES: dict[Language, tuple[str, ...]] = {
    "python": _PYTHON,
    "c": ("c", ""),
    "shell": ("sh", "bash", "shell", ""),
}


def function_source(text: str, entry: str) -> str | None:
    """The last closed Python block that defines `entry`; the last Python block where none
    does; without any block, a text that defines it is all code.

    A block after that one, which shows how the function is called, is not the answer.
    """
    said = without_thinking(text)
    blocks = fences(said)
    defines = re.compile(
        rf"^(?:async[ \t]+def|def|class)[ \t]+{entry}\b|^{entry}[ \t]*[:=]", re.MULTILINE
    )
    bodies = [block.body for block in blocks if block.closed and block.language in _PYTHON]
    source = next((body for body in reversed(bodies) if defines.search(body)), None)
    if source is None and bodies:
        source = bodies[-1]
    if source is None and not blocks and defines.search(said):
        source = said
    return source if source is not None and len(source) <= MOST_CHARACTERS else None


def program_source(text: str, language: Language) -> str | None:
    """The last closed block of that language, or without a language; a program needs one."""
    source = last_fence(without_thinking(text), *_LANGUAGES[language])
    return source if source is not None and len(source) <= MOST_CHARACTERS else None
