"""The stream of recorded data: several sources of units in one reproducible order.

What is drawn at a position is a function of the seed, the sources and the position: no random
state is carried, and the state to go on from is one count for each source. May be known by
pipeline; knows nothing of how units were made.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.data.examples import SourceUnits, Unit
from headrace.errors import CheckpointError, NoSignalError, RecipeError
from headrace.recipe.recorded import DataSource, DataSpec
from headrace.types import Json, content_hash

__all__ = ["RecordedSource", "SourceStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """Where a source stands.

    `units` are trained on and `validation` held back; `tokens` are learned from in one epoch.
    `refused` and `skipped` count rows by reason. `drawn` units were given out, that is `epochs`
    times all of them, and `share` (0..1) of what all sources gave.
    """

    units: int
    validation: int
    tokens: int
    refused: Mapping[str, int]
    skipped: Mapping[str, int]
    drawn: int
    epochs: float
    share: float
    replay: bool


class RecordedSource:
    """Units of the sources that `spec` names, mixed by weight.

    After any number of draws every source has given its share of them to within one unit or so
    per other source: the mix is exact, not random. Each source goes through all its units before
    any comes again, in an order of its own in every epoch: "shuffled"; "curriculum", the first
    epoch from high scores to low and from short to long; "given", as it stands in the source. The
    units of `validation` are held back, by their content alone.

    RecipeError where `spec` and `sources` do not agree; NoSignalError for a source without a unit
    to train on.
    """

    def __init__(self, spec: DataSpec, sources: Mapping[str, SourceUnits], seed: int) -> None:
        names = [source.name for source in spec.sources]
        if len(set(names)) < len(names) or set(names) != set(sources):
            raise RecipeError(
                f"sources {sorted(sources)} for a recipe that names {names}", where="data.sources"
            )
        self._seed = seed
        self._decks = {
            source.name: _deck(spec, source, sources[source.name], seed) for source in spec.sources
        }
        total = sum(source.weight for source in spec.sources)
        self._weights = {source.name: source.weight / total for source in spec.sources}

    @property
    def position(self) -> int:
        """How many units were given out."""
        return sum(deck.drawn for deck in self._decks.values())

    @property
    def validation(self) -> tuple[Unit, ...]:
        """What is held back, each content once, in an order that any beginning of it is fair."""
        held = {_identity(unit): unit for deck in self._decks.values() for unit in deck.validation}
        return tuple(held[key] for key in sorted(held, key=lambda key: _place("validation", key)))

    def next(self, n: int) -> tuple[Unit, ...]:
        """The next `n` units; one that comes twice among them has another `group` the second time,
        so that no two of a batch are taken for one."""
        if n < 1:
            raise ValueError(f"cannot draw {n} units")
        drawn: list[Unit] = []
        groups: Counter[str] = Counter()
        for _ in range(n):
            unit = self._decks[self._due()].draw()
            group = unit[0].group
            groups[group] += 1
            if groups[group] > 1:
                again = f"{group}#{groups[group]}"
                unit = tuple(replace(example, group=again) for example in unit)
            drawn.append(unit)
        return tuple(drawn)

    def state(self) -> Json:
        """JSON from which `restore` goes on exactly."""
        return {
            "seed": self._seed,
            "sources": {
                name: {"drawn": deck.drawn, "content": deck.content}
                for name, deck in self._decks.items()
            },
        }

    def restore(self, state: Json) -> None:
        """Take over a `state()` of the same seed and units; CheckpointError otherwise."""
        where = "recorded data"
        if not isinstance(state, dict) or set(state) != {"seed", "sources"}:
            raise CheckpointError("not the state of recorded data", where=where)
        if state["seed"] != self._seed:
            raise CheckpointError(f"seed {state['seed']!r} instead of {self._seed}", where=where)
        entries = state["sources"]
        if not isinstance(entries, dict) or set(entries) != set(self._decks):
            raise CheckpointError("other sources than the recipe's", where=where)
        counts: dict[str, int] = {}
        for name, deck in self._decks.items():
            entry = entries[name]
            if not isinstance(entry, dict) or set(entry) != {"drawn", "content"}:
                raise CheckpointError("not the state of a source", where=name)
            if type(entry["drawn"]) is not int or entry["drawn"] < 0:
                raise CheckpointError(f"drawn is {entry['drawn']!r}, not a count", where=name)
            if entry["content"] != deck.content:
                raise CheckpointError(
                    "the data are not those that the run began with",
                    where=name,
                    hint="bring the data back as they were, or start a new run",
                )
            counts[name] = entry["drawn"]
        for name, deck in self._decks.items():
            deck.drawn = counts[name]

    def status(self) -> dict[str, SourceStatus]:
        """Every source's standing, in the order of the recipe."""
        position = self.position
        return {
            name: SourceStatus(
                units=len(deck.units),
                validation=len(deck.validation),
                tokens=sum(example.tokens for unit in deck.units for example in unit),
                refused=dict(deck.refused),
                skipped=dict(deck.skipped),
                drawn=deck.drawn,
                epochs=deck.drawn / len(deck.units),
                share=deck.drawn / position if position else 0.0,
                replay=deck.replay,
            )
            for name, deck in self._decks.items()
        }

    @property
    def replay_share(self) -> float:
        """Share (0..1) of what was given out that is there against forgetting."""
        position = self.position
        replayed = sum(deck.drawn for deck in self._decks.values() if deck.replay)
        return replayed / position if position else 0.0

    def _due(self) -> str:
        """The source that lags most behind its share."""
        following = self.position + 1
        return max(
            self._decks,
            key=lambda name: self._weights[name] * following - self._decks[name].drawn,
        )


