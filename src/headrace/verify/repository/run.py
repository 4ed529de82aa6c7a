"""A test run in a fresh sandbox: what goes in, and the report that comes out.

The tree belongs to the user "agent", the tests to "verifier", and neither can read the other's.
May be known by the verifier.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from headrace.sandbox.spec import (
    BoxLimits,
    ExecLimits,
    Isolation,
    Outcome,
    Sandbox,
    SandboxFailure,
    SandboxSpec,
)
from headrace.types import Json
from headrace.verify.repository.answer import RepositoryAnswer, module_of
from headrace.verify.trees import archive

__all__ = ["SUITE", "Report", "read_report", "run_tests"]

SUITE = SandboxSpec(
    isolation=Isolation.NAMESPACE,
    limits=BoxLimits(memory_mb=512, disk_mb=64, cpus=2.0, processes=64, open_files=256),
)
"""The sandbox of a test run: two users, no network, the host's Python."""

_HERE = Path(__file__).parent
_AGENT, _VERIFIER = "/home/agent/work", "/home/verifier/suite"
_MOST_OUTPUT = 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What ran: the status of each test id ("passed", "failed", "skipped") and a note on it.

    `broken` are test modules that could not be loaded, with the reason; `complete` is False
    where the run ended early, `outcome` then says how.
    """

    status: Mapping[str, str]
    notes: Mapping[str, str]
    broken: Mapping[str, str]
    complete: bool
    outcome: str

    def passed(self, names: tuple[str, ...]) -> int:
        """How many of these tests passed; one that is not in the report did not."""
        return sum(self.status.get(name) == "passed" for name in names)


async def run_tests(box: Sandbox, answer: RepositoryAnswer, tree: Mapping[str, str]) -> Report:
    """Run the task's tests against `tree` in `box`, which nobody has used.

    Raises SandboxFailure where the machine fails and not the candidate.
    """
    nonce, place = secrets.token_hex(16), f"/tmp/suite-{secrets.token_hex(8)}"
    theirs = {"hands.py": (_HERE / "hands.py").read_text()}
    theirs |= {f"tree/{path}": text for path, text in tree.items()}
    ours = {"runner.py": (_HERE / "runner.py").read_text()}
    ours |= {f"files/{path}": text for path, text in answer.tests.items()}
    await box.put(archive(theirs), _AGENT)
    await box.put(archive(ours), _VERIFIER, user="verifier")
    program = f"mkdir -p tree; exec python3 -I hands.py {place}/s {_AGENT}/tree"
    begin = f"({program}) </dev/null >/dev/null 2>&1 &"
    begun = await box.exec(["sh", "-c", begin], timeout_s=20.0, cwd=_AGENT)
    if not begun.ok:
        raise SandboxFailure(f"the candidate's side does not start: {begun.stderr.text[-200:]}")
    result = await box.exec(
        ["python3", "-I", "-S", "-B", f"{_VERIFIER}/runner.py"],
        stdin=json.dumps(_config(answer, nonce, f"{place}/s")).encode(),
        timeout_s=answer.run_s,
        user="verifier",
        cwd=_VERIFIER,
        limits=ExecLimits(output_bytes=_MOST_OUTPUT),
    )
    if result.outcome is Outcome.CRASH or result.exit_code == 127:
        raise SandboxFailure(f"the test runner does not run: {result.stderr.text[-200:]}")
    how = result.outcome.value
    return read_report(result.stdout.data, nonce, how, result.stderr.text[-600:])


def _config(answer: RepositoryAnswer, nonce: str, socket: str) -> dict[str, Json]:
    """What the runner is told; an attempt has no say in it. A package that holds test files only
    is the runner's own, one that has other files of the tree is the candidate's."""
    python = [path for path in answer.tests if path.endswith(".py")]
    files = {module_of(path): f"{_VERIFIER}/files/{path}" for path in python}
    candidate = _parents(path for path in answer.files if path not in answer.tests)
    spaces = _parents(answer.tests) - candidate
    theirs = {module_of(path).partition(".")[0] for path in answer.files if path.endswith(".py")}
    own = {name.partition(".")[0] for name in (*files, *spaces)} - candidate
    return {
        "nonce": nonce,
        "socket": socket,
        "root": f"{_VERIFIER}/files",
        "seconds": answer.call_s,
        "modules": list(answer.test_modules),
        "files": files,
        "spaces": sorted(spaces),
        "theirs": sorted((theirs | set(answer.modules)) - own),
    }


def _parents(paths: Iterable[str]) -> set[str]:
    """The packages of the directories above these files."""
    above = (parent for path in paths for parent in PurePosixPath(path).parents)
    return {".".join(parent.parts) for parent in above if parent.parts}


def read_report(data: bytes, nonce: str, outcome: str, words: str) -> Report:
    """The report in what the runner wrote: lines of the nonce and a JSON object; others are not
    its own. It is complete if its last count is that of the tests in it."""
    status: dict[str, str] = {}
    notes: dict[str, str] = {}
    broken: dict[str, str] = {}
    done: int | None = None
    for line in data.decode("utf-8", "replace").splitlines():
        mark, _, text = line.partition(" ")
        if mark != nonce:
            continue
        facts = json.loads(text)
        if "done" in facts:
            done = facts["done"]
        elif "module" in facts:
            broken[facts["module"]] = facts["note"]
        else:
            # A test that is reported twice counts as passed only if it passed twice.
            first = status.get(facts["id"], "passed")
            status[facts["id"]] = facts["status"] if first == "passed" else first
            notes[facts["id"]] = facts["note"]
    complete = done == len(status)
    return Report(
        status=status,
        notes={name: note for name, note in notes.items() if note},
        broken=broken,
        complete=complete,
        outcome=outcome if complete else f"{outcome}: {words}",
    )
