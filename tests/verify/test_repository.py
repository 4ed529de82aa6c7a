"""Patches to repositories: the strict applier, what counts of an attempt, and the two worlds of
a test run, in which an attempt never meets what is expected of it."""

from __future__ import annotations

import contextlib
import difflib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifact_support import DyingBoxes, at_once, attempts_of, misjudged, needs_boxes, part, task_of
from headrace.types import Json
from headrace.verify.boxes import Boxes
from headrace.verify.repository import KIND, RepositoryAnswer, RepositoryPatch
from headrace.verify.repository.attempts import edited
from headrace.verify.repository.patches import PatchError, apply, changed_lines, parse
from headrace.verify.repository.run import Report, read_report
from headrace.verify.repository.specimens import specimens
from headrace.verify.trees import TreeError

FILE = "one\ntwo\nthree\nfour\nfive\n"


def patched(diff: str, files: dict[str, str] | None = None) -> dict[str, str]:
    return apply(files or {"a.txt": FILE}, parse(diff))


def diff_of(hunks: str, old: str = "a/a.txt", new: str = "b/a.txt") -> str:
    return f"--- {old}\n+++ {new}\n{hunks}"


# --- the applier ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("diff", "text"),
    [
        (diff_of("@@ -2,1 +2,1 @@\n-two\n+TWO\n"), "one\nTWO\nthree\nfour\nfive\n"),
        (diff_of("@@ -2 +2,2 @@ def x\n two\n+and\n"), "one\ntwo\nand\nthree\nfour\nfive\n"),
        (diff_of("@@ -2,0 +3,1 @@\n+and\n"), "one\ntwo\nand\nthree\nfour\nfive\n"),
        (diff_of("@@ -40,1 +40,1 @@\n-two\n+TWO\n"), "one\nTWO\nthree\nfour\nfive\n"),
        (diff_of("@@ -5 +5 @@\n-five\n+end\n\\ No newline at end of file\n"), FILE[:-5] + "end"),
        (diff_of("@@ -1 +0,0 @@\n-one\n@@ -4 +3 @@\n-four\n+4\n"), "two\nthree\n4\nfive\n"),
        (
            diff_of("@@ -2,1 +2,1 @@\n-two\n+TWO\n", "a.txt", "a.txt"),
            "one\nTWO\nthree\nfour\nfive\n",
        ),
    ],
)
def test_a_hunk_is_applied_where_its_lines_stand(diff: str, text: str) -> None:
    assert patched(diff) == {"a.txt": text}


def test_the_nearest_of_equal_places_is_taken_and_later_hunks_move_along() -> None:
    files = {"a.txt": "x\n1\nx\n2\nx\n3\n"}
    diff = diff_of("@@ -3,1 +3,1 @@\n-x\n+y\n@@ -5,2 +5,2 @@\n x\n-3\n+4\n")
    assert patched(diff, files) == {"a.txt": "x\n1\ny\n2\nx\n4\n"}


def test_files_are_made_moved_and_removed() -> None:
    diff = (
        "diff --git a/new.txt b/new.txt\nnew file mode 100644\nindex 0000000..1111111\n"
        "--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1,2 @@\n+a\n+b\n"
        "diff --git a/a.txt b/dir/b.txt\nsimilarity index 80%\nrename from a.txt\n"
        "rename to dir/b.txt\n--- a/a.txt\n+++ b/dir/b.txt\n@@ -1,1 +1,1 @@\n-one\n+1\n"
        "diff --git a/old.txt b/old.txt\ndeleted file mode 100644\n--- a/old.txt\n+++ /dev/null\n"
        "@@ -1,1 +0,0 @@\n-bye\n"
    )
    files = {"a.txt": FILE, "old.txt": "bye\n"}
    assert patched(diff, files) == {"new.txt": "a\nb\n", "dir/b.txt": "1" + FILE[3:]}


