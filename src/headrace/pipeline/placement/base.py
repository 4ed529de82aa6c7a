"""The placement protocol: workers of a kind are placed somewhere, called, watched and stopped.

Narrow on purpose, so that a cluster fits behind it: work is named by reference, requests and
results are JSON (payloads stay in the store), a worker does one thing at a time. Dispatchers and
supervisors know this page only.
"""

from __future__ import annotations

import importlib
import inspect
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, cast

from headrace import errors
from headrace.errors import HeadraceError, InfrastructureError, UsageError
from headrace.pipeline.needs import Needs

if TYPE_CHECKING:
    from headrace.types import Json

__all__ = [
    "Caught",
    "Entry",
    "Handler",
    "Placed",
    "Placement",
    "PlacementError",
    "WorkFailed",
    "WorkOverdue",
    "WorkerLost",
    "WorkerSpec",
    "WorkerState",
    "is_async",
    "rebuild_error",
    "resolve",
    "tell_error",
]

Handler = Callable[["Json"], Any]
"""Does one piece of work: JSON in, JSON out, as a function or a coroutine function."""

Entry = Callable[["Json"], Any]
"""Loads what is heavy, once for each worker: JSON arguments in, a Handler out (may be async)."""

WorkerState = Literal["idle", "busy", "silent", "ended"]


class PlacementError(InfrastructureError):
    """A worker could not be started or stopped; says what it last said."""


class WorkerLost(InfrastructureError):
    """A worker went away with its work unfinished."""


class WorkOverdue(InfrastructureError):
    """Work did not end by its own deadline; its worker was ended as unhealthy."""


class WorkFailed(HeadraceError):
    """The code that does the work raised what is no headrace error: a bug in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """A kind of worker.

    `entry` is "module:function": called once with `arguments` it returns the handler of requests.
    `domain` is charged for what the worker needs, and for what it needs besides while `starting`
    (memory for a second copy of its weights, one of few places to start at a time): such starts
    take turns. Deadlines in seconds: `place_s` to wait for resources, `start_s` to become ready,
    `silence_s` after which an idle worker that was not heard of is taken for dead.

    >>> WorkerSpec(name="judge", entry="my_judges.worker:load", starting=Needs({"start": 1}))
    ... # doctest: +ELLIPSIS
    WorkerSpec(name='judge', entry='my_judges.worker:load', ...)
    """

    name: str
    entry: str
    arguments: Json = None
    domain: str = ""
    starting: Needs = field(default_factory=Needs)
    place_s: float = 300.0
    start_s: float = 120.0
    silence_s: float = 30.0

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]+", self.name):
            raise UsageError(f"a worker's name has letters, digits, . _ - only, not {self.name!r}")


class Placed(Protocol):
    """A worker that is ready, until it ends."""

    @property
    def id(self) -> str:
        """The name of its kind and a number, unique within the placement."""
        ...

    @property
    def state(self) -> WorkerState:
        """ "silent": at work and not heard of, which is no fault before its work's deadline."""
        ...

    async def call(self, request: Json, *, deadline_s: float) -> Json:
        """Have one piece of work done, and no second one before it ended.

        WorkOverdue after `deadline_s`, which ends the worker, as cancelling the call does;
        WorkerLost if it goes away; WorkFailed for a bug; else what the handler raised.
        """
        ...

    async def ended(self) -> str:
        """Wait for its end; says why."""
        ...

    async def stop(self, *, grace_s: float) -> None:
        """End it: it may finish its work for `grace_s` seconds. Nothing of it is left then."""
        ...


class Placement(Protocol):
    """Where workers can be placed."""

    async def place(self, spec: WorkerSpec, needs: Needs) -> Placed:
        """A ready worker that holds `needs` until it ends.

        PlacementError if it does not start; InfeasibleNeeds or ResourceTimeout if there is no
        room for it.
        """
        ...

    async def close(self) -> None:
        """End every worker at once."""
        ...


class Caught:
    """Keeps the exception that a block raises, to hand it to whoever asked for the work."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> bool:
        if isinstance(error, Exception):
            self.error = error
        return self.error is not None


def resolve(entry: str) -> Entry:
    """The function that "module:function" names; UsageError if there is none."""
    module, _, name = entry.partition(":")
    found: object = None
    why = "there is none of that name"
    if module and name:
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ModuleNotFoundError as error:
            why = str(error)
    if not callable(found):
        raise UsageError(
            f"{entry!r} names no function: {why}",
            where="entry of a worker",
            hint='write "package.module:function", importable from the main process',
        )
    return cast("Entry", found)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine, to be run on the event loop and not in a thread."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def tell_error(error: Exception) -> dict[str, Json]:
    """An exception as JSON. A headrace error keeps its kind, anything else becomes a bug."""
    if isinstance(error, HeadraceError):
        known = next(kind for kind in type(error).__mro__ if kind.__name__ in errors.__all__)
        kind, what, where, hint = known.__name__, error.what, error.where, error.hint
    else:
        kind, what = "bug", f"{type(error).__name__}: {error}"
        where, hint = "".join(traceback.format_exception(error)), ""
    return {"kind": kind, "what": what, "where": where, "hint": hint}


def rebuild_error(told: dict[str, Json]) -> HeadraceError:
    """What `tell_error` told, as an exception again."""
    kind = str(told["kind"])
    known: type[HeadraceError] = WorkFailed
    if kind in errors.__all__ and kind != "Exit":
        known = getattr(errors, kind)
    return known(str(told["what"]), where=str(told["where"]), hint=str(told["hint"]))
