"""The kind `final-state`: what a shell script leaves behind, judged when it can change no more.

`tree` reads a file tree out of a sandbox, `checks` says what can be asked of it, `inspection`
brings both together (`inspect` is for agent environments too), `verifier` judges one script.
"""

from __future__ import annotations

from headrace.verify.kinds import Kind
from headrace.verify.terminal.checks import Check, CheckResult, State
from headrace.verify.terminal.inspection import Inspection, inspect
from headrace.verify.terminal.specimens import specimens
from headrace.verify.terminal.tree import Entry, Tree, digest, read_tree
from headrace.verify.terminal.verifier import FinalState, StateAnswer

__all__ = [
    "KIND",
    "Check",
    "CheckResult",
    "Entry",
    "FinalState",
    "Inspection",
    "State",
    "StateAnswer",
    "Tree",
    "digest",
    "inspect",
    "read_tree",
]

_LIMITS = """\
One script, run once by an unprivileged user without a network; services that it would leave \
running are dead when the state is judged. Only the task's roots are looked at. Files that their \
own owner cannot read make the whole tree unreadable, and links out of the roots stop all \
checkers unless the task allows them. A checker reads files as another user: what the script made \
unreadable for others fails, and a checker that runs the agent's programs hands its own identity \
to them (the check `output` runs them as the agent instead). A command line can be feigned, so \
only the absence of processes is certain. Needs a sandbox with two users and snapshots."""

KIND = Kind(
    id=FinalState.ref.id,
    version=FinalState.ref.version,
    title="The files and processes that a shell script leaves are as the task wants them",
    limits=_LIMITS,
    surfaces=("shell",),
    specimens=specimens,
)
