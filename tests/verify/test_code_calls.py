"""The grader's end of the runner's lines, without a sandbox."""

from __future__ import annotations

import json
import marshal
from typing import Any

import pytest

from code_support import ScriptedBoxes, ended
from headrace.sandbox.spec import Outcome, SandboxFailure
from headrace.verify.boxes import PROGRAMS
from headrace.verify.code.calls import Calls, Job, call, read_lines
from headrace.verify.code.places import places, without_packages
from headrace.verify.code.suites import CaseLimits

NONCE = "0123456789abcdef" * 2
JOB = Job(source="", entry="f", arguments=[[1], [2]], limits=CaseLimits())


def line(case: Any, value: Any = 1, **changes: Any) -> bytes:
    frame = json.dumps({"status": "value", "value": value})
    return json.dumps(
        {"nonce": NONCE, "case": case, "how": "told", "text": frame} | changes
    ).encode()


def read(*lines: bytes, count: int = 2) -> Calls:
    return read_lines(lines, nonce=NONCE, count=count, outcome=Outcome.RESULT)


def statuses(calls: Calls) -> list[str]:
    return [called.status for called in calls.cases]


def test_every_case_is_told_once_and_what_is_missing_did_not_run() -> None:
    calls = read(line(-1, None), line(0, 7), b"")
    assert calls.compiled
    assert not calls.forged
    assert (calls.cases[0].status, calls.cases[0].value) == ("value", 7)
    assert statuses(calls) == ["value", "not run"]
    assert statuses(read()) == ["not run", "not run"]
    assert not read().compiled


@pytest.mark.parametrize(
    "forgery",
    [
        b"passed",
        b'{"status": "value", "value": 1}',
        line(0, nonce="f" * 32),
        line(0, nonce=7),
        line(0, nonce="\u00e9"),
        line(2),
        line(-2),
        line(True),
        line(0.0),
        line("0"),
        line(0, more=1),
        line(0, how="passed"),
        line(0, text=None),
        line(0).replace(b'"case": 0', b'"case": 0, "case": 1'),
        line(0)[:-1],
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"nonce": NaN}',
    ],
)
def test_a_line_that_the_runner_did_not_write_tells_nothing_and_is_seen(forgery: bytes) -> None:
    calls = read(line(-1, None), forgery, line(1, 5))
    assert calls.forged
    assert statuses(calls) == ["not run", "value"]


def test_a_case_that_is_told_twice_is_not_told() -> None:
    calls = read(line(0, 1), line(1, 2), line(0, 1))
    assert calls.forged
    assert statuses(calls) == ["garbled", "value"]


@pytest.mark.parametrize(
    ("frame", "status"),
    [
        ('{"status": "value", "value": NaN}', "garbled"),
        ('{"status": "value", "value": 1, "value": 2}', "garbled"),
        ('{"status": "value"}', "garbled"),
        ('{"status": "value", "note": "x"}', "garbled"),
        ('{"status": "raised", "value": 1}', "garbled"),
        ('{"status": "passed", "value": 1}', "garbled"),
        ('{"status": ["value"], "value": 1}', "garbled"),
        ('{"status": "value", "value": %s}' % ("9" * 5000), "garbled"),
        ('{"status": "raised", "note": "ValueError"}', "raised"),
        ("7", "garbled"),
        ("", "garbled"),
    ],
)
def test_what_a_process_says_of_itself_is_read_strictly(frame: str, status: str) -> None:
    assert statuses(read(line(0, text=frame)))[0] == status


def test_a_runner_that_cannot_begin_is_not_the_candidates_fault() -> None:
    broken = ended(code=127, stderr=b"no such file")
    with pytest.raises(SandboxFailure, match="no such file"):
        call(ScriptedBoxes([broken, broken]).boxes, PROGRAMS, JOB)
    with pytest.raises(SandboxFailure, match="died"):
        call(ScriptedBoxes([ended(code=None, outcome=Outcome.CRASH)]).boxes, PROGRAMS, JOB)


def test_a_runner_that_a_candidate_silenced_is() -> None:
    calls = call(ScriptedBoxes([ended(), ended(b"ready\n")]).boxes, PROGRAMS, JOB)
    assert statuses(calls) == ["not run", "not run"]


def test_nothing_but_source_arguments_and_limits_goes_in_and_the_nonce_comes_last() -> None:
    payload = JOB.payload(NONCE)
    size = int(payload[:16])
    work = marshal.loads(payload[16 : 16 + size])
    assert payload[16 + size :] == NONCE.encode()
    assert NONCE not in json.dumps(work)
    assert set(work) == {
        *("source", "prelude", "entry", "cases", "cpu_s", "wall_s", "total_s", "memory_mb"),
        *("stop", "modules"),
    }


def test_installed_packages_are_covered_where_a_candidate_could_see_them(tmp_path: Any) -> None:
    inner, outer = tmp_path / "usr/site/inner", tmp_path / "usr/site"
    inner.mkdir(parents=True)
    elsewhere = tmp_path / "home"
    elsewhere.mkdir()
    paths = [str(inner), str(outer), str(elsewhere), "", str(tmp_path / "missing"), json.__file__]
    assert places(paths, [str(tmp_path / "usr")]) == [outer.resolve()]
    assert places([json.__path__[0].rpartition("/")[0]], ["/"]) == []
    assert without_packages(PROGRAMS).limits == PROGRAMS.limits
