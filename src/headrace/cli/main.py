"""The entry point: which verbs there are, and how errors become messages and exit codes."""

from __future__ import annotations

import errno
import sys
import traceback
from types import TracebackType
from typing import Annotated, NoReturn

import typer
from typer.main import get_command

from headrace import __version__
from headrace.cli import (
    audit,
    data,
    doctor,
    domains,
    init,
    models,
    recipes,
    runs,
    sandbox,
    simulate,
    verifiers,
)
from headrace.cli.output import report
from headrace.errors import HeadraceError, StorageError

__all__ = ["app", "main"]

_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)

app = typer.Typer(
    name="headrace",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
runs.register(app)
simulate.register(app)
init.register(app)
app.add_typer(recipes.group, name="recipes")
app.add_typer(models.group, name="models")
app.add_typer(domains.group, name="domains")
app.add_typer(data.group, name="data")
audit.register(app)
app.add_typer(verifiers.group, name="verifiers")
app.add_typer(sandbox.group, name="sandbox")
doctor.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@app.callback(
    epilog="Exit codes: 0 done, 1 a bug, 2 usage or configuration, 3 gate failed, "
    "4 no learning signal, 5 infrastructure (safe to resume), 6 inconclusive, 130 interrupted "
    "(resumable). NO_COLOR switches colours off."
)
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Take a language model and make it reliably good at verifiable work.

    \b
    Start here:
      headrace run quickstart        train a real 135M model, in minutes on a CPU
      headrace show latest --open    see what it learned
      headrace init my-domain        write tasks and a verifier of your own
    """


def main() -> NoReturn:
    """Run the command line and exit: `headrace`."""
    sys.excepthook = _bug
    try:
        get_command(app)(prog_name="headrace")
    except HeadraceError as error:
        report(error)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in _FULL_DISK:
            raise
        full = StorageError(
            f"the disk is full: {error.strerror}",
            where=str(error.filename or ""),
            hint="free some space, then `headrace resume latest`",
        )
        report(full)
        sys.exit(full.exit_code)
    sys.exit(0)


def _bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What nobody foresaw: the interpreter exits 1 after this."""
    traceback.print_exception(kind, error, trace)
    print(f"error: a bug in headrace: {kind.__name__}: {error}", file=sys.stderr)
    print("hint: report it with the lines above; a run can be resumed", file=sys.stderr)
