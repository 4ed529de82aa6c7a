"""The verb `audit`: verifiers prove themselves, or show how they are fooled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.output import emit, emit_json, tell

if TYPE_CHECKING:
    from headrace.verify.audit import AuditReport, Corpus, Finding, Plan

__all__ = ["register"]

_SHOWN = 300


def audit(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Domains or kinds of verifier, also patterns such as 'rg/*'.",
            show_default=False,
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every domain and every kind of verifier.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="The first and last tier, and few tasks.")
    ] = False,
    tasks: Annotated[
        int | None, typer.Option("--tasks", min=1, max=1000, help="Tasks of each tier.  [2]")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option("--repeats", min=1, max=1000, help="Same verdict how often?  [5]")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Which tasks are drawn.")] = 0,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Where the page goes.  [the cache]"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Write JSON instead of text.")] = False,
) -> None:
    """Attack verifiers with everything known; what passes may train.

    The reference must get full marks, and nothing else: no empty or constant answer, no echo of
    the prompt, no near miss, no known trick. The worst case is shown first. A pass is recorded,
    and asked for before a run trains on the domain. Exits 3 if anything fails, 6 if something
    could not be told.

    \b
    Examples:
      headrace audit arithmetic
      headrace audit 'rg/*' --quick
      headrace audit my-domain --tasks 20 --html audit.html
      headrace audit --all --quick --json
    """
    from headrace.cli import audit_targets
    from headrace.data.packs import Catalogue
    from headrace.errors import Exit
    from headrace.verify.audit import shipped

    with Catalogue() as catalogue:
        chosen = audit_targets.choose(catalogue, names or [], everything=everything)
        reports = audit_targets.examine(catalogue, chosen, _plan(quick, tasks, repeats, seed))
    path = _write_page(html, reports, shipped())
    verdict = audit_targets.verdict(reports)
    _say(reports, verdict, path, json=json)
    if verdict != "pass":
        raise typer.Exit(Exit.GATE if verdict == "fail" else Exit.INCONCLUSIVE)


def _say(reports: list[AuditReport], verdict: str, path: Path, *, json: bool) -> None:
    if json:
        told = [report.to_json() for report in reports]
        one = told[0] if len(told) == 1 else {"verdict": verdict, "reports": told}
        emit_json({**one, "html": str(path)})
    else:
        for line in _lines(reports):
            emit(line)
    tell(f"report: {path}")


def register(app: typer.Typer) -> None:
    app.command("audit")(audit)


def _plan(quick: bool, tasks: int | None, repeats: int | None, seed: int) -> Plan:
    from dataclasses import replace

    from headrace.verify.audit import QUICK, Plan

    plan = replace(QUICK if quick else Plan(), seed=seed)
    plan = plan if tasks is None else replace(plan, tasks=tasks, specimens=None)
    return plan if repeats is None else replace(plan, repeats=repeats)


def _write_page(html: Path | None, reports: list[AuditReport], corpus: Corpus) -> Path:
    from headrace.store.files import storage_guard, write_atomic
    from headrace.verify.audit.page import page
    from headrace.verify.audit.records import records_root

    name = reports[0].domain.replace("/", "-") if len(reports) == 1 else "all"
    path = html or records_root() / "reports" / f"{name}.html"
    with storage_guard(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, page(reports, corpus).encode())
    return path


def _lines(reports: list[AuditReport]) -> list[str]:
    """The worst case of each that did not pass, the worst of all first; then one line each."""
    marks = {"pass": "✓ pass", "fail": "✗ fail", "inconclusive": "? inconclusive"}
    width = max(len(report.domain) for report in reports)
    lines: list[str] = []
    blamed = [r for r in reports if r.verdict != "pass"]
    for report in sorted(blamed, key=lambda r: -(r.worst.rank if r.worst else 0.0)):
        if report.worst is not None:
            lines += [*_case(report.domain, report.worst), ""]
    for report in reports:
        failures = sum(count.findings for count in report.probes if count.probe != "disagreement")
        lines.append(
            f"{report.domain:<{width}}  {marks[report.verdict]:<14}  {report.tasks:>3} tasks  "
            f"{report.verdicts:>5} verdicts  {failures:>3} findings  "
            f"p95 {report.timings.p95_ms:.1f} ms  {report.timings.seconds:.1f} s"
        )
    return lines


def _case(domain: str, finding: Finding) -> list[str]:
    lines = [f"{domain}: {finding.probe}: {finding.problem}"]
    told = [
        ("expected", finding.expected),
        ("task", finding.prompt),
        ("reference", finding.reference),
        ("attempt", finding.text),
        ("score", _score(finding)),
        ("evidence", finding.evidence),
        ("raised", finding.trace),
    ]
    for label, text in told:
        if text is not None and (text or label == "attempt"):
            lines.append(f"  {label + ':':<10} {_short(text)}")
    return lines


def _score(finding: Finding) -> str | None:
    if finding.text is None or finding.trace:
        return None
    return f"none ({finding.fault})" if finding.score is None else f"{finding.score:.4g}"


def _short(text: str) -> str:
    """A text on a line or a few, as Python would write it where it is more than plain words."""
    cut = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 100]} … {text[-100:]}"
    return repr(cut) if not cut.strip() or "\n" not in cut else cut.replace("\n", "\n" + " " * 13)
