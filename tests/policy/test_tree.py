from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.policy.tree import chunks, grow
from headrace.types import Ids

sequences = st.lists(
    st.lists(st.integers(0, 3), min_size=1, max_size=6).map(lambda x: np.array(x, np.int32)),
    min_size=1,
    max_size=8,
)


@given(sequences)
def test_every_path_spells_its_sequence(rows: list[Ids]) -> None:
    tree = grow(rows)
    for path, row in zip(tree.paths, rows, strict=True):
        assert tree.ids[path].tolist() == row.tolist()
        assert tree.depth[path].tolist() == list(range(len(row)))


@given(sequences)
def test_a_tree_has_one_node_for_each_distinct_prefix(rows: list[Ids]) -> None:
    prefixes = {tuple(row[: k + 1].tolist()) for row in rows for k in range(len(row))}
    assert len(grow(rows)) == len(prefixes)


@given(sequences, st.integers(1, 12))
def test_chunks_hold_each_sequence_once_and_keep_the_budget(rows: list[Ids], budget: int) -> None:
    held: list[int] = []
    for members, tree in chunks(rows, budget):
        held += members
        assert len(tree) <= budget or len(members) == 1
        for member, path in zip(members, tree.paths, strict=True):
            assert tree.ids[path].tolist() == rows[member].tolist()
    assert sorted(held) == list(range(len(rows)))
