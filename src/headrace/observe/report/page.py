"""Putting the page together: one file that needs nothing but itself.

Its policy for the browser forbids everything but its own styles and its one script, which is
named by its digest; so even a text that slipped through the escaping could not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

from headrace.observe.report.attempts import attempts
from headrace.observe.report.curves import chart_steps, curves, health, learned
from headrace.observe.report.details import details
from headrace.observe.report.domains import domains
from headrace.observe.report.gather import Material, gather
from headrace.observe.report.heading import heading
from headrace.observe.report.heldout import heldout
from headrace.observe.report.markup import Html, tag
from headrace.observe.report.objectives import objectives
from headrace.observe.report.stages import stages
from headrace.observe.report.transcripts import transcripts
from headrace.observe.report.trust import trust
from headrace.store.files import write_atomic

__all__ = ["page", "write_report"]


def write_report(run: Path) -> Path:
    """Write RUN/report.html and return its path.

    Works at any point of a run's life; what is missing or damaged is said on the page. Raises
    RunError if `run` is no run directory, StorageError if the page cannot be written.
    """
    path = run / "report.html"
    write_atomic(path, page(gather(run)).encode())
    return path


def page(material: Material) -> str:
    """The whole document."""
    script = Html(_asset("script.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{material.recipe_name}: {material.name}"),
        tag("style", Html(_asset("style.css"))),
    )
    main = tag(
        "main",
        heading(material),
        *_sections(material),
        _footer(material),
        data_steps=json.dumps(chart_steps(material), separators=(",", ":")),
    )
    body = tag("body", main, tag("script", script))
    return "<!doctype html>\n" + tag("html", head, body, lang="en") + "\n"


def _sections(material: Material) -> list[Html | None]:
    """A plan shows its stages and what they came to; a run what it learned, and if it played,
    what of."""
    planned = stages(material)
    if planned is not None:
        return [planned, heldout(material), details(material)]
    read = learned(material)
    return [
        heldout(material),
        curves(material) if read is None else read,
        objectives(material),
        health(material),
        trust(material),
        domains(material) if read is None else None,
        transcripts(material),
        attempts(material) if read is None else None,
        details(material),
    ]


def _footer(material: Material) -> Html:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return tag("footer", tag("p", f"Run {material.name}. This page was made {now}."))


def _asset(name: str) -> str:
    """A text file of this package. Neither may hold an end tag of its element."""
    return files("headrace.observe.report").joinpath(name).read_text(encoding="utf-8")
