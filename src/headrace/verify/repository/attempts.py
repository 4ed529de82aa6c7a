"""From what a policy wrote to a tree: which files it changes, and which of those may count.

Test files are the task's, whatever an attempt does to them, and files that would steer a test
run or an interpreter from the outside are left out and named. May be known by the verifier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from headrace.verify.answers import last_fence, without_thinking
from headrace.verify.repository.patches import PatchError, apply, parse
from headrace.verify.trees import check_path, check_tree

__all__ = ["Edited", "edited", "steers"]

_STEERING = frozenset(
    {
        *("conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.ini", ".pytest.ini"),
        *("setup.cfg", "tox.ini", "pyproject.toml", ".coveragerc", "noxfile.py", "pyvenv.cfg"),
    }
)
_SHADOWING = frozenset({"unittest", "pytest", "_pytest", "doctest", "nose"})
_LONGEST = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """The tree that an attempt makes, without test files. `ignored` are changes that do not
    count, with the reason; `tampered` says that one of those is a known trick."""

    tree: Mapping[str, str]
    ignored: Mapping[str, str]
    tampered: bool


def steers(path: str) -> bool:
    """Whether a file of that name changes how tests or Python itself run, beside the code."""
    parts = PurePosixPath(path).parts
    top = parts[0].removesuffix(".py")
    return parts[-1] in _STEERING or parts[-1].endswith(".pth") or top in _SHADOWING


def edited(text: str, files: Mapping[str, str], tests: Mapping[str, str]) -> Edited | None:
    """What `text` makes of `files`; None if it holds no attempt.

    An attempt is whole files, each a line `FILE: path` and a fenced block right below it, or
    else a unified diff: the last closed block called diff or patch, or the whole text. Raises
    TreeError for one that cannot be read or does not fit.
    """
    text = without_thinking(text)
    if len(text) > _LONGEST:
        raise PatchError(f"longer than {_LONGEST} characters")
    before = dict(files)
    whole = _whole_files(text)
    if whole:
        after = {**before, **whole}
        check_tree(after)
    else:
        diff = last_fence(text, "diff", "patch")
        if diff is None:
            if not text.startswith(("--- ", "diff --git ")) and "\n--- " not in text:
                return None
            diff = text
        changes = parse(diff)
        named = {change.old for change in changes}
        before = {path: test for path, test in tests.items() if path in named} | before
        after = apply(before, changes)
    return _counted(before, after, files, tests)


def _counted(
    before: Mapping[str, str],
    after: Mapping[str, str],
    files: Mapping[str, str],
    tests: Mapping[str, str],
) -> Edited:
    ignored: dict[str, str] = {}
    tree: dict[str, str] = {}
    tampered = False
    for path in sorted({*before, *after}):
        changed = before.get(path) != after.get(path)
        if path in tests:
            if changed:
                ignored[path] = "a test file: the task's own is used"
                tampered = tampered or path in before
        elif changed and steers(path):
            ignored[path] = "it steers the test run"
            tampered = True
            if path in files:
                tree[path] = files[path]
        elif path in after:
            tree[path] = after[path]
    check_tree(tree)
    return Edited(tree=tree, ignored=ignored, tampered=tampered)


def _whole_files(text: str) -> dict[str, str]:
    """The last block of each path that has one."""
    lines = text.split("\n")
    found: dict[str, str] = {}
    at = 0
    while at + 1 < len(lines):
        mark = _fence(lines[at + 1])
        if not lines[at].startswith("FILE:") or not mark:
            at += 1
            continue
        end = next((i for i in range(at + 2, len(lines)) if lines[i].rstrip() == mark), None)
        if end is None:
            raise PatchError("a file's block does not end", where=lines[at][:80])
        path = check_path(lines[at].removeprefix("FILE:").strip().strip("`*"))
        found[path] = "".join(line + "\n" for line in lines[at + 2 : end])
        at = end + 1
    return found


def _fence(line: str) -> str:
    """The backticks or tildes that open a block, or ""."""
    for sign in ("`", "~"):
        length = len(line) - len(line.lstrip(sign))
        if length >= 3:
            return sign * length
    return ""
