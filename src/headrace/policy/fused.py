"""The decoder of Llama-shaped models with kernels of our own: fused, prepacked, batch-invariant.

For RMSNorm, rotary, gated-SiLU decoders (Llama, Mistral, Qwen2, Qwen3 without windows) on a
CPU. Weights are packed once per policy version, adapters merged into them; attention reads
the paged cache in place. Every other model takes the general path (`paged`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headrace.policy.blocks import BLOCK
from headrace.policy.engine import TorchPolicy
from headrace.policy.flat import FlatBatch
from headrace.policy.native import Kernels, Packed

__all__ = ["FusedRunner", "fits"]

_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
_WIDEST_HEAD = 512
_LANES = 8


@dataclass(slots=True)
class _Layer:
    """Packed weights and norms of one decoder layer."""

    qkv: Packed
    qkv_bias: Tensor | None
    out: Packed
    gate_up: Packed
    down: Packed
    before: Tensor
    after: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None


def fits(policy: TorchPolicy) -> bool:
    """Whether the model has the shape that is implemented here."""
    config = policy.config
    if policy.device.type != "cpu" or getattr(config, "model_type", "") not in _FAMILIES:
        return False
    kinds: set[str] = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = getattr(config, "sliding_window", None) is not None and getattr(
        config, "use_sliding_window", True
    )
    d = _head_width(config)
    return (
        kinds == {"full_attention"}
        and not windowed
        and config.hidden_act == "silu"
        and not getattr(config, "mlp_bias", False)
        and d % BLOCK == 0
        and d <= _WIDEST_HEAD
        and config.hidden_size % BLOCK == 0
        and config.intermediate_size % BLOCK == 0
    )


class FusedRunner:
    """Runs the policy's model over a cache of as many blocks as fit in `memory` bytes."""

    invariant = True

    def __init__(self, policy: TorchPolicy, kernels: Kernels, *, bf16: bool, memory: int) -> None:
        self._policy = policy
        self._kernels = kernels
        self._bf16 = bf16
        config = policy.config
        self._heads = int(config.num_attention_heads)
        self._kv_heads = int(config.num_key_value_heads)
        self._width = _head_width(config)
        self._eps = float(config.rms_norm_eps)
        count = int(config.num_hidden_layers)
        size = self._kv_heads * self._width * BLOCK
        self.blocks = memory // (2 * 4 * size * count)
        shape = (self.blocks, self._kv_heads, self._width * BLOCK)
        self._cache = [(torch.empty(shape), torch.empty(shape)) for _ in range(count)]
        self._layers: list[_Layer] = []
        self._head: Packed | None = None
        self.refresh()

    @property
    def name(self) -> str:
        return f"native {'bf16' if self._bf16 else 'fp32'}"

    # --- weights -------------------------------------------------------------------------

    def refresh(self) -> None:
        decoder = _decoder(self._policy)
        with torch.no_grad():
            held: list[_Layer | None] = [*self._layers] or [None] * len(decoder.layers)
            self._layers = [
                self._pack_layer(layer, old)
                for layer, old in zip(decoder.layers, held, strict=True)
            ]
            head = self._policy.model.get_output_embeddings()
            self._head = self._pack([head], self._head)
        self._norm = decoder.norm.weight.detach()
        self._embedding = decoder.embed_tokens.weight.detach()
        self._rotary = decoder.rotary_emb

    def _pack_layer(self, layer: Any, old: _Layer | None) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        biases = [getattr(p, "bias", None) for p in projections]
        bias = None
        if all(b is not None for b in biases):
            bias = torch.cat([b.detach().float() for b in biases if b is not None])
        return _Layer(
            qkv=self._pack(projections, old and old.qkv),
            qkv_bias=bias,
            out=self._pack([attention.o_proj], old and old.out),
            gate_up=self._pack([mlp.gate_proj, mlp.up_proj], old and old.gate_up),
            down=self._pack([mlp.down_proj], old and old.down),
            before=layer.input_layernorm.weight.detach(),
            after=layer.post_attention_layernorm.weight.detach(),
            query_norm=_weight_of(getattr(attention, "q_norm", None)),
            key_norm=_weight_of(getattr(attention, "k_norm", None)),
        )

    def _pack(self, modules: Sequence[nn.Module], old: Packed | None) -> Packed:
        weights = [_effective(module) for module in modules]
        whole = weights[0] if len(weights) == 1 else torch.cat(weights)
        return self._kernels.pack(whole, bf16=self._bf16, into=old)

    # --- computing -----------------------------------------------------------------------

    def forward(self, batch: FlatBatch, wanted: Sequence[int]) -> Tensor:
        run, eps = self._kernels, self._eps
        shape = (self._heads, self._kv_heads, self._width)
        x = self._embedding[torch.from_numpy(batch.ids)]
        positions = torch.from_numpy(batch.positions)
        rotation = self._rotation(x, positions)
        slots = torch.from_numpy(batch.slots)
        table, owner = torch.from_numpy(batch.table), torch.from_numpy(batch.owner)
        lengths = positions + 1
        t = len(x)
        normed = torch.empty_like(x)
        qkv = torch.empty(t, (self._heads + 2 * self._kv_heads) * self._width)
        attended = torch.empty(t, self._heads * self._width)
        gate_up = torch.empty(t, self._layers[0].gate_up.n)
        gated = torch.empty(t, self._layers[0].gate_up.n // 2)
        scratch = torch.empty(_LANES, 4 * BLOCK * batch.table.shape[1])
        for layer, cache in zip(self._layers, self._cache, strict=True):
            run.rmsnorm(x, layer.before, eps, normed)
            run.matmul(normed, layer.qkv, qkv, bias=layer.qkv_bias)
            norms = (layer.query_norm, layer.key_norm)
            run.rotate_store(qkv, shape, rotation, norms, eps, slots, cache)
            run.attend(
                *(qkv, shape, cache, table, owner, lengths),
                *(self._width**-0.5, scratch, attended),
            )
            run.matmul(attended, layer.out, x, add=True)
            run.rmsnorm(x, layer.after, eps, normed)
            run.matmul(normed, layer.gate_up, gate_up)
            run.silu_mul(gate_up, gated)
            run.matmul(gated, layer.down, x, add=True)
        assert self._head is not None
        last = x[torch.from_numpy(batch.ends[list(wanted)] - 1)]
        run.rmsnorm(last, self._norm, eps, last)
        logits = torch.empty(len(last), self._head.n)
        run.matmul(last, self._head, logits)
        return logits

    def _rotation(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        cosine, sine = self._rotary(x, positions[None])
        return cosine[0].contiguous(), sine[0].contiguous()

    def copy_block(self, source: int, target: int) -> None:
        for keys, values in self._cache:
            keys[target] = keys[source]
            values[target] = values[source]


def _head_width(config: Any) -> int:
    width = getattr(config, "head_dim", None)
    return int(width or config.hidden_size // config.num_attention_heads)


def _decoder(policy: TorchPolicy) -> Any:
    model = policy.model
    base = model.get_base_model() if policy.lora else model
    return base.model


def _weight_of(module: nn.Module | None) -> Tensor | None:
    return None if module is None else module.get_parameter("weight").detach()


def _effective(module: Any) -> Tensor:
    """The weight a linear module multiplies by, its adapter merged in."""
    base = getattr(module, "base_layer", None)
    if base is None:
        return module.weight
    weight = base.weight.float()
    for name in module.active_adapters:
        weight = weight + module.get_delta_weight(name)
    return weight
