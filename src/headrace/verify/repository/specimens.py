"""Small repositories with a fault each, the patch that mends it, and patches that do not."""

from __future__ import annotations

import difflib

from headrace.types import Json
from headrace.verify.kinds import Specimen, Specimens
from headrace.verify.repository.verifier import RepositoryPatch

__all__ = ["specimens"]


def _prompt(story: str, files: dict[str, str]) -> str:
    shown = "\n".join(f"FILE: {path}\n```\n{text}```" for path, text in sorted(files.items()))
    return f"{story} Answer with a unified diff in a block called diff.\n\n{shown}"


def _diff(path: str, before: str, after: str) -> str:
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return "".join(difflib.unified_diff(old, new, f"a/{path}", f"b/{path}"))


def _fenced(path: str, before: str, after: str) -> str:
    return f"```diff\n{_diff(path, before, after)}```\n"


def _file(path: str, text: str) -> str:
    return f"FILE: {path}\n```python\n{text}```\n"


def _specimen(
    story: str,
    files: dict[str, str],
    tests: dict[str, str],
    reference: str,
    *,
    fails: tuple[str, ...],
    passes: tuple[str, ...],
    lines: int,
    wrong: tuple[str, ...] = (),
    right: tuple[str, ...] = (),
) -> Specimen:
    answer: Json = {
        "files": files,
        "tests": tests,
        "fail_to_pass": list(fails),
        "pass_to_pass": list(passes),
        "reference_lines": lines,
    }
    return Specimen(
        prompt=_prompt(story, files),
        answer=answer,
        reference=reference,
        wrong=wrong,
        right=right,
    )


# --- a function ----------------------------------------------------------------------------

_MEAN = '''\
"""Small statistics."""


def mean(values):
    """The arithmetic mean; ValueError for no values."""
    total = 0
    for value in values:
        total += value
    return total // len(values)


def largest(values):
    """The largest value."""
    return max(values)
'''
_MEAN_TEST = """\
import unittest

from stats import largest, mean


class MeanTest(unittest.TestCase):
    def test_fraction(self):
        self.assertEqual(mean([1, 2]), 1.5)

    def test_many(self):
        self.assertAlmostEqual(mean([0.1, 0.2, 0.6]), 0.3)

    def test_empty(self):
        with self.assertRaises(ValueError):
            mean([])

    def test_largest(self):
        self.assertEqual(largest([3, 9, 4]), 9)
        self.assertIs(type(mean([2, 4])), float)
"""
_MEAN_HALF = _MEAN.replace("total // len", "total / len")
_MEAN_FIXED = _MEAN_HALF.replace(
    "    total = 0\n", '    if not values:\n        raise ValueError("no values")\n    total = 0\n'
)
_MEAN_WHOLE = """\
def mean(values):
    values = list(values)
    if not values:
        raise ValueError("empty")
    return sum(values) / len(values)


def largest(values):
    return sorted(values)[-1]
"""
_MEAN_BROKEN = _MEAN_WHOLE.replace("[-1]", "[0]")


def _mean() -> Specimen:
    case = "test_stats.MeanTest."
    return _specimen(
        "The mean of 1 and 2 comes out as 1, and the mean of nothing is a ZeroDivisionError. "
        "Mend `mean`.",
        {"stats.py": _MEAN},
        {"test_stats.py": _MEAN_TEST},
        _fenced("stats.py", _MEAN, _MEAN_FIXED),
        fails=(
            f"{case}test_fraction",
            f"{case}test_many",
            f"{case}test_empty",
            f"{case}test_largest",
        ),
        passes=(),
        lines=4,
        wrong=(_fenced("stats.py", _MEAN, _MEAN_HALF), _file("stats.py", _MEAN_BROKEN)),
        right=(_file("stats.py", _MEAN_WHOLE), _diff("stats.py", _MEAN, _MEAN_FIXED)),
    )


# --- a class in a package ------------------------------------------------------------------

