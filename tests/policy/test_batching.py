"""Continuous batching: nothing depends on company, memory is obeyed, weights may change."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.errors import ModelError, RecipeError
from headrace.policy.engine import TorchPolicy
from headrace.policy.native import Unavailable
from headrace.policy.sampler import TorchSampler
from headrace.policy.tiny import TINY_ARCHITECTURES
from headrace.protocols import Completion, SampleRequest, SamplingParams
from headrace.recipe import LoraSpec, ModelSpec, SamplerSpec
from headrace.types import Ids
from policy_support import prompt, tiny_policy

PARAMS = SamplingParams(max_new_tokens=24)
GREEDY = replace(PARAMS, temperature=0.0)
NATIVE = ("llama", "qwen2", "qwen3", "mistral")


def request(
    length: int, seeds: int = 3, *, seed: int = 0, params: SamplingParams = PARAMS
) -> SampleRequest:
    return SampleRequest(prompt(length, seed=seed), tuple(range(seeds)), params)


def mixed(params: SamplingParams = PARAMS) -> list[SampleRequest]:
    return [request(length, seed=length, params=params) for length in (1, 5, 16, 31, 32, 47, 70)]


def logps_of(policy: TorchPolicy, ids: Ids, completion: Completion) -> list[float]:
    whole = torch.tensor(np.concatenate([ids, completion.ids])).long()
    with torch.no_grad():
        logits = policy.model(input_ids=whole[None], use_cache=False).logits[0]
    told = torch.log_softmax(logits.float()[len(ids) - 1 : -1], -1)
    return told.gather(1, torch.tensor(completion.ids).long()[:, None])[:, 0].tolist()


def bits(results: list[list[Completion]]) -> list[list[tuple[bytes, bytes]]]:
    return [[(c.ids.tobytes(), c.logps.tobytes()) for c in row] for row in results]


@pytest.mark.parametrize("engine", ["auto", "general", "reference"])
@pytest.mark.parametrize("architecture", sorted(TINY_ARCHITECTURES))
def test_every_engine_gives_the_log_probabilities_of_the_plain_model(
    architecture: str, engine: str
) -> None:
    policy = tiny_policy(architecture)
    sampler = TorchSampler(policy, SamplerSpec(engine=engine, prefill_tokens=20, max_rows=8))  # pyright: ignore[reportArgumentType]
    expected_engine = {"auto": "native fp32" if architecture in NATIVE else "general"}
    assert sampler.engine == expected_engine.get(engine, engine)
    for asked, row in zip(mixed(), sampler.sample(mixed()), strict=True):
        for completion in row:
            expected = logps_of(policy, asked.ids, completion)
            assert completion.logps.tolist() == pytest.approx(expected, abs=1e-4)


def test_a_model_whose_attention_cannot_be_redirected_is_sampled_without_a_cache() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "bloom", vocab_size=271, hidden_size=64, n_layer=2, n_head=4, initializer_range=0.2
    )
    policy = tiny_policy()
    torch.manual_seed(0)
    policy.model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    sampler = TorchSampler(policy)
    assert sampler.engine == "recompute"
    asked = [request(9, params=replace(PARAMS, max_new_tokens=6))]
    for completion in sampler.sample(asked)[0]:
        expected = logps_of(policy, asked[0].ids, completion)
        assert completion.logps.tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("params", [PARAMS, GREEDY], ids=["sampled", "greedy"])
def test_a_sequence_has_the_same_bits_in_any_batch(engine: str, params: SamplingParams) -> None:
    policy = tiny_policy()
    whole = TorchSampler(policy, SamplerSpec(engine=engine)).sample(mixed(params))  # pyright: ignore[reportArgumentType]
    for spec in (
        SamplerSpec(engine=engine, max_rows=1),  # pyright: ignore[reportArgumentType]
        SamplerSpec(engine=engine, max_rows=5),  # pyright: ignore[reportArgumentType]
    ):
        assert bits(TorchSampler(policy, spec).sample(mixed(params))) == bits(whole)
    shuffled = TorchSampler(policy, SamplerSpec(engine=engine)).sample(mixed(params)[::-1])  # pyright: ignore[reportArgumentType]
    assert bits(shuffled[::-1]) == bits(whole)


def test_chunks_of_prompts_and_found_prefixes_change_no_bit() -> None:
    policy = tiny_policy()
    sampler = TorchSampler(policy)
    whole = bits(sampler.sample(mixed()))
    assert bits(sampler.sample(mixed())) == whole, "the second time prefixes are found"
    assert bits(TorchSampler(policy, SamplerSpec(prefill_tokens=7)).sample(mixed())) == whole


def test_a_later_turn_computes_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_policy()
    sampler = TorchSampler(policy)
    first = request(40, 1)
    (said,) = sampler.sample([first])[0]
    turn = np.concatenate([first.ids, said.ids, prompt(5, seed=9)])
    cold = TorchSampler(policy).sample([SampleRequest(turn, (0,), PARAMS)])
    computed: list[int] = []
    forward = sampler._runner.forward  # pyright: ignore[reportPrivateUsage]

    def counting(batch: object, wanted: object) -> torch.Tensor:
        computed.append(len(batch.ids))  # type: ignore[attr-defined]
        return forward(batch, wanted)  # type: ignore[arg-type]

    monkeypatch.setattr(sampler._runner, "forward", counting)  # pyright: ignore[reportPrivateUsage]
    warm = sampler.sample([SampleRequest(turn, (0,), PARAMS)])
    assert computed[0] < 16 + 5 + 1, "only the last block and the new message"
    assert bits(warm) == bits(cold)


def test_a_prefix_of_older_weights_is_never_used() -> None:
    policy = tiny_policy()
    sampler = TorchSampler(policy)
    sampler.sample(mixed())
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.05)
    policy.publish()
    assert bits(sampler.sample(mixed())) == bits(TorchSampler(policy).sample(mixed()))


def test_weights_that_change_in_flight_label_each_token_with_its_version() -> None:
    policy = tiny_policy()
    policy.end_ids = frozenset()
    sampler = TorchSampler(policy, SamplerSpec(max_rows=4))
    asked = [request(6, 1), request(8, 1, params=replace(PARAMS, max_new_tokens=4))]

    def train(done: int, _: int) -> None:
        if done == 1:  # the short one has ended, the long one goes on under new weights
            with sampler.paused(), torch.no_grad():
                for parameter in policy.model.parameters():
                    parameter.mul_(0.5)
                policy.publish()

    (long,), (short,) = sampler.sample(asked, on_progress=train)
    assert [(s.version, s.count) for s in short.versions] == [(0, 4)]
    assert [(s.version, s.count) for s in long.versions] == [(0, 4), (1, 20)]
    halved = logps_of(policy, asked[0].ids, long)
    assert long.logps[:4].tolist() != pytest.approx(halved[:4], abs=1e-3)


def test_the_memory_budget_bounds_what_is_in_flight_and_everything_still_ends() -> None:
    policy = tiny_policy()
    free = TorchSampler(policy).sample(mixed())
    tight = TorchSampler(policy, SamplerSpec(memory_mb=1))
    pool = tight._pool  # pyright: ignore[reportPrivateUsage]
    pool.__init__(10)
    held: list[int] = []
    results = tight.sample(mixed(), on_progress=lambda *_: held.append(pool.held))
    assert bits(results) == bits(free)
    assert max(held) <= 10
    assert pool.held == 0


def test_after_an_interruption_nothing_is_held_and_sampling_goes_on() -> None:
    policy = tiny_policy()
    sampler = TorchSampler(policy)
    undisturbed = bits(TorchSampler(policy).sample(mixed()))

    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sampler.sample(mixed(), on_progress=interrupt)
    assert sampler._pool.held == 0  # pyright: ignore[reportPrivateUsage]
    assert bits(sampler.sample(mixed())) == undisturbed


def test_a_stop_string_ends_a_sequence_at_the_token_that_completes_it() -> None:
    policy = tiny_policy()
    policy.end_ids = frozenset()
    (free,) = TorchSampler(policy).sample([request(9, 1)])[0]
    text = str(policy.tokenizer.decode(free.ids[4:7]))
    params = replace(PARAMS, stop_strings=(text,))
    (stopped,) = TorchSampler(policy).sample([request(9, 1, params=params)])[0]
    first = next(
        end for end in range(1, 25) if text in str(policy.tokenizer.decode(free.ids[:end]))
    )
    assert stopped.ids.tolist() == free.ids[:first].tolist()
    assert stopped.stop_reason == "stop"


@pytest.mark.parametrize("engine", ["native", "general"])
def test_an_adapter_is_part_of_what_is_sampled(engine: str) -> None:
    spec = ModelSpec(lora=LoraSpec(rank=4))
    policy = tiny_policy("llama", spec)
    with torch.no_grad():
        for name, parameter in policy.trainable().items():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    policy.publish()
    sampler = TorchSampler(policy, SamplerSpec(engine=engine))  # pyright: ignore[reportArgumentType]
    for completion in sampler.sample([request(12)])[0]:
        expected = logps_of(policy, prompt(12, seed=0), completion)
        assert completion.logps.tolist() == pytest.approx(expected, abs=1e-4)


def test_bf16_weights_are_near_and_labelled() -> None:
    policy = tiny_policy()
    sampler = TorchSampler(policy, SamplerSpec(dtype="bf16"))
    assert sampler.engine == "native bf16"
    (completion,) = sampler.sample([request(12, 1)])[0]
    expected = logps_of(policy, prompt(12, seed=0), completion)
    assert completion.logps.tolist() == pytest.approx(expected, abs=0.15)


def test_requests_with_different_parameters_share_a_batch() -> None:
    policy = tiny_policy()
    asked = [
        request(7, params=replace(PARAMS, temperature=t, top_p=p, max_new_tokens=n))
        for t, p, n in ((1.0, 1.0, 9), (0.0, 1.0, 12), (0.7, 0.8, 5))
    ]
    together = bits(TorchSampler(policy).sample(asked))
    assert together == [bits(TorchSampler(policy).sample([one]))[0] for one in asked]


def test_no_request_is_no_work() -> None:
    assert TorchSampler(tiny_policy()).sample([]) == []
    assert TorchSampler(tiny_policy()).sample([SampleRequest(prompt(3), (), PARAMS)]) == [[]]


# --- refusals ------------------------------------------------------------------------------


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(RecipeError, match="at least one token"):
        TorchSampler(tiny_policy()).sample([SampleRequest(prompt(0), (0,), PARAMS)])


@pytest.mark.parametrize("token", [-1, 271, 10**9])
def test_a_token_id_out_of_range_is_refused(token: int) -> None:
    ids = np.array([5, token], np.int32)
    with pytest.raises(ModelError, match=f"token id {token} is outside"):
        TorchSampler(tiny_policy()).sample([SampleRequest(ids, (0,), PARAMS)])


def test_a_sequence_that_alone_exceeds_the_memory_is_refused_with_what_it_needs() -> None:
    policy = tiny_policy()
    policy.config.max_position_embeddings = 100_000
    sampler = TorchSampler(policy, SamplerSpec(memory_mb=1))
    with pytest.raises(RecipeError, match="cache blocks") as raised:
        sampler.sample([request(10, params=replace(PARAMS, max_new_tokens=9_000))])
    assert raised.value.where == "sampler.memory_mb"
    enough = int(raised.value.hint.split()[3])
    TorchSampler(policy, SamplerSpec(memory_mb=enough)).sample([request(10)])


def test_the_native_engine_says_why_it_cannot_run_a_model() -> None:
    with pytest.raises(ModelError, match="not Llama-shaped"):
        TorchSampler(tiny_policy("gpt2"), SamplerSpec(engine="native"))


def test_a_model_that_differs_from_its_kind_takes_the_general_engine() -> None:
    policy = tiny_policy()
    for layer in policy.model.model.layers:  # what attention_bias = true gives a Llama
        layer.self_attn.o_proj.bias = torch.nn.Parameter(torch.ones(64))
    sampler = TorchSampler(policy)
    assert sampler.engine == "general"
    with pytest.raises(ModelError, match="computes something that the kernels do not"):
        TorchSampler(policy, SamplerSpec(engine="native"))


def test_without_a_compiler_the_general_engine_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "headrace.policy.sampler.kernels", lambda: Unavailable("no C compiler was found")
    )
    assert TorchSampler(tiny_policy()).engine == "general"
    with pytest.raises(ModelError, match="no C compiler"):
        TorchSampler(tiny_policy(), SamplerSpec(engine="native"))


# --- memory --------------------------------------------------------------------------------

_THOUSAND_STEPS = """
import sys
sys.path.insert(0, {tests!r})
import numpy as np
from headrace.policy.learner import TorchLearner
from headrace.policy.sampler import TorchSampler
from headrace.protocols import LossSpec, SampleRequest, SamplingParams
from headrace.recipe import LearnerSpec, SamplerSpec
from policy_support import prompt, sample_of, tiny_policy

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

random = np.random.default_rng(0)
policy = tiny_policy()
sampler = TorchSampler(policy, SamplerSpec(memory_mb=2))
learner = TorchLearner(policy, LearnerSpec(), total_steps=1000)
for step in range(1000):
    if step == 200:
        before = resident()
    asked = []
    for place in range(2):
        ids = prompt(int(random.integers(1, 120)), seed=2 * step + place)
        params = SamplingParams(max_new_tokens=int(random.integers(1, 8)))
        asked.append(SampleRequest(ids, (step, step + 1), params))
    drawn = sampler.sample(asked)
    whole = np.concatenate([asked[0].ids, drawn[0][0].ids])
    trainable = np.arange(len(whole)) >= len(asked[0].ids)
    learner.forward_backward([sample_of(whole, trainable, weight=0.01)], LossSpec())
    learner.optim_step()
    learner.publish()
print(resident() - before)
"""


@pytest.mark.slow
def test_memory_is_flat_over_a_thousand_steps_of_mixed_lengths() -> None:
    code = _THOUSAND_STEPS.format(tests=str(Path(__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=280
    )
    assert int(done.stdout) < 4 << 20
