"""What the reading verbs say about runs: rows of `ls`, the page of `show`, the rows of `diff`."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from headrace.cli.output import number, table
from headrace.errors import StorageError
from headrace.observe.console import format_duration
from headrace.store import RunDirectory, list_runs
from headrace.store.summary import RunSummary, Score, summarise
from headrace.types import Json

__all__ = ["compare", "describe", "describe_plan", "listing", "stages"]

_BARS = "▁▂▃▄▅▆▇█"


def listing(root: Path) -> list[dict[str, Json]]:
    """One row for each run under `root`; a run that cannot be read says why in `reason`."""
    rows: list[dict[str, Json]] = []
    for info in list_runs(root):
        row: dict[str, Json] = {
            "run": info.name,
            "path": str(info.path),
            "status": info.state,
            "reason": info.reason,
            "recipe": info.recipe,
            "model": info.model,
            "created": info.created,
            "updated": info.updated,
            "attempts": info.attempts,
            "steps": None,
            "planned": None,
            "reward": None,
            "heldout_before": None,
            "heldout_after": None,
        }
        if info.state != "unreadable":
            row.update(_results(info.path))
        rows.append(row)
    return rows


def _results(path: Path) -> dict[str, Json]:
    try:
        summary = summarise(RunDirectory.open(path))
    except StorageError as error:
        return {"status": "unreadable", "reason": str(error)}
    before, after = summary.heldout.before, summary.heldout.after
    return {
        "steps": summary.steps,
        "planned": summary.planned,
        "reward": summary.reward[-1] if summary.reward else None,
        "heldout_before": before.score if before else None,
        "heldout_after": after.score if after else None,
    }


def describe(summary: RunSummary, path: Path) -> str:
    """The page of `headrace show`."""
    seconds = summary.seconds
    planned = "" if summary.planned is None else f" of {summary.planned}"
    attempts = f"{summary.attempts} attempt{'' if summary.attempts == 1 else 's'}"
    rows = [
        ["recipe", summary.recipe],
        ["model", summary.model],
        ["steps", f"{summary.steps}{planned}, {attempts}"],
        ["time", f"first reward {_time(seconds.first_reward)}, training {_time(seconds.training)}"],
        ["held-out", _heldout(summary)],
        ["reward", _curve(summary.reward)],
        [
            "speed",
            f"{number(summary.tokens_per_second, 0)} tok/s, "
            f"{number(summary.samples_per_second, 1)} smp/s",
        ],
    ]
    if summary.rewinds:
        rows.append(["rewinds", f"{summary.rewinds} (resumed another way than recorded)"])
    page = path / "report.html"
    rows.append(["report", str(page) if page.exists() else f"none; headrace report {path}"])
    reason = f": {summary.reason}" if summary.reason else ""
    lines = [f"{summary.run}  {summary.status}{reason}", table(rows)]
    if summary.domains:
        lines += ["", _domains(summary.domains)]
    return "\n".join(lines)


def stages(directory: RunDirectory) -> list[dict[str, Json]]:
    """One row for each stage of a plan, as for `listing`; none for a single run."""
    recipe = directory.recipe()
    named = recipe.get("stages") if isinstance(recipe, dict) else None
    rows = {row["run"]: row for row in listing(directory.path / "stages")}
    return [
        {
            "status": "not begun",
            "method": stage["recipe"]["method"],
            **rows.get(stage["name"], {}),
            "run": stage["name"],
        }
        for stage in named or []
    ]


def describe_plan(summary: RunSummary, rows: list[dict[str, Json]]) -> str:
    """The page of `headrace show` for a plan: its stages in their order."""
    reason = f": {summary.reason}" if summary.reason else ""
    shown = [
        [
            row["run"],
            row["method"],
            row["status"],
            f"{number(row.get('steps'), 0)}/{number(row.get('planned'), 0)}",
            f"{number(row.get('heldout_before'))} -> {number(row.get('heldout_after'))}",
            f"headrace show {row['path']}" if "path" in row else "-",
        ]
        for row in rows
    ]
    header = ["STAGE", "METHOD", "STATE", "STEPS", "HELD-OUT", "MORE"]
    return f"{summary.run}  {summary.status}{reason}\n{table(shown, header=header)}"


def _heldout(summary: RunSummary) -> str:
    before, after = summary.heldout.before, summary.heldout.after
    text = f"{_score(before)} -> {_score(after)}"
    difference = summary.heldout.difference
    if difference is None or difference.value is None:
        return text
    text += f", difference {difference.value:+.3f}"
    if difference.low is None or difference.high is None:
        return text
    level = "" if difference.confidence is None else f" at {difference.confidence:.0%}"
    return f"{text} [{difference.low:+.3f}, {difference.high:+.3f}]{level}"


def _score(score: Score | None) -> str:
    if score is None or score.score is None:
        return "-"
    stderr = "" if score.stderr is None else f" ±{score.stderr:.3f}"
    return f"{score.score:.3f}{stderr} (n={score.n if score.n is not None else '-'})"


def _curve(rewards: list[float | None]) -> str:
    """First and last reward around a curve of at most 60 marks; "·" where nothing was judged."""
    if not rewards:
        return "-"
    stride = -(-len(rewards) // 60)
    marks = ["·" if r is None else _BARS[min(int(r * 8), 7)] for r in rewards[::stride]]
    return f"{number(rewards[0])} {''.join(marks)} {number(rewards[-1])}"


def _domains(domains: dict[str, dict[str, Json]]) -> str:
    """A row for each domain with whatever numbers are known of it."""
    columns = list(dict.fromkeys(key for latest in domains.values() for key in latest))
    rows = [
        [name, *(_cell(latest.get(column)) for column in columns)]
        for name, latest in domains.items()
    ]
    return table(rows, header=["DOMAIN", *(column.upper() for column in columns)])


def _cell(value: Json) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)


# --- diff ----------------------------------------------------------------------------------


def compare(first: RunDirectory, second: RunDirectory) -> dict[str, Json]:
    """Rows of `key`, `a`, `b` that differ, for `recipe`, `environment` and `results`."""
    return {
        "a": first.name,
        "b": second.name,
        "recipe": _changed(_flat(first.recipe()), _flat(second.recipe())),
        "environment": _changed(_flat(first.env()), _flat(second.env())),
        "results": _changed(_flat(_outcome(first)), _flat(_outcome(second))),
    }


def _outcome(run: RunDirectory) -> Json:
    summary = summarise(run)
    values = summary.to_json()
    judged = [reward for reward in summary.reward if reward is not None]
    return {
        "status": summary.status,
        "steps": summary.steps,
        "heldout": values["heldout"],
        "reward": {
            "first": judged[0] if judged else None,
            "last": judged[-1] if judged else None,
            "mean": sum(judged) / len(judged) if judged else None,
        },
        "seconds": values["seconds"],
        "tokens_per_second": summary.tokens_per_second,
        "samples_per_second": summary.samples_per_second,
    }


def _flat(value: Json, path: str = "") -> dict[str, Json]:
    """Leaves by dotted path; a list without tables in it is a leaf."""
    if isinstance(value, dict):
        items = [(str(key), item) for key, item in cast("dict[object, Json]", value).items()]
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        items = [(str(index), item) for index, item in enumerate(cast("list[Json]", value))]
    else:
        return {path: value}
    flat: dict[str, Json] = {}
    for key, item in items:
        flat.update(_flat(item, f"{path}.{key}" if path else key))
    return flat


def _changed(first: dict[str, Json], second: dict[str, Json]) -> list[dict[str, Json]]:
    keys = dict.fromkeys([*first, *second])
    return [
        {"key": key, "a": first.get(key), "b": second.get(key)}
        for key in keys
        if first.get(key) != second.get(key)
    ]
