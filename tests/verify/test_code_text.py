"""What is read of an attempt and of its output: extraction, signs, comparison of outputs."""

from __future__ import annotations

import pytest

from headrace.verify.code.extract import MOST_CHARACTERS, function_source, program_source
from headrace.verify.code.outputs import Checker, same_output
from headrace.verify.code.signs import signs

GOOD = "def f(x):\n    return x\n"


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (f"```python\n{GOOD}```", GOOD),
        (f"Sure:\n```py\n{GOOD}```\nUse it so:\n```python\nprint(f(1))\n```", GOOD),
        (f"```python\ndef f(x): pass\n```\nBetter:\n```\n{GOOD}```", GOOD),
        (f"<think>```python\ndef f(x): 1\n```</think>\n```python\n{GOOD}```", GOOD),
        ("```python\nf = lambda x: x\n```", "f = lambda x: x\n"),
        ("```python\nx = 1\n```", "x = 1\n"),
        (GOOD, GOOD),
        (f"```python\n{GOOD}", None),
        (f"```javascript\n{GOOD}```", None),
        (f"<think>```python\n{GOOD}```", None),
        ("The answer is 7.", None),
        ("", None),
        (f"```python\n{GOOD}{'#' * MOST_CHARACTERS}\n```", None),
    ],
)
def test_the_last_block_that_defines_the_function_is_the_answer(
    text: str, source: str | None
) -> None:
    assert function_source(text, "f") == source


def test_a_program_is_the_last_block_of_its_language() -> None:
    text = "```c\nint a;\n```\n```python\nprint(1)\n```\n```c\nint b;\n```\n"
    assert program_source(text, "c") == "int b;\n"
    assert program_source(text, "python") == "print(1)\n"
    assert program_source(text, "shell") is None
    assert program_source("print(1)", "python") is None
    assert program_source("```\necho 1\n```", "shell") == "echo 1\n"


@pytest.mark.parametrize(
    ("source", "sign"),
    [
        ("import sys\nsys.exit(0)", "ends the process at the top level"),
        ("import os\ndef f():\n    os._exit(0)", "ends the process at once"),
        ("frame = sys._getframe()", "walks frames"),
        ("import gc\ngc.get_objects()", "searches memory"),
        ("open('/proc/1/mem')", "looks for what the machine holds"),
        ("import ctypes", "calls foreign code"),
        ("class A:\n    def __eq__(self, o):\n        return True", "equals everything"),
        ("builtins.all = f", "patches builtins"),
        ("sys.modules['x']", "patches the runner"),
        ("sys.settrace(f)", "intercepts the interpreter"),
        ("import atexit", "runs at exit"),
        ("os.kill(os.getppid(), 9)", "disturbs its parent"),
        ("open('conftest.py', 'w')", "plants files for others"),
        ("import unittest", "patches a test runner"),
        ("print('{\"nonce\": 1}')", "writes result lines"),
        ("def __reduce__(self): ...", "unpickles"),
    ],
)
def test_each_sign_is_seen(source: str, sign: str) -> None:
    assert sign in signs(source)


def test_honest_sources_show_no_sign() -> None:
    source = (
        "import sys\nfrom collections import Counter\n\ndef f(x):\n    if not x:\n"
        "        return None\n    return builtins_of(x) == 3\n\nclass P:\n"
        "    def __eq__(self, other):\n        return self.x == other.x\n\n"
        "if __name__ == '__main__':\n    sys.exit(f(1))\n"
    )
    assert signs(source) == []


@pytest.mark.parametrize(
    ("kind", "expected", "found", "right"),
    [
        ("exact", "a b\n", "a b", True),
        ("exact", "a b\n", "a b\n\n", False),
        ("exact", "a b\n", "a  b\n", False),
        ("exact", "a \n", "a\n", False),
        ("lines", "a b\nc\n", "a b  \r\nc\n\n\n", True),
        ("lines", "a b\n", " a b\n", False),
        ("lines", "a\n\nb\n", "a\nb\n", False),
        ("lines", "", "\n \n", True),
        ("tokens", "a b\nc\n", "a\nb c", True),
        ("tokens", "a b", "ab", False),
        ("numbers", "0.333333", "0.33333333", True),
        ("numbers", "x 1.0", "x 1", True),
        ("numbers", "x 1.0", "y 1", False),
        ("numbers", "1.0", "1.1", False),
        ("numbers", "1000000", "1e6", True),
        ("numbers", "1", "nan", False),
        ("numbers", "nan", "nan", True),
        ("numbers", "1", "inf", False),
        ("numbers", "1_000", "1000", False),
        ("numbers", "1", "٣", False),
        ("numbers", "1e999", "2e999", False),
        ("numbers", "1 2", "1", False),
        ("numbers", "7", "7.", True),
    ],
)
def test_outputs_are_compared_as_the_checker_says(
    kind: str, expected: str, found: str, right: bool
) -> None:
    assert same_output(Checker.model_validate({"kind": kind}), expected, found) is right
