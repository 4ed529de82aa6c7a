"""What queue and store cost the quickstart: their calls timed inside a real run."""

from __future__ import annotations

import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from unittest.mock import patch

from rows import Row

from headrace.configure import load_recipe
from headrace.observe.listener import QuietListener
from headrace.pipeline.broker import Broker
from headrace.pipeline.session import start
from headrace.store.events import read_events
from headrace.store.trajectories import TrajectoryStore
from headrace.types import Json

MOST_PERCENT = 3.0
QUEUE = ("enqueue", "claim", "commit", "fail", "heartbeat", "expire", "cancel", "reset")
STORE = ("append", "append_nowait", "append_wave", "wave")


def rows(quick: bool, told: dict[str, Json]) -> list[Row]:
    """Seconds in the queue and the store over the seconds of all steps, in percent.

    Calls of the store in other threads count in full, as if nothing ran beside them.
    """
    steps = 2 if quick else 6
    recipe = load_recipe("quickstart", [f"steps={steps}", "evaluate.items=0"]).recipe
    spent: defaultdict[str, float] = defaultdict(float)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for owner, names in ((Broker, QUEUE), (TrajectoryStore, STORE)):
            for name in names:
                stack.enter_context(_timed(owner, name, spent))
        directory = Path(folder) / "run"
        start(recipe, runs=Path(folder), directory=directory, listener=QuietListener())
        steps_told = [e for e in read_events(directory / "events.jsonl") if e.kind == "step"]
    wall = sum(event.timing["seconds"] for event in steps_told)
    told["overhead"] = {"wall_s": wall, "spent_s": dict(spent)}
    return [
        Row(
            what="queue and store in the quickstart",
            peer="its wall time",
            unit="%",
            ours=(100 * sum(spent.values()) / wall,),
            most=MOST_PERCENT,
        )
    ]


@contextmanager
def _timed(owner: type, name: str, spent: defaultdict[str, float]) -> Generator[None]:
    inner: Callable[..., object] = getattr(owner, name)
    lock = threading.Lock()

    @wraps(inner)
    def call(*arguments: object, **named: object) -> object:
        began = time.perf_counter()
        try:
            return inner(*arguments, **named)
        finally:
            with lock:
                spent[f"{owner.__name__}.{name}"] += time.perf_counter() - began

    with patch.object(owner, name, call):
        yield
