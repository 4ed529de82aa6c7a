"""Averages of weights, against values by hand, and what may not be averaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from headrace.errors import CheckpointError, ModelError, StorageError, UsageError
from headrace.policy.average import MovingAverage, add_task_vectors, merge
from headrace.policy.engine import TorchPolicy
from headrace.policy.learner import TorchLearner
from headrace.policy.load import load
from headrace.policy.tiny import write_tiny
from headrace.recipe import LearnerSpec, LoraSpec, ModelSpec
from policy_support import tiny_policy

# --- over steps ----------------------------------------------------------------------------


def fill(policy: TorchPolicy, value: float) -> None:
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.fill_(value)


def held(policy: TorchPolicy) -> float:
    """The one value that all weights have."""
    weights = [parameter.detach() for parameter in policy.trainable().values()]
    values = {float(value) for weight in weights for value in (weight.min(), weight.max())}
    assert len(values) == 1
    return values.pop()


@pytest.mark.parametrize("lora", [None, LoraSpec(rank=2)])
def test_a_moving_average_by_hand_its_start_corrected(lora: LoraSpec | None) -> None:
    policy = tiny_policy(spec=ModelSpec(lora=lora))
    average = MovingAverage(policy, 0.5)
    expected = {1: 1.0, 2: 5 / 3, 3: 3.0}  # w = 1, 2, 4: (1 + 4) / 3 and (1 + 4 + 16) / 7
    for update, value in zip(expected, (1.0, 2.0, 4.0), strict=True):
        fill(policy, value)
        average.update()
        with average.applied():
            assert held(policy) == pytest.approx(expected[update], rel=1e-6)
        assert held(policy) == value
    assert average.updates == 3


def test_without_a_decay_the_average_is_the_last_weights() -> None:
    policy = tiny_policy()
    average = MovingAverage(policy, 0.0)
    for value in (1.0, 7.0):
        fill(policy, value)
        average.update()
    with average.applied():
        assert held(policy) == 7.0


def test_samplers_take_the_average_over_and_give_it_back() -> None:
    policy = tiny_policy()
    average = MovingAverage(policy, 0.9)
    average.update()
    before, version = policy.publications, policy.version
    with average.applied():
        inside = policy.publications
    assert before < inside < policy.publications
    assert policy.version == version


def test_an_average_is_saved_as_a_model_that_loads(tmp_path: Path) -> None:
    policy = tiny_policy()
    average = MovingAverage(policy, 0.5)
    fill(policy, 1.0)
    average.update()
    fill(policy, 2.0)
    with average.applied():
        TorchLearner(policy, LearnerSpec(), total_steps=1).save(tmp_path)
    weights = load_file(tmp_path / "model" / "model.safetensors")
    assert all(bool((tensor == 1).all()) for tensor in weights.values())
    load(f"path:{tmp_path / 'model'}")


def test_a_restored_average_goes_on_bit_for_bit(tmp_path: Path) -> None:
    policy = tiny_policy()
    one = MovingAverage(policy, 0.7)
    one.update()
    fill(policy, 0.3)
    one.update()
    one.save(tmp_path)
    two = MovingAverage(policy, 0.7)
    two.load(tmp_path)
    fill(policy, 0.9)
    found: list[int] = []
    for average in (one, two):
        average.update()
        with average.applied():
            found.append(policy.fingerprint())
    assert found[0] == found[1]


def test_an_average_of_another_decay_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    policy = tiny_policy()
    average = MovingAverage(policy, 0.7)
    average.update()
    average.save(tmp_path)
    with pytest.raises(CheckpointError, match="decay"):
        MovingAverage(policy, 0.8).load(tmp_path)
    with pytest.raises(CheckpointError, match="disagree"):
        MovingAverage(tiny_policy("gpt2"), 0.7).load(tmp_path)
    (tmp_path / "average.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError):
        average.load(tmp_path)


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_that_averages_nothing_is_refused(decay: float) -> None:
    with pytest.raises(UsageError, match="decay"):
        MovingAverage(tiny_policy(), decay)


# --- between models ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three models of one family."""
    root = tmp_path_factory.mktemp("models")
    directories = [root / f"m{seed}" for seed in range(3)]
    for seed, directory in enumerate(directories):
        directory.mkdir()
        write_tiny("llama", directory, seed=seed)
    return directories


def weights_of(directory: Path) -> dict[str, Tensor]:
    return load_file(directory / "model.safetensors")


def combined(models: list[Path], weights: list[float]) -> dict[str, Tensor]:
    """The sum of weight x model, in fp64."""
    read = [weights_of(directory) for directory in models]
    return {
        name: sum(
            (w * tensors[name].double() for w, tensors in zip(weights, read, strict=True)),
            torch.zeros(()),
        )
        for name in read[0]
    }


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype == torch.float32
        assert torch.allclose(tensor.double(), expected[name], atol=1e-6), name


