"""Which code judged: the digest that makes a recorded audit worthless once the code changes.

Knows domains by their protocol, and where Python keeps modules.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType

from headrace.protocols import Domain, Verifier

__all__ = ["code_digest", "forget"]

_OWN = "headrace"


def code_digest(domain: Domain) -> str:
    """SHA-256 (hex) over the .py files of `headrace.verify` and of the domain's own packages.

    Those are the top-level packages of the domain and its verifiers, and of the functions they
    are made of.
    """
    digest = hashlib.sha256()
    for name in ("headrace.verify", *sorted(_packages(domain))):
        digest.update(f"{name} {_module_digest(name)}\n".encode())
    return digest.hexdigest()


def forget() -> None:
    """Read the files anew next time; they are not expected to change while a process runs."""
    _module_digest.cache_clear()


def _packages(domain: Domain) -> set[str]:
    modules: set[str] = set()
    waiting: list[object] = [domain]
    seen: list[object] = []
    while waiting:
        thing = waiting.pop()
        if any(thing is other for other in seen):
            continue
        seen.append(thing)
        modules.add(thing.__module__ if isinstance(thing, FunctionType) else type(thing).__module__)
        held = [] if isinstance(thing, FunctionType) else getattr(thing, "__dict__", {}).values()
        waiting += [part for part in held if isinstance(part, (FunctionType, Verifier))]
    return {_top(module) for module in modules} - {_OWN}


def _top(module: str) -> str:
    """The top-level package; the module itself where that has no files of its own."""
    top = module.partition(".")[0]
    return top if _places(top) else module


@cache
def _module_digest(name: str) -> str:
    digest = hashlib.sha256()
    for place in _places(name):
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
        for file in files:
            data = file.read_bytes()
            relative = file.relative_to(place).as_posix() if place.is_dir() else file.name
            digest.update(f"{relative} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def _places(name: str) -> list[Path]:
    """The directories of a package, or the file of a module; none for what has no source."""
    module = sys.modules.get(name)
    if module is not None:
        found: Iterable[str] = getattr(module, "__path__", None) or [module.__file__ or ""]
    else:
        try:
            spec = find_spec(name)
        except (ImportError, ValueError):
            return []
        if spec is None:
            return []
        found = spec.submodule_search_locations or [spec.origin or ""]
    return [Path(place) for place in found if place and Path(place).exists()]
