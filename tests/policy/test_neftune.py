"""The options of cross-entropy: noise on embeddings, and targets that are smoothed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headrace.policy import logprobs as measuring
from headrace.policy.engine import TorchPolicy
from headrace.policy.learner import TorchLearner
from headrace.policy.logprobs import Targets, measure
from headrace.policy.noise import Noise
from headrace.protocols import LearnerReport, LossSpec
from headrace.recipe import LearnerSpec
from headrace.types import Sample, Support
from pairs_support import counted_tokens, gradients, same_gradient
from policy_support import some_samples, tiny_policy

SPEC = LearnerSpec(learning_rate=1e-3)
NOISY = LossSpec(neftune=10.0)
SMOOTH = LossSpec(label_smoothing=0.1)


def demonstrations() -> list[Sample]:
    """Cross-entropy alone, in pairs that share a prompt."""
    total = sum(int(s.trainable.sum()) for s in some_samples())
    return [
        replace(
            sample,
            policy_weight=np.zeros(len(sample.ids), np.float32),
            cross_entropy_weight=np.where(sample.trainable, 1 / total, 0).astype(np.float32),
        )
        for sample in some_samples()
    ]


def learner(policy: TorchPolicy, spec: LearnerSpec = SPEC) -> TorchLearner:
    return TorchLearner(policy, spec, total_steps=10)


class Result:
    def __init__(self, report: LearnerReport, grad: Tensor) -> None:
        self.loss, self.report, self.grad = report.loss, report, grad

    def same_as(self, other: Result) -> bool:
        return self.loss == pytest.approx(other.loss, abs=1e-5) and same_gradient(
            self.grad, other.grad
        )


def result_of(samples: list[Sample], loss: LossSpec, **changes: object) -> Result:
    policy = tiny_policy()
    report = learner(policy, SPEC.model_copy(update=changes)).forward_backward(samples, loss)
    return Result(report, gradients(policy.trainable()))


# --- noise ---------------------------------------------------------------------------------


def test_noise_fills_its_bounds_and_nothing_more() -> None:
    (sample,) = some_samples(1)
    values = Noise(alpha=5.0, step=0).of(sample, 64)
    bound = 5.0 / math.sqrt(len(sample.ids) * 64)
    assert values.shape == (len(sample.ids), 64)
    assert np.abs(values).max() <= bound
    assert np.abs(values).max() > 0.97 * bound
    assert abs(values.mean()) < 0.1 * bound
    assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.1)


def test_noise_depends_on_the_step_and_the_sample_and_on_nothing_else() -> None:
    one, other = some_samples(2)
    drawn = Noise(5.0, 3).of(one, 8)
    assert np.array_equal(drawn, Noise(5.0, 3).of(one, 8))
    assert not np.array_equal(drawn, Noise(5.0, 4).of(one, 8))
    same_length = replace(one, trajectory=other.trajectory)
    assert not np.array_equal(drawn, Noise(5.0, 3).of(same_length, 8))


@pytest.mark.parametrize("layout", ["tree", "padded"])
@pytest.mark.parametrize("micro_tokens", [1, 30, 10_000])
def test_noisy_loss_and_gradient_do_not_depend_on_layout_or_micro_batches(
    layout: str, micro_tokens: int
) -> None:
    whole = result_of(demonstrations(), NOISY, layout="padded", micro_tokens=10_000)
    found = result_of(demonstrations()[::-1], NOISY, layout=layout, micro_tokens=micro_tokens)
    assert found.same_as(whole)
    assert not found.same_as(result_of(demonstrations(), LossSpec()))


def test_noise_is_what_the_paper_says_done_by_hand() -> None:
    samples = demonstrations()
    policy = tiny_policy()
    total = torch.zeros(())
    for sample in samples:
        ids = torch.from_numpy(sample.ids).long()
        embedded = policy.model.get_input_embeddings()(ids)
        noise = torch.from_numpy(Noise(10.0, 0).of(sample, embedded.shape[-1]))
        logits = policy.model(inputs_embeds=(embedded + noise)[None]).logits[0]
        places = np.flatnonzero(sample.trainable)
        losses = cross_entropy(logits[places - 1], ids[places], reduction="sum")
        total = total + losses * float(sample.cross_entropy_weight[places[0]])
    total.backward()
    found = result_of(samples, NOISY)
    assert found.loss == pytest.approx(total.item(), abs=1e-5)
    assert same_gradient(found.grad, gradients(policy.trainable()))


def test_with_noise_no_prefix_is_shared() -> None:
    samples = demonstrations()
    spec = SPEC.model_copy(update={"layout": "tree", "micro_tokens": 10_000})
    policy = tiny_policy()
    with counted_tokens(policy) as seen:
        learner(policy, spec).forward_backward(samples, LossSpec())
    with counted_tokens(policy) as noisy:
        learner(policy, spec).forward_backward(samples, NOISY)
    assert noisy == [sum(len(sample.ids) for sample in samples)]
    assert seen[0] < noisy[0]


def test_scoring_is_never_noisy() -> None:
    samples = demonstrations()
    policy = tiny_policy()
    one = learner(policy)
    before = one.logprobs(samples, which="current")
    one.forward_backward(samples, NOISY)
    after = one.logprobs(samples, which="current")
    assert all(a.tobytes() == b.tobytes() for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("checkpointing", ["off", "on"])
def test_noise_survives_layers_that_are_computed_again(checkpointing: str) -> None:
    plain = result_of(demonstrations(), NOISY, layout="padded", checkpointing="off")
    found = result_of(demonstrations(), NOISY, layout="tree", checkpointing=checkpointing)
    assert found.same_as(plain)


def test_a_resumed_run_draws_the_same_noise_to_the_bit(tmp_path: Path) -> None:
    samples = demonstrations()

    def step(one: TorchLearner) -> None:
        one.forward_backward(samples, NOISY)
        one.optim_step()

    first = tiny_policy()
    one = learner(first)
    step(one)
    one.save(tmp_path)
    step(one)
    second = tiny_policy()
    two = learner(second)
    two.load(tmp_path)
    step(two)
    assert first.fingerprint() == second.fingerprint()


# --- smoothing -----------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [False, True])
def test_smoothed_cross_entropy_is_the_one_of_torch(
    chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chunked:
        monkeypatch.setattr(measuring, "KEPT_LOGITS", 1)
        monkeypatch.setattr(measuring, "CHUNK_LOGITS", 271 * 5)
    samples = demonstrations()
    policy = tiny_policy()
    total = torch.zeros(())
    for sample in samples:
        ids = torch.from_numpy(sample.ids).long()
        logits = policy.model(input_ids=ids[None]).logits[0]
        places = np.flatnonzero(sample.trainable)
        losses = cross_entropy(
            logits[places - 1], ids[places], reduction="sum", label_smoothing=0.1
        )
        total = total + losses * float(sample.cross_entropy_weight[places[0]])
    total.backward()
    found = result_of(samples, SMOOTH)
    assert found.loss == pytest.approx(total.item(), abs=1e-5)
    assert found.report.components["cross_entropy"] == pytest.approx(found.loss, abs=1e-6)
    assert same_gradient(found.grad, gradients(policy.trainable()))


def test_smoothing_touches_cross_entropy_alone() -> None:
    samples = some_samples()
    assert result_of(samples, SMOOTH).same_as(result_of(samples, LossSpec()))


@pytest.mark.parametrize("micro_tokens", [1, 10_000])
def test_smoothed_loss_does_not_depend_on_micro_batches(micro_tokens: int) -> None:
    mixed = [
        replace(s, entropy_weight=np.where(s.trainable, 0.01, 0).astype(np.float32))
        for s in demonstrations()
    ]
    whole = result_of(mixed, SMOOTH, layout="padded")
    assert result_of(mixed, SMOOTH, layout="tree", micro_tokens=micro_tokens).same_as(whole)


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("supported", [False, True])
def test_the_mean_log_probability_has_the_value_and_gradient_of_plain_autograd(
    entropy: bool, temperature: float, supported: bool
) -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 7, generator=draw, requires_grad=True)
    rows, ids = torch.tensor([0, 2, 2]), torch.tensor([1, 4, 6])
    sets = [[1, 3], [4, 5, 0], [6]] if supported else [list(range(7))] * 3
    support = Support(
        offsets=np.cumsum([0, *map(len, sets)]), ids=np.concatenate(sets).astype(np.int32)
    )
    found = measure(
        lambda states: states * 1.0,
        logits,
        Targets(rows, ids, tuple(support.row(i) for i in range(3)) if supported else None),
        vocabulary=7,
        temperature=temperature,
        entropy=entropy,
        uniform=True,
    )
    pulls = torch.tensor([0.5, -1.0, 2.0])
    rowed = zip(rows.tolist(), sets, strict=True)
    plain = [(logits[row] / temperature)[kept].log_softmax(0) for row, kept in rowed]
    means = torch.stack([values.mean() for values in plain])
    spreads = torch.stack([-(values.exp() * values).sum() for values in plain])
    own = torch.stack([v[kept.index(int(i))] for v, kept, i in zip(plain, sets, ids, strict=True)])
    assert found.uniform is not None
    assert torch.allclose(found.uniform, means, atol=1e-6)
    assert torch.allclose(found.logps, own, atol=1e-6)
    total = (found.uniform * pulls).sum() + (found.logps * pulls.flip(0)).sum()
    expected = (means * pulls).sum() + (own * pulls.flip(0)).sum()
    if entropy:
        assert found.entropy is not None
        assert torch.allclose(found.entropy, spreads, atol=1e-6)
        total, expected = total + found.entropy.sum(), expected + spreads.sum()
    (ours,) = torch.autograd.grad(total, logits, retain_graph=True)
    (theirs,) = torch.autograd.grad(expected, logits)
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_noise_and_smoothing_go_together() -> None:
    both = LossSpec(neftune=5.0, label_smoothing=0.2)
    tree = result_of(demonstrations(), both, layout="tree")
    assert tree.same_as(result_of(demonstrations(), both, layout="padded", micro_tokens=1))
