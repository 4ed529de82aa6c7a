"""What the promises of a backend are made of: a laboratory of sandboxes, and ways to end.

A promise is a function that uses sandboxes and returns, or raises `Broken` (the backend does
not hold it) or `Unchecked` (it cannot be judged here; never a pass). Programs inside are POSIX
`sh` and its usual companions, so that any image with those will do. May be known by the
conformance suite; knows no backend.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.sandbox.spec import (
    Backend,
    BoxLimits,
    Capabilities,
    Isolation,
    Network,
    Result,
    Sandbox,
    SandboxRefused,
    SandboxSpec,
)

__all__ = [
    "LIMITS",
    "WRONG",
    "Broken",
    "Lab",
    "Promise",
    "Unchecked",
    "beats",
    "expect",
    "gone",
    "heart",
    "promise",
    "raises",
    "succeed",
    "survivors",
]

LIMITS = BoxLimits(memory_mb=192, disk_mb=48, cpus=1.0, processes=48, open_files=200)
"""Of every sandbox that is made here, where nothing else is said: small enough to be met."""

WRONG = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a backend with a mistake in it may raise; it fails the promise, not the suite."""

_DEADLINE_S = 60.0
_SHELL_S = 30.0
_BEAT_S = 0.4
_PATIENCE_S = 5.0
_GRACE_S = 1.0
_STEP_S = 0.02


class Broken(Exception):
    """The backend does not do what it promises; the text says how."""


class Unchecked(Exception):
    """Whether it does cannot be told here; the text says why."""


class Lab:
    """Sandboxes of one backend for one promise; `tidy` closes them.

    `spec` is what they are made to: the backend's strongest class, or trusted if it enforces
    too few limits for any other. Where nothing is `isolated`, the absolute paths that a command
    names are the machine's.
    """

    def __init__(self, backend: Backend, image: str) -> None:
        self.backend = backend
        self.capabilities = backend.capabilities()
        can = self.capabilities
        network = Network(kind="none" if "none" in can.networks or not can.networks else "full")
        spec = SandboxSpec(
            image=image, isolation=can.isolation, limits=LIMITS, network=network, lifetime_s=600
        )
        weak = dataclasses.replace(spec, isolation=Isolation.TRUSTED)
        self.spec = weak if can.missing(spec) else spec
        self.isolated = can.isolation > Isolation.TRUSTED
        self._open: list[Sandbox] = []

    def new_id(self) -> str:
        """A name that no sandbox had."""
        return f"conform-{secrets.token_hex(6)}"

    async def sandbox(self, **changes: Any) -> Sandbox:
        """A new sandbox to `spec` with changes."""
        made = await self.backend.create(
            dataclasses.replace(self.spec, **changes), id=self.new_id()
        )
        return self.keep(made)

    def keep(self, sandbox: Sandbox) -> Sandbox:
        """Have it closed by `tidy`."""
        self._open.append(sandbox)
        return sandbox

    async def refuses(self, what: str, **changes: Any) -> None:
        """Broken unless a sandbox to `spec` with these changes is refused."""

        async def make() -> None:
            await self.sandbox(**changes)

        await raises(SandboxRefused, make(), f"a sandbox with {what}")

    async def tidy(self) -> None:
        """Close what is open."""
        while self._open:
            await self._open.pop().close()


Check = Callable[[Lab], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """`name` as in tables; `says` what is promised; `lacks` tells, of what a backend declares,
    which declaration is missing for it to apply ("" if none is); `refused` is then checked
    instead, if there is one."""

    name: str
    says: str
    run: Check
    lacks: Callable[[Capabilities], str]
    refused: Check | None
    deadline_s: float


def promise(
    *,
    lacks: Callable[[Capabilities], str] = lambda _: "",
    refused: Check | None = None,
    deadline_s: float = _DEADLINE_S,
) -> Callable[[Check], Promise]:
    """Makes a promise of a function: its name, and what its docstring says."""

    def make(run: Check) -> Promise:
        return Promise(
            name=getattr(run, "__name__", "").replace("_", " "),
            says=" ".join((run.__doc__ or "").split()),
            run=run,
            lacks=lacks,
            refused=refused,
            deadline_s=deadline_s,
        )

    return make


# --- asking --------------------------------------------------------------------------------


def expect(holds: bool, why_not: str) -> None:
    """Broken unless it holds."""
    if not holds:
        raise Broken(why_not)


async def succeed(
    box: Sandbox, script: str, *arguments: str, timeout_s: float = _SHELL_S, **rest: Any
) -> Result:
    """The result of a shell script that must end with 0."""
    result = await box.exec(["sh", "-c", script, "sh", *arguments], timeout_s=timeout_s, **rest)
    if not result.ok:
        said = (result.stderr.text or result.stdout.text)[-300:].strip()
        end = f"signal {result.signal}" if result.exit_code is None else f"code {result.exit_code}"
        raise Broken(f"{script[:100]!r} ended as {result.outcome} with {end}: {said}")
    return result


async def raises(kind: type[Exception], work: Awaitable[object], what: str) -> None:
    """Broken unless `work` raises that kind of error."""
    try:
        await work
    except kind:
        return
    except WRONG as error:
        raise Broken(
            f"{what}: {type(error).__name__} instead of {kind.__name__}: {error}"
        ) from error
    raise Broken(f"{what}: no {kind.__name__}")


# --- processes that go on ------------------------------------------------------------------


def heart(mark: str, file: str = "beat") -> str:
    """A shell command that writes to `file` for ever, deaf to polite signals, and shows `mark`
    in its command line."""
    loop = f'trap "" HUP INT TERM; while :; do echo . >> {file}; sleep 0.05; done'
    return f"sh -c '{loop}' {mark}"


async def beats(box: Sandbox, file: str = "beat", *, hoped: bool) -> bool:
    """Whether a heart is writing to `file`. `hoped`: wait some seconds for it to begin."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + (_PATIENCE_S if hoped else 0.0)
    while True:
        before = await _size(box, file)
        await asyncio.sleep(_BEAT_S)
        if await _size(box, file) > before:
            return True
        if loop.time() > deadline:
            return False


async def _size(box: Sandbox, file: str) -> int:
    try:
        return len(await box.get_file(file))
    except UsageError:
        return 0


def survivors(mark: str) -> list[int]:
    """Processes of this machine with `mark` in their command line; none of another machine."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in line:
            found.append(int(entry.name))
    return found


async def gone(marks: Sequence[str], when: str) -> None:
    """Broken if a process with one of the marks lives on for a second."""
    deadline = asyncio.get_running_loop().time() + _GRACE_S
    while left := [pid for mark in marks for pid in survivors(mark)]:
        if asyncio.get_running_loop().time() > deadline:
            raise Broken(f"{len(left)} processes are alive {when}")
        await asyncio.sleep(_STEP_S)
