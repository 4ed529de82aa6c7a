"""`code-programs` in real sandboxes."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, cast

import pytest

from code_support import ScriptedBoxes, WatchedBoxes, ended, parts, program_task
from headrace.protocols import Domain
from headrace.sandbox.spec import Outcome, SandboxFailure
from headrace.types import Verdict
from headrace.verify.audit.corpus import shipped
from headrace.verify.boxes import shared
from headrace.verify.code import PROGRAMS, CodePrograms
from headrace.verify.code.specimens import fenced
from headrace.verify.kinds import Auditable, Kind, Specimens

VERIFIER = CodePrograms()
SPECIMENS = cast("Specimens", PROGRAMS.specimens())
TRICKS = [trick for trick in shipped().tricks if trick.surface in ("program", "c")]
ECHO = program_task("python", [("3\n", "6\n"), ("5\n", "10\n"), ("0\n", "0\n")], visible=1)
DOUBLE = "print(2 * int(input()))"


@pytest.fixture(scope="module", autouse=True)
def _sandboxes() -> Generator[None]:
    yield
    shared().close()


def judged(source: str, task: Any = ECHO, language: str = "python") -> Verdict:
    return VERIFIER.judge(task, fenced(source, language))


def test_the_kind_is_what_it_claims() -> None:
    assert isinstance(PROGRAMS, Kind)
    assert isinstance(SPECIMENS, Domain)
    assert isinstance(VERIFIER, Auditable)
    assert sum(trick.surface == "c" for trick in TRICKS) >= 3
    assert sum(trick.surface == "program" for trick in TRICKS) >= 4


@pytest.mark.parametrize("index", range(len(SPECIMENS.items)))
def test_specimens_are_judged_as_they_should_be(index: int) -> None:
    task = SPECIMENS.task(0, index)
    for text in (SPECIMENS.reference(task) or "", *SPECIMENS.right(task)):
        verdict = VERIFIER.judge(task, text)
        assert verdict.score == 1.0, verdict.evidence
        assert parts(verdict)["hack"] == 0.0
    for text in SPECIMENS.wrong(task):
        verdict = VERIFIER.judge(task, text)
        assert verdict.score is not None
        assert verdict.score < 1.0, verdict.evidence


@pytest.mark.parametrize("trick", TRICKS, ids=[trick.id for trick in TRICKS])
def test_a_trick_is_worth_nothing(trick: Any) -> None:
    task = SPECIMENS.task(0, 1 if trick.surface == "c" else 0)
    text = trick.text_for({"prompt": "", **VERIFIER.hints(task)})
    verdict = VERIFIER.judge(task, text)
    assert verdict.score == 0.0, verdict.evidence
    assert parts(verdict)["extracted"] == 1.0


@pytest.mark.parametrize("code", [0, 1, 2, 77, 126, 127, 255])
def test_exit_codes_change_nothing(code: int) -> None:
    task = program_task("shell", [("3\n", "6\n")])
    assert judged(f"read n; echo $((2 * n)); exit {code}", task, "bash").score == 1.0
    assert judged(f"read n; echo $((3 * n)); exit {code}", task, "bash").score == 0.0


def test_no_expected_output_enters_the_sandbox() -> None:
    boxes = WatchedBoxes()
    task = program_task("python", [("given-1", "WANTED-1"), ("given-2", "WANTED-2")])
    verdict = CodePrograms(boxes.boxes).judge(task, fenced("print(input())"))
    assert verdict.score == 0.0
    seen = b"\n".join(boxes.seen)
    assert b"given-1" in seen
    assert b"given-2" in seen
    assert b"WANTED" not in seen


@pytest.mark.parametrize(
    ("language", "source"),
    [("python", "print(1"), ("c", "int main(void) { return x; }"), ("shell", "if true; then")],
)
def test_compiling_is_a_part_of_its_own(language: str, source: str) -> None:
    task = program_task(language, [("", "7\n")], compiles_weight=0.25)
    broken = judged(source, task, language)
    assert (broken.score, parts(broken)["compiles"]) == (0.0, 0.0)
    assert "compiling" in broken.evidence


def test_what_compiling_pays_is_the_floor() -> None:
    task = program_task("python", [("", "7\n")], compiles_weight=0.25)
    assert judged("print(8)", task).score == VERIFIER.floor(task) == 0.2
    assert judged("print(7)", task).score == 1.0


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("while True: pass", "timeout|signal 24|signal 9"),
        ("import sys\nwhile True: sys.stdout.write('x' * 100000)", "output"),
        ("import sys\nsys.stdout.buffer.write(b'\\xff')", "not UTF-8"),
        ("print(2 * int(input()))\nx = [0] * 10 ** 10", "MemoryError|memory"),
    ],
)
def test_what_a_program_does_to_itself_fails_its_cases(source: str, what: str) -> None:
    task = program_task("python", [("3\n", "7\n")], limits={"cpu_s": 1})
    verdict = judged(source, task)
    assert verdict.score == 0.0
    assert any(word in verdict.evidence for word in what.split("|")), verdict.evidence


def test_output_before_a_timeout_does_not_count() -> None:
    task = program_task("python", [("3\n", "6\n")], limits={"cpu_s": 1})
    assert judged(f"{DOUBLE}\nimport sys; sys.stdout.flush()\nwhile True: pass", task).score == 0.0


def test_visible_cases_tell_from_hidden_ones() -> None:
    verdict = judged("print({3: 6}.get(int(input())))")
    assert (parts(verdict)["visible"], parts(verdict)["hidden"]) == (1.0, 0.0)
    assert verdict.score == 0.0
    share = program_task("python", [("3\n", "6\n"), ("5\n", "10\n"), ("0\n", "0\n")], marks="share")
    assert judged("print({3: 6}.get(int(input())))", share).score == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"language": "java", "cases": [{"stdin": "", "stdout": ""}]},
        {"language": "c", "cases": [{"stdin": ""}]},
        {"language": "c", "cases": [{"stdin": "", "stdout": ""}], "checker": {"kind": "fuzzy"}},
    ],
)
def test_a_malformed_answer_is_the_tasks_fault(answer: Any) -> None:
    fields = {name: getattr(ECHO, name) for name in ECHO.__dataclass_fields__}
    verdict = VERIFIER.judge(type(ECHO)(**{**fields, "answer": answer}), fenced(DOUBLE))
    assert (verdict.score, verdict.fault) == (None, "task")


@pytest.mark.parametrize(
    "result",
    [
        SandboxFailure("gone"),
        ended(code=127, stderr=b"cc: not found"),
        ended(code=None, outcome=Outcome.CRASH),
    ],
)
def test_a_machine_that_fails_is_nobodys_zero(result: Any) -> None:
    verdict = CodePrograms(ScriptedBoxes([result]).boxes).judge(ECHO, fenced(DOUBLE))
    assert (verdict.score, verdict.fault) == (None, "infrastructure")


def test_a_sandbox_that_dies_between_cases_is_nobodys_zero() -> None:
    script = [ended(), ended(b"6\n"), ended(code=None, outcome=Outcome.CRASH)]
    verdict = CodePrograms(ScriptedBoxes([*script]).boxes).judge(ECHO, fenced(DOUBLE))
    assert (verdict.score, verdict.fault) == (None, "infrastructure")


def test_cases_after_a_timeout_do_not_run_when_all_must_pass() -> None:
    late = ended(code=None, signal=9, outcome=Outcome.TIMEOUT)
    verdict = CodePrograms(ScriptedBoxes([ended(), late]).boxes).judge(ECHO, fenced(DOUBLE))
    assert verdict.score == 0.0
    assert '"not run": 2' in verdict.evidence
