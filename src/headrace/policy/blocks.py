"""Blocks of a key-value cache: who holds them, and which prefixes they already contain.

Bookkeeping only; the numbers in the blocks belong to a runner. A full block whose content is
known stays findable after its last holder let go, until its room is needed: prompts that share
a prefix, attempts of a group and later turns of a conversation find what is there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["BLOCK", "ROOT", "BlockPool", "Prefix"]

BLOCK = 16
"""Positions in a block."""

ROOT = 0
"""The node of the empty prefix."""

_Key = tuple[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Prefix:
    """What is cached of a sequence: `blocks` of its first tokens, and the node they end at."""

    blocks: tuple[int, ...]
    node: int


class BlockPool:
    """`size` blocks, numbered from 0, with reference counts and an index of prefixes.

    A node of the index stands for the exact tokens of one prefix of full blocks.

    >>> pool = BlockPool(4)
    >>> block = pool.take()
    >>> node = pool.register(ROOT, range(16), block)
    >>> pool.release([block])
    >>> pool.find([*range(16), 99], limit=17).blocks == (block,)
    True
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(range(size - 1, -1, -1))
        self._holders = [0] * size
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._index: dict[_Key, tuple[int, int]] = {}
        self._key_of: dict[int, _Key] = {}
        self._nodes = ROOT

    @property
    def held(self) -> int:
        """Blocks that somebody holds."""
        return self.size - len(self._free) - len(self._idle)

    def take(self) -> int:
        """A block of one's own; the longest unused prefix makes room if need be."""
        if self._free:
            block = self._free.pop()
        elif self._idle:
            block, _ = self._idle.popitem(last=False)
            self._forget(block)
        else:
            raise RuntimeError("a block was taken beyond what was admitted")
        self._holders[block] = 1
        return block

    def share(self, blocks: Sequence[int]) -> None:
        """Hold `blocks` once more."""
        for block in blocks:
            self._holders[block] += 1
            self._idle.pop(block, None)

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of `blocks` once; deeper ones become room first."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                if block in self._key_of:
                    self._idle[block] = None
                else:
                    self._free.append(block)

    # --- prefixes ------------------------------------------------------------------------

    def find(self, tokens: Sequence[int], *, limit: int) -> Prefix:
        """The longest cached prefix of `tokens` of at most `limit` tokens."""
        node, blocks = ROOT, list[int]()
        for start in range(0, limit - BLOCK + 1, BLOCK):
            entry = self._index.get((node, tuple(tokens[start : start + BLOCK])))
            if entry is None:
                break
            node, block = entry
            blocks.append(block)
        return Prefix(tuple(blocks), node)

    def register(self, parent: int, tokens: Sequence[int], block: int) -> int:
        """Make full `block`, holding `tokens` after prefix `parent`, findable; its node.

        Where the same prefix is known already, that one stays.
        """
        key = (parent, tuple(tokens))
        known = self._index.get(key)
        if known is not None:
            return known[0]
        self._nodes += 1
        self._index[key] = (self._nodes, block)
        self._key_of[block] = key
        return self._nodes

    def forget_all(self) -> None:
        """Make nothing findable: the weights changed, so what is cached is of an older model."""
        self._index.clear()
        self._key_of.clear()
        self._free += self._idle
        self._idle.clear()

    def _forget(self, block: int) -> None:
        del self._index[self._key_of.pop(block)]
