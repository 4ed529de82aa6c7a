"""The consumption ledger: which groups were trained on or rejected, at which step, and no group
twice.

A run that resumes from the checkpoint of a step takes back what was consumed after it; the
records stay, and say that they are void. Knows nothing of how records are stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Consumed", "Entry", "Ledger", "Rewound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """Groups that left the buffer for good: trained on, or rejected for a named `reason`.

    >>> Consumed(step=3, version=2, groups=("000002:0.1",)).trained
    True

    `step` is the training step, `version` that of the policy which was trained (the one before
    the step's update).
    """

    step: int
    version: int
    groups: tuple[str, ...]
    reason: str | None = None

    @property
    def trained(self) -> bool:
        return self.reason is None


@dataclass(frozen=True, slots=True)
class Rewound:
    """Training went back to the checkpoint of `step`: later consumption is void."""

    step: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of the ledger; `void` once a later rewind took it back."""

    consumed: Consumed
    void: bool


class Ledger:
    """What the records so far amount to. Memory: one reference a group, and the records."""

    def __init__(self) -> None:
        self._records: list[Consumed] = []
        self._void: set[int] = set()
        self._by_group: dict[str, int] = {}

    def __contains__(self, group: object) -> bool:
        return group in self._by_group

    def __len__(self) -> int:
        """Groups that are consumed."""
        return len(self._by_group)

    def of(self, group: str) -> Consumed | None:
        """The record that consumed a group, None while none did."""
        number = self._by_group.get(group)
        return None if number is None else self._records[number]

    def entries(self) -> Iterator[Entry]:
        """Every record in order, void ones too."""
        for number, record in enumerate(self._records):
            yield Entry(record, number in self._void)

    def is_known(self, record: Consumed) -> bool:
        """Whether the very same consumption is recorded already.

        Raises ValueError when a group of it was consumed otherwise, or when it names none or
        one twice: both would be training twice.
        """
        if not record.groups or len(set(record.groups)) < len(record.groups):
            raise ValueError(f"step {record.step} consumes no group, or one twice")
        earlier = [self.of(group) for group in record.groups]
        if all(found == record for found in earlier):
            return True
        for group, found in zip(record.groups, earlier, strict=True):
            if found is not None:
                raise ValueError(f"{group} was already consumed, at step {found.step}")
        return False

    def add(self, record: Consumed) -> None:
        number = len(self._records)
        self._records.append(record)
        for group in record.groups:
            self._by_group[group] = number

    def is_after(self, step: int) -> bool:
        """Whether anything that counts was consumed after `step`."""
        return any(e.consumed.step > step and not e.void for e in self.entries())

    def rewind(self, mark: Rewound) -> None:
        for number, record in enumerate(self._records):
            if record.step > mark.step and number not in self._void:
                self._void.add(number)
                for group in record.groups:
                    del self._by_group[group]
