"""Averages of weights: over the steps of a run, and between models.

`MovingAverage` follows a policy that is being trained (Polyak & Juditsky 1992, exponentially
weighted). `merge` (Wortsman et al. 2022) and `add_task_vectors` (Ilharco et al. 2023) read
model directories tensor by tensor and write one that `headrace.policy.load` loads: memory grows
with the largest tensor, not with the models.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import struct
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from headrace.errors import ModelError, StorageError, UsageError
from headrace.policy.cache import durable, require_space, storage_errors, write_file
from headrace.policy.engine import TorchPolicy
from headrace.policy.files import reading
from headrace.types import Json

__all__ = ["MovingAverage", "add_task_vectors", "merge"]

_FLOATS = {"F64", "F32", "F16", "BF16"}
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_BESIDE = ("*.json", "*.txt", "*.model", "*.jinja")
"""What is copied from the first model: configuration and tokenizer, never weights."""


# --- over steps ----------------------------------------------------------------------------


class MovingAverage:
    """The exponential moving average of a policy's trainable weights over its updates.

    After n updates w_1 .. w_n weigh (1 - decay) decay^(n - i) / (1 - decay^n): the start is
    corrected (Kingma & Ba 2015), so that the first average is w_1 and nothing leans to zero.
    Held in fp32 beside the weights. `decay` in [0, 1).
    """

    def __init__(self, policy: TorchPolicy, decay: float) -> None:
        if not 0 <= decay < 1:
            raise UsageError(f"the decay of a moving average is {decay}, not in [0, 1)")
        self._policy = policy
        self._decay = decay
        self._updates = 0
        self._weights: dict[str, Tensor] = {}

    @property
    def updates(self) -> int:
        return self._updates

    def update(self) -> None:
        """Take in the current weights; call it once after each optimizer step."""
        self._updates += 1
        share = (1 - self._decay) / (1 - self._decay**self._updates)
        for name, parameter in self._policy.trainable().items():
            current = parameter.detach()
            if name in self._weights:
                self._weights[name].lerp_(current, share)
            else:
                self._weights[name] = current.clone()

    @contextlib.contextmanager
    def applied(self) -> Generator[None]:
        """Inside, the policy computes (and is saved) with the average; samplers take it over.

        Raises RuntimeError before the first update.
        """
        if not self._updates:
            raise RuntimeError("nothing was averaged yet")
        with self._policy.holding(self._weights):
            self._policy.publications += 1
            try:
                yield
            finally:
                self._policy.publications += 1

    def save(self, directory: Path) -> None:
        """Write the state into an existing `directory`, beside a learner's."""
        tensors = {name: tensor.contiguous() for name, tensor in self._weights.items()}
        save_file(tensors, directory / "average.safetensors")
        state = {"decay": self._decay, "updates": self._updates}
        (directory / "average.json").write_text(json.dumps(state))

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote, bit for bit; CheckpointError if it does not fit."""
        with reading(directory):
            state = json.loads((directory / "average.json").read_text())
            weights = load_file(directory / "average.safetensors")
            own = self._policy.trainable()
            if weights and weights.keys() != own.keys():
                odd = min(weights.keys() ^ own.keys())
                raise ValueError(f"the average and the model disagree about {odd}")
            for name, tensor in weights.items():
                if tensor.shape != own[name].shape:
                    raise ValueError(f"the average's {name} has another shape than the model's")
            if state["decay"] != self._decay:
                raise ValueError(f"it has a decay of {state['decay']}, not {self._decay}")
            self._updates = int(state["updates"])
            self._weights = {n: t.to(self._policy.device) for n, t in weights.items()}


# --- between models ------------------------------------------------------------------------


def merge(models: Sequence[Path], weights: Sequence[float], into: Path) -> None:
    """Write the mean of two or more model directories, each with its weight, into `into`.

    Weights sum to 1; they may be negative or above 1 (then it extrapolates). All models have
    the same tensors and the same vocabulary. Configuration and tokenizer are the first's;
    floating-point weights are written in fp32. `into` is new or empty; it is filled whole or not
    at all. Raises UsageError for weights that cannot be, ModelError for models that do not
    match or cannot be read, StorageError where it cannot be written.
    """
    if len(models) < 2 or len(models) != len(weights):
        raise UsageError(f"{len(models)} models and {len(weights)} weights cannot be merged")
    _finite(weights)
    if abs(math.fsum(weights) - 1) > 1e-6:
        raise UsageError(
            f"the weights of a merge sum to {math.fsum(weights):g}, not to 1",
            hint="add_task_vectors adds what models learned to their base without that bound",
        )
    _combine(list(zip(models, weights, strict=True)), into)


def add_task_vectors(
    base: Path, models: Sequence[Path], scales: Sequence[float], into: Path
) -> None:
    """Write base + sum of scale x (model - base): what each model learned, added to its base.

    A negative scale takes it away. Otherwise as `merge`, with configuration and tokenizer of
    `base`.
    """
    if not models or len(models) != len(scales):
        raise UsageError(f"{len(models)} models and {len(scales)} scales cannot be added")
    _finite(scales)
    rest = 1 - math.fsum(scales)
    _combine([(base, rest), *zip(models, scales, strict=True)], into)


def _finite(weights: Sequence[float]) -> None:
    for weight in weights:
        if not math.isfinite(weight):
            raise UsageError(f"{weight} is no weight of a model")


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor in a file: its dtype (as safetensors spells it) and shape."""

    file: Path
    dtype: str
    shape: tuple[int, ...]

    @property
    def merged_dtype(self) -> str:
        return "F32" if self.dtype in _FLOATS else self.dtype


