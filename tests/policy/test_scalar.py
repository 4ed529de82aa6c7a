"""Reward models and critics: where they score, what they learn, what they are as files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from headrace.algorithms.critic import ValueReport
from headrace.errors import (
    CheckpointError,
    ModelError,
    NoSignalError,
    NumericalError,
    StorageError,
    UsageError,
)
from headrace.policy.engine import TorchPolicy
from headrace.policy.load import load
from headrace.policy.scalar import Kind, ScalarModel, ValueTarget, open_scalar
from headrace.protocols import RankingLoss, RankingReport
from headrace.recipe import LearnerSpec, LoraSpec, ModelSpec
from headrace.types import Sample
from pairs_support import counted_tokens, gradients, same_gradient, some_pairs, states_of
from policy_support import some_samples, tiny_policy

SPEC = LearnerSpec(learning_rate=1e-3)
LOSS = RankingLoss(margins=True, centre=0.1)


def scalar(
    kind: Kind = "reward",
    *,
    architecture: str = "llama",
    lora: LoraSpec | None = None,
    **changes: object,
) -> ScalarModel:
    policy = tiny_policy(architecture, ModelSpec(lora=lora))
    spec = SPEC.model_copy(update=changes)
    return ScalarModel(policy, spec, kind=kind, total_steps=10, training={"data": "pairs"})


def parameters(model: ScalarModel) -> dict[str, torch.nn.Parameter]:
    head = dict(model.head.named_parameters(prefix="head"))
    return {**model.policy.trainable(), **head}


def tie(samples: list[Sample]) -> list[Sample]:
    return [replace(s, label=0.0) if s.group == "p1" else s for s in samples]


def targets(samples: list[Sample]) -> list[ValueTarget]:
    """Returns around 1, old values near 0, one denominator."""
    total = sum(int(s.trainable.sum()) for s in samples)
    found: list[ValueTarget] = []
    for number, sample in enumerate(samples):
        draw = np.random.default_rng(number)
        n = len(sample.ids)
        found.append(
            ValueTarget(
                sample=sample,
                returns=1 + draw.normal(size=n),
                old=draw.normal(size=n).astype(np.float32),
                weight=np.where(sample.trainable, 1 / total, 0.0),
            )
        )
    return found


class Result:
    def __init__(self, report: RankingReport | ValueReport, model: ScalarModel) -> None:
        self.report, self.grad = report, gradients(parameters(model))

    def same_as(self, other: Result) -> bool:
        return self.report.loss == pytest.approx(other.report.loss, abs=1e-5) and same_gradient(
            self.grad, other.grad
        )


def ranked(samples: list[Sample], loss: RankingLoss = LOSS, **changes: object) -> Result:
    model = scalar(**changes)  # pyright: ignore[reportArgumentType]
    return Result(model.forward_backward(samples, loss), model)


def fitted(samples: list[Sample], **changes: object) -> Result:
    model = scalar("critic", **changes)  # pyright: ignore[reportArgumentType]
    return Result(model.fit_values(targets(samples)), model)


# --- where it scores -----------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["tree", "padded"])
def test_a_reward_is_read_at_the_last_token(layout: str) -> None:
    model = scalar(layout=layout)
    samples = some_pairs()
    expected = [float(model.head(states_of(model.policy, s))[-1, 0].detach()) for s in samples]
    assert model.scores(samples) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("layout", ["tree", "padded"])
def test_a_value_is_read_before_its_token_and_a_step_at_its_end(layout: str) -> None:
    model = scalar("critic", layout=layout)
    samples = some_samples()
    values, steps = model.values(samples), model.step_scores(samples)
    for sample, value, step in zip(samples, values, steps, strict=True):
        plain = model.head(states_of(model.policy, sample))[:, 0].detach().numpy()
        before = np.concatenate([[0.0], plain[:-1]])
        assert np.allclose(value, np.where(sample.trainable, before, 0), atol=1e-5)
        assert np.allclose(step, np.where(sample.trainable, plain, 0), atol=1e-5)


def test_a_sample_that_the_model_cannot_compute_is_refused() -> None:
    (sample,) = some_samples(1)
    with pytest.raises(UsageError, match="outside"):
        scalar().scores([replace(sample, ids=sample.ids + 1000)])


# --- one denominator -----------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["tree", "padded"])
@pytest.mark.parametrize("micro_tokens", [1, 45, 10_000])
def test_ranking_does_not_depend_on_layout_micro_batches_or_order(
    layout: str, micro_tokens: int
) -> None:
    samples = tie(some_pairs(margin=0.3))
    whole = ranked(samples, layout="padded", micro_tokens=10_000)
    mixed = [samples[i] for i in (3, 0, 5, 2, 4, 1)]
    assert ranked(mixed, layout=layout, micro_tokens=micro_tokens).same_as(whole)


@pytest.mark.parametrize("layout", ["tree", "padded"])
@pytest.mark.parametrize("micro_tokens", [1, 10_000])
def test_the_value_loss_does_not_depend_on_layout_or_micro_batches(
    layout: str, micro_tokens: int
) -> None:
    whole = fitted(some_samples(), layout="padded", micro_tokens=10_000)
    assert fitted(some_samples(), layout=layout, micro_tokens=micro_tokens).same_as(whole)


def test_the_prompt_of_a_pair_is_computed_once() -> None:
    samples = some_pairs(1)
    model = scalar(layout="tree")
    with counted_tokens(model.policy) as seen:
        model.forward_backward(samples, LOSS)
    assert seen == [sum(len(s.ids) for s in samples) - int((~samples[0].trainable).sum())]


def test_bradley_terry_is_what_plain_autograd_makes_of_its_formula() -> None:
    samples = some_pairs(margin=0.3)
    model = scalar()
    score = {s.label: model.head(states_of(model.policy, s))[-1, 0] for s in samples[:2]}
    gap = score[1.0] - score[-1.0]
    expected = -torch.nn.functional.logsigmoid(gap - samples[0].margin)
    expected = expected + 0.1 * (score[1.0] + score[-1.0]) ** 2
    expected.backward()
    alone = [replace(s, weight=1.0) for s in samples[:2]]
    found = ranked(alone)
    assert found.report.loss == pytest.approx(expected.item(), abs=1e-5)
    assert same_gradient(found.grad, gradients(parameters(model)))


def test_the_value_loss_by_hand() -> None:
    model = scalar("critic")
    samples = some_samples(2)
    told = targets(samples)
    expected = 0.0
    for target, value in zip(told, model.values(samples), strict=True):
        on = target.sample.trainable
        clipped = np.clip(value, target.old - 0.2, target.old + 0.2)
        worst = np.maximum((value - target.returns) ** 2, (clipped - target.returns) ** 2)
        expected += float((target.weight * worst)[on].sum()) / 2
    report = model.fit_values(told)
    assert report.loss == pytest.approx(expected, abs=1e-5)
    assert report.tokens == sum(int(s.trainable.sum()) for s in samples)


def test_the_process_form_reads_targets_at_the_marked_steps() -> None:
    sample = some_samples(1)[0]
    marked = np.zeros(len(sample.ids), np.bool_)
    marked[[6, -1]] = True
    target = np.zeros(len(sample.ids), np.float32)
    target[6] = 1.0
    steps = replace(
        sample,
        trainable=marked,
        advantage=target,
        policy_weight=np.where(marked, 0.5, 0).astype(np.float32),
    )
    model = scalar("process")
    logits = model.step_scores([steps])[0][marked]
    expected = 0.5 * (np.log1p(np.exp(-logits[0])) + np.log1p(np.exp(logits[1])))
    report = model.forward_backward([steps], RankingLoss(process=True))
    assert report.loss == pytest.approx(float(expected), abs=1e-5)
    assert report.units == 2


# --- learning ------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [None, LoraSpec(rank=4)])
def test_a_reward_model_learns_its_pairs(lora: LoraSpec | None) -> None:
    model = scalar(lora=lora, learning_rate=1e-2)
    samples = some_pairs()
    for _ in range(6):
        model.forward_backward(samples, RankingLoss(centre=0.01))
        model.optim_step()
    scores = model.scores(samples)
    assert model.forward_backward(samples, RankingLoss()).accuracy == 1.0
    for first, second in zip(range(0, 6, 2), range(1, 6, 2), strict=True):
        assert (scores[first] - scores[second]) * samples[first].label > 0


def test_a_critic_learns_its_returns() -> None:
    model = scalar("critic", learning_rate=1e-2)
    told = [replace(t, returns=np.ones(len(t.returns))) for t in targets(some_samples())]
    first = model.fit_values(told, clip=None).loss
    for _ in range(6):
        model.optim_step()
        model.fit_values(told, clip=None)
    assert model.fit_values(told, clip=None).loss < 0.2 * first


def test_an_output_head_that_nothing_uses_is_not_trained() -> None:
    model = scalar(architecture="qwen2")
    before = {n: p.clone() for n, p in model.policy.model.named_parameters()}
    model.forward_backward(some_pairs(), LOSS)
    model.optim_step()
    after = dict(model.policy.model.named_parameters())
    assert not after["lm_head.weight"].requires_grad
    assert torch.equal(after["lm_head.weight"], before["lm_head.weight"])
    assert not torch.equal(after["model.embed_tokens.weight"], before["model.embed_tokens.weight"])


def test_under_autocast_the_head_computes_in_fp32() -> None:
    policy = tiny_policy(spec=ModelSpec(autocast="bf16"))
    model = ScalarModel(policy, SPEC, kind="reward", total_steps=10)
    samples = some_pairs()
    assert model.scores(samples) == pytest.approx(scalar().scores(samples), abs=0.1)
    report = model.forward_backward(samples, LOSS)
    assert report.loss == pytest.approx(ranked(samples).report.loss, abs=0.05)
    assert model.head.weight.dtype == torch.float32


# --- refusals ------------------------------------------------------------------------------


def test_a_batch_with_nothing_to_learn_from_is_refused() -> None:
    told = targets(some_pairs())
    bare = [replace(s, trainable=np.zeros(len(s.ids), np.bool_)) for s in some_pairs()]
    with pytest.raises(NoSignalError):
        scalar().forward_backward(bare, LOSS)
    with pytest.raises(NoSignalError):
        scalar("critic").fit_values([replace(t, sample=s) for t, s in zip(told, bare, strict=True)])


def test_a_loss_that_is_not_finite_is_refused_by_name() -> None:
    samples = some_pairs(1)
    with pytest.raises(NumericalError, match="nan") as raised:
        scalar().forward_backward([replace(s, margin=np.nan) for s in samples], LOSS)
    assert samples[0].trajectory in raised.value.where


def test_a_dead_adapter_is_refused() -> None:
    model = scalar(lora=LoraSpec(rank=2))
    model.forward_backward(some_pairs(), LOSS)
    next(p for n, p in model.policy.trainable().items() if "lora_B" in n).grad = None
    with pytest.raises(NumericalError, match="no gradient"):
        model.optim_step()


# --- files ---------------------------------------------------------------------------------


def stepped(lora: LoraSpec | None = None) -> ScalarModel:
    model = scalar(lora=lora)
    model.forward_backward(some_pairs(), LOSS)
    model.optim_step()
    return model


def test_an_exported_model_scores_to_the_bit_as_it_did(tmp_path: Path) -> None:
    model = stepped()
    model.export(tmp_path / "rm")
    again = open_scalar(tmp_path / "rm", kind="reward")
    assert again.scores(some_pairs()) == model.scores(some_pairs())
    assert again.training == {"data": "pairs"}
    assert len(again.digest) > 8


def test_an_exported_adapter_is_merged_into_its_model(tmp_path: Path) -> None:
    model = stepped(LoraSpec(rank=4))
    (tmp_path / "rm").mkdir()
    model.export(tmp_path / "rm")
    with pytest.raises(StorageError, match="already"):
        model.export(tmp_path / "rm")
    again = open_scalar(tmp_path / "rm")
    assert again.scores(some_pairs()) == pytest.approx(model.scores(some_pairs()), abs=1e-4)
    assert again.policy.lora is None
    assert load(f"path:{tmp_path / 'rm'}").model.config.model_type == "llama"


@pytest.mark.parametrize("lora", [None, LoraSpec(rank=2)])
def test_a_restored_model_goes_on_bit_for_bit(tmp_path: Path, lora: LoraSpec | None) -> None:
    one = stepped(lora)
    one.save(tmp_path)
    two = scalar(lora=lora)
    two.load(tmp_path)
    for either in (one, two):
        either.forward_backward(some_pairs(), LOSS)
        either.optim_step()
    for name, parameter in parameters(one).items():
        assert torch.equal(parameter, parameters(two)[name]), name


def test_a_checkpoint_without_an_adapter_holds_a_model_that_opens(tmp_path: Path) -> None:
    model = stepped()
    model.save(tmp_path)
    assert open_scalar(tmp_path / "model").scores(some_pairs()) == model.scores(some_pairs())


def test_a_checkpoint_of_another_kind_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    stepped().save(tmp_path)
    with pytest.raises(CheckpointError, match="reward"):
        scalar("critic").load(tmp_path)
    (tmp_path / "optimizer.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(CheckpointError) as raised:
        scalar().load(tmp_path)
    assert str(tmp_path) in raised.value.where


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("scalar") / "rm"
    stepped().export(directory)
    return directory


def altered(exported: Path, target: Path) -> Path:
    """A copy of the exported model, for damage."""
    target.mkdir()
    for file in exported.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def rewrite(directory: Path, **changes: object) -> None:
    path = directory / "headrace_scalar.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_what_is_no_scalar_model_is_refused(exported: Path, tmp_path: Path) -> None:
    plain = altered(exported, tmp_path / "plain")
    (plain / "headrace_scalar.json").unlink()
    with pytest.raises(ModelError, match="not a reward model"):
        open_scalar(plain)
    with pytest.raises(ModelError, match="not a critic model"):
        open_scalar(exported, kind="critic")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"format": 1, "kind": "reward", "training": 3}', "[" * 9999]
)
def test_a_damaged_description_is_refused(exported: Path, tmp_path: Path, text: str) -> None:
    odd = altered(exported, tmp_path / "odd")
    (odd / "headrace_scalar.json").write_text(text)
    with pytest.raises(ModelError, match="damaged"):
        open_scalar(odd)


@pytest.mark.parametrize("changes", [{"format": 2}, {"kind": "oracle"}, {"kind": ["reward"]}])
def test_an_unknown_format_or_kind_is_refused(
    exported: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    odd = altered(exported, tmp_path / "odd")
    rewrite(odd, **changes)
    with pytest.raises(ModelError, match="not known here"):
        open_scalar(odd)


def narrow(head: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**head, "weight": head["weight"][:, :-1].contiguous()}


def infinite(head: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**head, "bias": head["bias"] * torch.inf + torch.inf}


def nameless(head: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"weight": head["weight"]}


@pytest.mark.parametrize("damage", [narrow, infinite, nameless])
def test_a_head_that_does_not_fit_is_refused(
    exported: Path, tmp_path: Path, damage: Callable[[dict[str, Tensor]], dict[str, Tensor]]
) -> None:
    odd = altered(exported, tmp_path / "odd")
    save_file(damage(load_file(odd / "scalar_head.safetensors")), odd / "scalar_head.safetensors")
    with pytest.raises(ModelError, match="head"):
        open_scalar(odd)


def test_a_truncated_or_missing_head_is_refused(exported: Path, tmp_path: Path) -> None:
    odd = altered(exported, tmp_path / "odd")
    (odd / "scalar_head.safetensors").write_bytes(b"\x10")
    with pytest.raises(ModelError, match="head"):
        open_scalar(odd)
    (odd / "scalar_head.safetensors").unlink()
    with pytest.raises(ModelError, match="head"):
        open_scalar(odd)


def test_two_models_of_one_seed_are_equal_and_other_seeds_are_not() -> None:
    policies: list[TorchPolicy] = [tiny_policy() for _ in range(3)]
    one, two, other = (
        ScalarModel(policy, SPEC, kind="reward", seed=seed)
        for policy, seed in zip(policies, (1, 1, 2), strict=True)
    )
    assert torch.equal(one.head.weight, two.head.weight)
    assert not torch.equal(one.head.weight, other.head.weight)
