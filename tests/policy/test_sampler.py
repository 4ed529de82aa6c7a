from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from headrace.errors import RecipeError
from headrace.policy.sampler import TorchSampler
from headrace.protocols import Completion, SampleRequest, SamplingParams
from headrace.recipe import SamplerSpec
from policy_support import prompt, tiny_policy

PARAMS = SamplingParams(max_new_tokens=12)
ARCHITECTURES = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gpt2"]


def requests(params: SamplingParams = PARAMS, size: int = 3) -> list[SampleRequest]:
    return [
        SampleRequest(prompt(4 + 3 * i, seed=i), tuple(range(10 * i, 10 * i + size)), params)
        for i in range(3)
    ]


def spoken(results: list[list[Completion]]) -> list[list[list[int]]]:
    return [[c.ids.tolist() for c in row] for row in results]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_sampling_agrees_with_a_plain_forward_at_every_token(architecture: str) -> None:
    policy = tiny_policy(architecture)
    results = TorchSampler(policy).sample(requests(replace(PARAMS, temperature=0.0), size=1))
    for request, (completion,) in zip(requests(), results, strict=True):
        ids = request.ids.tolist()
        for token in completion.ids.tolist():
            with torch.no_grad():
                logits = policy.model(input_ids=torch.tensor([ids])).logits[0, -1]
            assert logits[token] >= logits.max() - 1e-4
            ids.append(token)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_log_probabilities_are_those_of_the_distribution_sampled_from(architecture: str) -> None:
    policy = tiny_policy(architecture)
    results = TorchSampler(policy).sample(requests(replace(PARAMS, temperature=0.7)))
    for request, row in zip(requests(), results, strict=True):
        for completion in row:
            whole = torch.tensor(np.concatenate([request.ids, completion.ids])).long()
            with torch.no_grad():
                logits = policy.model(input_ids=whole[None]).logits[0] / 0.7
            told = torch.log_softmax(logits[len(request.ids) - 1 : -1], -1)
            expected = told.gather(1, torch.tensor(completion.ids).long()[:, None])[:, 0]
            assert completion.logps.tolist() == pytest.approx(expected.tolist(), abs=2e-4)


def test_a_sequence_does_not_depend_on_its_neighbours_randomness() -> None:
    sampler = TorchSampler(tiny_policy())
    together = sampler.sample(requests())
    request = requests()[1]
    others = [replace_seeds(r, 1000) if i != 1 else r for i, r in enumerate(requests())]
    assert spoken(sampler.sample(others))[1] == spoken(together)[1]
    assert spoken(sampler.sample([request]))[0] == spoken(together)[1]


def replace_seeds(request: SampleRequest, shift: int) -> SampleRequest:
    return SampleRequest(request.ids, tuple(s + shift for s in request.seeds), request.params)


def test_the_same_requests_give_the_same_bits() -> None:
    first, second = (TorchSampler(tiny_policy()).sample(requests()) for _ in range(2))
    assert spoken(first) == spoken(second)
    for left, right in zip(first, second, strict=True):
        for a, b in zip(left, right, strict=True):
            assert a.logps.tobytes() == b.logps.tobytes()


def test_results_come_back_in_the_order_of_requests_and_seeds() -> None:
    results = TorchSampler(tiny_policy(), SamplerSpec(max_rows=2)).sample(requests())
    assert [[c.seed for c in row] for row in results] == [[0, 1, 2], [10, 11, 12], [20, 21, 22]]
    assert spoken(results) == spoken(TorchSampler(tiny_policy()).sample(requests()))


def test_a_stop_token_ends_a_sequence_and_is_kept() -> None:
    policy = tiny_policy()
    free = TorchSampler(policy).sample(requests())[2][0].ids.tolist()
    stopped = TorchSampler(policy).sample(requests(replace(PARAMS, stop_ids=(free[3],))))[2][0]
    assert stopped.ids.tolist() == free[: free.index(free[3]) + 1]
    assert stopped.stop_reason == "stop"


def test_every_end_token_of_the_model_ends_a_sequence() -> None:
    policy = tiny_policy()
    free = TorchSampler(policy).sample(requests())[2][0].ids.tolist()
    policy.end_ids = frozenset({2, free[2]})
    ended = TorchSampler(policy).sample(requests())[2][0]
    assert ended.ids.tolist() == free[: free.index(free[2]) + 1]


def test_the_limit_cuts_and_says_so() -> None:
    for row in TorchSampler(tiny_policy()).sample(requests()):
        for completion in row:
            if completion.stop_reason == "length":
                assert len(completion.ids) == PARAMS.max_new_tokens
            else:
                assert completion.ids[-1] == 2


def test_every_token_carries_the_version_that_wrote_it() -> None:
    policy = tiny_policy()
    policy.publish()
    completion = TorchSampler(policy).sample(requests())[0][0]
    assert [(s.version, s.count) for s in completion.versions] == [(1, len(completion.ids))]


def test_supports_hold_the_drawn_token_and_reproduce_its_probability() -> None:
    policy = tiny_policy()
    results = TorchSampler(policy).sample(requests(replace(PARAMS, top_p=0.5, top_k=20)))
    completion = results[0][0]
    assert completion.support is not None
    ids = requests()[0].ids.tolist()
    for position, token in enumerate(completion.ids.tolist()):
        row = completion.support.row(position)
        assert token in row
        assert len(row) <= 20
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([ids])).logits[0, -1]
        inside = torch.log_softmax(logits[torch.tensor(row).long()], -1)
        expected = inside[row.tolist().index(token)].item()
        assert completion.logps[position] == pytest.approx(expected, abs=2e-4)
        ids.append(token)


def test_a_prompt_that_does_not_fit_the_context_is_refused_with_a_hint() -> None:
    with pytest.raises(RecipeError, match="do not fit") as raised:
        TorchSampler(tiny_policy()).sample([SampleRequest(prompt(1020), (0,), PARAMS)])
    assert "max_new_tokens" in raised.value.hint


def test_progress_counts_finished_sequences_up_to_all_of_them() -> None:
    told: list[tuple[int, int]] = []
    TorchSampler(tiny_policy()).sample(requests(), on_progress=lambda d, t: told.append((d, t)))
    assert told[-1] == (9, 9)
