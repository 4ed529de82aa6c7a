"""Packed attention: many sequences in one flat row, each as if it were alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from headrace.policy import packed
from headrace.policy.attention import AttentionCall, attending
from headrace.policy.packed import PackedAttention
from headrace.policy.parts import Parts
from headrace.policy.stretches import EagerKernel, FlashKernel, Kernel, KernelResult, merge
from headrace.policy.tree import TokenTree, chunks, grow
from headrace.types import Ids
from policy_support import prompt, tiny_policy

CPU = torch.device("cpu")
SHAPE = {
    "vocab_size": 271,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 3,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": SHAPE,
    "mistral": {**SHAPE, "sliding_window": 7},
    "qwen3": SHAPE,
    "gemma2": {**SHAPE, "query_pre_attn_scalar": 16, "sliding_window": 8},
    "gemma3_text": {**SHAPE, "sliding_window": 8},
    "olmo2": SHAPE,
    "cohere": SHAPE,
    "mixtral": {**SHAPE, "num_local_experts": 4},
    "gpt2": {
        "vocab_size": 271,
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 256,
        "initializer_range": 0.2,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
}


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **MODELS[name])
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def family(seed: int = 0) -> list[Ids]:
    """Prompts with a common head, answers with common beginnings, and one long loner."""
    common = prompt(9, seed=seed)
    rows: list[Ids] = []
    for group in range(3):
        question = np.concatenate([common, prompt(6 + group, seed=seed + 10 + group)])
        for attempt in range(4):
            answer = prompt(3 + 5 * attempt, seed=seed + 100 + 4 * group + attempt)
            if attempt > 1:
                answer[:2] = (5, 6)
            rows.append(np.concatenate([question, answer]))
    rows.append(prompt(61, seed=seed + 99))
    return rows


def packed_logits(model: Any, tree: TokenTree, subtree: int) -> Tensor:
    parts = Parts(model)
    with attending(model.config, PackedAttention(tree, CPU, subtree=subtree)):
        states = parts.hidden(
            input_ids=torch.from_numpy(tree.ids).long()[None],
            position_ids=torch.from_numpy(tree.depth)[None],
        )
    return parts.logits(states[0])


def gradient(model: Any) -> Tensor:
    grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return torch.cat(grads)


def far(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("subtree", [1, 20])
def test_every_sequence_of_a_pack_is_computed_as_if_alone(
    name: str, subtree: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "QUERIES", 5)
    monkeypatch.setattr(packed, "KEYS", 4)
    model, rows = model_of(name), family()
    (members, tree) = next(iter(chunks(rows, 10_000)))
    logits = packed_logits(model, tree, subtree)
    weights = [torch.randn(len(rows[m]), 271) for m in members]
    found = [logits[torch.from_numpy(path)] for path in tree.paths]
    torch.stack([(f * w).sum() for f, w in zip(found, weights, strict=True)]).sum().backward()
    gradient_found = gradient(model)
    for member, weight, mine in zip(members, weights, found, strict=True):
        ids = torch.from_numpy(rows[member]).long()[None]
        alone = model(input_ids=ids, use_cache=False).logits[0]
        assert far(mine, alone) < 1e-5
        (alone * weight).sum().backward()
    assert far(gradient_found, gradient(model)) < 1e-5


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt2"])
def test_a_long_chain_is_what_the_model_makes_of_it(name: str) -> None:
    model, ids = model_of(name), prompt(200)
    logits = packed_logits(model, grow([ids]), packed.SUBTREE // 2)
    alone = model(input_ids=torch.from_numpy(ids).long()[None], use_cache=False).logits[0]
    assert far(logits, alone) < 1e-5


def test_models_with_sinks_or_biases_in_their_attention_are_not_packed() -> None:
    assert tiny_policy("llama").supports_packing
    assert tiny_policy("gemma2").supports_packing
    assert tiny_policy("gpt2").supports_packing
    for model in (sinks(), biases()):
        policy = tiny_policy("llama")
        policy.model = model
        assert not policy.supports_packing


def sinks() -> Any:
    torch.manual_seed(0)
    shape = {**SHAPE, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8}
    return from_config("gpt_oss", shape)


def biases() -> Any:
    torch.manual_seed(0)
    return from_config("bloom", {"vocab_size": 271, "hidden_size": 64, "n_layer": 2, "n_head": 4})


def from_config(name: str, shape: dict[str, Any]) -> Any:
    config = AutoConfig.for_model(name, **shape)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def test_a_tree_out_of_preorder_is_refused() -> None:
    rows = [np.array(row, np.int32) for row in ([1, 2], [3, 4], [1, 5])]
    with pytest.raises(ValueError, match="preorder"):
        PackedAttention(grow(rows), CPU)


def test_no_tensor_of_a_long_chain_has_length_times_length_elements() -> None:
    n = 1500
    tree = grow([prompt(n)])
    plan = PackedAttention(tree, CPU)
    q, k, v = (torch.randn(2, n, 8, requires_grad=True) for _ in range(3))
    call = AttentionCall(layer=0, query=q, key=k, value=v, scaling=0.3, window=None, softcap=None)
    with Largest() as seen:
        plan.attend(call).sum().backward()
    assert seen.elements < n * n // 8


class Largest(TorchDispatchMode):
    """Remembers the most elements that any result of an operation had."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor):
                self.elements = max(self.elements, value.numel())
        return result


