"""GGUF files of the llama family, converted to the Hugging Face layout in fp32.

Weights are stored in fp32 because the dequantised values of the block formats (scale x integer
+ minimum) are exact there and nowhere narrower; a tied output head is not stored twice. Tensors
are converted one at a time, so the memory needed is that of the largest one.

Knows the GGUF key names, llama.cpp's layout of the rotary weights and the Hugging Face file
layout; knows nothing of caches or downloads.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PretrainedConfig, PreTrainedTokenizerFast

from headrace.errors import ModelError
from headrace.policy.cache import Progress, durable, require_space, write_file

__all__ = ["import_gguf", "write_config", "write_tokenizer"]

_ROOTS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_SPECIAL_TYPES = (3, 4)
"""GGUF token types "control" and "user defined": matched before the text is split."""


def import_gguf(file: Path, directory: Path, *, progress: Progress) -> None:
    """Write `config.json`, weights, tokenizer and chat template of `file` into `directory`.

    Raises ModelError for a damaged file or one of another architecture, tokenizer or tensor
    layout than those supported; StorageError where the disk is too small.
    """
    reader = _open(file)
    facts = _Facts(file, {name: field.contents() for name, field in reader.fields.items()})
    _refuse_unsupported(facts)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    config = _config(facts, tied="output.weight" not in tensors)
    plan = _plan(config, tensors, facts)
    require_space(directory, sum(4 * int(np.prod(entry.shape)) for entry in plan) + (64 << 20))
    write_config(config, directory)
    write_file(directory / "generation_config.json", _generation_config(facts))
    write_tokenizer(_tokenizer(facts), directory)
    _write_weights(plan, directory / "model.safetensors", file, progress)


@dataclass(frozen=True, slots=True)
class _Facts:
    """The metadata of a GGUF file, read with errors that name the key."""

    file: Path
    values: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    def need(self, key: str) -> Any:
        if key not in self.values:
            raise ModelError(f"the GGUF file lacks {key}", where=str(self.file))
        return self.values[key]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One tensor to write: its Hugging Face name and shape; `heads` > 0 where rows are rotary."""

    name: str
    shape: tuple[int, ...]
    heads: int
    tensor: ReaderTensor


def _open(file: Path) -> GGUFReader:
    try:
        return GGUFReader(file)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise ModelError(
            f"not a readable GGUF file (truncated or damaged): {error}", where=str(file)
        ) from error


def _refuse_unsupported(facts: _Facts) -> None:
    architecture = facts.need("general.architecture")
    scaling = facts.get("llama.rope.scaling.type", "none")
    found = {
        "architecture": (architecture, architecture == "llama", "llama"),
        "experts": (n := facts.get("llama.expert_count", 0), n == 0, "none (dense models)"),
        "rope scaling": (scaling, scaling == "none", "none"),
        "tokenizer": (
            t := facts.need("tokenizer.ggml.model"),
            t == "gpt2",
            "gpt2 (byte-level BPE)",
        ),
        "pre-tokenizer": (
            pre := facts.get("tokenizer.ggml.pre", "unstated"),
            pre in _PRE_TOKENIZERS,
            ", ".join(_PRE_TOKENIZERS),
        ),
    }
    for what, (value, supported, known) in found.items():
        if not supported:
            raise ModelError(
                f"GGUF {what} {value!r} is not supported; supported: {known}",
                where=str(facts.file),
                hint="use the model's safetensors form: hf:ORG/NAME or a local directory",
            )


def _config(facts: _Facts, *, tied: bool) -> LlamaConfig:
    width, heads = facts.need("llama.embedding_length"), facts.need("llama.attention.head_count")
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(facts.need("tokenizer.ggml.tokens")),
        hidden_size=width,
        intermediate_size=facts.need("llama.feed_forward_length"),
        num_hidden_layers=facts.need("llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=facts.get("llama.attention.head_count_kv", heads),
        head_dim=facts.get("llama.attention.key_length", width // heads),
        max_position_embeddings=facts.need("llama.context_length"),
        rms_norm_eps=_shortest(facts.need("llama.attention.layer_norm_rms_epsilon")),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": _shortest(facts.get("llama.rope.freq_base", 10000.0)),
        },
        tie_word_embeddings=tied,
        bos_token_id=facts.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=facts.need("tokenizer.ggml.eos_token_id"),
        pad_token_id=facts.get("tokenizer.ggml.padding_token_id"),
        dtype="float32",
    )


def _shortest(value: float) -> float:
    """The shortest decimal that is this value in single precision (9.99999974e-06: 1e-05)."""
    return float(str(np.float32(value)))


