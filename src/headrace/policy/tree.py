"""Prefix trees: every distinct prefix of a set of sequences is computed once.

The samples of a group share their prompt, prompts share their system message, and late in
training most answers of a group are word for word the same. Merging equal prefixes into one
tree, with attention restricted to a token's own ancestors, gives each sequence exactly the
hidden states it would have alone, at the cost of the distinct tokens only.
"""

from __future__ import annotations

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
    def __init__(self) -> None:
        self.children: dict[tuple[int, int], int] = {}
        self.ids: list[int] = []
        self.depth: list[int] = []
        self.parent: list[int] = []
        self.paths: list[Indices] = []

    def missing(self, sequence: Ids) -> int:
        """How many nodes adding `sequence` would create."""
        node = -1
        for done, token in enumerate(sequence.tolist()):
            child = self.children.get((node, token))
            if child is None:
                return len(sequence) - done
            node = child
        return 0

    def add(self, sequence: Ids) -> None:
        node = -1
        path: list[int] = []
        for position, token in enumerate(sequence.tolist()):
            child = self.children.get((node, token))
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


def grow(sequences: Sequence[Ids]) -> TokenTree:
    """The prefix tree of all `sequences`."""
    grower = _Grower()
    for sequence in sequences:
        grower.add(sequence)
    return grower.finish()


def chunks(sequences: Sequence[Ids], budget: int) -> Iterator[tuple[list[int], TokenTree]]:
    """Cut `sequences` into trees of at most `budget` nodes (a longer one stands alone).

    Sequences are taken in lexicographic order, which puts shared prefixes side by side; each
    chunk names the indices of its sequences, in the order of its tree's paths.
    """
    order = sorted(range(len(sequences)), key=lambda i: sequences[i].tolist())
    grower, members = _Grower(), list[int]()
    for index in order:
        sequence = sequences[index]
        if members and len(grower.ids) + grower.missing(sequence) > budget:
            yield members, grower.finish()
            grower, members = _Grower(), []
        grower.add(sequence)
        members.append(index)
    if members:
        yield members, grower.finish()
