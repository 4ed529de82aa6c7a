"""The command line of a container engine: what to type, with a deadline on every command.

`Engine` holds in what podman and docker differ. May be known by the engine backend only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Any

from headrace.sandbox.spec import SandboxFailure
from headrace.sandbox.state import state_root

__all__ = ["DOCKER", "PODMAN", "Answer", "Engine", "epoch_of"]

_TAIL = 2000


@dataclass(frozen=True, slots=True)
class Answer:
    """Exit code, stdout, and the end of stderr."""

    code: int
    out: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """`asks`: a cheap command that fails where the engine cannot be used. `confines`: options
    of `create` that only this engine knows. `tmpfs`: options of its own for a mount.
    `runtimes`: OCI runtimes to try in their order (None: its default). `died`: the event at
    the end of an `exec`; `events`: how to be told of past ones, as JSON. `root`: it can be
    confined from outside by root only. `global_runtime`: the runtime is said before the verb.
    `skips_volumes`: those that an image declares are not made."""

    name: str
    asks: tuple[str, ...]
    confines: tuple[str, ...]
    tmpfs: str
    runtimes: tuple[str | None, ...]
    died: str
    events: tuple[str, ...]
    root: bool
    global_runtime: bool
    skips_volumes: bool

    @property
    def program(self) -> str:
        """Its path; SandboxFailure if it is not installed."""
        found = shutil.which(self.name)
        if found is None:
            raise SandboxFailure(f"{self.name} is not installed", hint=f"install {self.name}")
        return found

    def environment(self) -> dict[str, str]:
        """That of this process: where the engine finds its configuration."""
        return dict(os.environ)

    def call(self, *args: str, timeout_s: float = 60.0, into: IO[bytes] | None = None) -> Answer:
        """Run a command of the engine to its end; `into` takes its stdout.

        A command that is not over in time is killed with its children, and a SandboxFailure.
        It runs in the state directory: monitors that it leaves write there when memory is short.
        """
        command = [self.program, *args]
        with subprocess.Popen(
            command,
            cwd=state_root(),
            stdin=subprocess.DEVNULL,
            stdout=into or subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as child:
            try:
                out, error = child.communicate(timeout=timeout_s)
            except BaseException as cause:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                if not isinstance(cause, subprocess.TimeoutExpired):
                    raise
                raise SandboxFailure(
                    f"{self.name} did not answer within {timeout_s:g} s",
                    where=" ".join(command)[:_TAIL],
                    hint=f"does `{self.name} {' '.join(self.asks)}` answer?",
                ) from None
        return Answer(
            child.returncode,
            (out or b"").decode("utf-8", "replace"),
            error[-_TAIL:].decode("utf-8", "replace").strip(),
        )

    def must(self, *args: str, timeout_s: float = 60.0, into: IO[bytes] | None = None) -> str:
        """The output of a command; SandboxFailure with its words if it fails."""
        answer = self.call(*args, timeout_s=timeout_s, into=into)
        if answer.code != 0:
            raise SandboxFailure(
                f"{self.name} failed: {answer.error or f'exit code {answer.code}'}",
                where=" ".join([self.name, *args])[:_TAIL],
            )
        return answer.out

    def inspect(self, kind: str, names: Sequence[str]) -> list[dict[str, Any]]:
        """What is known of those that exist."""
        if not names:
            return []
        answer = self.call(kind, "inspect", *names)
        try:
            found = json.loads(answer.out or "[]")
        except ValueError:
            found = None
        missing = "no such" in answer.error.lower() or "not known" in answer.error.lower()
        if not isinstance(found, list) or (answer.code != 0 and not missing):
            raise SandboxFailure(f"{self.name} {kind} inspect failed: {answer.error}")
        return found

    def labelled(self, label: str) -> list[str]:
        """The ids of the containers with a label, running or not."""
        return self.must(
            "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}"
        ).split()

    def remove(self, names: Sequence[str]) -> None:
        """Remove containers, running or not; those that do not exist are no failure."""
        if not names:
            return
        answer = self.call("rm", "--force", "--volumes", *names)
        if answer.code != 0 and "no such container" not in answer.error.lower():
            raise SandboxFailure(
                f"{self.name} rm failed: {answer.error}",
                where=" ".join(names)[:_TAIL],
                hint=f"{self.name} rm --force {' '.join(names)[:_TAIL]}",
            )

    def exec_codes(self, name: str, since: float) -> list[int]:
        """The exit codes of commands that ended in a container since then (epoch seconds)."""
        out = self.must(
            *("events", "--since", f"{since:.3f}", "--filter", f"container={name}"),
            *("--filter", f"event={self.died}"),
            *self.events,
            timeout_s=10.0,
        )
        codes: list[int] = []
        for line in out.splitlines():
            event = json.loads(line)
            about = event.get("Actor", {}).get("Attributes", {})
            if _when(event) >= since:
                codes.append(int(about.get("exitCode", event.get("ContainerExitCode", 0))))
        return codes


def _when(event: dict[str, Any]) -> float:
    """Epoch seconds of an event."""
    if "timeNano" in event:
        return int(event["timeNano"]) / 1e9
    return epoch_of(str(event["Time"]))


def epoch_of(text: str) -> float:
    """Epoch seconds of a time in RFC 3339 with more digits than Python reads."""
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text)).timestamp()


PODMAN = Engine(
    name="podman",
    asks=("info", "--format", "{{.Host.OCIRuntime.Name}}"),
    confines=("--read-only-tmpfs=false", "--image-volume=ignore", "--http-proxy=false"),
    tmpfs=",notmpcopyup",
    runtimes=(None, "runc"),
    died="exec_died",
    events=("--stream=false", "--format", "json"),
    root=False,
    global_runtime=True,
    skips_volumes=True,
)
DOCKER = Engine(
    name="docker",
    asks=("version", "--format", "{{.Server.Version}}"),
    confines=(),
    tmpfs="",
    runtimes=(None,),
    died="exec_die",
    events=("--until", "0s", "--format", "{{json .}}"),
    root=True,
    global_runtime=False,
    skips_volumes=False,
)
