from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from headrace.data import Catalogue, TaskSource
from headrace.data.packs import GROUP
from headrace.protocols import Domain
from headrace.recipe import DomainSpec, TaskSpec
from headrace_arithmetic import TIERS, Arithmetic
from headrace_reasoning_gym.table import table

PAGE = (Path(__file__).parents[2] / "docs" / "domains.md").read_text("utf-8")


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The page's own pack as an importable module."""
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(source.splitlines()) <= 40
    (tmp_path / "my_package.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_package"
    sys.modules.pop("my_package", None)


def test_the_pack_of_the_page_works_as_it_stands(example: str) -> None:
    (line,) = re.findall(r"^(\w+) = \"my_package:pack\"$", PAGE, re.MULTILINE)
    points = [EntryPoint(line, f"{example}:pack", GROUP)]
    with Catalogue(points) as catalogue:
        assert catalogue.names() == ["spelling"]
        domains: dict[str, Domain] = {"spelling": catalogue.open("spelling")}
        tasks = TaskSource(TaskSpec(domains=(DomainSpec(name="spelling"),)), domains, seed=1)
        task = tasks.next()
        heldout = tasks.heldout(50)
    assert task.messages[0].text == f"Spell '{task.problem}' backwards."
    verifier = domains["spelling"].verifier
    assert verifier.judge(task, f" {task.problem[::-1].upper()}\n").solved
    assert verifier.judge(task, "").score == 0.0
    assert len({entry.problem for entry in heldout}) == 50
    assert task.problem not in {entry.problem for entry in heldout}


def test_the_numbers_of_the_page_are_those_of_the_packs() -> None:
    assert len(TIERS) == 10
    assert "ten tiers" in PAGE
    assert Arithmetic().size(0) == 100 * 12
    assert "twelve phrasings" in PAGE
    assert f"the {len(table().generators)} generators of reasoning-gym {table().version}" in PAGE
    default = {name for name, entry in table().generators.items() if entry.levels == (None,)}
    assert default == {"acre", "gsm_symbolic", "list_functions", "knight_swap"}
    assert all(f"`{name}`" in PAGE for name in default)
