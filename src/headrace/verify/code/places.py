"""Keeping the answers of installed task packs out of a candidate's sight.

The image "host" shows the machine's programs, and where headrace is installed among them
(a container image, `sudo pip`), its packages too: reference solutions and hidden tests in
world-readable files. So every such place is covered by an empty directory. May be known by
the code verifiers.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from headrace.sandbox.spec import Mount, SandboxSpec
from headrace.sandbox.state import state_root
from headrace.verify.boxes import PROGRAMS

__all__ = ["candidates_spec", "places", "without_packages"]

_SEEN = ("/usr", "/opt")


@functools.cache
def candidates_spec() -> SandboxSpec:
    """The sandbox of a candidate's program: `boxes.PROGRAMS` without this Python's packages."""
    return without_packages(PROGRAMS)


def without_packages(spec: SandboxSpec) -> SandboxSpec:
    """`spec`, in which this Python's packages cannot be seen. The same one if they are
    elsewhere anyway, as in a virtual environment under `/home`."""
    covered = places(sys.path, (*_SEEN, sys.base_prefix))
    if not covered:
        return spec
    empty = state_root() / "empty"
    empty.mkdir(exist_ok=True)
    mounts = [Mount(source=empty, target=str(place)) for place in covered]
    return replace(spec, mounts=(*spec.mounts, *mounts))


def places(paths: Iterable[str], seen: Iterable[str]) -> list[Path]:
    """The uppermost directories of `paths` below one of `seen` that are not the standard
    library."""
    library = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    library |= {place / "lib-dynload" for place in library}
    roots = [Path(root).resolve() for root in seen]
    found = {Path(path).resolve() for path in paths if path and Path(path).is_dir()}
    visible = {
        place
        for place in found - library - set(roots)
        if any(place.is_relative_to(root) for root in roots)
    }
    return sorted(place for place in visible if not visible & set(place.parents))
