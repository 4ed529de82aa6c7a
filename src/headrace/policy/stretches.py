"""Attention over one stretch of keys, with its normaliser: results over several can be merged.

Softmax over the union of two key sets is the average of the softmaxes over each, weighted by
their normalisers. And the backward pass of one stretch needs nothing of the others but the
merged output and normaliser (Dao et al. 2022, section 3.1). So attention to a prefix and to
oneself are two calls, neither of which needs a mask or a copy of the keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

__all__ = [
    "HIDDEN",
    "EagerKernel",
    "FlashKernel",
    "Kernel",
    "KernelGradients",
    "KernelResult",
    "merge",
]

HIDDEN = -1e30
"""What a mask adds to the score of a key that is not seen: finite, so that a query which sees
no key of a stretch has a normaliser that weighs nothing, instead of a NaN."""


@dataclass(frozen=True, slots=True)
class KernelResult:
    """`out` [B, heads, q, width] and the natural logarithm of the normaliser [B, heads, q]."""

    out: Tensor
    lse: Tensor


@dataclass(frozen=True, slots=True)
class KernelGradients:
    """Of query, key and value, in their shapes."""

    query: Tensor
    key: Tensor
    value: Tensor


class Kernel(Protocol):
    """`query` [B, heads, q, width], `key` and `value` [B, kv_heads, k, width].

    `causal` (q = k) hides later keys; `mask`, broadcast to [B, heads, q, k], is added to the
    scores.
    """

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, causal: bool, mask: Tensor | None
    ) -> KernelResult: ...

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        merged: KernelResult,
        *,
        causal: bool,
        mask: Tensor | None,
    ) -> KernelGradients:
        """The share of these keys, given the output and normaliser over all keys."""
        ...


@dataclass(frozen=True, slots=True)
class FlashKernel:
    """PyTorch's fused attention for CPUs: no score matrix in either direction."""

    scaling: float

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, causal: bool, mask: Tensor | None
    ) -> KernelResult:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
            query, key, value, 0.0, causal, attn_mask=_like(mask, query), scale=self.scaling
        )
        return KernelResult(out, lse)

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        merged: KernelResult,
        *,
        causal: bool,
        mask: Tensor | None,
    ) -> KernelGradients:
        return KernelGradients(
            *torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
                grad,
                query,
                key,
                value,
                merged.out,
                merged.lse,
                0.0,
                causal,
                attn_mask=_like(mask, query),
                scale=self.scaling,
            )
        )


@dataclass(frozen=True, slots=True)
class EagerKernel:
    """The same in plain operations, for other devices and for scores that are capped.

    Holds q x k scores while it runs and none between the passes; computes in fp32.
    """

    scaling: float
    softcap: float | None

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, causal: bool, mask: Tensor | None
    ) -> KernelResult:
        with torch.autocast(query.device.type, enabled=False):
            q, k, v = (t.float() for t in (query, *_repeated(query, key, value)))
            scores = self._scores(q, k, causal, mask)
            lse = torch.logsumexp(scores, dim=-1)
            out = torch.exp(scores - lse[..., None]) @ v
        return KernelResult(out.to(query.dtype), lse)

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        merged: KernelResult,
        *,
        causal: bool,
        mask: Tensor | None,
    ) -> KernelGradients:
        with torch.autocast(query.device.type, enabled=False):
            q, k, v = (t.float() for t in (query, *_repeated(query, key, value)))
            g = grad.float()
            scores = self._scores(q, k, causal, mask)
            weights = torch.exp(scores - merged.lse[..., None])
            delta = (g * merged.out.float()).sum(dim=-1, keepdim=True)
            d_scores = weights * (g @ v.transpose(-1, -2) - delta)
            if self.softcap is not None:
                seen = weights > 0
                d_scores = d_scores * (1 - (scores / self.softcap).square()).where(seen, 0.0)
            d_scores = d_scores * self.scaling
            d_key = d_scores.transpose(-1, -2) @ q
            d_value = weights.transpose(-1, -2) @ g
        return KernelGradients(
            (d_scores @ k).to(query.dtype),
            _summed(d_key, key).to(key.dtype),
            _summed(d_value, value).to(value.dtype),
        )

    def _scores(self, q: Tensor, k: Tensor, causal: bool, mask: Tensor | None) -> Tensor:
        scores = (q @ k.transpose(-1, -2)) * self.scaling
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(later, HIDDEN)
        return scores if mask is None else scores + mask


def _like(mask: Tensor | None, query: Tensor) -> Tensor | None:
    return None if mask is None else mask.to(query.dtype)


def _repeated(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values once for each query head."""
    groups = query.shape[1] // key.shape[1]
    if groups == 1:
        return key, value
    return key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)


def _summed(gradient: Tensor, like: Tensor) -> Tensor:
    """The gradient of repeated heads, over the heads that were repeated."""
    heads = like.shape[1]
    if gradient.shape[1] == heads:
        return gradient
    return gradient.unflatten(1, (heads, -1)).sum(dim=2)


def merge(into: KernelResult, other: KernelResult) -> None:
    """Add `other`, over further keys, to `into` in place."""
    lse = torch.logaddexp(into.lse, other.lse)
    mine = torch.exp(into.lse - lse)[..., None].to(into.out.dtype)
    theirs = torch.exp(other.lse - lse)[..., None].to(into.out.dtype)
    into.out.mul_(mine).addcmul_(other.out, theirs)
    into.lse.copy_(lse)
