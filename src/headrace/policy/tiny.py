"""Random models of a few thousand weights: the machinery's own test pieces.

A byte-level tokenizer with a ChatML template, and two layers of width 64 in any of several
architectures. They know nothing and compute everything a real model does, in milliseconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from headrace.errors import ModelError
from headrace.policy.cache import durable
from headrace.policy.gguf_import import write_config, write_tokenizer

__all__ = ["TINY_ARCHITECTURES", "tiny_model", "tiny_tokenizer", "write_tiny"]

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
_BOS, _END, _PAD = 1, 2, 3
_MERGES = ("Ġ t", "h e", "Ġt he", "i n", "e r", "Ċ Ċ", "a s", "u s", "us er", "Ġ Ġ", "s t")

_GATED = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}
TINY_ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": _GATED,
    "mistral": {**_GATED, "sliding_window": None},
    "qwen2": {**_GATED, "tie_word_embeddings": False},
    "qwen3": _GATED,
    "gemma2": {**_GATED, "query_pre_attn_scalar": 16, "sliding_window": 32},
    "gemma3_text": {
        **_GATED,
        "query_pre_attn_scalar": 16,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "olmo2": {**_GATED, "tie_word_embeddings": False},
    "phi": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 1024,
    },
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 1024},
}


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of 271 tokens: 4 special, 256 bytes, 11 merges; ChatML template."""
    vocabulary = dict.fromkeys((*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet())))
    vocabulary |= dict.fromkeys("".join(merge.split()) for merge in _MERGES)
    ranks = {token: rank for rank, token in enumerate(vocabulary)}
    merges = [(left, right) for left, right in (merge.split() for merge in _MERGES)]
    backend = Tokenizer(models.BPE(vocab=ranks, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
        pad_token="<|pad|>",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_model(architecture: str, *, seed: int = 0) -> PreTrainedModel:
    """A random causal LM in fp32 and eval mode; the same bits for the same seed.

    Weights are drawn wider than usual (standard deviation 0.2), so that the next-token
    distributions are far from uniform. Raises ModelError for an unknown architecture.
    """
    if architecture not in TINY_ARCHITECTURES:
        raise ModelError(
            f"no tiny model of architecture {architecture!r}",
            hint=f"known: {', '.join(sorted(TINY_ARCHITECTURES))}",
        )
    config = AutoConfig.for_model(
        architecture,
        vocab_size=len(tiny_tokenizer()),
        bos_token_id=_BOS,
        eos_token_id=_END,
        pad_token_id=_PAD,
        initializer_range=0.2,
        **TINY_ARCHITECTURES[architecture],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.eval()


def write_tiny(architecture: str, directory: Path, *, seed: int = 0) -> None:
    """Write a tiny model and its tokenizer in the Hugging Face layout."""
    model = tiny_model(architecture, seed=seed)
    weights = {name: parameter.data for name, parameter in model.named_parameters()}
    write_config(model.config, directory)
    write_tokenizer(tiny_tokenizer(), directory)
    with durable(directory / "model.safetensors") as file:
        file.write(save(weights, metadata={"format": "pt"}))
