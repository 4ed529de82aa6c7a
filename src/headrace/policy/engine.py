"""The policy in this process: one module that the sampler and the learner share.

Publishing new weights therefore costs nothing but a version number. Which model it is and how
it was loaded is `headrace.policy.load`'s business; how tokens are drawn is the sampler's, how
weights change the learner's.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from headrace.errors import ModelError
from headrace.policy.attention import attending
from headrace.policy.load import LoadedModel
from headrace.policy.parts import Parts
from headrace.policy.stepping import fingerprint
from headrace.recipe import ModelSpec

Parameters = Mapping[str, nn.Parameter]


class TorchPolicy:
    """A causal language model with a version, an optional adapter and a frozen reference.

    `version` counts published updates from 0. The module stays in eval mode for good: dropout
    would make the learner score another policy than the one that sampled.
    """

    def __init__(self, loaded: LoadedModel, spec: ModelSpec) -> None:
        self.device = _device(spec.device)
        self.tokenizer = loaded.tokenizer
        self.end_ids = frozenset(loaded.end_ids)
        self.lora = spec.lora
        model = cast("nn.Module", loaded.model)
        self.model: Any = _with_adapter(model, spec) if spec.lora else model
        self.model.to(self.device)
        self._version = 0
        self.publications = 0
        """How often weights were published or restored; samplers take them over when it moves."""
        self._autocast = _wants_autocast(spec, self.device)
        self._reference: dict[str, Tensor] | None = None
        if spec.lora is None:
            for parameter in self.model.parameters():
                parameter.requires_grad_(True)
        self.model.eval()

    @property
    def config(self) -> Any:
        return self.model.config

    @functools.cached_property
    def parts(self) -> Parts:
        """The model's body, layers and head."""
        return Parts(self.model)

    @functools.cached_property
    def supports_packing(self) -> bool:
        """Whether attention can be redirected (`policy.attention`): asked by trying."""
        return _agrees_when_packed(self)

    @property
    def context_length(self) -> int | None:
        """The positions the model was made for, where its config says so."""
        length = getattr(self.config, "max_position_embeddings", None)
        return length if isinstance(length, int) else None

    @property
    def vocabulary(self) -> int:
        """How many token ids the model has."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    @property
    def autocasts(self) -> bool:
        """Whether the policy computes in bf16 over its fp32 weights."""
        return self._autocast

    @property
    def version(self) -> int:
        """The number of the weights that are sampled from."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        self._version = version
        self.publications += 1

    def trainable(self) -> dict[str, nn.Parameter]:
        """Trainable parameters by name, each tied one once."""
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def publish(self) -> int:
        """Make the current weights the ones that are sampled from."""
        self.version += 1
        return self.version

    def fingerprint(self) -> int:
        """A number over all bits of the trainable weights; any update changes it."""
        return fingerprint(self.trainable().values())

    @contextlib.contextmanager
    def precision(self) -> Generator[None]:
        """bf16 autocast over the fp32 weights, where it is on."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._autocast):
            yield

    def forward(self, **inputs: Any) -> Any:
        """The model's own forward, in the policy's precision."""
        with self.precision():
            return self.model(**inputs)

    # --- the reference -------------------------------------------------------------------

    def freeze_reference(self) -> None:
        """Remember the current trainable weights as the reference policy."""
        self._reference = {n: p.detach().clone() for n, p in self.trainable().items()}

    @property
    def reference(self) -> Mapping[str, Tensor] | None:
        return self._reference

    def restore_reference(self, weights: Mapping[str, Tensor]) -> None:
        self._reference = {n: t.to(self.device) for n, t in weights.items()}

    @contextlib.contextmanager
    def as_reference(self) -> Generator[None]:
        """Inside, the model computes with the reference weights."""
        if self._reference is None:
            raise RuntimeError("no reference was frozen")
        with self.holding(self._reference):
            yield

    @contextlib.contextmanager
    def holding(self, weights: dict[str, Tensor]) -> Generator[None]:
        """Inside, the model computes with `weights`, which hold the trainable ones meanwhile."""
        self._swap(weights)
        try:
            yield
        finally:
            self._swap(weights)

    def _swap(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in self.trainable().items():
            parameter.data, weights[name] = weights[name], parameter.data


def _agrees_when_packed(policy: TorchPolicy) -> bool:
    """Whether two branches of one packed tree get the states that each gets by itself.

    Long enough for short windows to matter; every family with sinks or biases in its
    attention differs here by far more than rounding.
    """
    from headrace.policy.packed import PackedAttention
    from headrace.policy.tree import grow

    words = np.random.default_rng(0).integers(0, int(policy.config.vocab_size), 40)
    trunk, twigs = words[:24], (words[24:33], words[33:])
    tree = grow([np.concatenate([trunk, twig]).astype(np.int32) for twig in twigs])
    plan = PackedAttention(tree, policy.device, subtree=16)
    try:
        with torch.inference_mode(), policy.precision():
            with attending(policy.config, plan):
                merged = policy.parts.hidden(
                    input_ids=torch.from_numpy(tree.ids).long().to(policy.device)[None],
                    position_ids=torch.from_numpy(tree.depth).to(policy.device)[None],
                )[0]
            for path in tree.paths:
                ids = torch.from_numpy(tree.ids[path]).long().to(policy.device)[None]
                alone = policy.parts.hidden(input_ids=ids)[0]
                close = 1e-3 if alone.dtype == torch.float32 and not policy.autocasts else 5e-2
                gap = (merged[torch.from_numpy(path)] - alone).norm() / alone.norm()
                if not float(gap) < close:
                    return False
    except (TypeError, ValueError, RuntimeError, IndexError, KeyError, AttributeError):
        return False  # a forward that refuses a plan of ours cannot be packed
    return True


def _device(wanted: str) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ModelError(
            "no CUDA device is available", where="model.device", hint='use device = "auto"'
        )
    return torch.device(wanted)


def _wants_autocast(spec: ModelSpec, device: torch.device) -> bool:
    if spec.autocast != "auto":
        return spec.autocast == "bf16"
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    # Without native instructions bf16 is several times slower than fp32 on a CPU.
    return _cpu_multiplies_bf16()


def _cpu_multiplies_bf16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _with_adapter(model: nn.Module, spec: ModelSpec) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    assert spec.lora is not None
    targets = spec.lora.targets
    config = LoraConfig(
        r=spec.lora.rank,
        lora_alpha=cast("int", spec.lora.alpha),
        target_modules=targets if isinstance(targets, str) else list(targets),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    try:
        with warnings.catch_warnings():
            # peft asks transformers a question under a name that transformers has renamed
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
            return get_peft_model(cast("Any", model), config)
    except ValueError as error:
        raise ModelError(
            f"the adapter does not fit this model: {error}",
            where="model.lora.targets",
            hint='targets = "all-linear" fits every model',
        ) from error