@pytest.mark.parametrize(
    "diff",
    [
        diff_of("@@ -2,1 +2,1 @@\n-tow\n+TWO\n"),
        diff_of("@@ -2,2 +2,1 @@\n-two\n+TWO\n"),
        diff_of("@@ -2,1 +2,1 @@\n-two\n+TWO\n+more\n"),
        diff_of("@@ -2,1 +2,2 @@\n-two\n+TWO\n"),
        diff_of(""),
        diff_of("@@ -1 +1 @@\n-one\n+1\n", "a/b.txt", "b/b.txt"),
        diff_of("@@ -1 +1 @@\n-one\n+1\n", "a/a.txt", "b/c.txt"),
        diff_of("@@ -0,0 +1 @@\n+1\n", "/dev/null", "b/a.txt"),
        diff_of("@@ -0,0 +1 @@\n+1\n", "/dev/null", "b/a.txt/below"),
        diff_of("@@ -0,0 +1 @@\n+1\n", "/dev/null", "b/../x"),
        diff_of("@@ -0,0 +1 @@\n+1\n", "/dev/null", "/etc/x"),
        diff_of("@@ -0,0 +1 @@\n+1\n", "/dev/null", "b/.git/hooks/x"),
        diff_of("@@ -0,0 +1 @@\n+1\n", "/dev/null", "b/.GIT/x"),
        diff_of("@@ -0,0 +1 @@\n+1\n", "/dev/null", "b/a\\b"),
        diff_of("@@ -0,0 +1 @@\n+1\n", "/dev/null", '"b/a\\141"'),
        diff_of("@@ -1 +0,0 @@\n-one\n", "a/a.txt", "/dev/null"),
        "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n",
        "diff --git a/l b/l\nindex 11111..22222 160000\n--- a/l\n+++ b/l\n@@ -1 +1 @@\n-1\n+2\n",
        "diff --git a/l b/l\nnew file mode 100644\nGIT binary patch\nliteral 3\n",
        "Binary files a/a.txt and b/a.txt differ\n",
        "no diff at all",
    ],
)
def test_what_does_not_fit_or_leaves_the_tree_is_refused(diff: str) -> None:
    with pytest.raises(TreeError):
        patched(diff)


LINES = st.lists(st.sampled_from(["a", "b", "c", "", "+", "- x", "@@"]), max_size=12)


@settings(max_examples=60)
@given(LINES, LINES)
def test_a_diff_of_difflib_turns_the_old_text_into_the_new_one(
    old: list[str], new: list[str]
) -> None:
    before, after = ("".join(f"{line}\n" for line in lines) for lines in (old, new))
    one, two = before.splitlines(keepends=True), after.splitlines(keepends=True)
    diff = "".join(difflib.unified_diff(one, two, "a/f", "b/f"))
    if before != after:
        assert apply({"f": before}, parse(diff)) == {"f": after}


@settings(max_examples=60)
@given(st.text(alphabet="-+ @/ab\n0123,\\", max_size=200))
def test_no_text_makes_the_reader_raise_anything_else(text: str) -> None:
    with contextlib.suppress(TreeError):
        patched = apply({"a": "a\nb\n"}, parse("--- a/a\n+++ b/a\n" + text))
        assert all(type(content) is str for content in patched.values())


def test_changed_lines_count_what_was_added_and_removed() -> None:
    assert changed_lines({"a": "1\n2\n", "b": "x\n"}, {"a": "2\n1\n", "c": "x\n"}) == 2


# --- what counts of an attempt -------------------------------------------------------------

SEEN = {"calc.py": "x = 1\n", "tests/test_calc.py": "old\n", "pyproject.toml": "[p]\n"}
TESTS = {"tests/test_calc.py": "new\n", "tests/test_more.py": "more\n"}


def whole(**files: str) -> str:
    names = {"conf": "conftest.py", "calc": "calc.py", "test": "tests/test_calc.py"}
    return "".join(
        f"FILE: {names.get(name, name)}\n```\n{text}\n```\n" for name, text in files.items()
    )


