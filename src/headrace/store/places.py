"""Where headrace keeps what can be made again.

Knows no one's files; may be known by everything above the store.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_root"]


def cache_root() -> Path:
    """$HEADRACE_CACHE, else $XDG_CACHE_HOME/headrace, else ~/.cache/headrace; absolute."""
    if own := os.environ.get("HEADRACE_CACHE"):
        return Path(own).expanduser().absolute()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser().absolute() / "headrace"
    return Path.home() / ".cache" / "headrace"
