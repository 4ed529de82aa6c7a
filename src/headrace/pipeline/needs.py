"""What work needs and what there is: amounts by pool name, and pools with quotas.

The vocabulary of `resources`, which grants the one from the other, and of placements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.errors import UsageError

__all__ = ["Needs", "Pool"]


@dataclass(frozen=True, slots=True)
class Needs:
    """How much of what: pool name to amount, at least 1 each; empty needs nothing.

    A name with slashes draws from every declared pool on its path: "sandbox/namespace/python"
    from "sandbox", "sandbox/namespace" and "sandbox/namespace/python", as far as there are any.

    >>> Needs({"inference": 1}) + Needs({"inference": 2, "accelerator": 1})
    Needs(amounts={'inference': 3, 'accelerator': 1})
    """

    amounts: Mapping[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        for name, amount in self.amounts.items():
            if amount < 1 or not name:
                raise UsageError(
                    f"a need is a name and an amount of at least 1, not {name!r} and {amount}"
                )

    def __add__(self, other: Needs) -> Needs:
        return Needs(dict(Counter(self.amounts) + Counter(other.amounts)))

    def __str__(self) -> str:
        told = [f"{amount} of {name}" for name, amount in self.amounts.items()]
        return " and ".join(told) or "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """`capacity` units of something; an elastic pool may be resized to anything in 0..`most`.

    A domain holds at most `quotas[domain]` of them at a time, or else `domain_quota` (None: no
    limit). `most` None means the capacity that the pool starts with.

    >>> Pool(name="sandbox/namespace", capacity=64, domain_quota=16, quotas={"code": 32})
    ... # doctest: +ELLIPSIS
    Pool(name='sandbox/namespace', capacity=64, ...)
    """

    name: str
    capacity: int
    most: int | None = None
    domain_quota: int | None = None
    quotas: Mapping[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        if not 0 <= self.capacity <= self.ceiling:
            raise UsageError(
                f"a capacity of {self.capacity} is not in 0..{self.ceiling}",
                where=f"pool {self.name}",
            )

    @property
    def ceiling(self) -> int:
        return self.capacity if self.most is None else self.most

    def quota_of(self, domain: str) -> int | None:
        return self.quotas.get(domain, self.domain_quota)
