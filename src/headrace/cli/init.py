"""`init`: write a task pack, or a recipe, to start from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.output import emit, tell

__all__ = ["register"]

_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")


def init(
    name: Annotated[
        str, typer.Argument(help="A domain's name such as my-domain, or a file such as mine.toml.")
    ],
) -> None:
    """Write a task pack of your own, or (with a name ending in .toml) a recipe.

    A pack is a directory with a generator, a verifier, a test and a recipe that trains on it.
    Its audit is the loop to work in: change the pack, run the audit, read the worst case.

    \b
    Examples:
      headrace init my-domain && headrace audit my-domain
      headrace init mine.toml && headrace run mine.toml --dry-run
    """
    if name.endswith(".toml"):
        path = Path(name)
        _write({path: _template("recipe.toml").replace("{{path}}", str(path))})
        emit(str(path))
        tell(f"next: headrace run {path} --dry-run")
        return
    directory = Path(name)
    _pack(directory)
    emit(str(directory))
    tell(
        f"next: headrace audit {name}        what an attacker gets out of its verifier\n"
        f"      headrace run {directory / 'recipe.toml'}   train on it\n"
        f"      pip install -e {directory}       to use it from anywhere else"
    )


def _pack(directory: Path) -> None:
    from headrace.errors import UsageError

    name = directory.name
    if str(directory) != name or not _NAME.fullmatch(name):
        raise UsageError(
            f"{str(directory)!r} cannot be a domain's name",
            hint="small letters, digits and hyphens, such as my-domain; it is written here",
        )
    module = name.replace("-", "_")
    values = {"name": name, "module": module}
    _write(
        {
            directory / target: _filled(_template(source), values)
            for source, target in (
                ("pack.py", f"{module}.py"),
                ("test_pack.py", f"test_{module}.py"),
                ("pyproject.toml", "pyproject.toml"),
                ("pack_recipe.toml", "recipe.toml"),
            )
        }
    )


def _write(contents: Mapping[Path, str]) -> None:
    """All of these new files, or UsageError before any is written."""
    from headrace.errors import StorageError, UsageError

    for path in contents:
        if path.exists():
            raise UsageError("there is a file already", where=str(path), hint="choose another name")
    for path, content in contents.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(content)
        except OSError as error:
            raise StorageError(f"cannot write: {error.strerror}", where=str(path)) from error


def _template(name: str) -> str:
    return files("headrace.cli.templates").joinpath(f"{name}.txt").read_text(encoding="utf-8")


def _filled(template: str, values: Mapping[str, str]) -> str:
    for key, value in values.items():
        template = template.replace("{{" + key + "}}", value)
    return template


def register(app: typer.Typer) -> None:
    app.command("init")(init)
