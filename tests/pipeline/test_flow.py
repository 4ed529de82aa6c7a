"""The flow over a real queue, with stages that only take (virtual) time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from headrace.environments.single_turn import Group
from headrace.errors import InfrastructureError
from headrace.pipeline.broker import Broker, open_broker
from headrace.pipeline.flow import Flow, FlowSpec, Purpose
from headrace.pipeline.virtual import VirtualClock, run
from headrace.pipeline.waits import Waits, read_waits
from headrace.types import Message, Task, Trajectory, Turn, Verdict, VerifierRef, VersionSpan

REF = VerifierRef("timed", "1")


def group(name: str, domain: str = "a", size: int = 2) -> Group:
    task = Task(
        domain=domain,
        problem=name,
        tier=0,
        split="train",
        messages=(Message.of("user", name),),
        verifier=REF,
        answer=None,
    )
    return Group(name, task, size)


def attempts(of: Group) -> list[Trajectory]:
    turn = Turn(
        role="assistant",
        text="x",
        ids=np.array([1], np.int32),
        sampled=np.ones(1, np.bool_),
        logps=np.zeros(1, np.float32),
        versions=(VersionSpan(0, 1),),
        stop_reason="stop",
    )
    return [
        Trajectory(task=of.task, group=of.id, attempt=n, seed=n, turns=(turn,), ending="finished")
        for n in range(of.size)
    ]


@dataclass
class Timed:
    """Stages that take seconds: playing `play`, judging `judge(attempt id)`."""

    clock: VirtualClock
    play: float = 1.0
    seconds: Callable[[str], float] = lambda attempt: 1.0
    failing: dict[str, int] = field(default_factory=dict[str, int])
    began: dict[str, float] = field(default_factory=dict[str, float])
    judged: dict[str, float] = field(default_factory=dict[str, float])
    kept: list[str] = field(default_factory=list[str])
    at_once: int = 0
    most: int = 0

    def begin(
        self, groups: Sequence[Group], purpose: Purpose
    ) -> Sequence[Awaitable[list[Trajectory]]]:
        for g in groups:
            self.began[g.id] = self.clock.now()
        return [asyncio.ensure_future(self._play(g)) for g in groups]

    async def _play(self, of: Group) -> list[Trajectory]:
        await asyncio.sleep(self.play)
        return attempts(of)

    async def judge(self, attempt: Trajectory) -> Trajectory:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(self.seconds(attempt.id))
        self.at_once -= 1
        if self.failing.get(attempt.id, 0) > 0:
            self.failing[attempt.id] -= 1
            verdict = Verdict(score=None, verifier=REF, fault="infrastructure", evidence="down")
            return replace(attempt, verdict=verdict)
        self.judged[attempt.id] = self.clock.now()
        return attempt.judged(Verdict(score=1.0, verifier=REF))

    async def keep(self, judged: Trajectory, purpose: Purpose) -> None:
        self.kept.append(judged.id)

    def cost(self, group: Group) -> float:
        return float(group.size)


@dataclass
class World:
    clock: VirtualClock
    stages: Timed
    flow: Flow
    broker: Broker
    waits: Waits
    arrived: list[str]


def in_flow(folder: Path, story: Callable[[World], Awaitable[None]], **spec: float) -> World:
    """Run `story` inside a flow in virtual time."""
    clock = VirtualClock()
    stages = Timed(clock)
    broker = open_broker(f"sqlite:///{folder / 'queue.sqlite'}", clock=clock)
    waits = Waits(clock, folder / "waits.json")
    arrived: list[str] = []
    flow = Flow(
        FlowSpec(**{"inference": 4, "verdicts": 2, **spec}),  # type: ignore[arg-type]
        stages,
        broker,
        clock,
        waits,
        arrived=lambda g, _: arrived.append(g.id),
    )
    world = World(clock, stages, flow, broker, waits, arrived)

    async def told() -> None:
        async with flow:
            await story(world)

    with contextlib.closing(broker):
        run(told(), clock=clock)
    return world


def test_a_batch_is_played_together_and_judged_two_at_a_time(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        groups = [group(f"g{n}") for n in range(3)]
        world.flow.admit(groups, batch="b")
        assert not world.stages.began  # a batch is played when it is asked for
        await world.flow.play("b")
        assert world.clock.now() == pytest.approx(1.0, abs=0.01)
        await world.flow.ready(["g0", "g1", "g2"])
        assert world.clock.now() == pytest.approx(1.0 + 3.0, abs=0.1)  # 6 verdicts, 2 at a time
        assert [a.score for a in world.flow.take(["g1"])] == [1.0, 1.0]

    world = in_flow(tmp_path, story)
    assert world.stages.most == 2
    assert sorted(world.arrived) == ["g0", "g1", "g2"]


def test_the_next_batch_is_played_while_verdicts_are_awaited(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.flow.admit([group("first")], batch="1")
        await world.flow.play("1")
        world.flow.admit([group("second")], batch="2")
        await world.flow.play("2")
        assert world.clock.now() == pytest.approx(2.0, abs=0.01)
        assert world.flow.is_ready("first")
        await world.flow.ready(["second"])
        assert world.clock.now() == pytest.approx(3.0, abs=0.1)

    in_flow(tmp_path, story)


def test_continuous_play_never_exceeds_the_inference_slots(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.flow.play_continuously()
        world.flow.admit([group(f"g{n}") for n in range(6)])
        await world.flow.ready([f"g{n}" for n in range(6)])
        starts = sorted(world.stages.began.values())
        # two groups of two attempts fill four slots
        assert starts == pytest.approx([0, 0, 1, 1, 2, 2], abs=0.05)

    in_flow(tmp_path, story, verdicts=100)


def test_a_slow_domain_does_not_hold_up_the_verdicts_of_another(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.stages.seconds = lambda attempt: 50.0 if attempt.startswith("slow") else 0.1
        world.flow.admit([group("slow", "slow"), group("quick", "quick")], batch="b")
        await world.flow.play("b")
        await world.flow.ready(["quick"])
        assert world.clock.now() < 2.0

    in_flow(tmp_path, story, verdicts=3)


def test_what_the_infrastructure_prevented_is_tried_again_and_then_counts_as_unjudged(
    tmp_path: Path,
) -> None:
    async def story(world: World) -> None:
        world.stages.failing = {"g/0": 1, "g/1": 10_000}
        world.flow.admit([group("g")], batch="b")
        await world.flow.play("b")
        await world.flow.ready(["g"])
        first, second = world.flow.take(["g"])
        assert first.score == 1.0
        assert second.score is None
        assert second.verdict is not None
        assert second.verdict.fault == "infrastructure"

    in_flow(tmp_path, story)


def test_a_wait_is_written_down_and_given_up_at_its_deadline(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.stages.seconds = lambda attempt: 1e6
        world.flow.admit([group("g")], batch="b")
        await world.flow.play("b")
        waiting = asyncio.ensure_future(world.flow.ready(["g"]))
        await asyncio.sleep(3.0)
        (wait,) = read_waits(tmp_path / "waits.json")
        assert (wait.what, wait.on) == ("verdicts", "g (2 of 2 verdicts missing)")
        with pytest.raises(InfrastructureError, match=r"g \(2 of 2 verdicts missing\)"):
            await waiting
        assert world.clock.now() == pytest.approx(11.0, abs=1.0)

    in_flow(tmp_path, story, patience_s=10.0)
    assert read_waits(tmp_path / "waits.json") == []


def test_a_programming_error_in_a_stage_reaches_whoever_waits(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        def broken(attempt: str) -> float:
            raise ZeroDivisionError(attempt)

        world.stages.seconds = broken
        world.flow.admit([group("g")], batch="b")
        await world.flow.play("b")
        with pytest.raises(ZeroDivisionError):
            await world.flow.ready(["g"])

    in_flow(tmp_path, story)


def test_what_was_played_before_is_not_played_again(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        known = attempts(group("g"))
        known[0] = known[0].judged(Verdict(score=0.5, verifier=REF))
        world.flow.readmit(group("g"), known)
        await world.flow.ready(["g"])
        assert [a.score for a in world.flow.take(["g"])] == [0.5, 1.0]
        assert list(world.stages.judged) == ["g/1"]
        assert not world.stages.began

    in_flow(tmp_path, story)


def test_a_domain_that_is_down_is_left_alone_and_another_goes_on(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.stages.seconds = lambda attempt: 0.1
        down = group("down", "down", 40)
        world.stages.failing = {f"down/{n}": 1 for n in range(40)}
        world.flow.admit([down, group("up", "up", 4)], batch="b")
        await world.flow.play("b")
        await world.flow.ready(["up"])
        assert world.clock.now() < 5.0
        await world.flow.ready(["down"])
        assert all(attempt.score == 1.0 for attempt in world.flow.take(["down"]))

    in_flow(tmp_path, story, inference=100)


def test_a_lease_that_ran_out_while_a_group_was_played_costs_nothing(tmp_path: Path) -> None:
    """As after a pass of an hour that let nobody beat."""

    async def story(world: World) -> None:
        world.flow.admit([group("g")], batch="b")
        playing = asyncio.ensure_future(world.flow.play("b"))
        await asyncio.sleep(0.9)
        assert world.broker.reset("main") == 1
        await playing
        await world.flow.ready(["g"])
        assert [a.score for a in world.flow.take(["g"])] == [1.0, 1.0]

    in_flow(tmp_path, story)


def test_a_batch_that_another_process_works_on_is_refused(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.flow.admit([group("g"), group("h")], batch="b")
        await asyncio.sleep(0.1)  # until the queue knows of it
        world.broker.claim(["play"], worker="other", limit=1, lease_s=60, batch="b")
        with pytest.raises(InfrastructureError, match="0 of the 2 groups of batch b"):
            await world.flow.play("b")

    in_flow(tmp_path, story)
