"""Long sequences: the same numbers in less memory, and nothing computed that is not needed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from headrace.errors import StorageError, UsageError
from headrace.policy import checkpointing, logprobs
from headrace.policy.engine import TorchPolicy
from headrace.policy.learner import TorchLearner
from headrace.protocols import LossSpec
from headrace.recipe import LearnerSpec, LoraSpec, ModelSpec
from headrace.types import Sample, Support
from policy_support import prompt, sample_of, some_samples, tiny_policy

LOSS = LossSpec(clip_high=0.28)
PLAIN = LearnerSpec(checkpointing="off")


def gradient_of(
    spec: LearnerSpec, samples: list[Sample], policy: TorchPolicy | None = None
) -> Tensor:
    policy = policy or tiny_policy()
    TorchLearner(policy, spec, total_steps=1).forward_backward(samples, LOSS)
    return torch.cat([p.grad.flatten() for p in policy.trainable().values() if p.grad is not None])


def far(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def a_long_sample(length: int, seed: int = 0) -> Sample:
    ids = prompt(length, seed=seed)
    return sample_of(ids, np.arange(length) >= length // 2, seed=seed, weight=1 / length)


# --- the same gradient ---------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("layout", ["tree", "padded"])
def test_recomputed_layers_and_tiles_give_the_same_gradient(
    architecture: str, offload: bool, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointing, "TILE", 7)
    samples = some_samples()
    plain = gradient_of(
        PLAIN.model_copy(update={"layout": layout}), samples, tiny_policy(architecture)
    )
    spec = LearnerSpec.model_validate({"checkpointing": "on", "offload": offload, "layout": layout})
    assert far(gradient_of(spec, samples, tiny_policy(architecture)), plain) < 1e-5


@pytest.mark.parametrize("lora", [None, LoraSpec(rank=2)])
def test_autocast_and_adapters_are_recomputed_as_they_were(lora: LoraSpec | None) -> None:
    spec = ModelSpec(lora=lora, autocast="bf16")
    grads: list[Tensor] = []
    for learner in (PLAIN, LearnerSpec(checkpointing="on")):
        torch.manual_seed(0)
        grads.append(gradient_of(learner, some_samples(), tiny_policy(spec=spec)))
    plain, again = grads
    assert plain.norm() > 0
    assert far(again, plain) < 1e-5


@pytest.mark.parametrize("entropy_weight", [0.0, 0.01])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("filtered", [False, True])
def test_logits_in_chunks_give_the_same_gradient(
    entropy_weight: float, temperature: float, filtered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [
        replace(sample, temperature=temperature, support=support_of(sample) if filtered else None)
        for sample in some_samples(entropy_weight=entropy_weight)
    ]
    whole = gradient_of(PLAIN, samples)
    monkeypatch.setattr(logprobs, "KEPT_LOGITS", 271)
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", 3 * 271)
    assert far(gradient_of(PLAIN, samples), whole) < 1e-5


def support_of(sample: Sample) -> Support:
    """Each trainable token and a few more."""
    rows = [np.unique([int(i), 11, 40 + int(i) % 7]) for i in sample.ids[sample.trainable]]
    return Support(
        offsets=np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64),
        ids=np.concatenate(rows).astype(np.int32),
    )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_and_entropies_have_the_gradient_of_the_plain_formula(
    temperature: float,
) -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 9, requires_grad=True)
    rows, ids = torch.tensor([0, 0, 2, 3]), torch.tensor([1, 5, 5, 8])
    found = logprobs.measure(
        lambda states: states,
        logits,
        logprobs.Targets(rows, ids, None),
        vocabulary=9,
        temperature=temperature,
        entropy=True,
    )
    table = torch.log_softmax(logits / temperature, dim=-1)
    entropies = -(table.exp() * table).sum(dim=-1)[rows]
    weights = torch.randn(2, 4)
    expected = torch.stack([table[rows, ids], entropies])
    assert found.entropy is not None
    mine = torch.stack([found.logps, found.entropy])
    assert torch.allclose(mine, expected, atol=1e-6)
    grads = [torch.autograd.grad((x * weights).sum(), logits)[0] for x in (mine, expected)]
    assert torch.allclose(grads[0], grads[1], atol=1e-6)


# --- memory --------------------------------------------------------------------------------


class Watch(TorchDispatchMode):
    """The most elements of any result, and the shapes of all matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0
        self.products: list[tuple[int, ...]] = []
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.names.add(str(func))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor):
                self.largest = max(self.largest, value.numel())
        if str(func) in ("aten.mm.default", "aten.addmm.default"):
            self.products.append(tuple(args[-2].shape[:1] + args[-1].shape[1:]))
        return result


