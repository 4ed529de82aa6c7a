"""Requests that come and go while others are in flight."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from headrace.environments.single_turn import Group, SingleTurn
from headrace.environments.streaming import Stream
from headrace.policy.sampler import TorchSampler
from headrace.protocols import Answer, Completion, SampleRequest, SamplingParams
from headrace.recipe import SamplerSpec
from headrace.types import Ids, Message, Task, VerifierRef
from policy_support import prompt, tiny_policy

PARAMS = SamplingParams(max_new_tokens=12)
REFERENCE = SamplerSpec(engine="reference")


def request(length: int, seeds: int, new: int = 12) -> SampleRequest:
    params = SamplingParams(max_new_tokens=new)
    return SampleRequest(prompt(length, length), tuple(range(seeds)), params)


def drain(sampler: TorchSampler) -> dict[int, Answer]:
    answers: dict[int, Answer] = {}
    while sampler.busy:
        answers |= sampler.advance()
    return answers


def test_what_is_submitted_in_flight_gets_what_it_would_have_got_alone() -> None:
    sampler = TorchSampler(tiny_policy(), SamplerSpec())
    (alone,) = sampler.sample([request(40, 3)])
    first = sampler.submit([request(20, 2)])
    sampler.advance()
    second = sampler.submit([request(40, 3)])
    answers = drain(sampler)
    assert set(answers) == {*first, *second}
    found = answers[second[0]].completions
    assert [c.ids.tolist() for c in found] == [c.ids.tolist() for c in alone]
    assert [c.seed for c in found] == [0, 1, 2]


def test_a_call_beside_requests_in_flight_loses_none_of_them() -> None:
    sampler = TorchSampler(tiny_policy(), SamplerSpec())
    (ticket,) = sampler.submit([request(20, 2, new=40)])
    sampler.advance()
    assert len(sampler.sample([request(30, 1)])[0]) == 1
    assert [len(c.ids) for c in drain(sampler)[ticket].completions] == [40, 40]


def test_a_request_ends_when_enough_of_its_sequences_have() -> None:
    """Of sequences with several lengths the first to end are kept, by their seeds."""
    policy = tiny_policy()
    sampler = TorchSampler(policy, SamplerSpec())
    params = SamplingParams(max_new_tokens=60, stop_ids=tuple(range(10, 60)))
    asked = SampleRequest(prompt(20), tuple(range(8)), params)
    (whole,) = sampler.sample([asked])
    lengths = sorted(len(c.ids) for c in whole)
    assert lengths[3] < lengths[-1]
    (ticket,) = sampler.submit([asked], enough=[4])
    answer = drain(sampler)[ticket]
    assert sorted(len(c.ids) for c in answer.completions) == lengths[:4]
    assert len(answer.completions) + len(answer.surplus) == 8
    for completion in answer.completions:
        assert completion.ids.tolist() == whole[completion.seed].ids.tolist()
    for completion in answer.surplus:
        full = whole[completion.seed].ids.tolist()
        assert completion.ids.tolist() == full[: len(completion.ids)]


@pytest.mark.parametrize("passes", [0, 1, 3, 20])
def test_cancelling_at_any_time_frees_everything_and_disturbs_nobody(passes: int) -> None:
    """Prompts of many blocks that share a prefix, prefilled in small chunks."""
    spec = SamplerSpec(prefill_tokens=16)
    shared = prompt(64, 5)

    def long(tail: int) -> SampleRequest:
        ids = np.concatenate([shared, prompt(10, tail)]).astype(np.int32)
        return SampleRequest(ids, (1, 2, 3), SamplingParams(max_new_tokens=30))

    sampler = TorchSampler(tiny_policy(), spec)
    (alone,) = sampler.sample([long(2)])
    sampler = TorchSampler(tiny_policy(), spec)
    first, second = sampler.submit([long(1), long(2)])
    for _ in range(passes):
        sampler.advance()
    sampler.cancel(first)
    answers = drain(sampler)
    assert set(answers) == {second}
    kept = answers[second].completions
    assert [c.ids.tolist() for c in kept] == [c.ids.tolist() for c in alone]
    assert sampler._pool.held == 0  # pyright: ignore[reportPrivateUsage]


class Text:
    """A renderer over byte tokens."""

    def prompt(self, messages: object, *, system: str | None) -> Ids:
        del messages, system
        return prompt(20)

    def text(self, ids: Ids) -> str:
        return " ".join(map(str, ids.tolist()))


def group(name: str, size: int = 2, spare: int = 0) -> Group:
    task = Task(
        domain="d",
        problem=name,
        tier=0,
        split="train",
        messages=(Message.of("user", name),),
        verifier=VerifierRef("v", "1"),
        answer=None,
    )
    return Group(name, task, size, spare)


def test_groups_are_played_beside_each_other_while_the_loop_runs() -> None:
    sampler = TorchSampler(tiny_policy(), SamplerSpec())
    player = SingleTurn(sampler=sampler, renderer=Text(), params=PARAMS, seed=1)
    together = player.play([group("a"), group("b")])
    told: list[tuple[int, int]] = []
    cut: list[tuple[str, int]] = []

    def surplus(of: Group, completions: object) -> None:
        assert isinstance(completions, list)
        cut.append((of.id, len(completions)))

    async def story() -> None:
        stream = Stream(sampler, lambda done, total: told.append((done, total)), surplus)
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.ensure_future(tick())
        first, second = stream.begin(player, [group("a"), group("b")])
        a, b = await asyncio.gather(first, second)
        assert [t.id for t in [*a, *b]] == ["a/0", "a/1", "b/0", "b/1"]
        assert [t.completion for t in [*a, *b]] == [t.completion for t in together]
        assert ticks >= 12  # one turn of the loop for each pass
        (third,) = stream.begin(player, [group("c", spare=3)])
        assert len(await third) == 2
        assert cut == [("c", 3)]
        (fourth,) = stream.begin(player, [group("d")])
        await asyncio.sleep(0)
        fourth.cancel()
        await asyncio.sleep(0.01)
        assert not sampler.busy
        ticking.cancel()

    asyncio.run(story())
    assert (4, 4) in told


def test_what_a_pass_raises_reaches_everybody_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = TorchSampler(tiny_policy(), SamplerSpec())
    player = SingleTurn(sampler=sampler, renderer=Text(), params=PARAMS, seed=1)

    def broken(version: int) -> list[Completion]:
        raise ZeroDivisionError(version)

    async def story() -> None:
        stream = Stream(sampler)
        tasks = stream.begin(player, [group("a"), group("b")])
        monkeypatch.setattr(sampler._batch, "step", broken)  # pyright: ignore[reportPrivateUsage]
        for task in tasks:
            with pytest.raises(ZeroDivisionError):
                await task

    asyncio.run(story())
