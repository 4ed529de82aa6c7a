from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cards_support import BASE, artifact_in, card_of, filler, forge, resealed
from headrace.errors import Exit, ModelError, StorageError, UsageError
from headrace.store.cards import FileDigest, Parent, SuiteScore, parse_card
from headrace.store.models import Ancestor, ModelRegistry, read_card, write_artifact
from store_support import FULL, tiny_disk

CHILD = Path(__file__).with_name("artifact_child.py")


def everything(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# --- writing and reading -------------------------------------------------------------------


def test_an_artifact_reads_back_as_it_was_written(tmp_path: Path) -> None:
    made = write_artifact(tmp_path / "run" / "artifact", card_of(), filler())
    card = read_card(made.path, verify=True)
    assert card == made.card
    assert replace(card, id="", created="", files=()) == card_of()
    assert everything(made.path) == ["README.md", "card.json", "model"]
    assert made.weights == made.path / "model"
    for file in card.files:
        data = (made.path / file.name).read_bytes()
        assert (file.size, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert {Path(file.name).name for file in card.files} == set(everything(made.weights))
    assert card.size == sum(file.size for file in card.files)
    assert everything(tmp_path / "run") == ["artifact"]


def test_the_id_is_a_hash_of_weights_parents_and_recipe_alone(tmp_path: Path) -> None:
    made = artifact_in(tmp_path, "a")
    (weights,) = [f.sha256 for f in made.card.files if f.name.endswith(".safetensors")]
    spelled = json.dumps(
        [[weights], [[BASE.digest, None]], "0123456789abcdef"], separators=(",", ":")
    )
    assert made.card.id == hashlib.sha256(spelled.encode()).hexdigest()[:16]
    same = artifact_in(tmp_path, "b", scores=(), seed=0, steps=3, data=())
    assert same.card.id == made.card.id
    others = [
        artifact_in(tmp_path, "c", seed=1),
        artifact_in(tmp_path, "d", recipe_digest="0" * 16),
        artifact_in(tmp_path, "e", parents=()),
        artifact_in(tmp_path, "f", parents=(Parent(source="x", artifact=made.card.id),)),
    ]
    assert len({made.card.id, *(other.card.id for other in others)}) == 5


def test_every_flipped_bit_of_a_card_is_detected(tmp_path: Path) -> None:
    made = artifact_in(tmp_path, "run")
    data = (made.path / "card.json").read_bytes()
    assert parse_card(data) == made.card
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        with pytest.raises(ValueError):
            parse_card(bytes(flipped))


def test_damaged_weights_are_found_on_demand_and_missing_ones_always(tmp_path: Path) -> None:
    made = artifact_in(tmp_path, "run")
    flip(made.weights / "model.safetensors")
    assert read_card(made.path) == made.card
    with pytest.raises(
        StorageError, match=r"model\.safetensors does not match its SHA-256"
    ) as told:
        read_card(made.path, verify=True)
    assert "backup" in told.value.hint
    (made.weights / "model.safetensors").write_bytes(b"short")
    with pytest.raises(StorageError, match="has 5 bytes instead of"):
        read_card(made.path)
    (made.weights / "model.safetensors").unlink()
    with pytest.raises(StorageError, match=r"model\.safetensors is missing"):
        read_card(made.path)


def test_files_that_the_card_does_not_know_are_found_on_demand(tmp_path: Path) -> None:
    made = artifact_in(tmp_path, "run")
    (made.path / "README.md").write_text("what people wrote")
    assert read_card(made.path, verify=True) == made.card
    (made.weights / "more.safetensors").write_bytes(b"")
    with pytest.raises(StorageError, match=r"model/more\.safetensors is not in the card"):
        read_card(made.path, verify=True)


def test_a_file_that_lies_elsewhere_is_missing(tmp_path: Path) -> None:
    made = artifact_in(tmp_path, "run")
    path = made.weights / "model.safetensors"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=r"model\.safetensors is missing"):
        read_card(made.path)


@pytest.mark.parametrize("name", ["../secret.json", "/etc/passwd.json", "model/../../x.json"])
def test_a_forged_card_cannot_name_files_outside(tmp_path: Path, name: str) -> None:
    made = artifact_in(tmp_path, "run")
    (tmp_path / "run" / "secret.json").write_text("secret")
    stolen = FileDigest(name=name, size=6, sha256=hashlib.sha256(b"secret").hexdigest())
    forge(made.path, files=(*made.card.files, stolen))
    with pytest.raises(StorageError, match="which is no part of a model"):
        read_card(made.path, verify=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format is 2; this headrace reads 1"),
        ({"kind": "virus"}, "kind: Input should be"),
        ({"steps": "many"}, "steps: Input should be a valid integer"),
        ({"steps": -1}, "steps: Input should be greater"),
        ({"run": "rm -rf"}, "run: Unexpected keyword argument"),
        ({"id": "../../etc"}, "id: String should match pattern"),
        ({"parents": [{"source": "x", "weight": "1"}]}, "parents.0.weight"),
        ({"id": "0" * 16}, "its id is not that of its weights"),
        ({"files": []}, "there are no safetensors in it"),
    ],
)
def test_a_card_that_is_none_says_why(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    made = artifact_in(tmp_path, "run")
    path = made.path / "card.json"
    path.write_bytes(resealed({**json.loads(path.read_bytes()), **change}))
    with pytest.raises(StorageError, match=message) as told:
        read_card(made.path)
    assert told.value.where == str(path)
    assert told.value.exit_code == Exit.INFRASTRUCTURE


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"null", b"[" * 100_000, b'{"format": NaN}'])
def test_what_is_no_card_at_all_is_an_error_too(tmp_path: Path, data: bytes) -> None:
    made = artifact_in(tmp_path, "run")
    (made.path / "card.json").write_bytes(data)
    with pytest.raises(StorageError):
        read_card(made.path)
    (made.path / "card.json").unlink()
    with pytest.raises(StorageError, match=r"it has no card\.json"):
        read_card(made.path)


