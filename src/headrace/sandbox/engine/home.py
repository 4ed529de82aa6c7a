"""What a sandbox of an engine needs of its backend, and gets when its container runs.

May be known by the engine backend only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.sandbox.engine.cli import Engine
from headrace.sandbox.engine.view import BoxView
from headrace.sandbox.spec import SandboxSpec

if TYPE_CHECKING:
    from headrace.sandbox.engine.box import EngineSandbox

__all__ = ["Home", "Started"]


@dataclass(frozen=True, slots=True)
class Started:
    """A container that runs: how the host sees it, the archive that its working directory
    starts with, and its image."""

    view: BoxView
    seed: Path | None
    image: str


class Home(Protocol):
    """What a sandbox needs of its backend."""

    @property
    def engine(self) -> Engine: ...

    @property
    def snapshots(self) -> Path: ...

    @property
    def proved(self) -> set[str]: ...

    def start(self, box: EngineSandbox) -> Started: ...

    def discard(self, box: EngineSandbox) -> None: ...

    def forget(self, box: EngineSandbox) -> None: ...

    async def begin(
        self, spec: SandboxSpec, id: str, *, tree: Path | None, depth: int
    ) -> EngineSandbox: ...
