"""Sealing, the manifest, other file systems, compaction: nothing is lost, whatever happens."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import duckdb
import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import StorageError
from headrace.store.compaction import Retention
from headrace.store.ledger import Consumed
from headrace.store.trajectories import Judged, TrajectoryStore
from headrace.store.vault import Manifest, SealedFile, Vault
from headrace.types import Floats, Json, Trajectory
from store_support import LAW, bits, small_trajectory
from trajectories_support import NEWER, admitted, attempt, first_format, read, verdict


def group_of(step: int, number: int) -> str:
    return f"{step:06d}:0.{number}"


def filled(directory: Path, *, steps: int = 3, sealed: str | None = None) -> TrajectoryStore:
    """Two groups of two a step: admitted, tried, judged, one trained on and one rejected."""
    store = TrajectoryStore(directory, sealed=sealed)
    for step in range(1, steps + 1):
        for number in range(2):
            group = group_of(step, number)
            store.append(admitted(group))
            for index in range(2):
                store.append(attempt(group, index))
                store.append(Judged(f"{group}/{index}", verdict(float(index))))
        store.append_wave(f"{step:06d}:honeypot", [attempt(f"{step:06d}:honeypot.0")])
        version = step - 1
        store.append(Consumed(step=step, version=version, groups=(group_of(step, 0),)))
        lost = (group_of(step, 1),)
        store.append(Consumed(step=step, version=version, groups=lost, reason="no spread"))
    return store


def everything(store: TrajectoryStore) -> Json:
    """All that can be asked of a store."""
    return bits(
        [
            [store.admitted(group) for group in store.groups()],
            list(store.trajectories()),
            [store.verdicts(trajectory.id) for trajectory in store.trajectories()],
            store.ledger(),
            store.unconsumed(),
            [[wave.key, wave.trajectories] for wave in store.iterate()],
        ]
    )


def files(directory: Path) -> list[str]:
    found = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return sorted(map(str, found))


SEALED = [
    f"sealed/part-00000.0.{kind}"
    for kind in ("attempts.parquet", "index.json", "tasks.parquet", "verdicts.parquet")
]


# --- sealing -------------------------------------------------------------------------------


def test_sealing_loses_nothing_and_replaces_the_segment(tmp_path: Path) -> None:
    with filled(tmp_path) as store:
        before = everything(store)
        told = store.seal()
        assert (told.segments, told.bytes_before > 0, told.bytes_after > 0) == (1, True, True)
        assert everything(store) == before
        assert files(tmp_path) == ["manifest.json", "part-00001.seg", *SEALED]
        assert store.seal().segments == 0
        store.append(attempt("later"))
    for found in (read(tmp_path), TrajectoryStore(tmp_path)):
        assert bits(found.trajectory("later/0")) == bits(attempt("later"))
        assert bits(found.trajectory(f"{group_of(2, 1)}/1")) == bits(
            attempt(group_of(2, 1), 1).judged(verdict(1.0))
        )
        assert len(found) == 16


def test_only_full_segments_are_sealed_while_a_run_goes_on(tmp_path: Path) -> None:
    with TrajectoryStore(tmp_path, segment_bytes=3000) as store:
        for number in range(10):
            store.append(attempt(f"g{number}"))
        before = everything(store)
        assert store.seal(full_only=True).segments >= 2
        raw = [name for name in files(tmp_path) if name.endswith(".seg")]
        assert len(raw) == 1
        assert everything(store) == everything(read(tmp_path)) == before
        store.append(Judged("g0/0", verdict(1.0)))
    late = read(tmp_path).trajectory("g0/0")
    assert late is not None
    assert late.score == 1.0


def test_logs_of_the_first_format_are_sealed_too(tmp_path: Path) -> None:
    waves = {"000001:0": [small_trajectory(seed) for seed in range(3)], "empty": []}
    first_format(tmp_path, waves)
    with TrajectoryStore(tmp_path) as store:
        store.seal()
    assert read(tmp_path).keys() == ["000001:0", "empty"]
    assert bits(read(tmp_path).wave("000001:0")) == bits(waves["000001:0"])
    assert read(tmp_path).verdicts("g1/1") == [small_trajectory(1).verdict]


def test_numbers_that_are_no_numbers_survive_sealing_bit_for_bit(tmp_path: Path) -> None:
    odd: Floats = np.array([0x7FC00001, 0xFFC00002, 0x80000000], np.uint32).view(np.float32)
    made = attempt("g")
    prompt, answer = made.turns
    made = replace(made, turns=(prompt, replace(answer, logps=odd, text="half \ud800 a pair")))
    with TrajectoryStore(tmp_path) as store:
        store.append(made)
        store.seal()
    assert bits(read(tmp_path).trajectory("g/0")) == bits(made)


def test_people_find_what_they_look_for_in_the_files(tmp_path: Path) -> None:
    with filled(tmp_path, steps=2) as store:
        store.seal()
    table = pq.read_table(tmp_path / "sealed" / "part-00000.0.attempts.parquet")
    row = table.slice(3, 1).to_pylist()[0]
    told = attempt(group_of(1, 1), 1).judged(verdict(1.0))
    answer = told.turns[1]
    assert {name: row[name] for name in ("id", "group_id", "attempt", "step", "domain")} == {
        "id": told.id,
        "group_id": told.group,
        "attempt": 1,
        "step": 1,
        "domain": "arithmetic",
    }
    assert (row["task_id"], row["tier"], row["split"]) == (told.task.id, 0, "train")
    assert (row["score"], row["verifier"], row["verifier_version"]) == (1.0, "final-integer", "1")
    assert row["parts"] == [{"name": "answer", "value": 1.0, "weight": 1.0}]
    assert (row["ending"], row["prompt_tokens"], row["tokens"]) == ("finished", 5, 3)
    assert (row["prompt"], row["completion"]) == (told.task.messages[0].text, answer.text)
    assert row["ids"] == [*told.turns[0].ids.tolist(), *answer.ids.tolist()]
    assert row["logps"] == answer.logps.tolist()
    assert row["versions"] == [{"version": answer.versions[0].version, "count": 3}]
    assert row["timings"] == [("play", 0.1)]
    assert json.loads(row["record"])["group"] == told.group
    pattern = str(tmp_path / "sealed" / "*.verdicts.parquet")
    counted = duckdb.connect().execute(f"SELECT count(*), avg(score) FROM '{pattern}'")
    assert counted.fetchall() == [(8, 0.5)]


@pytest.mark.parametrize("at", range(8))
def test_a_crash_at_any_point_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Four files, the manifest (before and after it is in force), the removal (the same)."""
    with filled(tmp_path) as store:
        before = everything(store)
    steps = 0

    def dying(step: Callable[..., object], *, first: bool) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            nonlocal steps
            if first:
                steps += 1
                if steps == at + 1:
                    raise KeyboardInterrupt
            result = step(*arguments)
            if not first:
                steps += 1
                if steps == at + 1:
                    raise KeyboardInterrupt
            return result

        return call

    store = TrajectoryStore(tmp_path)
    with monkeypatch.context() as dies:
        dies.setattr(Vault, "put", dying(Vault.put, first=True))
        dies.setattr(Manifest, "write", dying(dying(Manifest.write, first=True), first=False))
        remove = dying(dying(TrajectoryStore._remove, first=True), first=False)  # pyright: ignore[reportPrivateUsage]
        dies.setattr(TrajectoryStore, "_remove", remove)
        with pytest.raises(KeyboardInterrupt):
            store.seal()
    store.close()
    assert everything(read(tmp_path)) == before
    with TrajectoryStore(tmp_path) as again:
        assert everything(again) == before
        again.append(attempt("later"))
        again.seal()
        again.append(attempt("last"))
    assert len(read(tmp_path)) == 17
    named = Manifest.read(tmp_path).names()
    assert {path.name for path in (tmp_path / "sealed").iterdir()} == named, "nothing is left over"


