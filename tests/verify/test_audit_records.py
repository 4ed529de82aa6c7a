from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from audit_support import NO_TRICKS, REF, Custom, Honest, Sums, one_trick, right
from headrace.errors import Exit, GateFailed
from headrace.kit import Asked, Question, Rule
from headrace.types import VerifierRef
from headrace.verify.audit import QUICK, audit, digests, ensure_audited, record, recorded
from headrace.verify.audit.digests import code_digest
from headrace.verify.audit.page import page
from headrace.verify.audit.records import records_root, require_passed


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def silent(label: str, done: int, total: int) -> None:
    del label, done, total


class VersionTwo(Honest):
    ref = VerifierRef(REF.id, "2")


# --- records -----------------------------------------------------------------------------------


def test_a_passed_audit_counts_until_version_tricks_or_code_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    domain = Sums(Honest())
    assert recorded(domain, NO_TRICKS) is None
    kept = record(audit(domain, QUICK, corpus=NO_TRICKS))
    assert recorded(domain, NO_TRICKS) == kept
    assert (kept.domain, kept.verifier, kept.quick) == ("sums", REF, True)
    assert recorded(Sums(VersionTwo()), NO_TRICKS) is None
    assert recorded(domain, one_trick("PASS")) is None
    monkeypatch.setattr("headrace.verify.audit.records.code_digest", lambda domain: "changed")
    assert recorded(domain, NO_TRICKS) is None


def test_a_failed_audit_is_never_recorded(cache: Path) -> None:
    with pytest.raises(ValueError, match="is fail"):
        record(audit(Sums(Custom(lambda task, text: 1.0)), QUICK, corpus=NO_TRICKS))
    assert not cache.exists()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"domain": "sums"}', "null"])
def test_a_damaged_or_foreign_record_is_none(damage: str) -> None:
    domain = Sums(Honest())
    kept = record(audit(domain, QUICK, corpus=NO_TRICKS))
    (file,) = records_root().glob("*.json")
    raw = json.loads(file.read_text())
    file.write_text(damage)
    assert recorded(domain, NO_TRICKS) is None
    file.write_text(json.dumps(raw | {"domain": "other"}))
    assert recorded(domain, NO_TRICKS) is None
    file.write_text(json.dumps(raw))
    assert recorded(domain, NO_TRICKS) == kept


def test_the_code_of_a_pack_counts_even_where_the_kit_hides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "def ask(tier, rng): ...\ndef judge(answer, text): ...\n"
    found: list[str] = []
    for version, more in enumerate(("", "# another comment\n")):
        directory = tmp_path / f"version_{version}"
        directory.mkdir()
        (directory / "some_pack.py").write_text(source + more)
        monkeypatch.syspath_prepend(str(directory))
        monkeypatch.delitem(sys.modules, "some_pack", raising=False)
        pack = importlib.import_module("some_pack")
        digests.forget()
        rule = Rule("some-pack", "1", pack.judge)
        found.append(code_digest(Asked("some-pack", tiers=1, ask=pack.ask, verifier=rule)))
    assert found[0] != found[1]


# --- the gate before training ------------------------------------------------------------------


def test_what_is_not_recorded_is_audited_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.verify.audit.records.shipped", lambda: NO_TRICKS)
    monkeypatch.setattr("headrace.verify.audit.runner.shipped", lambda: NO_TRICKS)
    told: list[tuple[str, int, int]] = []
    domains = {"sums": Sums(Honest())}
    first = ensure_audited(domains, progress=lambda *said: told.append(said))
    assert told == [("auditing verifiers", 1, 1)]
    again = ensure_audited(domains, progress=lambda *said: told.append(said))
    assert len(told) == 1
    assert first == again
    assert json.loads(json.dumps(first["sums"].to_json()))["verifier"] == {
        "id": "sum",
        "version": "1",
    }


def test_a_verifier_that_fails_stops_training_with_the_reason_and_the_command() -> None:
    gullible = Custom(lambda task, text: right(task, text) or float(text == "yes"))
    domains = {"good": Sums(Honest()), "bad": Sums(gullible)}
    with pytest.raises(GateFailed) as caught:
        require_passed(domains, progress=silent, corpus=NO_TRICKS)
    assert caught.value.exit_code == Exit.GATE
    assert "bad may not be trained on" in caught.value.what
    assert "constant: an attempt without merit scores 1, such as 'yes'" in caught.value.what
    assert caught.value.hint == "headrace audit bad"
    assert recorded(domains["good"], NO_TRICKS) is not None
    assert recorded(domains["bad"], NO_TRICKS) is None


def test_an_inconclusive_audit_stops_training_too() -> None:
    unproven = {"sums": Sums(Honest(), proven=False)}
    with pytest.raises(GateFailed, match="was inconclusive: unproven"):
        require_passed(unproven, progress=silent, corpus=NO_TRICKS)


def test_nothing_to_audit_is_nothing_to_do() -> None:
    assert ensure_audited({}, progress=silent) == {}


# --- the page ----------------------------------------------------------------------------------

_HOSTILE = "<script>alert(1)</script>&<img src=x onerror=alert(2)>\x00\u202e"


class Tags(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_one_file_that_escapes_whatever_it_shows() -> None:
    def ask(tier: int, rng: object) -> Question:
        del tier, rng
        return Question(prompt=_HOSTILE, answer=_HOSTILE, reference=_HOSTILE)

    rule = Rule("hostile", "1", lambda answer, text: text.endswith(_HOSTILE))
    report = audit(
        Asked(_HOSTILE, tiers=1, ask=ask, verifier=rule), QUICK, corpus=one_trick(_HOSTILE)
    )
    assert report.verdict == "fail"
    parsed = Tags()
    parsed.feed(page([report], one_trick(_HOSTILE)))
    assert "script" not in parsed.seen
    assert "img" not in parsed.seen
    assert parsed.text.count("alert(1)") > 3
    assert not [name for name, _ in parsed.attributes if name.startswith("on")]
    assert not [value for name, value in parsed.attributes if name in ("src", "href") and value]
    assert "viewport" in {value for name, value in parsed.attributes if name == "name"}


def test_a_page_of_several_shows_what_failed_first() -> None:
    good = audit(Sums(Honest()), QUICK, corpus=NO_TRICKS)
    bad = audit(Sums(Custom(lambda task, text: 1.0)), QUICK, corpus=NO_TRICKS)
    shown = page([replace(good, domain="good"), replace(bad, domain="bad")], NO_TRICKS)
    parsed = Tags()
    parsed.feed(shown)
    assert parsed.text.index("✗ fail") < parsed.text.index("✓ pass")
    assert "1 pass, 1 fail" in parsed.text
    assert "prefers-color-scheme: dark" in shown
