"""What a kill, a power failure or a bad disk may do to a segment, and group fsync."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from headrace.errors import StorageError
from headrace.store.records import MARK
from headrace.store.segments import OVERHEAD, frame
from headrace.store.trajectories import Appended, Consumed, Judged, TrajectoryStore
from store_support import bits, small_trajectory
from trajectories_support import admitted, attempt, first_format, read, verdict

MARKED = len(frame(MARK))


def segment(directory: Path, number: int = 0) -> Path:
    return directory / f"part-{number:05d}.seg"


def filled(directory: Path) -> list[int]:
    """One acknowledged record of each kind and a wave; the sizes of the file after each."""
    sizes: list[int] = []
    with TrajectoryStore(directory) as store:
        for record in (
            admitted("g"),
            attempt("g"),
            Judged("g/0", verdict(1.0)),
            Consumed(step=1, version=0, groups=("g",)),
        ):
            store.append(record)
            sizes.append(segment(directory).stat().st_size)
        store.append_wave("w", [attempt("h"), attempt("h", 1)])
        sizes.append(segment(directory).stat().st_size)
    return sizes


def content(store: TrajectoryStore) -> list[object]:
    """What a log holds, in as many pieces as `filled` wrote."""
    pieces: list[object] = [
        store.admitted("g"),
        store.trajectory("g/0"),
        store.verdicts("g/0") or None,
        store.consumed("g"),
        store.wave("w"),
    ]
    return [piece for piece in pieces if piece is not None]


def test_a_log_cut_at_any_byte_keeps_what_was_acknowledged_before(tmp_path: Path) -> None:
    sizes = filled(tmp_path / "whole")
    data = segment(tmp_path / "whole").read_bytes()
    assert sizes[-1] == len(data)
    directory = tmp_path / "t"
    directory.mkdir()
    path = segment(directory)
    for size in [*range(0, len(data), 23), *(s + d for s in sizes for d in (-18, -17, -1, 0))]:
        path.write_bytes(data[:size])
        kept = sum(size >= acknowledged - MARKED for acknowledged in sizes)
        assert len(content(read(directory))) == kept
        assert path.stat().st_size == size, "a reader never cuts"
        if size % 2 == 0:
            with TrajectoryStore(directory) as store:
                assert len(content(store)) == kept
                store.append(attempt("next"))
            assert len(content(read(directory))) == kept
            assert bits(read(directory).trajectory("next/0")) == bits(attempt("next"))


def test_every_flipped_bit_of_what_was_acknowledged_is_detected(tmp_path: Path) -> None:
    filled(tmp_path)
    path = segment(tmp_path)
    data = path.read_bytes()
    whole = bits(content(read(tmp_path)))
    for position in (*range(0, len(data), 9), *range(len(data) - 20, len(data))):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        if position >= len(data) - MARKED:
            assert bits(content(read(tmp_path))) == whole, "the last mark covers nothing of its own"
            continue
        with pytest.raises(StorageError, match=r"part-00000\.seg is corrupt at byte") as caught:
            read(tmp_path)
        assert int(caught.value.where.rpartition(":")[2]) <= position


def test_damage_after_opening_is_detected_when_the_record_is_read(tmp_path: Path) -> None:
    filled(tmp_path)
    path = segment(tmp_path)
    store = read(tmp_path)
    data = bytearray(path.read_bytes())
    at = bytes(data).index(b'"group":"h","attempt":1')
    data[at] ^= 4
    path.write_bytes(data)
    assert bits(store.trajectory("h/0")) == bits(attempt("h"))
    for reading in (lambda: store.trajectory("h/1"), lambda: store.wave("w")):
        with pytest.raises(StorageError, match="corrupt at byte") as caught:
            reading()
        assert int(caught.value.where.rpartition(":")[2]) < at
    path.write_bytes(data[:at])
    with pytest.raises(StorageError, match="corrupt at byte"):
        store.trajectory("h/1")


@pytest.mark.parametrize("hole", [(0, 40), (100, 600), (0, 5000)])
def test_what_a_power_failure_left_behind_the_last_mark_is_cut(
    tmp_path: Path, hole: tuple[int, int]
) -> None:
    """Pages of an unacknowledged flush may reach the disk in any order."""
    filled(tmp_path / "more")
    with TrajectoryStore(tmp_path / "t") as store:
        store.append(attempt("first"))
    path = segment(tmp_path / "t")
    acknowledged = path.read_bytes()
    batch = segment(tmp_path / "more").read_bytes().replace(frame(MARK), b"")
    start, stop = hole
    holed = batch[:start] + bytes(min(stop, len(batch)) - start) + batch[stop:]
    path.write_bytes(acknowledged + holed)
    with TrajectoryStore(tmp_path / "t") as store:
        assert bits(store.trajectory("first/0")) == bits(attempt("first"))
        assert "w" not in store
        store.append(attempt("next"))
    assert bits(read(tmp_path / "t").trajectory("next/0")) == bits(attempt("next"))


def test_a_record_that_reached_the_disk_without_its_mark_is_kept_and_marked(
    tmp_path: Path,
) -> None:
    sizes = filled(tmp_path)
    path = segment(tmp_path)
    os.truncate(path, sizes[-1] - MARKED)
    TrajectoryStore(tmp_path).close()
    assert path.stat().st_size == sizes[-1]
    assert len(content(read(tmp_path))) == 5


def test_only_the_last_segment_may_end_in_something_unfinished(tmp_path: Path) -> None:
    with TrajectoryStore(tmp_path, segment_bytes=500) as store:
        for number in range(3):
            store.append(attempt(f"g{number}"))
    first = segment(tmp_path)
    whole = first.read_bytes()
    for damaged in (whole[: -MARKED - 1], whole + whole[:100]):
        first.write_bytes(damaged)
        with pytest.raises(StorageError, match=r"part-00000\.seg is corrupt"):
            TrajectoryStore(tmp_path)
        assert first.read_bytes() == damaged
    first.unlink()
    with pytest.raises(StorageError, match="segments are missing"):
        TrajectoryStore(tmp_path)


def test_a_record_that_says_nothing_known_is_an_error_with_its_place(tmp_path: Path) -> None:
    for payload in (b"hr2", b"hr2Z\0\0\0\0", b"hr2A\x02\0\0\0{}", b"hr2V\xff\0\0\0{}", b"??"):
        segment(tmp_path).write_bytes(frame(payload) + frame(MARK))
        with pytest.raises(StorageError, match="corrupt at byte 0"):
            read(tmp_path)


# --- group fsync ---------------------------------------------------------------------------


class Gate:
    """Stands in for `os.fdatasync`: counts, and waits while it is shut."""

    def __init__(self, sync: Callable[[int], None]) -> None:
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)
        self.calls = 0
        self.fail = False
        self._sync = sync

    def __call__(self, descriptor: int) -> None:
        self.calls += 1
        self.entered.release()
        assert self.open.wait(30)
        if self.fail:
            raise OSError(28, "No space left on device")
        self._sync(descriptor)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    made = Gate(os.fdatasync)
    monkeypatch.setattr(os, "fdatasync", made)
    return made


def test_one_flush_acknowledges_all_that_were_written_before_it(tmp_path: Path, gate: Gate) -> None:
    with TrajectoryStore(tmp_path) as store:
        first = store.append_nowait(attempt("first"))
        assert gate.entered.acquire(timeout=30)
        rest = [store.append_nowait(attempt(f"g{number}")) for number in range(50)]
        assert not any(future.done() for future in (first, *rest))
        assert store.groups() == [], "nothing is seen before it is durable"
        gate.open.set()
        assert all(future.result(30).new for future in (first, *rest))
        assert gate.calls == 2
        assert len(store) == 51


def test_a_failed_flush_fails_all_that_waited_and_leaves_nothing_of_them(
    tmp_path: Path, gate: Gate
) -> None:
    with TrajectoryStore(tmp_path) as store:
        gate.open.set()
        store.append(attempt("kept"))
        before = segment(tmp_path).read_bytes()
        gate.open.clear()
        gate.entered = threading.Semaphore(0)
        waiting: list[Future[Appended]] = [store.append_nowait(attempt("a"))]
        assert gate.entered.acquire(timeout=30)
        waiting += [store.append_nowait(record) for record in (attempt("a"), attempt("b"))]
        waiting.append(store.append_nowait(Judged("a/0", verdict(1.0))))
        gate.fail = True
        gate.open.set()
        for future in waiting:
            with pytest.raises(StorageError, match="no space left"):
                future.result(30)
        assert segment(tmp_path).read_bytes() == before
        gate.fail = False
        assert store.append(attempt("b")).new
        assert store.append(attempt("a")).new
    found = read(tmp_path)
    assert found.groups() == ["kept", "b", "a"]
    assert bits(found.trajectory("kept/0")) == bits(attempt("kept"))


def test_a_tail_that_could_not_be_cut_at_once_is_cut_before_the_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    def refuse(descriptor: int, length: int) -> None:
        raise OSError(5, f"cannot cut {descriptor} at {length}")

    with TrajectoryStore(tmp_path) as store:
        gate.open.set()
        store.append(attempt("kept"))
        gate.fail = True
        with monkeypatch.context() as stuck:
            stuck.setattr(os, "ftruncate", refuse)
            with pytest.raises(StorageError):
                store.append(attempt("a"))
        gate.fail = False
        store.append(attempt("b"))
    assert read(tmp_path).groups() == ["kept", "b"]


def test_flush_waits_for_everything_before_it(tmp_path: Path) -> None:
    with TrajectoryStore(tmp_path) as store:
        futures = [store.append_nowait(attempt(f"g{number}")) for number in range(20)]
        store.flush()
        assert all(future.done() for future in futures)


def test_a_waiter_that_gives_up_does_not_take_its_record_with_it(
    tmp_path: Path, gate: Gate
) -> None:
    with TrajectoryStore(tmp_path) as store:
        future = store.append_nowait(attempt("g"))
        assert not future.cancel()
        gate.open.set()
        assert future.result(30).new
        assert store.append(attempt("h")).new
    assert read(tmp_path).groups() == ["g", "h"]


# --- the first format ----------------------------------------------------------------------


def test_a_first_format_log_cut_at_any_byte_keeps_exactly_its_waves(tmp_path: Path) -> None:
    path = first_format(tmp_path, {"a": [small_trajectory(1)], "b": []})
    data = path.read_bytes()
    first = len(data) - OVERHEAD - len(b'{"commit":"b","count":0}')
    for size in (*range(0, first, 23), *range(first - 3, len(data) + 1)):
        path.write_bytes(data[:size])
        committed = ["a"] * (size >= first) + ["b"] * (size == len(data))
        assert read(tmp_path).keys() == committed
    for tail in (bytes(3), bytes(8), bytes(5000), data[:300] + bytes(200)):
        path.write_bytes(data + tail)
        with TrajectoryStore(tmp_path) as store:
            assert store.keys() == ["a", "b"]
        assert path.read_bytes() == data
        segment(tmp_path, 1).unlink()


def test_every_flipped_bit_of_a_first_format_wave_is_detected(tmp_path: Path) -> None:
    path = first_format(tmp_path, {"a": [small_trajectory(1)], "b": []})
    data = path.read_bytes()
    for position in range(0, len(data), 9):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 7
        path.write_bytes(flipped)
        with pytest.raises(StorageError, match=r"part-00000\.seg is corrupt at byte"):
            read(tmp_path)
