"""Kinds of verifiers: what each is for, what it cannot do, and specimens that prove it.

A kind is found by the entry-point group `headrace.verifiers`, so that others can add their own.
May be known by the audit, verifiers and the command line; knows no verifier in particular.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Literal, Protocol, get_args, runtime_checkable

from headrace.errors import UsageError
from headrace.protocols import Domain, Referenced, Verifier
from headrace.types import Json, Message, Task, split_of

__all__ = [
    "GROUP",
    "SURFACES",
    "Auditable",
    "Kind",
    "Referenced",
    "Specimen",
    "Specimens",
    "Surface",
    "find",
    "names",
]

GROUP = "headrace.verifiers"

Surface = Literal[
    "text",
    "number",
    "python",
    "program",
    "c",
    "shell",
    "patch",
    "structured",
    "instruction",
    "sql",
    "tools",
    "table",
    "document",
    "cad",
    "replay",
    "judge",
]
"""What an attacker writes: every surface has its own tricks; "text" is every verifier's."""

SURFACES: tuple[Surface, ...] = get_args(Surface)


@runtime_checkable
class Auditable(Protocol):
    """A verifier that says how it is to be attacked. One that does not is attacked as "text".

    `surfaces`: whose tricks apply. `floor(task)`: the most that an answer without merit may
    score (0 unless the verifier pays for something else, with its reason documented).
    `hints(task)`: what tricks may know because the policy knows it too: values for their
    `{{name}}` placeholders, such as the name of the function that is asked for.
    `near(task, reference)`: answers close to the reference that are wrong.
    """

    @property
    def surfaces(self) -> tuple[Surface, ...]: ...

    def floor(self, task: Task) -> float: ...

    def hints(self, task: Task) -> Mapping[str, str]: ...

    def near(self, task: Task, reference: str) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Specimen:
    """A task of a kind with its reference attempt, and attempts that must not get full marks."""

    prompt: str
    answer: Json
    reference: str
    wrong: tuple[str, ...] = ()
    right: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Specimens:
    """A domain of a few fixed tasks, with which a kind of verifier is audited.

    One tier; `task(0, index)` walks through `items` and begins again.
    """

    name: str
    verifier: Verifier
    items: tuple[Specimen, ...]
    tiers: int = 1

    def task(self, tier: int, index: int) -> Task:
        """Specimen `index` modulo their number; `tier` is 0."""
        item = self.items[index % len(self.items)]
        return Task(
            domain=self.name,
            problem=item.prompt,
            tier=tier,
            split=split_of(self.name, item.prompt),
            messages=(Message.of("user", item.prompt),),
            verifier=self.verifier.ref,
            answer=item.answer,
        )

    def reference(self, task: Task) -> str | None:
        """The attempt that deserves full marks."""
        return self._item(task).reference

    def wrong(self, task: Task) -> tuple[str, ...]:
        """Attempts that must not get full marks."""
        return self._item(task).wrong

    def right(self, task: Task) -> tuple[str, ...]:
        """Other attempts that deserve full marks."""
        return self._item(task).right

    def _item(self, task: Task) -> Specimen:
        return next(item for item in self.items if item.prompt == task.problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of verifier. `version` changes whenever a score of it could.

    `title` says in a line what it judges; `limits` in a few what it cannot judge or bounds;
    `specimens()` makes the domain it is audited with.
    """

    id: str
    version: str
    title: str
    limits: str
    surfaces: tuple[Surface, ...]
    specimens: Callable[[], Domain]


def names(points: Iterable[EntryPoint] | None = None) -> list[str]:
    """The ids of all installed kinds, sorted, without importing any."""
    return sorted(point.name for point in _points(points))


def find(name: str, points: Iterable[EntryPoint] | None = None) -> Kind:
    """The kind of that id; UsageError naming the nearest if there is none, or if it is broken."""
    by_name = {point.name: point for point in _points(points)}
    if name not in by_name:
        near = difflib.get_close_matches(name, by_name, n=1, cutoff=0.0)
        hint = f"did you mean {near[0]}?" if near else "none is installed"
        raise UsageError(f"no verifier named {name!r}", hint=hint)
    point = by_name[name]
    try:
        kind = point.load()
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"the verifier {name!r} cannot be imported: {error}", where=point.value
        ) from error
    if not isinstance(kind, Kind) or kind.id != name:
        raise UsageError(f"the entry point {name!r} gives no such kind", where=point.value)
    return kind


def _points(points: Iterable[EntryPoint] | None) -> list[EntryPoint]:
    return list(entry_points(group=GROUP) if points is None else points)
