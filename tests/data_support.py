"""What the tests of recorded data share: chat templates, tokenizers, small files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from headrace.data.messages import RecordedMessage
from headrace.data.render import Renderer
from headrace.policy.tiny import tiny_tokenizer
from headrace.types import Example, Json, Role

END = 2
"""The tiny tokenizer's <|im_end|>."""
EOT = 271
"""Its <|eot|>, see `tokenizer_of`."""

CHATML = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
DEFAULT_SYSTEM = (
    "{% if messages and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a small model.<|im_end|>\\n' }}{% endif %}" + CHATML
)
INST = (
    "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('user and assistant must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"
)
STRIPS_REASONING = (
    "{% for m in messages %}{% set text = m['content'] %}"
    "{% if m['role'] == 'assistant' and not loop.last and '</think>' in text %}"
    "{% set text = text.split('</think>')[-1].lstrip() %}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + text + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
REASONS_IN_A_FIELD = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{% if m.reasoning_content and loop.last %}"
    "{{ '<think>' + m.reasoning_content + '</think>\\n' }}{% endif %}"
    "{{ m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
NO_SYSTEM = CHATML.replace(
    "{{ '<|im_start|>' + m['role']",
    "{% if m['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{{ '<|im_start|>' + m['role']",
)
ENDS_WITH_ANOTHER = CHATML.replace("<|im_end|>", "<|eot|>")
CALLS_OBJECTS = (
    "{% if tools %}{{ 'tools: ' + (tools | tojson) + '\\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] }}"
    "{% for c in m.tool_calls or [] %}"
    "{{ '\\n' + c.function.name + ' ' + (c.function.arguments | tojson) }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CALLS_TEXT = CALLS_OBJECTS.replace("(c.function.arguments | tojson)", "c.function.arguments")


def tokenizer_of(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """The tiny byte-level tokenizer with another template; `<|eot|>` is a special token of it."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|eot|>"]})
    tokenizer.chat_template = template
    if template is not None and "bos_token" in template:
        tokenizer.bos_token = "<|endoftext|>"
    return tokenizer


def spaced_tokenizer() -> PreTrainedTokenizerFast:
    """One of the SentencePiece kind: a space is put before every text, and is a part of words."""
    letters = [chr(code) for code in range(33, 127)]
    tokens = ["<unk>", "<s>", "</s>", "▁", *letters, *(f"▁{letter}" for letter in letters), "\n"]
    backend = Tokenizer(
        models.BPE(
            vocab={token: rank for rank, token in enumerate(tokens)},
            merges=[("▁", letter) for letter in letters],
            unk_token="<unk>",
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.chat_template = INST
    return tokenizer


def renderer_of(template: str | None = CHATML) -> Renderer:
    tokenizer = tokenizer_of(template)
    eot = tokenizer.convert_tokens_to_ids("<|eot|>")
    assert isinstance(eot, int)
    return Renderer(tokenizer, (END, eot))


def talk(*said: tuple[Role, str]) -> list[RecordedMessage]:
    return [RecordedMessage.of(role, text) for role, text in said]


def question(number: int = 0, answer: str = "4") -> dict[str, Json]:
    """A row of messages."""
    return {
        "messages": [
            {"role": "user", "content": f"What is {number} + {number}?"},
            {"role": "assistant", "content": answer},
        ]
    }


def json_lines(path: Path, rows: Sequence[Json]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def example(
    name: str, *, group: str | None = None, tokens: int = 3, score: float | None = None
) -> Example:
    """An example of that name; all but its first token are learned from."""
    return Example(
        key=name,
        group=group or name,
        source="test",
        ids=np.arange(tokens, dtype=np.int32),
        trainable=np.arange(tokens) > 0,
        score=score,
    )
