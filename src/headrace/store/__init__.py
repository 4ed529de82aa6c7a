"""The store: the truth of a run, on the disk before anything depends on it.

Files that survive a kill at any instant (`files`), the event log (`events`), the trajectory store
(`trajectories`, which says what lies below it), checkpoints, run directories (`runs`) and what a
run amounts to (`summary`). Nobody else writes into a run directory; nothing here can train.
"""

from headrace.store.checkpoints import Checkpoint, Checkpoints
from headrace.store.events import Divergence, Event, EventLog, read_events
from headrace.store.runs import RunDirectory, RunInfo, RunStatus, find, list_runs
from headrace.store.summary import RunSummary, summarise
from headrace.store.trajectories import (
    Admitted,
    Appended,
    Consumed,
    Judged,
    TrajectoryStore,
    Wave,
)

__all__ = [
    "Admitted",
    "Appended",
    "Checkpoint",
    "Checkpoints",
    "Consumed",
    "Divergence",
    "Event",
    "EventLog",
    "Judged",
    "RunDirectory",
    "RunInfo",
    "RunStatus",
    "RunSummary",
    "TrajectoryStore",
    "Wave",
    "find",
    "list_runs",
    "read_events",
    "summarise",
]
