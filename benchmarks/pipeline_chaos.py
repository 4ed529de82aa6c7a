"""A run whose processes are killed at random for half an hour; what must hold afterwards."""

from __future__ import annotations

import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil
from pipeline_chaos_run import merit
from rows import Row

from headrace.store.events import read_events
from headrace.store.trajectories import TrajectoryStore
from headrace.types import Json, Trajectory

LIFE = Path(__file__).with_name("pipeline_chaos_run.py")
MARK = "HEADRACE_CHAOS"
HANG_S = 150.0
STOP_S = 120.0


@dataclass(slots=True)
class Story:
    """What was done to the run."""

    lives: int = 0
    kills: Counter[str] = field(default_factory=Counter[str])
    hangs: int = 0
    exits: Counter[int] = field(default_factory=Counter[int])


def rows(quick: bool, told: dict[str, Json]) -> list[Row]:
    """Kills for two minutes or 30 minutes, then an orderly stop, then the books are read."""
    with tempfile.TemporaryDirectory(prefix="headrace-chaos-") as folder:
        run = Path(folder) / "run"
        story = _torment(run, seconds=120.0 if quick else 1800.0)
        found = _books(run)
        left = _marked(folder)
    told["chaos"] = {
        "lives": story.lives,
        "kills": dict(story.kills),
        "hangs": story.hangs,
        "left_behind": left,
        **found,
    }
    wrong = ("lost", "twice", "unknown", "false_scores", "torn_steps")
    return [
        Row(
            what=f"chaos: {sum(story.kills.values())} kills, {found['steps']} steps",
            peer="conservation broken",
            unit="groups, scores",
            ours=(float(sum(found[name] for name in wrong)),),
            most=0.0,
        ),
        Row(
            what="chaos: group baselines with failures",
            peer="without",
            unit="standard errors",
            ours=(abs(found["bias_in_stderr"]),),
            most=2.0,
        ),
        Row(
            what="chaos: hangs",
            peer="deadlines",
            unit="hangs",
            ours=(float(story.hangs),),
            most=0.0,
        ),
        Row(
            what="chaos: left behind",
            peer="nothing",
            unit="processes",
            ours=(float(len(left)),),
            most=0.0,
        ),
    ]


def _torment(run: Path, *, seconds: float) -> Story:
    rng, story = random.Random(11), Story()
    until = time.monotonic() + seconds
    environment = {**os.environ, MARK: str(run.parent)}
    log = run.parent / "log"
    while True:
        with log.open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, str(LIFE), str(run), str(story.lives)],
                env=environment,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        story.lives += 1
        _live(process, run, rng, story, until)
        if time.monotonic() >= until:
            return story
        story.exits[process.returncode] += 1
        if process.returncode != -signal.SIGKILL:
            raise SystemExit(f"a life ended by itself:\n{log.read_text()[-3000:]}")


def _live(
    process: subprocess.Popen[bytes], run: Path, rng: random.Random, story: Story, until: float
) -> None:
    """Kill parts of a life until it is the main process's turn, or the time is over.

    Three lives in four may finish something first.
    """
    if rng.random() < 0.75:
        _wait_for_progress(process, run, story)
    while True:
        _sleep_watched(process, run, rng.uniform(2.0, 12.0), story, until)
        if process.poll() is not None:
            return
        if time.monotonic() >= until:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                story.hangs += 1
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return
        if rng.random() < 0.4:
            story.kills["main"] += 1
            process.kill()
            process.wait()
            return
        children = psutil.Process(process.pid).children(recursive=True)
        if children:
            victim = rng.choice(children)
            try:
                name = victim.name()
                victim.kill()
                story.kills[name] += 1
            except psutil.NoSuchProcess:
                story.kills["already gone"] += 1


def _wait_for_progress(process: subprocess.Popen[bytes], run: Path, story: Story) -> None:
    events = run / "events.jsonl"
    before = events.stat().st_size if events.exists() else 0
    until = time.monotonic() + HANG_S
    while process.poll() is None and (not events.exists() or events.stat().st_size <= before):
        time.sleep(0.05)
        if time.monotonic() > until:
            story.hangs += 1
            process.kill()
            process.wait()


def _sleep_watched(
    process: subprocess.Popen[bytes], run: Path, seconds: float, story: Story, until: float
) -> None:
    """Sleep; a run whose log does not grow for long hangs, and is killed for it."""
    end = min(time.monotonic() + seconds, until)
    while time.monotonic() < end and process.poll() is None:
        time.sleep(0.1)
        events = run / "events.jsonl"
        if events.exists() and time.time() - events.stat().st_mtime > 2 * HANG_S:
            story.hangs += 1
            process.kill()
            process.wait()


def _books(run: Path) -> dict[str, Json]:
    """What the store and the event log say: nothing lost, nothing twice, nothing false."""
    with TrajectoryStore(run / "trajectories", read_only=True) as store:
        admitted = {name for name in store.groups() if store.admitted(name) is not None}
        counted = [entry.consumed for entry in store.ledger() if not entry.void]
        trained = Counter(name for c in counted if c.trained for name in c.groups)
        refused = Counter(name for c in counted if not c.trained for name in c.groups)
        groups = {name: store.group(name) for name in [*trained, *refused]}
    steps = [event for event in read_events(run / "events.jsonl") if event.kind == "step"]
    slots = steps[-1].payload["slots"]
    consumed = trained + refused
    biases = [bias for group in groups.values() if (bias := _bias(group)) is not None]
    stderr = statistics.stdev(biases) / math.sqrt(len(biases)) if len(biases) > 1 else 0.0
    mean = statistics.fmean(biases) if biases else 0.0
    attempts = [attempt for group in groups.values() for attempt in group]
    return {
        "steps": len(steps),
        "admitted": len(admitted),
        "trained": len(trained),
        "refused": len(refused),
        "pending": len(admitted - set(consumed)),
        "lost": max(0, len(admitted - set(consumed)) - slots["held"] - _capacity(run)),
        "twice": sum(count > 1 for count in consumed.values()),
        "unknown": len(set(consumed) - admitted) + sum(not group for group in groups.values()),
        "torn_steps": sum(a.step + 1 != b.step for a, b in pairwise(steps)),
        "false_scores": sum(
            a.score is not None and abs(a.score - merit(a.completion)) > 1e-9 for a in attempts
        ),
        "unjudged": sum(a.score is None for a in attempts),
        "attempts": len(attempts),
        "bias_in_stderr": mean / stderr if stderr else 0.0,
    }


def _capacity(run: Path) -> int:
    """Groups that may be on their way when the run is stopped."""
    import json

    play = json.loads((run / "recipe.json").read_text())["play"]
    return int(play["groups"] * (play["max_lag"] + 1))


def _bias(group: Sequence[Trajectory]) -> float | None:
    """The group's baseline as it was recorded, less what it had been without any failure."""
    judged = [attempt.score for attempt in group if attempt.score is not None]
    if not judged:
        return None
    return statistics.fmean(judged) - statistics.fmean(merit(a.completion) for a in group)


def _marked(folder: str) -> list[str]:
    """Processes of any life that are still there, ten seconds after the end."""
    left: list[str] = []
    for _ in range(100):
        left = []
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and process.environ().get(MARK) == folder:
                    left.append(f"{process.pid} {process.name()}")
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        if not left:
            break
        time.sleep(0.1)
    return left
