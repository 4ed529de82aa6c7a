"""Teachers: a model in this process and a server give the same numbers, or say why not."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from headrace.errors import InfrastructureError, ModelError, UsageError
from headrace.policy.engine import TorchPolicy
from headrace.policy.teacher import (
    EndpointTeacher,
    LocalTeacher,
    Patience,
    first_difference,
    open_teacher,
)
from headrace.policy.tiny import tiny_tokenizer, write_tiny
from headrace.recipe import LearnerSpec
from headrace.types import Json, Sample
from judge_support import ModelServer, Reply, serving
from policy_support import some_samples, tiny_policy

QUICK = Patience(deadline_s=5.0, retries=2, pause_s=0.01, parallel=2)


@pytest.fixture(scope="module")
def server() -> Generator[ModelServer]:
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def policy() -> TorchPolicy:
    return tiny_policy()


def plain_logprobs(policy: TorchPolicy, ids: list[int]) -> list[float]:
    """Of every token but the first, from the library's own forward."""
    row = torch.tensor(ids)
    with torch.no_grad():
        logps = policy.model(input_ids=row[None]).logits[0].log_softmax(dim=-1)
    return logps[torch.arange(len(ids) - 1), row[1:]].tolist()


def scored(policy: TorchPolicy, **changes: Json) -> Callable[[int, Json], Reply]:
    """A server that scores what it is asked about with `policy`, as vLLM spells it."""
    tokenizer = tiny_tokenizer()

    def script(_number: int, body: Json) -> Reply:
        told = {
            "tokens": [tokenizer.decode([id]) for id in body["prompt"]],
            "token_logprobs": [None, *plain_logprobs(policy, body["prompt"])],
            "top_logprobs": None,
            **changes,
        }
        return Reply(body=json.dumps({"choices": [{"text": "", "logprobs": told}]}))

    return script


def asking(server: ModelServer, patience: Patience = QUICK, path: str = "/v1") -> EndpointTeacher:
    return EndpointTeacher(server.address + path, tiny_tokenizer(), patience)


# --- a model in this process ---------------------------------------------------------------


def test_a_local_teacher_scores_what_was_written(policy: TorchPolicy) -> None:
    samples = some_samples()
    found = LocalTeacher(tiny_policy(), LearnerSpec()).logprobs(samples)
    for sample, values in zip(samples, found, strict=True):
        expected = np.array([0.0, *plain_logprobs(policy, sample.ids.tolist())])
        assert np.allclose(values, np.where(sample.trainable, expected, 0), atol=1e-5)


def test_a_teacher_speaks_at_temperature_one_whatever_the_student_did() -> None:
    teacher = LocalTeacher(tiny_policy(), LearnerSpec())
    samples = some_samples()
    hot = [replace(sample, temperature=0.5 + i) for i, sample in enumerate(samples)]
    for a, b in zip(teacher.logprobs(samples), teacher.logprobs(hot), strict=True):
        assert np.allclose(a, b, atol=1e-5)


def test_a_teacher_is_opened_from_a_model_source(tmp_path: Path) -> None:
    write_tiny("llama", tmp_path, seed=7)
    teacher = open_teacher(f"path:{tmp_path}", tiny_tokenizer())
    samples = some_samples(2)
    other = LocalTeacher(tiny_policy(), LearnerSpec()).logprobs(samples)
    for found, unlike in zip(teacher.logprobs(samples), other, strict=True):
        assert not np.allclose(found, unlike, atol=0.1)


def with_token(text: str) -> PreTrainedTokenizerBase:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([text])
    return tokenizer


def test_another_tokenizer_is_refused_at_its_first_difference(tmp_path: Path) -> None:
    write_tiny("llama", tmp_path)
    with pytest.raises(ModelError, match="token 271 is 'flume' here and nothing there"):
        open_teacher(f"path:{tmp_path}", with_token("flume"))


def test_the_first_difference_of_two_tokenizers() -> None:
    assert first_difference(tiny_tokenizer(), tiny_tokenizer()) is None
    told = first_difference(with_token("flume"), with_token("weir"))
    assert told == "token 271 is 'flume' here and 'weir' there"


# --- a server ------------------------------------------------------------------------------


def test_a_server_gives_the_numbers_of_the_model_it_serves(
    server: ModelServer, policy: TorchPolicy
) -> None:
    server.play(scored(policy))
    samples = some_samples()
    teacher = open_teacher(f"{server.address}/v1", tiny_tokenizer())
    expected = LocalTeacher(tiny_policy(), LearnerSpec()).logprobs(samples)
    for found, local in zip(teacher.logprobs(samples), expected, strict=True):
        assert np.allclose(found, local, atol=1e-5)
    assert set(server.paths) == {"/v1/completions"}
    asked = server.requests[0]
    assert (asked["echo"], asked["logprobs"], asked["max_tokens"]) == (True, 0, 0)
    assert "model" not in asked
    assert server.keys[0] is None
    prompts = sorted(request["prompt"] for request in server.requests)
    assert prompts == sorted(sample.ids.tolist() for sample in samples)


