"""Test pieces for models: a tiny llama as GGUF and as a wheel, and a progress that remembers."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize
from transformers import PreTrainedModel

from headrace.policy.tiny import CHAT_TEMPLATE, SPECIALS, tiny_model, tiny_tokenizer

F32 = GGMLQuantizationType.F32
_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass
class Recorder:
    """A progress that remembers each stage as [label, total, advanced]."""

    stages: list[list[Any]] = field(default_factory=list[list[Any]])
    finished: int = 0

    def start(self, total: int, label: str) -> None:
        self.stages.append([label, total, 0])

    def advance(self, n: int) -> None:
        self.stages[-1][2] += n

    def finish(self) -> None:
        self.finished += 1

    @property
    def labels(self) -> list[str]:
        return [stage[0] for stage in self.stages]


def write_gguf(
    path: Path,
    *,
    model: PreTrainedModel | None = None,
    kind: GGMLQuantizationType = F32,
    leave_out: tuple[str, ...] = (),
    replace: dict[str, Any] | None = None,
    extra_tensors: dict[str, npt.NDArray[np.float32]] | None = None,
) -> None:
    """Write a llama model as llama.cpp's converter lays it out; matrices in `kind`.

    Metadata keys in `leave_out` are not written; those in `replace` get other values.
    """
    model = model or tiny_model("llama")
    replace = replace or {}
    writer = GGUFWriter(path, replace.get("general.architecture", "llama"))
    for key, value in {**_metadata(model), **replace}.items():
        if key not in leave_out and key != "general.architecture":
            _add(writer, key, value)
    for name, parameter in model.named_parameters():
        target, values = _as_gguf(name, parameter.detach().numpy(), model.config)
        if target in leave_out:
            continue
        stored = kind if values.ndim == 2 else F32
        writer.add_tensor(target, quantize(values, stored), raw_dtype=stored)
    for name, values in (extra_tensors or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _metadata(model: PreTrainedModel) -> dict[str, Any]:
    config: Any = model.config
    vocabulary = tiny_tokenizer().get_vocab()
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    merges = [
        f"{left} {right}"
        for left in tokens
        for right in tokens
        if left + right in vocabulary and left not in SPECIALS
    ]
    merges.sort(key=lambda merge: vocabulary[merge.replace(" ", "")])
    types = [TokenType.CONTROL if token in SPECIALS else TokenType.NORMAL for token in tokens]
    return {
        "llama.block_count": config.num_hidden_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "llama.rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "llama.rope.dimension_count": config.head_dim,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 3,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _as_gguf(
    name: str, values: npt.NDArray[np.float32], config: Any
) -> tuple[str, npt.NDArray[np.float32]]:
    """The GGUF name of a parameter, and its values with rotary rows in pairs."""
    roots = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in roots:
        return roots[name], values
    layer, _, module = name.removeprefix("model.layers.").removesuffix(".weight").partition(".")
    heads = {
        "self_attn.q_proj": config.num_attention_heads,
        "self_attn.k_proj": config.num_key_value_heads,
    }.get(module)
    if heads:
        halves = values.reshape(heads, 2, values.shape[0] // heads // 2, values.shape[1])
        values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
    return f"blk.{layer}.{_NAMES[module]}.weight", values


def write_wheel(
    directory: Path, members: dict[str, bytes], *, name: str = "tiny_weights", version: str = "1.0"
) -> Path:
    """A wheel that holds the given members and the metadata that pip asks for."""
    info = f"{name}-{version}.dist-info"
    files = {
        **members,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [
        f"{member},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()},{len(data)}"
        for member, data in files.items()
    ]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    path = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in files.items():
            archive.writestr(member, data)
    return path
