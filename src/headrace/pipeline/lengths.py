"""How long attempts are expected to be, from those that were: what work costs before it is done.

Used to charge work at its claim and to start what takes longest first, which shortens the tail
of a batch (longest processing time first: Graham 1969).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.environments.single_turn import Group
from headrace.types import Json, Trajectory

__all__ = ["Lengths"]

_WEIGHT = 0.1


class Lengths:
    """A moving average of sampled tokens per attempt, by domain and tier; `most` until known."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._means: dict[str, float] = {}

    def expected(self, group: Group) -> float:
        """Sampled tokens that one attempt of `group` is expected to take."""
        return self._means.get(_key(group.task.domain, group.task.tier), float(self._most))

    def cost(self, group: Group) -> float:
        return max(1.0, self.expected(group) * group.size)

    def longest_first(self, groups: Iterable[Group]) -> list[Group]:
        """`groups` by expected length, the longest first; in their order where it is the same."""
        return sorted(groups, key=lambda group: -self.expected(group))

    def observe(self, attempts: Iterable[Trajectory]) -> None:
        for attempt in attempts:
            key = _key(attempt.task.domain, attempt.task.tier)
            tokens = float(attempt.sampled_tokens)
            mean = self._means.get(key, tokens)
            self._means[key] = mean + _WEIGHT * (tokens - mean)

    def state(self) -> dict[str, Json]:
        return dict(self._means)

    def restore(self, state: Mapping[str, Json]) -> None:
        self._means = {key: float(mean) for key, mean in state.items()}


def _key(domain: str, tier: int) -> str:
    return f"{domain} {tier}"
