"""What a finished run leaves: its model, and a card: where it came from, what it scores.

The files are linked from the last checkpoint where the disk allows, so that they cost no room
while the checkpoint is there and stay when it goes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace.pipeline.prepare import ARTIFACT, Parts
from headrace.store.cards import Card, DataVersion, Measured, SuiteScore, VerifierVersion
from headrace.store.events import Event, read_events
from headrace.store.lenient import integer, number
from headrace.store.models import Artifact, write_artifact
from headrace.store.runs import RunDirectory
from headrace.store.summary import seconds_of
from headrace.types import Json

__all__ = ["leave", "linked"]


def leave(
    directory: RunDirectory, parts: Parts, export: Callable[[Path], None], *, stage: str
) -> Artifact:
    """Write the artifact of a run that is done, at RUN/artifact; `export` writes the model."""
    events = read_events(directory.events_path)
    steps = [event for event in events if event.kind == "step"]
    seconds = seconds_of(events).total
    recipe = parts.recipe
    card = Card(
        kind="reward" if recipe.method == "reward" else "policy",
        recipe=recipe.name,
        recipe_digest=recipe.digest,
        stage=stage,
        method=recipe.method,
        parents=(parts.parent,),
        data=_data(steps, parts),
        verifiers=_verifiers(parts),
        scores=_scores(events),
        steps=len(steps),
        tokens=sum(int(event.payload.get("trained_tokens") or 0) for event in steps),
        seconds=seconds or 0.0,
        seed=recipe.seed,
    )
    return write_artifact(directory.path / ARTIFACT, card, export)


def linked(source: Path, target: Path) -> None:
    """The files of `source` in `target`, as links where the disk has them, else as copies."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        try:
            os.link(path, target / path.name)
        except OSError:
            shutil.copy2(path, target / path.name)


def _data(steps: Sequence[Event], parts: Parts) -> tuple[DataVersion, ...]:
    """Every source by the digest of what it was; without recorded data, the domains that were
    played."""
    if parts.material is not None:
        return parts.material.versions(parts.recipe)
    return tuple(
        DataVersion(source=name, digest=parts.recipe.digest, units=_attempts(steps, name))
        for name in parts.domains
        if _attempts(steps, name)
    )


def _attempts(steps: Sequence[Event], domain: str) -> int:
    found = [event.payload.get("domains", {}).get(domain, {}) for event in steps]
    return sum(int(entry.get("attempts") or 0) for entry in found)


def _verifiers(parts: Parts) -> tuple[VerifierVersion, ...]:
    refs = {domain.verifier.ref for domain in parts.domains.values()}
    audited = parts.audits if isinstance(parts.audits, Mapping) else {}
    passed = {parts.domains[name].verifier.ref for name in audited}
    return tuple(
        VerifierVersion(id=ref.id, version=ref.version, audit="pass" if ref in passed else None)
        for ref in sorted(refs, key=lambda ref: (ref.id, ref.version))
    )


def _scores(events: Sequence[Event]) -> tuple[SuiteScore, ...]:
    """Each suite that was evaluated, before and after."""
    suites: dict[str, list[Mapping[str, Json]]] = {}
    for event in events:
        if event.kind == "evaluation":
            suites.setdefault(str(event.payload["suite"]), []).append(event.payload)
    compared = {e.payload.get("suite"): e.payload for e in events if e.kind == "comparison"}
    scores: list[SuiteScore] = []
    for name, seen in suites.items():
        before, after = _measured(seen[0], "score"), _measured(seen[-1], "score")
        if before is None and after is None:
            continue
        scores.append(
            SuiteScore(
                suite=name,
                before=before,
                after=after if len(seen) > 1 else None,
                difference=_measured(compared.get(name, {}), "value"),
            )
        )
    return (*scores, *_watched(events))


def _watched(events: Sequence[Event]) -> tuple[SuiteScore, ...]:
    """How the suites stood at the last look that were watched against forgetting."""
    looks = [event.payload for event in events if event.kind == "regression"]
    return tuple(
        SuiteScore(
            suite=str(found["suite"]),
            before=_measured(found["before"], "value"),
            after=_measured(found["after"], "value"),
            difference=_measured(found["difference"], "value"),
            better=found["better"],
            margin=found["margin"],
            verdict=found["verdict"],
        )
        for found in (looks[-1]["findings"] if looks else ())
    )


def _measured(payload: Mapping[str, Json], key: str) -> Measured | None:
    value, low, high = (number(payload, name) for name in (key, "low", "high"))
    if value is None or low is None or high is None:
        return None
    return Measured(value=value, low=low, high=high, n=integer(payload, "n") or 0)
