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
    rank = {index: place for place, index in enumerate(order)}
    blocks = [[index] for index in order]
    if units is not None:
        blocks = sorted((list(unit) for unit in units), key=lambda u: min(rank[i] for i in u))

    def cut(members: list[int]) -> tuple[list[int], TokenTree]:
        ordered = sorted(members, key=rank.__getitem__)
        return ordered, grow([sequences[index] for index in ordered], shared=shared)

    counter, members = _Grower(shared=shared), list[int]()
    for block in blocks:
        for index in block:
            counter.add(sequences[index])
        if members and len(counter.ids) > budget:
            yield cut(members)
            counter, members = _Grower(shared=shared), []
            for index in block:
                counter.add(sequences[index])
        members += block
    if members:
        yield cut(members)
