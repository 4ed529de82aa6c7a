from __future__ import annotations

from pathlib import Path

import pytest

from cli_support import headrace


def test_more_than_twenty_domains_in_one_run_each_show_pass_rate_tier_and_share(
    tmp_path: Path,
) -> None:
    done = headrace("run", "smoke", "--set", "steps=3", "--runs", str(tmp_path))
    assert done.code == 0, done.err
    shown = headrace("show", "latest", "--runs", str(tmp_path), "--json")
    domains = shown.json["domains"]
    assert len(domains) >= 20
    assert sum(name.startswith("rg/") for name in domains) >= 20
    assert sum(part["share"] for part in domains.values()) == pytest.approx(1.0, abs=1e-6)
    practised = [part for part in domains.values() if part["share"] > 0]
    assert len(practised) >= 15
    for part in practised:
        assert 0 <= part["pass_rate_so_far"] <= 1
        assert 0 <= part["tier"] < part["tiers"]
    page = (Path(done.out.strip()) / "report.html").read_text()
    assert all(name in page for name in domains)
