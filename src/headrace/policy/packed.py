"""The learner's attention: a prefix tree in one flat row, every token seeing its ancestors.

The tree is cut into subtrees small enough for one dense mask each, which are computed side by
side, and into the longer chains above or beside them. A chain attends to itself causally, and
everything below a chain attends to all of it: neither needs a mask, so memory never grows with
the square of the length. A window, or scores that are capped, cut long chains into blocks of
queries, each with the keys that it can see.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.policy.attention import AttentionCall
from headrace.policy.stretches import (
    HIDDEN,
    EagerKernel,
    FlashKernel,
    Kernel,
    KernelGradients,
    KernelResult,
    merge,
)
from headrace.policy.tree import TokenTree

__all__ = ["PackedAttention"]

SUBTREE = 256
"""The most tokens of a subtree that is computed under one dense mask."""

QUERIES, KEYS = 512, 4096
"""Queries and keys of a block where a long chain has to be cut."""

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Queries [q0, q1) and keys [k0, k1): `own` is the same range, causal; `masked` by depth."""

    q0: int
    q1: int
    k0: int
    k1: int
    own: bool = False
    masked: bool = False

    @property
    def causal(self) -> bool:
        return self.own and not self.masked


@dataclass(frozen=True, slots=True)
class _Batch:
    """B subtrees of at most S tokens, padded: their `nodes` [B, S] and `mask` [B, 1, S, S].

    `slots` are the places of real nodes in the flattened batch, `order` [.] those nodes.
    """

    nodes: Tensor
    mask: Tensor
    slots: Tensor
    order: Tensor


@dataclass(frozen=True, slots=True)
class _Layout:
    """Who attends to what; every query is in exactly one of `batches` and `own`.

    `depth` [T] is each token's position, for the masks that `window` asks for.
    """

    window: int | None
    depth: Tensor
    batches: tuple[_Batch, ...]
    own: tuple[_Stretch, ...]
    above: tuple[_Stretch, ...]

    @property
    def is_one_chain(self) -> bool:
        alone = len(self.own) == 1 and not self.batches and not self.above
        return alone and self.own[0].causal


class PackedAttention:
    """The attention plan of one tree, which must be in preorder (`headrace.policy.tree.chunks`).

    Exact: a token's result is what it would be with its sequence alone.
    """

    def __init__(self, tree: TokenTree, device: torch.device, *, subtree: int = SUBTREE) -> None:
        self._tree = tree
        self._device = device
        self._depth = torch.from_numpy(tree.depth).to(device)
        self._ends = _subtree_ends(tree)
        self._subtree = subtree
        self._layouts: dict[tuple[int | None, bool], _Layout] = {}

    def attend(self, call: AttentionCall) -> Tensor:
        """The attended values [T, heads, width]."""
        fused = call.query.device.type == "cpu" and call.softcap is None
        fused = fused and call.value.shape[-1] == call.query.shape[-1]
        kernel = FlashKernel(call.scaling) if fused else EagerKernel(call.scaling, call.softcap)
        layout = self._layout(call.window, cut=not fused)
        dtype = call.value.dtype  # under autocast, positions may have widened the others
        query, key = call.query.to(dtype), call.key.to(dtype)
        attended: Any = _Attention.apply(query, key, call.value, kernel, layout)
        return attended

    def _layout(self, window: int | None, *, cut: bool) -> _Layout:
        if window is not None and window > int(self._tree.depth.max()):
            window = None
        layout = self._layouts.get((window, cut))
        if layout is None:
            layout = self._make_layout(window, cut=cut)
            self._layouts[window, cut] = layout
        return layout

    def _make_layout(self, window: int | None, *, cut: bool) -> _Layout:
        blocks, chains = _cover(self._tree.parent, self._ends, self._subtree)
        own: list[_Stretch] = []
        above: list[_Stretch] = []
        for start, end in chains:
            below = int(self._ends[start])
            if window is None and not cut:
                own.append(_Stretch(start, end, start, end, own=True))
                if below > end:
                    above.append(_Stretch(end, below, start, end))
            else:
                depth = self._tree.depth
                for q0 in range(start, end, QUERIES):
                    q1 = min(q0 + QUERIES, end)
                    masked = window is not None and q1 - q0 > window
                    own.append(_Stretch(q0, q1, q0, q1, own=True, masked=masked))
                    above += _above((q0, q1), (start, q0), depth, window)
                for q0 in range(end, below, QUERIES):
                    above += _above((q0, min(q0 + QUERIES, below)), (start, end), depth, window)
        batches = tuple(self._batch(group, window) for group in _alike(blocks))
        return _Layout(window, self._depth, batches, tuple(own), tuple(above))

    def _batch(self, blocks: list[tuple[int, int]], window: int | None) -> _Batch:
        width = max(end - start for start, end in blocks)
        nodes = np.zeros((len(blocks), width), dtype=np.int64)
        seen = np.zeros((len(blocks), width, width), dtype=np.bool_)
        real = np.zeros((len(blocks), width), dtype=np.bool_)
        for slot, (start, end) in enumerate(blocks):
            nodes[slot] = np.minimum(np.arange(start, start + width), end - 1)
            size = end - start
            real[slot, :size] = True
            seen[slot, size:, size - 1] = True  # padding repeats the last node, which sees itself
            seen[slot, :size, :size] = _visible(
                self._ends[start:end] - start, self._tree.depth[start:end], window
            )
        mask = torch.zeros(seen.shape).masked_fill_(torch.from_numpy(~seen), HIDDEN)
        return _Batch(
            nodes=torch.from_numpy(nodes).to(self._device),
            mask=mask[:, None].to(self._device),
            slots=torch.from_numpy(np.flatnonzero(real)).to(self._device),
            order=torch.from_numpy(nodes[real]).to(self._device),
        )


