"""Slots: what bounds staleness, and the ledger that nothing leaves unnoticed.

A group takes a slot when it is admitted and gives it back only after it was trained on, or
rejected for a named reason. With (max_lag + 1) x groups-a-step slots, no sample can be more
than `max_lag` versions old when it is trained on; nothing is dropped for its age.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from headrace.types import Json

__all__ = ["Slots"]


class Slots:
    """`capacity` slots; each holds a group and the policy version it was admitted under."""

    def __init__(self, *, groups_per_step: int, max_lag: int) -> None:
        self.capacity = (max_lag + 1) * groups_per_step
        self.max_lag = max_lag
        self._held: dict[str, int] = {}
        self._admitted = 0
        self._trained = 0
        self._rejected: Counter[str] = Counter()

    @property
    def free(self) -> int:
        return self.capacity - len(self._held)

    def admit(self, group: str, version: int) -> None:
        """Take a slot for `group`, to be played by policy `version`."""
        if not self.free:
            raise RuntimeError(f"no slot is free for {group}: all {self.capacity} are held")
        if group in self._held:
            raise RuntimeError(f"{group} holds a slot already")
        self._held[group] = version
        self._admitted += 1

    def trained(self, group: str, version: int) -> None:
        """Free the slot of a group that policy `version` was trained on."""
        lag = version - self._held.pop(group)
        if lag > self.max_lag:
            raise RuntimeError(f"{group} was {lag} versions old; at most {self.max_lag} may be")
        self._trained += 1

    def rejected(self, group: str, reason: str) -> None:
        """Free the slot of a group that is not trained on, and say why."""
        del self._held[group]
        self._rejected[reason] += 1

    def ledger(self) -> dict[str, Json]:
        """Counts since the start; admitted = trained + all rejected + held."""
        return {
            "admitted": self._admitted,
            "trained": self._trained,
            "rejected": dict(sorted(self._rejected.items())),
            "held": len(self._held),
        }

    def restore(self, ledger: Mapping[str, Json]) -> None:
        """Take over the counts of a checkpoint; its held groups are admitted anew."""
        self._held.clear()
        self._admitted = int(ledger["admitted"]) - int(ledger["held"])
        self._trained = int(ledger["trained"])
        self._rejected = Counter(dict(ledger["rejected"]))
