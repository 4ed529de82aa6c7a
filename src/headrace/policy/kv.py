"""A key-value cache for a batch of rows that grows in place and drops finished rows.

`transformers` appends by concatenation, copying the whole cache at every token. These layers
write into spare room and hand out views.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class RowLayer(DynamicLayer):
    """Keys and values [rows, heads, length, width] inside buffers with spare length."""

    def __init__(self, keys: Tensor, values: Tensor, room: int) -> None:
        super().__init__()
        self._length = keys.shape[2]
        self._keys = _with_room(keys, room)
        self._values = _with_room(values, room)
        self.device, self.dtype = keys.device, keys.dtype
        self.is_initialized = True
        self._expose()

    def _expose(self) -> tuple[Tensor, Tensor]:
        keys = self._keys[:, :, : self._length]
        values = self._values[:, :, : self._length]
        self.keys, self.values = keys, values
        return keys, values

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        end = self._length + key_states.shape[2]
        if end > self._keys.shape[2]:
            self._keys = _with_room(self._keys, end)
            self._values = _with_room(self._values, end)
        self._keys[:, :, self._length : end] = key_states
        self._values[:, :, self._length : end] = value_states
        self._length = end
        return self._expose()

    def batch_select_indices(self, indices: Tensor) -> None:
        self._keys = self._keys[indices]
        self._values = self._values[indices]
        self._expose()


def _with_room(states: Tensor, room: int) -> Tensor:
    rows, heads, length, width = states.shape
    roomy = states.new_zeros(rows, heads, length + room, width)
    roomy[:, :, :length] = states
    return roomy


def rows_of_trees(trees: Sequence[tuple[Cache, Tensor]], room: int) -> Cache:
    """One cache of rows picked out of prefilled trees, with `room` for tokens to come.

    Each entry is the cache of one flattened tree (a batch of one) and the nodes [rows, length]
    of the rows it holds; lengths are equal over all entries. Padding may point at any node,
    since padded positions are masked.
    """
    layers: list[Any] = []
    for index in range(len(trees[0][0].layers)):
        held: list[Any] = [cache.layers[index] for cache, _ in trees]
        keys = [_pick(layer.keys, nodes) for layer, (_, nodes) in zip(held, trees, strict=True)]
        values = [_pick(layer.values, nodes) for layer, (_, nodes) in zip(held, trees, strict=True)]
        layers.append(RowLayer(torch.cat(keys), torch.cat(values), room))
    return Cache(layers=layers)


def _pick(states: Tensor | None, nodes: Tensor) -> Tensor:
    assert states is not None, "a prefilled cache holds every layer"
    return states[0][:, nodes].transpose(0, 1)
