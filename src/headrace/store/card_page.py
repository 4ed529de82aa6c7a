"""A model card as a page for people: `README.md`, made from the card and nothing else.

Whatever a card holds may come from outside (a file's name, a model's, a domain's), so every word
passes through `escaped`: it stands for itself in Markdown and in the HTML that is made of it.
Headrace never reads this page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from headrace.store.cards import Card, Measured, Parent, SuiteScore

__all__ = ["card_page", "escaped"]

_LONGEST = 200
_SPACE = re.compile(r"\s+")
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff0-\uffff]"
)
_ACTIVE = re.compile(r"([\\`*_{}\[\]()#!|~$])")
_LINK = re.compile(r":(?=//)|(?<=www)\.", re.IGNORECASE)
_ENTITIES = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;", ord("@"): "&#64;"}


def escaped(text: str) -> str:
    """`text` in one line that Markdown, its tables and HTML show as it is.

    Characters that cannot be seen become U+FFFD, and what is longer than 200 is cut. For places
    inside a line: what would count at the beginning of one is left alone.

    >>> print(escaped("[a](javascript:b) <i>|"))
    \\[a\\]\\(javascript:b\\) &lt;i&gt;\\|
    """
    text = _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", _SPACE.sub(" ", text)).strip()
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 1] + "…"
    text = _ACTIVE.sub(r"\\\1", text)
    return _LINK.sub(lambda found: "\\" + found[0], text).translate(_ENTITIES)


def card_page(card: Card) -> str:
    """The page of a card, in Markdown."""
    parts = [f"# Model {escaped(card.title)}", _summary(card), _facts(card)]
    parts += [_parents(card), _data(card), _verifiers(card), _scores(card), _files(card)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _summary(card: Card) -> str:
    kinds = {"policy": "A policy", "adapter": "An adapter", "reward": "A reward model"}
    what = kinds.get(card.kind, "A merged model")
    said = f"{what} made by headrace {escaped(card.headrace)}"
    if card.steps:
        steps = "1 step" if card.steps == 1 else f"{card.steps:,} steps"
        said += f": {steps} of {escaped(card.method)}, {card.tokens:,} tokens"
        said += f", {card.seconds:,.0f} s"
    return f"{said}. Where it comes from: `headrace models lineage {card.id}`."


def _facts(card: Card) -> str:
    recipe = f"{card.recipe} {card.recipe_digest}".strip()
    facts = {
        "Id": card.id,
        "Kind": card.kind,
        "Created": card.created,
        "Recipe": recipe,
        "Stage": card.stage,
        "Method": card.method,
        "Seed": str(card.seed),
    }
    rows = [[name, escaped(value)] for name, value in facts.items() if value]
    return _table(("Fact", "Value"), rows)


def _parents(card: Card) -> str:
    if not card.parents:
        return ""
    rows = [
        [
            escaped(parent.source),
            escaped(_identity(parent)),
            "" if parent.weight is None else f"{parent.weight:g}",
        ]
        for parent in card.parents
    ]
    return "## Made from\n\n" + _table(("Model", "Identity", "Weight"), rows)


def _identity(parent: Parent) -> str:
    if parent.artifact is not None:
        return f"artifact {parent.artifact}"
    return f"SHA-256 {parent.digest}" if parent.digest else "not recorded"


def _data(card: Card) -> str:
    if not card.data:
        return ""
    rows = [
        [
            escaped(data.source),
            f"{data.units:,}",
            f"{data.refused:,}",
            "yes" if data.replay else "",
            escaped(data.digest),
        ]
        for data in card.data
    ]
    head = ("Source", "Units", "Refused", "Replay", "Digest")
    return "## Learned from\n\n" + _table(head, rows)


def _verifiers(card: Card) -> str:
    if not card.verifiers:
        return ""
    rows = [
        [escaped(judge.id), escaped(judge.version), judge.audit or "not audited"]
        for judge in card.verifiers
    ]
    return "## Judged by\n\n" + _table(("Verifier", "Version", "Audit"), rows)


def _scores(card: Card) -> str:
    if not card.scores:
        return ""
    head = ("Suite", "Before", "After", "Difference", "Better", "Margin", "Verdict")
    return "## Scores\n\n" + _table(head, [_score(score) for score in card.scores])


def _score(score: SuiteScore) -> list[str]:
    return [
        escaped(score.suite),
        _measured(score.before),
        _measured(score.after),
        _measured(score.difference, sign="+"),
        score.better,
        "" if score.margin is None else f"{score.margin:g}",
        score.verdict or "",
    ]


def _measured(found: Measured | None, *, sign: str = "") -> str:
    if found is None:
        return "-"
    value, low, high = (f"{x:{sign}.3f}" for x in (found.value, found.low, found.high))
    return f"{value} ({low} to {high}, n={found.n})"


def _files(card: Card) -> str:
    rows = [[escaped(f.name), f"{f.size:,}", f.sha256] for f in card.files]
    return "## Files\n\n" + _table(("File", "Bytes", "SHA-256"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
