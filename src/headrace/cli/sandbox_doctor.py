"""What `sandbox doctor` does: which backends work here, what they give, and what it costs.

Known by the verbs `sandbox doctor` and `doctor`, which import it when they run.
"""

from __future__ import annotations

import asyncio
import subprocess
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headrace.errors import GateFailed, UsageError
from headrace.observe.console import ConsoleListener
from headrace.sandbox import conformance, registry
from headrace.sandbox.conformance import Costs, Finding, Report
from headrace.sandbox.registry import Broken, Found
from headrace.sandbox.spec import Backend, Capabilities, Isolation, SandboxFailure, SandboxRefused

if TYPE_CHECKING:
    from headrace.observe.listener import Listener
    from headrace.types import Json

__all__ = ["Health", "Look", "default_of", "examine", "program"]

_WIDTH = 80
_INDENT = 18
_VERSION_S = 5.0
_ALL_LIMITS = frozenset({"memory_mb", "disk_mb", "cpus", "processes", "open_files"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One backend. `reason` is why it does not work here, None if it does; `program` is what it
    stands on; `report` is None where nothing was checked, `unchecked` then why not.
    """

    name: str
    reason: str | None
    can: Capabilities | None = None
    program: str = ""
    report: Report | None = None
    unchecked: str = ""

    @property
    def state(self) -> Literal["ok", "fail", "no"]:
        """ "no" for one that does not work here, "fail" for one that does not keep its word."""
        if self.reason is not None:
            return "no"
        return "fail" if self.report is not None and self.report.failed else "ok"

    def json(self) -> dict[str, Json]:
        """Everything, for programs."""
        report = self.report
        costs = None if report is None or report.costs is None else asdict(report.costs)
        return {
            "name": self.name,
            "available": self.reason is None,
            "reason": self.reason,
            "program": self.program or None,
            "capabilities": None if self.can is None else _capabilities(self.can),
            "checks": None if report is None else [asdict(each) for each in report.findings],
            "costs_ms": costs,
        }

    def lines(self, *, default: bool) -> Iterator[str]:
        """For a person, in at most 80 columns."""
        name = f"{self.state:4}  {self.name}"
        if self.reason is not None or self.can is None:
            yield from _wrapped(name, self.reason or "")
            return
        about = [self.program, "the default" if default else ""]
        yield from _wrapped(name, ", ".join(filter(None, about)))
        for label, value in (*_described(self.can), *self._checked()):
            yield from _wrapped(f"      {label}", value)

    def _checked(self) -> Iterator[tuple[str, str]]:
        if self.report is None:
            yield "checks", self.unchecked
            return
        if self.report.costs is not None:
            yield "costs", _priced(self.report.costs)
        counts = Counter(each.judgement for each in self.report.findings)
        yield "checks", ", ".join(f"{count} {word}" for word, count in counts.items())
        for each in self.report.findings:
            if each.judgement in ("failed", "unchecked"):
                yield each.judgement, f"{each.name}: {each.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Every backend that was looked at, best first, and entry points that give none.

    `default` is the backend that is taken where nothing is said; `named` the one that was
    asked about.
    """

    default: str | None
    named: str | None
    looks: tuple[Look, ...]
    broken: tuple[Broken, ...]

    def json(self) -> Json:
        """Everything, for programs."""
        return {
            "default": self.default,
            "backends": [look.json() for look in self.looks],
            "broken": [asdict(each) for each in self.broken],
        }

    def text(self) -> str:
        """For a person."""
        lines = [
            line for look in self.looks for line in look.lines(default=look.name == self.default)
        ]
        for each in self.broken:
            lines += _wrapped(f"no    {each.name}", f"broken: {each.why} ({each.where})")
        return "\n".join(lines)

    def judge(self) -> None:
        """GateFailed if a check failed, SandboxFailure if nothing works that isolates."""
        failed = [look for look in self.looks if look.state == "fail"]
        if failed:
            names = ", ".join(look.name for look in failed)
            raise GateFailed(
                f"checks failed: {names}", hint="use another backend, or report what is above"
            )
        wanted = self.named or self.default
        if not any(look.name == wanted and look.reason is None for look in self.looks):
            which = (
                f"the backend {wanted} does not work"
                if wanted
                else "no backend that isolates works"
            )
            raise SandboxFailure(f"{which} here", hint="what is above says what to install")


def examine(name: str | None, *, quick: bool, every: bool, image: str | None = None) -> Health:
    """Look at every backend, or at the named one, and check the default one (or the named one,
    or with `every` all that work) in sandboxes of `image`.

    UsageError for a name that nobody offers, and if the named one needs another image.
    """
    found = registry.find()
    default = default_of(found.backends)
    backends = found.backends if name is None else [_named(name, found)]
    listener = ConsoleListener()
    looks: list[Look] = []
    try:
        for backend in backends:
            look = _look(backend)
            if look.reason is None and not quick and (every or name or backend is default):
                look = _checked(look, backend, image, listener, must=name is not None)
            looks.append(look)
    finally:
        listener.close()
    broken = found.broken if name is None else ()
    return Health(
        default=None if default is None else default.name,
        named=name,
        looks=tuple(looks),
        broken=broken,
    )


def _named(name: str, found: Found) -> Backend:
    for backend in found.backends:
        if backend.name == name:
            return backend
    for each in found.broken:
        if each.name == name:
            raise SandboxRefused(f"the backend {name} is broken: {each.why}", where=each.where)
    names = ", ".join(backend.name for backend in found.backends)
    raise UsageError(f"no sandbox backend named {name!r}", hint=f"one of: {names or 'none'}")


def default_of(backends: Sequence[Backend]) -> Backend | None:
    """The first that works here and isolates."""
    for backend in backends:
        if backend.capabilities().isolation > Isolation.TRUSTED and backend.available() is None:
            return backend
    return None


def program(backend: Backend) -> str:
    """What a backend stands on, as it calls itself: "crun 1.8.1"; "" if it says nothing."""
    path = getattr(backend, "runtime", None)
    if not isinstance(path, str):
        return ""
    try:
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=True
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return Path(path).name
    return said[0].replace("version ", "") if said else Path(path).name


def _image(kind: str) -> str:
    """As a specification writes it."""
    return {"host": "host", "dir": "dir:PATH", "*": "any"}.get(kind, f"{kind}:REF")


def _look(backend: Backend) -> Look:
    name, can = backend.name, backend.capabilities()
    command = f"headrace sandbox doctor --backend {name}"
    if not {"host", "*"} & set(can.images) and can.images:
        command += f" --image {_image(can.images[0])}"
    return Look(
        name=name,
        reason=backend.available(),
        can=can,
        program=program(backend),
        unchecked=f"none made: {command}",
    )


def _checked(
    look: Look, backend: Backend, image: str | None, listener: Listener, *, must: bool
) -> Look:
    label = f"checking {look.name}"
    listener.progress(label, 0, None)
    try:
        report = asyncio.run(
            _check(backend, image, lambda done, total: listener.progress(label, done, total))
        )
    except UsageError as error:
        if must:
            raise
        return replace(look, unchecked=f"none made: {error}")
    finally:
        listener.progress(label, 1, 1)
    return replace(look, report=report)


async def _check(backend: Backend, image: str | None, told: Callable[[int, int], None]) -> Report:
    try:
        report = await conformance.check(backend, image=image, told=told)
    except BaseException:
        await backend.aclose()
        raise
    try:
        await backend.aclose()
    except SandboxFailure as error:
        last = Finding(
            name="the end",
            says="A backend closes what serves its sandboxes.",
            judgement="failed",
            reason=str(error),
            seconds=0.0,
        )
        return replace(report, findings=(*report.findings, last))
    return report


def _capabilities(can: Capabilities) -> Json:
    return {
        "isolation": can.isolation.label,
        "limits": sorted(can.limits),
        "networks": sorted(can.networks),
        "snapshot": can.snapshot,
        "fork": can.fork,
        "users": can.users,
        "images": list(can.images),
        "recycle": can.recycle,
        "renames_frozen": can.renames_frozen,
    }


def _described(can: Capabilities) -> list[tuple[str, str]]:
    missing = sorted(_ALL_LIMITS - can.limits)
    limits = f"not {', '.join(missing)}" if missing and can.limits else "all"
    renames = "" if can.renames_frozen else "; directories of a snapshot are copied by mv"
    return [
        ("isolation", can.isolation.label),
        ("limits", limits if can.limits else "none"),
        ("networks", ", ".join(sorted(can.networks))),
        ("trees", f"snapshot {can.snapshot or 'none'}, fork {can.fork or 'none'}{renames}"),
        ("users", "agent and verifier apart" if can.users else "one identity"),
        ("images", ", ".join(_image(kind) for kind in can.images)),
    ]


def _priced(costs: Costs) -> str:
    return ", ".join(
        f"{name} {cost:.2g} ms" if cost < 10 else f"{name} {cost:.0f} ms"
        for name, cost in asdict(costs).items()
        if cost is not None
    )


def _wrapped(label: str, text: str) -> list[str]:
    """A label and a text beside it, in lines that a narrow terminal does not break."""
    return textwrap.wrap(
        " ".join(text.split()),
        _WIDTH - 1,
        initial_indent=f"{label:{_INDENT - 1}} ",
        subsequent_indent=" " * _INDENT,
    ) or [label]
