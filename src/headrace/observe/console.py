"""Shows a run in a terminal: one line a step, progress bars only where they can move.

Everything goes to the error stream; data belongs to standard output. rich is imported only on
a terminal. A reader who hangs up never stops a run: the listener falls silent instead.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from headrace.observe.listener import StepLine

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["ConsoleListener", "format_duration", "format_step", "printable"]

_QUIET_SECONDS = 10.0


def format_duration(seconds: float) -> str:
    """
    >>> [format_duration(s) for s in (4.2, 130, 3780, float("inf"))]
    ['4s', '2m10s', '1h03m', '-']
    """
    if not math.isfinite(seconds):
        return "-"
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def format_step(line: StepLine) -> str:
    """One aligned line; "-" is "not measured".

    >>> format_step(StepLine(step=3, steps=20, reward=0.5, reward_stderr=0.04, eta=70))[:41]
    'step  3/20  reward 0.50 ±0.04  held-out -'
    """
    steps = str(line.steps)
    reward = "-" if line.reward is None else f"{line.reward:.2f}"
    if line.reward is not None and line.reward_stderr is not None:
        reward += f" ±{line.reward_stderr:.2f}"
    truncated = "-" if line.truncated is None else f"{line.truncated:.0%}"
    eta = "-" if line.eta is None else format_duration(line.eta)
    if line.loss is not None:
        return _recorded_step(line, steps, eta)
    fields = [
        f"step {line.step:>{len(steps)}}/{steps}",
        f"reward {reward:<10}",
        f"held-out {_number(line.heldout, 2):<4}",
        f"len {_number(line.length, 1):>5}",
        f"trunc {truncated:>4}",
        f"kl {_number(line.kl, 3):>6}",
        f"ent {_number(line.entropy, 2):>5}",
        *([] if line.tricks is None else [f"hack {line.tricks:>4.0%}"]),
        f"{_number(line.tokens_per_second, 0):>4} tok/s",
        f"{_number(line.samples_per_second, 1):>4} smp/s",
        f"eta {eta}",
    ]
    return "  ".join(fields)


def _recorded_step(line: StepLine, steps: str, eta: str) -> str:
    """A step on recorded data: what was lost instead of what was earned."""
    fields = [
        f"step {line.step:>{len(steps)}}/{steps}",
        f"loss {_number(line.loss, 4):>7}",
        *([] if line.accuracy is None else [f"acc {line.accuracy:>4.0%}"]),
        *([] if line.margin is None else [f"margin {line.margin:>+6.2f}"]),
        f"held-out {_number(line.heldout, 2):<4}",
        f"{_number(line.tokens_per_second, 0):>4} tok/s",
        f"{_number(line.samples_per_second, 1):>4} units/s",
        f"eta {eta}",
    ]
    return "  ".join(fields)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def printable(text: str) -> str:
    """`text` without control characters: a task or a file name cannot drive the terminal."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


class ConsoleListener:
    """A `Listener` for people.

    On a terminal, long work shows a bar that goes away when it is done. Elsewhere it writes at
    most one line in ten seconds, so that logs stay readable.
    """

    def __init__(
        self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._bars = _Bars(self._stream) if self._stream.isatty() else None
        self._last = clock()
        self._begun: dict[str, float] = {}
        self._reported: set[str] = set()
        self._gone = False

    def phase(self, label: str) -> None:
        self._say(f"{label} ...")

    def progress(self, label: str, done: int, total: int | None) -> None:
        if self._bars is not None:
            self._guard(lambda bars=self._bars: bars.update(printable(label), done, total))
            return
        finished = total is not None and done >= total
        quiet_since = max(self._last, self._begun.setdefault(label, self._clock()))
        due = self._clock() - quiet_since >= _QUIET_SECONDS
        if due or (finished and label in self._reported):
            self._reported.add(label)
            share = f"{done / total:.0%}" if total else str(done)
            self._say(f"{label}: {share}")
        if finished:
            self._reported.discard(label)
            self._begun.pop(label)

    def step(self, line: StepLine) -> None:
        self._say(format_step(line))

    def note(self, text: str) -> None:
        self._say(text)

    def warning(self, text: str) -> None:
        self._say(f"warning: {text}", style="yellow")

    def close(self) -> None:
        if self._bars is not None:
            self._guard(self._bars.close)

    def _say(self, text: str, *, style: str = "") -> None:
        self._last = self._clock()
        text = printable(text)
        if self._bars is not None:
            self._guard(lambda bars=self._bars: bars.print(text, style))
        else:
            self._guard(lambda: print(text, file=self._stream, flush=True))

    def _guard(self, write: Callable[[], None]) -> None:
        """Do it unless the reader has gone; training goes on without one."""
        if self._gone:
            return
        try:
            write()
        except (OSError, ValueError):  # a closed pipe, or a closed stream
            self._gone = True


class _Bars:
    """The live area at the bottom of a terminal, present only while something is in progress."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=stream, highlight=False)
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def update(self, label: str, done: int, total: int | None) -> None:
        if total is not None and done >= total:
            self._finish(label)
            return
        if self._progress is None:
            self._progress = self._start()
        if label not in self._tasks:
            self._tasks[label] = self._progress.add_task(label, total=total)
        self._progress.update(self._tasks[label], completed=done, total=total)

    def print(self, text: str, style: str) -> None:
        self._console.print(text, style=style, markup=False, emoji=False, soft_wrap=True)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._progress = None
        self._tasks.clear()

    def _finish(self, label: str) -> None:
        task = self._tasks.pop(label, None)
        if self._progress is not None and task is not None:
            self._progress.remove_task(task)
        if not self._tasks:
            self.close()

    def _start(self) -> Progress:
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            console=self._console,
            transient=True,
        )
        progress.start()
        return progress
