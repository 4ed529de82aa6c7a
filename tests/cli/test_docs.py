"""The documentation of the command line says only what is so."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from cli_support import headrace
from headrace.cli.main import app
from headrace.configure import ResolvedPlan, load, load_recipe, shipped_recipes
from headrace.configure.schema import AXES
from headrace.errors import Exit
from headrace.recipe import PRESETS, PreferenceSpec, Recipe
from headrace.verify import kinds

DOCS = Path(__file__).parents[2] / "docs"
CLI = (DOCS / "cli.md").read_text()
RECIPES = (DOCS / "recipes.md").read_text()
SANDBOXES = (DOCS / "sandboxes.md").read_text()
VERIFIERS = (DOCS / "verifiers.md").read_text()
AUDIT = (DOCS / "audit.md").read_text()
STAGES = (DOCS / "stages.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    parts = text.split(f"```{language}\n")[1:]
    return [part.split("```")[0] for part in parts]


COMMANDS = [
    line
    for text in (CLI, RECIPES, SANDBOXES, VERIFIERS, AUDIT, STAGES)
    for block in blocks(text, "console")
    for line in block.splitlines()
]


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_in_the_docs_parses(line: str) -> None:
    program, *arguments = shlex.split(line)
    assert program == "headrace"
    command = get_command(app)
    while isinstance(command, TyperGroup):
        command = command.commands[arguments.pop(0)]
    with command.make_context("headrace", arguments):
        pass


@pytest.mark.parametrize("line", [line for line in COMMANDS if "run quickstart --set" in line])
def test_every_override_in_the_docs_is_valid(line: str) -> None:
    words = shlex.split(line)
    overrides = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    assert load_recipe("quickstart", overrides).recipe.name == "quickstart"


def test_the_recipes_in_the_docs_are_valid(tmp_path: Path) -> None:
    (toml,) = blocks(RECIPES, "toml")
    (tmp_path / "mine.toml").write_text(toml)
    assert len(load_recipe(str(tmp_path / "mine.toml")).recipe.tasks.domains) == 2
    (python,) = blocks(RECIPES, "python")
    (tmp_path / "recipes.py").write_text(python)
    assert load_recipe(f"{tmp_path / 'recipes.py'}:wide").recipe.play.groups == 32


def test_the_plan_in_the_docs_is_valid_with_its_overrides_and_its_guard(tmp_path: Path) -> None:
    plan, guard = blocks(STAGES, "toml")
    (tmp_path / "plan.toml").write_text(f"{plan}\n{guard}")
    (line,) = [line for line in COMMANDS if "plan.toml --set" in line]
    words = shlex.split(line)
    overrides = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    resolved = load(str(tmp_path / "plan.toml"), overrides)
    assert isinstance(resolved, ResolvedPlan)
    sample, imitate, reinforce = (stage.recipe for stage in resolved.plan.stages)
    assert (sample.steps, imitate.learner.learning_rate) == (4, 1e-5)
    assert [watched.action for watched in reinforce.guard.suites] == ["rollback", "alert"]


def test_the_docs_of_stages_name_every_method_and_loss() -> None:
    methods = get_args(Recipe.model_fields["method"].annotation)
    losses = get_args(PreferenceSpec.model_fields["loss"].annotation)
    assert [word for word in (*methods, *losses) if f"`{word}`" not in STAGES] == []


def test_the_docs_name_every_verb_preset_axis_recipe_and_exit_code() -> None:
    command = get_command(app)
    assert isinstance(command, TyperGroup)
    assert [verb for verb in command.commands if f"`{verb}" not in CLI] == []
    wanted = {*PRESETS, *AXES, *(recipe.name for recipe in shipped_recipes())}
    assert [word for word in wanted if f"`{word}`" not in RECIPES] == []
    assert [code.value for code in Exit if f"| {code.value} |" not in CLI] == []


def test_the_counts_of_domains_in_the_docs_are_right() -> None:
    for name, extra in (("many-domains", 1), ("smoke", 0)):
        count = len(load_recipe(name).recipe.tasks.domains)
        (row,) = [line for line in RECIPES.splitlines() if line.startswith(f"| `{name}`")]
        assert f" {count - extra} " in row


def test_the_starter_recipe_is_toml_of_what_the_docs_promise(tmp_path: Path) -> None:
    assert headrace("init", str(tmp_path / "mine.toml")).code == 0
    starter = tomllib.loads((tmp_path / "mine.toml").read_text())
    assert starter["extends"] == "quickstart"


def test_the_verifier_in_the_docs_judges_as_they_say() -> None:
    (example,) = blocks(VERIFIERS, "python")
    assert "assert verdict.score == 1.0" in example
    subprocess.run([sys.executable, "-W", "error", "-c", example], check=True, timeout=120)


def test_the_docs_name_every_kind_of_verifier() -> None:
    assert [name for name in kinds.names() if f"`{name}`" not in VERIFIERS] == []
