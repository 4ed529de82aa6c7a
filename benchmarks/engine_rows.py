"""The arithmetic of the engine benchmarks: rows with their bars, and the roofline. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Rates", "Row", "Shape", "decode_bound", "passed", "training_bound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: what was measured, round by round, and how much is enough.

    `ours` and `theirs` are in `unit`; the comparison is between their medians. With `bar` the
    ratio must be at least that; with `most` the value of headrace itself must be at most that.
    With neither the row only informs. `unavailable` says why a side could not be measured.
    """

    what: str
    peer: str
    unit: str
    ours: tuple[float, ...] = ()
    theirs: tuple[float, ...] = ()
    bar: float | None = None
    most: float | None = None
    unavailable: str | None = None

    @property
    def value(self) -> float | None:
        return statistics.median(self.ours) if self.ours else None

    @property
    def peer_value(self) -> float | None:
        return statistics.median(self.theirs) if self.theirs else None

    @property
    def ratio(self) -> float | None:
        if self.value is None or not self.peer_value:
            return None
        return self.value / self.peer_value

    @property
    def passed(self) -> bool | None:
        """None where nothing was asked of the row. What could not be measured has failed."""
        if self.unavailable is not None:
            return False
        if self.bar is not None:
            return self.ratio is not None and self.ratio >= self.bar
        if self.most is not None:
            return self.value is not None and self.value <= self.most
        return None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "value": self.value,
            "peer_value": self.peer_value,
            "ratio": self.ratio,
            "passed": self.passed,
        }


def passed(rows: Sequence[Row]) -> bool:
    """Whether there are rows and none of them falls short."""
    return bool(rows) and all(row.passed is not False for row in rows)


# --- the roofline --------------------------------------------------------------------------


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
