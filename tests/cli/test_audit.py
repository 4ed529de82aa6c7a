from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_support import headrace
from headrace.errors import Exit


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    headrace("init", "my-domain")
    yield tmp_path
    sys.modules.pop("my_domain", None)


def weaken(here: Path) -> None:
    """Make the verifier of the pack look for its answer anywhere in the text."""
    pack = here / "my-domain" / "my_domain.py"
    source = pack.read_text()
    strict = r'set(re.findall(r"\d+", text)) == {str(answer)}'
    assert strict in source
    pack.write_text(source.replace(strict, "str(answer) in text"))


def test_a_pack_that_passes_says_so_on_a_line_and_is_recorded(here: Path) -> None:
    done = headrace("audit", "my-domain", "--html", "page.html")
    assert done.code == 0, done.out + done.err
    (line,) = done.out.splitlines()
    assert line.split()[:3] == ["my-domain", "✓", "pass"]
    assert done.err == "report: page.html\n"
    assert "my-domain" in (here / "page.html").read_text()
    assert len(list((here / "cache" / "audits").glob("*.json"))) == 1


def test_a_pack_that_fails_shows_the_worst_case_first_and_exits_3(here: Path) -> None:
    weaken(here)
    done = headrace("audit", "my-domain", "--quick")
    assert done.code == Exit.GATE
    lines = done.out.splitlines()
    assert lines[0].startswith("my-domain: ")
    labels = [line.split()[0] for line in lines[1:] if line.startswith("  ") and ":" in line]
    for label in ("expected:", "task:", "reference:", "attempt:", "score:", "evidence:"):
        assert label in labels
    assert "✗ fail" in lines[-1]
    page = Path(done.err.removeprefix("report: ").strip())
    assert page.is_relative_to(here / "cache")
    assert page.is_file()
    assert not list((here / "cache" / "audits").glob("*.json"))


def test_json_is_the_report_and_nothing_else(here: Path) -> None:
    weaken(here)
    done = headrace("audit", "my-domain", "--quick", "--json")
    assert done.code == Exit.GATE
    assert (done.json["domain"], done.json["verdict"]) == ("my-domain", "fail")
    worst = done.json["findings"][0]
    assert {"probe", "text", "score", "evidence", "expected", "prompt"} <= set(worst)
    both = headrace("audit", "my-domain", "arithmetic", "--quick", "--json").json
    assert [report["domain"] for report in both["reports"]] == ["my-domain", "arithmetic"]
    assert both["verdict"] == "fail"


def test_a_pattern_audits_whatever_matches_each_once(here: Path) -> None:
    done = headrace("audit", "arith*", "arithmetic", "--quick")
    assert done.code == 0, done.out
    assert [line.split()[0] for line in done.out.splitlines()] == ["arithmetic"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name domains or kinds"),
        (["--all", "arithmetic"], "name domains or kinds"),
        (["arithmatic"], "did you mean arithmetic?"),
        (["sqll"], "did you mean sql?"),
        (["nothing/*"], "matches 'nothing/*'"),
    ],
)
def test_what_cannot_be_audited_is_a_usage_error(arguments: list[str], says: str) -> None:
    done = headrace("audit", *arguments)
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert says in done.err


def test_a_kind_is_audited_with_its_specimens_under_its_own_name(here: Path) -> None:
    done = headrace("audit", "tool-calls", "--quick", "--json")
    assert (done.code, done.json["domain"], done.json["verdict"]) == (0, "tool-calls", "pass")


# --- verifiers ---------------------------------------------------------------------------------


def test_kinds_are_listed_and_shown_with_limits_and_tricks() -> None:
    rows = headrace("verifiers", "ls", "--json").json
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
    assert {"math-answer", "sql", "code-functions", "judge"} <= {row["id"] for row in rows}
    assert all(row["version"] and row["title"] and row["surfaces"] for row in rows)
    text = headrace("verifiers", "ls").out
    assert all(row["title"] in text for row in rows)
    shown = headrace("verifiers", "show", "sql", "--json").json
    assert shown["limits"]
    assert {"text", "sql"} == {trick["surface"] for trick in shown["tricks"]}
    told = headrace("verifiers", "show", "sql").out
    assert "headrace audit sql" in told
    assert all(trick["title"] in told for trick in shown["tricks"])
    assert headrace("verifiers", "show", "sqll").code == Exit.USAGE
