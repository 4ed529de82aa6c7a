"""What the benchmark of stages measures: one stage on both sides, and the rows that come of it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from engine_cases import Crew
from engine_peers import PEERS, python_of
from engine_workers import Unavailable, Worker, script
from rows import Row
from stages_workload import StageData

__all__ = ["STAGES", "Bench", "Stage", "Taken", "measure", "stage_of", "stage_rows"]

START_SECONDS = 1800
ASK_SECONDS = 1800
SAME_NATS = 1e-3
"""How far the two sides' losses of a step may lie apart; further, and they compute other things."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage and its size: `steps` are measured after one that is not, on `batch` units each.

    TRL computes `micro` rows at a time: packs, or pairs; headrace as many tokens as it does by
    itself.
    """

    task: str
    trainer: str
    title: str
    steps: int
    batch: int
    micro: int
    accumulate: int

    @property
    def units(self) -> int:
        return (self.steps + 1) * self.batch

    def told(self) -> dict[str, Any]:
        """What both workers are told."""
        return {
            "task": self.task,
            "learning_rate": 1e-5,
            "betas": [0.9, 0.95],
            "beta": 0.1,
            "micro": self.micro,
            "accumulate": self.accumulate,
            "pack": 1024,
            "seed": 0,
        }


def stage_of(task: str, *, quick: bool) -> Stage:
    """A stage of `STAGES` in its size. Where there is a peer, its packing decides which and how
    many conversations share a step of SFT; headrace follows."""
    if task == "sft":
        return Stage(
            task=task,
            trainer="TRL SFTTrainer",
            title="SFT, packed",
            steps=2 if quick else 4,
            batch=8 if quick else 16,
            micro=1,
            accumulate=1 if quick else 2,
        )
    dpo = task == "dpo"
    return Stage(
        task=task,
        trainer="TRL DPOTrainer" if dpo else "TRL RewardTrainer",
        title="DPO" if dpo else "reward model",
        steps=2,
        batch=2 if quick else 16,
        micro=2 if quick else 4,
        accumulate=1 if quick else 4,
    )


STAGES = ("sft", "dpo", "reward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One run's choices. `model` is a local directory that every side loads; `peers` None leaves
    TRL out."""

    model: Path
    peers: Path | None
    threads: int
    quick: bool

    @contextmanager
    def crew(self, told: Mapping[str, Any], trainer: str) -> Generator[Crew]:
        """headrace, which makes the units, and then the peer, which reads them."""
        told = {"model": str(self.model), **told}
        with ExitStack() as stack:
            crew = Crew()
            self._join(stack, crew, "headrace", told)
            if self.peers is not None and "headrace" in crew.workers:
                self._join(stack, crew, trainer, told)
            yield crew

    def _join(self, stack: ExitStack, crew: Crew, name: str, told: dict[str, Any]) -> None:
        print(f"  starting {name}", file=sys.stderr)
        try:
            worker = stack.enter_context(Worker(name, self._command(name), told, self.threads))
            crew.said[name] = worker.hello(deadline=START_SECONDS)
        except Unavailable as reason:
            crew.lose(name, reason)
            return
        crew.workers[name] = worker

    def _command(self, name: str) -> list[str]:
        if name == "headrace":
            return [sys.executable, script("stages_headrace.py")]
        assert self.peers is not None
        return [str(python_of(PEERS["trl"], self.peers)), script("stages_trl.py")]


@dataclass(slots=True, kw_only=True)
class Taken:
    """What one side's steps took; the first, a warm-up, is among them.

    `reference_seconds` went before the first step.
    """

    seconds: list[float] = field(default_factory=list[float])
    tokens: list[int] = field(default_factory=list[int])
    losses: list[float] = field(default_factory=list[float])
    peak: int = 0
    reference_seconds: float = 0.0

    def note(self, said: Mapping[str, Any]) -> None:
        self.seconds.append(said["seconds"])
        self.tokens.append(said["tokens"])
        self.losses.append(said["loss"])
        self.peak = said["peak"]

    def speeds(self, *, with_reference: bool = False) -> tuple[float, ...]:
        """Tokens/s of each measured step; a step may bear its tokens' share of the reference."""
        share = self.reference_seconds / max(1, sum(self.tokens)) if with_reference else 0.0
        return tuple(
            tokens / (seconds + share * tokens)
            for tokens, seconds in zip(self.tokens[1:], self.seconds[1:], strict=True)
        )


