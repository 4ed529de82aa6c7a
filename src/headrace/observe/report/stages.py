"""The stages of a plan: how each stands, what it gained, and where its own report is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.observe.report.gather import Material
from headrace.observe.report.markup import Html, Node, tag
from headrace.observe.report.parts import section, table
from headrace.observe.report.values import fixed, signed
from headrace.store.lenient import mapping, number, text
from headrace.store.runs import RunDirectory
from headrace.store.summary import RunSummary, summarise
from headrace.types import Json

__all__ = ["stages"]


def stages(material: Material) -> Html | None:
    """The section; None for a run that is no plan."""
    listed = material.recipe.get("stages") if isinstance(material.recipe, dict) else None
    if not isinstance(listed, list):
        return None
    rows = [_row(material.path / "stages", stage) for stage in listed if isinstance(stage, dict)]
    return section(
        "stages",
        "The stages",
        table(["Stage", "Method", "State", "Steps", "Held-out", "Gain", "Report"], rows),
        _kept(material),
        lead="Each is a run of its own and starts from what another left.",
    )


def _row(folder: Path, stage: Mapping[str, Json]) -> list[Node]:
    name = text(stage, "name")
    about: list[Node] = [tag("bdi", name), text(mapping(stage, "recipe"), "method")]
    try:
        summary = summarise(RunDirectory.open(folder / name))
    except HeadraceError:
        return [*about, "not begun", "–", "–", "–", "–"]
    before, after = summary.heldout.before, summary.heldout.after
    return [
        *about,
        summary.status,
        f"{summary.steps:,}",
        f"{fixed(before.score if before else None)} → {fixed(after.score if after else None)}",
        _gain(summary),
        tag("a", "report", href=f"stages/{name}/report.html")
        if (folder / name / "report.html").exists()
        else "–",
    ]


def _gain(summary: RunSummary) -> str:
    found = summary.heldout.difference
    if found is None or found.value is None:
        return "–"
    return f"{signed(found.value)} [{signed(found.low)}, {signed(found.high)}]"


def _kept(material: Material) -> Html | None:
    """What was watched against forgetting, from the first model to the last."""
    looks = [event.payload for event in material.events if event.kind == "regression"]
    found = looks[-1].get("findings") if looks else None
    if not isinstance(found, list):
        return None
    rows: list[list[Node]] = [
        [
            tag("bdi", text(each, "suite")),
            f"{fixed(number(each, 'before', 'value'), 3)} → "
            f"{fixed(number(each, 'after', 'value'), 3)}",
            f"{signed(number(each, 'difference', 'value'), 3)} "
            f"[{signed(number(each, 'difference', 'low'), 3)}, "
            f"{signed(number(each, 'difference', 'high'), 3)}]",
            fixed(number(each, "margin"), 3),
            text(each, "verdict"),
        ]
        for each in found
        if isinstance(each, dict)
    ]
    head = ["Watched", "First → last model", "Change", "Margin", "Verdict"]
    return tag("div", tag("h3", "What was not to be forgotten"), table(head, rows))
