"""The audit itself: which attempts are made at which tasks of a domain, and what comes of it.

    tasks of each tier -> attempts for each (`probes`) -> verdicts held to their bounds (`bench`)
    -> the same again, repeatedly and from several threads -> a report (`findings`)

A verifier that never returns is left behind in its thread: the audit ends, and says on what.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import version
from platform import python_version

from headrace.protocols import Domain
from headrace.types import Task, canonical_json
from headrace.verify.audit import probes, texts
from headrace.verify.audit.bench import Answer, Bench, asked
from headrace.verify.audit.corpus import Corpus, Trick, shipped
from headrace.verify.audit.digests import code_digest
from headrace.verify.audit.findings import (
    Attempt,
    AuditReport,
    AuditVerdict,
    Disagreement,
    Finding,
    ProbeCount,
    Timings,
)
from headrace.verify.audit.probes import Seconded, Subject
from headrace.verify.kinds import Specimens

__all__ = ["QUICK", "Plan", "audit", "audit_all"]

_INDICES = 2**63
_KEPT = 5
_LEAST_SIBLINGS = 3
_UNSTEADY, _HANGS, _NO_TASK = 850.0, 990.0, 890.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is tried.

    `tasks` of each tier, of at most `tiers` tiers (None: all) from the first to the last; of a
    kind's specimens at most `specimens` (None: all). `repeats` and `threads`: how often, and
    from how many threads at once, the same attempts are judged again. With `every_trick` each
    trick meets each task, else each meets one. `slow` (seconds) bounds the 95th percentile of a
    verdict, `deadline` any single one.
    """

    tasks: int = 2
    tiers: int | None = None
    specimens: int | None = None
    repeats: int = 5
    threads: int = 4
    every_trick: bool = False
    seed: int = 0
    slow: float = 5.0
    deadline: float = 120.0
    quick: bool = False


QUICK = Plan(tasks=1, tiers=2, specimens=3, repeats=2, threads=2, quick=True)
"""Enough before a run, and for all domains at once: the first tier and the last."""


