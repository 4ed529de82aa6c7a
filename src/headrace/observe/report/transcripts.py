"""The same held-out tasks before and after training, side by side.

Every text here was written by a model or a task file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from headrace.observe.report.gather import Item, Material
from headrace.observe.report.markup import Html, Node, clip, tag
from headrace.observe.report.parts import absent, answer_text, score_mark, section, verbatim
from headrace.observe.report.values import count

__all__ = ["transcripts"]

_MOST_ITEMS = 400
_TEXT_BUDGET = 1_200_000
_LEAST_CLIP, _MOST_CLIP = 300, 4000

_OUTCOMES = {
    "gained": "newly solved",
    "lost": "lost",
    "wrong": "still wrong",
    "right": "still right",
    "unknown": "not judged",
    "solved": "solved",
    "failed": "not solved",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """An item before and, where there is one, after."""

    before: Item
    after: Item | None
    outcome: str


def transcripts(material: Material) -> Html:
    """The section: filters, and one article for each item."""
    title = "What it says, before and after"
    if not material.before:
        return section("transcripts", title, absent(_why_none(material)))
    pairs = _pairs(material.before, material.after)
    shown = _chosen(pairs)
    clipped = min(max(_TEXT_BUDGET // (3 * len(shown)), _LEAST_CLIP), _MOST_CLIP)
    articles = [_article(number, pair, clipped) for number, pair in enumerate(shown, 1)]
    return section(
        "transcripts",
        title,
        _filters(pairs, shown),
        tag("div", *articles, class_="items"),
        lead=_lead(material, pairs, shown),
    )


def _why_none(material: Material) -> str:
    if material.evaluations:
        return "The texts of the evaluations are not there; the reason stands at the top."
    return "There is no evaluation to take texts from. Attempts from training follow below."


def _lead(material: Material, pairs: Sequence[_Pair], shown: Sequence[_Pair]) -> str:
    told = "Greedy answers to held-out tasks. "
    if material.after is None:
        told += (
            "There is no evaluation after training yet, so only the texts before it stand here; "
            "attempts from training follow below. "
        )
    if len(shown) < len(pairs):
        told += (
            f"{len(shown):,} of {len(pairs):,} tasks are shown, drawn evenly from each outcome. "
        )
    return told + "The keys j and k go to the next and the previous one."


# --- choosing ------------------------------------------------------------------------------


def _pairs(before: Sequence[Item], after: Sequence[Item] | None) -> list[_Pair]:
    """Items matched by task id; one that was not played again has no after."""
    later = {item.task: item for item in after or ()}
    pairs: list[_Pair] = []
    for item in before:
        match = later.get(item.task)
        pairs.append(_Pair(before=item, after=match, outcome=_outcome(item, match)))
    return pairs


def _outcome(before: Item, after: Item | None) -> str:
    if before.score is None or (after is not None and after.score is None):
        return "unknown"
    if after is None:
        return "solved" if before.solved else "failed"
    if after.solved:
        return "right" if before.solved else "gained"
    return "lost" if before.solved else "wrong"


def _chosen(pairs: Sequence[_Pair]) -> list[_Pair]:
    """At most `_MOST_ITEMS`, in order; rare outcomes are kept whole."""
    if len(pairs) <= _MOST_ITEMS:
        return list(pairs)
    by_outcome = [
        [index for index, pair in enumerate(pairs) if pair.outcome == outcome]
        for outcome in _OUTCOMES
    ]
    turns = [index for row in zip_longest(*by_outcome) for index in row if index is not None]
    return [pairs[index] for index in sorted(turns[:_MOST_ITEMS])]


# --- showing -------------------------------------------------------------------------------


def _filters(pairs: Sequence[_Pair], shown: Sequence[_Pair]) -> Html:
    """Buttons of the outcomes there are; the script makes them work and is needed for them."""
    there = [pair.outcome for pair in shown]
    total = [pair.outcome for pair in pairs]
    buttons = [_button("all", f"all {len(shown):,}", pressed=True)]
    for outcome, name in _OUTCOMES.items():
        if outcome in there:
            some = there.count(outcome)
            of = f" of {total.count(outcome):,}" if some < total.count(outcome) else ""
            buttons.append(_button(outcome, f"{name} {some:,}{of}", pressed=False))
    pages = tag("span", class_="pages")
    return tag("div", *buttons, pages, class_="filters", role="group", hidden=True)


def _button(outcome: str, name: str, *, pressed: bool) -> Html:
    return tag(
        "button",
        name,
        type="button",
        data_filter=outcome,
        aria_pressed="true" if pressed else "false",
    )


def _article(number: int, pair: _Pair, limit: int) -> Html:
    item = pair.before
    tier = "" if item.tier is None else f", tier {item.tier}"
    return tag(
        "article",
        tag(
            "header",
            tag("b", f"{number}"),
            tag("span", f"{_OUTCOMES[pair.outcome]}", class_=f"outcome {pair.outcome}"),
            tag("span", tag("bdi", item.domain), tier),
        ),
        tag(
            "div",
            verbatim(clip(item.prompt, limit), "prompt"),
            tag("p", "Reference answer: ", tag("code", clip(answer_text(item.answer), limit))),
            class_="task",
        ),
        tag(
            "div",
            _side("Before", item, limit),
            _side("After", pair.after, limit) if pair.after is not None else None,
            class_="sides",
        ),
        data_outcome=pair.outcome,
        tabindex="-1",
    )


def _side(name: str, item: Item, limit: int) -> Html:
    told: list[str] = []
    if item.tokens is not None:
        told.append(count(item.tokens, "token"))
    if item.truncated:
        told.append("cut at the token limit")
    evidence: Node = None
    if item.score is None and item.evidence:
        evidence = tag("p", clip(item.evidence, limit), class_="note")
    return tag(
        "div",
        tag("h4", name, " ", score_mark(item.score), " ", tag("small", ", ".join(told))),
        verbatim(clip(item.completion, limit)),
        evidence,
        class_="side",
    )