def test_readers_beside_a_sealing_writer_always_see_everything(tmp_path: Path) -> None:
    with TrajectoryStore(tmp_path, segment_bytes=2000) as store:
        early = [store.append(attempt(f"g{number}")) for number in range(30)]
        opened = read(tmp_path)
        sealing = threading.Thread(target=store.seal)
        sealing.start()
        while sealing.is_alive():
            assert len(read(tmp_path)) == len(early)
        sealing.join()
        assert [t.id for t in opened.trajectories()] == [f"g{number}/0" for number in range(30)]


def test_closing_waits_for_a_seal_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go, put = threading.Event(), threading.Event(), Vault.put

    def slow(vault: Vault, name: str, data: bytes) -> SealedFile:
        entered.set()
        assert go.wait(30)
        return put(vault, name, data)

    monkeypatch.setattr(Vault, "put", slow)
    store = filled(tmp_path)
    before = everything(store)
    sealing, closing = threading.Thread(target=store.seal), threading.Thread(target=store.close)
    sealing.start()
    assert entered.wait(30)
    closing.start()
    assert closing.is_alive()
    go.set()
    for thread in (sealing, closing):
        thread.join(30)
    assert len(Manifest.read(tmp_path).segments) == 1
    assert everything(read(tmp_path)) == before


