"""Playing a task in one turn: the prompt goes in, the policy writes, that is the attempt.

Knows the sampler by its verbs and the renderer by its two functions; judging comes after.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from headrace.protocols import Completion, SampleRequest, SamplingParams, Verifier
from headrace.types import Floats, Ids, Message, Task, Trajectory, Turn, canonical_json
from headrace.verify.pool import VerificationPool

OnProgress = Callable[[int, int], None]


class RendererLike(Protocol):
    """The two functions of `headrace.data.render.Renderer` that playing needs."""

    def prompt(self, messages: Sequence[Message], *, system: str | None) -> Ids: ...

    def text(self, ids: Ids) -> str: ...


class SamplerLike(Protocol):
    """A `Sampler` that says how far it is."""

    def sample(
        self, requests: Sequence[SampleRequest], *, on_progress: OnProgress | None = None
    ) -> list[list[Completion]]: ...


@dataclass(frozen=True, slots=True)
class Group:
    """`size` attempts at one task that will share a baseline: the first to end, where `spare`
    more are begun."""

    id: str
    task: Task
    size: int
    spare: int = 0


@dataclass(frozen=True, slots=True)
class SingleTurn:
    """Plays groups of attempts, each from a random stream of its own.

    The stream of an attempt is a function of (`seed`, group id, attempt) and nothing else.
    """

    sampler: SamplerLike
    renderer: RendererLike
    params: SamplingParams
    seed: int
    system_prompt: str | None = None

    def play(
        self, groups: Sequence[Group], *, on_progress: OnProgress | None = None
    ) -> list[Trajectory]:
        """All attempts of all groups, in order; unjudged."""
        started = time.perf_counter()
        requests = [self.request(group) for group in groups]
        completions = self.sampler.sample(requests, on_progress=on_progress)
        seconds = time.perf_counter() - started
        return [
            trajectory
            for group, request, row in zip(groups, requests, completions, strict=True)
            for trajectory in self.attempts(group, request, row, seconds)
        ]

    def request(self, group: Group) -> SampleRequest:
        """What the sampler is asked for `group`."""
        limit = group.task.limits.new_tokens
        params = self.params if limit is None else _limited(self.params, limit)
        return SampleRequest(
            ids=self.renderer.prompt(group.task.messages, system=self.system_prompt),
            seeds=tuple(
                attempt_seed(self.seed, group.id, a) for a in range(group.size + group.spare)
            ),
            params=params,
        )

    def attempts(
        self,
        group: Group,
        request: SampleRequest,
        completions: Sequence[Completion],
        seconds: float,
    ) -> list[Trajectory]:
        """The attempts that the sampler's answer to `request` is; unjudged."""
        return [
            self._trajectory(
                group, request.seeds.index(completion.seed), request.ids, completion, seconds
            )
            for completion in completions
        ]

    def _trajectory(
        self, group: Group, attempt: int, prompt: Ids, completion: Completion, seconds: float
    ) -> Trajectory:
        empty: Floats = np.zeros(0, np.float32)
        asked = Turn(
            role="user",
            text="\n\n".join(message.text for message in group.task.messages),
            ids=prompt,
            sampled=np.zeros(len(prompt), np.bool_),
            logps=empty,
        )
        wrote = Turn(
            role="assistant",
            text=self.renderer.text(completion.ids),
            ids=completion.ids,
            sampled=np.ones(len(completion.ids), np.bool_),
            logps=completion.logps,
            versions=completion.versions,
            temperature=self.params.temperature,
            support=completion.support,
            stop_reason=completion.stop_reason,
        )
        return Trajectory(
            task=group.task,
            group=group.id,
            attempt=attempt,
            seed=completion.seed,
            turns=(asked, wrote),
            ending="finished" if completion.stop_reason == "stop" else "truncated",
            timings={"play": seconds},
        )


def _limited(params: SamplingParams, limit: int) -> SamplingParams:
    return replace(params, max_new_tokens=min(params.max_new_tokens, limit))


def attempt_seed(seed: int, group: str, attempt: int) -> int:
    """The 64-bit key of an attempt's random stream."""
    digest = hashlib.sha256(canonical_json([seed, group, attempt]).encode()).digest()
    return int.from_bytes(digest[:8], "big")


def judge(
    trajectories: Sequence[Trajectory], verifiers: Mapping[str, Verifier]
) -> list[Trajectory]:
    """Each attempt with its verdict; `verifiers` by domain name.

    The verifier sees what the policy wrote and nothing else. Its own failures come back as
    verdicts without a score; a programming error in it is not caught. Whoever judges often
    keeps a `VerificationPool`, of which this is one call.
    """
    with VerificationPool(verifiers) as pool:
        return pool.judge(trajectories)
