"""Tricks against graders as they are often written; each attempt runs in a sandbox of its own.

Known by the verify benchmark; `peers/naive_grader.py` is what runs.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from headrace.errors import UsageError
from headrace.protocols import Domain, reference_of
from headrace.sandbox.spec import Mount, Sandbox, SandboxSpec
from headrace.types import Task
from headrace.verify.answers import last_fence
from headrace.verify.audit.corpus import Trick
from headrace.verify.boxes import PROGRAMS, Boxes
from headrace.verify.code import CodeFunctions, FunctionSuite
from headrace.verify.code.values import literal

__all__ = ["MODES", "Fate", "fates", "naive_world", "prove_naive"]

MODES = ("in-process", "exit-code", "pytest")
_GRADER = Path(__file__).with_name("peers") / "naive_grader.py"
_PACKAGES = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What a trick got out of each grader: a score, or None where the grader did not survive."""

    trick: Trick
    naive: dict[str, float | None]
    ours: float | None


@contextmanager
def naive_world() -> Generator[SandboxSpec]:
    """A kind of sandbox in which pytest can be imported, and nothing of ours."""
    with tempfile.TemporaryDirectory() as folder:
        for name in _PACKAGES:
            found = importlib.util.find_spec(name)
            if found is None or found.origin is None:
                raise UsageError(f"{name} is not installed", hint="pip install pytest")
            origin = Path(found.origin)
            if origin.name == "__init__.py":
                shutil.copytree(origin.parent, Path(folder, name))
            else:
                shutil.copy(origin, folder)
        told = Path(folder, f"pluggy-{version('pluggy')}.dist-info")
        told.mkdir()
        (told / "METADATA").write_text(f"Name: pluggy\nVersion: {version('pluggy')}\n")
        Path(folder).chmod(0o755)
        mounts = (Mount(Path(folder), "/mnt/naive"),)
        yield replace(PROGRAMS, mounts=mounts, env=(("PYTHONPATH", "/mnt/naive"),))


def prove_naive(domain: Domain, tasks: Sequence[Task], world: SandboxSpec, boxes: Boxes) -> None:
    """RuntimeError unless each grader pays the reference attempt and nothing for no function."""
    for task in tasks:
        source = last_fence(reference_of(domain, task) or "", "python")
        assert source is not None
        for mode in MODES:
            paid = _naive(mode, source, task, world, boxes)
            unpaid = _naive(mode, "x = 1\n", task, world, boxes)
            if (paid, unpaid) != (1.0, 0.0):
                raise RuntimeError(f"{mode} pays {paid} for the reference, {unpaid} for nothing")


def fates(
    tricks: Sequence[Trick], domain: Domain, tasks: Sequence[Task], world: SandboxSpec, boxes: Boxes
) -> list[Fate]:
    """Each trick at each of the tasks (function tasks of `domain`): the most that it got."""
    return [_fate(trick, domain, tasks, world, boxes) for trick in tricks]


def _fate(
    trick: Trick, domain: Domain, tasks: Sequence[Task], world: SandboxSpec, boxes: Boxes
) -> Fate:
    verifier = domain.verifier
    assert isinstance(verifier, CodeFunctions)
    naive: dict[str, float | None] = dict.fromkeys(MODES)
    ours: float | None = None
    for task in tasks:
        text = trick.text_for({**verifier.hints(task), "prompt": task.messages[-1].text})
        if text is None:
            continue
        ours = _most(ours, verifier.judge(task, text).score)
        source = last_fence(text, "python", "py", "")
        for mode in MODES if source is not None else ():
            assert source is not None
            naive[mode] = _most(naive[mode], _naive(mode, source, task, world, boxes))
    return Fate(trick=trick, naive=naive, ours=ours)


def _most(first: float | None, second: float | None) -> float | None:
    return max((x for x in (first, second) if x is not None), default=None)


def _naive(mode: str, source: str, task: Task, world: SandboxSpec, boxes: Boxes) -> float | None:
    suite = FunctionSuite.read(task.answer)
    cases = [[literal(case.args), literal(case.expected)] for case in suite.cases]
    job = json.dumps({"source": source, "entry": suite.entry, "cases": cases}).encode()

    async def grade(box: Sandbox) -> float | None:
        await box.put_file("naive_grader.py", _GRADER.read_bytes())
        await box.exec(["/usr/bin/python3", "naive_grader.py", mode], stdin=job, timeout_s=_SECONDS)
        try:
            return float(await box.get_file("score"))
        except (UsageError, ValueError):
            return None

    return boxes.run(world, grade, timeout_s=_SECONDS + 10)
