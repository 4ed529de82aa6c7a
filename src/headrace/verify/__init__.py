"""Verifiers: how an attempt at a task is judged, and the processes in which that is safe.

`child` runs a fragile scorer where it can be killed. The verifiers of a domain live in its
task pack. May be known by environments, pipeline and task packs; knows no task in particular.
"""

from headrace.verify.child import (
    Child,
    ChildDied,
    ChildError,
    ChildGarbled,
    ChildSpent,
    ChildTimeout,
    serve,
)

__all__ = [
    "Child",
    "ChildDied",
    "ChildError",
    "ChildGarbled",
    "ChildSpent",
    "ChildTimeout",
    "serve",
]
