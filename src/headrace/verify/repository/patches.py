"""Unified diffs, read strictly and applied in memory: nothing here touches a file system.

Paths stay below the tree, links, binaries and submodules are refused, and a hunk fits where its
old lines stand word for word, as near as possible to the line it names. May be known by the
verifier of repository patches and by agent environments; knows no task.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.verify.trees import TreeError, check_path, check_tree

__all__ = ["FileChange", "Hunk", "PatchError", "apply", "changed_lines", "parse"]

REACH = 200
"""How many lines away from where it says a hunk may fit."""

_MOST_HUNKS = 1000
_HUNK = re.compile(r"@@ -(\d{1,7})(?:,(\d{1,7}))? \+(\d{1,7})(?:,(\d{1,7}))? @@", re.ASCII)
_GIT = re.compile(r"diff --git a/(\S+) b/(\S+)")
_PLAIN_MODES = ("100644", "100755")


class PatchError(TreeError):
    """A patch that cannot be read, leaves the tree, or does not fit."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """`old` lines become `new` lines; `start` is the 1-based line of the first old one (for an
    insertion, of the line before). Lines keep their newline."""

    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileChange:
    """What happens to one file: `old` None creates it, `new` None deletes it, else it may move."""

    old: str | None
    new: str | None
    hunks: tuple[Hunk, ...] = ()


# --- reading -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Reader:
    """Walks over the lines of a patch and collects the changes."""

    lines: list[str]
    at: int = 0
    changes: list[FileChange] = field(default_factory=list[FileChange])
    hunks: int = 0

    def read(self) -> tuple[FileChange, ...]:
        after_hunk = False
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith("diff --git "):
                self._git()
                after_hunk = False
            elif self._names_files():
                self._file(None, None)
                after_hunk = True
            elif line.startswith(("GIT binary patch", "Binary files ")):
                raise PatchError("binary patches are refused", where=self._where())
            elif line.startswith("@@ ") or (after_hunk and line[:1] in ("+", "-", " ", "@")):
                raise PatchError("a hunk is not as long as it says", where=self._where())
            else:
                after_hunk = after_hunk and not line
                self.at += 1
        if not self.changes:
            raise PatchError("no file is named: a unified diff has lines --- and +++")
        return tuple(self.changes)

    def _where(self) -> str:
        return f"line {self.at + 1} of the patch"

    def _names_files(self) -> bool:
        here = self.lines[self.at : self.at + 2]
        return len(here) == 2 and here[0].startswith("--- ") and here[1].startswith("+++ ")

    def _git(self) -> None:
        """`diff --git` with its further headers, and the file lines if there are any."""
        named = _GIT.fullmatch(self.lines[self.at].rstrip())
        where = self._where()
        self.at += 1
        said: dict[str, str] = {}
        while self.at < len(self.lines) and not self._names_files():
            line = self.lines[self.at]
            if line.startswith(("diff --git ", "@@ ", "GIT binary", "Binary files ")) or not line:
                break
            key, value = _header(line)
            if key.endswith("mode") and value not in _PLAIN_MODES:
                raise PatchError("links and submodules are refused", where=self._where())
            said[key] = value
            self.at += 1
        if self.at < len(self.lines) and self._names_files():
            self._file(said.get("rename from"), said.get("rename to"))
        elif "rename from" in said and "rename to" in said:
            self._add(check_path(said["rename from"]), check_path(said["rename to"]), ())
        elif named and "new file mode" in said:
            self._add(None, check_path(named[2]), ())
        elif named and "deleted file mode" in said:
            self._add(check_path(named[1]), None, ())
        elif not ("old mode" in said and "new mode" in said):
            raise PatchError("a file is named and nothing is done to it", where=where)

    def _file(self, moved_from: str | None, moved_to: str | None) -> None:
        old, new = self._name("--- "), self._name("+++ ")
        tagged = (old is None or old.startswith("a/")) and (new is None or new.startswith("b/"))
        if tagged:
            old, new = old and old[2:], new and new[2:]
        old, new = old and check_path(old), new and check_path(new)
        if old is None and new is None:
            raise PatchError("a file without a name", where=self._where())
        moves = old is not None and new is not None and old != new
        if moves and (moved_from, moved_to) != (old, new):
            raise PatchError("two names for a file that is not renamed", where=self._where())
        hunks: list[Hunk] = []
        while self.at < len(self.lines) and self.lines[self.at].startswith("@@ "):
            hunks.append(self._hunk())
        if not hunks:
            raise PatchError("a file without a hunk", where=self._where())
        self._add(old, new, tuple(hunks))

    def _name(self, mark: str) -> str | None:
        text = self.lines[self.at].removeprefix(mark).split("\t")[0].rstrip()
        self.at += 1
        return None if text == "/dev/null" else text

    def _hunk(self) -> Hunk:
        self.hunks += 1
        match = _HUNK.match(self.lines[self.at])
        if match is None or self.hunks > _MOST_HUNKS:
            raise PatchError("no hunk header, or too many hunks", where=self._where())
        self.at += 1
        old_left, new_left = int(match[2] or 1), int(match[4] or 1)
        old: list[str] = []
        new: list[str] = []
        while old_left > 0 or new_left > 0:
            line = self.lines[self.at] if self.at < len(self.lines) else "?"
            sign = line[:1] or " "
            if sign not in ("+", "-", " "):
                raise PatchError("a hunk is not as long as it says", where=self._where())
            for side, signs in ((old, "- "), (new, "+ ")):
                if sign in signs:
                    side.append(line[1:] + "\n")
            old_left, new_left = old_left - (sign in "- "), new_left - (sign in "+ ")
            if old_left < 0 or new_left < 0:
                raise PatchError("a hunk is not as long as it says", where=self._where())
            self.at += 1
            self._no_newline(sign, old, new)
        return Hunk(int(match[1]), tuple(old), tuple(new))

    def _no_newline(self, sign: str, old: list[str], new: list[str]) -> None:
        if self.at < len(self.lines) and self.lines[self.at].startswith("\\ No newline"):
            for side, signs in ((old, "- "), (new, "+ ")):
                if sign in signs:
                    side[-1] = side[-1].removesuffix("\n")
            self.at += 1

    def _add(self, old: str | None, new: str | None, hunks: tuple[Hunk, ...]) -> None:
        self.changes.append(FileChange(old, new, hunks))


def _header(line: str) -> tuple[str, str]:
    for key in ("new file mode", "deleted file mode", "old mode", "new mode", "rename from"):
        if line.startswith(key + " "):
            return key, line.removeprefix(key).strip()
    if line.startswith("rename to "):
        return "rename to", line.removeprefix("rename to ").strip()
    if line.startswith(("index ", "similarity index ")):
        mode = line.split()[-1] if line.startswith("index ") and line.count(" ") == 2 else "100644"
        return "index mode", mode
    raise PatchError("an unknown line in the head of a file", where=line[:80])


def parse(text: str) -> tuple[FileChange, ...]:
    """The changes of a unified diff, with or without git's headers.

    Hunks must have as many lines as they say; an empty line is an empty context line. Raises
    TreeError (mostly PatchError) for all that is not plain text in plain files.
    """
    return _Reader(text.split("\n")).read()


# --- applying ------------------------------------------------------------------------------


def apply(files: Mapping[str, str], changes: Sequence[FileChange]) -> dict[str, str]:
    """The tree after `changes`, in their order; TreeError if one does not fit.

    >>> change = FileChange("a", "a", (Hunk(1, ("x\\n",), ("y\\n",)),))
    >>> apply({"a": "x\\n"}, [change])
    {'a': 'y\\n'}
    """
    tree = dict(files)
    for change in changes:
        before = "" if change.old is None else _existing(tree, change.old)
        if change.new is not None and change.new != change.old and change.new in tree:
            raise PatchError("it exists already", where=change.new)
        after = _edited(before, change)
        if change.old is not None:
            del tree[change.old]
        if change.new is not None:
            tree[change.new] = after
        elif after and change.hunks:
            raise PatchError(
                "a deleted file has lines that the patch leaves", where=change.old or ""
            )
    check_tree(tree)
    return tree


def _existing(tree: Mapping[str, str], path: str) -> str:
    if path not in tree:
        raise PatchError("no such file in the tree", where=path)
    return tree[path]


def _edited(text: str, change: FileChange) -> str:
    lines = _lines(text)
    done, drift, name = 0, 0, change.new or change.old or ""
    out: list[str] = []
    for hunk in change.hunks:
        wanted = hunk.start - 1 + drift if hunk.old else hunk.start + drift
        place = _place(lines, hunk, wanted, done)
        if place is None:
            raise PatchError(f"the hunk of line {hunk.start} does not fit", where=name)
        drift += place - wanted
        out += lines[done:place]
        out += hunk.new
        done = place + len(hunk.old)
    out += lines[done:]
    if any(not line.endswith("\n") for line in out[:-1]):
        raise PatchError("a line without its end in the middle of a file", where=name)
    return "".join(out)


def _place(lines: list[str], hunk: Hunk, wanted: int, floor: int) -> int | None:
    """The index nearest to `wanted`, from `floor` on, where the old lines stand; earlier first."""
    old = list(hunk.old)
    if not old:
        return wanted if floor <= wanted <= len(lines) else None
    for offset in range(REACH + 1):
        for place in (wanted - offset, wanted + offset):
            if place >= floor and lines[place : place + len(old)] == old:
                return place
    return None


def _lines(text: str) -> list[str]:
    *whole, last = text.split("\n")
    return [line + "\n" for line in whole] + ([last] if last else [])


def changed_lines(before: Mapping[str, str], after: Mapping[str, str]) -> int:
    """How many lines were added plus how many were removed; moved lines count nothing.

    >>> changed_lines({"a": "x\\ny\\n"}, {"a": "y\\nz\\n"})
    2
    """
    total = 0
    for path in sorted({*before, *after}):
        old, new = before.get(path, ""), after.get(path, "")
        if old != new:
            was, now = Counter(_lines(old)), Counter(_lines(new))
            total += (now - was).total() + (was - now).total()
    return total
