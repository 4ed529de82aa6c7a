"""What a run is made of, brought together before anything is created: model, tasks, data.

Everything that may be refused is refused here: a model that is not there, an unknown domain, a
verifier whose audit does not pass, data with nothing to learn from.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import cast

import numpy as np
import torch

from headrace import __version__
from headrace.data.packs import Catalogue
from headrace.data.render import Renderer, Tokenizer
from headrace.data.source import TaskSource
from headrace.errors import ModelError
from headrace.observe.listener import Listener, StageProgress
from headrace.pipeline.critic import Critic, open_critic, open_reward_model
from headrace.pipeline.material import Material, read_material
from headrace.pipeline.rewarding import Rater, Rewards, as_rater
from headrace.policy.load import LoadedModel, load
from headrace.policy.memory import keep_freed_memory
from headrace.policy.teacher import Teacher, open_teacher
from headrace.protocols import Domain
from headrace.recipe import GENERAL, DomainSpec, Recipe, TaskSpec, stage_of
from headrace.store.cards import Parent
from headrace.store.models import CARD, Artifact, read_card
from headrace.store.trajectories import TrajectoryStore
from headrace.types import Ids, Json, Task
from headrace.verify.audit import ensure_audited

__all__ = ["ARTIFACT", "STAGES", "Parts", "environment", "prepare", "renderer_of"]

STAGES = "stages"
"""Where the runs of a plan's stages lie, below the plan's directory."""

ARTIFACT = "artifact"
"""Where a run leaves its model, below its directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What is made before a run directory exists: everything that may be refused.

    `parent` is what the model was made from; `material` the recorded data, where there is any.
    """

    recipe: Recipe
    loaded: LoadedModel
    parent: Parent
    domains: Mapping[str, Domain]
    source: TaskSource
    heldout: list[Task]
    audits: Json
    packs: list[EntryPoint] | None
    guarded: Mapping[str, Domain]
    guard_tasks: Mapping[str, Sequence[Task]]
    material: Material | None
    teacher: Teacher | None
    critic: Critic | None
    raters: Mapping[str, Rater]

    @property
    def renderer(self) -> Renderer:
        return renderer_of(self.loaded)

    def rewards(self, store: TrajectoryStore) -> Rewards | None:
        """What attempts are rewarded for, where it is more than their verifier's score."""
        objectives = self.recipe.objectives
        return Rewards(objectives, self.raters, store) if objectives else None

    def encode(self, text: str) -> Ids:
        """The ids of plain text, without special tokens."""
        ids: list[int] = self.loaded.tokenizer.encode(text, add_special_tokens=False)
        return np.asarray(ids, np.int32)


def prepare(
    recipe: Recipe,
    catalogue: Catalogue,
    listener: Listener,
    packs: list[EntryPoint] | None,
    *,
    beside: Path | None = None,
) -> Parts:
    """Bring it together; `beside` holds the stages that "stage:NAME" may mean."""
    _configure_torch(recipe)
    specs = catalogue.resolve(recipe.tasks.domains)
    spec = recipe.tasks.model_copy(update={"domains": tuple(specs)})
    domains = {item.name: catalogue.open(item.name) for item in specs}
    audits = _audited(recipe, domains, listener)
    source = TaskSource(spec, domains, recipe.seed)
    listener.phase(f"loading {recipe.model.source}")
    made = _artifact(recipe.model.source, beside)
    loaded = load(_place(recipe.model.source, beside), progress=StageProgress(listener))
    listener.phase("drawing the held-out tasks")
    heldout = source.heldout(recipe.evaluate.items, recipe.evaluate.tiers)
    guarded = {name: catalogue.open(name) for name in _watched(recipe)}
    guard_tasks = {
        name: TaskSource(_only(recipe, name), {name: domain}, recipe.seed).heldout(items)
        for (name, domain), items in zip(guarded.items(), _watched(recipe).values(), strict=True)
    }
    material = None
    if recipe.data is not None:
        listener.phase("reading the recorded data")
        material = read_material(recipe, catalogue, renderer_of(loaded), listener, beside=beside)
    teacher = None
    if recipe.distill is not None:
        listener.phase(f"loading the teacher {recipe.distill.teacher}")
        teacher = open_teacher(
            _place(recipe.distill.teacher, beside),
            loaded.tokenizer,
            model=recipe.model,
            learner=recipe.learner,
            progress=StageProgress(listener),
        )
    return Parts(
        recipe=recipe,
        loaded=loaded,
        parent=Parent(
            source=recipe.model.source,
            digest=loaded.digest,
            artifact=None if made is None else made.card.id,
        ),
        domains=domains,
        source=source,
        heldout=heldout,
        audits=audits,
        packs=packs,
        guarded=guarded,
        guard_tasks=guard_tasks,
        material=material,
        teacher=teacher,
        critic=_critic(recipe, loaded, listener, beside),
        raters=_raters(recipe, loaded, listener, beside),
    )