def test_names_that_are_not_utf_8_do_not_stop_a_card(tmp_path: Path) -> None:
    odd = os.fsdecode(b"caf\xe9.jsonl")
    data = replace(card_of().data[0], source=odd)
    made = artifact_in(tmp_path, "run", data=(data,))
    assert read_card(made.path).data[0].source == "caf?.jsonl"


def test_numbers_that_json_does_not_know_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="seconds is nan"):
        artifact_in(tmp_path, "run", seconds=float("nan"))
    assert everything(tmp_path / "run") == []


# --- half an artifact ----------------------------------------------------------------------


def filling(what: Callable[[Path], object]) -> Callable[[Path], None]:
    def fill(directory: Path) -> None:
        filler(9)(directory)
        what(directory)

    return fill


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda d: (d / "weights.bin").write_bytes(b"pickle"), "weights.bin"),
        (lambda d: (d / "a.json").symlink_to("/etc/passwd"), "regular files only"),
        (lambda d: (d / "model.safetensors").unlink(), "no safetensors"),
        (lambda d: (d / "a\nb.json").write_bytes(b""), "nothing that a model is read"),
    ],
)
def test_only_what_a_model_consists_of_is_taken(
    tmp_path: Path, what: Callable[[Path], object], message: str
) -> None:
    before = artifact_in(tmp_path, "run")
    with pytest.raises(ValueError, match=message):
        write_artifact(before.path, card_of(), filling(what))
    assert everything(tmp_path / "run") == ["artifact"]
    assert read_card(before.path, verify=True) == before.card


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (OSError(errno.ENOSPC, "full"), StorageError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (RuntimeError("bug"), RuntimeError),
    ],
)
def test_a_failure_leaves_nothing_and_what_was_there_before(
    tmp_path: Path, error: BaseException, becomes: type[BaseException]
) -> None:
    def fail(directory: Path) -> None:
        raise error

    with pytest.raises(becomes):
        write_artifact(tmp_path / "new" / "artifact", card_of(), filling(fail))
    assert everything(tmp_path / "new") == []
    before = artifact_in(tmp_path, "run")
    with pytest.raises(becomes):
        write_artifact(before.path, card_of(), filling(fail))
    assert read_card(before.path, verify=True) == before.card
    assert [entry.place for entry in ModelRegistry(tmp_path).entries()] == ["run"]


