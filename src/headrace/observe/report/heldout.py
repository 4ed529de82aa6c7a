"""The held-out score before and after training, with intervals."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.observe.report.gather import Evaluation, Material
from headrace.observe.report.markup import Html, Node, join, tag
from headrace.observe.report.parts import absent, section
from headrace.observe.report.values import count, fixed
from headrace.store.lenient import integer, number

__all__ = ["heldout"]

_MOST_ROWS = 12
_MOST_DOMAINS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dot:
    value: float
    low: float | None
    high: float | None
    tone: str


def heldout(material: Material) -> Html:
    """The section: one row for each evaluation, then the domains before and after."""
    evaluations = material.evaluations
    if not evaluations:
        return section("heldout", "Held-out score", absent(_why_none(material)))
    shown = _chosen(evaluations)
    left = len(evaluations) - len(shown)
    return section(
        "heldout",
        "Held-out score",
        tag("div", *(_row(e, evaluations) for e in shown), _ticks(), class_="dotplot"),
        tag("p", f"The reward plot shows {count(left, 'evaluation')} more.", class_="note")
        if left
        else None,
        _domains(evaluations),
        lead="Tasks the model never trains on, answered greedily, the same ones each time. "
        f"Dots are mean scores, bars their {material.confidence * 100:.4g} % intervals; “cut off” "
        "is the share of answers that hit the token limit.",
    )


def _why_none(material: Material) -> str:
    if integer(material.recipe, "evaluate", "items") == 0:
        return "The recipe asks for no evaluation (evaluate.items = 0)."
    if material.status is not None and material.status.state == "running":
        return "The first evaluation is not done yet."
    return "The run ended before its first evaluation was done."


def _chosen(evaluations: list[Evaluation]) -> list[Evaluation]:
    """All of them, or evenly spread ones with both ends."""
    if len(evaluations) <= _MOST_ROWS:
        return evaluations
    last = len(evaluations) - 1
    picks = {round(i * last / (_MOST_ROWS - 1)) for i in range(_MOST_ROWS)}
    return [evaluations[i] for i in sorted(picks)]


def _row(evaluation: Evaluation, all_of_them: list[Evaluation]) -> Html:
    if evaluation.step == 0:
        name = "before training"
    elif evaluation is all_of_them[-1]:
        name = f"last, after step {evaluation.step:,}"
    else:
        name = f"after step {evaluation.step:,}"
    tone = "after" if evaluation is all_of_them[-1] and len(all_of_them) > 1 else "before"
    dots = []
    if evaluation.score is not None:
        dots = [_Dot(value=evaluation.score, low=evaluation.low, high=evaluation.high, tone=tone)]
    said = fixed(evaluation.score, 3)
    if evaluation.low is not None and evaluation.high is not None:
        said += f" [{fixed(evaluation.low, 3)}, {fixed(evaluation.high, 3)}]"
    small = [count(evaluation.n, "task")]
    if evaluation.truncated is not None:
        small.append(f"{evaluation.truncated:.0%} cut off")
    if evaluation.unscored:
        small.append(f"{evaluation.unscored:,} not judged")
    return _line(name, dots, join([tag("b", said), " ", tag("small", ", ".join(small))]))


def _line(name: str, dots: list[_Dot], said: Node) -> Html:
    marks: list[Html] = []
    for dot in dots:
        if dot.low is not None and dot.high is not None:
            left, width = _percent(dot.low), _percent(dot.high - dot.low)
            marks.append(tag("i", class_=f"bar {dot.tone}", style=f"left:{left};width:{width}"))
    marks += [
        tag("i", class_=f"dot {dot.tone}", style=f"left:{_percent(dot.value)}") for dot in dots
    ]
    return tag(
        "div",
        tag("span", name, class_="name"),
        tag("span", *marks, class_="track"),
        tag("span", said, class_="said"),
        class_="row",
    )


def _percent(share: float) -> str:
    return f"{min(max(share, 0.0), 1.0):.2%}"


def _ticks() -> Html:
    marks = (tag("i", fixed(x), style=f"left:{x:.0%}") for x in (0.0, 0.25, 0.5, 0.75, 1.0))
    return tag(
        "div",
        tag("span", class_="name"),
        tag("span", *marks, class_="ticks"),
        tag("span", class_="said"),
        class_="row",
        aria_hidden="true",
    )


def _domains(evaluations: list[Evaluation]) -> Html | None:
    """Each domain before and after, where there are several."""
    first, last = evaluations[0], evaluations[-1]
    names = sorted({*first.by_domain, *last.by_domain})
    if len(names) < 2 or first is last:
        return None
    rows = [_domain_row(name, first, last) for name in names]
    return tag(
        "details",
        tag("summary", f"By domain, before and after ({len(names)})"),
        tag("div", *rows, _ticks(), class_="dotplot slim"),
        open=len(names) <= _MOST_DOMAINS,
    )


def _domain_row(name: str, first: Evaluation, last: Evaluation) -> Html:
    before = number(first.by_domain, name, "score")
    after = number(last.by_domain, name, "score")
    dots: list[_Dot] = []
    if before is not None and after is not None:
        low, high = min(before, after), max(before, after)
        dots.append(_Dot(value=before, low=low, high=high, tone="before"))
        dots.append(_Dot(value=after, low=None, high=None, tone="after"))
    n = integer(last.by_domain, name, "n")
    said = f"{fixed(before)} → {fixed(after)}"
    return _line(name, dots, join([tag("b", said), " ", tag("small", count(n, "task"))]))
