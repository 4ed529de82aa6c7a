"""Loading: a model that computes, all of its ends, a quiet console, or one clear error."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import logging as library_logging

from headrace.errors import ModelError
from headrace.policy.load import load
from headrace.policy.tiny import write_tiny


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A tiny llama in the Hugging Face layout."""
    path = tmp_path / "model"
    path.mkdir()
    write_tiny("llama", path)
    return path


def _edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_model_is_loaded_in_fp32_for_inference_with_fused_attention(directory: Path) -> None:
    loaded = load(str(directory))
    assert loaded.model.dtype == torch.float32
    assert not loaded.model.training
    assert loaded.model.config._attn_implementation == "sdpa"  # pyright: ignore[reportPrivateUsage]
    assert loaded.directory == directory
    assert loaded.source == f"path:{directory}"
    assert len(loaded.digest) == 64


def test_half_precision_weights_become_fp32(directory: Path) -> None:
    loaded = load(str(directory))
    loaded.model.bfloat16().save_pretrained(directory)
    again = load(str(directory)).model
    assert again.dtype == torch.float32
    for half, full in zip(loaded.model.parameters(), again.parameters(), strict=True):
        assert torch.equal(half.float(), full)


def test_nothing_is_printed_and_the_library_is_left_as_it_was(
    directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    library_logging.set_verbosity_info()
    library_logging.enable_progress_bar()
    load(str(directory))
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")
    assert library_logging.get_verbosity() == logging.INFO
    assert library_logging.is_progress_bar_enabled()
    library_logging.set_verbosity_warning()


def test_end_ids_are_the_union_of_all_that_a_model_says_of_them(directory: Path) -> None:
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    _edit(directory / "config.json", eos_token_id=7)
    _edit(directory / "tokenizer_config.json", eos_token="<|endoftext|>")
    # 2 is <|im_end|>, which only the chat template shows to be an end.
    assert load(str(directory)).end_ids == (0, 2, 5, 6, 7)


def test_a_template_without_a_turn_end_adds_none(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
    )
    assert load(str(directory)).end_ids == (2,)
    (directory / "chat_template.jinja").write_text("{{ raise_exception('one turn only') }}")
    assert load(str(directory)).end_ids == (2,)


def test_a_model_that_could_never_finish_is_refused(directory: Path) -> None:
    (directory / "chat_template.jinja").unlink()
    _edit(directory / "config.json", eos_token_id=None)
    _edit(directory / "tokenizer_config.json", eos_token=None)
    with pytest.raises(ModelError, match="names no end token"):
        load(str(directory))


def test_a_model_without_a_chat_template_is_loaded(directory: Path) -> None:
    (directory / "chat_template.jinja").unlink()
    loaded = load(str(directory))
    assert loaded.tokenizer.chat_template is None
    assert loaded.end_ids == (2,)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM"),
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "T5For"),
        ({"model_type": "no_such", "architectures": None}, "no_such"),
        (
            {"model_type": "own", "architectures": ["Own"], "auto_map": {"AutoConfig": "own.Own"}},
            "Own; code that comes with a model is never run",
        ),
        ({"model_type": 3}, "not a causal language model"),
        ({"architectures": 3}, "config.json is damaged"),
        ({"hidden_size": "wide"}, "cannot be read|no usable tokenizer"),
        ({"hidden_size": 96}, "cannot be read|another shape"),
        ({"num_hidden_layers": 3}, "9 weights are missing"),
        ({"vocab_size": 200}, "cannot be read|another shape"),
    ],
)
def test_what_is_no_complete_causal_language_model_is_refused(
    directory: Path, values: dict[str, Any], message: str
) -> None:
    _edit(directory / "config.json", **values)
    with pytest.raises(ModelError, match=message) as caught:
        load(str(directory))
    assert str(directory) in caught.value.where


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", "config.json is damaged"),
        ("tokenizer.json", "no usable tokenizer"),
        ("model.safetensors", "weights cannot be read"),
    ],
)
def test_a_torn_file_is_a_model_error(directory: Path, name: str, message: str) -> None:
    _cut(directory / name)
    with pytest.raises(ModelError, match=message):
        load(str(directory))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", "has no config.json"),
        ("tokenizer.json", "has no tokenizer.json"),
        ("model.safetensors", "no safetensors weights; pickled ones are not read"),
    ],
)
def test_a_missing_file_is_a_model_error(directory: Path, name: str, message: str) -> None:
    (directory / name).unlink()
    (directory / "pytorch_model.bin").write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(ModelError, match=message):
        load(str(directory))


def test_a_tokenizer_larger_than_the_model_is_refused(directory: Path) -> None:
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    token = {**tokenizer["added_tokens"][0], "id": 271, "content": "<|new|>"}
    tokenizer["added_tokens"].append(token)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match="tokenizer has 272 tokens but the model only 271"):
        load(str(directory))


def test_loading_asks_for_large_pages_unless_somebody_has_decided(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    load(str(directory))
    assert os.environ["THP_MEM_ALLOC_ENABLE"] == "1"
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0")
    load(str(directory))
    assert os.environ["THP_MEM_ALLOC_ENABLE"] == "0"
