"""Can the rewards be believed: alerts of the watch, and what the audits of the verifiers said."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.observe.report.gather import Material
from headrace.observe.report.markup import Html, Node, tag
from headrace.observe.report.parts import absent, section, table
from headrace.store.lenient import text
from headrace.types import Json

__all__ = ["trust"]

_MOST = 200


def trust(material: Material) -> Html:
    """The section: alerts first, then one row for each audited domain."""
    return section(
        "trust",
        "Can the rewards be believed?",
        _alerts(material),
        _audits(material.env.get("audits")),
        lead="An alert says that reward may come from the judge instead of the task. An audit "
        "attacks a verifier with known tricks before anything is trained on its word.",
    )


def _alerts(material: Material) -> Html:
    found = [event for event in material.events if event.kind == "alert"]
    if not found:
        return tag("p", tag("span", "✓ no alert", class_="mark good"))
    items = [
        tag("li", tag("strong", f"step {event.step:,}: "), tag("bdi", text(event.payload, "message")))
        for event in found[:_MOST]
    ]
    return tag("ul", *items, class_="alerts")


def _audits(told: Json) -> Html:
    if told == "off":
        return tag(
            "p",
            tag("span", "✗ not audited", class_="mark bad"),
            " This run was told to train without audits (verify.audit = \"off\").",
        )
    if not isinstance(told, dict) or not told:
        return absent("This run holds no record of audits.")
    rows: list[list[Node]] = [
        [tag("bdi", name), *_audit(said)] for name, said in sorted(told.items())[:_MOST]
    ]
    head = ["Domain", "Verifier", "Audit", "Attacks", "Audited"]
    return tag(
        "details",
        tag("summary", f"Audits of {len(told):,} domain{'s' if len(told) > 1 else ''}"),
        table(head, rows),
    )


def _audit(said: Json) -> list[Node]:
    record: Mapping[str, Json] = said if isinstance(said, dict) else {}
    attacks = record.get("probes")
    return [
        f"{text(record, 'verifier')} {text(record, 'version')}",
        text(record, "verdict"),
        f"{attacks:,}" if isinstance(attacks, int) else "–",
        text(record, "when"),
    ]
