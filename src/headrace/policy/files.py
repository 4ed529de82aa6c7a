"""A policy's weights as files: what a checkpoint holds, and whole models that load anywhere.

Safetensors only. A checkpoint holds what is trained (the model, or the adapter alone); a model
directory is complete, an adapter merged into its weights, and loads with `headrace.policy.load`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from headrace.errors import CheckpointError, StorageError
from headrace.policy.engine import TorchPolicy

__all__ = [
    "read_weights",
    "reading",
    "weights_directory",
    "whole_weights",
    "write_model",
    "write_weights",
]


@contextlib.contextmanager
def reading(directory: Path) -> Generator[None]:
    """Turn what goes wrong with the state in `directory` into CheckpointError."""
    try:
        yield
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"the learner's state cannot be read: {error}",
            where=str(directory),
            hint="an older checkpoint may be whole: move this one away and resume",
        ) from error


def weights_directory(policy: TorchPolicy, directory: Path) -> Path:
    """Where in a checkpoint `directory` the weights of a policy like this one are."""
    return directory / ("adapter" if policy.lora else "model")


def write_weights(policy: TorchPolicy, directory: Path) -> None:
    """Write what is trained into `weights_directory`; StorageError where something is in it."""
    place = weights_directory(policy, directory)
    if policy.lora is None:
        write_model(policy, place)
        return
    _claim(place)
    policy.model.save_pretrained(place)
    policy.tokenizer.save_pretrained(place)


def read_weights(policy: TorchPolicy, directory: Path) -> None:
    """Take over what `write_weights` wrote, bit for bit.

    Raises ValueError where it is of another model, and what reading damaged files raises
    (OSError, SafetensorError).
    """
    place = weights_directory(policy, directory)
    if policy.lora is not None:
        from peft import set_peft_model_state_dict

        weights = load_file(place / "adapter_model.safetensors")
        result = set_peft_model_state_dict(policy.model, weights)
        if result.unexpected_keys:
            raise ValueError(f"unexpected adapter weight {result.unexpected_keys[0]}")
        return
    parameters = dict(policy.model.named_parameters())
    weights = load_file(place / "model.safetensors")
    if weights.keys() != parameters.keys():
        odd = min(weights.keys() ^ parameters.keys())
        raise ValueError(f"the checkpoint and the model disagree about {odd}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != weights[name].shape:
                raise ValueError(f"the checkpoint's {name} has another shape than the model's")
            parameter.copy_(weights[name])


def write_model(policy: TorchPolicy, directory: Path) -> None:
    """Write the whole model (weights, configuration, tokenizer) into a new or empty `directory`.

    Raises StorageError where something is in it.
    """
    _claim(directory)
    save_file(whole_weights(policy), directory / "model.safetensors", metadata={"format": "pt"})
    model: Any = policy.model.get_base_model() if policy.lora else policy.model
    model.config.save_pretrained(directory)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(directory)
    policy.tokenizer.save_pretrained(directory)


def whole_weights(policy: TorchPolicy) -> dict[str, Tensor]:
    """All weights under the names of the plain model, an adapter's share added to its layers."""
    if policy.lora is None:
        return {n: p.detach().contiguous() for n, p in policy.model.named_parameters()}
    base: nn.Module = policy.model.get_base_model()
    adapted = {
        name: module for name, module in base.named_modules() if hasattr(module, "get_delta_weight")
    }
    weights: dict[str, Tensor] = {}
    for name, parameter in base.named_parameters():
        if "lora_" in name:
            continue
        owner, infix, kind = name.rpartition(".base_layer.")
        value = parameter.detach()
        if infix and kind == "weight":
            layer: Any = adapted[owner]
            with torch.no_grad():
                for adapter in layer.active_adapters:
                    value = value + layer.get_delta_weight(adapter)
        weights[name.replace(".base_layer.", ".")] = value.contiguous()
    return weights


def _claim(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise StorageError("there is something already", where=str(directory))
