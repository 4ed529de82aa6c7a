"""What a run tells the person who watches it: the words, without any way of showing them.

The pipeline speaks to a `Listener`; `headrace.observe.console` shows it in a terminal. Nothing
said here is the record of a run: that is the event log. Imports only the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Listener", "QuietListener", "StageProgress", "StepLine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """One finished step in about ten numbers; None is "not measured", never zero.

    `step` counts from 1 to `steps`. On recorded data: `loss` (nats per token, or of the pairs),
    `accuracy` (0..1) and `margin` of pairs. `reward` is the mean score of the judged attempts
    (0..1) with its standard error; `heldout` the latest held-out score (0..1); `length` the mean of
    sampled tokens per attempt; `truncated` the share of attempts cut at the limit (0..1);
    `kl` and `entropy` in nats per token; `tricks` the share of attempts in which a verifier saw
    a known trick (0..1); speeds per second of wall time; `eta` in seconds.

    >>> StepLine(step=3, steps=20, reward=0.5).heldout is None
    True
    """

    step: int
    steps: int
    reward: float | None = None
    reward_stderr: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    margin: float | None = None
    heldout: float | None = None
    length: float | None = None
    truncated: float | None = None
    kl: float | None = None
    entropy: float | None = None
    tricks: float | None = None
    tokens_per_second: float | None = None
    samples_per_second: float | None = None
    eta: float | None = None


class Listener(Protocol):
    """Told what happens, as it happens; must never raise into the loop.

    - `phase(label)`: a stretch of work begins ("loading the model", "training");
    - `progress(label, done, total)`: how far a long piece of work is; `done == total` ends
      it, `total` None is "unknown". Units are the label's own (items, bytes, tokens);
    - `step(line)`: an optimizer step is complete and recorded;
    - `note(text)` / `warning(text)`: one sentence for a person;
    - `close()`: nothing more will come; safe to call twice.
    """

    def phase(self, label: str) -> None: ...

    def progress(self, label: str, done: int, total: int | None) -> None: ...

    def step(self, line: StepLine) -> None: ...

    def note(self, text: str) -> None: ...

    def warning(self, text: str) -> None: ...

    def close(self) -> None: ...


class QuietListener:
    """Says nothing: for programs and tests."""

    def phase(self, label: str) -> None:
        """Ignored."""

    def progress(self, label: str, done: int, total: int | None) -> None:
        """Ignored."""

    def step(self, line: StepLine) -> None:
        """Ignored."""

    def note(self, text: str) -> None:
        """Ignored."""

    def warning(self, text: str) -> None:
        """Ignored."""

    def close(self) -> None:
        """Ignored."""


class StageProgress:
    """Work that reports in stages (`start`, `advance`, `finish`), told to a listener.

    `start(0, label)` is a stage of unknown length.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._label = ""
        self._done = 0
        self._total: int | None = None

    def start(self, total: int, label: str) -> None:
        self._label, self._done, self._total = label, 0, total or None
        self._listener.progress(label, 0, self._total)

    def advance(self, n: int) -> None:
        """`n` more units; a stage that is longer than announced waits at its end."""
        self._done += n
        unfinished = self._total is None or self._done < self._total
        if unfinished:
            self._listener.progress(self._label, self._done, self._total)

    def finish(self) -> None:
        end = self._total or max(self._done, 1)
        self._listener.progress(self._label, end, end)
