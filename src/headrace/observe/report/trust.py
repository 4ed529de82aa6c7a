"""Can the rewards be believed: alerts of the watch, and what the audits of the verifiers said."""

from __future__ import annotations

from headrace.observe.report.curves import signs
from headrace.observe.report.gather import Material
from headrace.observe.report.markup import Html, Node, tag
from headrace.observe.report.parts import absent, section, table
from headrace.observe.report.values import count
from headrace.store.lenient import integer, text
from headrace.types import Json

__all__ = ["trust"]

_MOST = 200


def trust(material: Material) -> Html:
    """The section: alerts first, then one row for each audited domain."""
    return section(
        "trust",
        "Can the rewards be believed?",
        _alerts(material),
        signs(material),
        _audits(material.env.get("audits")),
        lead="An alert says that reward may come from the judge instead of the task. An audit "
        "attacks a verifier with known tricks before anything is trained on its word.",
    )


def _alerts(material: Material) -> Html:
    found = [event for event in material.events if event.kind == "alert"]
    if not found:
        return tag("p", tag("span", "✓ no alert", class_="mark good"))
    items = [
        tag(
            "li",
            tag("strong", f"step {event.step:,}: "),
            tag("bdi", text(event.payload, "message")),
        )
        for event in found[:_MOST]
    ]
    return tag("ul", *items, class_="alerts")


def _audits(told: Json) -> Html:
    if told == "off":
        return tag(
            "p",
            tag("span", "✗ not audited", class_="mark bad"),
            ' This run was told to train without audits (verify.audit = "off").',
        )
    if not isinstance(told, dict) or not told:
        return absent("This run holds no record of audits.")
    rows: list[list[Node]] = [
        [tag("bdi", name), *_audit(said)] for name, said in sorted(told.items())[:_MOST]
    ]
    return tag(
        "details",
        tag("summary", f"Audits of {count(len(told), 'domain')}, all passed"),
        table(["Domain", "Verifier", "Verdicts", "Audited"], rows),
    )


def _audit(said: Json) -> list[Node]:
    verdicts = integer(said, "verdicts")
    return [
        f"{text(said, 'verifier', 'id')} {text(said, 'verifier', 'version')}",
        "–" if verdicts is None else f"{verdicts:,}",
        text(said, "when"),
    ]
