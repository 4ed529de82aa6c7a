"""The invariants of the learner, on tiny random models: one denominator, exact masks, proof."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.errors import CheckpointError, NoSignalError, NumericalError
from headrace.policy.engine import TorchPolicy
from headrace.policy.learner import TorchLearner, schedule
from headrace.policy.sampler import TorchSampler
from headrace.protocols import LossSpec, SampleRequest, SamplingParams
from headrace.recipe import LearnerSpec, LoraSpec, ModelSpec
from headrace.types import Floats, Sample
from policy_support import prompt, sample_of, some_samples, tiny_policy

SPEC = LearnerSpec(learning_rate=1e-3)
LOSS = LossSpec(clip_high=0.28)


def learner(policy: TorchPolicy, spec: LearnerSpec = SPEC) -> TorchLearner:
    return TorchLearner(policy, spec, total_steps=10)


def gradient(policy: TorchPolicy) -> torch.Tensor:
    parts = [p.grad.flatten() for p in policy.trainable().values() if p.grad is not None]
    return torch.cat(parts).double()


def gradient_of(samples: list[Sample], spec: LearnerSpec, architecture: str = "llama") -> Result:
    policy = tiny_policy(architecture)
    report = learner(policy, spec).forward_backward(samples, LOSS)
    return Result(report.loss, gradient(policy))


class Result:
    def __init__(self, loss: float, grad: torch.Tensor) -> None:
        self.loss, self.grad = loss, grad

    def same_as(self, other: Result) -> bool:
        scale = other.grad.abs().max()
        return self.loss == pytest.approx(other.loss, abs=1e-5) and bool(
            ((self.grad - other.grad).abs().max() / scale) < 1e-4
        )


@pytest.mark.parametrize("layout", ["tree", "padded"])
@pytest.mark.parametrize("micro_tokens", [1, 20, 10_000])
def test_loss_and_gradient_do_not_depend_on_layout_or_micro_batches(
    layout: str, micro_tokens: int
) -> None:
    plain = gradient_of(some_samples(), SPEC.model_copy(update={"layout": "padded"}))
    spec = SPEC.model_copy(update={"layout": layout, "micro_tokens": micro_tokens})
    assert gradient_of(some_samples(), spec).same_as(plain)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "gemma2", "gpt2"])
def test_the_tree_gives_the_same_gradient_for_other_architectures(architecture: str) -> None:
    results = [
        gradient_of(some_samples(), SPEC.model_copy(update={"layout": layout}), architecture)
        for layout in ("tree", "padded")
    ]
    assert results[0].same_as(results[1])


def test_loss_and_gradient_do_not_depend_on_the_order_of_samples() -> None:
    samples = some_samples()
    assert gradient_of(samples[::-1], SPEC).same_as(gradient_of(samples, SPEC))


@pytest.mark.parametrize("ranks", [2, 3])
def test_averaged_gradients_of_ranks_times_their_number_are_the_whole_gradient(ranks: int) -> None:
    samples = some_samples()
    whole = gradient_of(samples, SPEC)
    parts = [gradient_of(samples[rank::ranks], SPEC) for rank in range(ranks)]
    loss = sum(part.loss for part in parts)
    average = torch.stack([part.grad for part in parts]).mean(dim=0)
    assert Result(loss, average * ranks).same_as(whole)


def test_accumulated_calls_are_one_call() -> None:
    samples = some_samples()
    policy = tiny_policy()
    one = learner(policy)
    for sample in samples:
        one.forward_backward([sample], LOSS)
    assert Result(gradient_of(samples, SPEC).loss, gradient(policy)).same_as(
        gradient_of(samples, SPEC)
    )


def test_what_stands_in_a_masked_slot_changes_nothing() -> None:
    clean = some_samples()
    poisoned = [
        replace(s, behaviour=poison(s, s.behaviour), advantage=poison(s, s.advantage))
        for s in clean
    ]
    assert gradient_of(poisoned, SPEC).same_as(gradient_of(clean, SPEC))


def poison(sample: Sample, values: Floats) -> Floats:
    return np.where(sample.trainable, values, np.nan).astype(np.float32)


def test_entropy_bonus_is_the_same_in_both_layouts() -> None:
    samples = some_samples(entropy_weight=0.01)
    tree = gradient_of(samples, SPEC.model_copy(update={"layout": "tree"}))
    padded = gradient_of(samples, SPEC.model_copy(update={"layout": "padded"}))
    assert tree.same_as(padded)
    assert not tree.same_as(gradient_of(some_samples(), SPEC))


# --- the ratio -----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["tree", "padded"])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_new_tokens=10),
        SamplingParams(max_new_tokens=10, temperature=0.6),
        SamplingParams(max_new_tokens=10, temperature=1.3, top_p=0.7),
        SamplingParams(max_new_tokens=10, top_k=5),
        SamplingParams(max_new_tokens=10, min_p=0.3, temperature=0.8),
    ],
)
def test_the_ratio_is_one_before_the_first_update(params: SamplingParams, layout: str) -> None:
    policy = tiny_policy()
    request = SampleRequest(prompt(6), (1, 2, 3, 4), params)
    samples: list[Sample] = []
    for index, completion in enumerate(TorchSampler(policy).sample([request])[0]):
        ids = np.concatenate([request.ids, completion.ids])
        trainable = np.arange(len(ids)) >= len(request.ids)
        sample = sample_of(
            ids,
            trainable,
            seed=index,
            temperature=params.temperature,
            support=completion.support,
        )
        behaviour = np.zeros(len(ids), np.float32)
        behaviour[trainable] = completion.logps
        samples.append(replace(sample, behaviour=behaviour))
    spec = SPEC.model_copy(update={"layout": layout})
    report = learner(policy, spec).forward_backward(samples, LOSS)
    assert report.ratio_mean == pytest.approx(1.0, abs=1e-5)
    assert report.ratio_max == pytest.approx(1.0, abs=1e-4)
    assert report.clipped_share == 0.0


def test_the_ratio_moves_after_an_update() -> None:
    policy = tiny_policy()
    one = learner(policy)
    samples = some_samples()
    logps = one.logprobs(samples, which="current")
    exact = [replace(s, behaviour=p) for s, p in zip(samples, logps, strict=True)]
    assert one.forward_backward(exact, LOSS).ratio_max == pytest.approx(1.0, abs=1e-5)
    one.optim_step()
    assert one.forward_backward(exact, LOSS).ratio_max > 1.001


def test_reference_log_probabilities_stay_while_the_policy_moves() -> None:
    policy = tiny_policy()
    policy.freeze_reference()
    one = learner(policy)
    samples = some_samples()
    before = one.logprobs(samples, which="reference")
    one.forward_backward(samples, LOSS)
    one.optim_step()
    after = one.logprobs(samples, which="reference")
    current = one.logprobs(samples, which="current")
    for a, b, c in zip(before, after, current, strict=True):
        assert a.tobytes() == b.tobytes()
        assert not np.allclose(a, c)


# --- updates -------------------------------------------------------------------------------


def test_learning_raises_what_was_rewarded() -> None:
    policy = tiny_policy()
    one = learner(policy)
    (sample,) = some_samples(1)
    good = replace(sample, advantage=np.where(sample.trainable, 1, 0).astype(np.float32))
    before = one.logprobs([good], which="current")[0].sum()
    for _ in range(3):
        one.forward_backward([good], LossSpec(clip="none"))
        one.optim_step()
    assert one.logprobs([good], which="current")[0].sum() > before + 0.1


def test_lora_trains_the_adapter_and_leaves_the_model_alone() -> None:
    policy = tiny_policy(spec=ModelSpec(lora=LoraSpec(rank=2)))
    frozen = {n: p.clone() for n, p in policy.model.named_parameters() if not p.requires_grad}
    one = learner(policy)
    for _ in range(2):
        one.forward_backward(some_samples(), LOSS)
        one.optim_step()
    for name, parameter in policy.model.named_parameters():
        if not parameter.requires_grad:
            assert parameter.grad is None
            assert torch.equal(parameter, frozen[name])
    assert all("lora_" in name for name in policy.trainable())


def test_a_dead_adapter_is_refused() -> None:
    policy = tiny_policy(spec=ModelSpec(lora=LoraSpec(rank=2)))
    one = learner(policy)
    one.forward_backward(some_samples(), LOSS)
    next(p for n, p in policy.trainable().items() if "lora_B" in n).grad = None
    with pytest.raises(NumericalError, match="no gradient"):
        one.optim_step()


def test_an_update_that_changes_nothing_is_refused() -> None:
    policy = tiny_policy()
    one = learner(policy)
    one.forward_backward(some_samples(), LOSS)
    for parameter in policy.trainable().values():
        parameter.grad = torch.zeros_like(parameter)
    with pytest.raises(NumericalError, match="changed no weight"):
        one.optim_step()


def test_a_non_finite_loss_names_its_samples() -> None:
    bad = replace(some_samples(1)[0], advantage=np.full(8, np.nan, np.float32))
    with pytest.raises(NumericalError, match="nan") as raised:
        learner(tiny_policy()).forward_backward([bad], LOSS)
    assert bad.trajectory in raised.value.where


def test_a_non_finite_gradient_is_refused_before_it_reaches_the_weights() -> None:
    policy = tiny_policy()
    one = learner(policy)
    one.forward_backward(some_samples(), LOSS)
    next(iter(policy.trainable().values())).grad.fill_(torch.inf)  # pyright: ignore[reportOptionalMemberAccess]
    before = policy.fingerprint()
    with pytest.raises(NumericalError, match="gradient norm"):
        one.optim_step()
    assert policy.fingerprint() == before


def test_a_batch_without_a_trainable_token_is_refused() -> None:
    ids = prompt(5)
    with pytest.raises(NoSignalError, match="no trainable token"):
        learner(tiny_policy()).forward_backward([sample_of(ids, np.zeros(5, np.bool_))], LOSS)


def test_the_gradient_is_clipped_and_the_norm_before_is_told() -> None:
    policy = tiny_policy()
    one = learner(policy, SPEC.model_copy(update={"gradient_clip": 1e-3}))
    one.forward_backward(some_samples(), LOSS)
    true_norm = gradient(policy).norm().item()
    assert one.optim_step().gradient_norm == pytest.approx(true_norm, rel=1e-4)


def test_bf16_autocast_keeps_fp32_master_weights_and_stays_close() -> None:
    plain = gradient_of(some_samples(), SPEC)
    policy = tiny_policy(spec=ModelSpec(autocast="bf16"))
    report = learner(policy).forward_backward(some_samples(), LOSS)
    assert all(p.dtype == torch.float32 for p in policy.trainable().values())
    assert report.loss == pytest.approx(plain.loss, abs=0.05)
    cosine = torch.nn.functional.cosine_similarity(gradient(policy), plain.grad, dim=0)
    assert cosine > 0.95


# --- state ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [None, LoraSpec(rank=2)])
def test_a_loaded_learner_goes_on_bit_for_bit(tmp_path: Path, lora: LoraSpec | None) -> None:
    spec = ModelSpec(lora=lora)
    first = tiny_policy(spec=spec)
    one = learner(first)
    one.forward_backward(some_samples(), LOSS)
    one.optim_step()
    one.publish()
    one.save(tmp_path)
    second = tiny_policy(spec=spec)
    two = learner(second)
    two.load(tmp_path)
    assert second.version == 1
    for either in (one, two):
        either.forward_backward(some_samples(), LOSS)
        either.optim_step()
    assert first.fingerprint() == second.fingerprint()
    pairs = zip(first.trainable().values(), second.trainable().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_saved_model_is_a_plain_model_directory(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    policy = tiny_policy()
    learner(policy).save(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    ids = torch.tensor(prompt(6)).long()[None]
    with torch.no_grad():
        assert torch.allclose(again(ids).logits, policy.model(ids).logits, atol=1e-6)


def test_a_damaged_state_is_refused_with_its_place(tmp_path: Path) -> None:
    policy = tiny_policy()
    learner(policy).save(tmp_path)
    (tmp_path / "optimizer.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(CheckpointError) as raised:
        learner(policy).load(tmp_path)
    assert str(tmp_path) in raised.value.where


def test_a_renewed_reference_survives_a_restart(tmp_path: Path) -> None:
    policy = tiny_policy()
    one = learner(policy)
    one.forward_backward(some_samples(), LOSS)
    one.optim_step()
    policy.freeze_reference()
    one.save(tmp_path)
    one.save_reference(tmp_path)
    expected = one.logprobs(some_samples(), which="reference")
    fresh = tiny_policy()
    fresh.freeze_reference()
    two = learner(fresh)
    two.load(tmp_path)
    found = two.logprobs(some_samples(), which="reference")
    assert all(a.tobytes() == b.tobytes() for a, b in zip(expected, found, strict=True))


# --- schedules -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "warmup", "expected"),
    [
        ("constant", 0, [1, 1, 1, 1, 1]),
        ("constant", 2, [1 / 3, 2 / 3, 1, 1, 1]),
        ("linear", 0, [1, 0.75, 0.5, 0.25, 0]),
        ("linear", 2, [1 / 3, 2 / 3, 1, 0.5, 0]),
        ("cosine", 0, [1, 0.8535534, 0.5, 0.1464466, 0]),
    ],
)
def test_schedules_by_hand(name: str, warmup: int, expected: list[float]) -> None:
    spec = LearnerSpec.model_validate({"schedule": name, "warmup_steps": warmup})
    assert [schedule(spec, step, 5) for step in range(5)] == pytest.approx(expected)
