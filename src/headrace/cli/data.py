"""Verbs about stored attempts: `data export`, `data regrade`, `data compact`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.output import emit, emit_json, tell

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.data.packs import Catalogue
    from headrace.store.trajectories import TrajectoryStore
    from headrace.types import Trajectory, VerifierRef

__all__ = ["group"]

group = typer.Typer(no_args_is_help=True, help="Use what runs have played: nothing is sampled.")

Json = Annotated[bool, typer.Option("--json", help="Write JSON instead of text.")]
Runs = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where runs are kept.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="As for show.")]

_BATCH = 64


class ExportKind(StrEnum):
    sft = "sft"
    distill = "distill"
    replay = "replay"


@group.command("export")
def export(
    run: RunName,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help=".jsonl or .parquet")],
    kind: Annotated[
        ExportKind,
        typer.Option(help="sft: messages; distill: prompt, completion, token ids; replay: all."),
    ] = ExportKind.sft,
    where: Annotated[
        str, typer.Option(metavar="SQL", help="A condition over the view trajectories.")
    ] = "solved",
    runs: Runs = Path("runs"),
    json: Json = False,
) -> None:
    """Write a run's attempts as training data: the solved ones, unless told otherwise.

    \b
    Examples:
      headrace data export latest --out solved.jsonl
      headrace data export latest --kind distill --where "score > 0.5" --out pairs.parquet
    """
    from headrace.store import find
    from headrace.store.reuse import export as write
    from headrace.store.trajectories import TrajectoryStore

    with TrajectoryStore(find(runs, run).trajectories_path, read_only=True) as store:
        done = write(store, out, kind=kind.value, where=where)
    if json:
        emit_json({"path": str(done.path), "rows": done.rows, "skipped": done.skipped})
    else:
        emit(str(done.path))
        tell(f"{done.rows} attempts, {done.skipped} left out that have nothing of this kind")


@group.command("regrade")
def regrade(run: RunName, runs: Runs = Path("runs"), json: Json = False) -> None:
    """Judge a run's attempts again with the verifiers installed now; sample nothing.

    Older verdicts stay: what was trained on stays what it was.

    \b
    Examples:
      headrace data regrade latest
      headrace data regrade 3fa2b1 --json
      headrace show latest --sql "select verifier_version, avg(score) from verdicts group by 1"
    """
    from headrace.data.packs import Catalogue
    from headrace.store import find
    from headrace.store.trajectories import TrajectoryStore

    directory = find(runs, run)
    with (
        directory.lock(),
        Catalogue() as catalogue,
        TrajectoryStore(directory.trajectories_path) as store,
    ):
        judged, same = _regrade(store, catalogue)
    if json:
        emit_json({"judged": judged, "same": same})
    else:
        emit(f"{judged} judged again, {same} of them as before")


def _regrade(store: TrajectoryStore, catalogue: Catalogue) -> tuple[int, int]:
    """How many attempts got a new verdict, and how many of these say what was said."""
    from headrace.observe.console import ConsoleListener
    from headrace.store.records import Judged
    from headrace.verify.pool import VerificationPool

    domains = sorted({attempt.task.domain for attempt in store.trajectories()})
    verifiers = {name: catalogue.open(name).verifier for name in domains}
    listener = ConsoleListener()
    judged = same = 0
    with VerificationPool(verifiers) as pool:
        for chunk in _chunks(store, {v.ref for v in verifiers.values()}):
            for before, after in zip(chunk, pool.judge(chunk), strict=True):
                if after.verdict is not None:
                    store.append(Judged(after.id, after.verdict))
                    judged += 1
                    same += before.score == after.score
            listener.progress("judging again", judged, None)
    listener.close()
    return judged, same


def _chunks(store: TrajectoryStore, refs: Iterable[VerifierRef]) -> Iterator[list[Trajectory]]:
    """Attempts that these verifiers have given no score yet, some at a time."""
    for ref in refs:
        chunk: list[Trajectory] = []
        for attempt in store.unjudged(ref):
            chunk.append(attempt)
            if len(chunk) == _BATCH:
                yield chunk
                chunk = []
        if chunk:
            yield chunk


@group.command("compact")
def compact(
    run: RunName,
    arrays_from: Annotated[
        int | None,
        typer.Option(metavar="STEP", help="Keep token ids and log-probabilities from here on."),
    ] = None,
    groups_from: Annotated[
        int | None, typer.Option(metavar="STEP", help="Keep whole groups from here on.")
    ] = None,
    consumed: Annotated[
        bool, typer.Option("--consumed", help="Let go even of what was trained on.")
    ] = False,
    runs: Runs = Path("runs"),
    json: Json = False,
) -> None:
    """Seal a run's attempts into Parquet, and let go of what is not needed any more.

    \b
    Examples:
      headrace data compact latest
      headrace data compact latest --arrays-from 100
    """
    from dataclasses import asdict

    from headrace.store import find
    from headrace.store.compaction import Retention
    from headrace.store.trajectories import TrajectoryStore

    keep = Retention(arrays_from=arrays_from, groups_from=groups_from, consumed=consumed)
    directory = find(runs, run)
    with directory.lock(), TrajectoryStore(directory.trajectories_path) as store:
        sealing = store.seal()
        freed = store.compact(keep)
    if json:
        emit_json({"sealed": asdict(sealing), "freed": asdict(freed)})
    else:
        emit(
            f"sealed {sealing.segments} segments: {sealing.bytes_before:,} bytes are "
            f"{sealing.bytes_after:,}; freed {freed.bytes:,} more with {freed.groups} groups"
        )
