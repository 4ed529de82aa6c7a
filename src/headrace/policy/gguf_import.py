"""GGUF files of the llama family, converted to the Hugging Face layout in fp32.

Weights are stored in fp32 because the dequantised values of the block formats (scale x integer
+ minimum) are exact there and nowhere narrower; a tied output head is not stored twice. Tensors
are converted one at a time, so the memory needed is that of the largest one.

Knows the GGUF key names, llama.cpp's layout of the rotary weights and the Hugging Face file
layout; knows nothing of caches or downloads.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, PretrainedConfig, PreTrainedTokenizerFast

from headrace.errors import ModelError
from headrace.policy.cache import Progress, durable, require_space, write_file

__all__ = ["import_gguf", "write_config", "write_tokenizer"]

_Item = TypeVar("_Item")

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
_TEXT_BYTES = 32 << 20
"""Room for everything beside the weights."""


def import_gguf(file: Path, directory: Path, *, progress: Progress) -> None:
    """Write `config.json`, weights, tokenizer and chat template of `file` into `directory`.

    Raises ModelError for a damaged file or one of another architecture, tokenizer or tensor
    layout than those supported; StorageError where the disk is too small.
    """
    facts, tensors = _read(file)
    _refuse_unsupported(facts)
    config = _config(facts, tied="output.weight" not in tensors)
    plan = _plan(config, tensors, file)
    tokenizer = _tokenizer(facts)
    require_space(directory, sum(entry.bytes for entry in plan) + _TEXT_BYTES)
    write_config(config, directory)
    write_file(directory / "generation_config.json", _generation_config(facts))
    write_tokenizer(tokenizer, directory)
    _write_weights(plan, directory / "model.safetensors", file, progress)


@dataclass(frozen=True, slots=True)
class _Facts:
    """The metadata of a GGUF file, read with errors that name the key."""

    file: Path
    values: Mapping[str, Any]

    def damaged(self, what: str) -> ModelError:
        return ModelError(f"the GGUF file {what}", where=str(self.file))

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str):
            raise self.damaged(f"has no text under {key}")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self.values.get(key, default)
        if not isinstance(value, int) or value < 1:
            raise self.damaged(f"has no positive integer under {key}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number, as the shortest decimal that is it in single precision."""
        value = self.values.get(key, default)
        if not isinstance(value, float) or not 0 < value < float("inf"):
            raise self.damaged(f"has no positive number under {key}")
        return float(str(np.float32(value)))

    def token_id(self, key: str) -> int | None:
        value = self.values.get(f"tokenizer.ggml.{key}_token_id")
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < len(
            self.items("tokenizer.ggml.tokens", str)
        ):
            raise self.damaged(f"names as its {key} token an id outside its vocabulary")
        return value

    def items(self, key: str, kind: type[_Item]) -> list[_Item]:
        """A list that is not empty, all of one type."""
        value = self.values.get(key)
        if not isinstance(value, list) or not value:
            raise self.damaged(f"has no list under {key}")
        if not all(isinstance(item, kind) for item in value):
            raise self.damaged(f"has other things than {kind.__name__} under {key}")
        return value


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor to write under its Hugging Face name; `heads` > 0 where its rows are rotary."""

    name: str
    shape: tuple[int, ...]
    heads: int
    tensor: ReaderTensor

    @property
    def bytes(self) -> int:
        return 4 * math.prod(self.shape)


def _read(file: Path) -> tuple[_Facts, dict[str, ReaderTensor]]:
    try:
        reader = GGUFReader(file)
        values = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError, OverflowError, TypeError) as error:
        raise ModelError(
            f"not a readable GGUF file (truncated or damaged): {error}", where=str(file)
        ) from error
    return _Facts(file, values), {tensor.name: tensor for tensor in reader.tensors}


def _refuse_unsupported(facts: _Facts) -> None:
    scaling = facts.text("llama.rope.scaling.type", "none")
    experts = facts.values.get("llama.expert_count", 0)
    tokenizer = facts.text("tokenizer.ggml.model", "unstated")
    split = facts.text("tokenizer.ggml.pre", "unstated")
    architecture = facts.text("general.architecture")
    found: tuple[tuple[str, object, bool, str], ...] = (
        ("architecture", architecture, architecture == "llama", "llama"),
        ("expert count", experts, experts == 0, "0 (dense models)"),
        ("rope scaling", scaling, scaling == "none", "none"),
        ("tokenizer", tokenizer, tokenizer == "gpt2", "gpt2 (byte-level BPE)"),
        ("pre-tokenizer", split, split in _PRE_TOKENIZERS, ", ".join(_PRE_TOKENIZERS)),
    )
    for what, value, supported, known in found:
        if not supported:
            raise ModelError(
                f"GGUF {what} {value!r} is not supported; supported: {known}",
                where=str(facts.file),
                hint="use the model's safetensors form: hf:ORG/NAME or a local directory",
            )


def _config(facts: _Facts, *, tied: bool) -> LlamaConfig:
    width, heads = facts.count("llama.embedding_length"), facts.count("llama.attention.head_count")
    groups = facts.count("llama.attention.head_count_kv", heads)
    head = facts.count("llama.attention.key_length", max(width // heads, 1))
    if width % heads or heads % groups or head % 2:
        raise facts.damaged(f"divides width {width} into {heads} heads and {groups} groups")
    if facts.count("llama.rope.dimension_count", head) != head:
        raise facts.damaged("rotates only part of each head, which is not supported")
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(facts.items("tokenizer.ggml.tokens", str)),
        hidden_size=width,
        intermediate_size=facts.count("llama.feed_forward_length"),
        num_hidden_layers=facts.count("llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=head,
        max_position_embeddings=facts.count("llama.context_length"),
        rms_norm_eps=facts.number("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": facts.number("llama.rope.freq_base", 10000.0),
        },
        tie_word_embeddings=tied,
        bos_token_id=facts.token_id("bos"),
        eos_token_id=facts.token_id("eos"),
        pad_token_id=facts.token_id("padding"),
        dtype="float32",
    )


def _plan(config: LlamaConfig, tensors: Mapping[str, ReaderTensor], file: Path) -> list[_Entry]:
    """Which tensor becomes which parameter; every parameter filled once, no tensor left over."""
    wanted = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    if not config.tie_word_embeddings:
        wanted["output"] = "lm_head"
    if config.num_hidden_layers * len(_BLOCK) > len(tensors):
        raise ModelError(
            f"the GGUF file lacks tensors: {len(tensors)} for {config.num_hidden_layers} layers",
            where=str(file),
        )
    for layer in range(config.num_hidden_layers):
        for kind, module in _BLOCK.items():
            wanted[f"blk.{layer}.{kind}"] = f"model.layers.{layer}.{module}"
    names = {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in wanted.items()}
    for lacking in sorted(names.keys() - tensors.keys()):
        raise ModelError(f"the GGUF file lacks the tensor {lacking}", where=str(file))
    for unknown in sorted(tensors.keys() - names.keys()):
        raise ModelError(
            f"the GGUF tensor {unknown} has no place in a plain llama model", where=str(file)
        )
    plan: list[_Entry] = []
    for name, tensor in tensors.items():
        kind = name.removesuffix(".weight").rpartition(".")[2]
        shape, expected = tuple(int(n) for n in reversed(tensor.shape)), _shape(kind, config)
        if shape != expected:
            raise ModelError(
                f"the GGUF tensor {name} has shape {shape}, not {expected}", where=str(file)
            )
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        plan.append(_Entry(names[name], shape, heads.get(kind) or 0, tensor))
    return plan


def _shape(kind: str, config: LlamaConfig) -> tuple[int, ...]:
    """The shape of a tensor by the last part of its name: [out, in], or [width]."""
    width, inner = config.hidden_size, config.intermediate_size
    head = config.head_dim or width // config.num_attention_heads
    queries = config.num_attention_heads * head
    keys = (config.num_key_value_heads or config.num_attention_heads) * head
    return {
        "token_embd": (config.vocab_size, width),
        "output": (config.vocab_size, width),
        "attn_q": (queries, width),
        "attn_k": (keys, width),
        "attn_v": (keys, width),
        "attn_output": (width, queries),
        "ffn_gate": (inner, width),
        "ffn_up": (inner, width),
        "ffn_down": (width, inner),
    }.get(kind, (width,))


# --- weights -------------------------------------------------------------------------------


def _write_weights(plan: Sequence[_Entry], path: Path, file: Path, progress: Progress) -> None:
    """Write the safetensors format: header length, JSON header, then the raw values in order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for entry in plan:
        header[entry.name] = {
            "dtype": "F32",
            "shape": list(entry.shape),
            "data_offsets": [offset, offset + entry.bytes],
        }
        offset += entry.bytes
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
    tokens, types = (
        facts.items("tokenizer.ggml.tokens", str),
        facts.items("tokenizer.ggml.token_type", int),
    )
    ids = {token: id for id, token in enumerate(tokens)}
    if len(types) != len(tokens) or len(ids) != len(tokens):
        raise facts.damaged("has a vocabulary that contradicts itself")
    merges: list[tuple[str, str]] = []
    for merge in facts.items("tokenizer.ggml.merges", str):
        left, _, right = merge.partition(" ")
        if not {left, right, left + right} <= ids.keys():
            raise facts.damaged(f"merges {merge!r}, which is not in its vocabulary")
        merges.append((left, right))
    backend = Tokenizer(models.BPE(vocab=ids, merges=merges))
    backend.pre_tokenizer = _PRE_TOKENIZERS[facts.text("tokenizer.ggml.pre")]()
    backend.decoder = decoders.ByteLevel()
    named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        extra_special_tokens=[
            token for token, kind in zip(tokens, types, strict=True) if kind in _SPECIAL_TYPES
        ],
        **{
            f"{name}_token": tokens[id]
            for name, key in named.items()
            if (id := facts.token_id(key)) is not None
        },
    )
    if "tokenizer.chat_template" in facts.values:
        tokenizer.chat_template = facts.text("tokenizer.chat_template")
    return tokenizer


def _generation_config(facts: _Facts) -> str:
    ends = [facts.token_id(key) for key in ("eos", "eot")]
    return _json(
        {
            "bos_token_id": facts.token_id("bos"),
            "eos_token_id": [*dict.fromkeys(end for end in ends if end is not None)],
            "pad_token_id": facts.token_id("padding"),
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
