"""Model servers as judges, against a real HTTP server in this process."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.errors import UsageError
from headrace.types import Json
from headrace.verify.judge import (
    RUBRIC,
    Declined,
    Endpoint,
    EndpointScorer,
    EndpointSpec,
    Linear,
    Refused,
    RewardModel,
    RubricJudge,
    Unreachable,
)
from headrace.verify.judge.gullible import GullibleJudge
from headrace.verify.kinds import Specimens
from judge_support import ModelServer, Reply, judged_task, serving

AT_ONCE = {"Retry-After": "0"}


@pytest.fixture(scope="module")
def server() -> Generator[ModelServer]:
    with serving() as model:
        yield model


def endpoint(server: ModelServer, **changes: Any) -> Endpoint:
    options: dict[str, Any] = {
        "base_url": f"{server.address}/v1",
        "model": "judge-7b",
        "deadline_s": 5.0,
    }
    return Endpoint(EndpointSpec(**{**options, **changes}))


def ask(scribe: Endpoint) -> str:
    return scribe.complete("Say hello.", max_tokens=9)


def test_a_question_is_greedy_and_carries_the_key(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "s3cret")
    server.play(lambda number, body: Reply.chat("hello"))
    assert ask(endpoint(server, key_variable="JUDGE_KEY")) == "hello"
    assert server.paths == ["/v1/chat/completions"]
    assert server.keys == ["Bearer s3cret"]
    assert server.requests[0] == {
        "model": "judge-7b",
        "messages": [{"role": "user", "content": "Say hello."}],
        "temperature": 0,
        "max_tokens": 9,
    }


@pytest.mark.parametrize("status", [429, 500, 503, 529])
def test_what_the_world_does_is_tried_again(server: ModelServer, status: int) -> None:
    fine = Reply.chat("hello")
    bad = Reply(status=status, headers=AT_ONCE)
    server.play(lambda number, body: fine if number == 2 else bad)
    assert ask(endpoint(server)) == "hello"
    assert len(server.requests) == 3


def test_retries_end(server: ModelServer) -> None:
    server.play(lambda number, body: Reply(status=503, headers=AT_ONCE, body="busy"))
    with pytest.raises(Unreachable, match="503"):
        ask(endpoint(server, retries=2))
    assert len(server.requests) == 3


@pytest.mark.parametrize("body", ["", "<html>", '{"choices": [{"mess'])
def test_half_a_reply_is_an_accident(server: ModelServer, body: str) -> None:
    server.play(lambda number, _: Reply(body=body))
    with pytest.raises(Unreachable):
        ask(endpoint(server, retries=0))


@pytest.mark.parametrize("body", ["[]", "{}", '{"choices": []}', '{"choices": [{"message": 1}]}'])
def test_a_reply_of_another_form_is_no_verdict(server: ModelServer, body: str) -> None:
    server.play(lambda number, _: Reply(body=body))
    with pytest.raises(Declined):
        ask(endpoint(server))
    assert len(server.requests) == 1


def test_a_request_that_is_not_taken_is_not_repeated(server: ModelServer) -> None:
    server.play(lambda number, body: Reply(status=400, body="context length exceeded"))
    with pytest.raises(Declined, match="context length"):
        ask(endpoint(server))
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [301, 401, 403, 404])
def test_a_wrong_key_or_address_stops_everything_and_is_not_repeated(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "s3cret")
    moved = {"Location": f"{server.address}/elsewhere"}
    server.play(lambda number, body: Reply(status=status, headers=moved))
    scribe = endpoint(server, key_variable="JUDGE_KEY")
    with pytest.raises(Refused) as caught:
        RubricJudge(scribe).judge(judged_task({"items": [{"name": "a", "text": "b"}]}), "Canberra")
    assert len(server.requests) == 1
    assert "JUDGE_KEY" in caught.value.hint
    assert "s3cret" not in repr(caught.value) + str(caught.value) + caught.value.hint
    assert "s3cret" not in scribe.identity


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(Unreachable):
        ask(Endpoint(EndpointSpec(base_url=address, model="m", retries=0)))


@pytest.mark.parametrize("slow", [{"delay": 1.0}, {"drip": 0.02}])
def test_an_answer_that_comes_too_late_does_not_come(
    server: ModelServer, slow: dict[str, Any]
) -> None:
    body = json.dumps({"choices": [{"message": {"content": "hello"}}]})
    server.play(lambda number, _: Reply(body=body, **slow))
    started = time.monotonic()
    with pytest.raises(Unreachable):
        ask(endpoint(server, deadline_s=0.3))
    assert time.monotonic() - started < 0.9


def test_only_so_many_questions_at_once_and_waiting_costs_no_deadline() -> None:
    with serving() as server, ThreadPoolExecutor(10) as threads:
        server.play(lambda number, body: Reply.chat("hello", delay=0.12))
        scribe = endpoint(server, parallel=2, deadline_s=0.45, retries=0)
        assert list(threads.map(lambda _: ask(scribe), range(10))) == ["hello"] * 10
        assert server.busiest == 2


def test_a_rubric_judge_over_the_wire(server: ModelServer) -> None:
    gullible = GullibleJudge()

    def script(number: int, body: Json) -> Reply:
        return Reply.chat(gullible.complete(body["messages"][0]["content"], max_tokens=1))

    server.play(script)
    domain = RUBRIC.specimens()
    assert isinstance(domain, Specimens)
    task = domain.task(0, 0)
    judge = RubricJudge(endpoint(server))
    assert judge.judge(task, domain.reference(task) or "").score == 1.0
    assert judge.judge(task, domain.wrong(task)[-1]).score == 0.0
    server.play(lambda number, body: Reply(status=503, headers=AT_ONCE))
    lost = judge.judge(task, domain.reference(task) or "")
    assert (lost.score, lost.fault) == (None, "infrastructure")


@pytest.mark.parametrize(
    ("data", "reward"), [("[1.5]", 1.5), ("[[0.5], [2.5]]", 2.5), ("-3", -3.0)]
)
def test_a_reward_model_over_the_wire(server: ModelServer, data: str, reward: float) -> None:
    server.play(lambda number, _: Reply(body=f'{{"data": [{{"index": 0, "data": {data}}}]}}'))
    spec = EndpointSpec(base_url=server.address, model="reward-1b", retries=0)
    assert EndpointScorer(spec).score("Which city is it?", "Canberra") == reward
    assert server.paths == ["/pooling"]
    assert [m["role"] for m in server.requests[0]["messages"]] == ["user", "assistant"]


@pytest.mark.parametrize("data", ["[]", "null", "[true]", '"1"'])
def test_a_reward_that_is_no_number_is_no_score(server: ModelServer, data: str) -> None:
    server.play(lambda number, _: Reply(body=f'{{"data": [{{"data": {data}}}]}}'))
    spec = EndpointSpec(base_url=server.address, model="reward-1b")
    verdict = RewardModel(EndpointScorer(spec), Linear(low=0, high=1)).judge(
        judged_task(None), "Canberra"
    )
    assert (verdict.score, verdict.fault) == (None, "verifier")


@pytest.mark.parametrize(
    "changes",
    [
        {"base_url": "localhost:8000"},
        {"base_url": "ftp://localhost"},
        {"base_url": "https://user:word@localhost/v1"},
        {"base_url": "https://localhost/v1?key=1"},
        {"retries": -1},
        {"parallel": 0},
        {"deadline_s": 0.0},
    ],
)
def test_a_spec_that_cannot_work_is_refused(changes: dict[str, Any]) -> None:
    options: dict[str, Any] = {"base_url": "http://localhost:8000/v1", "model": "m", **changes}
    with pytest.raises(UsageError):
        EndpointSpec(**options)


def test_a_missing_key_is_named_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    spec = EndpointSpec(base_url="http://localhost:1", model="m", key_variable="NO_SUCH_KEY")
    with pytest.raises(UsageError, match="NO_SUCH_KEY"):
        Endpoint(spec)
