"""Looking at a sandbox when the agent is done: its processes end first, then it is read.

The order matters: processes are listed, a snapshot ends them, the tree is read, and only then
do checkers run and after those what the agent left. May be known by the verifier and by agent
environments.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

from headrace.errors import UsageError
from headrace.sandbox.spec import Outcome, Result, Sandbox, SandboxFailure
from headrace.verify.children import Children
from headrace.verify.terminal.checks import (
    Check,
    Checker,
    CheckResult,
    Output,
    Processes,
    State,
    evaluate,
)
from headrace.verify.terminal.tree import Entry, Tree, digest, escaping_links, read_tree

__all__ = ["PATTERNS", "Inspection", "inspect", "observe"]

PATTERNS = Children("headrace.verify.patterns", size=1, memory_mb=1024)
"""Where regular expressions meet what an agent wrote."""

_LIST = """
import os
for name in sorted(os.listdir("/proc"), key=lambda name: name.zfill(9)):
    if name.isdigit():
        try:
            owner = os.stat("/proc/" + name).st_uid
            with open("/proc/" + name + "/cmdline", "rb") as file:
                line = file.read(300)
            with open("/proc/" + name + "/stat", "rb") as file:
                dead = file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
        except OSError:
            continue
        if owner not in (0, os.getuid()) and not dead:
            print(repr(line.replace(b"\\0", b" ").decode("utf-8", "replace").strip()))
"""
_LIST_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The results of all checks, the `digest` of the tree below the roots ("" if it cannot be
    read), and what the agent may have tried: `escaping` links."""

    results: tuple[CheckResult, ...]
    digest: str
    escaping: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every check holds."""
        return all(result.passed for result in self.results)


async def inspect(
    box: Sandbox,
    checks: tuple[Check, ...],
    *,
    roots: tuple[str, ...] = ("/workspace",),
    links: bool = False,
) -> Inspection:
    """Judge the final state of `box`, whose agent is done; ends all of its processes.

    Only `roots` (absolute) are looked at; a relative path of a check is below the first.
    With a link in them that leads out of them no checker runs, unless `links` allows such.
    The backend must have two users and snapshots. Raises SandboxFailure where the machine
    fails; whatever the agent did makes checks fail and raises nothing.
    """
    state = await observe(box, checks, roots=roots, links=links)
    results = await asyncio.to_thread(evaluate, checks, state, PATTERNS)
    return Inspection(
        results=results,
        digest="" if state.unreadable else digest(state.tree),
        escaping=state.escaping,
    )


async def observe(
    box: Sandbox, checks: tuple[Check, ...], *, roots: tuple[str, ...], links: bool
) -> State:
    """What `checks` need to know of `box`; see `inspect`."""
    running: tuple[str, ...] = ()
    if any(isinstance(check, Processes) for check in checks):
        running = await _processes(box)
    await box.snapshot()
    tree: dict[str, Entry] = {}
    unreadable = ""
    for root in roots:
        try:
            part: Tree = await read_tree(box, root)
        except UsageError as error:
            unreadable = str(error)
        else:
            tree.update(part)
    escaping = tuple(escaping_links(tree, roots))
    said: dict[int, str] = {}
    for number, check in enumerate(checks):
        if isinstance(check, Checker):
            refused = unreadable or ("" if links or not escaping else "links lead out of the tree")
            said[number] = refused or await _check(box, check)
    printed: dict[int, str | None] = {}
    for number, check in enumerate(checks):
        if isinstance(check, Output):
            printed[number] = await _output(box, check, roots[0])
    return State(
        roots=roots,
        tree=tree,
        unreadable=unreadable,
        escaping=escaping,
        processes=running,
        printed=printed,
        said=said,
    )


async def _processes(box: Sandbox) -> tuple[str, ...]:
    """The command lines of the agent's processes, as the verifier's user sees them."""
    result = await box.exec(
        ["python3", "-I", "-S", "-c", _LIST], timeout_s=_LIST_S, user="verifier", cwd="/"
    )
    _must_have_run(result)
    if not result.ok:  # the agent has left no room for one more process
        return (f"more than can be listed ({result.outcome.value})",)
    return tuple(line[1:-1] for line in result.stdout.text.splitlines())


async def _check(box: Sandbox, check: Checker) -> str:
    """ "pass", "fail", or why the checker said neither. The agent knows neither its place nor
    the nonce, and nothing of its is running."""
    nonce, place = secrets.token_hex(16), f"/home/verifier/{secrets.token_hex(8)}"
    try:
        await box.put_file(f"{place}/check", check.script.encode(), user="verifier")
    except UsageError as error:
        return f"the checker cannot be put there: {error}"
    program = ["python3", "-I", "-S", "-B"] if check.language == "python" else ["sh"]
    result = await box.exec(
        [*program, f"{place}/check"],
        timeout_s=check.seconds,
        env={"HEADRACE_NONCE": nonce, "TMPDIR": place},
        user="verifier",
        cwd=place,
    )
    _must_have_run(result)
    lines = [line for line in result.stdout.text.splitlines() if nonce in line]
    words = {f"{nonce} pass": "pass", f"{nonce} fail": "the checker says fail"}
    if result.ok and len(lines) == 1 and lines[0] in words:
        return words[lines[0]]
    how = result.outcome.value
    return f"the checker gave no verdict ({how}): {result.stderr.text[-300:]}"


def _must_have_run(result: Result) -> None:
    """SandboxFailure if the sandbox died, or has not got the program."""
    missing = result.exit_code == 127 and result.stdout.total == 0
    if result.outcome is Outcome.CRASH or (
        missing and result.stderr.data.startswith(b"cannot start the program")
    ):
        raise SandboxFailure(f"a check does not run: {result.stderr.text[-200:] or 'it died'}")


async def _output(box: Sandbox, check: Output, cwd: str) -> str | None:
    result = await box.exec(
        list(check.argv), stdin=check.stdin.encode(), timeout_s=check.seconds, cwd=cwd
    )
    if result.outcome is Outcome.CRASH:
        raise SandboxFailure("the sandbox died under a check")
    ended = result.outcome is Outcome.RESULT and not result.stdout.truncated
    return result.stdout.text if ended else None
