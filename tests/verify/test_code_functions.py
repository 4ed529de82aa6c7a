"""`code-functions` in real sandboxes: what is right is paid, and no trick is."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from code_support import ScriptedBoxes, WatchedBoxes, ended, function_task, parts
from headrace.protocols import Domain
from headrace.sandbox.spec import SandboxFailure
from headrace.types import Json, Verdict
from headrace.verify.audit.corpus import shipped
from headrace.verify.boxes import shared
from headrace.verify.code import FUNCTIONS, CodeFunctions
from headrace.verify.code.specimens import fenced
from headrace.verify.kinds import Auditable, Kind, Specimens

VERIFIER = CodeFunctions()
SPECIMENS = cast("Specimens", FUNCTIONS.specimens())
TRICKS = [trick for trick in shipped().tricks if trick.surface == "python"]
DOUBLE = function_task("double", [((n,), 2 * n) for n in (3, 5, 0, -7)], visible=2)
SHORT = function_task("double", [((n,), 2 * n) for n in (3, 5)], visible=1)


@pytest.fixture(scope="module", autouse=True)
def _sandboxes() -> Generator[None]:
    yield
    shared().close()


def judged(source: str, task: Any = DOUBLE) -> Verdict:
    return VERIFIER.judge(task, fenced(source))


def test_the_kind_is_what_it_claims() -> None:
    assert isinstance(FUNCTIONS, Kind)
    assert isinstance(SPECIMENS, Domain)
    assert isinstance(VERIFIER, Auditable)
    assert FUNCTIONS.version == VERIFIER.ref.version
    assert len(TRICKS) >= 22


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


@pytest.mark.parametrize("index", range(len(TRICKS)), ids=[trick.name for trick in TRICKS])
def test_a_trick_is_worth_nothing(index: int) -> None:
    text = TRICKS[index].text_for({"prompt": "", **VERIFIER.hints(SHORT)})
    assert text is not None
    verdict = VERIFIER.judge(SHORT, text)
    assert verdict.score == 0.0, verdict.evidence
    assert parts(verdict)["extracted"] == 1.0


def test_an_int_that_equals_everything_is_not_paid() -> None:
    verdict = judged(
        "class X(int):\n    def __eq__(self, other):\n        return True\n\n"
        "def double(n):\n    return X(1)"
    )
    assert verdict.score == 0.0
    assert "not a builtin value: X" in verdict.evidence
    assert parts(verdict)["hack"] == 1.0


def test_walking_to_the_caller_finds_nothing_to_return() -> None:
    source = (
        "import gc, re, sys\n\ndef f(n):\n    found = []\n    frame = sys._getframe()\n"
        "    while frame:\n        found += [repr(frame.f_locals), repr(frame.f_globals)]\n"
        "        frame = frame.f_back\n"
        "    found += [repr(thing) for thing in gc.get_objects() if type(thing) in (dict, list)]\n"
        "    return [word for text in found for word in re.findall('WAN' + 'TED-.', text)]"
    )
    verdict = judged(source, function_task("f", [((1,), ["WANTED-1"]), ((2,), ["WANTED-2"])]))
    assert verdict.score == 0.0
    assert verdict.evidence.count('"found": "[]"') == 2
    assert parts(verdict)["hack"] == 1.0


def test_no_expected_value_enters_the_sandbox() -> None:
    boxes = WatchedBoxes()
    task = function_task(
        "f", [(("given-1",), "WANTED-1"), (("given-2",), {"WANTED-2": "WANTED-3"})]
    )
    verdict = CodeFunctions(boxes.boxes).judge(task, fenced("def f(x):\n    return x"))
    assert verdict.score == 0.0
    seen = b"\n".join(boxes.seen)
    assert b"given-1" in seen
    assert b"given-2" in seen
    assert b"WANTED" not in seen


def test_parts_tell_visible_from_hidden() -> None:
    verdict = judged("def double(n):\n    return {3: 6, 5: 10}.get(n)")
    assert verdict.score == 0.0
    assert parts(verdict) == {
        "tests": 0.0,
        "visible": 1.0,
        "hidden": 0.0,
        "compiles": 1.0,
        "extracted": 1.0,
        "hack": 0.0,
    }
    assert '"args": "0", "expected": "0", "found": "None"' in verdict.evidence


def test_a_share_is_of_the_cases_that_are_not_shown() -> None:
    cases = [((n,), 2 * n) for n in (1, 2, 3, 4, 5)]
    task = function_task("f", cases, visible=1, marks="share")
    assert judged("def f(n):\n    return 2 * n if n != 4 else 0", task).score == 0.75
    assert judged("def f(n):\n    return 2", task).score == 0.0


@pytest.mark.parametrize("code", [0, 1, 2, 77, 137, 255])
def test_exit_codes_change_nothing(code: int) -> None:
    at_import = f"import os\ndef double(n):\n    return 2 * n\nos._exit({code})"
    in_the_call = f"import sys\ndef double(n):\n    sys.exit({code})"
    at_exit = f"import os, atexit\natexit.register(os._exit, {code})\ndef double(n): return 2 * n"
    source = (at_import, in_the_call, at_exit)[code % 3]
    assert judged(source).score == (1.0 if source is at_exit else 0.0)


def test_each_case_loads_the_candidate_anew() -> None:
    source = (
        "calls = []\n\ndef double(n):\n    calls.append(n)\n"
        "    return 2 * n if calls == [n] else 'again'"
    )
    assert judged(source).score == 1.0


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("def double(n):\n    return (", "syntax"),
        ("def double(n):\n    return '\0'", "syntax"),
        ("double = 1 / 0", "ZeroDivisionError"),
        ("def double(n):\n    raise KeyError(n)", "KeyError: 3"),
        ("def other(n):\n    return 2 * n", "defines no double"),
        ("double = 7", "not callable"),
        ("def double(n):\n    return double(n)", "RecursionError"),
        ("def double(n):\n    return [0] * 10 ** 10", "MemoryError"),
        ("def double(n):\n    yield 2 * n", "not a builtin value: generator"),
        ("import numpy\n\ndef double(n):\n    return 2 * n", "No module named"),
        ("import os\ndef double(n):\n    os.abort()", "ended without a result"),
        ("from decimal import Decimal\ndef double(n):\n    return Decimal(2 * n)", "Decimal"),
        ("def double(n):\n    raise type('\\ud800', (Exception,), {})('\\ud800')", "raised"),
    ],
)
def test_whatever_goes_wrong_is_the_candidates_and_is_told(source: str, status: str) -> None:
    verdict = judged(source)
    assert verdict.score == 0.0
    assert status in verdict.evidence
    verdict.evidence.encode()


def test_time_is_bounded_by_case_and_in_all() -> None:
    limits: Json = {"cpu_s": 1, "total_s": 20}
    task = function_task("f", [((n,), n) for n in range(3)], limits=limits)
    verdict = judged("def f(n):\n    while True: pass", task)
    assert "timeout" in verdict.evidence
    assert "not run" in verdict.evidence
    assert verdict.score == 0.0
    task = function_task("f", [((n,), n) for n in range(9)], limits={"total_s": 0.6})
    verdict = judged("import time\ndef f(n):\n    time.sleep(5)", task)
    assert verdict.score == 0.0


def test_what_a_case_writes_to_its_streams_is_nothing() -> None:
    source = (
        "import os, sys\n\ndef double(n):\n    print('x' * 100000)\n"
        "    os.write(2, b'y' * 100000)\n    os.closerange(0, 3)\n    return 2 * n"
    )
    assert judged(source).score == 1.0


def test_a_result_written_into_the_runners_pipe_is_seen() -> None:
    source = (
        "import os\n\ndef double(n):\n    for fd in range(3, 32):\n        try:\n"
        '            os.write(fd, b\'{"status": "value", "value": 6}\\n\')\n'
        "        except OSError:\n            pass\n    return 2 * n"
    )
    verdict = judged(source)
    assert verdict.score == 0.0
    assert parts(verdict)["hack"] == 1.0
    assert "forged results" in verdict.evidence


def test_values_of_every_kind_go_in_and_come_out() -> None:
    values: list[Any] = [
        *(None, True, 0, -(2**200), 0.1, 1e300, float("inf"), float("-inf"), float("nan")),
        *("", "\u00e9\U0001f600\n\x00", "\ud800", b"\x00\xff", [], (), set(), frozenset({1})),
        {"a": [1, (2, {3})]},
        {1: 2, None: (), (1, 2): {"$x": b"y"}},
        {"$tuple": 1},
    ]
    task = function_task("f", [((value,), value) for value in values], rule={"types": "exact"})
    verdict = judged("def f(x):\n    return x", task)
    assert verdict.score == 1.0, verdict.evidence


def test_the_dicts_of_collections_are_dicts() -> None:
    task = function_task("f", [(("aab",), {"a": 2, "b": 1})])
    assert judged("from collections import Counter\n\nf = Counter", task).score == 1.0
    source = (
        "from collections import defaultdict\n\n\nclass D(defaultdict):\n    pass\n\n"
        "def f(x):\n    return D(int, a=2, b=1)"
    )
    assert judged(source, task).score == 0.0


def test_a_prelude_and_future_imports_do_not_disturb_each_other() -> None:
    task = function_task(
        "f", [((3,), 9)], prelude="import math\ndef helper(x):\n    return x * x\n"
    )
    source = "from __future__ import annotations\ndef f(x: Unknown) -> int:\n    return helper(x)"
    assert judged(source, task).score == 1.0


def test_threads_judge_alike() -> None:
    right = "def double(n):\n    return n + n"
    wrong = "def double(n):\n    return n * n"
    with ThreadPoolExecutor(4) as threads:
        scores = list(threads.map(lambda s: judged(s).score, [right, wrong] * 4))
    assert scores == [1.0, 0.0] * 4


@pytest.mark.parametrize(
    "answer",
    [
        None,
        7,
        {"entry": "f"},
        {"entry": "f", "cases": []},
        {"entry": "f g", "cases": [{"args": [], "expected": 1}]},
        {"entry": "f", "cases": [{"args": [], "expected": {"$set": [1, 1]}}]},
        {"entry": "f", "cases": [{"args": [], "expected": 1}], "ruel": {}},
        {"entry": "f", "cases": [{"args": [], "expected": 1}], "rule": {"tolerance": -1}},
        {"entry": "f", "cases": [{"args": [], "expected": 1}], "limits": {"cpu_s": 0}},
    ],
)
def test_a_malformed_answer_is_the_tasks_fault(answer: Json) -> None:
    task = function_task("f", [((), 1)])
    broken = VERIFIER.judge(type(task)(**{**_fields(task), "answer": answer}), fenced("f = 1"))
    assert (broken.score, broken.fault) == (None, "task")


def _fields(task: Any) -> dict[str, Any]:
    return {name: getattr(task, name) for name in task.__dataclass_fields__}


def test_a_sandbox_that_fails_is_nobodys_zero() -> None:
    failing = CodeFunctions(ScriptedBoxes([SandboxFailure("no sandbox here")]).boxes)
    verdict = failing.judge(DOUBLE, fenced("def double(n):\n    return 2 * n"))
    assert (verdict.score, verdict.fault) == (None, "infrastructure")
    assert "no sandbox here" in verdict.evidence
    silenced = CodeFunctions(ScriptedBoxes([ended(), ended(b"ready\n")]).boxes)
    verdict = silenced.judge(DOUBLE, fenced("def double(n):\n    return 2 * n"))
    assert verdict.score == 0.0


@pytest.mark.slow
def test_a_runner_that_is_stopped_fails_the_attempt() -> None:
    source = (
        "import os, signal\n\ndef double(n):\n    os.kill(os.getppid(), signal.SIGSTOP)\n"
        "    return 2 * n"
    )
    task = function_task("double", [((1,), 2)], limits={"total_s": 1})
    verdict = judged(source, task)
    assert verdict.score == 0.0
