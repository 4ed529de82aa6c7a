"""Verbs about domains: `domains ls`, `domains show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.output import emit, emit_json, table

if TYPE_CHECKING:
    from headrace.types import Json as JsonValue

__all__ = ["group"]

group = typer.Typer(no_args_is_help=True, help="What can be practised, and how it is judged.")

Json = Annotated[bool, typer.Option("--json", help="Write JSON instead of text.")]


@group.command("ls")
def ls(
    pattern: Annotated[str, typer.Argument(help="Only domains that match, such as 'rg/*sum*'.")] = (
        "*"
    ),
    json: Json = False,
) -> None:
    """List the domains of the installed task packs.

    \b
    Examples:
      headrace domains ls
      headrace domains ls 'rg/*sum*' --json
    """
    from fnmatch import fnmatchcase

    from headrace.data.packs import Catalogue
    from headrace.errors import UsageError

    with Catalogue() as catalogue:
        names = [name for name in catalogue.names() if fnmatchcase(name, pattern)]
        if not names:
            raise UsageError(f"no domain matches {pattern!r}", hint="headrace domains ls")
        opened = [catalogue.open(name) for name in names]
        found: list[dict[str, JsonValue]] = [
            {
                "name": domain.name,
                "tiers": domain.tiers,
                "verifier": domain.verifier.ref.id,
                "verifier_version": domain.verifier.ref.version,
            }
            for domain in opened
        ]
    if json:
        emit_json(found)
        return
    rows = [[d["name"], str(d["tiers"]), f"{d['verifier']} {d['verifier_version']}"] for d in found]
    emit(table(rows, header=["DOMAIN", "TIERS", "VERIFIER"]))


@group.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A domain, such as arithmetic or rg/gcd.")],
    tier: Annotated[int, typer.Option("--tier", min=0, help="How hard; 0 is the easiest.")] = 0,
    count: Annotated[int, typer.Option("--count", min=1, max=1000, help="How many tasks.")] = 3,
    json: Json = False,
) -> None:
    """Show tasks of a domain, and how their reference answer and an empty one are judged.

    \b
    Examples:
      headrace domains show arithmetic
      headrace domains show rg/gcd --tier 1 --count 5 --json
    """
    from headrace.data.packs import Catalogue
    from headrace.errors import UsageError
    from headrace.protocols import reference_of

    with Catalogue() as catalogue:
        domain = catalogue.open(name)
        if tier >= domain.tiers:
            raise UsageError(
                f"{name} has no tier {tier}",
                where="--tier",
                hint=f"its tiers are 0 to {domain.tiers - 1}",
            )
        shown: list[dict[str, JsonValue]] = []
        for index in range(count):
            task = domain.task(tier, index)
            reference = reference_of(domain, task)
            judge = domain.verifier.judge
            shown.append(
                {
                    "id": task.id,
                    "split": task.split,
                    "messages": [{"role": m.role, "text": m.text} for m in task.messages],
                    "reference": reference,
                    "score_of_reference": (
                        None if reference is None else judge(task, reference).score
                    ),
                    "score_of_empty": judge(task, "").score,
                }
            )
    if json:
        emit_json({"domain": name, "tier": tier, "tiers": domain.tiers, "tasks": shown})
        return
    for task in shown:
        emit(f"{name}  tier {tier} of {domain.tiers}  {task['split']}  {task['id']}")
        for message in task["messages"]:
            emit(f"  {message['role']}: {message['text']}")
        judged = f"empty {_score(task['score_of_empty'])}"
        if task["reference"] is None:
            emit("  reference: none, the verifier works without one")
        else:
            emit(f"  reference: {task['reference']}")
            judged = f"reference {_score(task['score_of_reference'])}, {judged}"
        emit(f"  judged: {judged}\n")


def _score(score: float | None) -> str:
    return "could not be judged" if score is None else f"{score:.2f}"
