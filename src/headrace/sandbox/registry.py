"""Backends found by entry point, in order of preference, and the choice among them.

What a specification asks for is given by a backend that has it, or refused with every reason;
nothing is degraded. Nothing here imports a backend by name, and a broken one of somebody else's
hurts only those who ask for it.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from headrace.errors import UsageError
from headrace.sandbox.spec import (
    Backend,
    BoxLimits,
    Isolation,
    Mount,
    Network,
    SandboxRefused,
    SandboxSpec,
)
from headrace.types import SandboxNeed, content_hash

__all__ = [
    "GROUP",
    "PREFERENCE",
    "Broken",
    "Choice",
    "Found",
    "backends",
    "choose",
    "find",
    "fitting",
    "spec_digest",
    "spec_of",
]

GROUP = "headrace.sandboxes"
PREFERENCE = ("oci", "sandlock", "podman", "docker", "subprocess")
"""Those of headrace itself, best first; those of others follow by name."""

_BROKEN = (
    ImportError,
    AttributeError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class Broken:
    """An entry point that gives no backend: its `name`, what it says (`where`), and why."""

    name: str
    where: str
    why: str


@dataclass(frozen=True, slots=True)
class Found:
    """The installed backends in order of preference, and those that are broken."""

    backends: tuple[Backend, ...]
    broken: tuple[Broken, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which backends can give a specification, best first, and in words why others cannot."""

    backends: tuple[Backend, ...]
    reasons: tuple[str, ...]

    def best(self, spec: SandboxSpec) -> Backend:
        """The first; SandboxRefused with every reason if there is none."""
        if self.backends:
            return self.backends[0]
        raise SandboxRefused(
            f"no backend gives isolation {spec.isolation.label} of image {spec.image!r} as asked: "
            + ("; ".join(self.reasons) or "none is installed"),
            hint="headrace sandbox doctor",
        )


def find(points: Iterable[EntryPoint] | None = None) -> Found:
    """All backends of the entry-point group; `points` replaces the installed ones (tests)."""
    found: dict[str, Backend] = {}
    broken: list[Broken] = []
    for point in entry_points(group=GROUP) if points is None else points:
        loaded = _load(point)
        if isinstance(loaded, Broken):
            broken.append(loaded)
        elif point.name in found:
            broken.append(Broken(point.name, point.value, "another distribution offers it too"))
        else:
            found[point.name] = loaded
    return Found(tuple(found[name] for name in sorted(found, key=_rank)), tuple(broken))


def backends(points: Iterable[EntryPoint] | None = None) -> list[Backend]:
    """The backends that can be loaded, in order of preference, whether they work here or not."""
    return list(find(points).backends)


def choose(
    spec: SandboxSpec,
    names: Sequence[str] | None = None,
    *,
    points: Iterable[EntryPoint] | None = None,
) -> Backend:
    """The best backend that works here and gives all that `spec` asks for.

    `names` restricts the choice and sets its order. Raises UsageError for a name that nobody
    offers, SandboxRefused naming for every backend what it lacks or why it is unavailable.
    """
    found = find(points)
    by_name = {backend.name: backend for backend in found.backends}
    broken = {item.name: item for item in found.broken}
    reasons = [f"{item.name}: broken: {item.why}" for item in found.broken]
    if names is None:
        names = list(by_name)
    for name in names:
        if name not in by_name and name not in broken:
            near = difflib.get_close_matches(name, [*by_name, *broken], n=1, cutoff=0.0)
            hint = f"did you mean {near[0]}?" if near else "none is installed"
            raise UsageError(f"no sandbox backend named {name!r}", hint=hint)
    choice = fitting([by_name[name] for name in names if name in by_name], spec)
    return Choice(choice.backends, (*choice.reasons, *reasons)).best(spec)


def fitting(candidates: Sequence[Backend], spec: SandboxSpec) -> Choice:
    """Those of `candidates` that work here and give all of `spec`. May start programs."""
    fit: list[Backend] = []
    reasons: list[str] = []
    for backend in candidates:
        lacks = backend.capabilities().missing(spec)
        unavailable = None if lacks else backend.available()
        if lacks:
            reasons.append(f"{backend.name}: lacks {', '.join(lacks)}")
        elif unavailable is not None:
            reasons.append(f"{backend.name}: {unavailable}")
        else:
            fit.append(backend)
    return Choice(tuple(fit), tuple(reasons))


def spec_of(
    need: SandboxNeed,
    *,
    network: Network | None = None,
    limits: BoxLimits | None = None,
    mounts: Sequence[Mount] = (),
    env: Sequence[tuple[str, str]] = (),
    init: Sequence[str] = (),
    lifetime_s: float = 3600.0,
) -> SandboxSpec:
    """The specification of what a task needs. Its memory is that of the need, whatever `limits`
    says, and files may fill half of it at most.

    >>> spec_of(SandboxNeed(isolation="process", memory_mb=256)).limits.disk_mb
    128
    """
    limits = limits or BoxLimits()
    disk_mb = max(1, min(limits.disk_mb, need.memory_mb // 2))
    return SandboxSpec(
        image=need.image or "host",
        isolation=Isolation.of(need.isolation),
        limits=dataclasses.replace(limits, memory_mb=need.memory_mb, disk_mb=disk_mb),
        network=network or Network(),
        mounts=tuple(mounts),
        env=tuple(env),
        init=tuple(init),
        lifetime_s=lifetime_s,
    )


def spec_digest(spec: SandboxSpec) -> str:
    """The content hash of a specification: 16 hex digits, equal for equal ones."""
    fields = dataclasses.asdict(spec)
    fields["mounts"] = [[str(mount.source), mount.target] for mount in spec.mounts]
    return content_hash(fields)


def _load(point: EntryPoint) -> Backend | Broken:
    try:
        backend = point.load()()
    except _BROKEN as error:
        return Broken(point.name, point.value, f"{type(error).__name__}: {error}")
    if not isinstance(backend, Backend):
        return Broken(point.name, point.value, "what it gives is no sandbox backend")
    if backend.name != point.name:
        return Broken(point.name, point.value, f"it calls itself {backend.name!r}")
    return backend


def _rank(name: str) -> tuple[int, str]:
    place = PREFERENCE.index(name) if name in PREFERENCE else len(PREFERENCE)
    return place, name
