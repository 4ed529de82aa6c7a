"""Prefix trees: every distinct prefix of a set of sequences is computed once.

The samples of a group share their prompt, prompts share their system message, and late in
training most answers of a group are word for word the same. Merging equal prefixes into one
tree, with attention restricted to a token's own ancestors, gives each sequence exactly the
hidden states it would have alone, at the cost of the distinct tokens only.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.types import Ids

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Token ids [n] in an order where parents come first; `depth` [n] is the position.

    `paths[s]` lists the nodes of sequence s, root first: `ids[paths[s]]` is the sequence.

    >>> tree = grow([np.array([1, 2, 3], np.int32), np.array([1, 2, 4], np.int32)])
    >>> tree.ids.tolist(), tree.depth.tolist(), [p.tolist() for p in tree.paths]
    ([1, 2, 3, 4], [0, 1, 2, 2], [[0, 1, 2], [0, 1, 3]])
    """

    ids: Ids
    depth: Indices
    parent: Indices
    paths: tuple[Indices, ...]

    def __len__(self) -> int:
        return len(self.ids)


class _Grower:
    def __init__(self, *, shared: bool) -> None:
        self.shared = shared
        self.children: dict[tuple[int, int], int] = {}
        self.ids: list[int] = []
        self.depth: list[int] = []
        self.parent: list[int] = []
        self.paths: list[Indices] = []

    def add(self, sequence: Ids) -> None:
        node = -1
        path: list[int] = []
        for position, token in enumerate(sequence.tolist()):
            child = self.children.get((node, token)) if self.shared else None
            if child is None:
                child = len(self.ids)
                self.children[node, token] = child
                self.ids.append(token)
                self.depth.append(position)
                self.parent.append(node)
            node = child
            path.append(node)
        self.paths.append(np.array(path, dtype=np.int64))

    def finish(self) -> TokenTree:
        return TokenTree(
            ids=np.array(self.ids, dtype=np.int32),
            depth=np.array(self.depth, dtype=np.int64),
            parent=np.array(self.parent, dtype=np.int64),
            paths=tuple(self.paths),
        )


def grow(sequences: Sequence[Ids], *, shared: bool = True) -> TokenTree:
    """The prefix tree of all `sequences`; not `shared`, each has nodes of its own.

    >>> twice = [np.array([1, 2], np.int32)] * 2
    >>> grow(twice).parent.tolist(), grow(twice, shared=False).parent.tolist()
    ([-1, 0], [-1, 0, -1, 2])
    """
    grower = _Grower(shared=shared)
    for sequence in sequences:
        grower.add(sequence)
    return grower.finish()


def chunks(
    sequences: Sequence[Ids],
    budget: int,
    units: Sequence[Sequence[int]] | None = None,
    *,
    shared: bool = True,
) -> Iterator[tuple[list[int], TokenTree]]:
    """Cut `sequences` into trees of at most `budget` nodes (what is larger stands alone).

    Sequences are taken in lexicographic order, which puts shared prefixes side by side; each
    chunk names the indices of its sequences, in the order of its tree's paths. The sequences
    of one of `units` (lists of their indices; None: each by itself) stay in one tree.
    `shared` as in `grow`.
    """
    order = sorted(range(len(sequences)), key=lambda i: sequences[i].tolist())
    rows = [sequences[index] for index in order]
    blocks = [[place] for place in range(len(rows))]
    if units is not None:
        rank = {index: place for place, index in enumerate(order)}
        blocks = sorted(sorted(rank[index] for index in unit) for unit in units)

    def cut(places: list[int]) -> tuple[list[int], TokenTree]:
        places.sort()
        tree = grow([rows[place] for place in places], shared=shared)
        return [order[place] for place in places], tree

    counter, held = _Counter(rows, shared=shared), list[int]()
    for block in blocks:
        if held and counter.add(block) > budget:
            yield cut(held)
            counter, held = _Counter(rows, shared=shared), []
        if not held:
            counter.add(block)
        held += block
    if held:
        yield cut(held)


class _Counter:
    """How many nodes the tree of some of the sorted `rows` has, without making it."""

    def __init__(self, rows: Sequence[Ids], *, shared: bool) -> None:
        self._rows, self._shared = rows, shared
        self._places: list[int] = []
        self._nodes = 0

    def add(self, places: Sequence[int]) -> int:
        """The nodes with `places` too. What is shared is shared with a neighbour in the order."""
        for place in places:
            at = bisect.bisect(self._places, place)
            near = self._places[max(at - 1, 0) : at + 1] if self._shared else []
            row = self._rows[place]
            self._nodes += len(row) - max((_common(row, self._rows[n]) for n in near), default=0)
            self._places.insert(at, place)
        return self._nodes


def _common(one: Ids, other: Ids) -> int:
    """The length of the longest common prefix."""
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length
