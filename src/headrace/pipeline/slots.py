"""Slots: what bounds staleness, and the ledger that nothing leaves unnoticed.

A group takes a slot when it is admitted and gives it back only after it was trained on, or
rejected for a named reason. With (max_lag + 1) x groups-a-step slots, and steps that never put
off what could not be put off any longer (`choose`), no sample is more than `max_lag` versions
old when it is trained on; nothing is dropped for its age.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass

from headrace.types import Json

__all__ = ["Choice", "Slots", "choose"]


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
        return max(0, self.capacity - len(self._held))

    @property
    def held(self) -> Mapping[str, int]:
        """The groups that hold a slot, oldest first, and the version each was admitted under."""
        return self._held

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

    def restore(self, ledger: Mapping[str, Json], held: Mapping[str, int] | None = None) -> None:
        """Take over the counts of a checkpoint, and the groups that hold a slot since then.

        Those may be more than the checkpoint's, or than there are slots: a run that was killed
        had admitted them after its last checkpoint. No other is admitted before they are done.
        """
        self._held = dict(held or {})
        self._trained = int(ledger["trained"])
        self._rejected = Counter(dict(ledger["rejected"]))
        self._admitted = self._trained + self._rejected.total() + len(self._held)


@dataclass(frozen=True, slots=True)
class Choice:
    """The groups to train on now, oldest first; or those that have to be ready before that."""

    groups: tuple[str, ...]
    awaited: tuple[str, ...]


def choose(
    held: Mapping[str, int], ready: Set[str], *, version: int, groups: int, max_lag: int
) -> Choice:
    """Which `groups` of the `held` ones policy `version` is trained on next.

    `held` maps groups, oldest first, to the version they were admitted under; a group may be
    trained on up to `max_lag` versions later. Ready groups go first, oldest before younger,
    but never at the price of a group that would then be too old at some later step: with
    `groups` of them a step, of those that may wait until version d at most
    groups x (d - version) may be put off. (Earliest deadline first, relaxed as far as it stays
    feasible.) More than `groups` are taken where that cannot be met otherwise.

    A slow group does not hold up the step until it is at its limit:

    >>> choose({"slow": 0, "b": 0, "c": 1}, {"b", "c"}, version=1, groups=1, max_lag=2).groups
    ('b',)
    >>> choose({"slow": 0, "c": 1}, {"c"}, version=2, groups=1, max_lag=2).awaited
    ('slow',)
    """
    order = list(held)
    deadline = {group: held[group] + max_lag for group in order}
    taken: list[str] = []
    for last in sorted(set(deadline.values())):
        within = [group for group in order if deadline[group] <= last]
        must = len(within) - groups * max(0, last - version)
        short = must - sum(deadline[group] <= last for group in taken)
        if short <= 0:
            continue
        able = [group for group in within if group in ready and group not in taken]
        if len(able) < short:
            return Choice((), tuple(group for group in within if group not in ready))
        taken += able[:short]
    rest = [group for group in order if group in ready and group not in taken]
    taken += rest[: max(0, groups - len(taken))]
    if len(taken) < groups:
        return Choice((), tuple(group for group in order if group not in ready))
    return Choice(tuple(sorted(taken, key=order.index)), ())
