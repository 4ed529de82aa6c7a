"""The least time in which a machine can decode and train: the roofline. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Rates", "Shape", "decode_bound", "training_bound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A dense transformer: weights in its layers' matrices (`linear`) and in its output
    `head`, number of `layers`, and the width of all queries and of all keys of a layer."""

    linear: int
    head: int
    layers: int
    query_width: int
    key_width: int

    def attention_flop(self, queries_times_keys: int) -> int:
        """Of the scores and of the weighted sum, forward: 2 x 2 FLOP a query, key and width."""
        return 4 * self.query_width * self.layers * queries_times_keys

    def kv_numbers(self, tokens: int) -> int:
        """Numbers that the keys and values of `tokens` positions hold."""
        return 2 * self.key_width * self.layers * tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What the machine gives at its best: FLOP/s of matrix products, bytes/s read."""

    flop: float
    bandwidth: float

    def seconds(self, flop: float, bytes_read: float) -> float:
        return max(flop / self.flop, bytes_read / self.bandwidth)


def _triangle(n: int) -> int:
    return n * (n + 1) // 2


def decode_bound(
    shape: Shape, rates: Rates, prompts: Sequence[int], new_tokens: int, number_bytes: int
) -> float:
    """The least seconds in which the machine can prefill the prompts (lengths in tokens) and
    write `new_tokens` after each, all side by side: each forward pass needs at least its
    arithmetic at the best matrix rate, and its weights and caches read once."""
    weights = number_bytes * (shape.linear + shape.head)
    batch = len(prompts)
    causal = sum(_triangle(n) for n in prompts)
    flop = 2 * shape.linear * sum(prompts) + 2 * shape.head * batch + shape.attention_flop(causal)
    seconds = rates.seconds(flop, weights)
    for step in range(1, new_tokens):
        context = sum(prompts) + batch * step
        flop = 2 * (shape.linear + shape.head) * batch + shape.attention_flop(context)
        seconds += rates.seconds(flop, weights + number_bytes * shape.kv_numbers(context))
    return seconds


def training_bound(shape: Shape, rates: Rates, lengths: Sequence[int]) -> float:
    """The least seconds of forward and backward over sequences of these lengths, all of whose
    tokens but the first are trained on: backward costs twice what forward does. Recomputation
    and the optimizer are not counted, so no way of saving memory makes the bound easier."""
    tokens = sum(lengths)
    forward = (
        2 * shape.linear * tokens
        + 2 * shape.head * (tokens - len(lengths))
        + shape.attention_flop(sum(_triangle(n) for n in lengths))
    )
    return 3 * forward / rates.flop
