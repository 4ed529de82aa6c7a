"""What a template of function tasks is: a way to say a problem, and three ways to solve it.

`right` is the reference of the cases, in this process; `body` is another implementation, which
becomes the reference attempt; `near` is one that is almost right. Phrasings and bodies have
`{name}` for the constants. May be known by `templates` and `functions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

__all__ = ["Constants", "Template", "made"]

Constants = Mapping[str, Any]
Draw = Callable[[Random, Any], tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A problem with constants to choose.

    `entries` are names for the function and `parameters` sets of names for its arguments, of
    which `body` and `near` use the first. `says` are phrasings of what is asked. `ranges` holds
    the choices for each constant. `draw` makes random arguments; `edges` are always tried.
    """

    name: str
    tier: int
    entries: tuple[str, ...]
    parameters: tuple[str, ...]
    says: tuple[str, ...]
    right: Callable[..., Any]
    body: str
    near: str
    draw: Draw
    edges: tuple[tuple[Any, ...], ...]
    ranges: Mapping[str, tuple[Any, ...]]

    @property
    def size(self) -> int:
        """How many choices of the constants there are."""
        count = 1
        for choices in self.ranges.values():
            count *= len(choices)
        return count

    def constants(self, number: int) -> dict[str, Any]:
        """Choice `number` (0..size - 1) of the constants."""
        chosen: dict[str, Any] = {}
        for name, choices in self.ranges.items():
            number, place = divmod(number, len(choices))
            chosen[name] = choices[place]
        return chosen


def made(
    tier: int,
    entries: str,
    parameters: str,
    says: tuple[str, ...],
    right: Callable[..., Any],
    *,
    body: str,
    near: str,
    draw: Draw,
    edges: tuple[tuple[Any, ...], ...] = (),
    **ranges: tuple[Any, ...],
) -> Template:
    """A template named after its first entry. `right` takes the arguments, then the constants
    by name. Bodies without a line break are what is returned."""
    names = tuple(entries.split())
    return Template(
        name=names[0],
        tier=tier,
        entries=names,
        parameters=tuple(parameters.split()),
        says=says,
        right=right,
        body=_block(body),
        near=_block(near),
        draw=draw,
        edges=edges,
        ranges=ranges,
    )


def _block(body: str) -> str:
    lines = body.strip("\n").splitlines() if "\n" in body else [f"return {body}"]
    return "\n".join(f"    {line}" if line else "" for line in lines)
