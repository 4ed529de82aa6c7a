"""The table of domains: where each stands on its ladder and how it got there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.observe.report.gather import Material
from headrace.observe.report.markup import Html, Node, tag
from headrace.observe.report.parts import absent, section
from headrace.observe.report.plots import sparkline
from headrace.observe.report.values import count, fixed
from headrace.store.events import Event
from headrace.store.lenient import integer, mapping, share
from headrace.types import Json

__all__ = ["domains"]

_WINDOW = 10
_MOST_OPEN = 30
_HEAD = ("Domain", "Tier", "Pass rate lately", "So far", "Share of tasks", "Attempts", "Trend")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Domain:
    name: str
    latest: Mapping[str, Json]
    rates: list[float | None]
    lately: float | None
    attempts: int

    @property
    def share(self) -> float | None:
        return share(self.latest, "share")


def domains(material: Material) -> Html:
    """The section: one row for each domain, largest share first."""
    title = "Domains"
    found = _collect(material.steps)
    if not found:
        return section("domains", title, absent("No step has told of any domain yet."))
    found.sort(key=lambda domain: (-(domain.share or 0.0), domain.name))
    rows = [_row(domain) for domain in found]
    head = tag("tr", *(tag("th", name, scope="col") for name in _HEAD))
    body = tag("table", tag("thead", head), tag("tbody", *rows), class_="sortable")
    return section(
        "domains",
        title,
        tag(
            "details",
            tag("summary", f"{count(len(found), 'domain')}{_told(found)}"),
            tag("div", body, class_="scroll"),
            open=len(found) <= _MOST_OPEN,
        ),
        lead=f"“Lately” is the last {_WINDOW} steps of the run. The tier is the hardest that is "
        "open; the number behind it is the last there is. The trend is the pass rate of each "
        "step, from 0 to 1.",
    )


def _collect(steps: Sequence[Event]) -> list[_Domain]:
    told = [mapping(event.payload, "domains") for event in steps]
    names = dict.fromkeys(name for said in told for name in said)
    return [_domain(name, [mapping(said, name) for said in told]) for name in names]


def _domain(name: str, told: Sequence[Mapping[str, Json]]) -> _Domain:
    latest = next((said for said in reversed(told) if said), {})
    rates = [share(said, "pass_rate") for said in told]
    weighed = [
        (rate, integer(said, "scored") or 0)
        for rate, said in zip(rates[-_WINDOW:], told[-_WINDOW:], strict=True)
        if rate is not None
    ]
    scored = sum(weight for _, weight in weighed)
    lately = math.fsum(rate * weight for rate, weight in weighed) / scored if scored > 0 else None
    attempts = sum(integer(said, "attempts") or 0 for said in told)
    return _Domain(name=name, latest=latest, rates=rates, lately=lately, attempts=attempts)


def _told(found: Sequence[_Domain]) -> str:
    """The table in a few words, where there are several."""
    if len(found) < 2:
        return ""
    rates = sorted(domain.lately for domain in found if domain.lately is not None)
    if not rates:
        return ": nothing judged lately"
    middle = rates[len(rates) // 2]
    solved = sum(rate >= 0.9 for rate in rates)
    return f": median pass rate lately {fixed(middle)}, {solved} at 0.90 or more"


def _row(domain: _Domain) -> Html:
    tier, tiers = integer(domain.latest, "tier"), integer(domain.latest, "tiers")
    so_far = share(domain.latest, "pass_rate_so_far")
    ladder = "–" if tier is None else str(tier)
    end = "" if tiers is None else f" / {tiers - 1}"
    return tag(
        "tr",
        tag("th", tag("bdi", domain.name), scope="row"),
        _cell(tier, ladder, tag("small", end)),
        _cell(domain.lately, fixed(domain.lately), _meter(domain.lately)),
        _cell(so_far, fixed(so_far)),
        _cell(domain.share, "–" if domain.share is None else f"{domain.share:.1%}"),
        _cell(domain.attempts, f"{domain.attempts:,}"),
        tag("td", _trend(domain)),
    )


def _cell(key: float | None, *shown: Node) -> Html:
    return tag("td", *shown, class_="number", data_key="" if key is None else repr(key))


def _meter(rate: float | None) -> Html | None:
    if rate is None:
        return None
    width = f"width:{rate:.0%}"
    return tag("i", tag("i", style=width), class_="meter", aria_hidden="true")


def _trend(domain: _Domain) -> Node:
    known = [rate for rate in domain.rates if rate is not None]
    if len(known) < 2:
        return "–"
    return sparkline(domain.rates, f"from {fixed(known[0])} to {fixed(known[-1])}")
