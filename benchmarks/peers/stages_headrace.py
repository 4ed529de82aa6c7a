"""headrace's own side of the benchmark of stages: recorded data and the learner, as a run has them.

It reads the data as a recipe's source is read, and leaves what came of them (ids, masks, labels,
and the head of a new reward model) in a file for the peer, so that both sides learn from the
same tokens and begin from the same weights.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peak import peak_bytes
from wire import Wire, timed

import headrace
from headrace.algorithms.recorded import demonstrations, preferences, rankings
from headrace.data.examples import ExampleMaker, Unit
from headrace.pipeline.prepare import renderer_of
from headrace.pipeline.references import References
from headrace.policy.engine import TorchPolicy
from headrace.policy.learner import TorchLearner
from headrace.policy.load import load
from headrace.policy.memory import keep_freed_memory
from headrace.policy.scalar import ScalarModel
from headrace.protocols import LossSpec, PreferenceLoss, RankingLoss
from headrace.recipe import DataSource, LearnerSpec, ModelSpec

STEPS = 1000
"""Optimizer steps that are planned; the schedule is constant."""


class Stage:
    """A stage's units and what learns from them."""

    def __init__(self, spec: dict[str, Any], folder: Path) -> None:
        keep_freed_memory()
        loaded = load(spec["model"])
        maker = ExampleMaker(
            renderer=renderer_of(loaded),
            want="demonstration" if spec["task"] == "sft" else "pair",
            max_refused=0.0,
        )
        self.units = maker.from_file(DataSource(path=spec["data"])).units
        self._policy = TorchPolicy(
            loaded, ModelSpec(source=spec["model"], autocast="off", device="cpu")
        )
        self._learning = LearnerSpec(
            learning_rate=spec["learning_rate"], betas=tuple(spec["betas"])
        )
        self._loss = PreferenceLoss(loss="dpo", beta=spec.get("beta", 0.1))
        self.head: list[float] = []
        self._references: References | None = None
        self._step, self._trained = self._prepared(spec, folder, loaded.digest)

    def _prepared(
        self, spec: dict[str, Any], folder: Path, digest: str
    ) -> tuple[Callable[[Sequence[Unit]], float], TorchLearner | ScalarModel]:
        """What a step does with its units (its loss comes back), and what is trained."""
        if spec["task"] == "reward":
            scorer = ScalarModel(self._policy, self._learning, kind="reward", total_steps=STEPS)
            self.head = scorer.head.weight.detach().flatten().tolist()
            ranking = RankingLoss()
            return lambda u: scorer.forward_backward(rankings(u, ranking), ranking).loss, scorer
        learner = TorchLearner(self._policy, self._learning, total_steps=STEPS)
        if spec["task"] == "sft":
            return lambda u: learner.forward_backward(demonstrations(u), LossSpec()).loss, learner
        self._policy.freeze_reference()
        references = self._references = References(
            folder / "reference.sqlite",
            digest,
            lambda samples: learner.logprobs(samples, which="reference"),
        )

        def prefer(units: Sequence[Unit]) -> float:
            known = references.of(units)
            return learner.prefer(preferences(units, self._loss, known), self._loss).loss

        return prefer, learner

    def reference(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the frozen reference says of all units, computed once."""
        assert self._references is not None
        seconds, _ = timed(partial(self._references.of, self.units))
        return {"seconds": seconds}

    def step(self, request: dict[str, Any]) -> dict[str, Any]:
        """One optimizer step on the units of these numbers."""
        units = [self.units[number] for number in request["units"]]
        seconds, loss = timed(lambda: self._learn(units))
        tokens = sum(len(example.ids) for unit in units for example in unit)
        return {"seconds": seconds, "tokens": tokens, "loss": loss, "peak": peak_bytes()}

    def _learn(self, units: Sequence[Unit]) -> float:
        loss = self._step(units)
        self._trained.optim_step()
        if isinstance(self._trained, TorchLearner):
            self._trained.publish()
        return loss

    def told(self) -> dict[str, Any]:
        """Everything that the peer needs to do the same."""
        units = [
            [
                {"ids": e.ids.tolist(), "trainable": e.trainable.tolist(), "label": e.label}
                for e in unit
            ]
            for unit in self.units
        ]
        return {"units": units, "head": self.head}

    def close(self) -> None:
        if self._references is not None:
            self._references.close()


def main() -> None:
    wire = Wire()
    spec = json.loads(sys.argv[1])
    torch.set_num_threads(spec["threads"])
    with (
        tempfile.TemporaryDirectory(prefix="headrace-stages-") as folder,
        closing(Stage(spec, Path(folder))) as stage,
    ):
        Path(spec["units"]).write_text(json.dumps(stage.told()))
        wire.reply(
            ready=True,
            version=f"headrace {headrace.__version__}",
            threads=torch.get_num_threads(),
            count=len(stage.units),
        )
        work = {"reference": stage.reference, "step": stage.step}
        for request in wire.requests():
            wire.reply(**work[request["do"]](request))


if __name__ == "__main__":
    main()