def test_the_address_names_the_model_and_the_environment_the_key(
    server: ModelServer, policy: TorchPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TEACHER_KEY", "sesame")
    server.play(scored(policy))
    asking(server, path="/v1/#large").logprobs(some_samples(1))
    assert server.requests[0]["model"] == "large"
    assert server.paths == ["/v1/completions"]
    assert server.keys == ["Bearer sesame"]


def test_a_sample_without_a_trainable_token_is_not_asked_about(server: ModelServer) -> None:
    server.play(lambda number, body: Reply(status=500))
    (sample,) = some_samples(1)
    bare = replace(sample, trainable=np.zeros(len(sample.ids), np.bool_))
    assert not asking(server).logprobs([bare])[0].any()
    assert server.requests == []


def one_sample() -> list[Sample]:
    return some_samples(1)


def test_what_passes_is_tried_again(server: ModelServer, policy: TorchPolicy) -> None:
    good = scored(policy)
    replies = [Reply(status=503), Reply(body="<html>"), None]

    def script(number: int, body: Json) -> Reply:
        return replies[number] or good(number, body)

    server.play(script)
    assert asking(server).logprobs(one_sample())[0].any()
    assert len(server.requests) == 3


def test_a_server_that_stays_down_is_infrastructure(server: ModelServer) -> None:
    server.play(lambda number, body: Reply(status=503, body="loading"))
    with pytest.raises(InfrastructureError, match="503") as raised:
        asking(server).logprobs(one_sample())
    assert len(server.requests) == 1 + QUICK.retries
    assert raised.value.where == f"{server.address}/v1"


@pytest.mark.parametrize("reply", [{"delay": 0.6}, {"drip": 0.02}])
def test_an_answer_that_comes_too_late_is_infrastructure(
    server: ModelServer, policy: TorchPolicy, reply: dict[str, float]
) -> None:
    good = scored(policy)
    server.play(lambda number, body: replace(good(number, body), **reply))
    patience = replace(QUICK, deadline_s=0.3)
    with pytest.raises(InfrastructureError, match="no answer"):
        asking(server, patience).logprobs(one_sample())


def test_nobody_at_the_address_is_infrastructure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    teacher = EndpointTeacher(f"http://127.0.0.1:{port}/v1", tiny_tokenizer(), QUICK)
    with pytest.raises(InfrastructureError, match="no answer"):
        teacher.logprobs(one_sample())


def test_what_a_server_refuses_is_said_once(server: ModelServer) -> None:
    server.play(lambda number, body: Reply(status=404, body="no such model"))
    with pytest.raises(ModelError, match="no such model"):
        asking(server).logprobs(one_sample())
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "body",
    [
        "{}",
        "[]",
        '{"choices": []}',
        '{"choices": [{"logprobs": null}]}',
        '{"choices": [{"logprobs": {"tokens": [], "token_logprobs": []}}]}',
        '{"choices": [{"logprobs": {"tokens": "abcdefgh", "token_logprobs": "abcdefgh"}}]}',
    ],
)
def test_an_answer_of_another_form_is_refused(server: ModelServer, body: str) -> None:
    server.play(lambda number, asked: Reply(body=body))
    with pytest.raises(ModelError, match="does not score"):
        asking(server).logprobs(one_sample())


@pytest.mark.parametrize("value", [None, "low", True, float("nan")])
def test_log_probabilities_that_are_no_numbers_are_refused(
    server: ModelServer, policy: TorchPolicy, value: Json
) -> None:
    length = len(one_sample()[0].ids)
    server.play(scored(policy, token_logprobs=[None] + [-1.0] * (length - 2) + [value]))
    with pytest.raises(ModelError, match="does not score"):
        asking(server).logprobs(one_sample())


def test_a_server_with_another_tokenizer_is_refused_at_its_first_difference(
    server: ModelServer, policy: TorchPolicy
) -> None:
    tokenizer = tiny_tokenizer()
    (plain,) = some_samples(1)
    ids = np.array([*plain.ids[:-2], *tokenizer.encode("ab")], np.int32)
    sample = replace(plain, ids=ids)
    theirs = [tokenizer.decode([id]) for id in ids.tolist()]
    theirs[-1] = "flume"
    server.play(scored(policy, tokens=theirs))
    with pytest.raises(ModelError, match="is 'b' here and 'flume' there"):
        asking(server).logprobs([sample])


@pytest.mark.parametrize(
    "address", ["http://", "https:///v1", "http://me:secret@host/v1", "http://host/v1?key=1"]
)
def test_an_address_that_is_no_place_is_refused(address: str) -> None:
    with pytest.raises(UsageError) as raised:
        open_teacher(address, tiny_tokenizer())
    assert "secret" not in str(raised.value)
