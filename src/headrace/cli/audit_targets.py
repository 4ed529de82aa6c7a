"""What `audit` is about: names and patterns to domains and kinds, audited side by side."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

from headrace.data.packs import Catalogue
from headrace.errors import RecipeError, UsageError
from headrace.observe.console import ConsoleListener
from headrace.protocols import Domain
from headrace.verify import kinds
from headrace.verify.audit import AuditReport, AuditVerdict, Plan, audit, audit_all, record

__all__ = ["Target", "choose", "examine", "verdict"]

_WILD = set("*?[")


@dataclass(frozen=True, slots=True)
class Target:
    """A domain of a task pack, or a kind of verifier with its specimens."""

    name: str
    sort: Literal["domain", "kind"]

    def open(self, catalogue: Catalogue) -> Domain:
        if self.sort == "domain":
            return catalogue.open(self.name)
        return kinds.find(self.name).specimens()


def choose(catalogue: Catalogue, names: Sequence[str], *, everything: bool) -> list[Target]:
    """The targets of the names, each once; a domain comes before a kind of the same name.

    UsageError without a name, or for one that nothing matches.
    """
    if everything == bool(names):
        raise UsageError(
            "name domains or kinds of verifier, or say --all",
            hint="headrace domains ls, headrace verifiers ls",
        )
    if everything:
        return _matching(catalogue, "*")
    found: dict[str, Target] = {}
    for name in names:
        targets = _matching(catalogue, name) if _WILD & set(name) else [_exact(catalogue, name)]
        found |= {target.name: target for target in targets}
    return list(found.values())


def _matching(catalogue: Catalogue, pattern: str) -> list[Target]:
    known = {name: Target(name, "kind") for name in kinds.names()}
    known |= {name: Target(name, "domain") for name in catalogue.names()}
    found = [known[name] for name in sorted(known) if fnmatchcase(name, pattern)]
    if not found:
        raise UsageError(
            f"no domain and no kind of verifier matches {pattern!r}",
            hint="headrace domains ls, headrace verifiers ls",
        )
    return found


def _exact(catalogue: Catalogue, name: str) -> Target:
    try:
        catalogue.open(name)
    except RecipeError as error:
        if name in kinds.names():
            return Target(name, "kind")
        near = difflib.get_close_matches(name, [*kinds.names(), *catalogue.names()], 1, 0.0)
        raise UsageError(
            f"no domain and no kind of verifier is named {name!r}",
            hint=f"did you mean {near[0]}?" if near else "",
        ) from error
    return Target(name, "domain")


def examine(catalogue: Catalogue, targets: Sequence[Target], plan: Plan) -> list[AuditReport]:
    """Audit all targets, record what passes, and show how far it is."""
    domains = {target.name: target.open(catalogue) for target in targets}
    bars = ConsoleListener(sys.stderr)
    try:
        if len(domains) == 1:
            (domain,) = domains.values()
            label = f"auditing {domain.name}"
            reports = [audit(domain, plan, progress=lambda d, n: bars.progress(label, d, n))]
        else:
            found = audit_all(
                domains,
                plan,
                workers=max(2, os.cpu_count() or 1),
                progress=lambda _, done, total: bars.progress("auditing", done, total),
            )
            reports = list(found.values())
    finally:
        bars.close()
    for report in reports:
        if report.verdict == "pass":
            record(report)
    return [replace(report, domain=name) for report, name in zip(reports, domains, strict=True)]


def verdict(reports: Sequence[AuditReport]) -> AuditVerdict:
    """That of all together: the worst."""
    verdicts = {report.verdict for report in reports}
    if "fail" in verdicts:
        return "fail"
    return "inconclusive" if "inconclusive" in verdicts else "pass"
