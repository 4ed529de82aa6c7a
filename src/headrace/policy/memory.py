"""How the process holds its memory: quick for many small passes, tight for a long one."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from typing import Any

__all__ = ["keep_freed_memory", "spare_memory", "wish_for_large_pages"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of <malloc.h>
_USUAL, _KEEP, _SPARE = 32 << 20, 1 << 30, 1 << 20
"""Bytes from which a block is the kernel's own: glibc's highest of its own accord, and ours."""


class _State:
    usual = _USUAL
    now = 0


def wish_for_large_pages() -> None:
    """Have torch ask for pages of 2 MiB under every tensor of that size and more.

    With pages of 4 KiB finding the next one costs a fifth of a decoding pass and a tenth of a
    training step. Torch looks at the variable once, at its first tensor on the CPU: whoever has
    made one already, or has set the variable, keeps what there is.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def keep_freed_memory() -> None:
    """Tell glibc to keep large freed blocks instead of giving them back to the kernel.

    Logits and activations come and go by the hundred megabytes; getting each of them page by
    page costs a fifth of a training step on two cores. Does nothing on another C library.
    """
    _State.usual = _KEEP
    spare_memory(on=False)


def spare_memory(*, on: bool) -> None:
    """While on, blocks of a megabyte and more go back to the kernel as soon as they are free.

    A long pass frees and takes tensors of many sizes, and a heap with small things between
    them grows to several times of what is in use: 3.0 GiB instead of 1.1 at 2,048 tokens.
    """
    wanted = _SPARE if on else _State.usual
    library = _libc()
    if library is None or wanted == _State.now:
        return
    _State.now = wanted
    library.mallopt(_MMAP_THRESHOLD, wanted)
    library.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1 if wanted == _KEEP else 2 * wanted)
    if on:
        library.malloc_trim(0)


@functools.cache
def _libc() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
