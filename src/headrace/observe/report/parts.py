"""Small pieces that several sections of the page share."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.observe.report.markup import Html, Node, tag
from headrace.observe.report.values import fixed, plain

__all__ = ["absent", "answer_text", "facts", "score_mark", "section", "table", "verbatim"]


def section(key: str, title: str, *children: Node, lead: Node = None) -> Html:
    """A section with a heading that can be linked to."""
    told = None if lead is None else tag("p", lead, class_="lead")
    heading = tag("h2", title, id=f"{key}-title")
    return tag("section", heading, told, *children, id=key, aria_labelledby=f"{key}-title")


def absent(sentence: str) -> Html:
    """What is said in place of something that is not there."""
    return tag("p", sentence, class_="absent")


def verbatim(content: str, class_: str = "verbatim") -> Html:
    """A text exactly as it was written, spaces and line ends included.

    A browser drops a line end right after the start tag, so a first one is written twice.
    """
    if not content.strip():
        return tag("p", "(empty)" if not content else "(only white space)", class_="absent")
    swallowed = "\n" if content.startswith(("\n", "\r\n")) else ""
    return tag("pre", swallowed + content, class_=class_, dir="auto")


def score_mark(score: float | None) -> Html:
    """A score as symbol, word and number: never by colour alone."""
    if score is None:
        return tag("span", "? not judged", class_="mark unknown")
    if score >= 0.999:
        return tag("span", f"✓ solved {fixed(score)}", class_="mark good")
    if score <= 0.001:
        return tag("span", f"✗ wrong {fixed(score)}", class_="mark bad")
    return tag("span", f"◐ partly {fixed(score)}", class_="mark part")


def facts(*pairs: tuple[str, Node]) -> Html:
    """Terms and what they are; pairs without content are left out."""
    return tag(
        "dl",
        *(tag("div", tag("dt", term), tag("dd", told)) for term, told in pairs if told),
        class_="facts",
    )


def table(head: Sequence[str], rows: Sequence[Sequence[Node]]) -> Html:
    """A table that scrolls by itself where it is wider than the screen."""
    top = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head)))
    body = tag("tbody", *(tag("tr", *(tag("td", cell) for cell in row)) for row in rows))
    return tag("div", tag("table", top, body), class_="scroll")


def answer_text(answer: object) -> str:
    """A reference answer for people."""
    return "none" if answer is None else plain(answer)
