"""What the tests of verifiers share that judge what programs leave: tricks, specimens, boxes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

import headrace.verify
from headrace.sandbox.oci.backend import OciBackend
from headrace.sandbox.spec import Capabilities, Sandbox, SandboxFailure, SandboxSpec
from headrace.types import Json, Message, Task, Verdict
from headrace.verify.base import BaseVerifier
from headrace.verify.boxes import Boxes
from headrace.verify.kinds import Specimens

_WHY = OciBackend().available()
needs_boxes = pytest.mark.skipif(_WHY is not None, reason=f"oci: {_WHY}")
_TRICKS = Path(headrace.verify.__file__).parent / "audit" / "tricks"
A = TypeVar("A")
B = TypeVar("B")


def trick(path: Path) -> str:
    """The text of a trick's attempt, with its placeholders."""
    head, _, text = path.read_text().partition("\n---\n")
    assert head.startswith("title: ")
    assert "\nstory: " in head
    assert "\nseen: " in head
    return text


def tricks(surface: str) -> list[Path]:
    """The files of a surface's tricks."""
    return sorted((_TRICKS / surface).glob("*.trick"))


def filled(text: str, hints: Mapping[str, str]) -> str:
    """A trick as a policy that knows `hints` would write it."""
    for name, value in hints.items():
        text = text.replace("{{" + name + "}}", value)
    assert "{{" not in text
    return text


def attempts_of(surface: str, domain: Specimens) -> dict[str, tuple[Task, str]]:
    """Each trick of a surface on one specimen, which is not the same for all, by name."""
    found: dict[str, tuple[Task, str]] = {}
    for index, path in enumerate(tricks(surface)):
        task = domain.task(0, index)
        assert isinstance(domain.verifier, BaseVerifier)
        hints = {"prompt": task.problem, **domain.verifier.hints(task)}
        found[path.stem] = (task, filled(trick(path), hints))
    return found


def task_of(verifier: BaseVerifier, answer: Json) -> Task:
    """A task with that answer."""
    return Task(
        domain="test",
        problem="p",
        tier=0,
        split="train",
        messages=(Message.of("user", "p"),),
        verifier=verifier.ref,
        answer=answer,
    )


class DyingBoxes(Boxes):
    """Boxes whose machine fails under every job."""

    def capabilities(self, spec: SandboxSpec) -> Capabilities:
        del spec
        return OciBackend().capabilities()

    def run(
        self,
        spec: SandboxSpec,
        job: Callable[[Sandbox], Coroutine[Any, Any, A]],
        *,
        timeout_s: float,
    ) -> A:
        raise SandboxFailure("the machine is gone", where=f"{spec.image} {job} {timeout_s}")


def part(verdict: Verdict, name: str) -> float:
    """The value of a part."""
    return next(part.value for part in verdict.parts if part.name == name)


def at_once(work: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """`work` on all items, from several threads."""
    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(work, items))


def misjudged(domain: Specimens) -> dict[str, str]:
    """Attempts of the specimens that get what they do not deserve, with the evidence."""
    cases: list[tuple[Task, str, bool]] = []
    for index in range(len(domain.items)):
        task = domain.task(0, index)
        deserving = (domain.reference(task), *domain.right(task))
        cases += [(task, text, True) for text in deserving if text is not None]
        cases += [(task, text, False) for text in domain.wrong(task)]
    verdicts = at_once(lambda case: domain.verifier.judge(case[0], case[1]), cases)
    return {
        text: f"{verdict.score} {verdict.fault} {verdict.evidence}"
        for (_, text, deserves), verdict in zip(cases, verdicts, strict=True)
        if verdict.score is None or verdict.solved is not deserves
    }