class _Reader:
    """The tensors of a model directory, read one at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._open: dict[Path, Any] = {}
        self._stack = contextlib.ExitStack()
        self.tensors: dict[str, _Tensor] = {}

    def __enter__(self) -> Self:
        with _unreadable(self.directory):
            for file in _weight_files(self.directory):
                handle = self._stack.enter_context(safe_open(file, framework="pt"))
                self._open[file] = handle
                for name in handle.keys():  # noqa: SIM118  (a handle is no mapping)
                    part = handle.get_slice(name)
                    self.tensors[name] = _Tensor(file, part.get_dtype(), tuple(part.get_shape()))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, name: str) -> Tensor:
        with _unreadable(self.directory):
            tensor: Tensor = self._open[self.tensors[name].file].get_tensor(name)
        return tensor


@contextlib.contextmanager
def _unreadable(directory: Path) -> Generator[None]:
    try:
        yield
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"the weights cannot be read: {error}", where=str(directory)) from error


def _weight_files(directory: Path) -> list[Path]:
    """The files with the model's weights; an index may only name files beside itself."""
    if (directory / _INDEX).is_file():
        index: Json = json.loads((directory / _INDEX).read_text())
        names = sorted(set(index["weight_map"].values()))
        if any(Path(name).name != name for name in names):
            raise ValueError(f"{_INDEX} names files elsewhere")
        return [directory / name for name in names]
    if not (directory / _SINGLE).is_file():
        raise ModelError(
            f"no model directory: it has no {_SINGLE}",
            where=str(directory),
            hint="an adapter has to be merged into its model first",
        )
    return [directory / _SINGLE]


def _combine(terms: Sequence[tuple[Path, float]], into: Path) -> None:
    """Write the sum of weight x model over `terms`, whole or not at all."""
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise StorageError("there is something already", where=str(into))
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(_Reader(directory)) for directory, _ in terms]
        _refuse_mismatch(readers)
        building = into.parent / f".{into.name}.{os.getpid()}"
        with storage_errors(into.parent):
            building.mkdir(parents=True)
        stack.callback(shutil.rmtree, building, ignore_errors=True)
        with storage_errors(building):
            require_space(building, sum(_bytes(t) for t in readers[0].tensors.values()))
            _write(readers, [weight for _, weight in terms], building / _SINGLE)
            _copy_beside(readers[0].directory, building)
            building.rename(into)


