"""The general runner: any `transformers` model over a paged key-value cache.

The model computes a flat batch of tokens with its own code; only its attention is ours (see
`attention`). Keys and values live in blocks, gathered for each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from headrace.policy.attention import AttentionCall, attending
from headrace.policy.blocks import BLOCK
from headrace.policy.engine import TorchPolicy
from headrace.policy.flat import FlatBatch

__all__ = ["CacheShape", "PagedRunner", "cache_shapes"]


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one layer keeps of a token: keys and values [heads, width] in `dtype`."""

    heads: int
    width: int
    dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        return 2 * self.heads * self.width * self.dtype.itemsize


class _Chain:
    """Plain causal attention of one sequence, noting what a cache would have to hold."""

    def __init__(self) -> None:
        self.shapes: dict[int, CacheShape] = {}

    def attend(self, call: AttentionCall) -> Tensor:
        heads, _, width = call.key.shape
        self.shapes[call.layer] = CacheShape(heads, width, call.key.dtype)
        places = torch.arange(call.query.shape[1], device=call.query.device)
        return attention(call, call.key, call.value, visible(places, places, call.window))


def cache_shapes(policy: TorchPolicy) -> tuple[CacheShape, ...] | None:
    """Per layer, what the cache holds; None if the model's attention cannot be redirected.

    Found by trying: a model that ignores the plan, or wants more of its attention than the
    plan is told, gives other logits than by itself.
    """
    limit = policy.context_length or 24
    ids = (torch.arange(min(24, limit), device=policy.device) * 7 % int(policy.config.vocab_size))[
        None
    ]
    positions = torch.arange(ids.shape[1], device=policy.device)[None]
    plan = _Chain()
    with torch.inference_mode():
        alone = policy.forward(input_ids=ids, use_cache=False).logits
        try:
            with attending(policy.config, plan):
                flat = policy.forward(input_ids=ids, position_ids=positions, use_cache=False).logits
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError):
            return None
    layers = int(policy.config.get_text_config().num_hidden_layers)
    if sorted(plan.shapes) != list(range(layers)):
        return None
    if not torch.allclose(alone.float(), flat.float(), rtol=2e-2, atol=2e-2):
        return None
    return tuple(plan.shapes[index] for index in range(layers))


class PagedRunner:
    """Runs the policy's model over a cache of as many blocks as fit in `memory` bytes.

    With `alone`, every sequence is computed by itself: slower, and the same bits whatever
    else is being sampled (the reference mode).
    """

    def __init__(
        self, policy: TorchPolicy, shapes: Sequence[CacheShape], *, memory: int, alone: bool = False
    ) -> None:
        self._policy = policy
        self.invariant = alone
        self.blocks = memory // (BLOCK * sum(shape.token_bytes for shape in shapes))
        self._cache = [
            (self._room(shape, policy.device), self._room(shape, policy.device)) for shape in shapes
        ]

    def _room(self, shape: CacheShape, device: torch.device) -> Tensor:
        return torch.empty(
            self.blocks, BLOCK, shape.heads, shape.width, dtype=shape.dtype, device=device
        )

    @property
    def name(self) -> str:
        return "reference" if self.invariant else "general"

    def refresh(self) -> None:
        """Nothing to do: the policy's module itself is what runs."""

    def forward(self, batch: FlatBatch, wanted: Sequence[int]) -> Tensor:
        if not self.invariant:
            return self._forward(batch, wanted)
        rows: list[Tensor] = []
        for index, span in enumerate(batch.spans):
            needed = [0] if index in wanted else []
            rows.append(self._forward(FlatBatch([span]), needed))
        return torch.cat(rows)

    def _forward(self, batch: FlatBatch, wanted: Sequence[int]) -> Tensor:
        device = self._policy.device
        last = torch.from_numpy(batch.ends[list(wanted)] - 1).to(device)
        with attending(self._policy.config, _Paged(batch, self._cache, device)):
            out = self._policy.forward(
                input_ids=torch.from_numpy(batch.ids).to(device)[None],
                position_ids=torch.from_numpy(batch.positions).to(device)[None],
                use_cache=False,
                logits_to_keep=last,
            )
        return out.logits[0].float()

    def copy_block(self, source: int, target: int) -> None:
        for keys, values in self._cache:
            keys[target] = keys[source]
            values[target] = values[source]