def test_test_files_are_never_the_attempts() -> None:
    attempt = edited(whole(calc="x = 2", test="pass"), SEEN, TESTS)
    assert attempt is not None
    assert attempt.tree == {"calc.py": "x = 2\n", "pyproject.toml": "[p]\n"}
    assert attempt.tampered
    assert set(attempt.ignored) == {"tests/test_calc.py"}


def test_a_test_file_that_the_attempt_adds_is_no_trick_even_where_the_task_has_one() -> None:
    diff = diff_of("@@ -0,0 +1 @@\n+mine\n", "/dev/null", "b/tests/test_more.py")
    attempt = edited(diff, SEEN, TESTS)
    assert attempt is not None
    assert not attempt.tampered
    assert "tests/test_more.py" not in attempt.tree


@pytest.mark.parametrize(
    "path",
    ["conftest.py", "a/conftest.py", "sitecustomize.py", "x.pth", "pytest.ini", "unittest.py"],
)
def test_files_that_steer_the_run_are_left_out_and_named(path: str) -> None:
    attempt = edited(f"FILE: {path}\n```\nx\n```\n", SEEN, TESTS)
    assert attempt is not None
    assert path not in attempt.tree
    assert attempt.tampered


def test_a_changed_configuration_is_the_tasks_again() -> None:
    attempt = edited("FILE: pyproject.toml\n```\nx\n```\n", SEEN, TESTS)
    assert attempt is not None
    assert attempt.tree["pyproject.toml"] == "[p]\n"


def test_the_last_diff_counts_and_thinking_does_not() -> None:
    good = (
        "```diff\n" + diff_of("@@ -1 +1 @@\n-x = 1\n+x = 3\n", "a/calc.py", "b/calc.py") + "```\n"
    )
    attempt = edited(f"```diff\nnonsense\n```\n{good}", SEEN, TESTS)
    assert attempt is not None
    assert attempt.tree["calc.py"] == "x = 3\n"
    assert edited(f"<think>{good}</think> I do not know.", SEEN, TESTS) is None
    with pytest.raises(PatchError):
        edited(f"{good}```diff\nnonsense\n```\n", SEEN, TESTS)


def test_a_file_that_does_not_end_is_no_attempt() -> None:
    with pytest.raises(PatchError):
        edited("FILE: calc.py\n```python\nx = 2\n", SEEN, TESTS)


@pytest.mark.parametrize(
    "answer",
    [
        {"files": {}, "tests": {}, "fail_to_pass": ["t.T.a"]},
        {"files": {}, "tests": {"t.py": ""}, "fail_to_pass": []},
        {"files": {}, "tests": {"t.py": ""}, "fail_to_pass": ["other.T.a"]},
        {"files": {}, "tests": {"test_t.py": ""}, "fail_to_pass": ["test_t.T.a"] * 2},
        {"files": {"../x": ""}, "tests": {"test_t.py": ""}, "fail_to_pass": ["test_t.T.a"]},
        {"files": {}, "tests": {"test_t.py": ""}, "fail_to_pass": ["test_t.T.a"], "extra": 1},
        None,
    ],
)
def test_a_malformed_answer_is_the_tasks_fault(answer: Json) -> None:
    verdict = RepositoryPatch().judge(task_of(RepositoryPatch(), answer), "x")
    assert (verdict.score, verdict.fault) == (None, "task")


def report_of(*lines: str) -> Report:
    text = "".join(f"{line}\n" for line in lines)
    return read_report(text.encode(), "n0", "result", "")


