"""What a sampler asks of a model: a flat batch of tokens over a paged key-value cache.

Runners answer it: `fused` with kernels of our own, `paged` with any `transformers` model,
`recompute` with models whose attention cannot be redirected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from headrace.policy.blocks import BLOCK

__all__ = ["FlatBatch", "Runner", "Span"]

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Span:
    """`count` new tokens of one sequence at positions `start`, `start` + 1, ...

    `tokens` is the sequence so far, at least `start + count` tokens; `blocks` hold its cache,
    room for the new ones included.
    """

    tokens: Sequence[int]
    start: int
    count: int
    blocks: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + self.count


class FlatBatch:
    """The new tokens of several sequences, one after the other: T tokens of S spans."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = tuple(spans)
        counts = np.array([span.count for span in spans])
        self.ends: Indices = np.cumsum(counts)
        """[S]: where each span ends in the flat batch; its last token is at `ends - 1`."""
        self.ids: Indices = np.concatenate(
            [np.asarray(s.tokens[s.start : s.end], dtype=np.int64) for s in spans]
        )
        self.positions: Indices = np.concatenate([np.arange(s.start, s.end) for s in spans])
        self.owner: Indices = np.repeat(np.arange(len(spans)), counts)
        width = max(len(span.blocks) for span in spans)
        self.table: npt.NDArray[np.int32] = np.zeros((len(spans), width), dtype=np.int32)
        for row, span in enumerate(spans):
            self.table[row, : len(span.blocks)] = span.blocks

    @property
    def slots(self) -> Indices:
        """[T]: block x 16 + offset, where each token's keys and values go."""
        block = self.table[self.owner, self.positions // BLOCK].astype(np.int64)
        return block * BLOCK + self.positions % BLOCK


class Runner(Protocol):
    """A model over a cache of `blocks` blocks, with the weights of its last `refresh`."""

    @property
    def name(self) -> str: ...

    @property
    def invariant(self) -> bool:
        """Whether a sequence gets the same bits whatever else is in its batches."""
        ...

    @property
    def blocks(self) -> int: ...

    def refresh(self) -> None:
        """Take over the policy's current weights."""
        ...

    def forward(self, batch: FlatBatch, wanted: Sequence[int]) -> Tensor:
        """Logits [W, V], fp32, after the last token of each span in `wanted`."""
        ...

    def copy_block(self, source: int, target: int) -> None:
        """Give `target` the cache content of `source`."""
        ...
