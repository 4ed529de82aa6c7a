"""SFT, DPO and the reward model against TRL: tokens/s, peak memory, and that both compute the same.

    python benchmarks/stages.py --check              everything, exit 1 if the losses differ
    python benchmarks/stages.py --quick --only sft   a first look
    python benchmarks/stages.py --alone              headrace without the peer

Each side of a row is a process of its own, so that its peak is the kernel's (VmHWM); one step
at a time, alternating, on the same units, weights, threads and settings, in fp32. The peer is
installed into an environment of its own on first use. `docs/benchmarks.md` explains the rows.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from engine import finish
from rows import Row
from stages_cases import STAGES, Bench, measure

from headrace.policy.cache import cache_root
from headrace.policy.pull import pull
from headrace.recipe import DEFAULT_MODEL


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    bench = Bench(
        model=pull(options.model).directory,
        peers=None if options.alone else options.peers,
        threads=options.threads,
        quick=options.quick,
    )
    rows: list[Row] = []
    try:
        for task in options.only:
            started = time.perf_counter()
            rows.extend(measure(bench, task))
            print(f"{task}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted; this is what there is:", file=sys.stderr)
        finish(rows, check=False, output=options.json, threads=options.threads)
        return 130
    return finish(rows, check=options.check, output=options.json, threads=options.threads)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 if the losses differ")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller steps")
    parser.add_argument("--alone", action="store_true", help="headrace without the peer")
    parser.add_argument("--json", metavar="FILE", help="write the result here")
    parser.add_argument("--only", type=_tasks, default=STAGES, help=", ".join(STAGES))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--model", default=DEFAULT_MODEL, help=f"any source ({DEFAULT_MODEL})")
    parser.add_argument(
        "--peers",
        type=Path,
        default=cache_root() / "peers",
        metavar="DIR",
        help="where the peer's environment is or will be (%(default)s)",
    )
    return parser.parse_args(arguments)


def _tasks(text: str) -> tuple[str, ...]:
    tasks = tuple(text.split(","))
    if unknown := [task for task in tasks if task not in STAGES]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(STAGES)}")
    return tasks


if __name__ == "__main__":
    sys.exit(main())
