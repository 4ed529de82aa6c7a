"""Verbs about recipes: `recipes ls`, `recipes show`, `recipes keys`."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.output import emit, emit_json, table

__all__ = ["group"]

group = typer.Typer(no_args_is_help=True, help="The recipes that come with headrace.")

Json = Annotated[bool, typer.Option("--json", help="Write JSON instead of text.")]


@group.command("ls")
def ls(json: Json = False) -> None:
    """List the shipped recipes.

    \b
    Examples:
      headrace recipes ls
      headrace recipes ls --json
    """
    from headrace.configure import shipped_recipes

    shipped = shipped_recipes()
    if json:
        emit_json([{"name": r.name, "description": r.description} for r in shipped])
    else:
        emit(table([[r.name, r.description] for r in shipped]))


@group.command("show")
def show(name: Annotated[str, typer.Argument(help="A shipped recipe.")]) -> None:
    """Print a shipped recipe: TOML to copy from.

    \b
    Examples:
      headrace recipes show quickstart
      headrace recipes show many-domains > mine.toml
    """
    from headrace.configure import shipped_text

    emit(shipped_text(name).rstrip("\n"))


@group.command("keys")
def keys(
    prefix: Annotated[str, typer.Argument(help="Only keys that start with this.")] = "",
    json: Json = False,
) -> None:
    """List every key that a recipe may have, with its type and default.

    \b
    Examples:
      headrace recipes keys
      headrace recipes keys learner
    """
    from headrace.configure import keys
    from headrace.errors import UsageError

    found = [key for key in keys().values() if key.path.startswith(prefix)]
    if not found:
        raise UsageError(f"no key starts with {prefix!r}", hint="headrace recipes keys")
    if json:
        emit_json([{"key": k.path, "type": k.type, "default": k.default or None} for k in found])
        return
    leaves = [key for key in found if not key.table or key.nullable]
    emit(table([[k.path, k.default, k.type] for k in leaves], header=["KEY", "DEFAULT", "TYPE"]))
