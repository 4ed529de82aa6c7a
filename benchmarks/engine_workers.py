"""Processes that measure: started, asked, waited for with a deadline, and ended for certain."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

__all__ = ["Unavailable", "Worker", "script", "worker_environment"]


class Unavailable(Exception):
    """A side that cannot be measured; the message says why."""


def worker_environment(threads: int) -> dict[str, str]:
    """The environment of every worker alike: threads, no network, no reports to anybody."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    return os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
    }


class Worker:
    """A process that answers JSON requests, one at a time.

    Raises Unavailable where it dies or does not answer in time; then it is killed, with every
    process that it started.
    """

    def __init__(self, name: str, command: list[str], spec: dict[str, Any], threads: int) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close)
        self._process = subprocess.Popen(
            [*command, json.dumps(spec | {"threads": threads})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=worker_environment(threads),
            start_new_session=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        assert self._process.stdout is not None
        threading.Thread(
            target=_pump, args=(self._process.stdout, self._lines), daemon=True
        ).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def hello(self, *, deadline: float) -> dict[str, Any]:
        """What it says when it is ready."""
        return self._reply("to be ready", deadline)

    def ask(self, *, deadline: float, **request: Any) -> dict[str, Any]:
        """The answer to `request`, within `deadline` seconds."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed("died") from None
        return self._reply(f"for {request.get('do', 'a step')}", deadline)

    def close(self) -> None:
        """End the process and its children; safe to call twice."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=30)
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # what a dead worker did not read
                    pipe.close()

    def _reply(self, what: str, deadline: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=deadline)
        except queue.Empty:
            raise self._failed(f"waited {deadline:.0f} s {what} in vain") from None
        if not line:
            raise self._failed("died")
        return json.loads(line)

    def _failed(self, what: str) -> Unavailable:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 20_000))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        self.close()
        print(*lines[-15:], sep="\n", file=sys.stderr)
        return Unavailable(f"{self.name} {what}: {lines[-1] if lines else 'it said nothing'}")


def _pump(pipe: IO[str], lines: queue.Queue[str]) -> None:
    for line in pipe:
        lines.put(line)
    lines.put("")


def script(name: str) -> str:
    """The path of one of the scripts that run as workers."""
    return str(Path(__file__).with_name("peers") / name)
