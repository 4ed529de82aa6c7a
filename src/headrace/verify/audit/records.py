"""Passed audits on the disk, and the gate before training that asks for them.

`<cache>/audits/<key>.json`, the key being what the audit was about: domain, verifier and its
version, the code that judges and the trick corpus. Change any of them and the record no longer
counts. Knows audits; knows no run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from headrace.errors import GateFailed, StorageError
from headrace.protocols import Domain
from headrace.store.files import read_json, storage_guard, write_json_atomic
from headrace.store.places import cache_root
from headrace.types import Json, VerifierRef, content_hash
from headrace.verify.audit.corpus import Corpus, shipped
from headrace.verify.audit.digests import code_digest
from headrace.verify.audit.findings import AuditReport, Finding
from headrace.verify.audit.runner import QUICK, Plan, audit_all

__all__ = [
    "AuditRecord",
    "ensure_audited",
    "record",
    "recorded",
    "records_root",
    "require_passed",
]

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """A passed audit: what it was about, how thorough it was, and when (ISO 8601, UTC)."""

    domain: str
    verifier: VerifierRef
    code: str
    corpus: str
    quick: bool
    tasks: int
    verdicts: int
    when: str

    @property
    def key(self) -> str:
        return _key(self.domain, self.verifier, self.code, self.corpus)

    def to_json(self) -> Json:
        return asdict(self)


def records_root() -> Path:
    """Where passed audits are kept."""
    return cache_root() / "audits"


def recorded(domain: Domain, corpus: Corpus | None = None) -> AuditRecord | None:
    """The record of a passed audit of exactly this domain, verifier, code and corpus, if any.

    A file that cannot be read, or says something else, is no record.
    """
    digest = (corpus or shipped()).digest
    code = code_digest(domain)
    path = _path(_key(domain.name, domain.verifier.ref, code, digest))
    if not path.is_file():
        return None
    try:
        raw = read_json(path)
        found = AuditRecord(
            domain=str(raw["domain"]),
            verifier=VerifierRef(str(raw["verifier"]["id"]), str(raw["verifier"]["version"])),
            code=str(raw["code"]),
            corpus=str(raw["corpus"]),
            quick=bool(raw["quick"]),
            tasks=int(raw["tasks"]),
            verdicts=int(raw["verdicts"]),
            when=str(raw["when"]),
        )
    except (StorageError, LookupError, TypeError, ValueError):
        return None
    wanted = (domain.name, domain.verifier.ref, code, digest)
    return found if (found.domain, found.verifier, found.code, found.corpus) == wanted else None


def record(report: AuditReport) -> AuditRecord:
    """Write down that an audit passed; ValueError for one that did not, StorageError at worst."""
    if report.verdict != "pass":
        raise ValueError(f"the audit of {report.domain} is {report.verdict}")
    kept = AuditRecord(
        domain=report.domain,
        verifier=report.verifier,
        code=report.code,
        corpus=report.corpus,
        quick=report.quick,
        tasks=report.tasks,
        verdicts=report.verdicts,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    path = _path(kept.key)
    with storage_guard(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomic(path, {"format": _FORMAT, **kept.to_json()})
    return kept


def ensure_audited(
    domains: Mapping[str, Domain], *, progress: Callable[[str, int, int], None]
) -> Mapping[str, AuditRecord]:
    """A passed audit for each domain: the recorded one, else a quick one made now.

    `progress` is told ("auditing verifiers", done, total) domains, from the caller's thread.
    Raises GateFailed (exit 3) naming the first domain that does not pass, what is worst about
    it, and the command that shows it.
    """
    return require_passed(domains, progress=progress)


def require_passed(
    domains: Mapping[str, Domain],
    *,
    progress: Callable[[str, int, int], None],
    plan: Plan = QUICK,
    corpus: Corpus | None = None,
    workers: int = 2,
) -> dict[str, AuditRecord]:
    """`ensure_audited` with a plan and a corpus of one's own."""
    known = {name: recorded(domain, corpus) for name, domain in domains.items()}
    missing = {name: domains[name] for name, found in known.items() if found is None}
    reports = audit_all(
        missing,
        plan,
        workers=workers,
        corpus=corpus,
        progress=lambda _, done, total: progress("auditing verifiers", done, total),
    )
    made = {name: record(r) for name, r in reports.items() if r.verdict == "pass"}
    for name, report in reports.items():
        if report.verdict != "pass":
            raise _failed(name, report)
    return {name: made.get(name) or _known(known[name]) for name in domains}


def _known(found: AuditRecord | None) -> AuditRecord:
    if found is None:
        raise ValueError("neither recorded nor audited")
    return found


def _failed(name: str, report: AuditReport) -> GateFailed:
    how = "failed" if report.verdict == "fail" else "was inconclusive"
    verifier = f"{report.verifier.id} {report.verifier.version}"
    worst = _sentence(report.worst)
    return GateFailed(
        f"{name} may not be trained on: the audit of its verifier {how}: {worst}",
        where=f"verifier {verifier}",
        hint=f"headrace audit {name}",
    )


def _sentence(worst: Finding | None) -> str:
    if worst is None:
        return "nothing could be judged"
    said = "" if worst.text is None else f", such as {worst.text[:80]!r}"
    return f"{worst.probe}: {worst.problem}{said}"


def _key(domain: str, verifier: VerifierRef, code: str, corpus: str) -> str:
    about = [domain, verifier.id, verifier.version, code, corpus]
    return content_hash(about, length=32)


def _path(key: str) -> Path:
    return records_root() / f"{key}.json"
