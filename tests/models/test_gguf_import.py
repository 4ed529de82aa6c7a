"""GGUF import: the same function as the original, or one clear refusal."""

from __future__ import annotations

import json
import resource
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from headrace.errors import ModelError, StorageError
from headrace.policy.cache import Silent, storage_errors
from headrace.policy.gguf_import import import_gguf
from headrace.policy.load import load
from headrace.policy.tiny import tiny_model, tiny_tokenizer
from models_support import F32, Recorder, write_gguf

_IDS = torch.tensor([[1, 86, 92, 270, 72, 80, 202, 69, 72, 224, 2, 202]])


def _import(tmp_path: Path, **options: Any) -> Path:
    file, directory = tmp_path / "tiny.gguf", tmp_path / "model"
    write_gguf(file, **options)
    directory.mkdir()
    import_gguf(file, directory, progress=Silent())
    return directory


def _logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model(_IDS).logits


def test_imported_logits_equal_those_of_the_original(tmp_path: Path) -> None:
    original = tiny_model("llama", seed=3)
    loaded = load(str(_import(tmp_path, model=original)))
    torch.testing.assert_close(_logits(loaded.model), _logits(original), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_1])
def test_quantised_logits_equal_those_of_the_dequantised_original(
    tmp_path: Path, kind: GGMLQuantizationType
) -> None:
    original = tiny_model("llama", seed=3)
    loaded = load(str(_import(tmp_path, model=original, kind=kind)))
    assert (_logits(loaded.model) - _logits(original)).abs().max() > 1e-3
    for parameter in original.parameters():
        if parameter.ndim == 2:
            stored = quantize(parameter.detach().numpy(), kind)
            parameter.data = torch.from_numpy(dequantize(stored, kind))
    torch.testing.assert_close(_logits(loaded.model), _logits(original), rtol=0, atol=1e-5)


