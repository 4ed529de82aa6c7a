"""The trajectory store as everyone uses it: append, read, and count once."""

from __future__ import annotations

import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import StorageError
from headrace.store.index import Index
from headrace.store.ledger import Consumed
from headrace.store.records import AttemptFact, JudgedFact, attempt_id
from headrace.store.trajectories import Judged, TrajectoryStore
from headrace.types import Trajectory
from store_support import FULL, bits, small_trajectory, tiny_disk
from trajectories_support import JUDGE, NEWER, admitted, attempt, first_format, read, verdict


def wave_of(number: int, count: int) -> list[Trajectory]:
    return [small_trajectory(100 * number + index) for index in range(count)]


def key_of(number: int) -> str:
    return f"{number:06d}:0"


def filled(directory: Path, counts: list[int], *, segment_bytes: int = 64 << 20) -> Path:
    with TrajectoryStore(directory, segment_bytes=segment_bytes) as store:
        for number, count in enumerate(counts):
            store.append_wave(key_of(number), wave_of(number, count))
    return directory


# --- waves ---------------------------------------------------------------------------------


def test_waves_come_back_exactly_by_key_and_in_order(tmp_path: Path) -> None:
    filled(tmp_path / "t", [2, 0, 3])
    for store in (TrajectoryStore(tmp_path / "t"), read(tmp_path / "t")):
        assert store.keys() == [key_of(0), key_of(1), key_of(2)]
        assert (store.count(key_of(2)), key_of(1) in store, "other" in store) == (3, True, False)
        assert bits(store.wave(key_of(2))) == bits(wave_of(2, 3))
        assert store.wave(key_of(1)) == []
        assert store.wave("000009:0") is None
        waves = list(store.iterate())
        assert [wave.key for wave in waves] == store.keys()
        assert bits(waves[0].trajectories) == bits(wave_of(0, 2))
        assert [wave.key for wave in store.iterate([key_of(2)])] == [key_of(2)]
        with pytest.raises(KeyError):
            list(store.iterate(["000009:0"]))


def test_a_wave_is_written_once(tmp_path: Path) -> None:
    filled(tmp_path / "t", [1])
    with TrajectoryStore(tmp_path / "t") as store, pytest.raises(ValueError, match="already in"):
        store.append_wave(key_of(0), wave_of(0, 1))


def test_segments_roll_and_a_wave_is_never_split(tmp_path: Path) -> None:
    filled(tmp_path / "t", [3, 1, 2, 1], segment_bytes=2000)
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == [
        "part-00000.seg",
        "part-00001.seg",
        "part-00002.seg",
    ]
    store = TrajectoryStore(tmp_path / "t", segment_bytes=2000)
    for number, count in enumerate([3, 1, 2, 1]):
        assert bits(store.wave(key_of(number))) == bits(wave_of(number, count))
    store.append_wave(key_of(4), wave_of(4, 1))
    assert bits(TrajectoryStore(tmp_path / "t").wave(key_of(4))) == bits(wave_of(4, 1))


def test_a_wave_takes_note_of_attempts_that_are_stored_already(tmp_path: Path) -> None:
    first, second = attempt("g", 0), attempt("g", 1)
    with TrajectoryStore(tmp_path) as store:
        store.append(first)
        store.append_wave("w", [replace(first, seed=99), second, second])
    for found in (store, read(tmp_path)):
        assert bits(found.wave("w")) == bits([first, second])
        assert (len(found), found.count("w")) == (2, 2)


# --- records of every kind -----------------------------------------------------------------


def test_every_kind_of_record_comes_back_after_reopening(tmp_path: Path) -> None:
    told, tried = admitted("000001:0.0"), attempt("000001:0.0", 1)
    said = verdict(0.5)
    used = Consumed(step=1, version=0, groups=("000001:0.0",))
    with TrajectoryStore(tmp_path) as store:
        assert store.append(told).new
        assert store.append(tried).new
        assert store.append(Judged(tried.id, said)).new
        assert store.append(used).new
    for found in (store, read(tmp_path)):
        assert bits(found.admitted("000001:0.0")) == bits(told)
        assert found.admitted("other") is None
        assert bits(found.trajectory(tried.id)) == bits(tried.judged(said))
        assert bits(found.group("000001:0.0")) == bits([tried.judged(said)])
        assert found.verdicts(tried.id) == [said]
        assert [(e.consumed, e.void) for e in found.ledger()] == [(used, False)]
        assert found.consumed("000001:0.0") == used
        assert (found.groups(), found.unconsumed(), len(found)) == (["000001:0.0"], [], 1)
        assert bits(list(found.trajectories())) == bits([tried.judged(said)])
    for unknown in ("000001:0.0/7", "000001:0.0/01", "000001:0.0", "/", ""):
        assert read(tmp_path).trajectory(unknown) is None