def test_a_merge_is_the_weighted_mean_and_loads(models: list[Path], tmp_path: Path) -> None:
    merge(models, [0.5, 0.3, 0.2], tmp_path / "out")
    assert_close(weights_of(tmp_path / "out"), combined(models, [0.5, 0.3, 0.2]))
    loaded = load(f"path:{tmp_path / 'out'}")
    assert loaded.tokenizer.get_vocab() == load(f"path:{models[0]}").tokenizer.get_vocab()
    assert loaded.tokenizer.chat_template
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_all_the_weight_on_one_model_is_that_model_to_the_bit(
    models: list[Path], tmp_path: Path
) -> None:
    merge(models[:2], [0.0, 1.0], tmp_path / "out")
    found, expected = weights_of(tmp_path / "out"), weights_of(models[1])
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_task_vectors_add_what_models_learned_to_their_base(
    models: list[Path], tmp_path: Path
) -> None:
    base, one, other = models
    add_task_vectors(base, [one, other], [0.5, -0.25], tmp_path / "out")
    assert_close(weights_of(tmp_path / "out"), combined(models, [0.75, 0.5, -0.25]))
    load(f"path:{tmp_path / 'out'}")


def test_shards_and_half_precision_are_read(models: list[Path], tmp_path: Path) -> None:
    first = copy_of(models[0], tmp_path / "first")
    weights = {n: t.bfloat16() for n, t in weights_of(first).items()}
    names = sorted(weights)
    (first / "model.safetensors").unlink()
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, inside in shards.items():
        save_file({name: weights[name] for name in inside}, first / file)
    index = {"weight_map": {name: file for file, inside in shards.items() for name in inside}}
    (first / "model.safetensors.index.json").write_text(json.dumps(index))
    merge([first, models[1]], [0.5, 0.5], tmp_path / "out")
    half = {n: t.double() for n, t in weights.items()}
    other = weights_of(models[1])
    expected = {n: 0.5 * t + 0.5 * other[n].double() for n, t in half.items()}
    assert_close(weights_of(tmp_path / "out"), expected)
    assert not (tmp_path / "out" / "model.safetensors.index.json").exists()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float32"


# --- refusals ------------------------------------------------------------------------------


def copy_of(source: Path, target: Path) -> Path:
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def rewritten(directory: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    weights = weights_of(directory)
    change(weights)
    save_file(weights, directory / "model.safetensors")
    return directory


@pytest.mark.parametrize(
    ("count", "weights"),
    [
        (1, [1.0]),
        (2, [0.5, 0.6]),
        (2, [1.0]),
        (3, [0.5, 0.5]),
        (2, [float("nan"), 1.0]),
        (2, [float("inf"), float("-inf")]),
    ],
)
def test_weights_that_are_no_mean_are_refused(
    models: list[Path], tmp_path: Path, count: int, weights: list[float]
) -> None:
    with pytest.raises(UsageError):
        merge(models[:count], weights, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_scales_that_fit_no_models_are_refused(models: list[Path], tmp_path: Path) -> None:
    for scales in ([], [1.0, 1.0], [float("nan")]):
        with pytest.raises(UsageError):
            add_task_vectors(models[0], models[1:2], scales, tmp_path / "out")


def test_models_that_do_not_match_are_refused_by_name(models: list[Path], tmp_path: Path) -> None:
    def lose(weights: dict[str, Tensor]) -> None:
        del weights["model.norm.weight"]

    def cut(weights: dict[str, Tensor]) -> None:
        weights["model.norm.weight"] = weights["model.norm.weight"][:-1].clone()

    def round_(weights: dict[str, Tensor]) -> None:
        weights["model.norm.weight"] = weights["model.norm.weight"].long()

    for number, change in enumerate((lose, cut, round_)):
        odd = rewritten(copy_of(models[1], tmp_path / f"odd{number}"), change)
        with pytest.raises(ModelError, match=r"model\.norm\.weight"):
            merge([models[0], odd], [0.5, 0.5], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_vocabulary_is_refused(models: list[Path], tmp_path: Path) -> None:
    odd = copy_of(models[1], tmp_path / "odd")
    tokenizer = json.loads((odd / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (odd / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match="vocabulary"):
        merge([models[0], odd], [0.5, 0.5], tmp_path / "out")


def test_a_sum_that_is_not_finite_leaves_nothing_behind(models: list[Path], tmp_path: Path) -> None:
    def spoil(weights: dict[str, Tensor]) -> None:
        weights["model.norm.weight"] = weights["model.norm.weight"] * torch.inf

    odd = rewritten(copy_of(models[1], tmp_path / "odd"), spoil)
    with pytest.raises(ModelError, match="not finite"):
        merge([models[0], odd], [0.5, 0.5], tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["odd"]


def test_directories_without_readable_weights_are_refused(
    models: list[Path], tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        merge([models[0], empty], [0.5, 0.5], tmp_path / "out")
    damaged = copy_of(models[1], tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ModelError, match="cannot be read"):
        merge([models[0], damaged], [0.5, 0.5], tmp_path / "out")
    outside = copy_of(models[1], tmp_path / "outside")
    (outside / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"x": str(models[1] / "model.safetensors")}})
    )
    with pytest.raises(ModelError, match="names files elsewhere"):
        merge([models[0], outside], [0.5, 0.5], tmp_path / "out")


def test_nothing_is_overwritten(models: list[Path], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    merge(models[:2], [0.5, 0.5], tmp_path / "out")  # an empty directory is as good as none
    before = weights_of(tmp_path / "out")
    with pytest.raises(StorageError, match="already"):
        merge(models[:2], [0.9, 0.1], tmp_path / "out")
    assert_close(weights_of(tmp_path / "out"), {n: t.double() for n, t in before.items()})