def test_no_tensor_grows_with_vocabulary_times_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "KEPT_LOGITS", 1 << 14)
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", 1 << 14)
    monkeypatch.setattr(checkpointing, "TILE", 32)
    learner = TorchLearner(tiny_policy(), LearnerSpec(checkpointing="on"), total_steps=1)
    with Watch() as watch:
        learner.forward_backward([a_long_sample(600)], LOSS)
    assert watch.largest <= 600 * 64  # a layer's states; all logits are 271 x 300


def test_offloaded_inputs_leave_no_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    gradient_of(LearnerSpec(checkpointing="on", offload=True), some_samples())
    assert list(tmp_path.iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) <= open_before


def test_a_full_disk_is_a_storage_error_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageError, match="No space left") as raised:
        gradient_of(LearnerSpec(checkpointing="on", offload=True), some_samples())
    assert "TMPDIR" in raised.value.hint


GROWTH = """
import sys
sys.path.insert(0, {tests!r})
import numpy as np
from headrace.policy.learner import TorchLearner
from headrace.protocols import LossSpec
from headrace.recipe import LearnerSpec
from policy_support import prompt, sample_of, tiny_policy

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

random = np.random.default_rng(0)
spec = LearnerSpec(checkpointing="on", offload=True)
learner = TorchLearner(tiny_policy(), spec, total_steps=400)
for step in range(400):
    if step == 100:
        before = resident()
    ids = prompt(int(random.integers(8, 80)), seed=step)
    learner.forward_backward([sample_of(ids, np.arange(len(ids)) > 4, weight=0.01)], LossSpec())
    learner.optim_step()
print(resident() - before)
"""


@pytest.mark.slow
def test_memory_is_flat_over_many_steps_of_mixed_lengths() -> None:
    code = GROWTH.format(tests=str(Path(__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200
    )
    assert int(done.stdout) < 8 << 20


# --- what an adapter needs ------------------------------------------------------------------


def test_an_adapter_computes_no_gradient_of_a_frozen_matrix() -> None:
    policy = tiny_policy(spec=ModelSpec(lora=LoraSpec(rank=2)))
    with Watch() as watch:
        gradient_of(PLAIN, some_samples(), policy)
    frozen = {
        shape
        for p in policy.model.parameters()
        if not p.requires_grad and p.ndim == 2
        for shape in (tuple(p.shape), tuple(p.shape)[::-1])
    }
    assert not frozen & set(watch.products)
    assert "aten.embedding_dense_backward.default" not in watch.names
    with Watch() as full:
        gradient_of(PLAIN, some_samples())
    assert frozen & set(full.products)
    assert "aten.embedding_dense_backward.default" in full.names


# --- refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([], "no tokens"),
        ([5, 271, 6], "token id 271"),
        ([5, -1, 6], "token id -1"),
        ([5] * 1025, "1025 tokens is longer than the model's 1024"),
    ],
)
def test_a_sample_that_cannot_be_computed_whole_is_refused(ids: list[int], reason: str) -> None:
    trainable = np.arange(len(ids)) > 0
    bad = sample_of(np.array(ids, np.int32), trainable)
    learner = TorchLearner(tiny_policy(), PLAIN, total_steps=1)
    with pytest.raises(UsageError, match=reason) as raised:
        learner.logprobs([some_samples(1)[0], bad], which="current")
    assert raised.value.where == f"sample 1, {bad.trajectory}"
    with pytest.raises(UsageError, match=reason):
        learner.forward_backward([*some_samples(1), bad], LOSS)


def test_beyond_the_context_only_computed_positions_go_on() -> None:
    spec = LearnerSpec(beyond_context=True)
    sample = a_long_sample(1030)
    assert gradient_of(spec, [sample]).isfinite().all()
    with pytest.raises(UsageError, match="1024"):
        gradient_of(spec, [sample], tiny_policy("gpt2"))
