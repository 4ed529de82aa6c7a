"""Pairing what was found with what was expected, where order does not count.

May be known by every verifier; knows none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["pairs"]

A = TypeVar("A")
B = TypeVar("B")


def pairs(
    left: Sequence[A], right: Sequence[B], fits: Callable[[A, B], bool]
) -> list[tuple[int, int]]:
    """A largest set of pairs (index in `left`, index in `right`) that fit, each index once.

    Augmenting paths (Kuhn): a greedy choice could take the only partner of another. Asks `fits`
    once for each combination.

    >>> pairs([1, 2], [2, 1, 2], int.__eq__)
    [(0, 1), (1, 0)]
    """
    edges = [[j for j, there in enumerate(right) if fits(here, there)] for here in left]
    partner: dict[int, int] = {}
    for start in range(len(left)):
        _augment(start, edges, partner)
    return sorted((i, j) for j, i in partner.items())


def _augment(start: int, edges: Sequence[Sequence[int]], partner: dict[int, int]) -> None:
    """Give `start` a partner if any exchange along a path allows it (breadth first)."""
    came_from: dict[int, int] = {}
    waiting = [start]
    while waiting:
        i = waiting.pop(0)
        for j in edges[i]:
            if j in came_from:
                continue
            came_from[j] = i
            if j in partner:
                waiting.append(partner[j])
                continue
            _exchange(j, start, came_from, partner)
            return


def _exchange(free: int, start: int, came_from: dict[int, int], partner: dict[int, int]) -> None:
    mine = {i: j for j, i in partner.items()}
    j = free
    while True:
        i = came_from[j]
        before = mine.get(i)
        partner[j] = i
        if i == start or before is None:
            return
        j = before
