"""The verb `simulate`: what a schedule would come to, before anybody pays for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.output import emit, emit_json, table, tell

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.pipeline.simulation import Report, World
    from headrace.recipe import Recipe

__all__ = ["register"]

Json = Annotated[bool, typer.Option("--json", help="Write JSON instead of text.")]
Seconds = float | None
Which = Literal["all", "lockstep", "free"]

_BAR = 30


def simulate(
    what: Annotated[
        str,
        typer.Argument(
            metavar="[RECIPE|RUN]",
            help="A recipe, as for run; or a run, whose own lengths and seconds are taken.",
        ),
    ] = "quickstart",
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a value of the recipe."),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps of each schedule.")] = 50,
    play: Annotated[
        Seconds, typer.Option("--play-seconds", help="To sample one step's attempts.  [10]")
    ] = None,
    learn: Annotated[
        Seconds, typer.Option("--learn-seconds", help="To learn from them.  [5]")
    ] = None,
    update: Annotated[
        Seconds, typer.Option("--update-seconds", help="For new weights to be sampled from.  [0]")
    ] = None,
    verdict: Annotated[
        Seconds, typer.Option("--verifier-seconds", help="For a verdict, the median.  [10]")
    ] = None,
    verdict_tail: Annotated[
        float | None,
        typer.Option("--verifier-tail", help="Its 99th percentile over the median.  [3]"),
    ] = None,
    tokens: Annotated[
        float | None,
        typer.Option("--tokens", help="Of an answer, the median.  [a quarter of the limit]"),
    ] = None,
    length_tail: Annotated[
        float | None,
        typer.Option("--length-tail", help="Its 99th percentile over the median.  [5]"),
    ] = None,
    batch_cost: Annotated[
        float | None,
        typer.Option("--batch-cost", help="Share of a pass that grows with the batch.  [0.5]"),
    ] = None,
    faults: Annotated[
        float | None,
        typer.Option("--faults", help="Share of verdicts that fail and are tried again.  [0]"),
    ] = None,
    verifiers: Annotated[
        int | None, typer.Option("--verifiers", help="At work at once.  [verify.workers]")
    ] = None,
    slots: Annotated[
        int | None, typer.Option("--slots", help="Sequences at once.  [sampler.max_rows]")
    ] = None,
    apart: Annotated[
        bool, typer.Option("--apart", help="Sampling and learning have hardware of their own.")
    ] = False,
    lags: Annotated[str, typer.Option("--lag", help="Values of play.max_lag.")] = "1,2,4",
    schedule: Annotated[
        Which, typer.Option("--schedule", help="Which to compare with synchronous.")
    ] = "all",
    seed: Annotated[int | None, typer.Option("--seed", help="Of everything drawn.")] = None,
    runs: Annotated[
        Path, typer.Option("--runs", metavar="DIR", help="Where runs are kept.")
    ] = Path("runs"),
    json: Json = False,
) -> None:
    """Compare schedules in virtual time: which play.max_lag is worth its staleness?

    The queue, the scheduler and the bound on staleness are the ones that a run uses; only what
    takes time is simulated. With a RUN (best a synchronous one) nothing needs to be said: its
    lengths, seconds and domains are taken, and options replace single ones. Seconds in
    [brackets] hold for a recipe of which nothing is known.

    SAMPLES/S and shares of time are of the steady part. SAMPLER, LEARNER and VERIFIERS say how
    much of the time each works; OLD how many versions the policy was ahead of a sample's oldest
    token when it was trained on, on average and at most.

    \b
    Examples:
      headrace simulate quickstart --verifier-seconds 20
      headrace simulate latest
      headrace simulate latest --verifier-seconds 30 --verifier-tail 10 --lag 1,2,3
      headrace simulate big.toml --play-seconds 300 --learn-seconds 120 --apart --json
    """
    from headrace.pipeline.simulation import Assumptions, assume

    recipe, world, notes = _subject(what, overrides or [], runs)
    changes = {"steps": steps} | ({} if seed is None else {"seed": seed})
    recipe = recipe.model_copy(update=changes)
    said = Assumptions(
        play_s=play,
        learn_s=learn,
        update_s=update,
        verdict_s=verdict,
        verdict_tail=verdict_tail,
        tokens=tokens,
        length_tail=length_tail,
        batch_cost=batch_cost,
        faults=faults,
        verifiers=verifiers,
        slots=slots,
        shared=not apart,
    )
    world = assume(recipe, said, world=world)
    for note in notes:
        tell(note)
    reports = _compared(recipe, world, _numbers(lags), schedule)
    if json:
        emit_json({"notes": list(notes), "schedules": [r.to_json() for r in reports]})
        return
    emit(_overview(reports))
    emit("")
    emit(_idle(reports))
    emit("")
    emit(_ages(reports))
    tell(_advice(reports))


def register(app: typer.Typer) -> None:
    app.command("simulate")(simulate)


def _subject(
    what: str, overrides: Sequence[str], runs: Path
) -> tuple[Recipe, World | None, tuple[str, ...]]:
    """The recipe, and the world of a run with what is known of it."""
    from headrace.configure import load_recipe
    from headrace.pipeline.simulation import calibrate
    from headrace.store import find, list_runs

    named = [info.name for info in list_runs(runs)]
    is_run = what == "latest" or any(n.startswith(what) or n.endswith(what) for n in named)
    if is_run or (Path(what) / "recipe.json").exists():
        directory = find(runs, what)
        resolved = load_recipe(str(directory.path / "recipe.json"), overrides)
        found = calibrate(directory)
        return resolved.recipe, found.world, found.notes
    notes = (f"{what}: its sizes; its seconds are assumed, unless options say them",)
    return load_recipe(what, overrides).recipe, None, notes


def _numbers(text: str) -> list[int]:
    from headrace.errors import UsageError

    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(
            f"{text!r} is no list of whole numbers", where="--lag", hint="--lag 1,2,4"
        ) from error
    if not all(0 <= number <= 64 for number in numbers):
        raise UsageError("play.max_lag is in 0..64", where="--lag", hint="--lag 1,2,4")
    return numbers


def _compared(recipe: Recipe, world: World, lags: list[int], which: Which) -> list[Report]:
    from headrace.pipeline.simulation import compare

    schedules = ("lockstep", "free") if which == "all" else (which,)
    return compare(recipe, world, lags, schedules=schedules)


# --- what is shown -------------------------------------------------------------------------


def _overview(reports: Sequence[Report]) -> str:
    base = reports[0].samples_per_second
    header = ["SCHEDULE", "SAMPLES/S", "SPEED", "STEP", "P95", "SAMPLER", "LEARNER"]
    header += ["VERIFIERS", "OLD", "MOST", "TO JUDGE", "READY"]
    rows = [
        [
            report.title,
            f"{report.samples_per_second:.3g}",
            f"{report.samples_per_second / base:.2f}x" if base else "-",
            f"{report.step_mean:.3g} s",
            f"{report.step_p95:.3g} s",
            _percent(report.busy.sampler),
            _percent(report.busy.learner),
            _percent(report.busy.verifiers),
            f"{report.staleness.mean:.2f}",
            str(report.staleness.most),
            f"{report.queues.to_judge:.1f}",
            f"{report.queues.ready:.1f}",
        ]
        for report in reports
    ]
    return table(rows, header=header)


def _idle(reports: Sequence[Report]) -> str:
    rows = [
        [report.title, _spelled(report.busy.sampler_idle), _spelled(report.busy.learner_idle)]
        for report in reports
    ]
    return table(rows, header=["SCHEDULE", "THE SAMPLER WAITS FOR", "THE LEARNER WAITS FOR"])


def _spelled(shares: Mapping[str, float]) -> str:
    told = [f"{cause} {_percent(share)}" for cause, share in shares.items() if share >= 0.005]
    return ", ".join(told) or "nothing"


def _ages(reports: Sequence[Report]) -> str:
    """How many groups were how old, as bars."""
    rows: list[list[str]] = []
    for report in reports:
        total = sum(report.staleness.counts.values()) or 1
        for age, count in report.staleness.counts.items():
            share = count / total
            rows.append([report.title, str(age), "#" * round(_BAR * share), _percent(share)])
    return table(rows, header=["SCHEDULE", "OLD", "GROUPS", ""])


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _advice(reports: Sequence[Report]) -> str:
    """The least stale schedule that is nearly as fast as the fastest."""
    fastest = max(report.samples_per_second for report in reports)
    enough = [r for r in reports if r.samples_per_second >= 0.97 * fastest]
    best = min(enough, key=lambda r: (r.max_lag, r.staleness.mean, r.schedule != "lockstep"))
    if best.max_lag == 0:
        return "nothing is much faster than synchronous: leave play.max_lag at 0"
    return (
        f"within 3 % of the fastest and least stale: {best.title} "
        f"(--set play.max_lag={best.max_lag} --set play.schedule={best.schedule})"
    )