_ACCOUNT = '''\
"""Accounts."""


class Overdrawn(Exception):
    """More was asked for than there is."""

    def __init__(self, lacking):
        super().__init__(f"{lacking} is lacking")
        self.lacking = lacking


class Account:
    def __init__(self, balance=0):
        self.balance = balance
        self.log = []

    def deposit(self, amount):
        self.balance += amount
        self.log.append(("deposit", amount))

    def withdraw(self, amount):
        self.balance -= amount
        self.log.append(("withdraw", amount))

    def __len__(self):
        return len(self.log)
'''
_ACCOUNT_TEST = """\
import unittest

from bank import account
from bank.account import Account, Overdrawn


class AccountTest(unittest.TestCase):
    def setUp(self):
        self.account = Account(10)

    def test_overdrawn(self):
        with self.assertRaises(Overdrawn) as caught:
            self.account.withdraw(13)
        self.assertEqual(caught.exception.lacking, 3)
        self.assertEqual(self.account.balance, 10)
        self.assertEqual(self.account.log, [])

    def test_all_of_it(self):
        self.account.withdraw(10)
        self.assertEqual(self.account.balance, 0)
        self.assertEqual(len(self.account), 1)

    def test_deposit(self):
        self.account.deposit(5)
        self.assertEqual(self.account.log, [("deposit", 5)])
        self.assertIsInstance(self.account, account.Account)
        self.assertNotIsInstance(3, account.Account)
"""
_GUARD = "        if amount > self.balance:\n            raise Overdrawn(amount - self.balance)\n"
_LATE = "        if self.balance < 0:\n            raise Overdrawn(-self.balance)\n"
_WITHDRAWN = "        self.balance -= amount\n"
_ACCOUNT_FIXED = _ACCOUNT.replace(_WITHDRAWN, _GUARD + _WITHDRAWN)
_ACCOUNT_LATE = _ACCOUNT.replace(_WITHDRAWN, _WITHDRAWN + _LATE)


def _account() -> Specimen:
    case = "bank.tests.test_account.AccountTest."
    return _specimen(
        "An account can be overdrawn. `withdraw` must raise `Overdrawn` with what is lacking and "
        "leave the account as it is.",
        {"bank/__init__.py": "", "bank/account.py": _ACCOUNT},
        {"bank/tests/test_account.py": _ACCOUNT_TEST},
        _fenced("bank/account.py", _ACCOUNT, _ACCOUNT_FIXED),
        fails=(f"{case}test_overdrawn",),
        passes=(f"{case}test_all_of_it", f"{case}test_deposit"),
        lines=2,
        wrong=(
            _fenced("bank/account.py", _ACCOUNT, _ACCOUNT_FIXED.replace("amount > ", "amount >= ")),
            _fenced("bank/account.py", _ACCOUNT, _ACCOUNT_LATE),
        ),
    )


# --- text, files of its own and a new module -----------------------------------------------

_WORDS = '''\
"""Counting words."""


def count(text):
    """How often each word occurs, in lower case."""
    found = {}
    for word in text.split():
        found[word] = found.get(word, 0) + 1
    return found
'''
_WORDS_SEEN = """\
import unittest

import words


class WordsTest(unittest.TestCase):
    def test_plain(self):
        self.assertEqual(words.count("a b a"), {"a": 2, "b": 1})
"""
_WORDS_TEST = (
    _WORDS_SEEN
    + """
    def test_case(self):
        self.assertEqual(words.count("A a, B!"), {"a": 2, "b": 1})

    def test_empty(self):
        self.assertEqual(words.count(" ... "), {})

    def test_top(self):
        self.assertEqual(words.top("b b a a c", 2), ["a", "b"])
"""
)
_WORDS_FIXED = '''\
"""Counting words."""

import collections
import re


def count(text):
    """How often each word occurs, in lower case."""
    return collections.Counter(re.findall(r"\\w+", text.lower()))


def top(text, number):
    """The most frequent words, those that are as frequent in the order of the alphabet."""
    found = count(text)
    return sorted(found, key=lambda word: (-found[word], word))[:number]
'''
_WORDS_STABLE = """\
import collections
import re


def count(text):
    return collections.Counter(re.findall(r"\\w+", text.lower()))


def top(text, number):
    return [word for word, _ in count(text).most_common(number)]
"""


def _words() -> Specimen:
    case = "tests.test_words.WordsTest."
    return _specimen(
        "`count` must not care for case and punctuation, and there must be a function "
        "`top(text, number)` with the most frequent words, ties in the order of the alphabet.",
        {"words.py": _WORDS, "tests/test_words.py": _WORDS_SEEN},
        {"tests/test_words.py": _WORDS_TEST},
        _fenced("words.py", _WORDS, _WORDS_FIXED),
        fails=(f"{case}test_case", f"{case}test_empty", f"{case}test_top"),
        passes=(f"{case}test_plain",),
        lines=15,
        wrong=(_file("words.py", _WORDS_STABLE),),
    )


def specimens() -> Specimens:
    """Three repositories: a function, a class in a package with exceptions, a visible test."""
    return Specimens(RepositoryPatch.ref.id, RepositoryPatch(), (_mean(), _account(), _words()))
