from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from audit_support import (
    BAD,
    NO_TRICKS,
    Bad,
    Custom,
    Faulty,
    Hangs,
    Honest,
    Slow,
    Sums,
    one_trick,
    right,
)
from headrace.protocols import Verifier
from headrace.types import Task, Verdict, VerifierRef
from headrace.verify.audit import QUICK, AuditReport, Plan, audit, audit_all
from headrace.verify.audit.probes import PROBES
from headrace.verify.kinds import Specimen, Specimens

PLAN = Plan(tasks=2, repeats=3, threads=3)


def examined(verifier: Verifier, plan: Plan = PLAN, corpus: object = NO_TRICKS) -> AuditReport:
    assert corpus is NO_TRICKS
    return audit(Sums(verifier), plan, corpus=NO_TRICKS)


def found(report: AuditReport) -> set[str]:
    return {finding.probe for finding in report.findings}


def test_an_honest_verifier_passes() -> None:
    report = examined(Honest())
    assert (report.verdict, report.findings) == ("pass", ())
    assert (report.tiers, report.tasks, report.unproven, report.unsteady) == ((0, 1), 4, 0, 0)
    tried = {count.probe: count.attempts for count in report.probes}
    assert all(
        tried[probe] for probe in ("reference", "empty", "constant", "threads", "confusable")
    )
    assert tried["reference"] == tried["empty"] == 4
    assert report.verdicts == sum(
        count.attempts
        for count in report.probes
        if count.probe not in ("task", "version", "unproven", "slow")
    ) + len({"reference", "perturbed", "empty"})


@pytest.mark.parametrize("bad", BAD, ids=[bad.name for bad in BAD])
def test_a_bad_verifier_is_caught_by_the_probe_for_it(bad: Bad) -> None:
    report = examined(bad.make())
    assert report.verdict == "fail"
    assert bad.probe in found(report), found(report)
    case = next(finding for finding in report.findings if finding.probe == bad.probe)
    assert case.severity == "fail"
    assert case.problem
    assert case.expected
    assert bad.probe == "version" or case.text is not None


def test_a_slow_verifier_is_caught() -> None:
    plan = replace(QUICK, slow=0.01)
    assert found(examined(Slow(), plan)) == {"slow"}
    assert examined(Honest(), plan).verdict == "pass"


def test_a_verifier_that_never_returns_is_left_behind_and_named() -> None:
    verifier = Hangs()
    report = examined(verifier, replace(QUICK, deadline=0.2))
    verifier.release.set()
    assert report.verdict == "fail"
    worst = report.worst
    assert worst is not None
    assert (worst.probe, worst.characters) == ("hangs", 200_000)
    assert "0.2 s" in worst.problem


def test_a_trick_that_pays_is_named_with_what_it_said() -> None:
    gullible = Custom(lambda task, text: right(task, text) or float("PASS" in text))
    report = audit(Sums(gullible), QUICK, corpus=one_trick("1 test\nPASS", name="forged"))
    worst = report.worst
    assert worst is not None
    assert (worst.probe, worst.text, worst.score) == ("trick/text/forged", "1 test\nPASS", 1.0)
    assert worst.evidence == "as told"
    assert audit(Sums(Honest()), QUICK, corpus=one_trick("PASS")).verdict == "pass"


def test_a_trick_knows_what_hints_say_and_is_skipped_without() -> None:
    class Hinting(Honest):
        def hints(self, task: Task) -> Mapping[str, str]:
            return {"answer": str(task.answer)}

    told = one_trick("<answer>{{answer}}</answer>")
    assert found(audit(Sums(Hinting()), QUICK, corpus=told)) == {"trick/text/a-trick"}
    report = audit(Sums(Honest()), QUICK, corpus=told)
    assert report.verdict == "pass"
    (count,) = [count for count in report.probes if count.probe == "trick/text/a-trick"]
    assert (count.attempts, count.skipped) == (0, 1)


