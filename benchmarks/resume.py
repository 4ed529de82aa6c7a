"""Kill a deterministic run at random instants, resume it, and demand the same bits.

    python benchmarks/resume.py --check            10 kills, exit 1 if any bit differs
    python benchmarks/resume.py --quick --check    3 kills
    python benchmarks/resume.py --recipe quickstart --set steps=6    the real model

Each kill is SIGKILL to a process that trains through the command line. Every second one waits
until a checkpoint is being written, the others strike at a random moment after a
random event, mostly while sampling or learning. After `headrace resume`, weights, optimizer
state, events (times aside), trajectories (times aside) and evaluations are compared with
those of a run that nobody disturbed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headrace.store.checkpoints import Checkpoints
from headrace.store.codec import trajectory_to_json
from headrace.store.events import read_events
from headrace.store.runs import RunDirectory
from headrace.store.trajectories import TrajectoryStore
from headrace.types import Json, canonical_json

RECIPE = """
name = "resume"
steps = 8
deterministic = true
threads = 1
[model]
source = "tiny:llama"
[tasks]
domains = [
  { name = "arithmetic", weight = 2 },
  { name = "rg/coin_flip" },
  { name = "rg/syllogism" },
]
[tasks.curriculum]
window = 8
up = 0.3
down = 0.0
[play]
groups = 6
group_size = 4
max_new_tokens = 16
top_p = 0.95
[algorithm]
preset = "dapo"
updates = 2
[algorithm.kl]
place = "loss"
estimator = "k2"
budget = 0.05
reset_every = 5
[learner]
learning_rate = 2e-3
[evaluate]
items = 12
every = 3
[checkpoint]
every = 2
[stop]
no_signal = 1000
all_truncated = 1000
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run left behind, as digests; equal digests, equal bits."""

    weights: str
    events: str
    trajectories: str
    evaluations: str


@dataclass(frozen=True, slots=True)
class Pace:
    """How many events a run has and how far apart they are on average."""

    events: int
    seconds_per_event: float


@dataclass(frozen=True, slots=True)
class Kill:
    number: int
    seconds: float
    during: str
    last_event: str
    steps_redone: int
    same: dict[str, bool]

    @property
    def passed(self) -> bool:
        return all(self.same.values())


def main() -> int:
    options = _options()
    random.seed(options.seed)
    with tempfile.TemporaryDirectory(prefix="headrace-resume-") as folder:
        root = Path(folder)
        recipe = options.recipe
        if recipe is None:
            recipe = str(root / "resume.toml")
            Path(recipe).write_text(RECIPE)
        command = [recipe, *(f"--set={item}" for item in options.set), "--set=deterministic=true"]
        started = time.perf_counter()
        expected, pace = _undisturbed(command, root / "undisturbed")
        print(f"undisturbed run: {time.perf_counter() - started:.1f} s", file=sys.stderr)
        kills: list[Kill] = []
        for number in range(options.kills):
            kill = _kill_and_resume(command, root / f"killed-{number}", number, pace, expected)
            verdict = "same" if kill.passed else "DIFFERENT"
            print(f"kill {number + 1}/{options.kills}: {kill.during}: {verdict}", file=sys.stderr)
            kills.append(kill)
    _show(kills)
    passed = sum(kill.passed for kill in kills)
    if options.json:
        result = {"kills": [asdict(k) | {"passed": k.passed} for k in kills], "passed": passed}
        Path(options.json).write_text(json.dumps(result, indent=1))
    return 1 if options.check and passed < len(kills) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, help="how many (10; with --quick 3)")
    parser.add_argument("--quick", action="store_true", help="3 kills")
    parser.add_argument("--check", action="store_true", help="exit 1 if anything differs")
    parser.add_argument("--json", metavar="FILE", help="write the result here")
    parser.add_argument("--seed", type=int, default=0, help="of the instants (0)")
    parser.add_argument("--recipe", help="another recipe than the tiny built-in one")
    parser.add_argument("--set", action="append", default=[], help="as for headrace run")
    options = parser.parse_args()
    if options.kills is None:
        options.kills = 3 if options.quick else 10
    return options


def _headrace(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "headrace", *arguments],
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def _undisturbed(command: list[str], run: Path) -> tuple[Outcome, Pace]:
    """The outcome, and how its events came."""
    log = run.with_suffix(".log")
    process = _headrace("run", *command, "--dir", str(run), log=log)
    started = time.perf_counter()
    first = _wait_for(process, lambda: _count(run) > 0)
    if process.wait() != 0:
        raise SystemExit(f"the undisturbed run failed:\n{log.read_text()[-2000:]}")
    total = _count(run)
    return _outcome(run), Pace(total, (time.perf_counter() - started - first) / total)


def _kill_and_resume(
    command: list[str], run: Path, number: int, pace: Pace, expected: Outcome
) -> Kill:
    log = run.with_suffix(".log")
    process = _headrace("run", *command, "--dir", str(run), log=log)
    started = time.perf_counter()
    if number % 2 == 1:
        temporary = run / "checkpoints"
        _wait_for(process, lambda: any(temporary.glob(".tmp-*")))
        time.sleep(random.uniform(0, 0.02))
        during = "writing a checkpoint"
    else:
        target = random.randrange(1, pace.events)
        _wait_for(process, lambda: _count(run) >= target)
        time.sleep(random.uniform(0, pace.seconds_per_event))
        during = "anywhere"
    seconds = time.perf_counter() - started
    alive = process.poll() is None
    if alive:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    during = during if alive else "already finished"
    events = read_events(run / "events.jsonl")
    checkpoint = Checkpoints(run / "checkpoints", read_only=True).names()
    kept = int(checkpoint[-1].removeprefix("step_")) if checkpoint else 0
    last = f"{events[-1].kind} of step {events[-1].step}" if events else "none"
    again = _headrace("resume", str(run), log=log)
    if again.wait() != 0:
        raise SystemExit(f"resume failed:\n{log.read_text()[-3000:]}")
    outcome = _outcome(run)
    same = {name: getattr(outcome, name) == value for name, value in asdict(expected).items()}
    redone = max((event.step for event in events), default=0) - kept
    return Kill(number, round(seconds, 2), during, last, max(redone, 0), same)


def _wait_for(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> float:
    """Seconds until `condition` held or the process ended; at most 30 minutes."""
    started = time.perf_counter()
    while not condition() and process.poll() is None:
        if time.perf_counter() - started > 1800:
            raise SystemExit("waited 30 minutes for a run that does not get on")
        time.sleep(0.002)
    return time.perf_counter() - started


def _count(run: Path) -> int:
    path = run / "events.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _outcome(run: Path) -> Outcome:
    directory = RunDirectory.open(run)
    latest = Checkpoints(directory.checkpoints_path, read_only=True).latest()
    if latest is None:
        raise SystemExit(f"{run} has no checkpoint")
    files = sorted(latest.path.rglob("*.safetensors"))
    weights = {str(f.relative_to(latest.path)): _sha(f.read_bytes()) for f in files}
    state: dict[str, Json] = dict(latest.state)
    events = [event.fixed for event in read_events(directory.events_path)]
    waves: dict[str, Json] = {}
    with TrajectoryStore(directory.trajectories_path, read_only=True) as store:
        for wave in store.iterate():
            waves[wave.key] = [_timeless(trajectory_to_json(t)) for t in wave.trajectories]
    evaluations = {
        str(f.relative_to(run)): _sha(f.read_bytes())
        for f in sorted(directory.evals_path.rglob("*.json"))
    }
    return Outcome(
        weights=_digest([weights, state]),
        events=_digest(events),
        trajectories=_digest(waves),
        evaluations=_digest(evaluations),
    )


def _timeless(trajectory: Json) -> Json:
    return {key: value for key, value in trajectory.items() if key != "timings"}


def _digest(value: Json) -> str:
    return _sha(canonical_json(value).encode())


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _show(kills: list[Kill]) -> None:
    table = Table("kill", "after", "during", "last event", "steps redone", "same bits")
    for kill in kills:
        different = [name for name, same in kill.same.items() if not same]
        table.add_row(
            str(kill.number + 1),
            f"{kill.seconds:.1f} s",
            kill.during,
            kill.last_event,
            str(kill.steps_redone),
            "yes" if kill.passed else f"NO: {', '.join(different)}",
        )
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