def measure(bench: Bench, task: str) -> Iterator[Row]:
    """The rows of one stage."""
    stage = stage_of(task, quick=bench.quick)
    data = StageData(bench.model)
    with tempfile.TemporaryDirectory(prefix="headrace-stages-") as folder:
        path = Path(folder) / "data.jsonl"
        write = data.write_conversations if task == "sft" else data.write_preferences
        write(path, stage.units)
        told = stage.told() | {"data": str(path), "units": str(Path(folder) / "units.json")}
        with bench.crew(told, stage.trainer) as crew:
            taken = {name: Taken() for name in crew.workers}
            _race(stage, crew, taken)
            peer = None if bench.peers is None else stage.trainer
            missing = crew.missing.get("headrace") or crew.missing.get(stage.trainer)
    yield from stage_rows(stage, peer, taken, missing)


def _race(stage: Stage, crew: Crew, taken: Mapping[str, Taken]) -> None:
    """Step after step on both sides, the first to go changing; on the same units."""
    peer = crew.said.get(stage.trainer, {})
    steps: Sequence[Sequence[int]] = peer.get("steps") or _in_order(stage)
    if sorted(number for step in steps for number in step) != list(range(stage.units)):
        raise SystemExit(f"{stage.trainer} learns from other units than it was given")

    def step(side: str, number: int) -> float:
        said = crew.ask(side, do="step", units=steps[number])
        taken[side].note(said)
        return said["tokens"] / said["seconds"]

    if stage.task == "dpo":
        for name, mine in taken.items():
            mine.reference_seconds = (
                crew.ask(name, do="reference")["seconds"]
                if name == "headrace"
                else peer["reference_seconds"]
            )
    crew.race(stage.title, len(steps) - 1, step)


def _in_order(stage: Stage) -> list[list[int]]:
    numbers = list(range(stage.units))
    return [numbers[at : at + stage.batch] for at in range(0, len(numbers), stage.batch)]


def stage_rows(
    stage: Stage, peer: str | None, taken: Mapping[str, Taken], missing: str | None
) -> Iterator[Row]:
    """Speeds, peaks and losses of headrace against `peer` (None: alone); `missing` says why a
    side has not been measured to its end.

    SystemExit where the two sides did not learn from the same number of tokens.
    """
    nothing = Taken()
    ours, theirs = taken.get("headrace", nothing), taken.get(peer or "", nothing)
    both = list(zip(ours.tokens, theirs.tokens, strict=False))
    if any(mine != other for mine, other in both):
        raise SystemExit(f"{stage.title}: the two sides count other tokens, {both}")

    def row(what: str, unit: str, mine: Sequence[float], other: Sequence[float]) -> Row:
        return Row(
            what=f"{stage.title}: {what}",
            peer=peer or "-",
            unit=unit,
            ours=tuple(mine),
            theirs=tuple(other),
            unavailable=missing,
        )

    yield row("steps", "tokens/s", ours.speeds(), theirs.speeds())
    if stage.task == "dpo":
        whole = (side.speeds(with_reference=True) for side in (ours, theirs))
        yield row("steps and reference", "tokens/s", *whole)
    peaks = ([side.peak / 2**30] if side.peak else [] for side in (ours, theirs))
    yield row("peak memory", "GiB", *peaks)
    yield row("loss by step", "nats", ours.losses, theirs.losses)
    if peer is None:
        return
    gaps = [abs(a - b) for a, b in zip(ours.losses, theirs.losses, strict=False)]
    for what, found in (("the first step", gaps[:1]), ("later steps", gaps[1:])):
        yield Row(
            what=f"{stage.title}: losses apart, {what}",
            peer=peer,
            unit="nats",
            ours=(float(np.max(found)),) if found else (),
            most=SAME_NATS,
            unavailable=missing,
        )
