"""`headrace init my-domain`: what it writes works as it stands, and refuses to overwrite."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_support import headrace
from headrace.configure import load_recipe
from headrace.data import Catalogue
from headrace.errors import UsageError
from headrace.protocols import reference_of


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory to work in; what packs there make importable is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("my_domain", None)


def test_the_pack_is_found_by_its_name_from_the_directory_above(here: Path) -> None:
    made = headrace("init", "my-domain")
    assert made.code == 0
    assert made.out == "my-domain\n"
    assert "headrace audit my-domain" in made.err
    with Catalogue() as catalogue:
        domain = catalogue.open("my-domain")
        task = domain.task(2, 5)
        reference = reference_of(domain, task)
        assert reference is not None
        assert domain.verifier.judge(task, reference).solved
        assert domain.verifier.judge(task, task.messages[0].text).score == 0.0
        splits = {domain.task(0, index).split for index in range(50)}
    assert splits == {"train", "heldout"}
    assert len((here / "my-domain" / "my_domain.py").read_text().splitlines()) <= 36
    assert load_recipe("my-domain/recipe.toml").recipe.tasks.domains[0].name == "my-domain"


def test_its_own_test_passes_its_audit(here: Path) -> None:
    headrace("init", "my-domain")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "my-domain"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_audit_of_a_fresh_pack_is_quick_and_passes(here: Path) -> None:
    headrace("init", "my-domain")
    done = headrace("audit", "my-domain", "--json")
    assert done.code == 0, done.err
    assert done.json["verdict"] == "pass"


def test_nothing_is_overwritten(here: Path) -> None:
    headrace("init", "my-domain")
    (here / "my-domain" / "my_domain.py").write_text("mine\n")
    again = headrace("init", "my-domain")
    assert again.code == 2
    assert "there is a file already" in again.err
    assert (here / "my-domain" / "my_domain.py").read_text() == "mine\n"


@pytest.mark.parametrize("name", ["My-Domain", "my_domain", "../out", "a/b", "-x-", "é"])
def test_a_name_that_cannot_be_a_domain_is_refused(here: Path, name: str) -> None:
    done = headrace("init", "--", name)
    assert done.code == 2
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    "project",
    ["", "project = 3", '[project.entry-points."headrace.packs"]\nother = "x:y"', "["],
)
def test_a_directory_that_announces_no_such_pack_is_no_pack(here: Path, project: str) -> None:
    (here / "thing").mkdir()
    (here / "thing" / "pyproject.toml").write_text(project)
    with Catalogue() as catalogue, pytest.raises(UsageError):
        catalogue.open("thing")
