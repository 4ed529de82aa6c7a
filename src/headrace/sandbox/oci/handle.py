"""What the owner of an oci sandbox holds: a box under one epoch.

When the box is recycled the old handle is stale, and every call on it raises.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from headrace.errors import UsageError
from headrace.sandbox.capture import stdin_file
from headrace.sandbox.oci import wire
from headrace.sandbox.oci.box import Box
from headrace.sandbox.oci.commands import Command, move_file
from headrace.sandbox.oci.control import Died
from headrace.sandbox.spec import (
    ExecLimits,
    Result,
    Sandbox,
    SandboxFailure,
    SandboxGone,
    SandboxSpec,
    SnapshotRef,
    User,
)

__all__ = ["OciSandbox"]

_DEFAULT = ExecLimits()


class OciSandbox:
    """A box under one epoch; see `headrace.sandbox.spec.Sandbox`."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._epoch = box.epoch

    @property
    def id(self) -> str:
        return self._box.id

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def spec(self) -> SandboxSpec:
        return self._box.spec

    @property
    def box(self) -> Box:
        """The container behind this handle, while the handle is the current one."""
        return self._live()

    def _live(self) -> Box:
        box = self._box
        if box.closed or box.epoch != self._epoch or not box.control.alive:
            why = "closed" if box.closed else "lost" if box.epoch == self._epoch else "another's"
            raise SandboxGone(f"sandbox {box.id} is {why}", hint="take a new one")
        return box

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: User = "agent",
        limits: ExecLimits = _DEFAULT,
    ) -> Result:
        command = Command(self._live(), limits)
        return await command.run(argv, stdin, timeout_s, env or {}, cwd, user)

    async def put(self, archive: Path | bytes, to: str = "", *, user: User = "agent") -> None:
        source = (
            stdin_file(archive)
            if isinstance(archive, bytes)
            else os.open(archive, os.O_RDONLY | os.O_CLOEXEC)
        )
        try:
            await self._move("copy_in", to or self.spec.workdir, source, user)
        finally:
            os.close(source)

    async def put_file(self, path: str, data: bytes, *, user: User = "agent") -> None:
        source = stdin_file(data)
        try:
            await move_file(self._live(), wire.Mode.WRITE_FILE, path, source, user)
        finally:
            os.close(source)

    async def get(self, path: str, into: Path, *, limit_mb: int = 1024) -> None:
        with into.open("wb") as out:
            await self._move("copy_out", path, out.fileno(), "agent", limit_mb)

    async def get_file(self, path: str, *, limit_mb: int = 16) -> bytes:
        with tempfile.TemporaryFile() as out:
            read = wire.Mode.READ_FILE
            await move_file(self._live(), read, path, out.fileno(), "agent", limit_mb=limit_mb)
            return _content(out)

    async def _move(self, move: str, path: str, fd: int, user: User, limit_mb: int = 0) -> None:
        box = self._live()
        keeper = await box.backend.keeper()
        answer = await keeper.ask(
            "copy",
            fds=[fd],
            id=box.id,
            move=move,
            path=path if path.startswith("/") else f"{self.spec.workdir}/{path}",
            uid=box.identity(user),
            limit=limit_mb * 2**20,
        )
        if "refused" in answer:
            raise UsageError(f"{move.replace('_', ' ')}: {answer['refused']}", where=path)
        if "full" in answer:
            raise UsageError(
                f"{move.replace('_', ' ')}: the sandbox's disk is full",
                where=path,
                hint=f"limits.disk_mb is {self.spec.limits.disk_mb}",
            )

    async def snapshot(self) -> SnapshotRef:
        box = self._live()
        async with box.changing:
            return await box.freeze()

    async def restore(self, ref: SnapshotRef) -> None:
        box = self._live()
        async with box.changing:
            await box.restore(box.backend.layers.find(ref))

    async def fork(self, count: int, *, ids: Sequence[str] | None = None) -> list[Sandbox]:
        box = self._live()
        names = (
            ids if ids is not None else [f"{box.id}-{secrets.token_hex(4)}" for _ in range(count)]
        )
        if len(names) != count:
            raise UsageError(f"{len(names)} names for {count} forks", where=box.id)
        ref = await self.snapshot()
        return await box.backend.children(box.spec, ref, names)

    async def health(self, *, timeout_s: float = 5.0) -> None:
        try:
            await self._live().control.ask(wire.Op.PING, timeout_s=timeout_s)
        except (Died, SandboxFailure) as error:
            raise SandboxGone(f"sandbox {self.id} does not answer: {error}") from error

    async def close(self) -> None:
        if self._box.epoch == self._epoch:
            await self._box.close()


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()