def test_weights_equal_those_that_transformers_reads_from_the_same_file(tmp_path: Path) -> None:
    directory = _import(tmp_path, model=tiny_model("llama", seed=4), kind=GGMLQuantizationType.Q8_0)
    other: Any = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="tiny.gguf", dtype=torch.float32
    )
    ours = load_file(directory / "model.safetensors")
    theirs = dict(other.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        torch.testing.assert_close(values, theirs[name].data, rtol=0, atol=0)


def test_an_untied_head_is_imported_and_a_tied_one_is_not_stored_twice(tmp_path: Path) -> None:
    tied = _import(tmp_path)
    assert "lm_head.weight" not in load_file(tied / "model.safetensors")
    assert json.loads((tied / "config.json").read_text())["tie_word_embeddings"] is True
    other = tmp_path / "untied"
    other.mkdir()
    head = np.random.default_rng(0).normal(size=(len(tiny_tokenizer()), 64)).astype(np.float32)
    untied = _import(other, extra_tensors={"output.weight": head})
    np.testing.assert_array_equal(load_file(untied / "model.safetensors")["lm_head.weight"], head)
    assert json.loads((untied / "config.json").read_text())["tie_word_embeddings"] is False


def test_tokenizer_template_and_configuration_come_along(tmp_path: Path) -> None:
    loaded = load(str(_import(tmp_path, replace={"tokenizer.ggml.eot_token_id": 0})))
    original = tiny_tokenizer()
    text = "Is 123 + 4 the answer?\n\n<|im_end|> Größe 😀"
    assert loaded.tokenizer.encode(text) == original.encode(text)
    assert loaded.tokenizer.decode(loaded.tokenizer.encode(text)) == text
    assert loaded.tokenizer.chat_template == original.chat_template
    assert loaded.tokenizer.pad_token_id == 3
    assert loaded.end_ids == (0, 2)
    config: Any = loaded.model.config
    assert config.rms_norm_eps == 1e-6
    assert config.rope_parameters["rope_theta"] == 10000.0


def test_the_conversion_is_reproducible_and_reports_each_tensor(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    contents: list[dict[str, bytes]] = []
    for name in ("one", "two"):
        directory = tmp_path / name
        directory.mkdir()
        progress = Recorder()
        import_gguf(tmp_path / "tiny.gguf", directory, progress=progress)
        assert progress.stages == [["converting tensors", 20, 20]]
        contents.append({path.name: path.read_bytes() for path in directory.iterdir()})
    assert contents[0] == contents[1]
    assert sorted(contents[0]) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


@pytest.mark.parametrize(
    ("replace", "message"),
    [
        ({"general.architecture": "falcon"}, "architecture 'falcon' .* supported: llama"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer 'llama' .* supported: gpt2"),
        ({"tokenizer.ggml.pre": "qwen2"}, "pre-tokenizer 'qwen2' .* supported: smollm, gpt-2"),
        ({"llama.rope.scaling.type": "yarn"}, "rope scaling 'yarn'"),
        ({"llama.expert_count": 8}, "expert count 8"),
        ({"llama.rope.dimension_count": 8}, "rotates only part"),
        ({"llama.block_count": 3}, "lacks"),
        ({"llama.block_count": 2**31}, "lacks tensors"),
        ({"llama.block_count": 1}, "blk.1.* has no place"),
        ({"llama.attention.head_count": 5}, "5 heads"),
        ({"llama.attention.head_count": 0}, "no positive integer under llama.attention"),
        ({"llama.feed_forward_length": 64}, r"has shape \(128, 64\), not \(64, 64\)"),
        ({"llama.embedding_length": "wide"}, "no positive integer under llama.embedding_length"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "no positive number"),
        ({"tokenizer.ggml.eos_token_id": 271}, "as its eos token an id outside"),
        ({"tokenizer.ggml.tokens": ["a"] * 271}, "contradicts itself"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "other things than str"),
        ({"tokenizer.ggml.merges": ["x"]}, "merges 'x'"),
        ({"tokenizer.ggml.merges": "x"}, "no list under"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, replace: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        _import(tmp_path, replace=replace)


def test_a_missing_key_or_tensor_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"llama\.context_length"):
        _import(tmp_path, leave_out=("llama.context_length",))
    (tmp_path / "again").mkdir()
    with pytest.raises(ModelError, match="output_norm"):
        _import(tmp_path / "again", leave_out=("output_norm.weight",))


def test_rope_scaling_factors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"rope_freqs\.weight has no place"):
        _import(tmp_path, extra_tensors={"rope_freqs.weight": np.ones(8, np.float32)})


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    model = tiny_model("llama")
    next(model.parameters()).data[5, 5] = float("inf")
    with pytest.raises(ModelError, match=r"token_embd\.weight holds values that are not finite"):
        _import(tmp_path, model=model)


def test_a_file_cut_or_overwritten_anywhere_is_refused_or_still_whole(tmp_path: Path) -> None:
    write_gguf(tmp_path / "whole.gguf")
    data = (tmp_path / "whole.gguf").read_bytes()
    metadata = GGUFReader(tmp_path / "whole.gguf").data_offset
    rng = np.random.default_rng(0)
    broken = tmp_path / "broken.gguf"
    cuts = [0, 3, 4, 8, 23, *rng.integers(24, metadata, 12).tolist(), len(data) - 1]
    for number, cut in enumerate(cuts):
        broken.write_bytes(data[:cut])
        directory = tmp_path / f"cut{number}"
        directory.mkdir()
        with pytest.raises(ModelError):
            import_gguf(broken, directory, progress=Silent())
    for number in range(30):
        position = int(rng.integers(0, metadata))
        noise = rng.integers(0, 256, 4, dtype=np.uint8).tobytes()
        broken.write_bytes(data[:position] + noise + data[position + 4 :])
        directory = tmp_path / f"noise{number}"
        directory.mkdir()
        _imported_or_refused(broken, directory)


def _imported_or_refused(file: Path, directory: Path) -> None:
    try:
        import_gguf(file, directory, progress=Silent())
    except ModelError:
        return


@contextmanager
def _files_no_larger_than(size: int) -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_the_system_refuses_is_a_storage_error(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "model").mkdir()
    with (
        _files_no_larger_than(100_000),
        pytest.raises(StorageError, match="File too large"),
        storage_errors(tmp_path),
    ):
        import_gguf(tmp_path / "tiny.gguf", tmp_path / "model", progress=Silent())


def test_no_space_is_noticed_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nearly_full(path: Path) -> Any:
        return type("usage", (), {"free": 1000})

    write_gguf(tmp_path / "tiny.gguf", kind=F32)
    (tmp_path / "model").mkdir()
    monkeypatch.setattr("shutil.disk_usage", nearly_full)
    with pytest.raises(StorageError, match=r"[0-9,]+ bytes needed, 1,000 bytes free"):
        import_gguf(tmp_path / "tiny.gguf", tmp_path / "model", progress=Silent())
    assert list((tmp_path / "model").iterdir()) == []
