"""A durable queue of work items in SQLite or Postgres: leases, fencing, retries, fair claims.

    items      what goes in and comes out        schema     the tables
    queue      the broker itself                 database   SQLite and Postgres, errors
    claiming   claims, by `pipeline.fair`        ledger     changes on their way to the shares
    moves      all other changes of state        reports    counts, groups, dead letters, waits

The pipeline and its workers know `open_broker`, `Broker` and the items; the rest knows nobody
above it.
"""

from headrace.pipeline.broker.items import (
    Backpressure,
    Dead,
    Done,
    GroupState,
    KindStats,
    Lease,
    Limits,
    Retry,
    ShareStats,
    Stats,
    Trouble,
    Wait,
    Work,
)
from headrace.pipeline.broker.queue import Broker, open_broker

__all__ = [
    "Backpressure",
    "Broker",
    "Dead",
    "Done",
    "GroupState",
    "KindStats",
    "Lease",
    "Limits",
    "Retry",
    "ShareStats",
    "Stats",
    "Trouble",
    "Wait",
    "Work",
    "open_broker",
]