def audit(
    domain: Domain,
    plan: Plan = QUICK,
    *,
    corpus: Corpus | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> AuditReport:
    """Audit a domain's verifier on its own tasks; `progress` is told (done, total) tasks.

    Never raises for anything that the domain or its verifier does: that is in the report.
    """
    examination = _Examination(domain, plan, corpus or shipped(), progress or _silent)
    lane = threading.Thread(target=examination.run, name=f"audit {domain.name}", daemon=True)
    lane.start()
    while lane.is_alive() and not examination.hangs():
        lane.join(0.05)
    return examination.report()


def audit_all(
    domains: Mapping[str, Domain],
    plan: Plan = QUICK,
    *,
    workers: int = 2,
    corpus: Corpus | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, AuditReport]:
    """Audit several domains, `workers` at once; the reports in the order of `domains`.

    `progress` is told (domain just finished, done, total) in the caller's thread.
    """
    reports: dict[str, AuditReport] = {}
    pool = ThreadPoolExecutor(max(1, workers), thread_name_prefix="audits")
    try:
        futures = {
            pool.submit(audit, domain, plan, corpus=corpus): name
            for name, domain in domains.items()
        }
        for future in as_completed(futures):
            name = futures[future]
            reports[name] = future.result()
            if progress is not None:
                progress(name, len(reports), len(domains))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return {name: reports[name] for name in domains}


def _silent(done: int, total: int) -> None:
    del done, total


class _Examination:
    """One audit in the making; `run` in a thread of its own, `hangs` and `report` from another."""

    def __init__(
        self, domain: Domain, plan: Plan, corpus: Corpus, progress: Callable[[int, int], None]
    ) -> None:
        self._domain, self._plan, self._corpus = domain, plan, corpus
        self._progress = progress
        self._began = time.monotonic()
        self._waived = probes.waived(domain)
        self._tiers: tuple[int, ...] = ()
        self._tasks = self._unproven = self._repeated = self._unsteady = 0
        self._finished = False
        self._failure: BaseException | None = None
        self.bench = Bench(
            domain.verifier, second=domain.second if isinstance(domain, Seconded) else None
        )

    def run(self) -> None:
        """All of it; an error of the audit itself is kept for whoever waits."""
        try:
            self._examine()
        except BaseException as error:
            self._failure = error
            raise
        self._finished = True

    def hangs(self) -> bool:
        """Whether the verdict at hand has been waited for too long."""
        since = self.bench.since
        return since is not None and time.monotonic() - since > self._plan.deadline

    # --- the course of it ------------------------------------------------------------------

    def _examine(self) -> None:
        self._tiers = _spread(self._domain.tiers, self._plan.tiers)
        tricks = self._corpus.against(probes.surfaces(self._domain.verifier))
        everyone: list[Subject] = []
        for done, tier in enumerate(self._tiers):
            self._progress(done, len(self._tiers) + 1)
            subjects = self._subjects(tier)
            self._prove(tier, subjects)
            self._attack(subjects)
            everyone += subjects
        if everyone:
            self._try_tricks(tricks, everyone)
            self._progress(len(self._tiers), len(self._tiers) + 1)
            self._again(everyone, tricks)
        self._progress(1, 1)

    def _subjects(self, tier: int) -> list[Subject]:
        """The tasks to audit in a tier, one more where none of them is known to be solvable."""
        plan, domain = self._plan, self._domain
        if isinstance(domain, Specimens):
            drawn = list(range(len(domain.items)))
            wanted = len(drawn) if plan.specimens is None else plan.specimens
        else:
            wanted = plan.tasks
            numbers = range(max(wanted, _LEAST_SIBLINGS))
            drawn = [_draw(plan.seed, domain.name, tier, number) for number in numbers]
        made = {index: task for index in drawn if (task := self._made(tier, index)) is not None}
        self._check_task(tier, made)
        subjects: list[Subject] = []
        for number, index in enumerate(made):
            if number >= wanted and any(subject.proven for subject in subjects):
                break
            subject = self._subject(made[index], index, [made[i] for i in made if i != index])
            if subject is not None and (number < wanted or subject.proven):
                subjects.append(subject)
        return subjects

    def _made(self, tier: int, index: int) -> Task | None:
        result = asked(lambda: self._domain.task(tier, index))
        if result.said is None:
            self._no_task(tier, index, f"no task could be made: {result.error}", result.trace)
        return result.said

    def _check_task(self, tier: int, made: Mapping[int, Task]) -> None:
        for index, task in list(made.items())[:1]:
            self.bench.count("task", attempts=1)
            again = asked(lambda index=index: self._domain.task(tier, index))
            if again.said != task:
                self._no_task(tier, index, "asked for again, the task is another one", again.trace)
            self.bench.count("version", attempts=1)
            if task.verifier != self._domain.verifier.ref:
                self.bench.find(
                    Finding(
                        probe="version",
                        severity="fail",
                        rank=200.0,
                        problem=f"the task names {task.verifier}",
                        expected=f"the verifier's own {self._domain.verifier.ref}",
                        tier=tier,
                        index=index,
                    )
                )

    def _no_task(self, tier: int, index: int, problem: str, trace: str) -> None:
        self.bench.find(
            Finding(
                probe="task",
                severity="fail",
                rank=_NO_TASK,
                problem=problem,
                expected="a task: a pure function of tier and index",
                tier=tier,
                index=index,
                trace=trace,
            )
        )

    def _subject(self, task: Task, index: int, siblings: Sequence[Task]) -> Subject | None:
        result = asked(lambda: probes.subject(self._domain, task, index, siblings))
        if result.said is None:
            problem = f"reference, floor, hints or near raised {result.error}"
            self._no_task(task.tier, index, problem, result.trace)
        return result.said

    def _prove(self, tier: int, subjects: Sequence[Subject]) -> None:
        self._tasks += len(subjects)
        unproven = [s for s in subjects if not s.proven]
        self._unproven += len(unproven)
        self.bench.count("unproven", attempts=1)
        if subjects and len(unproven) == len(subjects):
            self.bench.find(
                Finding(
                    probe="unproven",
                    severity="unclear",
                    rank=20.0,
                    problem=f"no task of tier {tier} has a reference attempt",
                    expected="one solved example in each tier (`reference`, or `right`)",
                    tier=tier,
                    index=unproven[0].index,
                    prompt=unproven[0].prompt[: _KEPT * 800],
                )
            )

    def _attack(self, subjects: Sequence[Subject]) -> None:
        for subject in subjects:
            for attempt in probes.about(subject):
                self._try(subject, attempt, subjects)
        for number, attempt in enumerate(probes.fixed()):
            for subject in subjects[number % len(subjects) :][:1] if subjects else ():
                self._try(subject, attempt, subjects)

    def _try_tricks(self, tricks: Sequence[Trick], subjects: Sequence[Subject]) -> None:
        for number, trick in enumerate(tricks):
            turn = number % len(subjects)
            attempts = [
                (subject, attempt)
                for subject in (*subjects[turn:], *subjects[:turn])
                if (attempt := probes.trick(trick, subject)) is not None
            ]
            if not attempts:
                self.bench.count(f"trick/{trick.id}", skipped=1)
            for subject, attempt in attempts if self._plan.every_trick else attempts[:1]:
                self._try(subject, attempt, subjects)

    def _try(self, subject: Subject, attempt: Attempt, subjects: Sequence[Subject]) -> None:
        if attempt.probe in self._waived:
            return
        others = tuple(
            other.task
            for other in subjects
            if other.answer is not None
            and subject.answer is not None
            and not texts.same(other.answer, subject.answer)
        )
        self.bench.try_(subject, attempt, siblings=others[:2])

    # --- the same again --------------------------------------------------------------------

    def _again(self, subjects: Sequence[Subject], tricks: Sequence[Trick]) -> None:
        subject = next((s for s in subjects if s.reference is not None), subjects[0])
        attempts = _telling(subject, tricks)
        bench = self.bench
        first = {a.text: bench.watched(subject, a) for a in attempts}
        for attempt in attempts:
            later = [bench.watched(subject, attempt) for _ in range(self._plan.repeats - 1)]
            self._same("repeats", subject, attempt, first[attempt.text], later)
        if self._plan.threads > 1:
            crowd = bench.crowd(subject, attempts, self._plan.threads)
            for attempt in attempts:
                answers = crowd[attempt.text]
                self._same("threads", subject, attempt, first[attempt.text], answers)

    def _same(
        self,
        probe: str,
        subject: Subject,
        attempt: Attempt,
        first: Answer,
        later: Sequence[Answer],
    ) -> None:
        outcomes = [answer.outcome for answer in (first, *later)]
        judged = [said for said in outcomes if "infrastructure" not in said]
        different = [said for said in judged[1:] if said != judged[0]]
        self._repeated += len(later)
        self._unsteady += len(different)
        self.bench.count(probe, attempts=len(later))
        if different:
            odd = next(a for a in later if a.outcome == different[0])
            self.bench.hold(
                subject,
                attempt,
                odd,
                probe=probe,
                rank=_UNSTEADY,
                problem=f"judged {len(judged)} times, it came out as "
                + ", ".join(sorted(set(judged))),
                expected="the same score every time: a pure function of task and text",
            )

    # --- the report ------------------------------------------------------------------------

    def report(self) -> AuditReport:
        """What was found; to be called when `run` has ended, or hangs."""
        if self._failure is not None:
            raise self._failure
        if not self._finished:
            self._hung()
        self._slowness()
        bench = self.bench
        findings = _worst(bench.findings)
        return AuditReport(
            domain=self._domain.name,
            verifier=bench.verifier.ref,
            verdict=_verdict(findings, len(bench.seconds)),
            quick=self._plan.quick,
            findings=findings,
            probes=_counts(bench.counts),
            tiers=self._tiers,
            tasks=self._tasks,
            unproven=self._unproven,
            verdicts=len(bench.seconds),
            repeated=self._repeated,
            unsteady=self._unsteady,
            disagreement=None
            if bench.second is None
            else Disagreement(
                verifier=bench.second.ref, compared=bench.compared, different=bench.different
            ),
            waived=self._waived,
            timings=self._timings(),
            versions={"headrace": version("headrace"), "python": python_version()},
            corpus=self._corpus.digest,
            code=code_digest(self._domain),
        )

    def _hung(self) -> None:
        at = self.bench.at
        if at is not None:
            self.bench.hold(
                *at,
                Answer(None, self._plan.deadline),
                probe="hangs",
                rank=_HANGS,
                problem=f"no verdict within {self._plan.deadline:g} s; the audit was given up",
                expected="a verdict soon, whatever the text",
            )

    def _slowness(self) -> None:
        timings = self._timings()
        self.bench.count("slow", attempts=1)
        if timings.p95_ms > 1000 * self._plan.slow:
            self.bench.find(
                Finding(
                    probe="slow",
                    severity="fail",
                    rank=50.0,
                    problem=f"one verdict in twenty takes {timings.p95_ms / 1000:.1f} s or more",
                    expected=f"a 95th percentile of {self._plan.slow:g} s at most",
                )
            )

    def _timings(self) -> Timings:
        seconds = sorted(self.bench.seconds) or [0.0]
        return Timings(
            mean_ms=1000 * sum(seconds) / len(seconds),
            p95_ms=1000 * seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))],
            longest_ms=1000 * seconds[-1],
            seconds=time.monotonic() - self._began,
        )