def test_an_id_counts_once_and_the_first_stays(tmp_path: Path) -> None:
    first = attempt("g", 0, seed=1).judged(verdict(1.0))
    redo = attempt("g", 0, seed=2).judged(verdict(0.0))
    with TrajectoryStore(tmp_path) as store:
        waiting = [store.append_nowait(record) for record in (first, redo, first)]
        assert [future.result(30).new for future in waiting] == [True, False, False]
    with TrajectoryStore(tmp_path) as store:
        assert not store.append(redo).new
        assert [store.append(admitted("h")).new for _ in range(2)] == [True, False]
        assert bits(store.trajectory("g/0")) == bits(first)
        assert len(store) == 1


def test_many_threads_that_redo_the_same_work_store_it_once(tmp_path: Path) -> None:
    groups = [f"g{number}" for number in range(60)]
    barrier = threading.Barrier(6)

    def work(_: int) -> int:
        barrier.wait(30)
        return sum(store.append(attempt(group)).new for group in groups)

    with TrajectoryStore(tmp_path) as store, ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(work, range(6))) == len(groups)
    assert sorted(read(tmp_path).groups()) == sorted(groups)


def test_appending_to_a_closed_or_read_only_store_is_an_error_and_reading_goes_on(
    tmp_path: Path,
) -> None:
    with TrajectoryStore(tmp_path) as store:
        store.append(attempt("g"))
    for shut in (store, read(tmp_path)):
        with pytest.raises(StorageError, match="closed or read-only"):
            shut.append(attempt("h"))
        assert bits(shut.trajectory("g/0")) == bits(attempt("g"))
    assert read(tmp_path / "absent").keys() == []
    assert not (tmp_path / "absent").exists()


# --- verdicts ------------------------------------------------------------------------------


def test_a_newer_verdict_stands_beside_the_old_one_and_changes_nothing_that_was_trained(
    tmp_path: Path,
) -> None:
    with TrajectoryStore(tmp_path) as store:
        store.append(attempt("g").judged(verdict(1.0)))
        store.append(Judged("g/0", verdict(0.25, NEWER)))
        assert not store.append(Judged("g/0", verdict(0.75, NEWER))).new
    found = read(tmp_path)
    assert [said.score for said in found.verdicts("g/0")] == [1.0, 0.25]
    trained, newer = found.trajectory("g/0"), found.trajectory("g/0", verifier=NEWER)
    assert trained is not None
    assert newer is not None
    assert (trained.score, newer.score) == (1.0, 0.25)
    other = found.trajectory("g/0", verifier=replace(NEWER, version="3"))
    assert other is not None
    assert other.verdict is None


def test_a_verdict_without_a_score_gives_way_to_one_that_has(tmp_path: Path) -> None:
    with TrajectoryStore(tmp_path) as store:
        store.append(attempt("g").judged(verdict(None)))
        assert not store.append(Judged("g/0", verdict(None, evidence="again"))).new
        assert store.append(Judged("g/0", verdict(0.5))).new
        assert not store.append(Judged("g/0", verdict(None))).new
    found = read(tmp_path).trajectory("g/0")
    assert found is not None
    assert found.score == 0.5
    assert len(read(tmp_path).verdicts("g/0")) == 2


def test_a_verdict_on_nothing_is_refused(tmp_path: Path) -> None:
    with TrajectoryStore(tmp_path) as store:
        with pytest.raises(ValueError, match="not stored"):
            store.append(Judged("g/0", verdict(1.0)))
        first = store.append_nowait(attempt("g"))
        second = store.append_nowait(Judged("g/0", verdict(1.0)))
        assert first.result(30).new
        assert second.result(30).new


def test_what_lacks_a_verdict_is_found_and_found_again_after_an_interruption(
    tmp_path: Path,
) -> None:
    with TrajectoryStore(tmp_path) as store:
        for number in range(6):
            store.append(attempt(f"g{number}"))
        store.append(Judged("g0/0", verdict(1.0)))
        store.append(Judged("g1/0", verdict(None)))
        assert [t.id for t in store.unjudged()] == ["g2/0", "g3/0", "g4/0", "g5/0"]
        again = store.unjudged(NEWER)
        for _ in range(2):
            store.append(Judged(next(again).id, verdict(0.5, NEWER)))
    with TrajectoryStore(tmp_path) as store:
        left = [t.id for t in store.unjudged(NEWER)]
        assert left == ["g2/0", "g3/0", "g4/0", "g5/0"]
        assert [t.id for t in store.unjudged(JUDGE)] == ["g1/0", *left]
        assert list(store.unjudged(replace(NEWER, id="another"))) == []


# --- consumption ---------------------------------------------------------------------------


def test_a_group_is_consumed_once(tmp_path: Path) -> None:
    with TrajectoryStore(tmp_path) as store:
        for group in ("a", "b", "c"):
            store.append(admitted(group))
        used = Consumed(step=1, version=0, groups=("a", "b"))
        assert [store.append(used).new for _ in range(2)] == [True, False]
        with pytest.raises(ValueError, match="already consumed, at step 1"):
            store.append(Consumed(step=2, version=1, groups=("b", "c")))
        with pytest.raises(ValueError, match="no group, or one twice"):
            store.append(Consumed(step=2, version=1, groups=("c", "c")))
        assert store.unconsumed() == ["c"]
        store.append(Consumed(step=2, version=1, groups=("c",), reason="no spread"))
    found = read(tmp_path)
    assert found.unconsumed() == []
    spent = found.consumed("c")
    assert spent is not None
    assert (spent.trained, spent.reason) == (False, "no spread")


