"""A writer of artifacts to be killed: says on stdout which one is durable."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from cards_support import artifact_in, card_of, filler
from headrace.store.models import write_artifact


def write_many(runs: Path) -> None:
    """New artifacts, and the same place again and again."""
    number = len(list(runs.glob("run-*/artifact")))
    while True:
        artifact_in(runs, f"run-{number}", seed=number)
        artifact_in(runs, "again", seed=number)
        print(number, flush=True)
        number += 1


def die_inside(runs: Path) -> None:
    """Killed in the middle of filling in."""

    def fill(directory: Path) -> None:
        filler(1)(directory)
        os.kill(os.getpid(), signal.SIGKILL)

    write_artifact(runs / "run" / "artifact", card_of(), fill)


if __name__ == "__main__":
    {"many": write_many, "inside": die_inside}[sys.argv[1]](Path(sys.argv[2]))