def test_a_full_disk_says_so_and_keeps_what_was_there(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk") as disk:
        before = artifact_in(disk, "run")
        with pytest.raises(StorageError, match=FULL):
            write_artifact(before.path, card_of(), filler(1, size=200_000))
        assert everything(disk / "run") == ["artifact"]
        assert read_card(before.path, verify=True) == before.card


def test_an_artifact_made_again_replaces_the_old_one(tmp_path: Path) -> None:
    old = artifact_in(tmp_path, "run")
    new = artifact_in(tmp_path, "run", seed=1)
    assert old.card.id != new.card.id
    assert read_card(old.path, verify=True) == new.card
    assert everything(tmp_path / "run") == ["artifact"]


def test_a_kill_between_the_two_renames_of_a_replacement_loses_nothing(tmp_path: Path) -> None:
    old = artifact_in(tmp_path, "run")
    old.path.rename(old.path.with_name(".replaced-artifact"))
    assert ModelRegistry(tmp_path).entries() == []

    def fail(directory: Path) -> None:
        raise RuntimeError("bug")

    with pytest.raises(RuntimeError, match="bug"):
        write_artifact(old.path, card_of(), fail)
    assert read_card(old.path, verify=True) == old.card
    assert everything(tmp_path / "run") == ["artifact"]
    new = artifact_in(tmp_path, "other", seed=1)
    new.path.rename(old.path.with_name(".replaced-artifact"))
    artifact_in(tmp_path, "run", seed=2)
    assert everything(tmp_path / "run") == ["artifact"]


def child(kind: str, runs: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(CHILD.parents[1])}
    command = [sys.executable, str(CHILD), kind, str(runs)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_a_writer_killed_while_it_fills_in_leaves_nothing_to_be_listed(tmp_path: Path) -> None:
    with child("inside", tmp_path) as writer:
        assert writer.wait(60) == -9
    (left,) = everything(tmp_path / "run")
    assert left.startswith(".tmp-artifact-")
    assert ModelRegistry(tmp_path).entries() == []
    with pytest.raises(ModelError):
        ModelRegistry(tmp_path).find("run")
    artifact_in(tmp_path, "run")
    assert everything(tmp_path / "run") == ["artifact"]


def test_nothing_half_is_ever_listed_whenever_a_writer_is_killed(tmp_path: Path) -> None:
    rng = random.Random(0)
    said = -1
    for _ in range(3):
        with child("many", tmp_path) as writer:
            assert writer.stdout is not None
            first = writer.stdout.readline()
            time.sleep(rng.uniform(0, 0.05))
            writer.kill()
            rest = writer.stdout.read()
        said = max([said, *(int(line) for line in (first + rest).split("\n")[:-1])])
        entries = ModelRegistry(tmp_path).entries()
        assert [entry.problem for entry in entries if entry.problem] == []
        assert {f"run-{number}" for number in range(said + 1)} <= {e.place for e in entries}
        for entry in entries:
            assert read_card(entry.path, verify=True) == entry.card
    assert said >= 2


# --- the registry --------------------------------------------------------------------------


def test_models_of_runs_of_stages_and_merged_ones_are_found(tmp_path: Path) -> None:
    made = [
        artifact_in(tmp_path, "quick--tiny--aaaaaa", seed=1),
        artifact_in(tmp_path, "plan--tiny--bbbbbb/sft", seed=2),
        artifact_in(tmp_path, "plan--tiny--bbbbbb/rl", seed=3),
        artifact_in(tmp_path, "models/mean", seed=4, kind="merged"),
    ]
    (tmp_path / "quick--tiny--aaaaaa" / "stages" / "empty").mkdir(parents=True)
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / ".hidden" / "artifact").mkdir(parents=True)
    found = {entry.place: entry for entry in ModelRegistry(tmp_path).entries()}
    assert set(found) == {
        "quick--tiny--aaaaaa",
        "plan--tiny--bbbbbb/sft",
        "plan--tiny--bbbbbb/rl",
        "mean",
    }
    assert {entry.card.id for entry in found.values() if entry.card} == {
        artifact.card.id for artifact in made
    }
    assert ModelRegistry(tmp_path / "nowhere").entries() == []


def test_a_damaged_model_is_listed_with_its_problem_and_cannot_be_taken(tmp_path: Path) -> None:
    made = artifact_in(tmp_path, "run")
    (made.path / "card.json").write_text("{}")
    (entry,) = ModelRegistry(tmp_path).entries()
    assert (entry.place, entry.card) == ("run", None)
    assert "card.json cannot be used" in entry.problem
    with pytest.raises(StorageError, match="cannot be used"):
        ModelRegistry(tmp_path).find("run")


def test_a_model_is_found_by_whatever_means_it_alone(tmp_path: Path) -> None:
    registry = ModelRegistry(tmp_path)
    first = artifact_in(tmp_path, "quick--tiny--aaaaaa", seed=1)
    sft = artifact_in(tmp_path, "plan--tiny--bbbbbb/sft", seed=2)
    merged = artifact_in(tmp_path, "models/mean", seed=4)
    forge(first.path, created="2026-01-01T00:00:00+00:00")
    forge(sft.path, created="2026-01-02T00:00:00+00:00")
    forge(merged.path, created="2026-01-03T00:00:00+00:00")
    names = {
        first: [
            first.card.id,
            first.card.id[:8],
            "quick",
            "aaaaaa",
            str(tmp_path / "quick--tiny--aaaaaa"),
        ],
        sft: ["plan--tiny--bbbbbb/sft", "bbbbbb/sft", "plan", str(sft.path)],
        merged: ["mean", "latest", "me"],
    }
    for artifact, fragments in names.items():
        for fragment in fragments:
            assert registry.find(fragment).card.id == artifact.card.id, fragment


def test_of_a_run_with_stages_the_last_model_is_meant(tmp_path: Path) -> None:
    rl = artifact_in(tmp_path, "plan/rl", seed=1)
    sft = artifact_in(tmp_path, "plan/sft", seed=2)
    forge(sft.path, created="2026-01-02T00:00:00+00:00")
    forge(rl.path, created="2026-01-03T00:00:00+00:00")
    registry = ModelRegistry(tmp_path)
    assert registry.find("plan").card.id == rl.card.id
    assert registry.find(str(tmp_path / "plan")).card.id == rl.card.id
    assert registry.find("plan/sft").card.id == sft.card.id


def test_the_same_model_in_two_places_is_one(tmp_path: Path) -> None:
    made = artifact_in(tmp_path, "a--x", seed=1)
    artifact_in(tmp_path, "b--x", seed=1)
    assert ModelRegistry(tmp_path).find(made.card.id[:6]).card.id == made.card.id


def test_a_name_for_several_models_lists_them(tmp_path: Path) -> None:
    made = [artifact_in(tmp_path, f"run--{n}", seed=n) for n in range(2)]
    with pytest.raises(ModelError, match="'run' means 2 models") as told:
        ModelRegistry(tmp_path).find("run")
    assert all(artifact.card.id in told.value.what for artifact in made)
    assert told.value.exit_code == Exit.USAGE


def test_an_unknown_name_names_the_nearest(tmp_path: Path) -> None:
    registry = ModelRegistry(tmp_path)
    with pytest.raises(ModelError, match="no run has left a model yet"):
        registry.find("latest")
    made = artifact_in(tmp_path, "quick--tiny--aaaaaa")
    artifact_in(tmp_path, "models/careful", seed=1)
    for fragment, nearest in {
        "carful": "careful",
        "quik--tiny--aaaaaa": "quick--tiny--aaaaaa",
        "z" + made.card.id[1:]: made.card.id,
    }.items():
        with pytest.raises(ModelError, match=f"no model '{fragment}'") as told:
            registry.find(fragment)
        assert f"did you mean {nearest}" in told.value.hint
    for fragment in ("", "x" * 5000, "\x1b[31m", "../.."):
        with pytest.raises(ModelError) as told:
            registry.find(fragment)
        assert len(str(told.value)) < 400


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".hidden", "UP", "a" * 65, "a\n"])
def test_a_merged_model_stays_among_the_models(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a model"):
        ModelRegistry(tmp_path).place(name)
    assert ModelRegistry(tmp_path).place("mean-2.0") == tmp_path / "models" / "mean-2.0"


# --- lineage -------------------------------------------------------------------------------


def titles(node: Ancestor) -> list[Any]:
    name = node.artifact.card.title if node.artifact else node.source
    return [name, *(titles(parent) for parent in node.parents)]


def child_of(*parents: str, weight: float | None = None) -> tuple[Parent, ...]:
    return tuple(Parent(source="elsewhere", artifact=id, weight=weight) for id in parents)


def test_lineage_goes_down_to_the_base_models(tmp_path: Path) -> None:
    registry = ModelRegistry(tmp_path)
    sft = artifact_in(tmp_path, "p/sft", seed=1)
    dpo = artifact_in(tmp_path, "p/dpo", seed=2, stage="dpo", parents=child_of(sft.card.id))
    base = Parent(source="hf:a/b", digest="ef" * 32, weight=0.25)
    parents = (*child_of(dpo.card.id, weight=0.75), base)
    merged = artifact_in(tmp_path, "models/m", seed=3, recipe="m", stage="", parents=parents)
    root = registry.lineage(merged)
    assert titles(root) == [
        "m",
        ["four-step/dpo", ["four-step/sft", [BASE.source]]],
        ["hf:a/b"],
    ]
    assert [parent.weight for parent in root.parents] == [0.75, 0.25]
    assert root.bases() == [BASE.source, "hf:a/b"]
    leaf = root.parents[0].parents[0].parents[0]
    assert (leaf.digest, leaf.missing, leaf.parents) == (BASE.digest, "", ())


def test_a_parent_that_is_gone_is_said_to_be_missing(tmp_path: Path) -> None:
    made = artifact_in(tmp_path, "run", parents=child_of("0" * 16))
    (gone,) = ModelRegistry(tmp_path).lineage(made).parents
    assert (gone.digest, gone.artifact) == ("0" * 16, None)
    assert str(tmp_path) in gone.missing


def test_a_parent_shared_by_two_is_shown_once(tmp_path: Path) -> None:
    made = artifact_in(tmp_path, "run-0", seed=0)
    for level in range(1, 25):
        parents = child_of(made.card.id, made.card.id)
        made = artifact_in(tmp_path, f"run-{level}", seed=level, parents=parents)
    root = ModelRegistry(tmp_path).lineage(made)
    first, second = root.parents
    assert (first.again, second.again, second.parents) == (False, True, ())
    assert root.bases() == [BASE.source]


def test_a_forged_circle_ends(tmp_path: Path) -> None:
    made = artifact_in(tmp_path, "run")
    entries = ModelRegistry(tmp_path).entries()
    circle = replace(made.card, parents=child_of(made.card.id))
    (entry,) = [replace(entry, card=circle) for entry in entries]
    (again,) = ModelRegistry(tmp_path).lineage(entry.artifact, [entry]).parents
    assert (again.again, again.parents) == (True, ())


def test_an_endless_line_of_parents_ends(tmp_path: Path) -> None:
    made = artifact_in(tmp_path, "run")
    (entry,) = ModelRegistry(tmp_path).entries()
    line = [
        replace(
            entry,
            card=replace(made.card, id=f"{n:016x}", parents=child_of(f"{n + 1:016x}")),
        )
        for n in range(3000)
    ]
    node = ModelRegistry(tmp_path).lineage(line[0].artifact, line)
    depth = 0
    while node.parents:
        (node,) = node.parents
        depth += 1
    assert 50 < depth < 100
    assert node.missing == "the tree is too deep"


# --- hostile words -------------------------------------------------------------------------


def test_a_card_is_the_same_whatever_its_words_are(tmp_path: Path) -> None:
    words = '<script>alert(1)</script> [x](javascript:y) ../../etc "|`\\ \x1b[2J \u202e'
    made = artifact_in(
        tmp_path,
        "run",
        recipe=words,
        stage=words,
        method=words,
        parents=(Parent(source=words, digest=words),),
        scores=(SuiteScore(suite=words),),
    )
    assert parse_card((made.path / "card.json").read_bytes()) == made.card
    assert made.card.recipe == words
    assert everything(tmp_path) == ["run"]
