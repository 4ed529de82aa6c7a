"""The section on several objectives: charts, and the front of the checkpoints."""

from __future__ import annotations

from pathlib import Path

from headrace.observe.report.gather import gather
from headrace.observe.report.objectives import objectives
from headrace.observe.report.page import page
from headrace.types import Json
from report_support import Appended, Element, make_run, parse, step_payload, write_events


def told(**means: float | None) -> dict[str, Json]:
    weights = {"helpful": 2.0, "safe": 1.0, "short": 0.0}
    return {name: {"mean": m, "n": 8, "weight": weights[name]} for name, m in means.items()}


def step(number: int, **means: float | None) -> Appended:
    return ("step", number, {**step_payload(0.5), "objectives": told(**means)}, {})


def evaluation(number: int, **means: float | None) -> Appended:
    payload: dict[str, Json] = {"suite": "heldout", "score": 0.5, "objectives": told(**means)}
    return ("evaluation", number, payload, {})


def section(folder: Path, *events: Appended) -> Element | None:
    run = make_run(folder)
    write_events(run, events)
    made = objectives(gather(run.path))
    return None if made is None else parse(made)


def test_each_objective_has_a_chart_and_checkpoints_are_compared_on_the_held_out_tasks(
    tmp_path: Path,
) -> None:
    found = section(
        tmp_path,
        evaluation(0, helpful=0.2, safe=0.9, short=0.5),
        step(1, helpful=0.3, safe=0.8, short=0.5),
        evaluation(1, helpful=0.4, safe=0.8, short=0.5),
        step(2, helpful=0.2, safe=0.7, short=0.5),
        evaluation(2, helpful=0.3, safe=0.8, short=0.4),
    )
    assert found is not None
    assert len(found.all("svg")) == 3
    assert "weight 2" in found.text
    assert "measured, not rewarded" in found.text
    assert "Pareto front: 2 of 3 checkpoints" in found.text
    rows = [[cell.text for cell in row.all("td")] for row in found.all("tr")][1:]
    assert [(row[0], row[-1]) for row in rows] == [("0", "✓ on it"), ("1", "✓ on it"), ("2", "–")]


def test_a_run_with_one_reward_has_no_such_section(tmp_path: Path) -> None:
    assert section(tmp_path / "a", ("step", 1, step_payload(0.5), {})) is None
    assert section(tmp_path / "b", step(1, helpful=0.5)) is None


def test_what_was_not_measured_or_is_damaged_is_a_gap(tmp_path: Path) -> None:
    found = section(
        tmp_path,
        step(1, helpful=None, safe=0.8),
        ("step", 2, {**step_payload(0.5), "objectives": "none"}, {}),
        evaluation(2, helpful=None, safe=0.8),
    )
    assert found is not None
    assert "Pareto front: 0 of 1 checkpoints" in found.text


def test_the_name_of_an_objective_cannot_be_markup_and_the_page_has_the_section(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path)
    odd = {"<b>": {"mean": 0.5, "n": 1, "weight": 1.0}, **told(safe=0.5)}
    write_events(run, [("step", 1, {**step_payload(0.5), "objectives": odd}, {})])
    text = page(gather(run.path))
    assert "What was rewarded" in text
    assert "<b></bdi>" not in text
    assert "&lt;b&gt;" in text