def _watched(recipe: Recipe) -> dict[str, int]:
    """The domains that are watched against forgetting, and how many tasks of each."""
    return {w.suite: w.items for w in recipe.guard.suites if w.suite != GENERAL}


def _only(recipe: Recipe, domain: str) -> TaskSpec:
    return recipe.tasks.model_copy(update={"domains": (DomainSpec(name=domain),)})


def _critic(
    recipe: Recipe, loaded: LoadedModel, listener: Listener, beside: Path | None
) -> Critic | None:
    if recipe.critic is None:
        return None
    start = recipe.critic.start
    listener.phase(f"loading the critic {start or recipe.model.source}")
    return open_critic(recipe, loaded, None if start is None else _scalar(start, beside))


def _raters(
    recipe: Recipe, loaded: LoadedModel, listener: Listener, beside: Path | None
) -> dict[str, Rater]:
    """The reward models among the objectives, by the objective's name."""
    raters: dict[str, Rater] = {}
    for objective in recipe.objectives:
        if objective.source is not None:
            listener.phase(f"loading the reward model {objective.source}")
            model = open_reward_model(recipe, loaded, _scalar(objective.source, beside))
            raters[objective.name] = as_rater(objective, model)
    return raters


def _scalar(source: str, beside: Path | None) -> Path:
    """Where the reward model or critic of a source is: a stage's, an artifact's, a directory's."""
    made = _artifact(source, beside)
    if made is not None:
        return made.weights
    directory = Path(source).expanduser()
    if not (directory / CARD).exists():
        return directory
    return Artifact(directory, read_card(directory)).weights


def renderer_of(loaded: LoadedModel) -> Renderer:
    return Renderer(cast("Tokenizer", loaded.tokenizer), loaded.end_ids)


def _place(source: str, beside: Path | None) -> str:
    """A model source with "stage:NAME" replaced by where that stage's model is."""
    made = _artifact(source, beside)
    return source if made is None else f"path:{made.weights}"


def _artifact(source: str, beside: Path | None) -> Artifact | None:
    """What "stage:NAME" means: the artifact of a stage in the same plan."""
    name = stage_of(source)
    if name is None:
        return None
    if beside is None:
        raise ModelError(
            f"{source} names a stage, and this is no plan",
            where="model.source",
            hint="run the whole plan, or name the artifact's directory",
        )
    directory = beside / name / ARTIFACT
    return Artifact(directory, read_card(directory))


def _audited(recipe: Recipe, domains: Mapping[str, Domain], listener: Listener) -> Json:
    """What is known of the verifiers' audits, by domain; GateFailed for one that does not pass."""
    if recipe.verify.audit == "off":
        listener.warning(
            "verify.audit is off: nothing vouches for these rewards, and the run will say so"
        )
        return "off"
    records = ensure_audited(domains, progress=listener.progress)
    return {name: record.to_json() for name, record in records.items()}


def _configure_torch(recipe: Recipe) -> None:
    torch.set_num_threads(recipe.threads or os.cpu_count() or 1)
    torch.use_deterministic_algorithms(recipe.deterministic)
    keep_freed_memory()


def environment(recipe: Recipe, loaded: LoadedModel) -> dict[str, Json]:
    """What a later reader needs to know of the machine and the software."""
    packages = ("torch", "transformers", "peft", "numpy", "reasoning-gym")
    return {
        "headrace": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(recipe.model.device),
        "packages": {name: metadata.version(name) for name in packages},
        "model": {"source": loaded.source, "digest": loaded.digest},
    }