def _telling(subject: Subject, tricks: Sequence[Trick]) -> list[Attempt]:
    """A right attempt, a wrong one, nothing, and two tricks: what is judged again."""
    about = list(probes.about(subject))
    found = [next((a for a in about if a.bound == bound), None) for bound in ("full", "less")]
    found.append(Attempt(probe="empty", text="", bound="floor"))
    tried = (probes.trick(trick, subject) for trick in tricks)
    found += [attempt for attempt in tried if attempt is not None][:2]
    return list({a.text: a for a in found if a is not None}.values())


def _draw(*key: str | int) -> int:
    """A uniform integer in 0..2**63 - 1 that depends on `key` alone, on every machine."""
    named = canonical_json(["audit", *key]).encode()
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "big") % _INDICES


def _spread(count: int, most: int | None) -> tuple[int, ...]:
    """At most `most` of the tiers 0..count - 1, evenly from the first to the last."""
    if most is None or most >= count:
        return tuple(range(count))
    if most == 1:
        return (0,)
    return tuple(sorted({round(step * (count - 1) / (most - 1)) for step in range(most)}))


def _worst(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The worst first, at most five of a probe."""
    ordered = sorted(findings, key=lambda f: (f.severity != "fail", -f.rank, f.tier or 0))
    kept: dict[str, list[Finding]] = {}
    for finding in ordered:
        kept.setdefault(finding.probe, []).append(finding)
    return tuple(f for f in ordered if f in kept[f.probe][:_KEPT])


def _verdict(findings: Sequence[Finding], verdicts: int) -> AuditVerdict:
    severities = {finding.severity for finding in findings}
    if "fail" in severities:
        return "fail"
    return "inconclusive" if "unclear" in severities or not verdicts else "pass"


def _counts(counts: Mapping[str, ProbeCount]) -> tuple[ProbeCount, ...]:
    """In the order of `PROBES`, the tricks where "trick" stands."""
    order = {probe: place for place, probe in enumerate(probes.PROBES)}
    return tuple(sorted(counts.values(), key=lambda c: (order[c.probe.partition("/")[0]], c.probe)))
