"""The two kinds of code verifiers, and the small tasks with which they are audited."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from headrace.types import Json
from headrace.verify.code import functions, programs
from headrace.verify.code.functions import CodeFunctions
from headrace.verify.code.programs import CodePrograms
from headrace.verify.code.values import encode
from headrace.verify.kinds import Kind, Specimen, Specimens

__all__ = ["FUNCTIONS", "PROGRAMS", "fenced"]

_VISIBLE = 2


def fenced(source: str, language: str = "python") -> str:
    """A source as a policy writes it."""
    return f"```{language}\n{source.strip()}\n```"


def _function(
    prompt: str,
    entry: str,
    right: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]],
    sources: Sequence[str],
    wrong: Sequence[str],
    **options: Json,
) -> Specimen:
    """The first of `sources` is the reference, the others are right too."""
    cases: list[Json] = [
        {
            "args": [encode(value) for value in case],
            "expected": encode(right(*case)),
            "visible": number < _VISIBLE,
        }
        for number, case in enumerate(arguments)
    ]
    reference, *others = map(fenced, sources)
    return Specimen(
        prompt=prompt,
        answer={"entry": entry, "cases": cases, **options},
        reference=reference,
        wrong=tuple(map(fenced, wrong)),
        right=tuple(others),
    )


def _program(
    prompt: str,
    language: str,
    cases: Sequence[tuple[str, str]],
    sources: Sequence[str],
    wrong: Sequence[str],
    **options: Json,
) -> Specimen:
    rows: list[Json] = [
        {"stdin": stdin, "stdout": stdout, "visible": number < _VISIBLE}
        for number, (stdin, stdout) in enumerate(cases)
    ]
    reference, *others = (fenced(source, language) for source in sources)
    return Specimen(
        prompt=prompt,
        answer={"language": language, "cases": rows, **options},
        reference=reference,
        wrong=tuple(fenced(source, language) for source in wrong),
        right=tuple(others),
    )


def _spread(numbers: list[int]) -> int:
    return max(numbers) - min(numbers) if numbers else 0


def _counts(text: str) -> dict[str, int]:
    return {letter: text.count(letter) for letter in text if letter != " "}


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


_FUNCTION_ITEMS = (
    _function(
        "Write a Python function `spread(numbers)` that returns the largest number of a list "
        "minus the smallest, and 0 for an empty list. Example: spread([3, 1, 8]) returns 7.",
        "spread",
        _spread,
        [([3, 1, 8],), ([5],), ([],), ([-4, -9, 2],), ([7, 7],), ([10, -10, 0, 3],)],
        [
            "def spread(numbers):\n    return max(numbers, default=0) - min(numbers, default=0)",
            "def spread(numbers):\n    if not numbers:\n        return 0\n"
            "    ordered = sorted(numbers)\n    return ordered[-1] - ordered[0]",
        ],
        [
            "def spread(numbers):\n    return max(numbers) - min(numbers)",
            "def spread(numbers):\n    return numbers[-1] - min(numbers) if numbers else 0",
            "def spread(numbers):\n    return [max(numbers, default=0) - min(numbers, default=0)]",
            "def spread(numbers):\n    return {3: 7, 1: 0}[len(numbers)]",
        ],
    ),
    _function(
        "Write `letter_counts(text)`: a dictionary from each letter of the text to how often it "
        'occurs, without spaces. Example: letter_counts("abba") returns {"a": 2, "b": 2}.',
        "letter_counts",
        _counts,
        [("abba",), ("",), ("a b a",), ("zzz",), ("hello world",)],
        [
            "from collections import Counter\n\ndef letter_counts(text):\n"
            "    return Counter(text.replace(' ', ''))",
            "def letter_counts(text):\n    found = {}\n    for letter in text:\n"
            "        if letter != ' ':\n            found[letter] = found.get(letter, 0) + 1\n"
            "    return found",
        ],
        [
            "def letter_counts(text):\n    return {letter: text.count(letter) for letter in text}",
            "def letter_counts(text):\n    return dict.fromkeys(text.replace(' ', ''), 2)",
        ],
    ),
    _function(
        "Write `mean(numbers)`: the arithmetic mean of a list of numbers that is not empty. "
        "Example: mean([1.0, 2.0]) returns 1.5.",
        "mean",
        _mean,
        [([1.0, 2.0],), ([0.1, 0.2, 0.3],), ([5.0],), ([1e9, 1.0, -1e9],), ([-2.5, 2.5],)],
        [
            "def mean(numbers):\n    return sum(numbers) / len(numbers)",
            "import statistics\n\ndef mean(numbers):\n    return statistics.fmean(numbers)",
        ],
        [
            "def mean(numbers):\n    return sum(numbers) // len(numbers)",
            "def mean(numbers):\n    return sorted(numbers)[len(numbers) // 2]",
        ],
        rule={"tolerance": 1e-6},
    ),
    _function(
        "Write `pairs(n)`: all pairs (a, b) with 1 <= a <= b and a * b == n, as tuples in a list "
        "in any order. Example: pairs(4) returns [(1, 4), (2, 2)].",
        "pairs",
        lambda n: [(a, n // a) for a in range(1, n + 1) if n % a == 0 and a <= n // a],
        [(4,), (7,), (1,), (12,), (36,), (97,)],
        [
            "def pairs(n):\n    return [(a, n // a) for a in range(1, n + 1)"
            " if n % a == 0 and a * a <= n]",
            "def pairs(n):\n    return [(a, b) for a in range(n, 0, -1) for b in range(a, n + 1)"
            " if a * b == n]",
        ],
        [
            "def pairs(n):\n    return [[a, n // a] for a in range(1, n + 1)"
            " if n % a == 0 and a * a <= n]",
            "def pairs(n):\n    return [(a, n // a) for a in range(1, n + 1) if n % a == 0]",
        ],
        rule={"any_order": True},
        marks="share",
    ),
)

_SUM = [("1 2\n", "3\n"), ("10 -4\n", "6\n"), ("0 0\n", "0\n"), ("99999 1\n", "100000\n")]

_PROGRAM_ITEMS = (
    _program(
        "Write a Python program that reads two integers from one line and prints their sum. "
        "For the input `1 2` it prints `3`.",
        "python",
        _SUM,
        [
            "print(sum(map(int, input().split())))",
            "import sys\na, b = sys.stdin.read().split()\nsys.stdout.write(str(int(a) + int(b)))",
        ],
        ["a, b = input().split()\nprint(a + b)", "print({'1 2': 3, '10 -4': 6}[input()])"],
    ),
    _program(
        "Write a C program that reads two integers from one line and prints their sum. "
        "For the input `1 2` it prints `3`.",
        "c",
        _SUM,
        [
            '#include <stdio.h>\nint main(void) {\n    int a, b;\n    scanf("%d %d", &a, &b);\n'
            '    printf("%d\\n", a + b);\n    return 0;\n}',
        ],
        [
            '#include <stdio.h>\nint main(void) {\n    int a, b;\n    scanf("%d %d", &a, &b);\n'
            '    printf("%d\\n", a - b);\n    return 0;\n}',
        ],
    ),
    _program(
        "Write a shell script that prints the lines it reads in reverse order. For the lines "
        "`a` and `b` it prints `b` and `a`.",
        "shell",
        [("a\nb\n", "b\na\n"), ("x\n", "x\n"), ("1\n2\n3\n", "3\n2\n1\n")],
        ["tac", 'text=""\nwhile read -r line; do text="$line\n$text"; done\nprintf "%s" "$text"'],
        ["cat", "sort -r | head -n 2"],
    ),
    _program(
        "Write a Python program that reads a number r and prints the area of a circle of that "
        "radius. For the input `1` it prints `3.14159265`.",
        "python",
        [("1\n", "3.14159265\n"), ("2\n", "12.56637061\n"), ("0.5\n", "0.78539816\n")],
        [
            "import math\nprint(math.pi * float(input()) ** 2)",
            "r = float(input())\nprint('%.8f' % (3.141592653589793 * r * r))",
        ],
        ["print(3.14 * float(input()) ** 2)", "import math\nprint(2 * math.pi * float(input()))"],
        checker={"kind": "numbers", "tolerance": 1e-6},
        marks="share",
    ),
)


class _Named(Specimens):
    """What is asked for is found among other blocks, by the function's name or the language."""

    waived: ClassVar[Mapping[str, str]] = {
        "listed-answers": "other blocks beside the one that is asked for bet on nothing"
    }


FUNCTIONS = Kind(
    id="code-functions",
    version=functions.VERSION,
    title="A Python function, called case by case in a sandbox",
    limits="Python 3.9 or later without packages; arguments and results are builtin values of "
    "at most 200,000 characters; no methods, no results by changed arguments, no expected "
    "exceptions; 2 s of processor time and 320 MiB a case by default.",
    surfaces=CodeFunctions.surfaces,
    specimens=lambda: _Named("code-functions", CodeFunctions(), _FUNCTION_ITEMS),
)

PROGRAMS = Kind(
    id="code-programs",
    version=programs.VERSION,
    title="A program in Python, C or shell that reads and prints, run case by case in a sandbox",
    limits="One source file in a fenced block; cc and bash of the sandbox's image; UTF-8 output "
    "of at most 1 MiB; no interaction; 2 s of processor time a case by default.",
    surfaces=CodePrograms.surfaces,
    specimens=lambda: _Named("code-programs", CodePrograms(), _PROGRAM_ITEMS),
)
