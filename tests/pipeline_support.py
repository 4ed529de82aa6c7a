"""A task pack that a tiny random model can learn from, and a run of it in this process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

from headrace.observe.listener import QuietListener, StepLine
from headrace.pipeline.session import RunResult, start
from headrace.recipe import Recipe
from headrace.store.events import Event, read_events
from headrace.types import Json, Message, Task, Verdict, VerdictPart, VerifierRef, split_of

SMALL: dict[str, Json] = {
    "name": "small",
    "steps": 3,
    "threads": 1,
    "model": {"source": "tiny:llama"},
    "tasks": {"domains": [{"name": "vowels"}], "curriculum": {"window": 16, "up": 0.95}},
    "play": {"groups": 4, "group_size": 4, "max_new_tokens": 8},
    "learner": {"learning_rate": 5e-3},
    "evaluate": {"items": 6},
    "verify": {"audit": "off"},
    "checkpoint": {"every": 2},
    "stop": {"no_signal": 1000, "all_truncated": 1000},
}


@dataclass(frozen=True)
class ShareOfVowels:
    """Scores the share of characters that are vowels; nothing written earns nothing.

    A prompt with "broken" in it cannot be judged, one with "flat" always scores 0.
    """

    ref: VerifierRef = field(default_factory=lambda: VerifierRef("share-of-vowels", "1"))

    def judge(self, task: Task, text: str) -> Verdict:
        prompt = task.messages[0].text
        if "broken" in prompt:
            return Verdict(score=None, verifier=self.ref, evidence="out of order", fault="verifier")
        share = sum(c in "aeiou" for c in text) / max(len(text), 4)
        if "flat" in prompt:
            share = 0.0
        return Verdict(score=share, verifier=self.ref, parts=(VerdictPart("vowels", share),))


@dataclass(frozen=True)
class Vowels:
    name: str
    tiers: int = 2
    verifier: ShareOfVowels = field(default_factory=ShareOfVowels)

    def task(self, tier: int, index: int) -> Task:
        problem = f"{self.name} {tier} {index % 500}"
        return Task(
            domain=self.name,
            problem=problem,
            tier=tier,
            split=split_of(self.name, problem),
            messages=(Message.of("user", f"say {problem}"),),
            verifier=self.verifier.ref,
            answer=None,
        )

    def wrong(self, task: Task) -> Sequence[str]:
        return ("xyz",)


class Pack:
    def names(self) -> Sequence[str]:
        return ["vowels", "vowels/flat", "vowels/broken"]

    def open(self, name: str) -> Vowels:
        return Vowels(name)

    def close(self) -> None:
        """Nothing to release."""


pack = Pack()


@dataclass(frozen=True)
class Stuck(ShareOfVowels):
    """Takes longer than anybody is patient."""

    def judge(self, task: Task, text: str) -> Verdict:
        time.sleep(4.0)
        return super().judge(task, text)


GATE = threading.Event()


class Gated(ShareOfVowels):
    """Can judge only once the gate is open; does not wait for that for ever."""

    def judge(self, task: Task, text: str) -> Verdict:
        if not GATE.wait(10.0):
            return Verdict(score=None, verifier=self.ref, evidence="shut", fault="verifier")
        return super().judge(task, text)


class Deadly(ShareOfVowels):
    """Kills its own process where it is told to."""

    def judge(self, task: Task, text: str) -> Verdict:
        if text == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().judge(task, text)


class TryingPack(Pack):
    """The vowels with verifiers that are stuck, wait for a gate, or kill their process."""

    verifiers: ClassVar[Mapping[str, ShareOfVowels]] = {
        "trying/stuck": Stuck(),
        "trying/gated": Gated(),
        "trying/deadly": Deadly(),
    }

    def names(self) -> Sequence[str]:
        return list(self.verifiers)

    def open(self, name: str) -> Vowels:
        return Vowels(name, verifier=self.verifiers[name])


trying = TryingPack()

TRYING = [EntryPoint("trying", "pipeline_support:trying", "headrace.packs")]

PACKS = [EntryPoint("vowels", "pipeline_support:pack", "headrace.packs")]


class Recorder(QuietListener):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[StepLine] = []
        self.notes: list[str] = []

    def step(self, line: StepLine) -> None:
        self.steps.append(line)

    def note(self, text: str) -> None:
        self.notes.append(text)


def recipe(**changes: Json) -> Recipe:
    """The small recipe with some of its sections replaced or extended."""
    values = {
        key: dict(value) if isinstance(value, dict) else value for key, value in SMALL.items()
    }
    for key, value in changes.items():
        old = values.get(key)
        values[key] = {**old, **value} if isinstance(old, dict) else value
    return Recipe.model_validate(values)


def run(folder: Path, **changes: Json) -> RunResult:
    return start(
        recipe(**changes),
        runs=folder,
        directory=folder / "run",
        listener=QuietListener(),
        packs=PACKS,
    )


def events(folder: Path, kind: str) -> list[Event]:
    return [event for event in read_events(folder / "run" / "events.jsonl") if event.kind == kind]
