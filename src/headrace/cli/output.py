"""How verbs write: data to standard output, words for people to standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from headrace.errors import HeadraceError
from headrace.observe.console import printable

if TYPE_CHECKING:
    from headrace.types import Json

__all__ = ["emit", "emit_json", "number", "relay", "report", "table", "tell"]

_WIDEST = 44


def emit(text: str) -> None:
    """Write a line of data. A reader who has seen enough (`| head`) is no error."""
    try:
        print(printable(text), flush=True)
    except BrokenPipeError:
        _silence(sys.stdout)


def emit_json(value: Json) -> None:
    """Write one JSON document: the only thing on standard output of a `--json` verb."""
    try:
        print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False), flush=True)
    except BrokenPipeError:
        _silence(sys.stdout)


def tell(text: str) -> None:
    """Write a line for a person."""
    print(printable(text), file=sys.stderr, flush=True)


def relay(data: bytes, stream: TextIO) -> None:
    """Write what another program wrote: as it is, but to a terminal, which it must not drive."""
    try:
        if stream.isatty():
            stream.write(printable(data.decode("utf-8", "replace").replace("\r\n", "\n")))
        else:
            stream.buffer.write(data)
        stream.flush()
    except BrokenPipeError:
        _silence(stream)


def report(error: HeadraceError) -> None:
    """`error: WHAT (WHERE)` and `hint: ...` on standard error."""
    print(f"{_paint('error:', 31)} {printable(str(error))}", file=sys.stderr)
    if error.hint:
        print(f"{_paint('hint:', 36)} {printable(error.hint)}", file=sys.stderr)


def table(rows: Sequence[Sequence[str]], *, header: Sequence[str] = ()) -> str:
    """Aligned columns, two spaces apart; a cell that is far too long sticks out of its column.

    >>> print(table([["a", "1"], ["long", "2"]]))
    a     1
    long  2
    """
    lines = [list(header), *map(list, rows)] if header else list(map(list, rows))
    lines = [[printable(cell).replace("\n", " ") for cell in line] for line in lines]
    columns = list(zip(*lines, strict=True))
    widths = [max([len(c) for c in column if len(c) <= _WIDEST], default=0) for column in columns]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def number(value: float | None, digits: int = 2) -> str:
    """The number, or "-" for "not known"."""
    return "-" if value is None else f"{value:.{digits}f}"


def _paint(word: str, colour: int) -> str:
    """Colour where a person reads; the word carries the meaning without it."""
    if not sys.stderr.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return word
    return f"\x1b[{colour}m{word}\x1b[0m"


def _silence(stream: TextIO) -> None:
    """Send what is still buffered nowhere, so that the flush at exit does not complain."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, stream.fileno())
    os.close(devnull)
