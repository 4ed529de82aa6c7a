"""Writes `generators.json`: which curriculum levels of which generators can be trained on.

    python -m headrace_reasoning_gym.survey [NAME ...] > generators.json

A level is left out, with its reason, if its configuration is invalid, repeats the one before,
finds no sound entry, takes too much CPU for a task, writes questions or answers that are too
long, or knows no solution that would prove its scorer. A generator without a usable level falls
back on its default configuration. With names, the other generators keep what the committed
table says. Takes about half an hour; for maintainers, after an upgrade of reasoning_gym.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from importlib.metadata import version

from headrace.errors import UsageError
from headrace.types import Json
from headrace.verify.child import Child, ChildSpent
from headrace_reasoning_gym import (
    ATTEMPTS,
    EXCLUDED,
    MAKE_CPU,
    MAX_CHARACTERS,
    SOLVE_CPU,
    WORKER,
)
from headrace_reasoning_gym.table import table

__all__ = ["main"]

SAMPLES = 16
MEAN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What a level's samples showed: a reason to leave it out, or its configuration."""

    reason: str | None
    configuration: str = ""


def _look(child: Child, generator: str, level: int | None) -> Finding:
    spent = 0.0
    for index in range(SAMPLES):
        errors: list[str] = []
        reply: Json = None
        for attempt in range(ATTEMPTS):
            request = {"op": "make", "generator": generator, "level": level}
            request |= {"index": index, "attempt": attempt}
            try:
                reply = child.call(request, deadline=600.0, cpu=MAKE_CPU)
            except ChildSpent:
                reply = {"error": f"takes more than {MAKE_CPU:g} s of CPU"}
                spent += MAKE_CPU
            if spent > SAMPLES * MEAN_SECONDS:
                return Finding(f"takes more than {MEAN_SECONDS:g} s of CPU a task")
            if "error" not in reply:
                break
            errors.append(reply["error"])
        else:
            return Finding(f"no sound entry in {ATTEMPTS} attempts; the first: {errors[0]}")
        for part in ("question", "answer"):
            if len(reply[part] or "") > MAX_CHARACTERS:
                return Finding(f"its {part} can have more than {MAX_CHARACTERS} characters")
        if not _solved(child, {"generator": generator, "level": level, "seed": reply["seed"]}):
            return Finding("no solution is known that would prove its scorer")
        spent += reply["seconds"]
    request = {"op": "configuration", "generator": generator, "level": level}
    return Finding(None, child.call(request, deadline=60.0))


def _solved(child: Child, entry: dict[str, Json]) -> bool:
    try:
        reply = child.call({"op": "solve", **entry}, deadline=600.0, cpu=SOLVE_CPU)
    except ChildSpent:
        return False
    return reply["answer"] is not None


def _entry(child: Child, generator: str, count: int) -> Json:
    levels: list[int | None] = []
    refused: dict[str, str] = {}
    before = ""
    for level in range(count):
        finding = _look(child, generator, level)
        reason = finding.reason
        if reason is None and finding.configuration == before:
            reason = "the same configuration as the level before"
        print(generator, level, reason or "good", file=sys.stderr, flush=True)
        if reason is None:
            levels.append(level)
            before = finding.configuration
        else:
            refused[str(level)] = reason
    if not levels:
        finding = _look(child, generator, None)
        print(generator, None, finding.reason or "good", file=sys.stderr, flush=True)
        levels.append(None)
        if finding.reason is not None:
            refused["default"] = finding.reason
    return {"levels": levels, "refused": refused}


def main(names: list[str]) -> None:
    child = Child(WORKER)
    described = child.call({"op": "describe"}, deadline=60.0)
    unknown = set(names) - set(described)
    if unknown:
        raise UsageError(f"no generator named {', '.join(sorted(unknown))}")
    generators: dict[str, Json] = {}
    for name in sorted(set(described) - set(EXCLUDED)):
        if name in (names or described):
            generators[name] = _entry(child, name, described[name])
        else:
            kept = table().generators[name]
            generators[name] = {"levels": list(kept.levels), "refused": dict(kept.refused)}
    child.close()
    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in generators.items()]
    print(f'{{"reasoning_gym": "{version("reasoning-gym")}", "generators": {{')
    print(",\n".join(lines))
    print("}}")


if __name__ == "__main__":
    main(sys.argv[1:])