def test_a_group_on_its_way_to_the_ledger_is_not_consumed_otherwise(tmp_path: Path) -> None:
    with TrajectoryStore(tmp_path) as store:
        first = store.append_nowait(Consumed(step=1, version=0, groups=("a", "b")))
        with pytest.raises(ValueError, match="consume"):
            store.append_nowait(Consumed(step=1, version=0, groups=("b",), reason="no spread"))
        assert first.result(30).new


def test_a_resume_takes_back_what_was_consumed_after_its_checkpoint(tmp_path: Path) -> None:
    with TrajectoryStore(tmp_path) as store:
        for step in (1, 2, 3):
            store.append(admitted(f"g{step}"))
            store.append(Consumed(step=step, version=step - 1, groups=(f"g{step}",)))
    with TrajectoryStore(tmp_path) as store:
        store.rewind_consumed(1)
        assert store.unconsumed() == ["g2", "g3"]
        assert store.append(Consumed(step=2, version=1, groups=("g3",))).new
        size = sum(path.stat().st_size for path in tmp_path.iterdir())
        store.rewind_consumed(2)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) == size, "nothing to void"
    found = read(tmp_path)
    assert found.unconsumed() == ["g2"]
    assert [(e.consumed.step, e.void) for e in found.ledger()] == [
        (1, False),
        (2, True),
        (3, True),
        (2, False),
    ]


# --- limits --------------------------------------------------------------------------------


def test_a_full_disk_keeps_what_was_acknowledged_and_the_store_goes_on(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(60_000))
        store = TrajectoryStore(disk / "t")
        acknowledged: list[str] = []
        with pytest.raises(StorageError, match=FULL) as caught:  # noqa: PT012
            for number in range(1000):
                store.append_wave(key_of(number), wave_of(number, 20))
                acknowledged.append(key_of(number))
        assert "free" in caught.value.hint or "check" in caught.value.hint
        assert len(acknowledged) > 2
        assert bits(store.wave(acknowledged[-1])) == bits(wave_of(len(acknowledged) - 1, 20))
        assert store.keys() == acknowledged
        ballast.unlink()
        if "space" in caught.value.what:
            store.append_wave("later", wave_of(999, 20))
            acknowledged.append("later")
        found = read(disk / "t")
        assert found.keys() == acknowledged
        assert [len(wave.trajectories) for wave in found.iterate()] == [20] * len(acknowledged)


def test_a_thousand_trajectories_are_on_disk_within_half_a_second(tmp_path: Path) -> None:
    wave = [small_trajectory(seed, tokens=40) for seed in range(1000)]
    started = time.process_time()
    with TrajectoryStore(tmp_path) as store:
        store.append_wave("000000:0", wave)
    assert time.process_time() - started < 0.5


def test_memory_holds_places_and_not_payloads() -> None:
    count = 4_000
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    index = Index()
    for number in range(count):
        group = f"{number // 8:06d}:0.{number // 8 % 8}"
        fact = AttemptFact(group, number % 8)
        index.apply(fact, 0, number * 10_000, 10_000)
        index.apply(JudgedFact(attempt_id(group, number % 8), JUDGE, True), 0, 5, 500)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(index.attempts) == count
    assert (after - before) / count < 250, "bytes an attempt and its verdict"


# --- the first format ----------------------------------------------------------------------


def test_logs_of_the_first_format_are_read_and_continued(tmp_path: Path) -> None:
    first_format(tmp_path, {key_of(0): wave_of(0, 2), key_of(1): wave_of(1, 3)})
    found = read(tmp_path)
    assert found.keys() == [key_of(0), key_of(1)]
    assert bits(found.wave(key_of(1))) == bits(wave_of(1, 3))
    assert bits(found.trajectory("g100/4")) == bits(wave_of(1, 1)[0])
    old = (tmp_path / "part-00000.seg").read_bytes()
    with TrajectoryStore(tmp_path) as store:
        store.append_wave(key_of(2), wave_of(2, 1))
        store.append(Judged("g100/4", verdict(0.5, NEWER)))
    assert (tmp_path / "part-00000.seg").read_bytes() == old
    found = read(tmp_path)
    assert [bits(wave.trajectories) for wave in found.iterate()] == [
        bits(wave_of(number, count)) for number, count in enumerate([2, 3, 1])
    ]
    assert [said.score for said in found.verdicts("g100/4")] == [1.0, 0.5]


def test_a_log_that_the_first_writer_left_is_read(tmp_path: Path) -> None:
    """`first_format.seg` was written by the code that introduced the format."""
    data = Path(__file__).with_name("first_format.seg").read_bytes()
    (tmp_path / "part-00000.seg").write_bytes(data)
    assert read(tmp_path).keys() == ["000001:0", "000001:1"]
    assert bits(read(tmp_path).wave("000001:0")) == bits(wave_of(0, 2))
    assert bits(read(tmp_path).wave("000001:1")) == bits(wave_of(1, 1))