class _Paged:
    """Stores a flat batch's keys and values, then attends each token to its own sequence."""

    def __init__(
        self, batch: FlatBatch, cache: Sequence[tuple[Tensor, Tensor]], device: torch.device
    ) -> None:
        self._cache = cache
        self._slots = torch.from_numpy(batch.slots).to(device)
        table = torch.from_numpy(batch.table).long().to(device)
        single = [i for i, span in enumerate(batch.spans) if span.count == 1]
        self._decoding = torch.tensor(single, device=device)
        if single:
            ends = max(batch.spans[i].end for i in single)
            self._tables = table[self._decoding, : -(-ends // BLOCK)]
            self._tokens = torch.from_numpy(batch.ends[single] - 1).to(device)
            self._places = torch.from_numpy(batch.positions).to(device)[self._tokens]
        self._chunks = [
            (slice(int(end) - span.count, int(end)), table[i], span)
            for i, (span, end) in enumerate(zip(batch.spans, batch.ends, strict=True))
            if span.count > 1
        ]

    def attend(self, call: AttentionCall) -> Tensor:
        keys, values = self._cache[call.layer]
        keys.flatten(0, 1)[self._slots] = call.key.transpose(0, 1).to(keys.dtype)
        values.flatten(0, 1)[self._slots] = call.value.transpose(0, 1).to(values.dtype)
        heads, tokens, width = call.query.shape
        out = call.query.new_empty(tokens, heads, width)
        if len(self._decoding):
            out[self._tokens] = self._decode(call, keys, values)
        for part, blocks, span in self._chunks:
            held = blocks[: -(-span.end // BLOCK)]
            everywhere = torch.arange(span.end, device=out.device)
            mask = visible(everywhere[span.start :], everywhere, call.window)
            chunk = AttentionCall(
                layer=call.layer,
                query=call.query[:, part],
                key=call.key,
                value=call.value,
                scaling=call.scaling,
                window=call.window,
                softcap=call.softcap,
            )
            out[part] = attention(
                chunk,
                keys[held].flatten(0, 1)[: span.end].transpose(0, 1),
                values[held].flatten(0, 1)[: span.end].transpose(0, 1),
                mask,
            )
        return out

    def _decode(self, call: AttentionCall, keys: Tensor, values: Tensor) -> Tensor:
        """One token for each of B sequences, over their gathered keys: [B, heads, width]."""
        k = keys[self._tables].flatten(1, 2).transpose(1, 2)
        v = values[self._tables].flatten(1, 2).transpose(1, 2)
        batch, kv_heads, length, width = k.shape
        query = call.query[:, self._tokens].transpose(0, 1)
        query = query.reshape(batch, kv_heads, -1, width).to(k.dtype)
        everywhere = torch.arange(length, device=k.device)
        mask = visible(self._places, everywhere, call.window)[:, None, None]
        out = _attention(query, k, v, mask, call)
        return out.reshape(batch, -1, width).to(call.query.dtype)


def visible(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """[Q, K]: whether the token at position queries[q] sees the one at keys[k]."""
    mask = keys[None] <= queries[:, None]
    if window is not None:
        mask &= keys[None] > queries[:, None] - window
    return mask


def attention(call: AttentionCall, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """`call.query` [heads, Q, width] over keys [kv_heads, K, width]: [Q, heads, width]."""
    heads, tokens, width = call.query.shape
    share = heads // keys.shape[0]
    query = call.query.reshape(keys.shape[0], share * tokens, width).to(keys.dtype)
    out = _attention(query, keys, values, mask.repeat(share, 1), call)
    return out.reshape(heads, tokens, -1).transpose(0, 1).to(call.query.dtype)


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, call: AttentionCall) -> Tensor:
    if call.softcap is None:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=call.scaling)
    scores = torch.tanh(q @ k.mT * (call.scaling / call.softcap)) * call.softcap
    return torch.softmax(scores.float().masked_fill(~mask, -torch.inf), dim=-1).to(v.dtype) @ v
