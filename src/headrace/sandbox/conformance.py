"""Does a backend do what it declares? Runs every promise of `contract` against it.

Each promise is judged by what the backend declares in its `Capabilities`: a declared feature
must hold, and what is not declared must be refused. For authors of backends:

    report = asyncio.run(check(MyBackend(), image="python:3.12"))
    assert report.ok, report.failed

May be known by the command line, and by tests of any backend; knows no backend.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Literal, TypeVar

from headrace.errors import HeadraceError, UsageError
from headrace.sandbox.contract import commands, files, limits, lives, networks, trees
from headrace.sandbox.contract.kit import WRONG, Broken, Lab, Promise, Unchecked
from headrace.sandbox.spec import Backend, Capabilities, Sandbox, SandboxRefused

__all__ = ["PROMISES", "Costs", "Finding", "Report", "Row", "check", "table"]

PROMISES: tuple[Promise, ...] = (
    *commands.PROMISES,
    *limits.PROMISES,
    *files.PROMISES,
    *trees.PROMISES,
    *lives.PROMISES,
    *networks.PROMISES,
)
"""All of them, in the order in which they are checked."""

_AT_ONCE = 4
_ROUNDS = 3
_EXECS = 5

T = TypeVar("T")
Judgement = Literal["passed", "failed", "undeclared", "unchecked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One promise: its `name`, what it `says`, and how it was judged.

    "undeclared": the backend does not claim it (and refuses it, where that can be asked);
    "unchecked": it cannot be judged on this machine or with this image. Neither is a pass.
    `reason` is empty for one that passed.
    """

    name: str
    says: str
    judgement: Judgement
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Medians in milliseconds; None for what the backend does not do. Of `fork`: one child."""

    create: float
    exec: float
    close: float
    snapshot: float | None = None
    restore: float | None = None
    fork: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a backend declares, what was found, and what it costs (None: not measured).

    >>> can = Capabilities(
    ...     isolation=Isolation.TRUSTED, limits=frozenset(), networks=frozenset({"full"})
    ... )
    >>> Report(backend="mine", image="host", capabilities=can, findings=(), costs=None).ok
    True
    """

    backend: str
    image: str
    capabilities: Capabilities
    findings: tuple[Finding, ...]
    costs: Costs | None

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The promises that were broken."""
        return tuple(found for found in self.findings if found.judgement == "failed")

    @property
    def ok(self) -> bool:
        """Whether none was."""
        return not self.failed


async def check(
    backend: Backend,
    *,
    image: str | None = None,
    only: Collection[str] | None = None,
    told: Callable[[int, int], None] = lambda done, total: None,
    at_once: int = _AT_ONCE,
    measure: bool = True,
) -> Report:
    """Hold a backend to its word, `at_once` promises at a time, in sandboxes of `image`.

    Without `image`, "host" where the backend knows it. `only` restricts the promises by name.
    Without `measure` there are no costs. `told` hears before each how many were begun, and of
    how many.
    Takes some seconds to some minutes. Everything it made is closed again; the backend is not.
    Raises SandboxRefused if the backend does not work here, UsageError for an unknown promise
    or without an image.
    """
    if reason := backend.available():
        raise SandboxRefused(f"the backend {backend.name} does not work here: {reason}")
    capabilities = backend.capabilities()
    if image is None:
        if not {"host", "*"} & set(capabilities.images):
            raise UsageError(
                f"the backend {backend.name} needs an image to be checked with",
                hint=f"it knows {', '.join(capabilities.images)}",
            )
        image = "host"
    chosen = _chosen(only)
    findings = [await _judge(_WORKS, Lab(backend, image))]
    if findings[0].judgement == "passed":
        findings += await _judged(chosen, backend, image, at_once=at_once, told=told)
    working = findings[0].judgement == "passed"
    costs = await _measured(backend, image) if working and measure else None
    return Report(
        backend=backend.name,
        image=image,
        capabilities=capabilities,
        findings=tuple(findings),
        costs=costs,
    )


async def _judged(
    promises: list[Promise],
    backend: Backend,
    image: str,
    *,
    at_once: int,
    told: Callable[[int, int], None],
) -> list[Finding]:
    room = asyncio.Semaphore(at_once)
    begun = itertools.count()

    async def judge(promise: Promise) -> Finding:
        async with room:
            told(next(begun), len(promises))
            return await _judge(promise, Lab(backend, image))

    return await asyncio.gather(*(judge(promise) for promise in promises))


def _chosen(only: Collection[str] | None) -> list[Promise]:
    if only is None:
        return list(PROMISES)
    unknown = set(only) - {promise.name for promise in PROMISES}
    if unknown:
        raise UsageError(
            f"no promise {min(unknown)!r}",
            hint=", ".join(promise.name for promise in PROMISES),
        )
    return [promise for promise in PROMISES if promise.name in only]


async def _make_and_run(lab: Lab) -> None:
    box = await lab.sandbox()
    # Authors of backends may have no type checker.
    if not isinstance(box, Sandbox):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise Broken("what it creates is no Sandbox")
    result = await box.exec(["sh", "-c", "echo it works"])
    if result.stdout.data != b"it works\n":
        raise Broken(f"a command said {result.stdout.text!r} and {result.stderr.text[-300:]!r}")


_WORKS = Promise(
    name="it works",
    says="A sandbox is made and a command runs in it.",
    run=_make_and_run,
    lacks=lambda _: "",
    refused=None,
    deadline_s=120.0,
)


async def _judge(promise: Promise, lab: Lab) -> Finding:
    lacks = promise.lacks(lab.capabilities)
    began = time.monotonic()
    judgement: Judgement = "passed"
    reason = ""
    if not lacks:
        judgement, reason = await _tried(promise, promise.run(lab))
    else:
        judgement, reason = "undeclared", lacks
        if promise.refused is not None:
            refusal, why = await _tried(promise, promise.refused(lab))
            if refusal == "failed":
                judgement, reason = "failed", f"{lacks}, and yet: {why}"
    tidied, untidy = await _tried(promise, lab.tidy())
    if tidied == "failed" and judgement != "failed":
        judgement, reason = "failed", f"closing afterwards: {untidy}"
    return Finding(
        name=promise.name,
        says=promise.says,
        judgement=judgement,
        reason=reason,
        seconds=time.monotonic() - began,
    )


async def _tried(promise: Promise, work: Awaitable[None]) -> tuple[Judgement, str]:
    try:
        async with asyncio.timeout(promise.deadline_s):
            await work
    except Broken as broken:
        return "failed", str(broken)
    except Unchecked as unchecked:
        return "unchecked", str(unchecked)
    except TimeoutError:
        return "failed", f"it took more than {promise.deadline_s:.0f} s"
    except (HeadraceError, *WRONG) as error:
        return "failed", f"{type(error).__name__}: {error}"
    return "passed", ""


# --- costs ---------------------------------------------------------------------------------


class _Clock:
    """Milliseconds of things that are done several times, by their name."""

    def __init__(self) -> None:
        self._taken: dict[str, list[float]] = {}

    async def of(self, name: str, work: Awaitable[T]) -> T:
        began = time.perf_counter()
        done = await work
        self._taken.setdefault(name, []).append(1000 * (time.perf_counter() - began))
        return done

    def median(self, name: str) -> float | None:
        taken = self._taken.get(name)
        return statistics.median(taken) if taken else None


async def _measured(backend: Backend, image: str) -> Costs | None:
    """Medians of a few; None if something went wrong, which is a finding elsewhere."""
    clock, lab = _Clock(), Lab(backend, image)
    try:
        for _ in range(_ROUNDS):
            await _round(lab, clock)
    except (HeadraceError, *WRONG):
        return None
    finally:
        await lab.tidy()
    create, command, close = (clock.median(name) for name in ("create", "exec", "close"))
    assert create is not None
    assert command is not None
    assert close is not None
    return Costs(
        create=create,
        exec=command,
        close=close,
        snapshot=clock.median("snapshot"),
        restore=clock.median("restore"),
        fork=clock.median("fork"),
    )


async def _round(lab: Lab, clock: _Clock) -> None:
    box = await clock.of("create", lab.sandbox())
    for _ in range(_EXECS):
        await clock.of("exec", box.exec(["true"]))
    if lab.capabilities.snapshot:
        ref = await clock.of("snapshot", box.snapshot())
        await clock.of("restore", box.restore(ref))
    if lab.capabilities.fork:
        for child in await clock.of("fork", box.fork(1)):
            lab.keep(child)
    await clock.of("close", box.close())


# --- for people ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: what it is about, its value, and a remark."""

    kind: Literal["capability", "promise", "cost"]
    name: str
    value: str
    note: str = ""


def table(report: Report) -> list[Row]:
    """A report as rows: what is declared, what was found, what it costs."""
    can = report.capabilities
    frozen = "" if can.renames_frozen else "rename(2) of a directory in one answers EXDEV"
    rows = [
        Row("capability", "isolation", can.isolation.label),
        Row("capability", "limits", ", ".join(sorted(can.limits)) or "none"),
        Row("capability", "networks", ", ".join(sorted(can.networks)) or "none at all"),
        Row("capability", "snapshot", can.snapshot or "no", frozen),
        Row("capability", "fork", can.fork or "no"),
        Row("capability", "users", "agent and verifier" if can.users else "one"),
        Row("capability", "images", ", ".join(can.images)),
        Row("capability", "recycle", "yes" if can.recycle else "no"),
    ]
    rows += [
        Row("promise", found.name, found.judgement, found.reason or found.says)
        for found in report.findings
    ]
    if report.costs is not None:
        for name in ("create", "exec", "snapshot", "restore", "fork", "close"):
            cost: float | None = getattr(report.costs, name)
            rows.append(Row("cost", name, "-" if cost is None else f"{cost:.1f} ms"))
    return rows
