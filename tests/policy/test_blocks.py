from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.policy.blocks import BLOCK, ROOT, BlockPool


def chain(pool: BlockPool, tokens: list[int]) -> list[int]:
    """Blocks of one's own for the full blocks of `tokens`, all made findable."""
    node, blocks = ROOT, list[int]()
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        block = pool.take()
        node = pool.register(node, tokens[start : start + BLOCK], block)
        blocks.append(block)
    return blocks


def test_a_released_prefix_is_found_until_its_room_is_needed() -> None:
    pool = BlockPool(3)
    tokens = list(range(2 * BLOCK))
    blocks = chain(pool, tokens)
    pool.release(blocks)
    assert pool.held == 0
    assert pool.find([*tokens, 1], limit=33).blocks == tuple(blocks)
    taken = [pool.take(), pool.take()]
    assert blocks[1] in taken, "the deeper block makes room first"
    assert pool.find([*tokens, 1], limit=33).blocks == (blocks[0],)


def test_only_whole_blocks_up_to_the_limit_are_found() -> None:
    pool = BlockPool(4)
    tokens = list(range(2 * BLOCK))
    blocks = chain(pool, tokens)
    assert pool.find(tokens, limit=2 * BLOCK - 1).blocks == (blocks[0],)
    assert pool.find(tokens[:20], limit=19).blocks == (blocks[0],)
    assert pool.find(tokens[1:], limit=30).blocks == ()


def test_the_same_tokens_after_another_prefix_are_another_prefix() -> None:
    pool = BlockPool(4)
    same = [7] * BLOCK
    chain(pool, [*range(BLOCK), *same])
    assert pool.find([*([3] * BLOCK), *same], limit=2 * BLOCK).blocks == ()


def test_nothing_is_found_after_the_weights_changed() -> None:
    pool = BlockPool(2)
    tokens = list(range(BLOCK))
    blocks = chain(pool, tokens)
    pool.forget_all()
    assert pool.find([*tokens, 1], limit=17).blocks == ()
    pool.release(blocks)
    assert [pool.take(), pool.take()], "all room can be had again"


def test_more_than_was_admitted_cannot_be_taken() -> None:
    pool = BlockPool(1)
    pool.take()
    with pytest.raises(RuntimeError, match="beyond what was admitted"):
        pool.take()


class PoolMachine(RuleBasedStateMachine):
    """Against a model that only counts: a block has one owner until it is shared."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(6)
        self.holdings: list[list[int]] = []
        self.serial = 0

    @property
    def counts(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        for blocks in self.holdings:
            for block in blocks:
                counts[block] = counts.get(block, 0) + 1
        return counts

    @precondition(lambda self: len(self.counts) < 6)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType, reportUnknownMemberType]
    @rule(named=st.booleans())
    def take(self, named: bool) -> None:
        block = self.pool.take()
        assert block not in self.counts
        self.holdings.append([block])
        if named:
            self.serial += 1
            self.pool.register(ROOT, [self.serial] * BLOCK, block)

    @precondition(lambda self: bool(self.holdings))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType, reportUnknownMemberType]
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        blocks = data.draw(st.sampled_from(self.holdings))
        self.pool.share(blocks)
        self.holdings.append(list(blocks))

    @precondition(lambda self: bool(self.holdings))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType, reportUnknownMemberType]
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.holdings) - 1))
        self.pool.release(self.holdings.pop(index))

    @rule()
    def forget(self) -> None:
        self.pool.forget_all()

    @invariant()
    def as_many_are_held_as_have_a_holder(self) -> None:
        assert self.pool.held == len(self.counts)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=70), min_size=1, max_size=6))
def test_what_is_found_holds_exactly_the_tokens_asked_for(sequences: list[list[int]]) -> None:
    pool = BlockPool(64)
    content: dict[int, tuple[int, ...]] = {}
    for tokens in sequences:
        found = pool.find(tokens, limit=len(tokens))
        for number, block in enumerate(found.blocks):
            assert content[block] == tuple(tokens[: (number + 1) * BLOCK])
        node = found.node
        for start in range(len(found.blocks) * BLOCK, len(tokens) - BLOCK + 1, BLOCK):
            block = pool.take()
            content[block] = tuple(tokens[: start + BLOCK])
            node = pool.register(node, tokens[start : start + BLOCK], block)
