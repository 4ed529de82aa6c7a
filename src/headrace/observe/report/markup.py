"""HTML as values: text is escaped unless it is already markup, so forgetting is safe.

Whatever a model or a task file wrote passes through here as a plain `str`; only `tag` and
`join` make `Html`. An f-string of markup is a plain `str` again and would show as text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

__all__ = ["Html", "Node", "clean", "clip", "join", "tag"]

_VOID = frozenset({"meta", "br", "hr", "link", "input", "col"})
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Html(str):
    """Markup: goes into the page as it is."""

    __slots__ = ()


Node = Html | str | None
"""Markup, a text to be escaped, or nothing."""


def clean(text: str) -> str:
    """`text` without what HTML or UTF-8 cannot hold; such characters become U+FFFD.

    >>> clean("a\\x00b\\r\\nc")
    'a\N{REPLACEMENT CHARACTER}b\\nc'
    """
    text = text.replace("\r\n", "\n")
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def clip(text: str, limit: int) -> str:
    """At most about `limit` characters: the beginning, the end, and how much lies between.

    Answers stand at the end of a text, so two fifths of what is kept come from there.

    >>> clip("a" * 50 + "b" * 50, 10)
    'aaaaaa\\n[… 90 characters left out …]\\nbbbb'
    """
    if len(text) <= limit:
        return text
    tail = limit * 2 // 5
    head = limit - tail
    missing = len(text) - limit
    return f"{text[:head]}\n[… {missing:,} characters left out …]\n{text[len(text) - tail :]}"


def tag(name: str, /, *children: Node, **attributes: str | float | bool | None) -> Html:
    """One element. `class_` is class and `data_x` data-x; None and False leave one out.

    >>> tag("p", "1 < 2", tag("b", "!"), class_="note")
    '<p class="note">1 &lt; 2<b>!</b></p>'
    """
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        parts.append(f" {key}" if value is True else f' {key}="{_escape(str(value))}"')
    parts.append(">")
    if name in _VOID:
        return Html("".join(parts))
    return Html("".join(parts) + join(children) + f"</{name}>")


def join(children: Iterable[Node]) -> Html:
    """Nodes one after the other; plain text is escaped."""
    return Html("".join(_node(child) for child in children if child is not None))


def _node(child: Html | str) -> str:
    return child if isinstance(child, Html) else _escape(child)


def _escape(text: str) -> str:
    return html.escape(clean(text), quote=True)
