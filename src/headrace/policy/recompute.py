"""The runner of last resort: the whole sequence again for every token, with no cache.

For models whose attention is not redirected faithfully (attention sinks, position biases):
slow, and right for everything that has a forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.policy.engine import TorchPolicy
from headrace.policy.flat import FlatBatch

__all__ = ["RecomputeRunner"]


class RecomputeRunner:
    """Runs each wanted sequence from its first token; `blocks` only bound what is in flight."""

    name = "recompute"
    invariant = True

    def __init__(self, policy: TorchPolicy, *, blocks: int) -> None:
        self._policy = policy
        self.blocks = blocks

    def refresh(self) -> None:
        """Nothing is held."""

    def forward(self, batch: FlatBatch, wanted: Sequence[int]) -> Tensor:
        rows: list[Tensor] = []
        for index in wanted:
            span = batch.spans[index]
            ids = torch.tensor([list(span.tokens[: span.end])], device=self._policy.device)
            out = self._policy.forward(input_ids=ids, use_cache=False)
            rows.append(out.logits[0, -1:].float())
        return torch.cat(rows) if rows else torch.empty(0)

    def copy_block(self, source: int, target: int) -> None:
        """Nothing is held."""