# --- cutting the tree ----------------------------------------------------------------------


def _subtree_ends(tree: TokenTree) -> Indices:
    """[n]: the subtree of node i is the nodes i to ends[i] - 1."""
    sizes = [1] * len(tree)
    parents: list[int] = tree.parent.tolist()
    for node in range(len(tree) - 1, -1, -1):
        if parents[node] >= 0:
            sizes[parents[node]] += sizes[node]
    ends = np.arange(len(tree), dtype=np.int64) + np.array(sizes, dtype=np.int64)
    child = tree.parent >= 0
    if bool(np.any(ends[child] > ends[tree.parent[child]])):
        raise ValueError("the tree is not in preorder")
    return ends


def _cover(
    parent: Indices, ends: Indices, subtree: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Small whole subtrees, and the chains that are left, as ranges of nodes."""
    blocks: list[tuple[int, int]] = []
    chains: list[tuple[int, int]] = []
    last: list[int] = ends.tolist()
    follows: list[bool] = (parent == np.arange(len(parent)) - 1).tolist()
    node = 0
    while node < len(last):
        if last[node] - node <= subtree:
            blocks.append((node, last[node]))
            node = last[node]
            continue
        start = node
        node += 1
        while node < len(last) and follows[node] and last[node] == last[start]:
            node += 1
        chains.append((start, node))
    return blocks, chains


def _alike(blocks: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Groups of similar size, so that padding stays within a quarter."""
    group: list[tuple[int, int]] = []
    for block in sorted(blocks, key=lambda b: b[0] - b[1]):
        if group and (block[1] - block[0]) * 4 < (group[0][1] - group[0][0]) * 3:
            yield group
            group = []
        group.append(block)
    if group:
        yield group


def _visible(ends: Indices, depth: Indices, window: int | None) -> npt.NDArray[np.bool_]:
    """[n, n] of a subtree: row i is True at i and at its ancestors within the window."""
    node = np.arange(len(ends))
    seen = (node[None, :] <= node[:, None]) & (node[:, None] < ends[None, :])
    if window is not None:
        seen &= depth[:, None] - depth[None, :] < window
    return seen


def _above(
    queries: tuple[int, int], chain: tuple[int, int], depth: Indices, window: int | None
) -> Iterator[_Stretch]:
    """`queries` below `chain` looking up at what is in the window of any of them."""
    first = chain[0]
    nearest, farthest = (int(f(depth[slice(*queries)])) for f in (np.min, np.max))
    if window is not None:
        first = max(first, first + nearest - window + 1 - int(depth[first]))
    for k0 in range(first, chain[1], KEYS):
        masked = window is not None and farthest - int(depth[k0]) >= window
        yield _Stretch(*queries, k0, min(k0 + KEYS, chain[1]), masked=masked)


# --- computing it --------------------------------------------------------------------------


class _Attention(torch.autograd.Function):
    """query [heads, T, width], key and value [kv_heads, T, width] to [T, heads, width]."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, kernel: Kernel, layout: _Layout
    ) -> Tensor:
        merged = _forward(query, key, value, kernel, layout)
        ctx.kernel, ctx.layout = kernel, layout
        ctx.save_for_backward(query, key, value, merged.out, merged.lse)
        return merged.out.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        query, key, value, out, lse = ctx.saved_tensors
        found = _backward(
            grad_outputs[0].transpose(0, 1),
            query,
            key,
            value,
            KernelResult(out, lse),
            ctx.kernel,
            ctx.layout,
        )
        return found.query, found.key, found.value, None, None


def _forward(
    query: Tensor, key: Tensor, value: Tensor, kernel: Kernel, layout: _Layout
) -> KernelResult:
    """Output [heads, T, width] and normaliser [heads, T]."""
    if layout.is_one_chain:
        whole = kernel.forward(query[None], key[None], value[None], causal=True, mask=None)
        return KernelResult(whole.out[0], whole.lse[0])
    heads, tokens = query.shape[:2]
    out = query.new_empty(tokens, heads, value.shape[-1]).transpose(0, 1)
    lse = query.new_empty(tokens, heads, dtype=torch.float32).transpose(0, 1)
    for batch in layout.batches:
        q, k, v = (_gather(t, batch) for t in (query, key, value))
        part = kernel.forward(q, k, v, causal=False, mask=batch.mask)
        _scatter(part.out, batch, out)
        lse[:, batch.order] = part.lse.transpose(0, 1).flatten(1)[:, batch.slots]
    for stretch in (*layout.own, *layout.above):
        q, k = slice(stretch.q0, stretch.q1), slice(stretch.k0, stretch.k1)
        part = kernel.forward(
            query[None, :, q],
            key[None, :, k],
            value[None, :, k],
            causal=stretch.causal,
            mask=_mask(stretch, layout),
        )
        if stretch.own:
            out[:, q], lse[:, q] = part.out[0], part.lse[0]
        else:
            merge(KernelResult(out[None, :, q], lse[None, :, q]), part)
    return KernelResult(out, lse)


def _backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    merged: KernelResult,
    kernel: Kernel,
    layout: _Layout,
) -> KernelGradients:
    if layout.is_one_chain:
        whole = KernelResult(merged.out[None], merged.lse[None])
        part = kernel.backward(
            grad[None], query[None], key[None], value[None], whole, causal=True, mask=None
        )
        return KernelGradients(part.query[0], part.key[0], part.value[0])
    d_query, d_key, d_value = (_empty_like(t) for t in (query, key, value))
    for batch in layout.batches:
        g, q, k, v, out = (_gather(t, batch) for t in (grad, query, key, value, merged.out))
        lse = merged.lse[:, batch.nodes].transpose(0, 1)
        g = g.transpose(1, 2).flatten(0, 1)
        g = torch.zeros_like(g).index_copy(0, batch.slots, g[batch.slots])
        g = g.unflatten(0, batch.nodes.shape).transpose(1, 2)
        part = kernel.backward(g, q, k, v, KernelResult(out, lse), causal=False, mask=batch.mask)
        _scatter(part.query, batch, d_query)
        _scatter(part.key, batch, d_key)
        _scatter(part.value, batch, d_value)
    for stretch in (*layout.own, *layout.above):
        q, k = slice(stretch.q0, stretch.q1), slice(stretch.k0, stretch.k1)
        part = kernel.backward(
            grad[None, :, q],
            query[None, :, q],
            key[None, :, k],
            value[None, :, k],
            KernelResult(merged.out[None, :, q], merged.lse[None, :, q]),
            causal=stretch.causal,
            mask=_mask(stretch, layout),
        )
        if stretch.own:
            d_query[:, q], d_key[:, k], d_value[:, k] = part.query[0], part.key[0], part.value[0]
        else:
            d_query[:, q] += part.query[0]
            d_key[:, k] += part.key[0]
            d_value[:, k] += part.value[0]
    return KernelGradients(d_query, d_key, d_value)


def _empty_like(values: Tensor) -> Tensor:
    """[heads, T, width] without values, tokens first in memory."""
    return values.new_empty(values.transpose(0, 1).shape).transpose(0, 1)


def _gather(values: Tensor, batch: _Batch) -> Tensor:
    """[heads, T, width] to [B, heads, S, width]."""
    return values.transpose(0, 1)[batch.nodes].transpose(1, 2)


def _scatter(values: Tensor, batch: _Batch, into: Tensor) -> None:
    """[B, heads, S, width] to where its real tokens are in [heads, T, width]."""
    into.transpose(0, 1)[batch.order] = values.transpose(1, 2).flatten(0, 1)[batch.slots]


def _mask(stretch: _Stretch, layout: _Layout) -> Tensor | None:
    if not stretch.masked:
        return None
    gap = layout.depth[stretch.q0 : stretch.q1, None] - layout.depth[stretch.k0 : stretch.k1]
    far = (gap >= (layout.window or 0)) | (gap < 0)
    mask = torch.zeros(far.shape, device=far.device)
    return mask.masked_fill_(far, HIDDEN)[None, None]
