"""The recorded data of a run, from where its recipe says: files, attempts, reference answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.data.examples import ExampleMaker, SourceUnits, Want
from headrace.data.packs import Catalogue
from headrace.data.recorded import RecordedSource
from headrace.data.render import Renderer
from headrace.errors import UsageError
from headrace.observe.listener import Listener
from headrace.recipe import DataSource, Recipe, stage_of
from headrace.store.cards import DataVersion
from headrace.store.runs import RunDirectory
from headrace.store.trajectories import TrajectoryStore
from headrace.types import Trajectory, content_hash

__all__ = ["Material", "read_material"]


@dataclass(frozen=True, slots=True)
class Material:
    """What each source holds, by its name, and the stream of all of them."""

    sources: Mapping[str, SourceUnits]
    stream: RecordedSource

    def versions(self, recipe: Recipe) -> tuple[DataVersion, ...]:
        """What a model card says of the data: each source by the digest of its units."""
        assert recipe.data is not None
        return tuple(
            DataVersion(
                source=source.name,
                digest=content_hash(
                    [[e.key, e.label] for unit in self.sources[source.name].units for e in unit]
                ),
                units=len(self.sources[source.name].units),
                refused=self.sources[source.name].refusals.refused,
                replay=source.replay,
            )
            for source in recipe.data.sources
        )


def read_material(
    recipe: Recipe,
    catalogue: Catalogue,
    renderer: Renderer,
    listener: Listener,
    *,
    beside: Path | None,
) -> Material:
    """Read every source; `beside` holds the stages that "stage:NAME" may mean.

    Says of each what it gave and what was refused. Raises UsageError for a source that cannot be
    read or of which too much is refused, NoSignalError for one with nothing to train on.
    """
    data = recipe.data
    assert data is not None
    maker = ExampleMaker(
        renderer=renderer,
        want=_wanted(recipe),
        train_on=data.train_on,
        max_tokens=data.max_tokens,
        max_refused=data.max_refused,
    )
    found: dict[str, SourceUnits] = {}
    for source in data.sources:
        units = found[source.name] = _units(source, maker, recipe, catalogue, beside)
        told = f": {units.refusals.summary()}" if units.refusals.summary() else ""
        listener.note(f"{source.name}: {len(units.units)} units{told}")
    return Material(found, RecordedSource(data, found, recipe.seed))


def _wanted(recipe: Recipe) -> Want:
    if recipe.method == "sft":
        return "demonstration"
    alone = recipe.method == "preference" and recipe.preference.loss == "kto"
    return "label" if alone else "pair"


def _units(
    source: DataSource,
    maker: ExampleMaker,
    recipe: Recipe,
    catalogue: Catalogue,
    beside: Path | None,
) -> SourceUnits:
    if source.domain is not None:
        domain = catalogue.open(source.domain)
        if source.tiers is not None and max(source.tiers) >= domain.tiers:
            raise UsageError(
                f"{source.domain} has the tiers 0 to {domain.tiers - 1}, not {max(source.tiers)}",
                where="data.sources",
                hint=f"headrace domains show {source.domain}",
            )
        return maker.from_domain(
            source,
            domain,
            seed=recipe.seed,
            system_prompt=recipe.play.system_prompt,
            tiers=source.tiers,
        )
    if source.run is not None:
        return maker.from_trajectories(source, _attempts(_run(source.run, beside)))
    return maker.from_file(source)


def _run(name: str, beside: Path | None) -> RunDirectory:
    stage = stage_of(name)
    if stage is None:
        return RunDirectory.open(Path(name).expanduser())
    if beside is None:
        raise UsageError(
            f"{name} names a stage, and this is no plan",
            where="data.sources",
            hint="name the directory of the run that played",
        )
    return RunDirectory.open(beside / stage)


def _attempts(run: RunDirectory) -> Iterator[Trajectory]:
    with TrajectoryStore(run.trajectories_path, read_only=True) as store:
        for group in store.groups():
            yield from store.group(group)
