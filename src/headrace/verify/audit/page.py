"""An audit as a page: one self-contained HTML file, the worst case first.

Everything from a model, a task or a trick passes through `markup` and is escaped there. Knows
reports; runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files

from headrace.observe.report.markup import Html, Node, clean, join, tag
from headrace.observe.report.parts import facts, section, table, verbatim
from headrace.verify.audit.corpus import Corpus
from headrace.verify.audit.findings import AuditReport, AuditVerdict, Finding, ProbeCount
from headrace.verify.audit.probes import PROBES

__all__ = ["page"]

_PILLS: Mapping[AuditVerdict, tuple[str, str]] = {
    "pass": ("✓ pass", "good"),
    "fail": ("✗ fail", "bad"),
    "inconclusive": ("? inconclusive", "part"),
}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(reports: Sequence[AuditReport], corpus: Corpus) -> str:
    """The whole document; reports that did not pass come first."""
    order: Mapping[AuditVerdict, int] = {"fail": 0, "inconclusive": 1, "pass": 2}
    sorted_reports = sorted(reports, key=lambda report: order[report.verdict])
    title = f"audit: {reports[0].domain}" if len(reports) == 1 else f"audit of {len(reports)}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"headrace {title}"),
        tag("style", Html(_style())),
    )
    main = tag(
        "main",
        _heading(sorted_reports),
        _overview(sorted_reports) if len(reports) > 1 else None,
        *(_report(report, alone=len(reports) == 1) for report in sorted_reports),
        _probes(),
        _tricks(corpus),
        tag("footer", tag("p", f"Made {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by headrace audit.")),
    )
    return "<!doctype html>\n" + tag("html", head, tag("body", main), lang="en") + "\n"


def _style() -> str:
    return files("headrace.observe.report").joinpath("style.css").read_text(encoding="utf-8")


def _heading(reports: Sequence[AuditReport]) -> Html:
    counts = {word: sum(r.verdict == word for r in reports) for word in _PILLS}
    said = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    verdicts = sum(report.verdicts for report in reports)
    return tag(
        "header",
        tag("p", "headrace audit", class_="eyebrow"),
        tag("h1", tag("bdi", reports[0].domain) if len(reports) == 1 else "Verifiers on trial"),
        tag(
            "p",
            f"{said or 'nothing audited'}; {verdicts:,} verdicts. A verifier passes if right "
            "answers get full marks and nothing else pays.",
            class_="verdict",
        ),
    )


def _pill(verdict: AuditVerdict) -> Html:
    words, tone = _PILLS[verdict]
    return tag("b", words, class_=f"pill {tone}")


def _overview(reports: Sequence[AuditReport]) -> Html:
    rows: list[list[Node]] = [
        [
            tag("a", tag("bdi", report.domain), href=f"#{_anchor(report)}"),
            _pill(report.verdict),
            f"{report.verifier.id} {report.verifier.version}",
            tag("span", f"{report.verdicts:,}", class_="number"),
            tag("span", f"{report.timings.p95_ms:.1f} ms", class_="number"),
            f"{report.worst.probe}: {report.worst.problem}" if report.worst else "",
        ]
        for report in reports
    ]
    head = ("Audited", "Verdict", "Verifier", "Verdicts", "95 % within", "Worst finding")
    return section("overview", "All of them", table(head, rows))


def _report(report: AuditReport, *, alone: bool) -> Html:
    shown = join(
        [
            _facts(report),
            *(_finding(finding) for finding in report.findings),
            _waived(report),
            _counts(report.probes),
        ]
    )
    if not alone and report.verdict == "pass" and not report.findings:
        shown = tag("details", tag("summary", "Facts and probes"), shown)
    return tag(
        "section",
        tag("h2", tag("bdi", report.domain), " ", _pill(report.verdict)),
        shown,
        id=_anchor(report),
    )


def _anchor(report: AuditReport) -> str:
    return "a-" + "".join(c if c.isalnum() else "-" for c in report.domain)


def _facts(report: AuditReport) -> Html:
    second = report.disagreement
    return facts(
        ("Verifier", f"{report.verifier.id} {report.verifier.version}"),
        ("Tasks", f"{report.tasks} in {len(report.tiers)} tiers"),
        ("Without a reference", f"{report.unproven}" if report.unproven else None),
        ("Verdicts", f"{report.verdicts:,}"),
        ("Unsteady", f"{report.unsteady} of {report.repeated} repeats"),
        ("One verdict", f"{report.timings.mean_ms:.2f} ms, 95 % within {_p95(report)}"),
        (
            "Second verifier",
            f"{second.verifier.id} differs on {second.different} of {second.compared}"
            if second
            else None,
        ),
        ("Took", f"{report.timings.seconds:.1f} s{', quick' if report.quick else ''}"),
        ("Tricks", tag("code", report.corpus[:12])),
        ("Code", tag("code", report.code[:12])),
    )


def _p95(report: AuditReport) -> str:
    return f"{report.timings.p95_ms:.2f} ms"


def _finding(finding: Finding) -> Html:
    where = [f"tier {finding.tier}"] if finding.tier is not None else []
    where += [f"index {finding.index}"] if finding.index is not None else []
    size = f"{finding.characters:,} characters" if finding.characters > 1000 else ""
    tone = {"fail": "wrong", "unclear": "", "note": ""}[finding.severity]
    return tag(
        "article",
        tag(
            "header",
            tag("span", f"{finding.severity}", class_=f"outcome {tone}".strip()),
            tag("b", finding.probe),
            *(tag("span", part) for part in (*where, size) if part),
        ),
        tag("p", f"{finding.problem}. Expected: {finding.expected or 'nothing of the kind'}."),
        _labelled("The attempt", finding.text),
        _labelled("Verdict", _said(finding)),
        _labelled("The task", finding.prompt or None),
        _labelled("Its reference", finding.reference),
        _labelled("Raised", finding.trace or None),
    )


def _said(finding: Finding) -> str | None:
    if finding.text is None:
        return None
    fault = "" if finding.fault is None else f" (fault: {finding.fault})"
    score = "no score" if finding.score is None else f"score {finding.score:.4g}"
    return f"{score}{fault}\n{finding.evidence}".strip()


def _labelled(label: str, text: str | None) -> Html | None:
    if text is None:
        return None
    return tag("div", tag("h4", label), verbatim(clean(text)), class_="task")


def _waived(report: AuditReport) -> Html | None:
    if not report.waived:
        return None
    items = (tag("li", tag("b", probe), ": ", why) for probe, why in report.waived.items())
    return tag(
        "div",
        tag("p", "Excused by the domain, with its reasons:"),
        tag("ul", *items),
        class_="problems",
        role="note",
    )


def _counts(counts: Sequence[ProbeCount]) -> Html:
    rows: list[list[Node]] = [
        [
            tag("bdi", count.probe),
            tag("span", f"{count.attempts:,}", class_="number"),
            tag("span", f"{count.findings:,}", class_="number bad" if count.findings else "number"),
            tag("span", f"{count.coincidences:,}", class_="number"),
            "needs a hint" if count.skipped else "",
        ]
        for count in counts
    ]
    head = ("Probe", "Attempts", "Findings", "Right by chance", "Skipped")
    return tag("details", tag("summary", "What was tried"), table(head, rows))


def _probes() -> Html:
    items = (tag("li", tag("b", probe), ": ", what, ".") for probe, what in PROBES.items())
    return section("probes", "What is asked of a verifier", tag("ul", *items))


def _tricks(corpus: Corpus) -> Html:
    folded = (
        tag(
            "details",
            tag("summary", f"{trick.id}: {trick.title}"),
            tag("p", trick.story),
            tag("p", f"Seen: {trick.seen}", class_="note"),
            verbatim(clean(trick.text)),
        )
        for trick in corpus.tricks
    )
    return section("tricks", f"The {len(corpus.tricks)} known tricks", *folded)
