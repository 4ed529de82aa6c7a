"""The audit: a verifier proves itself before it may train anything.

`corpus` holds the known tricks, `texts` and `probes` the generic attacks, `bench` asks the
verifier, `runner` audits a domain, `findings` are its words, `page` shows them, and `records`
keeps what passed. May be known by pipeline, command line and benchmarks; knows verifiers and
domains by their protocols only.
"""

from headrace.verify.audit.corpus import Corpus, Trick, load, shipped
from headrace.verify.audit.findings import AuditReport, AuditVerdict, Finding
from headrace.verify.audit.records import AuditRecord, ensure_audited, record, recorded
from headrace.verify.audit.runner import QUICK, Plan, audit, audit_all

__all__ = [
    "QUICK",
    "AuditRecord",
    "AuditReport",
    "AuditVerdict",
    "Corpus",
    "Finding",
    "Plan",
    "Trick",
    "audit",
    "audit_all",
    "ensure_audited",
    "load",
    "record",
    "recorded",
    "shipped",
]
