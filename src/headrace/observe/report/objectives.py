"""Several objectives: how each of them moved, and which checkpoints nobody would trade."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.algorithms.pareto import front
from headrace.observe.report.gather import Material
from headrace.observe.report.markup import Html, Node, tag
from headrace.observe.report.parts import section, table
from headrace.observe.report.plots import Axis, Chart, Dots, Line, chart
from headrace.observe.report.values import brief, fixed
from headrace.store.events import Event
from headrace.store.lenient import mapping, number

__all__ = ["objectives"]

_MOST = 12
_MOST_ROWS = 200


def objectives(material: Material) -> Html | None:
    """The section: a chart for each objective and the front; None for fewer than two of them."""
    names = _names([*material.steps, *_evaluations(material)])
    if len(names) < 2:
        return None
    shown = names[:_MOST]
    left = len(names) - len(shown)
    axis = _axis(material)
    return section(
        "objectives",
        "What was rewarded",
        tag("div", *(_figure(name, material, axis) for name in shown), class_="charts"),
        tag("p", f"{left} more are in events.jsonl.", class_="note") if left else None,
        _front(shown, _evaluations(material)),
        lead="Each objective gives an attempt 0 to 1; what is trained on is their weighted mean. "
        "One that falls while another rises is what the other costs.",
    )


def _evaluations(material: Material) -> list[Event]:
    """Those at which the objectives were measured."""
    return [
        event
        for event in material.events
        if event.kind == "evaluation" and mapping(event.payload, "objectives")
    ]


def _names(events: Sequence[Event]) -> list[str]:
    """Objectives in the order in which they are told of."""
    return list(dict.fromkeys(name for e in events for name in mapping(e.payload, "objectives")))


def _axis(material: Material) -> Axis:
    """Every step with an event or an evaluation, as all charts of the page have it."""
    found = {event.step for event in material.steps} | {e.step for e in material.evaluations}
    steps = tuple(sorted(found))
    return Axis(steps=steps, first=steps[0], last=steps[-1])


def _figure(name: str, material: Material, axis: Axis) -> Html:
    trained, heldout = (
        _column(name, material.steps, axis),
        _column(name, _evaluations(material), axis),
    )
    nothing: list[float | None] = [None] * len(axis.steps)
    known = [value for value in trained if value is not None]
    moved = f"{brief(known[0])} at first, {brief(known[-1])} at last" if known else "not measured"
    spec = Chart(
        label=f"{name}: {moved}",
        lines=(Line(name="in training", values=trained),),
        dots=(Dots(name="held-out", values=heldout, low=nothing, high=nothing),),
        low=0.0,
        high=1.0,
    )
    weight = _weight(name, material)
    told = "measured, not rewarded" if weight == 0 else f"weight {brief(weight)}"
    return tag("figure", tag("h3", tag("bdi", name), " ", tag("small", told)), chart(spec, axis))


def _column(name: str, events: Sequence[Event], axis: Axis) -> list[float | None]:
    at = {event.step: number(event.payload, "objectives", name, "mean") for event in events}
    return [at.get(step) for step in axis.steps]


def _weight(name: str, material: Material) -> float | None:
    told = [number(e.payload, "objectives", name, "weight") for e in material.steps]
    return next((weight for weight in reversed(told) if weight is not None), None)


def _front(names: Sequence[str], evaluations: Sequence[Event]) -> Html | None:
    """Each evaluated checkpoint with its objectives on the held-out tasks; the last of a step."""
    points = {event.step: _point(names, event.payload) for event in evaluations}
    if not points:
        return None
    on = front(list(points.values()))
    rows: list[list[Node]] = [
        [
            f"{step:,}",
            *(fixed(value) for value in point.values()),
            tag("span", "✓ on it", class_="mark good") if chosen else "–",
        ]
        for (step, point), chosen in zip(points.items(), on, strict=True)
    ]
    left = len(rows) - _MOST_ROWS
    return tag(
        "details",
        tag("summary", f"Pareto front: {sum(on)} of {len(on)} checkpoints"),
        table(["After step", *names, "Front"], rows[:_MOST_ROWS]),
        tag("p", f"The other {left:,} are in events.jsonl.", class_="note") if left > 0 else None,
        tag(
            "p",
            "On the front is a checkpoint if none is better in one objective and no worse in any, "
            "measured on the held-out tasks.",
            class_="note",
        ),
        open=True,
    )


def _point(names: Sequence[str], payload: Mapping[str, object]) -> dict[str, float | None]:
    return {name: number(payload, "objectives", name, "mean") for name in names}
