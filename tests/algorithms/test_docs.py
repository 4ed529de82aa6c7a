from __future__ import annotations

import re
from pathlib import Path

from headrace.recipe import PRESETS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "algorithms.md").read_text()


def test_every_test_that_the_page_names_exists():
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 10
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_the_page_names_every_preset():
    assert [preset for preset in PRESETS if f"`{preset}`" not in PAGE] == []