# --- damage --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEALED)
def test_a_flipped_bit_in_a_sealed_file_is_an_error_that_names_it(
    tmp_path: Path, name: str
) -> None:
    with filled(tmp_path, steps=1) as store:
        store.seal()
    path = tmp_path / name
    data = path.read_bytes()
    for position in range(0, len(data), len(data) // 20):
        flipped = bytearray(data)
        flipped[position] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(StorageError, match="does not match its SHA-256") as caught:
            everything(read(tmp_path))
        assert name.rpartition("/")[2] in caught.value.where
    path.write_bytes(data[:-1])
    with pytest.raises(StorageError, match="does not match"):
        everything(read(tmp_path))
    path.unlink()
    with pytest.raises(StorageError, match="cannot read"):
        everything(read(tmp_path))


@pytest.mark.parametrize(
    "damage",
    [
        b"{",
        b"[]",
        b'{"format": 2, "url": null, "segments": []}',
        b'{"format": 1, "url": null, "segments": [{"segment": 0}]}',
        b'{"format": 1, "url": null, "segments": [{"segment": 0, "generation": 0, "files": '
        b'{"index": {"name": "../part-x", "size": 1, "sha256": ""}}}]}',
        b'{"format": 1, "url": null, "segments": [{"segment": 1, "generation": 0, "files": {}}]}',
    ],
)
def test_a_manifest_that_is_none_is_an_error(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(damage)
    with pytest.raises(StorageError, match="manifest"):
        read(tmp_path)


# --- other file systems --------------------------------------------------------------------


def test_sealed_files_may_be_anywhere_and_later_openings_know_where(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/sealed"
    with filled(tmp_path, sealed=url) as store:
        before = everything(store)
        store.seal()
        store.compact(Retention(arrays_from=1))
    assert files(tmp_path) == ["manifest.json", "part-00001.seg"]
    assert everything(read(tmp_path)) == before
    with TrajectoryStore(tmp_path) as store:
        store.append(attempt("later"))
        assert store.seal().segments == 1
    assert len(read(tmp_path)) == 16
    with pytest.raises(StorageError, match="sealed segments of this log are at memory"):
        TrajectoryStore(tmp_path, sealed=str(tmp_path / "elsewhere"))
    fs = fsspec.filesystem("memory")
    fs.rm(f"/{tmp_path.name}/sealed/part-00000.0.attempts.parquet")
    with pytest.raises(StorageError, match="cannot read memory://"):
        read(tmp_path).trajectory(f"{group_of(1, 0)}/0")


def test_an_address_that_nobody_serves_is_an_error(tmp_path: Path) -> None:
    with filled(tmp_path, steps=1, sealed="nowhere://x") as store:
        with pytest.raises(StorageError, match="cannot open nowhere://x"):
            store.seal()
        assert len(store) == 5


# --- compaction ----------------------------------------------------------------------------


def test_arrays_of_old_steps_go_and_everything_else_stays(tmp_path: Path) -> None:
    with filled(tmp_path) as store:
        store.append(attempt("unnumbered"))
        store.append(attempt(group_of(1, 7)))
        store.seal()
        before = [store.trajectory(t.id) for t in store.trajectories()]
        size = sum(path.stat().st_size for path in (tmp_path / "sealed").iterdir())
        freed = store.compact(Retention(arrays_from=3))
        assert (freed.arrays, freed.trajectories, freed.groups) == (8, 0, 0)
        left = sum(path.stat().st_size for path in (tmp_path / "sealed").iterdir())
        assert freed.bytes == size - left > 0
        assert store.compact(Retention(arrays_from=3)).arrays == 0
    found = read(tmp_path)
    for told in before:
        assert told is not None
        now = found.trajectory(told.id)
        assert now is not None
        old = told.group.startswith(("000001:0.0", "000001:0.1", "000002:0"))
        if not old:
            assert bits(now) == bits(told)
            continue
        assert [turn.text for turn in now.turns] == [turn.text for turn in told.turns]
        assert (now.verdict, now.task.id, now.sampled_tokens) == (told.verdict, told.task.id, 0)
        assert now.provenance["arrays"] == "dropped by compaction"
    assert found.keys() == ["000001:honeypot", "000002:honeypot", "000003:honeypot"]
    table = pq.read_table(tmp_path / "sealed" / "part-00000.1.attempts.parquet")
    assert table["tokens"].to_pylist() == [3] * len(table), "the counts stay"


def test_whole_groups_go_only_where_that_was_said(tmp_path: Path) -> None:
    with filled(tmp_path) as store:
        store.seal()
        assert store.compact(Retention(groups_from=3)).groups == 0
        freed = store.compact(Retention(groups_from=3, consumed=True))
        assert (freed.groups, freed.trajectories) == (4, 8)
        assert "000001:honeypot.0" in store.groups(), "never consumed"
        assert store.compact(Retention(groups_from=3, unconsumed=True)).groups == 2
        assert store.append(attempt("later")).new
    found = read(tmp_path)
    assert found.keys() == ["000003:honeypot"]
    assert found.groups() == [
        group_of(3, 0),
        group_of(3, 1),
        "000003:honeypot.0",
        "later",
    ]
    assert len(found.ledger()) == 6, "the ledger stays"
    kept = found.trajectory(f"{group_of(3, 1)}/1")
    assert bits(kept) == bits(attempt(group_of(3, 1), 1).judged(verdict(1.0)))


def test_what_shares_a_wave_with_something_kept_is_kept(tmp_path: Path) -> None:
    with TrajectoryStore(tmp_path) as store:
        both = [attempt(group_of(1, 0)), attempt(group_of(2, 0))]
        store.append_wave("w", both)
        store.append(Consumed(step=1, version=0, groups=(group_of(1, 0),)))
        store.seal()
        assert store.compact(Retention(groups_from=2, consumed=True)).groups == 0
        assert bits(store.wave("w")) == bits(both)


def test_what_is_still_in_a_segment_is_not_torn_apart(tmp_path: Path) -> None:
    with TrajectoryStore(tmp_path) as store:
        store.append(attempt(group_of(1, 0)))
        store.append(Consumed(step=1, version=0, groups=(group_of(1, 0),)))
        store.seal()
        store.append(Judged(f"{group_of(1, 0)}/0", verdict(1.0)))
        assert store.compact(Retention(groups_from=2, consumed=True)).groups == 0
        store.seal()
        assert store.compact(Retention(groups_from=2, consumed=True)).groups == 1
        assert len(store) == 0
    assert len(read(tmp_path)) == 0


def test_a_crash_during_compaction_leaves_the_old_files_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path) as store:
        store.seal()
        before = everything(store)
        with monkeypatch.context() as dies:
            dies.setattr(Manifest, "write", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                store.compact(Retention(arrays_from=3))
        assert everything(store) == before
    assert everything(read(tmp_path)) == before
    with TrajectoryStore(tmp_path) as store:
        assert store.compact(Retention(arrays_from=3)).arrays == 8
    named = Manifest.read(tmp_path).names()
    assert {path.name for path in (tmp_path / "sealed").iterdir()} == named


# --- everything together -------------------------------------------------------------------


class Model:
    """What a store must hold, as plain dictionaries."""

    def __init__(self) -> None:
        self.attempts: dict[str, Trajectory] = {}
        self.scores: dict[str, list[float | None]] = {}
        self.waves: dict[str, list[str]] = {}
        self.spent: dict[str, int] = {}

    def keep(self, trajectory: Trajectory) -> bool:
        new = trajectory.id not in self.attempts
        self.attempts.setdefault(trajectory.id, trajectory)
        self.scores.setdefault(trajectory.id, [])
        return new


names = st.sampled_from(["a", "b", "c", "d"])
operations = st.one_of(
    st.tuples(st.just("attempt"), names, st.integers(0, 2)),
    st.tuples(st.just("wave"), names, st.integers(0, 3)),
    st.tuples(st.just("judge"), names, st.integers(0, 2)),
    st.tuples(st.just("consume"), names, st.integers(1, 3)),
    st.tuples(st.just("rewind"), names, st.integers(0, 3)),
    st.tuples(st.just("seal"), names, st.integers(0, 1)),
    st.tuples(st.just("reopen"), names, st.just(0)),
)


def step(store: TrajectoryStore, model: Model, operation: tuple[str, str, int]) -> None:
    """Do the same to a store and to its model."""
    match operation:
        case "attempt", name, number:
            made = attempt(name, number, seed=len(model.attempts))
            assert store.append(made).new == model.keep(made)
        case "wave", name, number if name not in model.waves:
            made = [attempt(name, index, seed=7) for index in range(number)]
            store.append_wave(name, made)
            for item in made:
                model.keep(item)
            model.waves[name] = [item.id for item in made]
        case "judge", name, number if f"{name}/{number}" in model.attempts:
            scores = model.scores[f"{name}/{number}"]
            score = [None, 0.5, 1.0][number]
            new = not scores or (scores[-1] is None and score is not None)
            assert store.append(Judged(f"{name}/{number}", verdict(score, NEWER))).new == new
            scores += [score] if new else []
        case "consume", name, number if name not in model.spent:
            assert store.append(Consumed(step=number, version=0, groups=(name,))).new
            model.spent[name] = number
        case "rewind", _, number:
            store.rewind_consumed(number)
            model.spent = {name: at for name, at in model.spent.items() if at <= number}
        case "seal", _, number:
            store.seal(full_only=number == 0)
        case _:
            pass


def check(store: TrajectoryStore, model: Model) -> None:
    assert {t.id for t in store.trajectories()} == set(model.attempts)
    for name, told in model.attempts.items():
        scores = model.scores[name]
        expected = told.judged(verdict(scores[-1], NEWER)) if scores else told
        assert bits(store.trajectory(name)) == bits(expected)
        assert [said.score for said in store.verdicts(name)] == scores
    assert {wave.key: [t.id for t in wave.trajectories] for wave in store.iterate()} == model.waves
    spent = {group: store.consumed(group) for group in "abcd"}
    assert {g: used.step for g, used in spent.items() if used is not None} == model.spent


@settings(LAW, max_examples=25)
@given(st.lists(operations, max_size=14))
def test_a_store_is_its_model_whatever_is_done_in_whatever_order(
    tmp_path_factory: pytest.TempPathFactory, done: list[tuple[str, str, int]]
) -> None:
    directory, model = tmp_path_factory.mktemp("store"), Model()
    store = TrajectoryStore(directory, segment_bytes=1500)
    for operation in done:
        if operation[0] == "reopen":
            store.close()
            store = TrajectoryStore(directory, segment_bytes=1500)
        step(store, model, operation)
        check(store, model)
    store.close()
    check(read(directory), model)
