"""Long sequences in little memory: layers computed again in the backward pass, tile by tile.

Of a layer only its input is kept, in memory or in a scratch file; the backward pass computes
the rest of the layer again when it gets there (Chen et al. 2016). Its MLP, whose inside is
several times wider than anything else, runs over tiles of tokens, each of them computed again
in turn.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headrace.errors import StorageError
from headrace.policy.parts import replaced_forward

__all__ = ["ScratchFile", "recomputing"]

TILE = 2048
"""Tokens of one tile of an MLP."""

Context = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where in a scratch file a tensor is, and what it was."""

    offset: int
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


class ScratchFile:
    """Tensors on disk for as long as this object lives; the file has no name from the start.

    Written and read rather than mapped: a mapped write to a full disk kills the process, and
    this one is a StorageError. It is where temporary files are (TMPDIR).
    """

    def __init__(self) -> None:
        try:
            self._file, path = tempfile.mkstemp(prefix="headrace-")
        except OSError as error:
            raise _no_scratch(error) from error
        weakref.finalize(self, os.close, self._file)
        Path(path).unlink()
        self._end = 0

    def put(self, tensor: Tensor) -> _Stored:
        """Append the values of `tensor`, wherever it lives."""
        view = _bytes(tensor.detach().cpu().contiguous())
        stored = _Stored(self._end, tensor.shape, tensor.dtype, tensor.device)
        try:
            written = 0
            while written < len(view):
                written += os.pwrite(self._file, view[written:], self._end + written)
        except OSError as error:
            raise _no_scratch(error) from error
        self._end += len(view)
        return stored

    def get(self, stored: _Stored) -> Tensor:
        values = torch.empty(stored.shape, dtype=stored.dtype)
        view = _bytes(values)
        read = 0
        while read < len(view):
            count = os.preadv(self._file, [view[read:]], stored.offset + read)
            if count == 0:
                raise StorageError("the scratch file is shorter than what was written to it")
            read += count
        return values.to(stored.device)


def _bytes(values: Tensor) -> memoryview:
    return memoryview(cast("Any", values.flatten().view(torch.uint8).numpy()))


def _no_scratch(error: OSError) -> StorageError:
    return StorageError(
        f"the scratch file for activations cannot be written: {error.strerror or error}",
        where=tempfile.gettempdir(),
        hint="free some space, point TMPDIR at another disk, or set learner.offload = false",
    )


@contextlib.contextmanager
def recomputing(
    layers: Sequence[nn.Module], *, during: Context, scratch: ScratchFile | None
) -> Generator[None]:
    """Inside, a forward pass keeps only the inputs of `layers`, in `scratch` if there is one.

    The backward pass may come later; it computes each layer again inside of `during()`.
    """
    with contextlib.ExitStack() as stack:
        for layer in layers:
            run = _checkpointed(layer, during, scratch)
            stack.enter_context(replaced_forward(layer, run))
        yield


def _checkpointed(
    layer: nn.Module, during: Context, scratch: ScratchFile | None
) -> Callable[..., Any]:
    forward = layer.forward

    @contextlib.contextmanager
    def again() -> Generator[None]:
        with during(), _tiled(layer):
            yield

    def contexts() -> tuple[Any, Any]:
        return _tiled(layer), again()

    def run(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        inputs = _Input(hidden, scratch)

        def compute() -> Any:
            return forward(inputs.take(), *args, **kwargs)

        return checkpoint(
            compute, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
        )

    return run


class _Input:
    """The input of a layer: at hand for the forward pass, from where it is kept after that."""

    def __init__(self, hidden: Tensor, scratch: ScratchFile | None) -> None:
        self._hidden: Tensor | None = hidden
        self._needs_gradient = hidden.requires_grad
        self._scratch = scratch
        self._stored = None if scratch is None else scratch.put(hidden)

    def take(self) -> Tensor:
        hidden = self._hidden
        if self._scratch is None or self._stored is None:
            assert hidden is not None
            return hidden
        self._hidden = None
        if hidden is None:
            hidden = self._scratch.get(self._stored).requires_grad_(self._needs_gradient)
        return hidden


@contextlib.contextmanager
def _tiled(layer: nn.Module) -> Generator[None]:
    """Inside, the MLP of `layer` runs over `TILE` tokens at a time, and keeps only its input."""
    mlp = getattr(layer, "mlp", None)
    if not isinstance(mlp, nn.Module):
        yield
        return
    forward = mlp.forward

    def run(hidden: Tensor) -> Any:
        if hidden.ndim != 3 or hidden.shape[1] <= TILE:
            return forward(hidden)
        tiles: list[Any] = [
            checkpoint(forward, tile.contiguous(), use_reentrant=False, preserve_rng_state=False)
            for tile in hidden.split(TILE, dim=1)
        ]
        return torch.cat(tiles, dim=1) if isinstance(tiles[0], Tensor) else forward(hidden)

    with replaced_forward(mlp, run):
        yield
