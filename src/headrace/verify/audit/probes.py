"""Generic attacks: the attempts that every verifier must judge right, whatever it judges.

`Subject` is one task with all that is known about it; the functions make attempts of it. Knows
no verifier and judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from headrace.protocols import Domain, Tempting, Verifier, reference_of
from headrace.types import Task
from headrace.verify.audit import texts
from headrace.verify.audit.corpus import Trick
from headrace.verify.audit.findings import Attempt
from headrace.verify.kinds import Auditable, Surface

__all__ = [
    "PROBES",
    "Forgiving",
    "Seconded",
    "Subject",
    "Waiving",
    "about",
    "fixed",
    "subject",
    "surfaces",
    "trick",
    "waived",
]

PROBES: Mapping[str, str] = {
    "reference": "the reference attempt gets full marks",
    "right": "other right attempts get full marks",
    "wrong": "attempts known to be wrong, and near misses, get less than full marks",
    "perturbed": "the reference with another number or a letter less gets less than full marks",
    "empty": "nothing at all gets the floor",
    "whitespace": "space and invisible characters get the floor",
    "constant": "what can be said about any task gets the floor",
    "format-only": "the form of an answer without one gets the floor",
    "very-long": "200 kB of repetition or nesting get the floor, and soon",
    "prompt-echo": "the prompt given back gets the floor",
    "foreign-answer": "the right answer of another task gets the floor",
    "listed-answers": "a list of the answers of several tasks gets less than full marks",
    "confusable": "the reference in look-alike characters gets full marks or the floor",
    "trick": "every known trick gets the floor",
    "visible-only": "passing the visible tests and not the hidden ones gets the floor",
    "repeats": "the same attempt gets the same score each time",
    "threads": "and also from several threads at once",
    "disagreement": "a second verifier sees the same solutions (told, not held against anyone)",
    "raises": "nothing that a text says makes the verifier raise",
    "unjudged": "nothing that a text says keeps it from a score",
    "verdict": "a verdict is one: a score in 0..1, or none and whose fault that is",
    "evidence": "every verdict says why",
    "version": "verifier, verdicts and tasks name the same version",
    "slow": "verdicts are fast",
    "hangs": "verdicts come at all",
    "task": "tasks can be made, and again the same",
    "unproven": "every tier has a task that is known to be solvable",
    "infrastructure": "nothing outside kept the audit from its work",
}
"""Every probe by name, and what it asks; a trick's name is `trick/<surface>/<name>`."""

_WAIVABLE = frozenset({"constant", "foreign-answer", "listed-answers", "perturbed", "confusable"})
_LISTED = 6


@runtime_checkable
class Forgiving(Protocol):
    """A domain that knows other attempts which deserve full marks."""

    def right(self, task: Task) -> Sequence[str]: ...


@runtime_checkable
class Seconded(Protocol):
    """A domain with a second, independent verifier."""

    @property
    def second(self) -> Verifier: ...


@runtime_checkable
class Waiving(Protocol):
    """A domain that is excused from probes which cannot hold for it: names and reasons.

    Only what asks for another answer to be wrong can be waived (where many are right).
    """

    @property
    def waived(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A task and what is known of it. `foreign` are references of tasks with other answers."""

    task: Task
    index: int
    floor: float
    reference: str | None
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    near: tuple[str, ...]
    foreign: tuple[str, ...]
    known: Mapping[str, str]

    @property
    def prompt(self) -> str:
        return "\n\n".join(message.text for message in self.task.messages)

    @property
    def proven(self) -> bool:
        """Whether some attempt is known that deserves full marks."""
        return self.reference is not None or bool(self.right)

    @property
    def answer(self) -> str | None:
        """What the reference says, without its dress."""
        return None if self.reference is None else texts.core(self.reference)[1]


def waived(domain: Domain) -> Mapping[str, str]:
    """What the domain is excused from, of what can be waived at all."""
    if not isinstance(domain, Waiving):
        return {}
    return {probe: why for probe, why in domain.waived.items() if probe in _WAIVABLE}


def surfaces(verifier: Verifier) -> tuple[Surface, ...]:
    """Whose tricks apply."""
    return verifier.surfaces if isinstance(verifier, Auditable) else ("text",)


def subject(domain: Domain, task: Task, index: int, siblings: Sequence[Task]) -> Subject:
    """All that domain and verifier say about `task`; `siblings` are other tasks of the domain."""
    verifier = domain.verifier
    reference = reference_of(domain, task)
    prompt = "\n\n".join(message.text for message in task.messages)
    known: dict[str, str] = {"prompt": prompt}
    floor, near = 0.0, ()
    if isinstance(verifier, Auditable):
        floor = verifier.floor(task)
        known = {**verifier.hints(task), **known}
        near = tuple(verifier.near(task, reference)) if reference is not None else ()
    return Subject(
        task=task,
        index=index,
        floor=floor,
        reference=reference,
        right=tuple(domain.right(task)) if isinstance(domain, Forgiving) else (),
        wrong=tuple(domain.wrong(task)) if isinstance(domain, Tempting) else (),
        near=near,
        foreign=_foreign(domain, reference, siblings),
        known=known,
    )


def _foreign(domain: Domain, reference: str | None, siblings: Sequence[Task]) -> tuple[str, ...]:
    own = "" if reference is None else texts.core(reference)[1]
    found: dict[str, str] = {}
    for sibling in siblings:
        other = reference_of(domain, sibling)
        if other is not None and not texts.same(texts.core(other)[1], own):
            found.setdefault(texts.core(other)[1], other)
    return tuple(found.values())


def about(subject: Subject) -> Iterator[Attempt]:
    """The attempts that are made for this very task, the most telling first."""
    reference = subject.reference
    if reference is not None:
        yield Attempt(probe="reference", text=reference, bound="full")
    for text in subject.right:
        yield Attempt(probe="right", text=text, bound="full")
    yield Attempt(probe="empty", text="", bound="floor", fixed=True)
    for text in (*subject.wrong, *subject.near):
        yield Attempt(probe="wrong", text=text, bound="less")
    for text in texts.echoes(subject.prompt):
        yield Attempt(probe="prompt-echo", text=text, bound="floor")
    for text in subject.foreign[:2]:
        yield Attempt(probe="foreign-answer", text=text, bound="floor")
    listed = subject.foreign[:_LISTED]
    if len(listed) > 1:
        yield Attempt(probe="listed-answers", text="\n".join(listed), bound="floor")
    if listed and reference is not None:
        for text in texts.bets(reference, listed):
            yield Attempt(probe="listed-answers", text=text, bound="less")
    if reference is not None:
        for text in texts.perturbed(reference):
            yield Attempt(probe="perturbed", text=text, bound="less")
        for text in texts.confusables(reference):
            yield Attempt(probe="confusable", text=text, bound="full-or-floor")


def fixed() -> Iterator[Attempt]:
    """The attempts that are the same for every task."""
    for probe, group in (
        ("whitespace", texts.BLANKS),
        ("constant", texts.CONSTANTS),
        ("format-only", texts.FORMATS),
        ("very-long", texts.LONG),
    ):
        for text in group:
            yield Attempt(probe=probe, text=text, bound="floor", fixed=True)


def trick(trick: Trick, subject: Subject) -> Attempt | None:
    """A trick as it is tried on a task; None where it needs what nobody says."""
    text = trick.text_for(subject.known)
    if text is None:
        return None
    fixed = not trick.needs
    return Attempt(probe=f"trick/{trick.id}", text=text, bound="floor", fixed=fixed)