def test_a_report_is_what_carries_the_nonce_and_a_test_that_is_not_in_it_did_not_pass() -> None:
    passed = '{"id": "t.T.a", "status": "passed", "note": ""}'
    forged = '{"id": "t.T.b", "status": "passed", "note": ""}'
    report = report_of(f"n0 {passed}", forged, f"n1 {forged}", f"x n0 {forged}", 'n0 {"done": 1}')
    assert report.complete
    assert report.passed(("t.T.a", "t.T.b")) == 1
    assert not report_of(f"n0 {passed}").complete
    assert not report_of(f"n0 {passed}", 'n0 {"done": 2}').complete
    twice = report_of(f"n0 {passed.replace('passed', 'failed')}", f"n0 {passed}", 'n0 {"done": 2}')
    assert (twice.complete, twice.passed(("t.T.a",))) == (False, 0)


# --- test runs -----------------------------------------------------------------------------

SHOP = """\
import sys


class Lacking(LookupError):
    def __init__(self, what):
        super().__init__(what)
        self.what = what


class Cart:
    def __init__(self):
        self.items = {}

    def add(self, name, count=1):
        self.items[name] = self.items.get(name, 0) + count

    def __getitem__(self, name):
        if name not in self.items:
            raise Lacking(name)
        return self.items[name]

    def __iter__(self):
        return iter(sorted(self.items))

    def __eq__(self, other):
        return isinstance(other, Cart) and self.items == other.items

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.items.clear()
        return True


class Loud(str):
    pass


class Same(tuple):
    def __eq__(self, other):
        return True

    def __contains__(self, item):
        return True

    def __rsub__(self, other):
        return 0

    __sub__ = __rsub__
    __hash__ = None


def sort_in_place(values):
    values.sort()


def hang():
    while True:
        pass


def leave():
    import os

    os._exit(0)


def hello(name):
    print("hello", name)
    return Loud(name.upper())
"""
SHOP_TEST = """\
import contextlib
import io
import unittest

import shop
from shop import Cart, Lacking


class A(unittest.TestCase):
    def test_a_objects(self):
        cart = Cart()
        cart.add("pear")
        cart.add("fig", count=2)
        self.assertEqual(list(cart), ["fig", "pear"])
        self.assertEqual(cart["fig"], 2)
        self.assertIn("fig", cart)
        self.assertNotIn("kiwi", cart)
        other = Cart()
        other.items = {"fig": 2, "pear": 1}
        self.assertEqual(cart, other)
        self.assertNotEqual(cart, {"fig": 2})
        with cart as same:
            self.assertIs(type(same.items), dict)
        self.assertEqual(cart.items, {})

    def test_b_errors(self):
        with self.assertRaises(Lacking) as caught:
            Cart()["kiwi"]
        self.assertEqual(caught.exception.what, "kiwi")
        with self.assertRaises(LookupError):
            Cart()["kiwi"]
        with self.assertRaises(TypeError):
            Cart(1)
        with self.assertRaises(AttributeError):
            shop.nothing

    def test_c_changed_arguments(self):
        values = [3, 1, 2]
        shop.sort_in_place(values)
        self.assertEqual(values, [1, 2, 3])

    def test_d_printed(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(shop.hello("bo"), "BO")
        self.assertEqual(out.getvalue(), "hello bo\\n")

    def test_e_hangs(self):
        with self.assertRaises(Exception):
            shop.hang()

    def test_f_leaves(self):
        with self.assertRaises(BaseException):
            shop.leave()

    def test_g_goes_on(self):
        self.assertEqual(Cart().items, {})

    def test_h_callback(self):
        with self.assertRaises(Exception):
            shop.hello(lambda: 1)

    def test_i_swallowed(self):
        class Swallows:
            pass

        with shop.Cart():
            self.assertEqual(1, 2)

    def test_j_compared(self):
        self.assertAlmostEqual(shop.Cart(), 1.5)

    def test_l_always_equal(self):
        self.assertEqual(shop.Same(), 5)

    def test_m_always_in(self):
        self.assertIn(5, shop.Same())

    def test_n_always_near(self):
        self.assertAlmostEqual(shop.Same(), 5.0)

    @unittest.skip("later")
    def test_k_skipped(self):
        pass
"""


