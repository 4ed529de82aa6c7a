"""What an audit found: its words, and their JSON. Knows nothing of how it was found.

May be known by everyone who runs, shows or records audits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from headrace.types import Fault, Json, VerifierRef

__all__ = [
    "Attempt",
    "AuditReport",
    "AuditVerdict",
    "Bound",
    "Disagreement",
    "Finding",
    "ProbeCount",
    "Severity",
    "Timings",
]

Bound = Literal["full", "less", "floor", "full-or-floor"]
"""What an attempt must get: full marks, less than that, the floor at most, or one of the two."""

Severity = Literal["fail", "unclear", "note"]
AuditVerdict = Literal["pass", "fail", "inconclusive"]

_SHOWN = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A text that is judged, the probe it belongs to, and what it must get.

    `fixed` says that the text was made without looking at the task, so that its answer can only
    be in it by chance.
    """

    probe: str
    text: str
    bound: Bound
    fixed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that an audit holds against a verifier, with all that is needed to see why.

    `severity`: "fail" alone fails the audit, "unclear" makes it inconclusive, "note" is told.
    `rank` orders findings, the worst having the highest. `expected` and `problem` are sentences;
    `text` is the attempt (at most 4,000 characters of its `characters`); `score`, `fault` and
    `evidence` are the verdict's; `trace` a traceback where something was raised.
    """

    probe: str
    severity: Severity
    rank: float
    problem: str
    expected: str = ""
    tier: int | None = None
    index: int | None = None
    prompt: str = ""
    reference: str | None = None
    text: str | None = None
    characters: int = 0
    score: float | None = None
    fault: Fault | None = None
    evidence: str = ""
    trace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCount:
    """How often a probe was made, how often it found something, and how often it could not count.

    `coincidences` are texts that happened to say the right answer, and are not held against
    anyone; `skipped` are tricks that need what no hint says.
    """

    probe: str
    attempts: int = 0
    findings: int = 0
    coincidences: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """How often a second verifier sees another solution than the first: counts of attempts."""

    verifier: VerifierRef
    compared: int
    different: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Milliseconds of one verdict: mean, 95th percentile, longest; seconds of the whole audit."""

    mean_ms: float
    p95_ms: float
    longest_ms: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The result of an audit of one domain; `findings` the worst first.

    `tiers` were visited, `tasks` audited, of which `unproven` had no reference; `verdicts` is
    how often the verifier was asked, `unsteady` how many of `repeated` verdicts came out
    differently. `waived` are probes that the domain is excused from, with its reasons. `corpus`
    and `code` are digests (SHA-256 hex) of the tricks and of the code that judged.

    >>> report.verdict, report.worst.probe  # doctest: +SKIP
    ('fail', 'trick/forged-result-line')
    """

    domain: str
    verifier: VerifierRef
    verdict: AuditVerdict
    quick: bool
    findings: tuple[Finding, ...]
    probes: tuple[ProbeCount, ...]
    tiers: tuple[int, ...]
    tasks: int
    unproven: int
    verdicts: int
    repeated: int
    unsteady: int
    disagreement: Disagreement | None
    waived: Mapping[str, str]
    timings: Timings
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    corpus: str = ""
    code: str = ""

    @property
    def worst(self) -> Finding | None:
        """The first finding, None where there is none."""
        return self.findings[0] if self.findings else None

    def to_json(self) -> Json:
        """All of it as JSON; tuples become lists."""
        return {**asdict(self), "waived": dict(self.waived), "versions": dict(self.versions)}