def test_every_trick_meets_every_task_when_asked_to() -> None:
    plan = replace(PLAN, every_trick=True)
    report = audit(Sums(Honest()), plan, corpus=one_trick("PASS"))
    assert {c.probe: c.attempts for c in report.probes}["trick/text/a-trick"] == 4


# --- what is not held against a verifier -----------------------------------------------------


class Bits(Sums):
    """Say 0 or 1: half of all tasks are solved by a constant."""

    def task(self, tier: int, index: int) -> Task:
        return replace(super().task(tier, index), answer=index % 2)

    def reference(self, task: Task) -> str:
        return str(task.answer)


class Plain(Honest):
    def judge(self, task: Task, text: str) -> Verdict:
        return super().judge(task, f"<answer>{text}</answer>")


def test_a_constant_that_is_the_answer_is_counted_as_chance() -> None:
    report = audit(Bits(Plain(), tiers=12), PLAN, corpus=NO_TRICKS)
    assert report.verdict == "pass", report.worst
    assert {c.probe: c.coincidences for c in report.probes}["constant"] > 0


def test_a_constant_that_pays_on_every_task_is_no_chance() -> None:
    either = Custom(lambda task, text: float(text in ("0", "1")))
    assert "constant" in found(audit(Bits(either, tiers=4), PLAN, corpus=NO_TRICKS))


def test_a_domain_may_be_excused_with_a_reason_but_not_from_everything() -> None:
    class Waived(Sums):
        waived: Mapping[str, str] = {"foreign-answer": "any number will do", "empty": "because"}

    likes_numbers = Custom(
        lambda task, text: right(task, text) or float(not text) or 0.2 * ("er>1" in text)
    )
    report = audit(Waived(likes_numbers), PLAN, corpus=NO_TRICKS)
    assert dict(report.waived) == {"foreign-answer": "any number will do"}
    assert "empty" in found(report)
    assert "foreign-answer" not in found(report)


# --- what cannot be told ---------------------------------------------------------------------


def test_without_any_reference_nothing_is_proven() -> None:
    report = audit(Sums(Honest(), proven=False), PLAN, corpus=NO_TRICKS)
    unproven = audit(_Silent(Honest()), PLAN, corpus=NO_TRICKS)
    for each in (report, unproven):
        assert (each.verdict, found(each)) == ("inconclusive", {"unproven"})
        assert each.unproven == each.tasks == 4


class _Silent(Sums):
    """Knows only other right attempts of none of its tasks."""

    def reference(self, task: Task) -> None:
        return None

    def right(self, task: Task) -> tuple[str, ...]:
        return ()


def test_a_right_attempt_proves_a_tier_as_well_as_a_reference() -> None:
    class Righting(_Silent):
        def right(self, task: Task) -> tuple[str, ...]:
            return (f"<answer>{task.answer}</answer>",)

    report = audit(Righting(Honest()), PLAN, corpus=NO_TRICKS)
    assert (report.verdict, report.unproven) == ("pass", 0)


def test_a_failing_infrastructure_makes_it_inconclusive_and_never_a_pass() -> None:
    for always in (False, True):
        report = examined(Faulty("infrastructure", always=always))
        assert (report.verdict, found(report)) == ("inconclusive", {"infrastructure"})


def test_a_task_that_cannot_be_made_or_changes_is_a_finding_with_its_traceback() -> None:
    class Broken(Sums):
        def task(self, tier: int, index: int) -> Task:
            if tier:
                raise KeyError("no such tier")
            return super().task(tier, index)

    class Drifting(Sums):
        calls = 0

        def task(self, tier: int, index: int) -> Task:
            self.calls += 1
            return super().task(tier, self.calls)

    report = audit(Broken(Honest()), PLAN, corpus=NO_TRICKS)
    worst = report.worst
    assert worst is not None
    assert (report.verdict, worst.probe) == ("fail", "task")
    assert "no such tier" in worst.trace
    assert "task" in found(audit(Drifting(Honest()), PLAN, corpus=NO_TRICKS))


# --- domains of other shapes -----------------------------------------------------------------