@needs_boxes
def test_tests_see_objects_errors_and_output_across_and_nothing_ends_them() -> None:
    names = [
        line.split()[1].partition("(")[0] for line in SHOP_TEST.split("\n") if "def test" in line
    ]
    answer = {
        "files": {"shop.py": "\n"},
        "tests": {"test_shop.py": SHOP_TEST},
        "fail_to_pass": [f"test_shop.A.{name}" for name in names],
        "call_s": 1.5,
    }
    verifier = RepositoryPatch()
    verdict = verifier.judge_tree(task_of(verifier, answer), {"shop.py": SHOP}, steps=1)
    failed = [name for name in names if f"test_shop.A.{name}" in verdict.evidence]
    assert [name[5] for name in failed] == ["e", "f", "h", "i", "j", "l", "m", "n", "k"], (
        verdict.evidence
    )
    assert (part(verdict, "resolved"), part(verdict, "counted")) == (0.0, 1.0)


@needs_boxes
def test_specimens_are_judged_as_they_deserve() -> None:
    assert misjudged(specimens()) == {}


@pytest.mark.slow
@needs_boxes
def test_no_trick_is_worth_anything() -> None:
    found = attempts_of("patch", specimens())
    assert len(found) >= 8
    verifier = RepositoryPatch()
    verdicts = at_once(lambda case: verifier.judge(*case), found.values())
    paid = {name: v.score for name, v in zip(found, verdicts, strict=True) if v.score != 0.0}
    assert paid == {}
    seen = {name for name, v in zip(found, verdicts, strict=True) if part(v, "hack") == 1.0}
    assert seen >= {"conftest-hook", "sitecustomize", "pth-file", "runner-configuration"}


@needs_boxes
def test_redundant_edits_and_steps_cost_their_weight_and_uncounted_tests_everything() -> None:
    domain = specimens()
    task = domain.task(0, 1)
    changed: Json = {"weights": {"edits": 0.5, "steps": 0.5}, "step_budget": 4}
    answer: Json = {**task.answer, **changed}
    files = RepositoryAnswer.model_validate(answer).files
    good = files["bank/account.py"].replace(
        "        self.balance -= amount",
        "        if amount > self.balance:\n            raise Overdrawn(amount - self.balance)\n"
        "        self.balance -= amount",
    )
    verbose = good + "# more\n" * 10
    verifier = RepositoryPatch()

    def score(case: tuple[str, int]) -> float | None:
        tree = {**files, "bank/account.py": case[0]}
        return verifier.judge_tree(task_of(verifier, answer), tree, steps=case[1]).score

    scores = at_once(score, [(good, 4), (good, 8), (verbose, 4), ("", 1)])
    # 12 lines changed where 3 times 2 are free; 8 steps where 4 are.
    assert scores == [1.0, 0.875, 0.875, 0.0]
    fewer = task_of(verifier, {**answer, "pass_to_pass": answer["pass_to_pass"][:1]})
    verdict = verifier.judge_tree(fewer, {**files, "bank/account.py": good}, steps=1)
    assert (verdict.score, part(verdict, "counted")) == (0.0, 0.0)
    assert "not expected" in verdict.evidence


def test_a_backend_with_one_user_is_refused_and_not_degraded() -> None:
    domain = specimens()
    task = domain.task(0, 0)
    boxes = Boxes(names=["sandlock"])
    try:
        verdict = RepositoryPatch(boxes).judge(task, domain.items[0].reference)
    finally:
        boxes.close()
    assert (verdict.score, verdict.fault) == (None, "infrastructure")


def test_the_kind_is_the_verifiers() -> None:
    assert (KIND.id, KIND.version) == (RepositoryPatch.ref.id, RepositoryPatch.ref.version)


def test_a_machine_that_fails_gives_no_score() -> None:
    domain = specimens()
    verdict = RepositoryPatch(DyingBoxes()).judge(domain.task(0, 0), domain.items[0].reference)
    assert (verdict.score, verdict.fault) == (None, "infrastructure")
