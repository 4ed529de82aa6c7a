"""What `sandbox reap` does: the reaper for every lease, then each backend's own sweep.

Known by `headrace.cli.sandbox` only, which imports it when the verb runs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.sandbox import registry
from headrace.sandbox.pool import reaper
from headrace.sandbox.pool.leases import Leases
from headrace.sandbox.pool.reaper import Reaped, Unreaped
from headrace.sandbox.spec import Backend, SandboxFailure
from headrace.sandbox.state import state_root

if TYPE_CHECKING:
    from headrace.types import Json

__all__ = ["Swept", "sweep"]

_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What went and what did not: sandboxes by lease, and files that no lease names."""

    reaped: Reaped
    backend_of: dict[str, str]
    leftovers: tuple[tuple[str, str], ...]
    failures: tuple[Unreaped, ...]

    @property
    def removed(self) -> list[list[str]]:
        """Rows of what is gone and its backend."""
        gone = [[id, self.backend_of.get(id, "-")] for id in self.reaped.gone]
        return [*gone, *(list(left) for left in self.leftovers)]

    @property
    def failed(self) -> list[Unreaped]:
        """What is still there, and why."""
        late = [
            Unreaped(id, self.backend_of.get(id, "-"), f"not reached within {_WITHIN_S:g} s")
            for id in self.reaped.left
        ]
        return [*self.reaped.failed, *self.reaped.elsewhere, *late, *self.failures]

    @property
    def clean(self) -> bool:
        """Whether nothing is left."""
        return not self.failed

    @property
    def json(self) -> Json:
        """Everything, for programs."""
        return {
            "removed": [{"id": id, "backend": backend} for id, backend in self.removed],
            "failed": [asdict(each) for each in self.failed],
            "seconds": self.reaped.seconds,
        }

    def judge(self) -> None:
        """SandboxFailure that names what would not go."""
        if self.failed:
            named = "; ".join(f"{each.id} ({each.backend}): {each.why}" for each in self.failed)
            raise SandboxFailure(
                f"{len(self.failed)} would not go: {named}",
                hint="mend that, then again: headrace sandbox reap",
            )


def sweep() -> Swept:
    """Remove every orphan and what backends find without a lease (StorageError: no leases)."""
    found = registry.find()
    with Leases() as leases:
        backend_of = {lease.id: lease.backend for lease in leases.orphans()}
        before = {backend.name: _entries(backend) for backend in found.backends}
        reaped = reaper.reap(found.backends, leases, within_s=_WITHIN_S)
    failures: list[Unreaped] = []
    for backend in found.backends:
        if backend.available() is not None:
            continue
        try:
            backend.reap([])
        except (HeadraceError, OSError) as error:
            failures.append(Unreaped("leftovers", backend.name, str(error)))
    leftovers = [
        (name, backend.name)
        for backend in found.backends
        for name in sorted(before[backend.name] - _entries(backend) - set(reaped.gone))
    ]
    return Swept(
        reaped=reaped,
        backend_of=backend_of,
        leftovers=tuple(leftovers),
        failures=tuple(failures),
    )


def _entries(backend: Backend) -> set[str]:
    """The directories of its managers or sandboxes, as `headrace.sandbox.state` lays them out."""
    home = state_root() / backend.name
    return {path.name for path in home.iterdir()} if home.is_dir() else set()
