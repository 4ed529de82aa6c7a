"""The table of a benchmark: rows with their bars, and how they are shown."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["Part", "Row", "passed", "processor", "run_parts", "table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: what was measured, round by round, and how much is enough.

    `ours` and `theirs` are in `unit`; the comparison is between their medians. With `bar` the
    ratio must be at least that; with `most` the value of headrace itself must be at most that.
    `least` asks the same from below. With none of them the row only informs. `unavailable` says
    why a side could not be measured.
    """

    what: str
    peer: str
    unit: str
    ours: tuple[float, ...] = ()
    theirs: tuple[float, ...] = ()
    bar: float | None = None
    most: float | None = None
    least: float | None = None
    unavailable: str | None = None

    @property
    def value(self) -> float | None:
        return statistics.median(self.ours) if self.ours else None

    @property
    def peer_value(self) -> float | None:
        return statistics.median(self.theirs) if self.theirs else None

    @property
    def ratio(self) -> float | None:
        if self.value is None or not self.peer_value:
            return None
        return self.value / self.peer_value

    @property
    def passed(self) -> bool | None:
        """None where nothing was asked of the row. What could not be measured has failed."""
        if self.unavailable is not None:
            return False
        if self.bar is not None:
            return self.ratio is not None and self.ratio >= self.bar
        if self.most is not None:
            return self.value is not None and self.value <= self.most
        if self.least is not None:
            return self.value is not None and self.value >= self.least
        return None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "value": self.value,
            "peer_value": self.peer_value,
            "ratio": self.ratio,
            "passed": self.passed,
        }


def passed(rows: Sequence[Row]) -> bool:
    """Whether there are rows and none of them falls short."""
    return bool(rows) and all(row.passed is not False for row in rows)


def table(rows: Sequence[Row]) -> Table:
    """The rows, for a console."""
    shown = Table("what", "against", "unit", "headrace", "peer", "ratio", "bar", "")
    for row in rows:
        verdict = {True: "pass", False: "FAIL", None: "-"}[row.passed]
        shown.add_row(
            row.what,
            row.peer,
            row.unit,
            _number(row.value),
            _number(row.peer_value),
            _number(row.ratio),
            _bar(row),
            verdict if row.unavailable is None else f"FAIL unavailable: {row.unavailable}",
        )
    return shown


def _bar(row: Row) -> str:
    if row.bar is not None:
        return f"at least {row.bar:g}x"
    if row.most is not None:
        return f"at most {row.most:g}"
    return "-" if row.least is None else f"at least {row.least:g}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def processor() -> str:
    """The name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.partition(":")[2].strip() for x in lines if "model name" in x), "unknown")


Part = Callable[[bool, dict[str, Any]], list[Row]]
"""Measures, quickly or not, and may tell more for the JSON."""


def run_parts(
    told_by: str,
    parts: Mapping[str, Part],
    *,
    usual: Sequence[str] | None = None,
    arguments: Sequence[str] | None = None,
) -> int:
    """The command line of a benchmark in parts: measure, show the table, write JSON; exit code.

    `told_by` is the script's docstring; `usual` are the parts that run unless `--only` says so.
    """
    options = _options(told_by, parts, list(parts) if usual is None else list(usual), arguments)
    console = Console(stderr=True)
    rows: list[Row] = []
    told: dict[str, Any] = {}
    for name in options.only:
        began = time.perf_counter()
        console.print(f"{name} ...", markup=False)
        rows += parts[name](options.quick, told)
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


def _options(
    told_by: str,
    parts: Mapping[str, Part],
    usual: list[str],
    arguments: Sequence[str] | None,
) -> argparse.Namespace:
    def named(text: str) -> list[str]:
        for name in text.split(","):
            if name not in parts:
                raise argparse.ArgumentTypeError(f"no part {name!r}: {', '.join(parts)}")
        return text.split(",")

    parser = argparse.ArgumentParser(description=told_by.partition("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar falls short")
    parser.add_argument("--quick", action="store_true", help="smaller")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here")
    parser.add_argument(
        "--only",
        type=named,
        default=usual,
        help=f"of {', '.join(parts)} (usually {', '.join(usual)})",
    )
    return parser.parse_args(arguments)
