"""Errors a person can act on: what happened, where, and the next command.

Each class is a boundary with an exit code of its own; all of them survive pickling, so that
they can cross processes. A plain Python exception that reaches the top is a bug (exit 1).
"""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "CheckpointError",
    "Exit",
    "GateFailed",
    "HeadraceError",
    "InfrastructureError",
    "Interrupted",
    "ModelError",
    "NoSignalError",
    "NumericalError",
    "RecipeError",
    "RunError",
    "StorageError",
    "UsageError",
    "VerifierError",
]


class Exit(IntEnum):
    """Process exit codes, part of the public interface."""

    DONE = 0
    BUG = 1
    USAGE = 2
    GATE = 3
    NO_SIGNAL = 4
    INFRASTRUCTURE = 5
    INCONCLUSIVE = 6
    INTERRUPTED = 130


class HeadraceError(Exception):
    """`what` went wrong, `where` it did, and a `hint`: the next thing to type or change.

    >>> print(RecipeError("no such domain", where="tasks.domains[0]", hint="headrace domains"))
    no such domain (tasks.domains[0])
    """

    exit_code: Exit = Exit.BUG

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what} ({self.where})" if self.where else self.what

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.hint))


def _rebuild(kind: type[HeadraceError], what: str, where: str, hint: str) -> HeadraceError:
    return kind(what, where=where, hint=hint)


class UsageError(HeadraceError):
    """The command line asks for something that cannot be."""

    exit_code = Exit.USAGE


class RecipeError(UsageError):
    """A recipe is invalid: an unknown key, a value out of range, a refused combination."""


class RunError(UsageError):
    """A run directory is missing, in use, or not what it should be."""


class ModelError(UsageError):
    """A model cannot be found, read or trusted (a wrong digest, an unknown layout)."""


class GateFailed(HeadraceError):
    """An evaluation gate said no."""

    exit_code = Exit.GATE


class NoSignalError(HeadraceError):
    """Training cannot learn anything from what it sees."""

    exit_code = Exit.NO_SIGNAL


class NumericalError(NoSignalError):
    """A loss or gradient is not finite, or an update changed nothing."""


class InfrastructureError(HeadraceError):
    """The world failed, not the work: safe to resume."""

    exit_code = Exit.INFRASTRUCTURE


class StorageError(InfrastructureError):
    """Disk full, permission denied, a write that did not land."""


class CheckpointError(InfrastructureError):
    """A checkpoint is incomplete or does not match its digests."""


class VerifierError(InfrastructureError):
    """A verifier could not judge at all (its process cannot be started, for example)."""


class Interrupted(HeadraceError):
    """Stopped on request at a safe point; resumable."""

    exit_code = Exit.INTERRUPTED
