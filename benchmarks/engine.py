"""The embedded engine against its peers, against the machine and against mathematics.

    python benchmarks/engine.py --check                      everything, exit 1 if a bar falls short
    python benchmarks/engine.py --quick --only decode,grpo   a first look
    python benchmarks/engine.py --quick --only roofline,parity    needs no peer

Each side runs in a process of its own, one at a time, with the same model, threads, prompts,
lengths and seeds; rounds alternate between the sides and medians are compared. The peers are
installed into environments of their own on first use. `docs/benchmarks.md` explains the rows.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from engine_cases import CASES, Bench
from engine_workload import Workload
from rich.console import Console
from rows import Row, passed, processor, table

from headrace.policy.cache import cache_root
from headrace.policy.pull import pull
from headrace.recipe import DEFAULT_MODEL


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    model = pull(options.model).directory
    bench = Bench(
        model=model,
        peers=options.peers,
        threads=options.threads,
        rounds=options.rounds or (2 if options.quick else 5),
        quick=options.quick,
        dtypes=options.dtypes,
        batches=options.batches or ((8, 32) if options.quick else (8, 32, 64)),
        workload=Workload(model),
    )
    rows: list[Row] = []
    try:
        for name in options.only:
            started = time.perf_counter()
            rows.extend(CASES[name](bench))
            print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted; this is what there is:", file=sys.stderr)
        finish(rows, check=False, output=options.json, threads=options.threads)
        return 130
    return finish(rows, check=options.check, output=options.json, threads=options.threads)


def finish(rows: Sequence[Row], *, check: bool, output: str | None, threads: int) -> int:
    """Show the rows, write them to `output` as JSON; 1 if `check` and any falls short."""
    Console(width=None if sys.stdout.isatty() else 150).print(table(rows))
    if output is not None:
        machine = {"processor": processor(), "threads": threads, "python": sys.version.split()[0]}
        result = {
            "machine": machine,
            "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "rows": [row.to_json() for row in rows],
            "passed": passed(rows),
        }
        Path(output).write_text(json.dumps(result, indent=1))
    return 1 if check and not passed(rows) else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar falls short")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller rounds")
    parser.add_argument("--json", metavar="FILE", help="write the result here")
    parser.add_argument("--only", type=_names(CASES), default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, help="of each measurement (5; with --quick 2)")
    parser.add_argument("--dtypes", type=_names(("bf16", "fp32")), default=("bf16", "fp32"))
    parser.add_argument("--batches", type=_numbers, help="of decode (8,32,64; with --quick 8,32)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--model", default=DEFAULT_MODEL, help=f"any source ({DEFAULT_MODEL})")
    parser.add_argument(
        "--peers",
        type=Path,
        default=cache_root() / "peers",
        metavar="DIR",
        help="where the peers' environments are or will be (%(default)s)",
    )
    return parser.parse_args(arguments)


class _names:
    """An argument type: comma-separated names out of `known`."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = tuple(known)

    def __call__(self, text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if unknown := [name for name in names if name not in self._known]:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown)}: not one of {', '.join(self._known)}"
            )
        return names


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
