"""The compiled kernels against torch in double precision, element by element."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from headrace.policy.native import BLOCK, Kernels, kernels


def native() -> Kernels:
    found = kernels()
    assert isinstance(found, Kernels), "the tests need a C compiler"
    return found


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(1, 110),
    k=st.integers(1, 40).map(lambda half: 2 * half),
    n=st.integers(1, 70),
    bf16=st.booleans(),
    add=st.booleans(),
    biased=st.booleans(),
)
def test_products_are_those_of_double_precision(
    m: int, k: int, n: int, bf16: bool, add: bool, biased: bool
) -> None:
    a, weight, out = random(m, k), random(n, k, seed=1), random(m, n, seed=2)
    bias = random(n, seed=3) if biased else None
    used = (weight.bfloat16() if bf16 else weight).double()
    expected = a.double() @ used.T
    if bias is not None:
        expected += bias
    if add:
        expected += out
    native().matmul(a, native().pack(weight, bf16=bf16), out, bias=bias, add=add)
    assert torch.allclose(out.double(), expected, atol=1e-4)


@pytest.mark.parametrize("bf16", [False, True])
def test_a_row_has_the_same_bits_in_any_company(bf16: bool) -> None:
    a, packed = random(97, 64), native().pack(random(48, 64, seed=1), bf16=bf16)
    whole = torch.empty(97, 48)
    native().matmul(a, packed, whole)
    for rows in (1, 2, 5, 6, 7, 13, 96):
        part = torch.empty(rows, 48)
        native().matmul(a[:rows].contiguous(), packed, part)
        assert torch.equal(part, whole[:rows])


def test_packing_again_reuses_the_memory() -> None:
    packed = native().pack(random(20, 8), bf16=False)
    again = native().pack(random(20, 8, seed=5), bf16=False, into=packed)
    assert again.data.data_ptr() == packed.data.data_ptr()
    out = torch.empty(1, 20)
    native().matmul(random(1, 8), again, out)
    assert torch.allclose(out, random(1, 8) @ random(20, 8, seed=5).T, atol=1e-5)


def test_rmsnorm_and_gated_silu_are_those_of_torch() -> None:
    x, weight = random(5, 48), random(48, seed=1)
    out = torch.empty_like(x)
    native().rmsnorm(x, weight, 1e-5, out)
    assert torch.allclose(out, functional.rms_norm(x, (48,), weight, 1e-5), atol=1e-5)
    both = 30 * random(5, 96, seed=2)
    gated = torch.empty(5, 48)
    native().silu_mul(both, gated)
    expected = functional.silu(both[:, :48].double()) * both[:, 48:].double()
    assert torch.allclose(gated.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 2), (9, 3), (8, 1), (5, 1)])
@pytest.mark.parametrize("lengths", [(1, 1), (16, 17), (3, 50, 33)])
def test_attention_over_scattered_blocks_is_plain_attention(
    heads: int, kv_heads: int, lengths: tuple[int, ...]
) -> None:
    d, blocks = 16, 16
    generator = torch.Generator().manual_seed(0)
    cache = (
        torch.full((blocks, kv_heads, d * BLOCK), torch.nan),
        torch.full((blocks, kv_heads, d * BLOCK), torch.nan),
    )
    order = torch.randperm(blocks, generator=generator).tolist()
    table = torch.zeros(len(lengths), 4, dtype=torch.int32)
    for row, length in enumerate(lengths):
        for place in range(-(-length // BLOCK)):
            table[row, place] = order.pop()
    qkvs: list[Tensor] = []
    for row, length in enumerate(lengths):
        qkv = random(length, (heads + 2 * kv_heads) * d, seed=row)
        qkvs.append(qkv.clone())
        places = torch.arange(length)
        slots = table[row].long()[places // BLOCK] * BLOCK + places % BLOCK
        turn = (torch.ones(length, d), torch.zeros(length, d))
        native().rotate_store(qkv, (heads, kv_heads, d), turn, (None, None), 1e-5, slots, cache)
    last = torch.cat([qkv[-1:] for qkv in qkvs])
    out = torch.empty(len(lengths), heads * d)
    scratch = torch.empty(3, 4 * BLOCK * 4)
    native().attend(
        last,
        (heads, kv_heads, d),
        cache,
        table,
        torch.arange(len(lengths)),
        torch.tensor(lengths),
        0.3,
        scratch,
        out,
    )
    for row, qkv in enumerate(qkvs):
        parts = qkv.double().view(len(qkv), heads + 2 * kv_heads, d).transpose(0, 1)
        expected = functional.scaled_dot_product_attention(
            parts[:heads, -1:],
            parts[heads : heads + kv_heads].repeat_interleave(heads // kv_heads, 0),
            parts[heads + kv_heads :].repeat_interleave(heads // kv_heads, 0),
            scale=0.3,
        )
        assert torch.allclose(out[row].double(), expected.flatten(), atol=1e-5)
