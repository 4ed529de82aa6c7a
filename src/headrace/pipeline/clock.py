"""Time as the pipeline reads it: one interface, so that the shipped code can run in virtual time.

Coroutines of the pipeline sleep with `asyncio.sleep` alone, which follows the clock of the
event loop they run on; whatever is written down or compared across processes is read here.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Seconds since the epoch, the same on every process of a run to within a second."""

    def now(self) -> float: ...


class SystemClock:
    def now(self) -> float:
        return time.time()
