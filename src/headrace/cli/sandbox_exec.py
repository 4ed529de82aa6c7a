"""What `sandbox exec` does: one command in a fresh sandbox, and its end told to a person.

Known by `headrace.cli.sandbox` only, which imports it when the verb runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import select
import signal
import sys
import tarfile
import tempfile
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.cli.output import relay, report, tell
from headrace.errors import HeadraceError, UsageError
from headrace.sandbox import registry
from headrace.sandbox.pool.leases import Lease, Leases, State
from headrace.sandbox.spec import (
    Backend,
    BoxLimits,
    ExecLimits,
    Mount,
    Network,
    Outcome,
    Result,
    Sandbox,
    SandboxFailure,
    SandboxSpec,
)

__all__ = [
    "ENDINGS",
    "Command",
    "Ended",
    "lifetime_s",
    "limits_of",
    "mount_of",
    "network_of",
    "read_stdin",
    "run",
    "show",
]

ENDINGS = {
    Outcome.PROCESSES: 121,
    Outcome.DISK: 122,
    Outcome.OUTPUT: 123,
    Outcome.TIMEOUT: 124,
    Outcome.MEMORY: 137,
}
"""Exit codes for ends that are not the command's own; 124 and 137 as other tools have them."""

_MOST_BYTES = 64 * 2**20
_EXEC_LIMITS = ExecLimits(output_bytes=2 * _MOST_BYTES, flood_bytes=_MOST_BYTES)
_MARGIN_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run, in what; `files` of the host are copied into its working directory first."""

    argv: tuple[str, ...]
    spec: SandboxSpec
    timeout_s: float
    files: tuple[Path, ...] = ()
    stdin: bytes = b""


@dataclass(frozen=True, slots=True)
class Ended:
    """The result, and why the sandbox could not be removed, if so: its lease names it still."""

    result: Result
    unclosed: SandboxFailure | None = None


# --- what was asked for --------------------------------------------------------------------


def limits_of(
    *, memory_mb: int | None, disk_mb: int | None, cpus: float | None, processes: int | None
) -> BoxLimits:
    """The limits with defaults where nothing is said: files may fill half of the memory."""
    default = BoxLimits()
    memory = memory_mb or (default.memory_mb if disk_mb is None else max(512, 2 * disk_mb))
    disk = max(1, min(default.disk_mb, memory // 2)) if disk_mb is None else disk_mb
    return BoxLimits(
        memory_mb=memory,
        disk_mb=disk,
        cpus=default.cpus if cpus is None else cpus,
        processes=default.processes if processes is None else processes,
    )


def network_of(kind: str | None, allow: Sequence[str]) -> Network:
    """`--network` and `--allow` as one policy (UsageError if they contradict each other)."""
    if allow and kind is None:
        return Network(kind="allow-list", allow=tuple(allow))
    if allow:
        raise UsageError(
            f"--network {kind} and --allow exclude each other",
            hint="--allow alone reaches the named hosts and no others",
        )
    if kind not in (None, "none", "full"):
        raise UsageError(f"no network {kind!r}", where="--network", hint="one of: none, full")
    return Network(kind="full" if kind == "full" else "none")


def mount_of(text: str) -> Mount:
    """`HOST:INSIDE` (UsageError if it is not that)."""
    source, colon, target = text.rpartition(":")
    path = Path(source).expanduser().absolute()
    if not (colon and source and target.startswith("/")):
        raise UsageError(
            f"no mount: {text!r}", where="--mount", hint="HOST:INSIDE, such as ./data:/data"
        )
    if not path.is_dir():
        raise UsageError("not a directory", where=str(path), hint="--file PATH copies a file in")
    return Mount(path, target)


def lifetime_s(timeout_s: float) -> float:
    """How long a sandbox for one command may exist."""
    return timeout_s + _MARGIN_S


def read_stdin(*, within_s: float) -> bytes:
    """All of standard input, unless a person sits there.

    UsageError if it does not end in time or is larger than 64 MiB.
    """
    descriptor = 0
    if os.isatty(descriptor):
        return b""
    deadline = time.monotonic() + within_s
    data = bytearray()
    while select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return bytes(data)
        data += piece
        if len(data) > _MOST_BYTES:
            raise UsageError(
                f"standard input is larger than {_MOST_BYTES >> 20} MiB",
                hint="--file PATH copies a file in",
            )
    raise UsageError(
        f"standard input did not end within {within_s:g} s",
        hint="headrace sandbox exec ... < /dev/null, if the command needs none",
    )


# --- doing it ------------------------------------------------------------------------------


def run(command: Command, backend: Backend) -> Ended:
    """Run it in a sandbox that exists for this command only, under a lease.

    Raises SandboxRefused, SandboxFailure, or UsageError for files that cannot be copied in.
    """
    with Leases() as leases:
        expires = leases.clock() + command.spec.lifetime_s
        digest = registry.spec_digest(command.spec)
        id = f"exec-{secrets.token_hex(6)}"
        (lease,) = leases.record([id], backend=backend.name, spec=digest, expires=expires)
        return asyncio.run(_run(command, backend, leases, lease))


async def _run(command: Command, backend: Backend, leases: Leases, lease: Lease) -> Ended:
    try:
        box = await backend.create(command.spec, id=lease.id)
        lease = leases.advance(lease, State.LEASED)
        await _copy_in(command.files, box)
        result = await box.exec(
            command.argv, stdin=command.stdin, timeout_s=command.timeout_s, limits=_EXEC_LIMITS
        )
    except BaseException:
        await backend.aclose()
        leases.forget(lease)
        raise
    try:
        await backend.aclose()
    except SandboxFailure as failure:
        return Ended(result, failure)
    leases.forget(lease)
    return Ended(result)


async def _copy_in(files: Sequence[Path], box: Sandbox) -> None:
    for path in files:
        with _archive(path) as archive:
            await box.put(archive)


@contextlib.contextmanager
def _archive(path: Path) -> Generator[Path]:
    """A tar archive of a file or directory, under its own name."""
    path = path.expanduser().absolute()
    if not path.exists():
        raise UsageError("there is no such file", where=str(path), hint="--file PATH, on this host")
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            archive.add(path, arcname=path.name)
        file.flush()
        yield Path(file.name)


# --- telling it ----------------------------------------------------------------------------


def show(ended: Ended, command: Command) -> int:
    """Write the streams, say what is not plain from them, and return the exit code."""
    result = ended.result
    relay(result.stdout.data, sys.stdout)
    relay(result.stderr.data, sys.stderr)
    if ended.unclosed is not None:
        tell(f"warning: the sandbox was not removed: {ended.unclosed}; headrace sandbox reap")
    if result.outcome is Outcome.CRASH:
        raise SandboxFailure(
            "the sandbox died under the command; nobody can say why", hint="run it again"
        )
    if result.outcome is not Outcome.RESULT:
        report(_explained(result.outcome, command))
        return ENDINGS[result.outcome]
    if result.oom:
        tell("note: the kernel killed a process of it at the memory limit; the rest went on")
    if result.signal is not None:
        tell(f"ended by signal {result.signal} ({signal.strsignal(result.signal)})")
        return 128 + result.signal
    return result.exit_code or 0


def _explained(outcome: Outcome, command: Command) -> HeadraceError:
    limits = command.spec.limits
    said = {
        Outcome.TIMEOUT: (
            f"its time was over after {command.timeout_s:g} s; all that it started was killed",
            "--timeout S gives it longer",
        ),
        Outcome.MEMORY: (
            f"the kernel killed it at the memory limit of {limits.memory_mb} MiB",
            "--memory MB gives it more; files that it writes count too",
        ),
        Outcome.PROCESSES: (
            f"it failed after it was refused a process at the limit of {limits.processes}",
            "--processes N allows more; threads count too",
        ),
        Outcome.DISK: (
            f"it failed with its disk of {limits.disk_mb} MiB full",
            "--disk MB gives it more",
        ),
        Outcome.OUTPUT: (
            f"it wrote more than {_MOST_BYTES >> 20} MiB and was killed",
            "write to a file inside: sh -c 'COMMAND > FILE'",
        ),
    }
    what, hint = said[outcome]
    return HeadraceError(what, hint=hint)
