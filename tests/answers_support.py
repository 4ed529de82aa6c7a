"""Helpers for the tests of the verifiers structured-output, tool-calls and document-answer."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

import headrace.verify
from headrace.protocols import Verifier
from headrace.types import Json, Message, Task, Verdict
from headrace.verify.base import BaseVerifier
from headrace.verify.kinds import Kind, Specimens

_TRICKS = Path(headrace.verify.__file__).parent / "audit" / "tricks"

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
"""JSON values of a few leaves."""


def task_for(verifier: Verifier, answer: Json, prompt: str = "Do it.") -> Task:
    return Task(
        domain="test",
        problem=prompt,
        tier=0,
        split="train",
        messages=(Message.of("user", prompt),),
        verifier=verifier.ref,
        answer=answer,
    )


def verdict(verifier: Verifier, answer: Json, text: str, prompt: str = "Do it.") -> Verdict:
    return verifier.judge(task_for(verifier, answer, prompt), text)


def part(judged: Verdict, name: str) -> float:
    return next(part.value for part in judged.parts if part.name == name)


def tricks(surface: str) -> list[str]:
    """The names of the tricks of a surface."""
    return sorted(path.stem for path in (_TRICKS / surface).glob("*.trick"))


def attempt(surface: str, name: str, task: Task, verifier: BaseVerifier) -> str:
    """What a trick says to a task."""
    text = (_TRICKS / surface / f"{name}.trick").read_text().partition("\n---\n")[2]
    known = {"prompt": task.messages[0].text, **verifier.hints(task)}
    for hint, value in known.items():
        text = text.replace("{{" + hint + "}}", value)
    assert "{{" not in text, f"{name} wants a hint that {verifier.ref.id} does not give"
    return text


def specimens_of(kind: Kind) -> Specimens:
    domain = kind.specimens()
    assert isinstance(domain, Specimens)
    return domain


def check_specimens(domain: Specimens, surface: str) -> None:
    """References and `right` get full marks, wrong ones do not, tricks and silence the floor."""
    verifier = domain.verifier
    assert isinstance(verifier, BaseVerifier)
    for index in range(len(domain.items)):
        task = domain.task(0, index)
        reference = domain.reference(task)
        assert reference is not None
        for text in (reference, *domain.right(task)):
            judged = verifier.judge(task, text)
            assert judged.solved, f"{text!r}: {judged.evidence}"
        for text in (*domain.wrong(task), *verifier.near(task, reference)):
            judged = verifier.judge(task, text)
            assert judged.score is not None, judged.evidence
            assert not judged.solved, f"{text!r}: {judged.evidence}"
        for name in ("", "   ", task.messages[0].text, "I do not know.", "0", "yes"):
            judged = verifier.judge(task, name)
            assert judged.score is not None, judged.evidence
            assert judged.score <= verifier.floor(task), f"{name!r}: {judged.evidence}"
        for name in tricks(surface):
            judged = verifier.judge(task, attempt(surface, name, task, verifier))
            assert judged.score is not None, f"{name}: {judged.evidence}"
            assert judged.score <= verifier.floor(task), f"{name}: {judged.evidence}"
