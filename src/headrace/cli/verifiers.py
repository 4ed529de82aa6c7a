"""Verbs about kinds of verifiers: `verifiers ls`, `verifiers show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.output import emit, emit_json, table

if TYPE_CHECKING:
    from headrace.types import Json as JsonValue

__all__ = ["group"]

group = typer.Typer(no_args_is_help=True, help="How attempts can be judged.")

Json = Annotated[bool, typer.Option("--json", help="Write JSON instead of text.")]


@group.command("ls")
def ls(json: Json = False) -> None:
    """List the installed kinds of verifiers.

    \b
    Examples:
      headrace verifiers ls
      headrace verifiers ls --json
    """
    from headrace.verify import kinds

    found = [kinds.find(name) for name in kinds.names()]
    if json:
        emit_json(
            [
                {
                    "id": kind.id,
                    "version": kind.version,
                    "title": kind.title,
                    "surfaces": list(kind.surfaces),
                }
                for kind in found
            ]
        )
        return
    rows = [[kind.id, kind.version, ", ".join(kind.surfaces), kind.title] for kind in found]
    emit(table(rows, header=["KIND", "VERSION", "SURFACES", "JUDGES"]))


@group.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A kind, such as math-answer.")], json: Json = False
) -> None:
    """Show what a kind judges and what it cannot, and which known tricks it is audited with.

    \b
    Examples:
      headrace verifiers show math-answer
      headrace verifiers show sql --json
    """
    from headrace.verify import kinds
    from headrace.verify.audit import shipped

    kind = kinds.find(name)
    tricks = shipped().against(kind.surfaces)
    facts: dict[str, JsonValue] = {
        "id": kind.id,
        "version": kind.version,
        "title": kind.title,
        "limits": kind.limits,
        "surfaces": list(kind.surfaces),
        "tricks": [{"name": t.name, "surface": t.surface, "title": t.title} for t in tricks],
    }
    if json:
        emit_json(facts)
        return
    emit(f"{kind.id} {kind.version}: {kind.title}")
    emit(f"limits:   {' '.join(kind.limits.split())}")
    emit(f"surfaces: {', '.join(kind.surfaces)}")
    emit(f"tricks:   {len(tricks)}")
    if tricks:
        emit(table([[f"  {trick.id}", trick.title] for trick in tricks]))
    emit(f"audit:    headrace audit {kind.id}")
