"""Sandboxes: isolated places with a file tree, where untrusted programs run.

`spec` has the words; `oci`, `sandlock`, `engine` (podman and docker) and `plain` are the
backends; `registry` finds them and refuses rather than degrades; `pool` keeps warm ones under
leases in SQLite (`leases`), and `reaper` removes what a dead manager left. May be known by
environments, verifiers' callers, pipeline and command line; knows no task.
"""

from headrace.sandbox.spec import (
    Backend,
    BoxLimits,
    Capabilities,
    Capture,
    ExecLimits,
    Isolation,
    Mount,
    Network,
    Outcome,
    Owned,
    Result,
    Sandbox,
    SandboxFailure,
    SandboxGone,
    SandboxRefused,
    SandboxSpec,
    SnapshotRef,
    Usage,
    User,
)

__all__ = [
    "Backend",
    "BoxLimits",
    "Capabilities",
    "Capture",
    "ExecLimits",
    "Isolation",
    "Mount",
    "Network",
    "Outcome",
    "Owned",
    "Result",
    "Sandbox",
    "SandboxFailure",
    "SandboxGone",
    "SandboxRefused",
    "SandboxSpec",
    "SnapshotRef",
    "Usage",
    "User",
]
