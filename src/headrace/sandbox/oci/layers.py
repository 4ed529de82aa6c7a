"""Who still stands on which layers: the books of a manager about its keeper's scratch space.

A scratch is freed when its own sandbox is closed and no other sandbox's tree contains one of
its layers. Snapshots are good until the sandbox that took them is closed; trees built on them
hold the layers by themselves.
"""

from __future__ import annotations

import itertools
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.errors import UsageError
from headrace.sandbox.oci.trees import Layer
from headrace.sandbox.spec import SnapshotRef

__all__ = ["Layers", "Stack"]


@dataclass(frozen=True, slots=True)
class Stack:
    """What a snapshot holds: frozen layers, uppermost first, and whose files are in them."""

    layers: tuple[Layer, ...]
    uid: int


class Layers:
    """Counts holders by scratch."""

    def __init__(self) -> None:
        self._scratches = itertools.count(1)
        self._numbers = itertools.count(1)
        self._holders: Counter[int] = Counter()
        self._snapshots: dict[str, Stack] = {}

    def new_scratch(self) -> int:
        """A scratch with one holder: its sandbox."""
        number = next(self._scratches)
        self._holders[number] = 1
        return number

    def next_of(self, scratch: int) -> Layer:
        """A layer that was never used."""
        return Layer(scratch, next(self._numbers))

    def remember(self, stack: Stack) -> SnapshotRef:
        """A reference to a stack, from now on."""
        ref = SnapshotRef(secrets.token_hex(8), len(stack.layers))
        self._snapshots[ref.id] = stack
        return ref

    def find(self, ref: SnapshotRef) -> Stack:
        """What a reference stands for (UsageError if it is no longer good)."""
        stack = self._snapshots.get(ref.id)
        if stack is None:
            raise UsageError(
                "this snapshot is gone",
                where=ref.id,
                hint="snapshots are good until the sandbox that took them is closed",
            )
        return stack

    def forget(self, ids: Iterable[str]) -> None:
        """These references are no longer good."""
        for id in ids:
            self._snapshots.pop(id, None)

    def hold(self, layers: Iterable[Layer]) -> None:
        """One more tree stands on these."""
        self._holders.update(layer.scratch for layer in layers)

    def let_go(self, layers: Iterable[Layer]) -> list[int]:
        """A tree no longer stands on these; the scratches that are now nobody's."""
        return [freed for layer in layers for freed in self.release(layer.scratch)]

    def release(self, scratch: int) -> list[int]:
        """One holder fewer; the scratch, if that was the last one: have the keeper drop it."""
        self._holders[scratch] -= 1
        if self._holders[scratch] > 0:
            return []
        del self._holders[scratch]
        return [scratch]