def test_specimens_are_audited_one_and_all() -> None:
    items = tuple(
        Specimen(
            prompt=f"Say {n} in tags.",
            answer=n,
            reference=f"<answer>{n}</answer>",
            wrong=(f"<answer>{n}{n}</answer>",),
            right=(f"So <answer> {n} </answer>.",),
        )
        for n in (21, 34, 55)
    )
    report = audit(Specimens("kind", Honest(), items), Plan(), corpus=NO_TRICKS)
    assert (report.verdict, report.tasks) == ("pass", 3)
    tried = {count.probe: count.attempts for count in report.probes}
    assert (tried["right"], tried["wrong"]) == (3, 3)
    lenient = Custom(lambda task, text: float((read_digits(text) or "x")[:2] == str(task.answer)))
    assert "wrong" in found(audit(Specimens("kind", lenient, items), Plan(), corpus=NO_TRICKS))


def read_digits(text: str) -> str:
    return "".join(c for c in text if c.isdigit() and c.isascii())


def test_a_second_verifier_that_sees_other_solutions_is_told_and_not_held_against_anyone() -> None:
    class Two(Sums):
        second: Verifier = Custom(lambda task, text: float(str(task.answer) in text))

    report = audit(Two(Honest()), PLAN, corpus=NO_TRICKS)
    assert report.verdict == "pass"
    assert report.disagreement is not None
    assert 0 < report.disagreement.different < report.disagreement.compared
    assert found(report) == {"disagreement"}
    assert {finding.severity for finding in report.findings} == {"note"}


def test_quick_looks_at_the_first_tier_and_the_last() -> None:
    assert audit(Sums(Honest(), tiers=9), QUICK, corpus=NO_TRICKS).tiers == (0, 8)


def test_many_domains_are_audited_in_their_order_and_told_as_they_come() -> None:
    domains = {f"d{n}": Sums(Honest()) for n in range(5)}
    domains["bad"] = Sums(Custom(lambda task, text: 1.0))
    told: list[tuple[str, int, int]] = []
    reports = audit_all(
        domains,
        QUICK,
        workers=3,
        corpus=NO_TRICKS,
        progress=lambda name, done, total: told.append((name, done, total)),
    )
    assert list(reports) == list(domains)
    assert [reports[name].verdict for name in domains] == ["pass"] * 5 + ["fail"]
    assert [done for _, done, _ in told] == [1, 2, 3, 4, 5, 6]


# --- the report ------------------------------------------------------------------------------


def test_the_worst_comes_first_and_each_probe_shows_a_few() -> None:
    report = examined(Custom(lambda task, text: 1.0))
    ranks = [finding.rank for finding in report.findings]
    assert ranks == sorted(ranks, reverse=True)
    shown = [finding.probe for finding in report.findings]
    assert max(shown.count(probe) for probe in shown) == 5
    counted = {count.probe: count.findings for count in report.probes}
    assert counted["constant"] > 5


def test_a_report_is_json_and_the_same_for_the_same_seed() -> None:
    one, two = (examined(Custom(lambda task, text: 0.5)).to_json() for _ in range(2))
    assert json.loads(json.dumps(one, allow_nan=False)) == json.loads(json.dumps(one))
    for report in (one, two):
        del report["timings"]
    assert one == two
    other = audit(Sums(Honest()), replace(PLAN, seed=1), corpus=NO_TRICKS)
    assert other.verdict == "pass"


def test_every_probe_that_is_counted_is_explained() -> None:
    report = audit(Sums(VersionTwo()), PLAN, corpus=one_trick("x"))
    assert report.verifier == VerifierRef("sum", "2")
    assert {count.probe.partition("/")[0] for count in report.probes} <= set(PROBES)


def test_the_docs_name_every_probe() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    names = [probe if probe != "trick" else "trick/SURFACE/NAME" for probe in PROBES]
    assert [name for name in names if f"`{name}`" not in docs] == []


class VersionTwo(Honest):
    ref = VerifierRef("sum", "2")