# --- kernels -------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [FlashKernel(0.3), EagerKernel(0.3, None)])
def test_two_stretches_of_keys_merge_to_attention_over_both(kernel: Kernel) -> None:
    torch.manual_seed(0)
    q, g = (torch.randn(1, 4, 6, 16, dtype=torch.float64).float() for _ in range(2))
    k, v = (torch.randn(1, 2, 11, 16, requires_grad=True) for _ in range(2))
    whole = plain(q, k, v)
    whole.backward(g)
    cut = [slice(0, 7), slice(7, 11)]
    parts = [kernel.forward(q, k[:, :, c], v[:, :, c], causal=False, mask=None) for c in cut]
    merge(parts[0], parts[1])
    assert torch.allclose(parts[0].out, whole, atol=1e-6)
    for c in cut:
        found = kernel.backward(g, q, k[:, :, c], v[:, :, c], parts[0], causal=False, mask=None)
        assert k.grad is not None
        assert v.grad is not None
        assert torch.allclose(found.key, k.grad[:, :, c], atol=1e-5)
        assert torch.allclose(found.value, v.grad[:, :, c], atol=1e-5)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    keys, values = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
    return torch.softmax(q @ keys.transpose(-1, -2) * 0.3, dim=-1) @ values


@pytest.mark.parametrize("kernel", [FlashKernel(0.3), EagerKernel(0.3, None)])
def test_a_stretch_that_is_hidden_as_a_whole_weighs_nothing(kernel: Kernel) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 3, 16) for _ in range(3))
    seen = kernel.forward(q, k, v, causal=True, mask=None)
    before = KernelResult(seen.out.clone(), seen.lse.clone())
    hidden = torch.full((1, 1, 3, 3), packed.HIDDEN)
    merge(seen, kernel.forward(q, k + 5, v + 5, causal=False, mask=hidden))
    assert torch.equal(seen.out, before.out)
    assert torch.equal(seen.lse, before.lse)
    found = kernel.backward(q, q, k + 5, v + 5, seen, causal=False, mask=hidden)
    assert not bool(found.query.any() or found.key.any() or found.value.any())


def test_the_plain_kernel_has_the_gradient_of_capped_scores() -> None:
    torch.manual_seed(0)
    kernel = EagerKernel(0.3, 2.0)
    q, k, v = (torch.randn(1, 2, 5, 4, requires_grad=True) for _ in range(3))
    scores = 2.0 * torch.tanh((q @ k.transpose(-1, -2)) * 0.3 / 2.0)
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1) @ v
    grad = torch.randn_like(expected)
    expected.backward(grad)
    with torch.no_grad():
        found = kernel.forward(q, k, v, causal=True, mask=None)
        back = kernel.backward(grad, q, k, v, found, causal=True, mask=None)
    assert torch.allclose(found.out, expected, atol=1e-6)
    for mine, tensor in ((back.query, q), (back.key, k), (back.value, v)):
        assert tensor.grad is not None
        assert torch.allclose(mine, tensor.grad, atol=1e-5)
