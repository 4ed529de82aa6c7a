"""One life of the run that `pipeline_chaos.py` kills: tiny model, four domains, bad verifiers.

    python benchmarks/pipeline_chaos_run.py DIRECTORY SEED

Starts the run or, where the directory has one, resumes it. Every tenth verdict is prevented by
the infrastructure, verdicts are late by up to two seconds, and those of one domain come out of
a sandbox.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

from headrace.observe.listener import QuietListener
from headrace.pipeline.session import resume, start
from headrace.recipe import Recipe
from headrace.sandbox.spec import Sandbox
from headrace.types import Json, Message, Task, Verdict, VerdictPart, VerifierRef, split_of
from headrace.verify.boxes import PROGRAMS, shared

REF = VerifierRef("chaos-vowels", "1")
NAMES = ("chaos/quick", "chaos/slow", "chaos/flaky", "chaos/boxed")
LATE_S = {"chaos/quick": 0.0, "chaos/slow": 2.0, "chaos/flaky": 0.2, "chaos/boxed": 0.0}
FAILING = 0.1

RECIPE: dict[str, Json] = {
    "name": "chaos",
    "steps": 100_000,
    "threads": 1,
    "model": {"source": "tiny:llama"},
    "tasks": {"domains": [{"name": name} for name in NAMES]},
    "play": {
        "groups": 8,
        "group_size": 4,
        "max_new_tokens": 12,
        "max_lag": 2,
        "schedule": "free",
        "patience": 120,
    },
    "algorithm": {"preset": "decoupled_ppo", "dynamic_sampling": True},
    "learner": {"learning_rate": 1e-4},
    "evaluate": {"items": 0},
    "verify": {"audit": "off", "workers": 12},
    "checkpoint": {"every": 5},
    "stop": {"no_signal": 100_000, "all_truncated": 100_000, "unjudged": 100_000},
}


def merit(text: str) -> float:
    """The share of vowels: what every verdict on `text` must say, whatever happens."""
    return sum(c in "aeiou" for c in text) / max(len(text), 4)


@dataclass(frozen=True)
class Verifier:
    late_s: float
    boxed: bool
    ref: VerifierRef = REF

    def judge(self, task: Task, text: str) -> Verdict:
        time.sleep(random.uniform(0, self.late_s))
        if random.random() < FAILING:
            return Verdict(score=None, verifier=REF, evidence="unlucky", fault="infrastructure")
        if self.boxed:
            said = self._in_a_box(text)
            if said is None:
                return Verdict(
                    score=None, verifier=REF, evidence="no sandbox", fault="infrastructure"
                )
            text = said
        score = merit(text)
        return Verdict(score=score, verifier=REF, parts=(VerdictPart("vowels", score),))

    def _in_a_box(self, text: str) -> str | None:
        """`text` as it comes back from a sandbox, None where there was none."""

        async def echo(box: Sandbox) -> bytes | None:
            result = await box.exec(["cat"], stdin=text.encode())
            return result.stdout.data if result.exit_code == 0 else None

        said = shared().run(PROGRAMS, echo, timeout_s=30)
        return said.decode() if isinstance(said, bytes) else None


@dataclass(frozen=True)
class Domain:
    name: str
    tiers: int = 1

    @property
    def verifier(self) -> Verifier:
        return Verifier(LATE_S[self.name], self.name == "chaos/boxed")

    def task(self, tier: int, index: int) -> Task:
        problem = f"{self.name} {index % 100_000}"
        return Task(
            domain=self.name,
            problem=problem,
            tier=tier,
            split=split_of(self.name, problem),
            messages=(Message.of("user", f"say {problem}"),),
            verifier=REF,
            answer=None,
        )


class Pack:
    def names(self) -> Sequence[str]:
        return NAMES

    def open(self, name: str) -> Domain:
        return Domain(name)

    def close(self) -> None:
        """Nothing to release."""


pack = Pack()


def main() -> None:
    directory, seed = Path(sys.argv[1]), int(sys.argv[2])
    random.seed(seed)
    packs = [EntryPoint("chaos", "pipeline_chaos_run:pack", "headrace.packs")]
    if (directory / "recipe.json").exists():
        resume(directory, listener=QuietListener(), packs=packs)
    else:
        recipe = Recipe.model_validate(RECIPE)
        start(
            recipe,
            runs=directory.parent,
            directory=directory,
            listener=QuietListener(),
            packs=packs,
        )


if __name__ == "__main__":
    main()