def _refuse_mismatch(readers: Sequence[_Reader]) -> None:
    first = readers[0]
    vocabulary = _vocabulary(first.directory)
    for other in readers[1:]:
        odd = sorted(first.tensors.keys() ^ other.tensors.keys())
        if odd:
            owner = first if odd[0] in first.tensors else other
            raise ModelError(
                f"only one of the models has {odd[0]}: {owner.directory}",
                where=str(other.directory),
            )
        for name, tensor in first.tensors.items():
            found = other.tensors[name]
            if (found.shape, found.merged_dtype) != (tensor.shape, tensor.merged_dtype):
                raise ModelError(
                    f"{name} is {found.dtype}{list(found.shape)}, in {first.directory} it is "
                    f"{tensor.dtype}{list(tensor.shape)}",
                    where=str(other.directory),
                )
        if _vocabulary(other.directory) != vocabulary:
            raise ModelError(
                f"its vocabulary is another than that of {first.directory}",
                where=str(other.directory),
                hint="only models with the same tokenizer have weights that can be added",
            )


def _vocabulary(directory: Path) -> Json:
    """What the ids mean: vocabulary and added tokens of the tokenizer."""
    path = directory / "tokenizer.json"
    try:
        tokenizer: Json = json.loads(path.read_text())
        added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
        return [tokenizer["model"]["vocab"], added]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"the tokenizer cannot be read: {error!r}", where=str(path)) from error


_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL"), 1),
}


def _bytes(tensor: _Tensor) -> int:
    if tensor.merged_dtype not in _BYTES:
        raise ModelError(f"weights of type {tensor.dtype} cannot be added", where=str(tensor.file))
    return _BYTES[tensor.merged_dtype] * math.prod(tensor.shape)


def _write(readers: Sequence[_Reader], weights: Sequence[float], path: Path) -> None:
    """The safetensors format: header length, JSON header, then the raw values in order."""
    header: dict[str, Json] = {"__metadata__": {"format": "pt"}}
    names = sorted(readers[0].tensors)
    offset = 0
    for name in names:
        tensor = readers[0].tensors[name]
        end = offset + _bytes(tensor)
        header[name] = {
            "dtype": tensor.merged_dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with durable(path) as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            values = _combined(readers, weights, name).reshape(-1).view(torch.uint8)
            out.write(np.ascontiguousarray(values.numpy()).data)


def _combined(readers: Sequence[_Reader], weights: Sequence[float], name: str) -> Tensor:
    if readers[0].tensors[name].dtype not in _FLOATS:
        value = readers[0].read(name)
        for other in readers[1:]:
            if not torch.equal(value, other.read(name)):
                raise ModelError(
                    f"{name} holds no weights and differs from that of {readers[0].directory}",
                    where=str(other.directory),
                )
        return value.contiguous()
    total = readers[0].read(name).float() * weights[0]
    for reader, weight in zip(readers[1:], weights[1:], strict=True):
        total.add_(reader.read(name).float(), alpha=weight)
    if not bool(torch.isfinite(total).all()):
        raise ModelError(f"{name} of the sum is not finite", where=str(readers[0].directory))
    return total.contiguous()


def _copy_beside(source: Path, target: Path) -> None:
    """Configuration and tokenizer; the configuration says fp32, as the weights now are."""
    for pattern in _BESIDE:
        for path in sorted(source.glob(pattern)):
            if path.name not in ("config.json", _INDEX):
                with path.open("rb") as file, durable(target / path.name) as copy:
                    shutil.copyfileobj(file, copy)
    with _unreadable(source):
        config: Mapping[str, Json] = json.loads((source / "config.json").read_text())
        told = {**config, "dtype": "float32"}
    told.pop("torch_dtype", None)
    write_file(target / "config.json", json.dumps(told, indent=1, sort_keys=True) + "\n")
