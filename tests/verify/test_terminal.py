"""Final states: what is asked of a tree, and that nothing which an agent leaves behind helps it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from artifact_support import DyingBoxes, at_once, attempts_of, misjudged, needs_boxes, part, task_of
from headrace.sandbox.spec import Sandbox
from headrace.types import Json
from headrace.verify.boxes import Boxes, shared
from headrace.verify.terminal import (
    KIND,
    Check,
    Entry,
    FinalState,
    Inspection,
    State,
    StateAnswer,
    digest,
    inspect,
)
from headrace.verify.terminal.checks import evaluate
from headrace.verify.terminal.inspection import PATTERNS
from headrace.verify.terminal.specimens import specimens
from headrace.verify.terminal.tree import escaping_links
from headrace.verify.terminal.verifier import MACHINE

CHECKS: TypeAdapter[tuple[Check, ...]] = TypeAdapter(tuple[Check, ...])
ROOTS = ("/w",)
TREE = {
    "/w": Entry(kind="directory", mode=0o755),
    "/w/a.txt": Entry(kind="file", mode=0o640, data=b"one\ntwo\n"),
    "/w/b": Entry(kind="file", mode=0o644, data=b"\xff\x00"),
    "/w/d": Entry(kind="directory", mode=0o700),
    "/w/j": Entry(kind="file", mode=0o644, data=b'{"a/b": [1, true, {"~": 2.0}], "n": null}'),
    "/w/l": Entry(kind="link", target="a.txt"),
}


def failing(*checks: Json, state: State | None = None) -> list[str]:
    """Why checks do not hold, "" where they do."""
    state = state or State(roots=ROOTS, tree=TREE)
    return [r.found for r in evaluate(CHECKS.validate_python(checks), state, PATTERNS)]


@pytest.mark.parametrize(
    "check",
    [
        {"kind": "exists", "path": "a.txt"},
        {"kind": "exists", "path": "/w/d/", "type": "directory"},
        {"kind": "exists", "path": "l", "type": "link"},
        {"kind": "absent", "path": "c"},
        {"kind": "equals", "path": "a.txt", "content": "one\ntwo\n"},
        {"kind": "equals", "path": "a.txt", "content": "one\ntwo", "loose": True},
        {"kind": "matches", "path": "a.txt", "pattern": "^two$"},
        {"kind": "mode", "path": "a.txt", "mode": "640"},
        {"kind": "mode", "path": "d", "mode": "0700"},
        {"kind": "json", "path": "j", "pointer": "/a~1b/2/~0", "value": 2},
        {"kind": "json", "path": "j", "pointer": "/n", "value": None},
        {"kind": "processes"},
    ],
)
def test_checks_that_hold(check: Json) -> None:
    assert failing(check) == [""]


@pytest.mark.parametrize(
    "check",
    [
        {"kind": "exists", "path": "l"},
        {"kind": "exists", "path": "d"},
        {"kind": "exists", "path": "d/../a.txt"},
        {"kind": "absent", "path": "l"},
        {"kind": "equals", "path": "l", "content": "one\ntwo\n"},
        {"kind": "equals", "path": "a.txt", "content": "one\ntwo"},
        {"kind": "equals", "path": "b", "content": ""},
        {"kind": "matches", "path": "a.txt", "pattern": "^three$"},
        {"kind": "matches", "path": "b", "pattern": ""},
        {"kind": "mode", "path": "a.txt", "mode": "644"},
        {"kind": "mode", "path": "l", "mode": "000"},
        {"kind": "json", "path": "j", "pointer": "/a~1b/0", "value": True},
        {"kind": "json", "path": "j", "pointer": "/a~1b/1", "value": 1},
        {"kind": "json", "path": "j", "pointer": "/a~1b/-1", "value": 1},
        {"kind": "json", "path": "j", "pointer": "/n/x", "value": None},
        {"kind": "json", "path": "a.txt", "value": None},
        {"kind": "processes", "some": True},
        {"kind": "checker", "script": "true"},
        {"kind": "output", "argv": ["true"], "stdout": ""},
    ],
)
def test_checks_that_do_not(check: Json) -> None:
    assert failing(check) != [""]


def test_an_expression_that_explodes_on_what_the_agent_wrote_does_not_match() -> None:
    tree = {**TREE, "/w/x": Entry(kind="file", data=b"a" * 40 + b"b")}
    check = {"kind": "matches", "path": "x", "pattern": "^(a|a)*$"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.verify.terminal.checks._MATCH_S", 0.3)
        assert "no match" in failing(check, state=State(roots=ROOTS, tree=tree))[0]
    assert failing({"kind": "matches", "path": "a.txt", "pattern": "one"}) == [""]


def test_nothing_holds_of_a_tree_that_cannot_be_read_not_even_absence() -> None:
    state = State(roots=ROOTS, unreadable="Permission denied")
    assert "cannot be read" in failing({"kind": "absent", "path": "x"}, state=state)[0]


@pytest.mark.parametrize(
    ("target", "escapes"),
    [
        ("a.txt", False),
        ("../w/a.txt", False),
        ("/w/d", False),
        ("/proc/self/cmdline", True),
        ("../etc/passwd", True),
        ("../../../../w/a", True),
        ("/w/../etc", True),
        ("d/../a.txt", True),
        ("/", True),
        ("/wide", True),
    ],
)
def test_links_that_may_lead_out_of_the_tree_are_named(target: str, escapes: bool) -> None:
    tree = {"/w/l": Entry(kind="link", target=target)}
    assert escaping_links(tree, ROOTS) == (["/w/l"] if escapes else [])


def test_the_digest_is_of_paths_kinds_modes_contents_and_targets() -> None:
    def changed(**fields: Json) -> str:
        entry = Entry(kind="file", mode=0o644, data=b"x")
        return digest({"/w/a": replace(entry, **fields)})

    digests = {
        changed(),
        changed(mode=0o600),
        changed(data=b"y"),
        changed(kind="directory"),
        changed(target="x"),
        digest({"/w/b": Entry(kind="file", mode=0o644, data=b"x")}),
        digest({}),
    }
    assert len(digests) == 7
    assert changed() == changed()


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {"checks": []},
        {"checks": [{"kind": "magic"}]},
        {"checks": [{"kind": "mode", "path": "a", "mode": "rwx"}]},
        {"checks": [{"kind": "absent", "path": "a"}], "files": {"/etc/x": ""}},
        {"checks": [{"kind": "absent", "path": "a"}], "modes": {"a": "600"}},
        {"checks": [{"kind": "absent", "path": "a"}], "roots": ["workspace"]},
    ],
)
def test_a_malformed_answer_is_the_tasks_fault(answer: Json) -> None:
    verdict = FinalState().judge(task_of(FinalState(), answer), "```sh\ntrue\n```")
    assert (verdict.score, verdict.fault) == (None, "task")


def test_without_a_script_there_is_a_score_and_it_is_nothing() -> None:
    domain = specimens()
    verdict = domain.verifier.judge(domain.task(0, 0), "I would use sort and uniq.")
    assert (verdict.score, part(verdict, "extracted")) == (0.0, 0.0)


def test_a_backend_with_one_user_is_refused_and_not_degraded() -> None:
    domain = specimens()
    boxes = Boxes(names=["sandlock"])
    try:
        verdict = FinalState(boxes).judge(domain.task(0, 0), domain.items[0].reference)
    finally:
        boxes.close()
    assert (verdict.score, verdict.fault) == (None, "infrastructure")


@needs_boxes
def test_specimens_are_judged_as_they_deserve() -> None:
    assert misjudged(specimens()) == {}
    assert KIND.id == FinalState.ref.id


@needs_boxes
def test_no_trick_is_worth_anything() -> None:
    domain = specimens()
    found = attempts_of("shell", domain)
    assert len(found) >= 8
    verdicts = at_once(lambda case: domain.verifier.judge(*case), found.values())
    paid = {name: v.evidence for name, v in zip(found, verdicts, strict=True) if v.score != 0.0}
    assert paid == {}
    assert {n for n, v in zip(found, verdicts, strict=True) if part(v, "hack")} >= {"link-to-proc"}


CHECKER = """\
n="$HEADRACE_NONCE"
[ "$(id -un)" = verifier ] && [ "$(cat /workspace/a)" = yes ] && echo "$n pass" || echo "$n fail"
"""


@needs_boxes
def test_a_checker_needs_one_line_with_its_nonce_and_meets_no_process_of_the_agents() -> None:
    scripts: list[Json] = [
        CHECKER,
        CHECKER.replace("yes", "no"),
        'echo "$HEADRACE_NONCE pass"; exit 1',
        'echo "$HEADRACE_NONCE pass"; echo "$HEADRACE_NONCE pass"',
        "echo pass",
        'ls /proc/[0-9]*/cmdline | wc -l | grep -qv "^[12345]$" || echo "$HEADRACE_NONCE pass"',
        'touch /workspace/x 2>/dev/null || echo "$HEADRACE_NONCE pass"',
        'cat /home/agent/* 2>/dev/null || echo "$HEADRACE_NONCE pass"',
    ]
    checks: Json = [{"kind": "checker", "script": script} for script in scripts]
    checks += [
        {"kind": "processes", "pattern": "sleep 77", "some": True},
        {"kind": "processes", "pattern": "sleep 78", "some": True},
        {
            "kind": "output",
            "argv": ["sh", "-c", "cat a; id -un; pgrep sleep"],
            "stdout": "yes\nagent",
        },
    ]

    async def job(box: Sandbox) -> Inspection:
        await box.exec(
            ["sh", "-c", "echo yes > a; echo s > ~/s; sleep 77 </dev/null >/dev/null 2>&1 &"]
        )
        return await inspect(box, CHECKS.validate_python(checks))

    found = shared().run(MACHINE, job, timeout_s=60).results
    expected = [True, False, False, False, False, True, True, True, True, False, True]
    assert [result.passed for result in found] == expected, found


@needs_boxes
def test_a_link_out_of_the_tree_stops_the_checkers_that_it_would_deceive() -> None:
    script = 'grep -q needle /workspace/a && echo "$HEADRACE_NONCE pass"'
    checks = CHECKS.validate_python([{"kind": "checker", "script": script}])

    async def job(box: Sandbox) -> list[Inspection]:
        await box.exec(["ln", "-s", "/proc/self/cmdline", "a"])
        return [await inspect(box, checks, links=links) for links in (False, True)]

    closed, allowed = shared().run(MACHINE, job, timeout_s=60)
    assert (closed.passed, closed.escaping) == (False, ("/workspace/a",))
    assert allowed.passed  # grep finds its own argument: this is what is kept from happening


@needs_boxes
def test_a_second_run_must_leave_the_same_tree() -> None:
    answer: Json = {"checks": [{"kind": "exists", "path": "a"}], "replay": True}
    assert StateAnswer.model_validate(answer).replay
    verifier = FinalState()
    scripts = ["echo $RANDOM$RANDOM > a", "echo 1 > a; touch -d @$RANDOM a"]
    verdicts = at_once(
        lambda script: verifier.judge(task_of(verifier, answer), f"```sh\n{script}\n```"), scripts
    )
    assert [verdict.score for verdict in verdicts] == [0.0, 1.0]


def test_a_machine_that_fails_gives_no_score() -> None:
    domain = specimens()
    verdict = FinalState(DyingBoxes()).judge(domain.task(0, 0), domain.items[0].reference)
    assert (verdict.score, verdict.fault) == (None, "infrastructure")
