"""The static table of generators and their tiers, so that no name needs reasoning_gym itself.

`generators.json` is written by `survey` and checked against the library by a test. Tier t of
a generator is its curriculum level `levels[t]` (None: the default configuration).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["Generator", "Table", "table"]


@dataclass(frozen=True, slots=True)
class Generator:
    """A generator's usable levels, easiest first, and why the others are left out."""

    levels: tuple[int | None, ...]
    refused: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Table:
    """The version of reasoning_gym that was surveyed, and what it was found to offer."""

    version: str
    generators: Mapping[str, Generator]


@cache
def table() -> Table:
    """The committed table."""
    raw = json.loads(files("headrace_reasoning_gym").joinpath("generators.json").read_text("utf-8"))
    return Table(
        version=raw["reasoning_gym"],
        generators={
            name: Generator(tuple(entry["levels"]), entry["refused"])
            for name, entry in raw["generators"].items()
        },
    )