@dataclass(slots=True, kw_only=True)
class _Deck:
    """The units of one source, and how many of them were drawn."""

    name: str
    seed: int
    order: str
    replay: bool
    units: tuple[Unit, ...]
    validation: tuple[Unit, ...]
    refused: Mapping[str, int]
    skipped: Mapping[str, int]
    content: str
    drawn: int = 0
    dealt: tuple[int, Sequence[int]] = (-1, ())

    def draw(self) -> Unit:
        epoch, place = divmod(self.drawn, len(self.units))
        if self.dealt[0] != epoch:
            self.dealt = (epoch, self._order(epoch))
        self.drawn += 1
        return self.units[self.dealt[1][place]]

    def _order(self, epoch: int) -> Sequence[int]:
        everything = range(len(self.units))
        if self.order == "given":
            return everything
        if self.order == "curriculum" and epoch == 0:
            return sorted(everything, key=lambda number: _difficulty(self.units[number]))
        return sorted(everything, key=lambda n: _place(self.seed, self.name, epoch, n))


def _deck(spec: DataSpec, source: DataSource, found: SourceUnits, seed: int) -> _Deck:
    held = [unit for unit in found.units if _is_held_back(unit, spec.validation)]
    train = [unit for unit in found.units if not _is_held_back(unit, spec.validation)]
    if not train:
        reasons = found.refusals.summary()
        what = "all of it is held back for validation" if held else "nothing to train on"
        raise NoSignalError(
            f"{what}: {reasons}" if reasons else what,
            where=source.name,
            hint="lower data.validation, or give it more data" if held else "mend the data source",
        )
    return _Deck(
        name=source.name,
        seed=seed,
        order=spec.order,
        replay=source.replay,
        units=tuple(train),
        validation=tuple(held),
        refused=dict(found.refusals.reasons),
        skipped=dict(found.refusals.skipped),
        content=content_hash([_identity(unit) for unit in train]),
    )


def _identity(unit: Unit) -> str:
    return content_hash([[example.key, example.label] for example in unit])


def _is_held_back(unit: Unit, share: float) -> bool:
    """Whether a unit is on the validation side: by what stands before "/" in its group, which is
    a hash of the conversation, the pair or the task; so all attempts at a task are on one side."""
    return _place("side", unit[0].group.partition("/")[0]) < share * 2**64


def _difficulty(unit: Unit) -> tuple[float, int]:
    """High scores before low ones, short before long; what has no score counts as solved."""
    scores = [1.0 if example.score is None else example.score for example in unit]
    return -max(scores), sum(len(example.ids) for example in unit)


def _place(*key: str | int) -> int:
    """A uniform integer in 0..2**64 - 1 that depends on `key` alone, on every machine."""
    spelled = "\x1f".join(map(str, key)).encode()
    return int.from_bytes(hashlib.blake2b(spelled, digest_size=8).digest(), "big")
