"""Where a recipe's values come from, and how each is attributed."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.configure import keys, load_recipe, parse_recipe, shipped_recipes
from headrace.errors import Exit, RecipeError
from headrace.recipe import PRESETS, Recipe

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def refused(ref: str, *overrides: str) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        load_recipe(ref, overrides)
    assert caught.value.exit_code == Exit.USAGE == 2
    return caught.value


# --- sources -------------------------------------------------------------------------------


def test_every_shipped_recipe_is_valid_named_after_its_file_and_described() -> None:
    shipped = shipped_recipes()
    assert {recipe.name for recipe in shipped} >= {"quickstart", "many-domains", "smoke"}
    for recipe in shipped:
        resolved = load_recipe(recipe.name).recipe
        assert resolved.name == recipe.name
        assert resolved.description == recipe.description != ""
        assert "\n" not in recipe.description


def test_a_toml_file_extends_a_shipped_recipe_and_keeps_what_it_does_not_say(write: Write) -> None:
    mine = write("mine.toml", 'extends = "quickstart"\n[play]\ngroups = 3\n')
    base, resolved = load_recipe("quickstart").recipe, load_recipe(mine)
    assert resolved.recipe.play == base.play.model_copy(update={"groups": 3})
    assert resolved.recipe.learner == base.learner
    assert resolved.origins["play.groups"] == f"{mine}:3"
    assert resolved.origins["play.max_new_tokens"] == "recipe quickstart"


def test_a_file_is_named_after_itself_and_not_after_what_it_extends(write: Write) -> None:
    recipe = load_recipe(write("My Recipe.toml", 'extends = "quickstart"\n')).recipe
    assert (recipe.name, recipe.description) == ("my-recipe", "")
    assert load_recipe(write("a.toml", 'name = "chosen"\n')).recipe.name == "chosen"


def test_extends_is_a_chain_with_paths_relative_to_the_file(write: Write, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    write("deep/base.toml", "steps = 3\nseed = 5\n")
    write("middle.toml", 'extends = "deep/base.toml"\nsteps = 4\n')
    top = write("top.toml", 'extends = "middle.toml"\nthreads = 1\n')
    recipe = load_recipe(top).recipe
    assert (recipe.seed, recipe.steps, recipe.threads) == (5, 4, 1)


def test_recipes_that_extend_each_other_are_refused(write: Write) -> None:
    first = write("first.toml", 'extends = "second.toml"\n')
    write("second.toml", 'extends = "first.toml"\n')
    assert "extend each other" in str(refused(first))


def test_extends_never_runs_code(write: Write, tmp_path: Path) -> None:
    write("evil.py", f"open({str(tmp_path / 'ran')!r}, 'w')\ndef f(): return {{}}\n")
    assert "would run code" in str(refused(write("a.toml", 'extends = "evil.py:f"\n')))
    assert not (tmp_path / "ran").exists()


def test_a_python_function_may_return_a_recipe_or_a_dict(write: Write) -> None:
    text = (
        "from headrace.recipe import *\n"
        "gspo = AlgorithmSpec(preset='gspo', clip_low=0.1)\n"
        "def typed(): return Recipe(steps=7, algorithm=gspo)\n"
        "def table(): return {'extends': 'quickstart', 'learner': {'betas': (0.8, 0.9)}}\n"
        "def wrong(): return 3\n"
    )
    module = write("recipes_of_mine.py", text)
    typed = load_recipe(f"{module}:typed")
    assert (typed.recipe.steps, typed.recipe.name) == (7, "typed")
    assert typed.origins["steps"] == typed.origins["algorithm.clip_low"] == f"{module}:typed"
    assert typed.origins["algorithm.clip_high"] == "preset gspo"
    assert typed.origins["play.groups"] == "default"
    assert load_recipe(f"{module}:table").recipe.learner.betas == (0.8, 0.9)
    assert "got int" in str(refused(f"{module}:wrong"))
    assert "no function 'missing'" in str(refused(f"{module}:missing"))


def test_a_module_is_found_in_the_working_directory(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("some_recipes_here.py", "def f(): return {'steps': 2}\n")
    monkeypatch.chdir(tmp_path)
    assert load_recipe("some_recipes_here:f").recipe.steps == 2
    assert "cannot import no_such_module" in str(refused("no_such_module:f"))


def test_the_recipe_json_of_a_run_is_a_recipe(write: Write) -> None:
    recipe = load_recipe("quickstart", ["seed=3"]).recipe
    stored = write("recipe.json", json.dumps(recipe.model_dump(mode="json")))
    assert load_recipe(stored).recipe == recipe
    assert parse_recipe(json.loads(Path(stored).read_text()), where=stored) == recipe
    with pytest.raises(RecipeError, match=r"stepz: unknown key"):
        parse_recipe({"stepz": 1}, where=stored)


@pytest.mark.parametrize(
    ("ref", "what", "hint"),
    [
        ("quickstrat", "no recipe 'quickstrat'", "did you mean quickstart?"),
        ("no/such.toml", "no such recipe file (no/such.toml)", "headrace recipes ls"),
    ],
)
def test_an_unknown_recipe_names_what_there_is(ref: str, what: str, hint: str) -> None:
    error = refused(ref)
    assert str(error) == what
    assert hint in error.hint


def test_broken_toml_names_file_and_line(write: Write) -> None:
    broken = write("broken.toml", "steps = 1\nseed = = 2\n")
    error = refused(broken)
    assert "line 2" in str(error)
    assert broken in str(error)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    assert "cannot read the recipe" in str(refused(str(tmp_path / "bytes.toml")))


# --- --set and presets ---------------------------------------------------------------------


def test_origins_cover_every_leaf_and_say_who_set_it() -> None:
    resolved = load_recipe("quickstart", ["play.groups=16", "algorithm.preset=cispo"])
    assert set(resolved.origins) == set(resolved.values())
    assert resolved.origins["play.groups"] == "--set"
    assert resolved.origins["algorithm.preset"] == "--set"
    assert resolved.origins["algorithm.clip"] == "preset cispo"
    assert resolved.origins["algorithm.gamma"] == "default"
    assert resolved.origins["learner.learning_rate"] == "recipe quickstart"


def test_override_values_are_toml_with_bare_text_as_the_fallback() -> None:
    recipe = load_recipe(
        "quickstart",
        [
            "model.source=hf:org/name",
            "play.system_prompt=Answer: a = b",
            "learner.learning_rate=1e-4",
            "evaluate.tiers=[0, 2]",
            "deterministic=True",
            'tasks.domains=[{name="rg/*", weight=2}, {name="arithmetic"}]',
        ],
    ).recipe
    assert recipe.model.source == "hf:org/name"
    assert recipe.play.system_prompt == "Answer: a = b"
    assert recipe.learner.learning_rate == 1e-4
    assert recipe.evaluate.tiers == (0, 2)
    assert recipe.deterministic is True
    assert [(d.name, d.weight) for d in recipe.tasks.domains] == [
        ("rg/*", 2.0),
        ("arithmetic", 1.0),
    ]


def test_a_number_in_the_path_selects_a_list_element_also_of_a_default_list(write: Write) -> None:
    empty = write("empty.toml", "")
    resolved = load_recipe(empty, ["tasks.domains.0.weight=2", "tasks.domains.1.name=rg/gcd"])
    assert [(d.name, d.weight) for d in resolved.recipe.tasks.domains] == [
        ("arithmetic", 2.0),
        ("rg/gcd", 1.0),
    ]
    assert resolved.origins["tasks.domains.0.name"] == "default"
    assert resolved.origins["tasks.domains.0.weight"] == "--set"
    assert load_recipe(empty, ["evaluate.tiers.0=1"]).recipe.evaluate.tiers == (1,)
    assert "not an index" in str(refused(empty, "tasks.domains.2.name=x"))


def test_none_switches_off_what_can_be_off_and_is_a_word_elsewhere(write: Write) -> None:
    mine = write("mine.toml", '[model.lora]\nrank = 4\n[learner]\ngradient_clip = "none"\n')
    assert load_recipe(mine).recipe.learner.gradient_clip is None
    assert load_recipe(mine).recipe.model.lora is not None
    off = load_recipe(mine, ["model.lora=none", "algorithm.clip=none"]).recipe
    assert off.model.lora is None
    assert off.algorithm.clip == "none"


def test_a_table_that_is_off_by_default_is_switched_on_by_a_key_of_it() -> None:
    lora = load_recipe("quickstart", ["model.lora.rank=4"]).recipe.model.lora
    assert lora is not None
    assert lora.rank == 4


@given(st.permutations(["algorithm.preset=gspo", "algorithm.clip_low=0.1", "seed=4"]))
def test_the_order_of_overrides_does_not_matter_to_a_preset(overrides: list[str]) -> None:
    algorithm = load_recipe("quickstart", overrides).recipe.algorithm
    assert (algorithm.clip_low, algorithm.clip_high) == (0.1, PRESETS["gspo"]["clip_high"])


def test_choosing_a_preset_forgets_what_lower_layers_said_about_the_axes(write: Write) -> None:
    base = write("base.toml", "[algorithm]\npreset = 'dapo'\nclip_low = 0.3\nupdates = 2\n")
    algorithm = load_recipe(base, ["algorithm.preset=grpo"]).recipe.algorithm
    assert (algorithm.clip_low, algorithm.clip_high, algorithm.dynamic_sampling) == (
        0.2,
        0.2,
        False,
    )
    assert algorithm.updates == 2


# --- refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("learner.learnin_rate=1", "learner.learning_rate"),
        ("learning_rate=1", "learner.learning_rate"),
        ("learner.lr=1", "learner.learning_rate"),
        ("tasks.domains.0.wieght=1", "tasks.domains.0.weight"),
        ("paly.groups=1", "play"),
    ],
)
def test_an_unknown_key_names_itself_and_the_nearest(override: str, nearest: str) -> None:
    error = refused("quickstart", override)
    key = override.partition("=")[0]
    shown = "paly" if key == "paly.groups" else key
    assert str(error) == f"{shown}: unknown key; the nearest is {nearest} (from --set)"
    assert error.hint == f"did you mean {nearest}?"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "learner.learning_rate=-1e-5",
            "learner.learning_rate: should be greater than 0 (got -1e-05, from --set)",
        ),
        ("play.groups=1.5", "play.groups: should be a valid integer (got 1.5, from --set)"),
        ("steps=true", "steps: should be a valid integer (got True, from --set)"),
        ("steps='7'", "steps: should be a valid integer (got '7', from --set)"),
        (
            "play.temperature=nan",
            "play.temperature: should be a finite number (got nan, from --set)",
        ),
        ("model=5", "model: should be a table (got 5, from --set)"),
        ("model.lora.targets=3", "model.lora.targets: should be a list (got 3, from --set)"),
        ("tasks.domains=[{}]", "tasks.domains.0.name: is required and missing"),
        ("tasks.curriculum.up=0.01", "tasks.curriculum: down (0.02) must be below up (0.01)"),
        ("foo", "--set needs KEY=VALUE, got 'foo'"),
        ("=3", "--set needs KEY=VALUE, got '=3'"),
        ("a..b=3", "--set needs KEY=VALUE, got 'a..b=3'"),
    ],
)
def test_a_bad_value_names_key_value_and_origin(override: str, message: str) -> None:
    assert str(refused("quickstart", override)) == message


def test_a_bad_value_in_a_file_names_the_line(write: Write) -> None:
    text = "[[tasks.domains]]\nname = 'a'\n[[tasks.domains]]\nname = 'b'\nweight = 0\n"
    bad = write("bad.toml", text)
    wanted = f"tasks.domains.1.weight: should be greater than 0 (got 0, from {bad}:5)"
    assert str(refused(bad)) == wanted


def test_all_problems_are_listed_at_once() -> None:
    error = refused("quickstart", "play.groups=0", "seed=-1", "model.sauce=x")
    lines = str(error).splitlines()
    assert lines[0] == "3 problems in recipe quickstart:"
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "seed",
        "model.sauce",
        "play.groups",
    ]
    assert error.hint == "did you mean model.source?"


def test_a_refusal_survives_pickling() -> None:
    error = refused("quickstart", "learner.lr=1")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(again), str(again), again.hint) == (RecipeError, str(error), error.hint)


def test_the_listed_keys_are_exactly_those_of_a_recipe() -> None:
    tables = {path for path, key in keys().items() if key.table}
    values = Recipe().model_dump()
    assert {path for path in keys() if "." not in path} == set(values)
    assert {p.removeprefix("play.") for p in keys() if p.startswith("play.")} == set(values["play"])
    assert {"model", "model.lora", "tasks.domains", "algorithm.kl"} <= tables
