"""NEFTune (Jain et al. 2023): uniform noise on the embeddings of training passes.

The noise of a sample depends on the optimizer step, on the sample and on nothing else: not on
what shares its micro-batch, not on the layout, and not on whether the run was resumed.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from headrace.policy.engine import TorchPolicy
from headrace.types import Floats, Sample

__all__ = ["Noise", "noisy"]


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise of strength `alpha` (5 to 15 in the paper) for optimizer step `step` (from 0)."""

    alpha: float
    step: int

    def of(self, sample: Sample, width: int) -> Floats:
        """[n, width], uniform in +-alpha / sqrt(n width) for a sample of n tokens."""
        key = f"{self.step}\0{sample.group}\0{sample.trajectory}\0".encode()
        digest = hashlib.sha256(key + np.ascontiguousarray(sample.ids, "<i4").tobytes()).digest()
        draw = np.random.Generator(np.random.Philox(int.from_bytes(digest[:8], "little")))
        bound = self.alpha / math.sqrt(len(sample.ids) * width)
        unit = draw.random((len(sample.ids), width), dtype=np.float32)
        return (2 * unit - 1) * np.float32(bound)


@contextlib.contextmanager
def noisy(policy: TorchPolicy, values: Tensor | None) -> Generator[None]:
    """Inside, `values` [B, T, width] are added to the embeddings of a pass over [B, T] tokens."""
    if values is None:
        yield
        return
    added = values.to(policy.device)

    def add(_module: nn.Module, _inputs: Any, embedded: Tensor) -> Tensor:
        return embedded + added.to(embedded.dtype)

    handle = policy.parts.embeddings.register_forward_hook(add)
    try:
        yield
    finally:
        handle.remove()
