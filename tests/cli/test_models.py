"""What `headrace models` says of the models that runs have made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from cards_support import BASE, artifact_in, card_of, filler
from cli_support import headrace
from headrace.errors import Exit
from headrace.policy.load import load
from headrace.policy.tiny import write_tiny
from headrace.store.cards import DataVersion, Parent, SuiteScore
from headrace.store.models import Artifact, read_card, write_artifact

HOSTILE = "\x1b[2J\x1b]0;owned\x07<b>[x](javascript:y)\n\n../../etc"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def tiny_artifact(runs: Path, run: str, seed: int) -> Artifact:
    """An artifact with a real (tiny, random) model."""

    def fill(directory: Path) -> None:
        write_tiny("llama", directory, seed=seed)

    base = Parent(source="tiny:llama", digest="ab" * 32)
    return write_artifact(runs / run / "artifact", card_of(parents=(base,)), fill)


# --- ls ------------------------------------------------------------------------------------


def test_ls_shows_models_made_here_beside_those_in_the_cache(runs: Path) -> None:
    assert headrace("models", "pull", "tiny:llama").code == 0
    made = artifact_in(runs, "quick--tiny--aaaaaa")
    rows = headrace("models", "ls", "--runs", str(runs), "--json").json
    by_kind = {row["kind"]: row for row in rows}
    assert set(by_kind) == {"policy", "base"}
    row = by_kind["policy"]
    assert (row["id"], row["name"], row["state"]) == (
        made.card.id,
        "quick--tiny--aaaaaa",
        "complete",
    )
    assert (row["base"], row["score"]) == ([BASE.source], 0.62)
    assert (row["bytes"], row["path"]) == (made.card.size, str(made.path))
    assert by_kind["base"]["source"] == "tiny:llama"
    text = headrace("models", "ls", "--runs", str(runs)).out
    first, second = text.split("\n\n")
    assert first.startswith(f"made in {runs}:\nID ")
    assert made.card.id in first
    assert "0.62" in first
    assert second.startswith("base models in the cache:\nSOURCE ")
    assert "tiny:llama" in second


def test_ls_says_which_model_is_damaged_and_why(runs: Path) -> None:
    made = artifact_in(runs, "run")
    (made.path / "card.json").write_text("{}")
    (row,) = headrace("models", "ls", "--runs", str(runs), "--json").json
    assert (row["state"], row["id"]) == ("damaged", None)
    assert "card.json" in row["reason"]
    assert "damaged: card.json" in headrace("models", "ls", "--runs", str(runs)).out


def test_ls_without_any_model_says_what_to_do(runs: Path) -> None:
    empty = headrace("models", "ls", "--runs", str(runs))
    assert (empty.code, empty.out) == (0, "")
    assert "headrace models pull" in empty.err


# --- show ----------------------------------------------------------------------------------


def test_show_prints_the_card(runs: Path) -> None:
    made = artifact_in(runs, "run")
    text = headrace("models", "show", made.card.id[:6], "--runs", str(runs)).out
    for said in (
        f"{made.card.id}  four-step/sft\n",
        "20 steps, 12,345 tokens, 1m02s",
        f"{BASE.source} {BASE.digest[:16]}",
        "chat.jsonl, 1,200 units, 3 refused",
        "older.jsonl, 100 units, replay",
        "math-answer 3, audit: pass",
        "0.300 [0.250, 0.350]",
        "+0.320 [+0.270, +0.370]",
        "held",
        str(made.path),
    ):
        assert said in text, said
    told = headrace("models", "show", "latest", "--runs", str(runs), "--json").json
    assert (told["id"], told["path"], told["seed"]) == (made.card.id, str(made.path), 7)
    assert told["scores"][0]["after"]["value"] == 0.62


def test_show_check_finds_damaged_weights(runs: Path) -> None:
    made = artifact_in(runs, "run")
    assert headrace("models", "show", "run", "--runs", str(runs), "--check").code == 0
    path = made.weights / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    assert headrace("models", "show", "run", "--runs", str(runs)).code == 0
    ended = headrace("models", "show", "run", "--runs", str(runs), "--check")
    assert (ended.code, ended.out) == (Exit.INFRASTRUCTURE, "")
    assert "does not match its SHA-256" in ended.err


def test_an_unknown_model_exits_2_and_names_the_nearest(runs: Path) -> None:
    artifact_in(runs, "models/careful", recipe="careful", stage="")
    for verb in ("show", "lineage"):
        ended = headrace("models", verb, "carefull", "--runs", str(runs))
        assert (ended.code, ended.out) == (Exit.USAGE, "")
        assert "did you mean careful?" in ended.err


# --- lineage -------------------------------------------------------------------------------


def test_lineage_draws_the_tree_with_data_scores_and_what_is_missing(runs: Path) -> None:
    sft = artifact_in(runs, "plan/sft", seed=1)
    parents = (
        Parent(source="stage:sft", artifact=sft.card.id, weight=0.75),
        Parent(source="gone", artifact="0" * 16, weight=0.25),
    )
    made = artifact_in(
        runs,
        "models/mean",
        recipe="mean",
        stage="",
        method="merge",
        kind="merged",
        parents=parents,
        data=(),
        scores=(),
    )
    lines = headrace("models", "lineage", "mean", "--runs", str(runs)).out.splitlines()
    assert lines == [
        f"{made.card.id} merged mean (merge)",
        f"├─ 0.75 x {sft.card.id} policy four-step/sft (sft)",
        f"│  │  data: chat.jsonl, 1,200 units, 3 refused, {'cd' * 8}",
        "│  │  data: older.jsonl, 100 units, replay",
        "│  │  heldout: 0.300 -> 0.620 +0.320 [+0.270, +0.370]",
        "│  │  general-text: 2.900 -> 2.950 +0.050 [+0.000, +0.100] held",
        f"│  └─ {BASE.source} {'ab' * 8} (not in the cache: headrace models pull {BASE.source})",
        f"└─ 0.25 x gone {'0' * 16} MISSING: it is not under {runs}",
    ]
    told = headrace("models", "lineage", "mean", "--runs", str(runs), "--json").json
    first, second = told["parents"]
    assert (first["weight"], first["card"]["id"]) == (0.75, sft.card.id)
    assert (second["card"], second["missing"]) == (None, f"it is not under {runs}")
    assert first["parents"][0]["cached"] is False


def test_a_model_of_many_domains_names_some_and_counts_the_rest(runs: Path) -> None:
    data = tuple(DataVersion(source=f"domain-{i}", digest="", units=i) for i in range(30))
    artifact_in(runs, "run", data=data)
    tree = headrace("models", "lineage", "run", "--runs", str(runs)).out
    assert "data: domain-2, 2 units\n" in tree
    assert "data: 27 more\n" in tree
    assert "domain-3," not in tree
    page = headrace("models", "show", "run", "--runs", str(runs)).out
    assert "domain-10, 10 units\n" in page
    assert "19 more\n" in page
    told = headrace("models", "show", "run", "--runs", str(runs), "--json").json
    assert len(told["data"]) == 30


def test_lineage_knows_the_base_models_in_the_cache(runs: Path) -> None:
    headrace("models", "pull", "tiny:llama")
    artifact_in(runs, "run", parents=(Parent(source="tiny:llama"),))
    assert headrace("models", "lineage", "run", "--runs", str(runs)).out.endswith("tiny:llama\n")
    told = headrace("models", "lineage", "run", "--runs", str(runs), "--json").json
    assert told["parents"][0]["cached"] is True


# --- merge ---------------------------------------------------------------------------------


def test_merge_averages_and_leaves_a_model_with_a_card(runs: Path) -> None:
    first, second = tiny_artifact(runs, "a", 1), tiny_artifact(runs, "b", 2)
    done = headrace(
        "models",
        "merge",
        first.card.id,
        "b",
        "--weights",
        "0.25,0.75",
        "--out",
        "mean",
        "--runs",
        str(runs),
    )
    assert done.code == 0, done.err
    path = Path(done.out.strip())
    assert path == runs / "models" / "mean"
    card = read_card(path, verify=True)
    assert (card.kind, card.title, card.method) == ("merged", "mean", "merge")
    assert [(p.artifact, p.weight) for p in card.parents] == [
        (first.card.id, 0.25),
        (second.card.id, 0.75),
    ]
    tensors = [
        load_file(directory / "model.safetensors")
        for directory in (first.weights, second.weights, path / "model")
    ]
    for name, mean in tensors[2].items():
        expected = 0.25 * tensors[0][name] + 0.75 * tensors[1][name]
        np.testing.assert_allclose(mean, expected, atol=1e-6)
    assert load(str(path / "model")).end_ids
    rows = headrace("models", "ls", "--runs", str(runs), "--json").json
    assert [row["base"] for row in rows if row["kind"] == "merged"] == [["tiny:llama"]]
    again = headrace("models", "merge", "a", "b", "--out", "mean", "--runs", str(runs))
    assert (again.code, again.out) == (Exit.USAGE, "")
    assert "already" in again.err


def test_merge_takes_base_models_too_and_even_weights(runs: Path) -> None:
    made = tiny_artifact(runs, "a", 1)
    done = headrace(
        "models", "merge", "a", "tiny:llama", "--out", "careful", "--runs", str(runs), "--json"
    ).json
    assert done["weights"] == [0.5, 0.5]
    parents = read_card(Path(done["path"])).parents
    assert [(p.artifact, p.source) for p in parents][1] == (None, "tiny:llama")
    assert parents[0].artifact == made.card.id
    assert len(parents[1].digest) == 64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "--out", "m"), "cannot be merged"),
        (("a", "b", "--out", "m", "--weights", "0.5"), "1 weights for 2 models"),
        (("a", "b", "--out", "m", "--weights", "half,half"), "are no weights"),
        (("a", "b", "--out", "m", "--weights", "nan,1"), "are no weights"),
        (("a", "b", "--out", "m", "--weights", "1,1"), "sum to 2"),
        (("a", "b", "--out", "../m"), "cannot be the name"),
        (("a", "missing", "--out", "m"), "no model 'missing'"),
        (("a", "adapter", "--out", "m"), "only whole policies"),
    ],
)
def test_merges_that_cannot_be_leave_nothing(
    runs: Path, arguments: tuple[str, ...], message: str
) -> None:
    for seed, run in enumerate(("a", "b")):
        artifact_in(runs, run, seed=seed)
    artifact_in(runs, "adapter", seed=3, kind="adapter")
    ended = headrace("models", "merge", *arguments, "--runs", str(runs))
    assert (ended.code, ended.out) == (Exit.USAGE, "")
    assert message in ended.err
    models = runs / "models"
    assert not models.exists() or list(models.iterdir()) == []


# --- hostile words -------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("ls",), ("show", "run"), ("lineage", "run")])
def test_words_in_a_card_cannot_drive_the_terminal(runs: Path, arguments: tuple[str, ...]) -> None:
    card = card_of(
        recipe=HOSTILE,
        stage=HOSTILE,
        method=HOSTILE,
        parents=(Parent(source=HOSTILE, digest=HOSTILE),),
        data=(DataVersion(source=HOSTILE, digest=HOSTILE, units=1),),
        scores=(SuiteScore(suite=HOSTILE),),
    )
    write_artifact(runs / "run" / "artifact", card, filler())
    done = headrace("models", *arguments, "--runs", str(runs))
    assert done.code == 0
    assert "javascript" in done.out
    assert all(c.isprintable() or c == "\n" for c in done.out)
    assert headrace("models", *arguments, "--runs", str(runs), "--json").code == 0
