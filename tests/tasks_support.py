"""What the task tests share: small domains, worker modules, and processes that must be gone."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from headrace.types import Message, Task, Verdict, VerifierRef, split_of

__all__ = ["Echo", "Numbers", "install_module", "is_gone", "wait_gone"]


class Echo:
    """Pays 1 for the task's answer, literally."""

    ref = VerifierRef("echo", "1")

    def judge(self, task: Task, text: str) -> Verdict:
        return Verdict(score=float(text == task.answer), verifier=self.ref)


class Numbers:
    """Tier t asks for one of `size` numbers that say their tier; pure and fast."""

    def __init__(self, name: str, *, tiers: int = 3, size: int = 1000) -> None:
        self.name = name
        self.tiers = tiers
        self.verifier = Echo()
        self._size = size

    def task(self, tier: int, index: int) -> Task:
        problem = f"{tier}:{index % self._size}"
        return Task(
            domain=self.name,
            problem=problem,
            tier=tier,
            split=split_of(self.name, problem),
            messages=(Message.of("user", f"Say {problem}"),),
            verifier=self.verifier.ref,
            answer=problem,
        )


def install_module(directory: Path, name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a module that child processes can run by name; returns the name."""
    (directory / f"{name}.py").write_text(source)
    paths = [str(directory), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return name


def is_gone(pid: int) -> bool:
    """Whether no process has this id, or only an unreaped one."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def wait_gone(pid: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not is_gone(pid) and time.monotonic() < until:
        os.sched_yield()
        time.sleep(0.02)
    return is_gone(pid)
