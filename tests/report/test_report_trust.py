"""The section that says whether rewards can be believed: alerts, and what audits said."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from headrace.observe.report.gather import gather
from headrace.observe.report.trust import trust
from headrace.types import Json
from report_support import Element, make_run, parse, write_events


def section(folder: Path, audits: Json, alerts: tuple[str, ...] = ()) -> Element:
    run = make_run(folder)
    told = [("alert", n, {"alert": "tricks", "message": text}, {}) for n, text in enumerate(alerts)]
    write_events(run, told)
    material = gather(run.path)
    return parse(trust(dataclasses.replace(material, env={"audits": audits})))


RECORD: Json = {
    "verifier": {"id": "final-integer", "version": "2"},
    "verdicts": 1863,
    "when": "2026-11-30T12:00:00+00:00",
}


def test_audits_are_listed_with_their_verifier(tmp_path: Path) -> None:
    page = section(tmp_path, {"arithmetic": RECORD, "rg/gcd": RECORD})
    text = page.text
    assert "✓ no alert" in text
    assert "Audits of 2 domains, all passed" in text
    assert "final-integer 2" in text
    assert "1,863" in text


def test_a_run_that_trained_without_audits_says_so(tmp_path: Path) -> None:
    assert "✗ not audited" in section(tmp_path, "off").text


@pytest.mark.parametrize("audits", [None, 3, [], {}, "yes"])
def test_what_is_no_record_is_said_to_be_missing(tmp_path: Path, audits: Json) -> None:
    assert "no record of audits" in section(tmp_path, audits).text


@pytest.mark.parametrize("record", [None, "x", {"verifier": 3, "verdicts": "many"}])
def test_a_damaged_record_is_a_gap(tmp_path: Path, record: Json) -> None:
    assert "–" in section(tmp_path, {"arithmetic": record}).text


def test_alerts_come_first_and_cannot_be_markup(tmp_path: Path) -> None:
    page = section(tmp_path, "off", ("fine", "<script>alert(1)</script>"))
    assert "✓ no alert" not in page.text
    assert "step 1: <script>alert(1)</script>" in page.text
    assert not page.all("script")
