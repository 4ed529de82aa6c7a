"""Task packs and their domains, found by entry point (group `headrace.packs`).

A pack named `p` owns the domain `p` and every domain `p/...`, so that one domain is opened
without importing the other packs, and a broken pack hurts only those who ask for it. Nothing
in headrace imports a pack by name. A pack that is not installed is taken from the directory of
its name, where there is one here with a `pyproject.toml` that announces it (`headrace init`).
"""

from __future__ import annotations

import difflib
import sys
import tomllib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from headrace.errors import RecipeError, UsageError
from headrace.protocols import Domain, Pack
from headrace.recipe import DomainSpec
from headrace.types import Json

__all__ = ["GROUP", "Catalogue"]

GROUP = "headrace.packs"

_BROKEN = (
    ImportError,
    AttributeError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
_WILD = frozenset("*?[")


class Catalogue:
    """All domains of the installed packs, opened as they are asked for.

    `points` replaces the installed entry points (a pack of one's own, tests).

    >>> with Catalogue() as catalogue:  # doctest: +SKIP
    ...     catalogue.open("arithmetic").task(0, 17).messages[0].text
    'Add 3 and 4.'
    """

    def __init__(self, points: Iterable[EntryPoint] | None = None) -> None:
        found = entry_points(group=GROUP) if points is None else points
        self._points = {point.name: point for point in sorted(found, key=lambda point: point.name)}
        self._packs: dict[str, Pack] = {}
        self._domains: dict[str, Domain] = {}

    def __enter__(self) -> Catalogue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def names(self) -> list[str]:
        """Every domain, sorted; UsageError if any pack is broken."""
        return sorted(name for point in self._points for name in self._names(point))

    def open(self, name: str) -> Domain:
        """The domain of that exact name; RecipeError naming the nearest if there is none."""
        if name not in self._domains:
            owner = name.partition("/")[0]
            if not self._has(owner) or name not in self._names(owner):
                raise self._unknown(name)
            self._domains[name] = self._pack(owner).open(name)
        return self._domains[name]

    def resolve(self, patterns: Sequence[DomainSpec]) -> list[DomainSpec]:
        """Exact names for patterns such as `rg/*`, each pattern's weight split evenly.

        A domain that is also named exactly keeps that entry and is left out of the pattern;
        RecipeError for a pattern or name without a match, or a domain of two patterns.
        """
        exact = {spec.name for spec in patterns if not _is_pattern(spec.name)}
        resolved: dict[str, DomainSpec] = {}
        for spec in patterns:
            matches = self._matches(spec.name)
            if _is_pattern(spec.name):
                matches = [name for name in matches if name not in exact]
            for name in matches:
                if name in resolved:
                    raise RecipeError(f"two entries name {name}", where="tasks.domains")
                update = {"name": name, "weight": spec.weight / len(matches)}
                resolved[name] = spec.model_copy(update=update)
        return list(resolved.values())

    def close(self) -> None:
        """End the child processes of all opened packs."""
        for pack in self._packs.values():
            pack.close()
        self._packs.clear()
        self._domains.clear()

    def _has(self, owner: str) -> bool:
        """Whether there is such a pack: installed, or announced by the directory of its name."""
        if owner not in self._points and (point := _local(owner)) is not None:
            self._points[owner] = point
        return owner in self._points

    def _matches(self, name: str) -> list[str]:
        owner = name.partition("/")[0]
        if _is_pattern(owner):
            candidates = self.names()
        else:
            candidates = self._names(owner) if self._has(owner) else []
        if _is_pattern(name):
            found = [candidate for candidate in candidates if fnmatchcase(candidate, name)]
        else:
            found = [name] if name in candidates else []
        if not found:
            raise self._unknown(name)
        return found

    def _names(self, owner: str) -> list[str]:
        names = sorted(self._pack(owner).names())
        for name in names:
            if name.partition("/")[0] != owner:
                raise UsageError(
                    f"the task pack {owner!r} offers a domain named {name!r}",
                    where=self._points[owner].value,
                    hint=f"its domains must be named {owner!r} or {owner + '/...'!r}",
                )
        return names

    def _pack(self, owner: str) -> Pack:
        if owner not in self._packs:
            point = self._points[owner]
            try:
                pack = point.load()
            except _BROKEN as error:
                raise UsageError(
                    f"the task pack {owner!r} cannot be imported: {error}",
                    where=point.value,
                    hint="reinstall or remove the distribution that brings it",
                ) from error
            if not isinstance(pack, Pack):
                raise UsageError(
                    f"the task pack {owner!r} is no pack", where=point.value, hint="see Pack"
                )
            self._packs[owner] = pack
        return self._packs[owner]

    def _unknown(self, name: str) -> RecipeError:
        known = list(self._points)
        for owner in self._points:
            try:
                known += self._names(owner)
            except UsageError:
                continue  # a broken pack only hurts those who ask for it; its name is known
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        what = "no domain matches" if _is_pattern(name) else "no domain named"
        hint = f"did you mean {near[0]}?" if near else "no task pack is installed"
        return RecipeError(f"{what} {name!r}", where="tasks.domains", hint=hint)


def _is_pattern(name: str) -> bool:
    return not _WILD.isdisjoint(name)


def _local(owner: str) -> EntryPoint | None:
    """The entry point that `./OWNER/pyproject.toml` announces under that name, made importable.

    UsageError if the file is no TOML.
    """
    directory = Path.cwd() / owner
    project = directory / "pyproject.toml"
    if Path(owner).name != owner or not project.is_file():
        return None
    try:
        value: Json = tomllib.loads(project.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"not TOML: {error}", where=str(project)) from error
    for key in ("project", "entry-points", GROUP, owner):
        value = value.get(key) if isinstance(value, dict) else None
    if not isinstance(value, str):
        return None
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    return EntryPoint(owner, value, GROUP)