def _plan(config: LlamaConfig, tensors: Mapping[str, ReaderTensor], facts: _Facts) -> list[_Entry]:
    """Which tensor becomes which parameter; every parameter filled once, no tensor left over."""
    with torch.device("meta"):
        wanted = dict(LlamaForCausalLM(config).named_parameters())
    plan: list[_Entry] = []
    for name, tensor in tensors.items():
        target = _target(name)
        shape = tuple(int(n) for n in reversed(tensor.shape))
        parameter = wanted.pop(target, None) if target else None
        if parameter is None or target is None:
            raise ModelError(
                f"the GGUF tensor {name} has no place in a llama model", where=str(facts.file)
            )
        if shape != tuple(parameter.shape):
            raise ModelError(
                f"the GGUF tensor {name} has shape {shape}, not {tuple(parameter.shape)}",
                where=str(facts.file),
            )
        heads = {
            "self_attn.q_proj": config.num_attention_heads,
            "self_attn.k_proj": config.num_key_value_heads,
        }.get(target.removesuffix(".weight").partition("layers.")[2].partition(".")[2], 0)
        plan.append(_Entry(target, shape, int(heads or 0), tensor))
    if wanted:
        raise ModelError(
            f"the GGUF file lacks {len(wanted)} tensors, {min(wanted)} among them",
            where=str(facts.file),
        )
    return plan


def _target(name: str) -> str | None:
    if name in _ROOTS:
        return _ROOTS[name]
    match name.split("."):
        case ["blk", layer, kind, "weight"] if layer.isdecimal() and kind in _BLOCK:
            return f"model.layers.{int(layer)}.{_BLOCK[kind]}.weight"
        case _:
            return None


# --- weights -------------------------------------------------------------------------------


def _write_weights(plan: Sequence[_Entry], path: Path, file: Path, progress: Progress) -> None:
    """Write the safetensors format: header length, JSON header, then the raw values in order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for entry in plan:
        size = 4 * int(np.prod(entry.shape))
        header[entry.name] = {
            "dtype": "F32",
            "shape": list(entry.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    progress.start(len(plan), "converting tensors")
    with durable(path) as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for entry in plan:
            out.write(_values(entry, file).astype("<f4", copy=False).tobytes())
            progress.advance(1)
    progress.finish()


def _values(entry: _Entry, file: Path) -> npt.NDArray[np.float32]:
    """The fp32 values of a tensor in the Hugging Face order."""
    try:
        raw = dequantize(entry.tensor.data, entry.tensor.tensor_type)
    except (NotImplementedError, ValueError) as error:
        raise ModelError(
            f"the GGUF tensor {entry.tensor.name} cannot be dequantised: {error}", where=str(file)
        ) from error
    values = np.asarray(raw, dtype=np.float32).reshape(entry.shape)
    if not np.isfinite(values).all():
        raise ModelError(
            f"the GGUF tensor {entry.tensor.name} holds values that are not finite",
            where=str(file),
        )
    return _unpermuted(values, entry.heads) if entry.heads else values


def _unpermuted(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rotary rows from llama.cpp's order (pairs side by side) to halves, per head.

    GGUF keeps row 2i + j of a head where Hugging Face keeps row i + j * half, j in (0, 1).
    """
    half = weight.shape[0] // heads // 2
    paired = weight.reshape(heads, half, 2, weight.shape[1])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(weight.shape)


# --- tokenizer and configuration -----------------------------------------------------------


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


_PRE_TOKENIZERS = {"smollm": _smollm, "gpt-2": _gpt2}


def _tokenizer(facts: _Facts) -> PreTrainedTokenizerFast:
    tokens: list[str] = facts.need("tokenizer.ggml.tokens")
    types: list[int] = facts.need("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in facts.need("tokenizer.ggml.merges")]
    if len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise ModelError("the GGUF vocabulary contradicts itself", where=str(facts.file))
    try:
        backend = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    except ValueError as error:
        raise ModelError(f"the GGUF merges are damaged: {error}", where=str(facts.file)) from error
    backend.pre_tokenizer = _PRE_TOKENIZERS[facts.need("tokenizer.ggml.pre")]()
    backend.decoder = decoders.ByteLevel()

    def token(key: str) -> str | None:
        id = facts.get(f"tokenizer.ggml.{key}_token_id")
        return None if id is None else tokens[id]

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=token("bos"),
        eos_token=token("eos"),
        unk_token=token("unknown"),
        pad_token=token("padding"),
        extra_special_tokens=[
            t for t, kind in zip(tokens, types, strict=True) if kind in _SPECIAL_TYPES
        ],
    )
    tokenizer.chat_template = facts.get("tokenizer.chat_template")
    return tokenizer


def _generation_config(facts: _Facts) -> str:
    ends = [facts.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
    return _json(
        {
            "bos_token_id": facts.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": list(dict.fromkeys(end for end in ends if end is not None)),
            "pad_token_id": facts.get("tokenizer.ggml.padding_token_id"),
        }
    )


def write_config(config: PretrainedConfig, directory: Path) -> None:
    """Write `config.json` without the library's version, which would change the digest."""
    values = json.loads(config.to_json_string(use_diff=True))
    values.pop("transformers_version", None)
    write_file(directory / "config.json", _json(values))


def write_tokenizer(tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` and, if there is one, the template."""
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **tokenizer.special_tokens_map,
    }
    write_file(directory / "tokenizer.json", tokenizer.backend_tokenizer.to_str())
    write_file(directory / "tokenizer_config.json", _json(settings))
    if tokenizer.chat_template is not None:
        write_file(directory / "chat_template.jinja", str(tokenizer.chat_template))


def _json(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"
