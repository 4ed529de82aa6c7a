"""Tiny models: random, deterministic, and real models in every respect but size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ModelError
from headrace.policy.load import load
from headrace.policy.tiny import TINY_ARCHITECTURES, tiny_model, tiny_tokenizer

_IDS = torch.tensor([[1, 5, 86, 92, 270, 72, 2, 202]])


@pytest.mark.parametrize("architecture", sorted(TINY_ARCHITECTURES))
def test_each_architecture_pulls_loads_and_computes_what_was_built(architecture: str) -> None:
    built = tiny_model(architecture)
    loaded = load(f"tiny:{architecture}")
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(_IDS).logits, built(_IDS).logits, rtol=0, atol=0)
    assert loaded.model.config.model_type == architecture
    assert loaded.end_ids == (2,)
    assert built.num_parameters() < 200_000


def test_the_same_seed_gives_the_same_bits_whatever_was_drawn_before() -> None:
    one = tiny_model("llama", seed=7)
    state = torch.get_rng_state()
    torch.rand(5)
    two, other = tiny_model("llama", seed=7), tiny_model("llama", seed=8)
    torch.set_rng_state(state)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)
    assert any(
        not torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True)
    )


def test_building_one_leaves_the_global_random_stream_alone() -> None:
    state = torch.get_rng_state()
    tiny_model("llama")
    assert torch.equal(torch.get_rng_state(), state)


def test_its_next_token_distribution_is_neither_flat_nor_certain() -> None:
    with torch.no_grad():
        logps = tiny_model("llama")(_IDS).logits.log_softmax(-1)
    entropy = float(-(logps.exp() * logps).sum(-1).mean())
    flat = float(torch.tensor(float(logps.shape[-1])).log())
    assert 0.5 * flat < entropy < 0.95 * flat


def test_an_unknown_architecture_names_the_known_ones(cache: Path) -> None:
    with pytest.raises(ModelError, match="'mamba'") as caught:
        load("tiny:mamba")
    assert "llama" in caught.value.hint
    assert not list((cache / "models" / ".building").glob("*/work-*"))


@given(st.text())
@settings(max_examples=100, deadline=None)
def test_the_tokenizer_is_lossless(text: str) -> None:
    tokenizer = tiny_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text, split_special_tokens=True)) == text


def test_the_tokenizer_splits_digits_and_merges_across_no_message() -> None:
    tokenizer = tiny_tokenizer()
    assert len(tokenizer) == 271
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("the 12")) == ["t", "he", "Ġ", "1", "2"]
