"""Graders of code as they are often written, to be run where they can do no harm: in a sandbox.

    python3 naive_grader.py MODE < job.json      the score goes into the file `score`

The job is `{"source", "entry", "cases": [[arguments, expected], ...]}`, the cases spelled as
Python. `MODE`: `in-process` runs the source and compares results beside it; `exit-code` appends
assertions to it and believes the exit code; `pytest` does the same with pytest. Where no score
is written, the attempt has taken its grader with it. Standard library only, but for pytest.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

Cases = list[list[str]]


def in_process(source: str, entry: str, cases: Cases) -> float:
    space: dict[str, Any] = {}
    try:
        exec(source, space)  # noqa: S102 - that is the point
        for arguments, expected in cases:
            if space[entry](*eval(arguments)) != eval(expected):  # noqa: S307
                return 0.0
    except Exception:  # noqa: BLE001
        return 0.0
    return 1.0


def exit_code(source: str, entry: str, cases: Cases) -> float:
    lines = [f"assert {entry}(*{arguments}) == {expected}" for arguments, expected in cases]
    Path("program.py").write_text(source + "\n\n" + "\n".join(lines) + "\n")
    done = subprocess.run([sys.executable, "program.py"], capture_output=True, timeout=20)
    return float(done.returncode == 0)


def pytest(source: str, entry: str, cases: Cases) -> float:
    Path("solution.py").write_text(source + "\n")
    tests = [
        f"def test_{number}():\n    assert {entry}(*{arguments}) == {expected}\n"
        for number, (arguments, expected) in enumerate(cases)
    ]
    Path("test_solution.py").write_text(f"from solution import {entry}\n\n" + "\n".join(tests))
    command = [sys.executable, "-m", "pytest", "-q", "test_solution.py"]
    return float(subprocess.run(command, capture_output=True, timeout=20).returncode == 0)


GRADERS = {"in-process": in_process, "exit-code": exit_code, "pytest": pytest}


def main() -> None:
    job = json.load(sys.stdin)
    score = GRADERS[sys.argv[1]](job["source"], job["entry"], job["cases"])
    Path("score").write_text(str(score))


if __name__ == "__main__":
    main()
