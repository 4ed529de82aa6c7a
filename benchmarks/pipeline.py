"""The asynchronous pipeline: what a lag gains, the queue, fairness, the store, and chaos.

python benchmarks/pipeline.py --check                all but chaos, exit 1 if a bar falls short
python benchmarks/pipeline.py --quick --json FILE    smaller, in a few minutes
python benchmarks/pipeline.py --only broker,store    one or more parts
python benchmarks/pipeline.py --only chaos           half an hour of kills
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pipeline_async
import pipeline_broker
import pipeline_chaos
import pipeline_overhead
import pipeline_store
from rich.console import Console
from rows import Row, passed, processor, table

from headrace.types import Json

Part = Callable[[bool, dict[str, Json]], list[Row]]

PARTS: dict[str, Part] = {
    "broker": pipeline_broker.rows,
    "store": pipeline_store.rows,
    "async": pipeline_async.rows,
    "overhead": pipeline_overhead.rows,
    "chaos": pipeline_chaos.rows,
}
USUAL = [name for name in PARTS if name != "chaos"]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    console = Console(stderr=True)
    rows: list[Row] = []
    told: dict[str, Json] = {}
    for name in options.only:
        began = time.perf_counter()
        console.print(f"{name} ...", markup=False)
        rows += PARTS[name](options.quick, told)
        console.print(f"  {time.perf_counter() - began:.0f} s", markup=False)
    Console(width=None if sys.stdout.isatty() else 150).print(table(rows))
    if options.json:
        report = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": processor(),
            "rows": [row.to_json() for row in rows],
            **told,
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if options.check and not passed(rows) else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar falls short")
    parser.add_argument("--quick", action="store_true", help="smaller")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here")
    parser.add_argument(
        "--only",
        type=lambda text: [_part(name) for name in text.split(",")],
        default=USUAL,
        help=f"{', '.join(PARTS)} (all but chaos)",
    )
    return parser.parse_args(arguments)


def _part(name: str) -> str:
    if name not in PARTS:
        raise argparse.ArgumentTypeError(f"no part {name!r}: {', '.join(PARTS)}")
    return name


if __name__ == "__main__":
    sys.exit(main())
